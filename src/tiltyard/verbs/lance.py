"""The one door to pylance: open a table at a pinned version, and turn its errors into ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tiltyard.errors import InvalidInput, NotFound, StorageError, TiltyardError
from tiltyard.redact import redact, secret_values
from tiltyard.verbs.place import Place

if TYPE_CHECKING:
    import lance

_SOURCE_LOCATION: Final = re.compile(r",?\s*(location: )?\S*/rust/\S+\.rs:\d+:\d+.*", re.DOTALL)
_USERS_FAULT: Final = (
    "invalid user input",
    "schema",
    "invalid argument",
    "parser error",
    "no field named",
    "not supported",
    "type mismatch",
)


def open_dataset(place: Place, version: int) -> lance.LanceDataset:
    """pylance's own handle on this version."""
    import lance  # takes a moment to load, and opening a table does not need it

    with lance_errors(place, f"open version {version}"):
        return lance.dataset(place.lance_uri, version=version, storage_options=place.lance_options())


@contextmanager
def lance_errors(place: Place, doing: str) -> Iterator[None]:
    """Errors of pylance as errors of ours: what the caller can mend, what is not there, what the store did."""
    advice = "Nothing was committed." if doing.startswith("write") else None
    try:
        yield
    except TiltyardError:
        raise
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise InvalidInput(_text(place, doing, error), advice=advice) from error
    except FileNotFoundError as error:
        raise NotFound(_text(place, doing, error)) from error
    except (OSError, RuntimeError) as error:
        text = _text(place, doing, error)
        if any(sign in text.lower() for sign in _USERS_FAULT):
            raise InvalidInput(text, advice=advice) from error
        raise StorageError(text) from error
    except BaseException as error:
        # A panic in Rust arrives as a class that is no Exception and can be imported from nowhere.
        if type(error).__name__ != "PanicException":
            raise
        raise StorageError(_text(place, doing, error), advice=advice) from error


def translated(place: Place, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The same stream, whose errors are ours too."""

    def batches() -> Iterator[pa.RecordBatch]:
        while True:
            try:
                with lance_errors(place, "read rows"):
                    batch = reader.read_next_batch()
            except StopIteration:
                return
            yield batch

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _text(place: Place, doing: str, error: BaseException) -> str:
    reason = " ".join(_SOURCE_LOCATION.sub("", str(error)).split())
    return redact(f"pylance could not {doing} of {place.store.uri}: {reason}", secret_values(place.storage_options or {}))

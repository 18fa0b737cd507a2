"""The one door to pylance: open a table at a pinned version, and turn its errors into ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput, NotFound, StorageError, TiltyardError
from tiltyard.redact import redact, secret_values
from tiltyard.verbs.isolated import IsolatedDataset
from tiltyard.verbs.place import Place

if TYPE_CHECKING:
    import lance

_SOURCE_LOCATION: Final = re.compile(r",?\s*(location: )?\S*/rustc?/\S+\.rs:\d+:\d+.*", re.DOTALL)
_PATH: Final = re.compile(r"\S*/\S*")
_USERS_FAULT: Final = re.compile(
    r"invalid user input|\bschema\b|invalid argument|parser error|no field named|not supported|type mismatch|applying filter",
    re.IGNORECASE,
)
_DAMAGE: Final = re.compile(
    r"not appear to be a lance file|unknown lance storage version|invalid range|encountered corrupt file|\bnot found: "
    r"|unexpected end|end of file|invalid utf8 sequence",
    re.IGNORECASE,
)
"""How pylance speaks of a file that is cut off, missing or something else, mostly as if the caller had asked for the wrong thing."""
_STORE: Final = re.compile(r"LanceError\(IO\)|generic \S+ error", re.IGNORECASE)
_DATA_FILE: Final = re.compile(r"data/\S+\.(?:lance|blob)")


def open_dataset(place: Place, version: int, *, writing: bool = False) -> lance.LanceDataset:
    """pylance's own handle on this version; one whose reads are done in a child process, where the place asks for that.

    Args:
        place: the table.
        version: the version.
        writing: whether files are written through it, which decodes none.
    """
    if place.limits is not None and not writing:
        return cast("lance.LanceDataset", IsolatedDataset(place, place.lance_version(version), place.limits))
    import lance  # takes a moment to load, and opening a table does not need it

    with lance_errors(place, f"open version {version}"):
        return lance.dataset(place.lance_uri, version=place.lance_version(version), storage_options=place.lance_options())


@contextmanager
def lance_errors(place: Place, doing: str) -> Iterator[None]:
    """Errors of pylance as errors of ours: what the caller can mend, what is not there, what the store did."""
    advice = "Nothing was committed." if doing.startswith("write") else None
    try:
        yield
    except (TiltyardError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise NotFound(_text(place, doing, error)) from error
    except (pa.ArrowException, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, OSError, RuntimeError) as error:
        raise _translated(place, doing, error, advice) from error
    except BaseException as error:
        # A panic in Rust arrives as a class that is no Exception and can be imported from nowhere.
        if type(error).__name__ != "PanicException":
            raise
        raise StorageError(_text(place, doing, error), advice=advice) from error


def _translated(place: Place, doing: str, error: Exception, advice: str | None) -> TiltyardError:
    """The error by what pylance says, since its classes do not tell: the same ones stand for a wrong filter and for a damaged file."""
    text, reason = _text(place, doing, error), _reason(error)
    said = _PATH.sub("", reason)  # the table's own path can hold any of the words below
    if doing.startswith("open") and "not found" in said:
        return NotFound(text)
    if not doing.startswith(("open", "write")) and _DAMAGE.search(said):
        named = _DATA_FILE.search(reason)
        shown = redact(reason.rstrip("."), secret_values(place.storage_options or {}))
        return CorruptTable(named[0] if named else f"a data file of {place.store.uri}", shown)
    if _USERS_FAULT.search(said):
        return InvalidInput(text, advice=advice)
    if isinstance(error, OSError | RuntimeError) or _STORE.search(said):
        return StorageError(text)
    return InvalidInput(text, advice=advice)


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


def _reason(error: BaseException) -> str:
    return " ".join(_SOURCE_LOCATION.sub("", str(error)).split())


def _text(place: Place, doing: str, error: BaseException) -> str:
    return redact(f"pylance could not {doing} of {place.store.uri}: {_reason(error)}", secret_values(place.storage_options or {}))

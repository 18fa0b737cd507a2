"""The one door to pylance: open a table at a pinned version, and turn its errors into ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from tiltyard.errors import TiltyardError
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.isolated import IsolatedDataset
from tiltyard.verbs.engine.pylance_errors import failure, is_interrupt, is_panic

if TYPE_CHECKING:
    import lance


def open_dataset(access: TableAccess, version: int, *, writing: bool = False) -> lance.LanceDataset:
    """pylance's own handle on this version; one whose reads are done in a child process, where the place asks for that.

    Args:
        access: the table.
        version: the version.
        writing: whether files are written through it, which decodes none.
    """
    if access.limits is not None and not writing:
        return cast("lance.LanceDataset", IsolatedDataset(access, access.lance_version(version), access.limits))
    import lance  # takes a moment to load, and opening a table does not need it

    with lance_errors(access, f"open version {version}", version):
        return lance.dataset(access.lance_uri, version=access.lance_version(version), storage_options=access.lance_options())


@contextmanager
def lance_errors(access: TableAccess, doing: str, version: int | None = None) -> Iterator[None]:
    """Errors of pylance as errors of ours: what the caller can mend, what is not there, what the store did.

    Args:
        access: the table.
        doing: what is asked of pylance, as in "could not ...".
        version: which version is read, so that after an error its files can be looked at.
    """
    try:
        yield
    except (TiltyardError, MemoryError):
        raise
    except (pa.ArrowException, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, OSError, RuntimeError) as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise failure(access, doing, error, version) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise failure(access, doing, error, version) from error


def translated(access: TableAccess, reader: pa.RecordBatchReader, version: int | None = None) -> pa.RecordBatchReader:
    """The same stream, whose errors are ours too."""

    def batches() -> Iterator[pa.RecordBatch]:
        while True:
            try:
                with lance_errors(access, "read rows", version):
                    batch = reader.read_next_batch()
            except StopIteration:
                return
            yield batch

    return pa.RecordBatchReader.from_batches(reader.schema, batches())

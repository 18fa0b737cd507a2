"""Data files, written once and before any commit loop: pylance encodes, we keep the names."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa

from tiltyard.errors import InvalidInput, OutcomeUnknown, StorageError, TiltyardError, UnsupportedFeature
from tiltyard.format.digests import DIGESTS
from tiltyard.format.fields import leaf_ids
from tiltyard.format.safe_text import check_encodes, check_text
from tiltyard.format.schema import BLOB_KEY
from tiltyard.format.statistics import FileStatistics
from tiltyard.format.values import DataFile, DataFragment, Field
from tiltyard.interfaces import Randomness, SendsAtOnce
from tiltyard.options import FileLimits
from tiltyard.transaction.group import GROUP
from tiltyard.transaction.transaction import MESSAGE_PROPERTY
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.blobs import blob_files, has_blobs
from tiltyard.verbs.engine.lent_streams import lent
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.row_input import Rows
from tiltyard.verbs.engine.write_bases import WriteBase
from tiltyard.verbs.statistics import gather_statistics
from tiltyard.verbs.statistics.gather_statistics import PassingStatistics, counted_columns
from tiltyard.verbs.statistics.statistics_records import write_record

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata


SMALL_BYTES: Final = 32 * 1024**2
"""Rows in memory up to this size become one file, written directly: half the cost of going through a dataset."""


def write_new(
    access: TableAccess, rows: Rows, data_version: str, limits: FileLimits, *, replacing: bool, target: WriteBase | None = None
) -> tuple[DataFragment, ...]:
    """Files for a table whose schema is that of the rows; ``replacing`` one that is there, or making the first."""
    mode = "overwrite" if replacing else "create"
    passing = _passing(rows, None, data_version, limits, target)
    written = _write(access, passing.noting(rows), access.lance_uri, limits, target, mode=mode, data_storage_version=data_version)
    keep_statistics(access, passing.of(written))
    return written


def write_into(
    access: TableAccess, rows: Rows, fields: Sequence[Field], data_version: str, dataset: Callable[[], LanceDataset], limits: FileLimits,
    target: WriteBase | None = None, *, later: bool = False,
) -> tuple[DataFragment, ...]:  # fmt: skip
    """Files for an existing table.

    Args:
        access: the table.
        rows: columns as ``fields``, in that order.
        fields: the table's fields that the rows cover.
        data_version: the table's file format.
        dataset: pylance's handle on the table, asked for only if the rows are not small and plain.
        limits: when to begin a new file.
        target: the base to write to; the table's own directory without one.
        later: whether a small file may still be on its way, since a commit of this store follows, which waits for it.
    """
    if isinstance(rows, pa.Table) and rows.nbytes <= SMALL_BYTES and rows.num_rows <= limits.rows and is_plain(fields, data_version):
        return write_small(access, rows, fields, data_version, target, later) if rows.num_rows else ()
    passing = _passing(rows, fields, data_version, limits, target)
    written = _write(access, passing.noting(rows), dataset(), limits, target, mode="append")
    keep_statistics(access, passing.of(written))
    return written


def _passing(
    rows: Rows, fields: Sequence[Field] | None, data_version: str, limits: FileLimits, target: WriteBase | None
) -> PassingStatistics:
    """What looks at rows on their way. Where a base gets them, and where there are too few, nothing does."""
    few = isinstance(rows, pa.Table) and rows.num_rows < gather_statistics.FROM_ROWS
    return PassingStatistics([] if few or target is not None else counted_columns(rows.schema, fields, data_version), limits.rows)


def keep_statistics(access: TableAccess, files: Mapping[str, FileStatistics]) -> None:
    """Keeps what is known of new files, beside them. The commit does not depend on it."""
    if files:
        write_record(access.store, access.runtime.random.uuid(), files)


def is_plain(fields: Sequence[Field], data_version: str) -> bool:
    """Whether a bare file writer stores these columns just as a dataset would: blobs, JSON and the like are converted on the way."""
    return data_version in ("2.1", "2.2") and not any(
        field.extension_name or field.logical_type in ("json", "blob") or BLOB_KEY.decode() in field.metadata for field in fields
    )


def write_small(
    access: TableAccess, rows: pa.Table, fields: Sequence[Field], data_version: str, target: WriteBase | None = None, later: bool = False
) -> tuple[DataFragment, ...]:
    """One file for rows that are small and plain; what the arguments are, ``write_into`` says."""
    from lance.file import LanceFileWriter

    major, minor = (int(part) for part in data_version.split("."))
    name = data_file_name(access.runtime.random)
    ids = leaf_ids(fields, (major, minor))

    def write(path: str, options: dict[str, str] | None) -> int:
        with lance_errors(access, "write rows"):
            writer = LanceFileWriter(path, rows.schema, version=data_version, storage_options=options)
            writer.write_batch(rows)
            writer.close()
        return writer.size_bytes or 0

    if target is None and access.remote:
        # Uploaded by us, in the one request it takes pylance: so its digest needs no other that reads it back.
        with tempfile.TemporaryDirectory(prefix="tiltyard-") as directory:
            staged = Path(directory) / name
            write(str(staged), None)
            data = staged.read_bytes()
        store = access.store
        (store.put_later if later and isinstance(store, SendsAtOnce) else store.put)(f"data/{name}", data)
        access.digests.note(f"data/{name}", data)
        size = len(data)
    else:
        uri = f"{access.lance_uri}/data/{name}" if target is None else target.uri_of(name)
        size = write(in_one_piece(uri), access.lance_options())
    file = DataFile(name, ids, tuple(range(len(ids))), major, minor, size)
    made = (DataFragment(id=0, files=(file,), physical_rows=rows.num_rows),)
    if target is not None:
        return target.placed(made)
    if rows.num_rows >= gather_statistics.FROM_ROWS:
        passing = PassingStatistics(counted_columns(rows.schema, fields, data_version), rows.num_rows)
        passing.noting(rows)
        keep_statistics(access, passing.of(made))
    return made


def in_one_piece(uri: str) -> str:
    """The same place as pylance writes to it with fewer hand-overs between threads: a small file costs half of what it does else."""
    return f"file-object-store://{quote(uri)}" if uri.startswith("/") else uri


def data_file_name(random: Randomness) -> str:
    """A name as pylance gives it: the bits of three random bytes, which spread well over a store's partitions, then thirteen in hex."""
    raw = bytes.fromhex(random.uuid().replace("-", ""))
    return f"{int.from_bytes(raw[:3], 'big'):024b}{raw[3:].hex()}.lance"


def _write(access: TableAccess, rows: Rows, to: Any, limits: FileLimits, target: WriteBase | None, **how: Any) -> tuple[DataFragment, ...]:
    from lance.fragment import write_fragments

    blobs = any(map(has_blobs, rows.schema))
    if target is not None and blobs:
        raise UnsupportedFeature("Blobs cannot be written to a base.", feature="blobs in a base", writing=True, advice="Leave base out.")
    stream = nullcontext(rows) if isinstance(rows, pa.Table) else lent(rows.schema, rows)
    with stream as source, lance_errors(access, "write rows"):
        written = write_fragments(
            source,
            to,
            max_rows_per_file=limits.rows,
            max_bytes_per_file=limits.bytes,
            storage_options=access.lance_options(),
            target_bases=None if target is None else [target.reference],
            **how,
        )
    fragments = tuple(fragment_from_lance(fragment) for fragment in written)
    if blobs:
        _sync_blobs(access, fragments)
    return fragments if target is None else target.placed(fragments)


def _sync_blobs(access: TableAccess, fragments: tuple[DataFragment, ...]) -> None:
    """A commit makes the files durable that its operation names; these are named by data files only."""
    try:
        access.store.sync(blob_files(access.store, fragments))
    except TiltyardError as error:
        discard(access, fragments, error)
        raise


def fragment_from_lance(written: FragmentMetadata) -> DataFragment:
    files = tuple(
        DataFile(
            path=file.path,
            fields=tuple(file.fields),
            column_indices=tuple(file.column_indices),
            major=file.file_major_version,
            minor=file.file_minor_version,
            size=file.file_size_bytes or 0,
            base_id=file.base_id,
        )
        for file in written.files
    )
    return DataFragment(id=0, files=files, physical_rows=written.physical_rows)


def discard(access: TableAccess, fragments: Sequence[DataFragment], failure: BaseException, target: WriteBase | None = None) -> None:
    """Removes files no version will ever name, after a failure that leaves no doubt. What cannot be removed is cleanup's."""
    if isinstance(failure, OutcomeUnknown) or not isinstance(failure, TiltyardError):
        return
    if target is not None:
        target.remove(fragments)
    for fragment in fragments:
        with suppress(StorageError):
            for path in blob_files(access.store, [fragment]):
                access.store.delete(path)
        for file in fragment.files:
            if file.base_id is None:
                with suppress(StorageError):
                    access.store.delete(f"data/{file.path}")


def properties_with_message(properties: Mapping[str, str] | None, message: str | None) -> dict[str, str]:
    if message is not None and not isinstance(message, str):
        raise InvalidInput(f"A message is text, not {type(message).__name__}.", argument="message")
    if properties is not None and not isinstance(properties, Mapping):
        raise InvalidInput(f"Properties are a mapping, not {type(properties).__name__}.", argument="properties")
    found = {str(key): str(value) for key, value in (properties or {}).items()}
    for own in {DIGESTS, GROUP} & found.keys():
        raise InvalidInput(f"The property {own} is reserved for Tiltyard.", argument="properties", advice="Choose another name.")
    for key, value in found.items():
        check_encodes(check_text(key, "The name of a property", "properties") + value, "A property", "properties")
    if message is not None:
        found[MESSAGE_PROPERTY] = check_encodes(message, "The message", "message")
    return found

"""One version of a table, to be read by other processes: what they need to know of it can be pickled, and is small."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from tiltyard.format.manifest import Manifest
from tiltyard.options import Storage
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.verbs.columns.column_files import quoted
from tiltyard.verbs.engine.access import TableAccess, open_access
from tiltyard.verbs.engine.isolated import IsolatedDataset, ReadLimits
from tiltyard.verbs.engine.pylance import lance_errors, translated
from tiltyard.verbs.engine.row_deletion import ADDRESS, ROW_ID, check_deletions
from tiltyard.verbs.engine.sql_expressions import expressions

if TYPE_CHECKING:
    from lance import LanceDataset

_DATASETS: Final = 8
"""Versions that one process keeps open."""
_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Reads rows of one version, in any process. Made by ``Pinned.scan_task`` or ``Table.scan_task``.

    Attributes:
        uri: where the table is.
        number: what pylance calls the version; inside a lake's transaction that is not a version number of the table.
        identity: identifies this version, also if the table is dropped and a new one has the same number.
        fragments: ids and live rows of all fragments.
        stable: whether rows keep their ids when they move.
        storage_options: as for pylance.
        limits: bounds of the child process that rows are read in, if they are.
    """

    uri: str
    number: int
    identity: str
    fragments: tuple[tuple[int, int], ...]
    stable: bool
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    limits: ReadLimits | None = None

    @property
    def rows(self) -> int:
        """How many rows it covers, deleted ones not counted."""
        return sum(rows for _, rows in self.fragments)

    def groups(self, most: int) -> list[tuple[int, ...]]:
        """The ids of all fragments in at most so many groups of about as many rows; the larger ones first."""
        count = max(1, min(most, len(self.fragments)))
        groups: list[tuple[int, list[int]]] = [(0, []) for _ in range(count)]
        for number, rows in sorted(self.fragments, key=lambda fragment: (-fragment[1], fragment[0])):
            access = min(range(count), key=lambda index: groups[index][0])
            groups[access] = (groups[access][0] + max(rows, 1), [*groups[access][1], number])
        return [tuple(sorted(ids)) for _, ids in groups if ids]

    def dataset(self) -> LanceDataset:
        """pylance's handle, kept open in this process."""
        if self.limits is not None:
            return cast("LanceDataset", IsolatedDataset(self._access(), self.number, self.limits))
        options = tuple(sorted(self.storage_options.items())) if self.storage_options else None
        return _opened(self.uri, self.number, self.identity, options)

    def scan(
        self,
        columns: Sequence[str] | Mapping[str, str],
        fragments: Iterable[int] | None = None,
        *,
        row_address: bool = False,
        row_id: bool = False,
        batch_size: int | None = None,
    ) -> pa.RecordBatchReader:
        """Live rows of some fragments, or of all, in order.

        Args:
            columns: names of top-level columns, or SQL by name.
            fragments: ids.
            row_address: add ``_rowaddr``: where each row is.
            row_id: add ``_rowid``.
            batch_size: rows at a time.
        """
        with lance_errors(self._access(), "read rows", self.number):
            dataset = self.dataset()
            chosen: Any = expressions(columns, dataset.schema) if isinstance(columns, Mapping) else {name: quoted(name) for name in columns}
            some: Any = None if fragments is None else [dataset.get_fragment(number) for number in fragments]
            bare = not chosen and not row_address and not row_id
            scanner = dataset.scanner(
                columns=chosen or [], fragments=some, with_row_address=row_address or bare, with_row_id=row_id, batch_size=batch_size
            )
            reader = scanner.to_reader()
        names = [*chosen, *([ADDRESS] if row_address else []), *([ROW_ID] if row_id else [])]
        schema = pa.schema([reader.schema.field(name) for name in names])
        found = translated(self._access(), reader, self.number)
        return pa.RecordBatchReader.from_batches(schema, (batch.select(names) for batch in found))

    def take(self, rows: pa.Array, columns: Sequence[str]) -> pa.Table:
        """Columns of rows, in the order asked for: by address, or by row id where rows keep theirs."""
        with lance_errors(self._access(), "read rows by their places", self.number):
            parts = [
                self.dataset()._take_rows(rows.slice(begin, _AT_ONCE), columns={name: quoted(name) for name in columns})
                for begin in range(0, len(rows), _AT_ONCE)
            ]
            return pa.concat_tables(parts) if parts else self.dataset().schema.empty_table().select(list(columns))

    def _access(self) -> TableAccess:
        """For messages, which must not show credentials."""
        return _named(self.uri, tuple(sorted(self.storage_options.items())) if self.storage_options else None)


@lru_cache(maxsize=_DATASETS)
def _opened(uri: str, number: int, identity: str, options: tuple[tuple[str, str], ...] | None) -> LanceDataset:
    import lance  # in the process that reads: it must not be there before a fork

    with lance_errors(_named(uri, options), "open a version", number):
        return lance.dataset(uri, version=number, storage_options=dict(options) if options else None)


@lru_cache(maxsize=_DATASETS)
def _named(uri: str, options: tuple[tuple[str, str], ...] | None) -> TableAccess:
    return open_access(uri, Storage(dict(options) if options else None))


@contextmanager
def reading_errors(uri: str, version: int, storage_options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Errors of pylance while a version is read, as errors of Tiltyard and without credentials.

    Args:
        uri: where the table is.
        version: what pylance calls the version.
        storage_options: as for pylance.
    """
    options = tuple(sorted(storage_options.items())) if storage_options else None
    with lance_errors(_named(uri, options), "read rows", version):
        yield


def scan_task(access: TableAccess, manifest: Manifest) -> ScanTask:
    """For a version whose deletion files are looked at first, here: others trust what they are given."""
    check_deletions(access, manifest)
    return ScanTask(
        access.lance_uri,
        access.lance_version(manifest.version),
        f"{manifest.timestamp_ns} {manifest.transaction_file}",
        tuple((fragment.id, fragment.live_rows) for fragment in manifest.fragments),
        has_stable_row_ids(manifest),
        access.lance_options(),
        access.limits,
    )

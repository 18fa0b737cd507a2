"""Reading a table at the handle's version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.format.manifest import has_sure_counts
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.handles.base import Handle
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.arguments import chosen_columns, scan_options, sql_condition
from tiltyard.verbs.engine.pylance import lance_errors, open_dataset, translated
from tiltyard.verbs.engine.row_deletion import check_deletions, fragments_for

if TYPE_CHECKING:
    from lance import LanceDataset


_ROW: Final = "_row"
"""How the columns begin that say where a row lies."""

_PLAIN: Final = frozenset({"batch_size", "batch_readahead", "fragment_readahead", "io_buffer_size", "order_by"})
"""Options of a scan that give the same rows however they lie and whatever indices there are."""

_BOUNDED: Final = frozenset({*_PLAIN, "limit", "offset", "with_row_id", "with_row_address"})
"""Options of a scan that reads the rows which pass, and no others: what holds for none of them need not be read."""

_NO_OPTIONS: Final[Mapping[str, Any]] = {}


class Reading(Handle):
    """What a handle reads."""

    @property
    def lance(self) -> LanceDataset:
        """pylance's own dataset at this version: vector search, SQL, everything that reads."""
        return self._dataset(self._access, self._file)

    def _dataset(self, access: TableAccess, file: ManifestFile) -> LanceDataset:
        opened = self._lance
        if opened is None or opened[0] is not file:
            check_deletions(access, file.manifest)
            opened = self._lance = (file, open_dataset(access, file.manifest.version))
        return opened[1]

    def _for_scan(
        self, filter: str | None, columns: Sequence[str] | Mapping[str, str] | None = None, options: Mapping[str, Any] = _NO_OPTIONS
    ) -> tuple[TableAccess, LanceDataset, dict[str, Any]]:
        """The dataset for a scan, and what its scanner is told.

        A scan that may tell of anything but rows, such as where they lie, is a look at the whole table.
        """
        chosen, condition = chosen_columns(columns, self.schema), sql_condition(filter, self.schema)
        plain = options.keys() <= _PLAIN and _ROW not in f"{chosen} {condition}"
        access, file = self._data() if plain else (self._access, self._file)
        dataset, told = self._dataset(access, file), {"columns": chosen, "filter": condition, **options}
        if condition is not None and (plain or options.keys() <= _BOUNDED):
            some = fragments_for(access, file.manifest, dataset, condition)
            told |= {} if some is None else {"fragments": some}
        return access, dataset, told

    def count_rows(self, filter: str | None = None) -> int:
        """How many rows there are; without a filter this reads no data."""
        manifest = self._data()[1].manifest
        if filter is None and has_sure_counts(manifest):
            return manifest.fragments.live_rows()
        access, dataset, told = self._for_scan(filter)
        with lance_errors(access, "count rows", manifest.version):
            if "fragments" in told and access.limits is None:
                return int(dataset.scanner(columns=[], filter=told["filter"], fragments=told["fragments"], with_row_id=True).count_rows())
            return int(dataset.count_rows(told["filter"]))

    def to_arrow(
        self,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        filter: str | None = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """The rows as an Arrow table.

        Args:
            columns: names (or one name), or name to SQL expression.
            filter: a SQL condition.
            limit: how many rows at most.
            offset: how many rows to leave out first.
            options: anything else pylance's scanner takes, such as ``nearest``, ``full_text_query`` or ``with_row_id``.
        """
        return self._rows(columns, filter, scan_options(options, limit, offset))

    def _rows(self, columns: Sequence[str] | Mapping[str, str] | None, filter: str | None, options: Mapping[str, Any]) -> pa.Table:
        access, dataset, told = self._for_scan(filter, columns, options)
        with lance_errors(access, "read rows", self._data()[1].manifest.version):
            return dataset.scanner(**told).to_table()

    def scan(
        self,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        filter: str | None = None,
        *,
        limit: int | None = None,
        offset: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> pa.RecordBatchReader:
        """The rows as a stream of batches; arguments are those of ``to_arrow``."""
        return self._batches(columns, filter, scan_options(options, limit, offset))

    def _batches(
        self, columns: Sequence[str] | Mapping[str, str] | None, filter: str | None, options: Mapping[str, Any]
    ) -> pa.RecordBatchReader:
        access, dataset, told = self._for_scan(filter, columns, options)
        version = self._data()[1].manifest.version
        with lance_errors(access, "read rows", version):
            reader = dataset.scanner(**told).to_reader()
        return translated(access, reader, version)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows for whatever reads Arrow streams: polars, DuckDB, pandas, DataFusion, ``pyarrow.table(table)``."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """The schema of these rows."""
        return self.schema.__arrow_c_schema__()

"""Reading a table at the handle's version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.format.legacy import has_sure_counts
from tiltyard.handles.base import Handle
from tiltyard.verbs.arguments import chosen_columns, sql_condition
from tiltyard.verbs.deletions import check_deletions
from tiltyard.verbs.lance import lance_errors, open_dataset, translated

if TYPE_CHECKING:
    from lance import LanceDataset


class Reading(Handle):
    """What a handle reads."""

    @property
    def lance(self) -> LanceDataset:
        """pylance's own dataset at this version: vector search, SQL, everything that reads."""
        file, opened = self._file, self._lance
        if opened is None or opened[0] is not file:
            check_deletions(self._place, file.manifest)
            opened = self._lance = (file, open_dataset(self._place, file.manifest.version))
        return opened[1]

    def count_rows(self, filter: str | None = None) -> int:
        """How many rows there are; without a filter this reads no data."""
        if filter is None and has_sure_counts(self._file.manifest):
            return self._file.manifest.fragments.live_rows()
        condition = sql_condition(filter)
        with lance_errors(self._place, "count rows"):
            return int(self.lance.count_rows(condition))

    def to_arrow(self, columns: Sequence[str] | Mapping[str, str] | None = None, filter: str | None = None, **scan: Any) -> pa.Table:
        """The rows as an Arrow table.

        Args:
            columns: names (or one name), or name to SQL expression.
            filter: a SQL condition.
            scan: anything else pylance's scanner takes, such as ``limit`` or ``with_row_id``.
        """
        chosen, condition = chosen_columns(columns), sql_condition(filter)
        with lance_errors(self._place, "read rows"):
            return self.lance.to_table(columns=chosen, filter=condition, **scan)

    def scan(
        self, columns: Sequence[str] | Mapping[str, str] | None = None, filter: str | None = None, **scan: Any
    ) -> pa.RecordBatchReader:
        """The rows as a stream of batches."""
        chosen, condition = chosen_columns(columns), sql_condition(filter)
        with lance_errors(self._place, "read rows"):
            reader = self.lance.scanner(columns=chosen, filter=condition, **scan).to_reader()
        return translated(self._place, reader)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows for whatever reads Arrow streams: polars, DuckDB, pandas, DataFusion, ``pyarrow.table(table)``."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """The schema of these rows."""
        return self.schema.__arrow_c_schema__()

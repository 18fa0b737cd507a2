"""Reading a table at the handle's version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltyard.handles.base import Handle
from tiltyard.verbs.arguments import chosen_columns, scan_options, sql_condition
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
        if filter is None:
            return self._file.manifest.fragments.live_rows()
        condition = sql_condition(filter, self.schema)
        with lance_errors(self._place, "count rows", self.version):
            return int(self.lance.count_rows(condition))

    def to_arrow(self, columns: Sequence[str] | Mapping[str, str] | None = None, filter: str | None = None, **scan: Any) -> pa.Table:
        """The rows as an Arrow table.

        Args:
            columns: names (or one name), or name to SQL expression.
            filter: a SQL condition.
            scan: anything else pylance's scanner takes, such as ``limit`` or ``with_row_id``.
        """
        scan_options(scan)
        chosen, condition = chosen_columns(columns, self.schema), sql_condition(filter, self.schema)
        with lance_errors(self._place, "read rows", self.version):
            return self.lance.to_table(columns=chosen, filter=condition, **scan)

    def scan(
        self, columns: Sequence[str] | Mapping[str, str] | None = None, filter: str | None = None, **scan: Any
    ) -> pa.RecordBatchReader:
        """The rows as a stream of batches."""
        scan_options(scan)
        chosen, condition = chosen_columns(columns, self.schema), sql_condition(filter, self.schema)
        with lance_errors(self._place, "read rows", self.version):
            reader = self.lance.scanner(columns=chosen, filter=condition, **scan).to_reader()
        return translated(self._place, reader, self.version)

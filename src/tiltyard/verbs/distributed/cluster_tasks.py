"""Rows brought into another order by other processes: the driver decides the order, each part is written by whoever takes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tiltyard.verbs.distributed.scan_tasks import ScanTask
from tiltyard.verbs.distributed.write_tasks import Piece, WriteTask
from tiltyard.verbs.engine.row_input import cast

_AT_ONCE: Final = 1 << 14
"""Rows that are in memory at a time."""

Places = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """Some rows that are to be written one after the other. It can be pickled.

    Attributes:
        scan: the version that they are in.
        write: writes them.
        places: their addresses, or their row ids where rows keep these; in the new order.
        part: which of the tasks this is; its piece says so.
    """

    scan: ScanTask
    write: WriteTask
    places: Places = field(repr=False, compare=False)
    part: str

    @property
    def rows(self) -> int:
        """How many rows there are to write."""
        return len(self.places)

    def run(self) -> Piece:
        """Writes the new files; gives the piece, which goes back to the driver."""
        return self.write.write(self._batches(), part=self.part)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema = self.write.schema
        for begin in range(0, len(self.places), _AT_ONCE):
            rows = self.scan.take(pa.array(self.places[begin : begin + _AT_ONCE]), schema.names)
            columns = [cast(rows.column(column.name).combine_chunks(), column.type) for column in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

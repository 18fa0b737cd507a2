"""New rows that no file has yet: who waits in the queue of a machine offers them, and whoever commits them writes one file for all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiltyard.format.values import DataFile, DataFragment, Field
from tiltyard.interfaces import ObjectStore
from tiltyard_proofs.simulator.model import Value
from tiltyard_proofs.simulator.world import World

NOT_WRITTEN: Final = "not-written.lance"
"""What an append names until its rows are in a file. A version that names it names a file that nobody ever wrote."""

NewRows = Sequence[tuple[str, Mapping[str, Value]]]
"""Rows by identity."""


@dataclass(frozen=True, slots=True)
class OfferedRows:
    """The rows of one append, for the commit loop to have written. To write their file is a step like any other, and may go wrong."""

    world: World
    store: ObjectStore
    actor: str
    fields: tuple[Field, ...]
    rows: NewRows

    @property
    def planned(self) -> DataFragment:
        """What would be written for these rows alone."""
        ids = self._field_ids()
        return DataFragment(0, (DataFile(NOT_WRITTEN, tuple(ids), tuple(range(len(ids)))),), len(self.rows))

    def offered(self) -> bytes:
        return json.dumps([self._field_ids(), self.rows]).encode()

    def read(self, offered: bytes) -> NewRows | None:
        """Rows that another actor offers; None where he has other columns."""
        ids, rows = json.loads(offered)
        return [(str(rid), row) for rid, row in rows] if ids == self._field_ids() else None

    def write(self, others: Sequence[NewRows]) -> tuple[DataFragment, ...]:
        rows = [*self.rows, *(row for several in others for row in several)]
        columns = {field.id: [row.get(field.name) for _, row in rows] for field in self.fields}
        file = self.world.planned_file(self.actor, [rid for rid, _ in rows], columns)
        self.store.put(f"data/{file.path}", file.path.encode())
        return (DataFragment(0, (file,), len(rows)),)

    def _field_ids(self) -> list[int]:
        return sorted(field.id for field in self.fields)

"""New tables of a lake whose rows other processes write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.staging import write_owner
from tiltyard.errors import AlreadyExists, InvalidInput
from tiltyard.lakes.table_names import directory_of, full_name, shown
from tiltyard.verbs.distributed.write_tasks import Piece, WriteTask, create_task
from tiltyard.verbs.engine.data_files import FileLimits
from tiltyard.verbs.write import NewTable, OnDuplicate, Writing

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.lake_tables import LakeTable


class LakePieces:
    """A lake, as far as others write for it. For tables that are there see ``Table.write_task``."""

    def new_table_task(
        self,
        name: str,
        schema: pa.Schema,
        *,
        primary_key: Sequence[str] | None = None,
        stable_row_ids: bool = False,
        data_format: str = "2.2",
        config: Mapping[str, str] | None = None,
        on_duplicate: OnDuplicate = "error",
        max_rows_per_file: int = 1024 * 1024,
        max_bytes_per_file: int = 90 * 1024**3,
    ) -> WriteTask:
        """A task for a table that is not there yet; ``create_table_from_pieces`` makes it, under that name.

        Raises:
            AlreadyExists: the name is taken.
        """
        lake = cast("Lake", self)
        full = full_name(name)
        cut = lake.catalog.cut(lake.branch)
        if full in cut.tables:
            raise AlreadyExists(f"There is a table {shown(full)!r} in the lake already.", name=shown(full))
        identity = lake.catalog.runtime.random.uuid()
        head = TableHead(identity, full, directory_of(full, identity), 0, 0)
        place = lake.plain_place_of(head)
        new = NewTable(primary_key, stable_row_ids, data_format=data_format, config=dict(config or {}))
        how = Writing(FileLimits(max_rows_per_file, max_bytes_per_file), on_duplicate)
        task = create_task(place, schema, new, how.limits, with_keys=on_duplicate == "error")
        write_owner(place, lake.marks_of(head, lake.branch, cut.snapshot), cut.line)
        return replace(task, table_id=identity)

    def create_table_from_pieces(self, name: str, task: WriteTask, pieces: Iterable[Piece | None], **options: Any) -> LakeTable:
        """Makes a table of pieces that other processes wrote; ``options`` are those of ``LakeTransaction.create_table_from_pieces``.

        Raises:
            AlreadyExists: the name is taken.
        """
        lake = cast("Lake", self)
        if not isinstance(task, WriteTask):
            raise InvalidInput(f"A {type(task).__name__} is no task.", argument="task", advice="Use lake.new_table_task().")
        with lake.transaction() as tx:
            tx.create_table_from_pieces(name, task, pieces, **options)
        return lake.table(name)

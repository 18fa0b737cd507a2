"""New tables of a lake whose rows other processes write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.marks import write_owner
from tiltyard.errors import AlreadyExists, InvalidInput
from tiltyard.lakes.table_names import directory_of, refuse_reserved, shown
from tiltyard.options import CommitOptions, OnDuplicate, TableOptions
from tiltyard.verbs.distributed.write_tasks import Piece, WriteTask, new_task

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.lake_tables import LakeTable


class LakePieces:
    """A lake, as far as others write for it. For tables that are there see ``t.distributed.write_task``."""

    def new_table_task(
        self,
        name: str,
        schema: pa.Schema,
        *,
        primary_key: Sequence[str] | None = None,
        stable_row_ids: bool = False,
        options: TableOptions | None = None,
    ) -> WriteTask:
        """A task for a table that is not there yet; ``create_table_from_pieces`` makes it, under that name.

        Raises:
            AlreadyExists: the name is taken.
        """
        lake = cast("Lake", self)
        full = refuse_reserved(name)
        cut = lake.catalog.cut(lake.branch)
        if full in cut.tables:
            raise AlreadyExists(f"There is a table {shown(full)!r} in the lake already.", name=shown(full))
        identity = lake.catalog.runtime.random.uuid()
        head = TableHead(identity, full, directory_of(full, identity), 0, 0)
        access = lake.plain_access_of(head)
        task = new_task(access, schema, primary_key, stable_row_ids, options)
        write_owner(access, lake.marks_of(head, lake.branch, cut.snapshot), cut.line)
        return replace(task, table_id=identity)

    def create_table_from_pieces(
        self,
        name: str,
        task: WriteTask,
        pieces: Iterable[Piece | None],
        *,
        on_duplicate: OnDuplicate = "error",
        leftovers: bool = False,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> LakeTable:
        """Creates a table from files that other processes wrote, in a transaction of its own.

        Arguments are those of ``LakeTransaction.create_table_from_pieces``.

        Raises:
            AlreadyExists: the name is taken.
        """
        lake = cast("Lake", self)
        if not isinstance(task, WriteTask):
            raise InvalidInput(f"A {type(task).__name__} is no task.", argument="task", advice="Use lake.new_table_task().")
        with lake.transaction() as tx:
            tx.create_table_from_pieces(name, task, pieces, on_duplicate=on_duplicate, leftovers=leftovers, message=message, commit=commit)
        return lake.table(name)

"""New tables of a lake: from rows, or from files that other processes wrote."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import pyarrow as pa

from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.marks import write_owner
from tiltyard.errors import AlreadyExists, ExpectedVersionMismatch, InvalidInput
from tiltyard.format.names import Scheme
from tiltyard.lakes.sharded.shard_definitions import create_sharded
from tiltyard.lakes.table_names import directory_of, refuse_reserved, shown
from tiltyard.options import CommitOptions, TableOptions
from tiltyard.verbs.distributed.commit_files import create_from_pieces
from tiltyard.verbs.distributed.write_tasks import Piece, WriteTask, new_task
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.engine.reexecution import Committed, commit_terms
from tiltyard.verbs.engine.staged_access import StagedAccess
from tiltyard.verbs.write import NewTable, Writing, create_table

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.lake_tables import LakeTable, TransactionTable
    from tiltyard.lakes.lake_transaction import LakeTransaction


Made_co = TypeVar("Made_co", covariant=True)


class NewTables(ABC, Generic[Made_co]):
    """Makes tables: in a transaction, when it is committed; as a verb of the lake, at once."""

    @abstractmethod
    def _within(self, name: str, work: Callable[[LakeTransaction], TransactionTable]) -> Made_co:
        """Does the work in a transaction: this one, or one of its own."""

    def create_table(
        self,
        name: str,
        data_or_schema: Any,
        *,
        primary_key: Sequence[str] | None = None,
        stable_row_ids: bool = False,
        options: TableOptions | None = None,
        shard_by: str | Sequence[str] | None = None,
        shards: int | None = None,
    ) -> Made_co:
        """Makes a table. In a transaction it appears with the commit.

        Args:
            name: what it is called, with dots between namespaces.
            data_or_schema: rows, or a ``pyarrow.Schema`` for an empty table.
            primary_key: columns that identify a row, in this order; they are stored as not null.
            stable_row_ids: rows keep their id when they are moved.
            options: what else is decided now: config, file format, the message of the first version.
            shard_by: columns of the primary key by whose hash rows are spread over several tables, for many writers.
            shards: over how many.

        Raises:
            AlreadyExists: the name is taken.
            InvalidInput: the options ask for V1 names of manifests, which a lake does not have, or ``shard_by`` is not part of the
                primary key.
        """
        given, full = options or TableOptions(), refuse_reserved(name)
        if shard_by is None and shards is None:
            make = first_version(data_or_schema, primary_key, stable_row_ids, given)
            return self._within(name, lambda tx: tx._make_table(full, "", make))
        if shard_by is None or shards is None:
            raise InvalidInput("A sharded table needs shard_by and shards.", argument="shards" if shards is None else "shard_by")
        columns, count = shard_by, shards
        return self._within(
            name,
            lambda tx: create_sharded(tx, name, data_or_schema, columns, count, primary_key, stable_row_ids=stable_row_ids, options=given),
        )

    def create_table_from_pieces(
        self,
        name: str,
        task: WriteTask,
        pieces: Iterable[Piece | None],
        *,
        leftovers: bool = False,
        message: str | None = None,
        commit: CommitOptions | None = None,
    ) -> Made_co:
        """Makes a table from files that other processes wrote. In a transaction it appears with the commit.

        Args:
            name: what it is called.
            task: made by ``Lake.new_table_task``, which says where, and what the table is like.
            pieces: what ``task.write`` returned.
            leftovers: as for ``t.distributed.append``.
            message: a sentence for the history.
            commit: properties for it; nothing else of it applies.

        Raises:
            AlreadyExists: the name is taken.
            KeyConflict: a duplicate key, unless the task's options allow them; nothing was made.
        """
        if not isinstance(task, WriteTask) or not task.table_id:
            raise InvalidInput("The task was not made for a new table of a lake.", argument="task", advice="Use lake.new_table_task().")
        described, _ = commit_terms(commit, message)
        make = partial(create_from_pieces, task=task, pieces=pieces, properties=described, leftovers=leftovers)
        full, identity = refuse_reserved(name), task.table_id
        return self._within(name, lambda tx: tx._make_table(full, identity, make))


def first_version(
    data_or_schema: Any, primary_key: Sequence[str] | None, stable_row_ids: bool, options: TableOptions
) -> Callable[[StagedAccess], Committed]:
    """What makes the first version of a table out of rows, or of a schema.

    Raises:
        InvalidInput: the options ask for V1 names of manifests.
    """
    new = NewTable.of(primary_key, stable_row_ids, options)
    if new.scheme is not Scheme.V2:
        raise InvalidInput("Tables of a lake need manifest_naming='v2'.", argument="manifest_naming")
    described = properties_with_message(options.properties, options.message)
    how = Writing(options.files, options.on_duplicate)
    return lambda access: create_table(access, data_or_schema, new, described, how)


class LakePieces(NewTables["LakeTable"]):
    """A lake, as far as tables are made in it. For tables that are there see ``t.distributed.write_task``."""

    def _within(self, name: str, work: Callable[[LakeTransaction], TransactionTable]) -> LakeTable:
        lake = cast("Lake", self)
        try:
            with lake.transaction() as tx:
                tx._blind = True
                work(tx)
        except ExpectedVersionMismatch as error:
            if error.cause != "incompatible":
                raise
            # Another writer took the name between our look and our commit.
            raise AlreadyExists(f"There is a table {name!r} in the lake already.", name=name) from error
        return lake.table(name)

    def new_table_task(
        self,
        name: str,
        schema: pa.Schema,
        *,
        primary_key: Sequence[str] | None = None,
        stable_row_ids: bool = False,
        options: TableOptions | None = None,
    ) -> WriteTask:
        """A task for a new table; ``create_table_from_pieces`` creates it, under that name.

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

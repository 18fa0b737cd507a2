"""One transaction over several tables: a base that is read once, writes that only it sees, and one step that publishes all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tiltyard.catalog.lake_values import Cut, Publication, TableHead
from tiltyard.catalog.line_identity import own_head
from tiltyard.catalog.marks import remove_owner, write_owner
from tiltyard.catalog.publishing import Published
from tiltyard.catalog.read_set import TableScope
from tiltyard.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
)
from tiltyard.format.names import Scheme
from tiltyard.lakes.branches.table_branches import forked
from tiltyard.lakes.commit_transaction import StagedTransaction
from tiltyard.lakes.finishing import load_head
from tiltyard.lakes.lake_tables import StagedTable, TransactionTable
from tiltyard.lakes.new_tables import NewTables, first_version
from tiltyard.lakes.sharded.sharded_tables import ShardedTransactionTable
from tiltyard.lakes.sharded.sharding import DEFINITION, Sharding
from tiltyard.lakes.spark_door import TransactionDoor
from tiltyard.lakes.table_names import (
    SHARD_PREFIX,
    directory_of,
    full_name,
    refuse_reserved,
    refuse_shard,
    shard_name,
    shard_names,
    shown,
    without_shards,
)
from tiltyard.options import TableOptions
from tiltyard.verbs.engine.reexecution import Committed
from tiltyard.verbs.engine.staged_access import StagedAccess, staged_access

if TYPE_CHECKING:
    from tiltyard.lakes.namespaces.collecting_namespace import CollectingNamespace


class LakeTransaction(StagedTransaction, TransactionDoor, NewTables[TransactionTable]):
    """A transaction over any number of tables. ``Lake.transaction`` begins it.

    Attributes:
        id: for ``Lake.outcome``.
        base: the snapshot it sees.
        result: the result, once it is committed.
        keeps_refusal: whether a refusal leaves a record for the console; set it to False where the caller retries by itself.
        batch: whether it may be committed together with others that wait for the same table, as one snapshot; set it before the commit.
    """

    _collecting: CollectingNamespace | None = None

    def __repr__(self) -> str:
        return f"LakeTransaction({self.id}, {self._scope.state}, base={self.base})"

    # ---- tables ----------------------------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """Names of all tables as this transaction sees them."""
        self._scope.check_open()
        with self._lock:
            there = self._names.list(self._by_name)
            return sorted(map(shown, without_shards(there, [*there])))

    def table(self, name: str) -> TransactionTable:
        """A table as this transaction sees it; the same handle however often it is asked for.

        A sharded one is a ``ShardedTransactionTable``.

        Raises:
            NotFound: there is none of that name.
        """
        full = full_name(name)
        opened = self._physical(refuse_shard(name, self._is_there) if SHARD_PREFIX in full else full)
        if DEFINITION not in (manifest := opened._known[1].manifest).config:
            return opened
        sharding = Sharding.of(manifest, name)
        assert sharding is not None
        return self._sharded.setdefault(opened._scope.table, ShardedTransactionTable(self, opened, sharding))

    def _physical(self, full: str) -> TransactionTable:
        """A table by its full name in the catalog, be it a shard or the anchor of some."""
        touched = self._touch(full)
        with touched.lock:
            self._scope.check_open()
            if touched.handle is None:
                self._open(touched)
            assert touched.handle is not None
            return touched.handle

    def _is_there(self, full: str) -> bool:
        with self._lock:
            return self._names.find(full, self._by_name) is not None

    def _has(self, full: str) -> bool:
        """Whether there is a shard of that name: nothing that its table's name does not say, so it is no read of its own."""
        with self._lock:
            return self._names.has(full, self._by_name)

    def _name_of(self, table_id: str, probably: str) -> str | None:
        """What a table is called here, by its id; None where it is not there. The name it had last spares a look at all tables."""
        with self._lock:
            touched = next((table for table in self._by_name.values() if table.id == table_id), None)
            if touched is not None:
                return None if touched.dropped else shown(touched.name)
            head = self._view.find(full_name(probably))
            if head is None or head.id != table_id:
                head = self._view.cut().by_id(table_id)
        return None if head is None else shown(head.name)

    def _wrote(self, full: str) -> bool:
        """Whether it has written to a table."""
        with self._lock:
            return full in self._by_name and self._by_name[full].wrote

    def _new_id(self) -> str:
        """An id for something that the transaction makes."""
        return self._catalog.runtime.random.uuid()

    def _touch(self, full: str) -> StagedTable:
        with self._lock:
            self._scope.check_open()
            found = self._names.find(full, self._by_name)
            if found is None:
                raise NotFound(f"There is no table {shown(full)!r} in the lake.", name=shown(full), advice="See lake.tables().")
            if isinstance(found, StagedTable):
                return found
            fresh = StagedTable(found.id, full, head=found, base=found.version, ground=found, location=found.location)
            return self._by_name.setdefault(full, fresh)

    def _open(self, touched: StagedTable) -> None:
        assert touched.head is not None
        origin = touched.head
        line = self._view.line
        head = touched.head = own_head(origin, self._branch, line) or forked(self._lake, origin, self._branch, line)
        access = self._lake.access_of(head, self._branch, touched.ground, self._view.snapshot, self.id, self._says)
        scheme = Scheme(head.naming)
        staged = staged_access(access, self.id, head.version, scheme)
        opened = touched.opened = self._lake.opened(head)
        if head.branch == origin.branch:
            # Finishing it may have given the number to a foreign writer's version: what was read is what counts.
            branch, kept = opened.latest or (None, None)
            touched.file, maker = load_head(staged, head, kept if branch == head.branch else None)
            touched.ground = replace(touched.ground or origin, transaction=maker)
        else:
            touched.file = staged.load(head.version, scheme, lazily=True)
        touched.access = staged
        touched.scope = TableScope(self._scope, touched.id, shown(touched.name))
        touched.handle = TransactionTable(touched.scope, staged, touched.file, scheme, opened.appends)

    def _within(self, name: str, work: Callable[[LakeTransaction], TransactionTable]) -> TransactionTable:
        return work(self)

    def _create_physical(
        self, full: str, data_or_schema: Any, *, primary_key: Sequence[str] | None, stable_row_ids: bool, options: TableOptions
    ) -> TransactionTable:
        """Creates a table under a full name of the catalog."""
        return self._make_table(full, "", first_version(data_or_schema, primary_key, stable_row_ids, options))

    def _make_table(self, full: str, table_id: str, make: Callable[[StagedAccess], Committed]) -> TransactionTable:
        """Gives a new table its name and its first version; with an id, the directory that pieces were written to."""
        with self._lock:
            self._scope.check_open()
            if self._names.find(full, self._by_name) is not None:
                raise AlreadyExists(f"There is a table {shown(full)!r} in the lake already.", name=shown(full))
            identity = table_id or self._catalog.runtime.random.uuid()
            touched = StagedTable(identity, full, location=directory_of(full, identity))
            before = self._by_name.get(full)
            if before is not None:
                self._by_name[f"{full} {before.id}"] = before  # dropped by this very transaction; it still has to be published
            self._by_name[full] = touched
        with touched.lock:
            head = TableHead(identity, full, touched.location, 0, 0)
            access = self._lake.access_of(head, self._branch, None, self.base, self.id, self._says)
            staged = staged_access(access, self.id, 0, Scheme.V2)
            try:
                write_owner(staged, self._lake.marks_of(head, self._branch, self.base, self.id), self._view.line)
                _, file = make(staged)
            except BaseException:
                remove_owner(staged)
                with self._lock:
                    self._by_name.pop(full, None)
                    if before is not None:
                        self._by_name.pop(f"{full} {before.id}", None)
                        self._by_name[full] = before
                raise
            touched.access, touched.file = staged, file
            touched.scope = TableScope(self._scope, identity, shown(full))
            touched.handle = TransactionTable(touched.scope, staged, file, Scheme.V2)
            return touched.handle

    def drop_table(self, name: str) -> None:
        """Drops a table with the commit. Its files stay until the lake is cleaned up.

        Raises:
            NotFound: there is none of that name.
        """
        full = refuse_shard(name, self._is_there)
        for shard in shard_names(full, self._has):
            self._drop_physical(shard)
        self._drop_physical(full)

    def _drop_physical(self, full: str) -> None:
        """Drops a table by its full name in the catalog."""
        touched = self._touch(full)
        with touched.lock, self._lock:
            self._scope.check_open()
            touched.dropped = True
            touched.withdraw()  # whatever was written to it goes with it
            if touched.scope is not None:
                touched.scope.dropped = True
            touched.access = touched.handle = touched.scope = None
            if touched.head is None:  # made by this very transaction
                self._by_name.pop(touched.name, None)

    def rename_table(self, name: str, to: str) -> None:
        """Gives a table another name when the transaction is committed. It stays the same table.

        Raises:
            NotFound: there is none of that name.
            AlreadyExists: the new name is taken.
        """
        old, new = refuse_shard(name, self._is_there), refuse_reserved(to)
        shards = shard_names(old, self._has)
        self._rename(old, new)
        for number, shard in enumerate(shards):
            self._rename(shard, shard_name(new, number))

    def _rename(self, old: str, new: str) -> None:
        touched = self._touch(old)
        with touched.lock, self._lock:
            if self._names.find(new, self._by_name) is not None:
                raise AlreadyExists(f"There is a table {shown(new)!r} in the lake already.", name=shown(new))
            before = self._by_name.get(new)
            if before is not None:
                self._by_name[f"{new} {before.id}"] = before
            del self._by_name[old]
            self._by_name[new] = touched
            if touched.head is not None:
                touched.former = touched.head.name if touched.head.name != new else ""
            touched.name = new
            if touched.scope is not None:
                touched.scope.name = shown(new)

    # ---- for fast-forward and merge ------------------------------------------------------------------------------------------------------

    @property
    def cut(self) -> Cut:
        """All tables at the transaction's base. Using it counts as reading the names and versions of all."""
        cut = self._view.cut()
        self._scope.reads.note_everything(cut.tables.values())
        return cut

    def staged(self, name: str) -> StagedAccess:
        """Where a table's versions of this transaction are made."""
        return self.staged_physical(full_name(name))

    def staged_physical(self, full: str) -> StagedAccess:
        """The same for a table by its full name in the catalog, be it a shard or the anchor of some."""
        self._physical(full)
        touched = self._touch(full)
        self._scope.reads.note(touched.id, "table")
        assert touched.access is not None
        return touched.access

    def publish_through(self, publish: Callable[[Publication], Published]) -> None:
        """Has another step of the catalog decide, which does more than publish. Nothing is rebased then."""
        self._publish_by = publish

    def rearrange(self, names: Mapping[str, str], dropped: Collection[str], taken_in: Iterable[TableHead]) -> None:
        """Moves names as a set, so that their order does not matter: swapped, dropped and new ones.

        Args:
            names: new full names by tables' ids.
            dropped: ids of tables to drop.
            taken_in: tables that exist already, on another branch of the lake; the owner of each is who may write to it afterwards.
        """
        heads = {head.id: head for head in self._view.cut().tables.values()}
        with self._lock:
            for table in (*names, *dropped):
                self._touch(heads[table].name)
            _move_names(self._by_name, heads, names, dropped, taken_in)

    # ---- for stock clients -----------------------------------------------------------------------------------------------------

    @property
    def namespace(self) -> CollectingNamespace:
        """The transaction for stock Lance clients: what they write through it is committed with it.

        ``lance.write_dataset(rows, namespace_client=tx.namespace, table_id=["orders"], mode="append")``

        Raises:
            InvalidInput: the transaction is serializable, and these clients do not report what they read.
        """
        from tiltyard.lakes.namespaces.collecting_namespace import namespace_of

        self._scope.check_open()
        if self._isolation == "serializable":
            raise InvalidInput(
                "A serializable transaction must know what was read, and stock clients do not report it.",
                argument="isolation",
                advice="Use isolation='snapshot'.",
            )
        if self._collecting is None:
            self._collecting = namespace_of(self)
        return self._collecting

    # ---- the end ---------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._scope.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._scope.state != "open":
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def rollback(self) -> None:
        """Discards all writes. Nothing of it was ever visible."""
        if self._scope.state == "in doubt":
            raise InvalidInput(
                f"Whether {self.id} was committed is not known, so it cannot be rolled back.",
                advice="Call commit() again, or lake.outcome(id).",
                argument="transaction",
            )
        self._scope.check_open()
        self._scope.state = "rolled back"
        self._throw_away()
        if self._collecting is not None:
            self._collecting.close(committed=False)


def _move_names(
    by_name: dict[str, StagedTable],
    heads: Mapping[str, TableHead],
    names: Mapping[str, str],
    dropped: Collection[str],
    taken_in: Iterable[TableHead],
) -> None:
    """Moves names as a set, so that no order among them matters.

    Args:
        by_name: the tables of a transaction; all that move are among them.
        heads: as its base has them, by tables' ids.
        names: new full names by tables' ids.
        dropped: ids of tables to drop.
        taken_in: tables that come.
    """
    going = {*names, *dropped}
    moving = {touched.id: by_name.pop(name) for name, touched in [*by_name.items()] if touched.id in going}
    for table in dropped:
        moving[table].dropped = True
        by_name[f"{heads[table].name} {table}"] = moving[table]
    for table, name in names.items():
        moving[table].former = heads[table].name if heads[table].name != name else ""
        moving[table].name = name
        by_name[name] = moving[table]
    for head in taken_in:
        by_name[head.name] = StagedTable(head.id, head.name, location=head.location, taken_in=head)

"""Handles on a sharded table that has verbs: one that commits at once, one inside a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from tiltyard.batching.batch_commit import BatchTarget
from tiltyard.catalog.lake_values import ReadLevel
from tiltyard.errors import ConflictError, KeyConflict, NotFound, OutcomeUnknown, TiltyardError
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.interfaces import Runtime
from tiltyard.lakes.lake_tables import LakeReader, LakeTable, TransactionTable
from tiltyard.lakes.sharded import shard_verbs
from tiltyard.lakes.sharded.shard_verbs import Describes
from tiltyard.lakes.sharded.sharded_reader import OpenShards, ShardedReader, identity_of
from tiltyard.lakes.sharded.sharded_writer import ShardedVerbs
from tiltyard.lakes.sharded.sharding import Sharding
from tiltyard.lakes.table_names import full_name, shard_name, shown
from tiltyard.options import CommitOptions
from tiltyard.table import TableReader, TableWriter
from tiltyard.transaction.operations import Append
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.check.findings import CheckReport
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.reexecution import READ_ONCE
from tiltyard.verbs.engine.row_input import conformed
from tiltyard.verbs.keys.primary_keys import check_comparable, distinct_keys, primary_key_of
from tiltyard.verbs.outcome import Outcome
from tiltyard.verbs.write import Writing

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.lake_snapshot import LakeSnapshot
    from tiltyard.lakes.lake_transaction import LakeTransaction


class ShardedTransactionTable(ShardedVerbs, TransactionTable):
    """A sharded table in a transaction: what the transaction began with, plus its own writes.

    Attributes:
        anchor: the table that has its name.
    """

    def __init__(self, transaction: LakeTransaction, anchor: TransactionTable, sharding: Sharding) -> None:
        self.anchor = anchor
        super().__init__(anchor._scope, *anchor._known, anchor._scheme)  # type: ignore[arg-type]
        self._sharding = sharding
        self._transaction = transaction
        self._verified: dict[int, TransactionTable] = {}

    def __repr__(self) -> str:
        return f"ShardedTransactionTable({self.name!r}, shards={self.shards})"

    def _hand_out(self, level: ReadLevel, *, partial: bool = False) -> tuple[TableAccess, ManifestFile]:
        return self.anchor._hand_out(level)

    @property
    def sharding(self) -> Sharding:
        """How its rows are assigned to shards."""
        return self._sharding

    @property
    def _identity(self) -> str:
        return identity_of(self._transaction._branch, self._scope.table)

    @property
    def base(self) -> int:
        """The snapshot that the transaction sees."""
        return self._transaction.base

    @property
    def version(self) -> int:
        """The snapshot that the transaction sees."""
        return self._transaction.base

    def refresh(self) -> Self:
        """Stays where it is: a transaction sees one state."""
        return self

    def physical(self, number: int) -> TransactionTable:
        """A shard, with its verbs. What is written to it must belong there."""
        known = self._verified.get(number)
        if known is None:
            full = shard_name(full_name(self.name), number)
            known = self._verified[number] = self.sharding.verified(number, full, lambda: self._transaction._physical(full))
        return known

    def every(self) -> list[TransactionTable]:
        """All shards."""
        return [self.physical(number) for number in range(self.shards)]

    def redefine(self, sharding: Sharding) -> None:
        """From now on it has other shards."""
        self._sharding = sharding
        self._verified.clear()

    @property
    def transaction(self) -> LakeTransaction:
        """The transaction it belongs to."""
        return self._transaction

    def _reader(self, number: int) -> TableReader:
        return self.physical(number)

    def _sees(self, version: int) -> bool:
        return version == self.base

    def _transact(self, work: Callable[[ShardedTransactionTable], CommitResult], says: Describes, *, once: bool = False) -> CommitResult:
        self._scope.use("nothing")
        return work(self)

    def _compact(self, work: Callable[[TableWriter], CommitResult]) -> CommitResult:
        return shard_verbs.each(self, work)


class ShardedTable(ShardedVerbs, LakeTable):
    """A sharded table of a lake: one logical table whose rows are in several, by their key's hash.

    It is made by ``lake.create_table(..., shard_by=..., shards=...)`` and opened by ``lake.table``. Each verb is one transaction of the
    lake, over the shards it concerns: commits to different shards never conflict. Its versions are the lake's snapshots.

    Attributes:
        name: what it is called in the lake.
    """

    def __init__(self, lake: Lake, snapshot: LakeSnapshot, anchor: LakeTable | LakeReader, table_id: str, sharding: Sharding) -> None:
        super().__init__(*anchor._known, anchor._scheme)
        self.name = anchor.name
        self._sharding = sharding
        self._lake = lake
        self._table_id = table_id
        self._shards = OpenShards(snapshot, anchor.name, sharding)
        self._made = snapshot.id

    def __repr__(self) -> str:
        return f"ShardedTable({self.name!r}, shards={self._sharding.shards}, version={self._made})"

    # ---- where it stands -------------------------------------------------------------------------------------------------------

    @property
    def sharding(self) -> Sharding:
        """How its rows are assigned to shards."""
        self._catch_up()
        return self._sharding

    @property
    def version(self) -> int:
        """The snapshot it is at."""
        return self._made

    @property
    def _identity(self) -> str:
        return identity_of(self._lake.branch, self._table_id)

    def refresh(self) -> Self:
        """Moves this handle to the latest snapshot."""
        opened = self._lake.table(self._name_now())
        assert isinstance(opened, ShardedTable)
        self._take(opened)
        return self

    def _take(self, other: ShardedTable) -> None:
        with self._moving:
            if other._made >= self._made:
                self.name, self._sharding, self._shards, self._made = other.name, other._sharding, other._shards, other._made
                self._known = other._known

    def _name_now(self) -> str:
        head = self._lake.catalog.cut(self._lake.branch).by_id(self._table_id)
        if head is None:
            raise NotFound(f"The sharded table {self.name!r} was dropped.", name=self.name)
        return shown(head.name)

    def _catch_up(self) -> None:
        """Moves to the snapshot that the last verb made, now that its rows or columns are asked for."""
        if self._shards.snapshot.id < self._made:
            snapshot = self._lake.snapshot(self._made)
            head = snapshot.cut.by_id(self._table_id)
            if head is None:
                raise NotFound(f"The sharded table {self.name!r} was dropped.", name=self.name)
            opened = snapshot.table(shown(head.name))
            assert isinstance(opened, ShardedReader)
            with self._moving:
                self.name, self._sharding, self._shards, self._known = opened.name, opened._sharding, opened._shards, opened._known

    def _hand_out(self, level: ReadLevel, *, partial: bool = False) -> tuple[TableAccess, ManifestFile]:
        self._catch_up()
        return super()._hand_out(level, partial=partial)

    def _reader(self, number: int) -> LakeReader:
        self._catch_up()
        return self._shards.open(number)

    def shard(self, number: int) -> LakeReader:
        """One shard, to be read."""
        return self._reader(number)

    def check(
        self, *, versions: Iterable[int] | None = None, data: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> CheckReport:
        """Checks all shards as they are now, and that each row is in the right one.

        ``versions`` does not apply."""
        self.refresh()
        return super().check(versions=versions, data=data, progress=progress)

    # ---- verbs -----------------------------------------------------------------------------------------------------------------

    def _transact(self, work: Callable[[ShardedTransactionTable], CommitResult], says: Describes, *, once: bool = False) -> CommitResult:
        how = says.commit or CommitOptions()
        seen: list[LakeTransaction] = []

        def run(tx: LakeTransaction) -> CommitResult:
            seen.append(tx)
            return work(self._in(tx))

        try:
            result = self._lake.run(run, message=says.message, commit=replace(how, reexecutions=0) if once else how)
        except ConflictError as conflict:
            if once and conflict.retryable:
                raise conflict.advised(READ_ONCE) from conflict
            raise
        done = seen[-1].result
        assert result is not None
        assert done is not None
        with self._moving:
            self._made = max(self._made, done.snapshot)
        return replace(result, version=done.snapshot, transaction_id=done.transaction_id, read_version=seen[-1].base)

    def _in(self, tx: LakeTransaction) -> ShardedTransactionTable:
        """This very table in a transaction, whatever it is called there."""
        name = tx._name_of(self._table_id, self.name)
        if name is None:
            raise NotFound(f"The sharded table {self.name!r} was dropped.", name=self.name)
        opened = tx.table(name)
        assert isinstance(opened, ShardedTransactionTable)
        return opened

    def _compact(self, work: Callable[[TableWriter], CommitResult]) -> CommitResult:
        """Each shard in a commit of its own: it changes no row, so there is nothing to keep together."""
        results = []
        full = full_name(self._name_now())
        for number in range(self.sharding.shards):
            results.append(work(self._lake._physical_table(shard_name(full, number))))
        self.refresh()
        return replace(shard_verbs.summed(results, "Rewrite", self._made), transaction_id=results[-1].transaction_id)

    def _batch_target(self, how: Writing, commit: CommitOptions | None) -> BatchTarget:
        """Each batch is one transaction."""
        return _ShardedTarget(self, how, commit)


def opened_table(lake: Lake, opened: LakeTable) -> LakeTable:
    """The table that a name stands for: the one that was opened, or the sharded one whose anchor it is.

    What foreign writers committed to its shards is adopted first, as for any table that is opened.
    """
    sharding = Sharding.of(opened._blind()[1].manifest, opened.name)
    if sharding is None:
        return opened
    full = full_name(opened.name)
    for number in range(sharding.shards):
        with suppress(TiltyardError):  # whoever needs that shard is told
            lake._physical_table(shard_name(full, number))
    snapshot = lake.snapshot()
    head = snapshot.cut.tables.get(full)
    if head is None:
        raise NotFound(f"There is no table {opened.name!r} in the lake.", name=opened.name)
    anchor = snapshot._physical(full)
    now = Sharding.of(anchor._blind()[1].manifest, opened.name)
    return ShardedTable(lake, snapshot, anchor, head.id, now or sharding)


@dataclass(frozen=True, slots=True)
class _ShardedTarget:
    """A sharded table, as a batching writer uses it."""

    table: ShardedTable
    how: Writing
    commit: CommitOptions | None

    @property
    def runtime(self) -> Runtime:
        return self.table._lake.catalog.runtime

    def fit(self, rows: pa.Table) -> pa.Table:
        _, read = self.table._blind()
        match = self.table._appends.at(read).match(rows.schema)
        fitting = conformed(rows, match.schema, match.check_not_null)
        key = primary_key_of(read.manifest)
        if key is not None and self.how.on_duplicate == "error":
            distinct_keys(check_comparable(read.manifest, key).of(fitting), "The rows have", Append.name)
        return fitting

    def append(self, rows: pa.Table) -> CommitResult:
        return self.table._append(rows, self.how, None, self.commit)

    def catch_up(self) -> bool:
        self.table.refresh()  # by its id: another table of that name is not it
        return True

    def culprits(self, parts: Sequence[pa.Table]) -> dict[int, KeyConflict | None]:
        return {}  # found by halves: their keys are in several tables

    def outcome(self, error: OutcomeUnknown) -> Outcome:
        return self.table._lake.outcome(error.transaction_id)

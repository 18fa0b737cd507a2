"""Reading a sharded table: a handle that only reads, what the handles with verbs have of it, and what none of them has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.errors import NotFound, UnsupportedFeature
from tiltyard.lakes.lake_tables import LakeReader
from tiltyard.lakes.sharded.pruning import shards_of
from tiltyard.lakes.sharded.shard_check import check_sharded
from tiltyard.lakes.sharded.shard_reading import ShardedIndexReader, scan_shards
from tiltyard.lakes.sharded.sharding import Sharding
from tiltyard.lakes.table_names import full_name, shard_name
from tiltyard.table import TableReader
from tiltyard.verbs.check.findings import CheckReport

if TYPE_CHECKING:
    from tiltyard.lakes.lake_snapshot import LakeSnapshot


INSTEAD: Final = {
    "branches": "Use lake.branches, which are over all tables.",
    "changes": "Read the changes of each shard: t.shard(number).changes(...).",
    "clone": "Clone each shard: t.shard(number).uri says where it is; or create a new table from t.scan().",
    "commit": "Use the verbs of the table.",
    "distributed": "In Spark use lake.spark(session).table(name).",
    "history": "See lake.history(), or t.shard(number).history().",
    "lance": "In Spark use lake.spark(session).table(name); else open a shard: t.shard(number).lance.",
    "layout": "Look at a shard: t.shard(number).layout.",
    "restore": "Read an earlier state with lake.snapshot(number).table(name).",
    "scan_task": "In Spark use lake.spark(session).table(name).",
    "tags": "Use lake.tags, which are over all tables.",
    "transactions": "Use lake.outcome(id), or t.shard(number).transactions.",
    "versions": "Its versions are the lake's snapshots: lake.history().",
}
"""By member: what does the same."""


def identity_of(branch: str, table_id: str) -> str:
    """What a sharded table is on one branch of a lake, as long as it is there."""
    return f"{table_id}@{branch}"


class _Refused:
    """A member that raises when it is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__doc__ = f"Refused: a sharded table has no ``{name}``.\n\n{INSTEAD[name]}"

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        raise UnsupportedFeature(
            f"A sharded table has no {self.name}.", feature=f"{self.name} of sharded tables", advice=INSTEAD[self.name]
        )


class Refusals:
    """What several tables together do not have."""

    branches: Any = _Refused("branches")
    changes: Any = _Refused("changes")
    clone: Any = _Refused("clone")
    commit: Any = _Refused("commit")
    distributed: Any = _Refused("distributed")
    history: Any = _Refused("history")
    lance: Any = _Refused("lance")
    layout: Any = _Refused("layout")
    restore: Any = _Refused("restore")
    scan_task: Any = _Refused("scan_task")
    tags: Any = _Refused("tags")
    transactions: Any = _Refused("transactions")
    versions: Any = _Refused("versions")


class ShardedReading(Refusals, TableReader, ABC):
    """A sharded table, as far as it is read.

    The handle itself is on the anchor, which has the columns and no rows."""

    @property
    @abstractmethod
    def sharding(self) -> Sharding:
        """How its rows are assigned to shards."""

    @property
    @abstractmethod
    def _identity(self) -> str:
        """The same on every handle of one branch of the lake, whatever name and shards the table has by now."""

    @abstractmethod
    def _reader(self, number: int) -> TableReader:
        """A shard, if it is one.

        Raises:
            CorruptTable: it is gone, or another table has its name.
        """

    def _readers(self, filter: str | None) -> list[TableReader]:
        """The shards that rows of a condition can be in."""
        return [self._reader(number) for number in shards_of(filter, self.sharding, self.schema)]

    def _anchor_rows(self) -> int:
        return self._data()[1].manifest.fragments.live_rows()

    @property
    def shards(self) -> int:
        """How many shards there are."""
        self._data()
        return self.sharding.shards

    @property
    def shard_by(self) -> tuple[str, ...]:
        """The columns that say which shard a row is in."""
        self._data()
        return self.sharding.columns

    @property
    def indices(self) -> ShardedIndexReader:
        """The indices that all shards have."""
        return ShardedIndexReader(self)

    def count_rows(self, filter: str | None = None) -> int:
        """How many rows there are; without a filter this reads no data."""
        return sum(shard.count_rows(filter) for shard in self._readers(filter))

    def _batches(
        self, columns: Sequence[str] | Mapping[str, str] | None, filter: str | None, options: Mapping[str, Any]
    ) -> pa.RecordBatchReader:
        """The rows as a stream of batches, one shard after the other."""
        return scan_shards(self._readers(filter), columns, filter, options)

    def _rows(self, columns: Sequence[str] | Mapping[str, str] | None, filter: str | None, options: Mapping[str, Any]) -> pa.Table:
        return self._batches(columns, filter, options).read_all()

    def check(
        self, *, versions: Iterable[int] | None = None, data: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> CheckReport:
        """Checks all shards, and that each row is in the right one; ``versions`` does not apply."""
        return check_sharded(self, data=data, progress=progress)


class ShardedReader(ShardedReading, LakeReader):
    """A sharded table of a snapshot: it reads, and stays at its version."""

    def __init__(self, snapshot: LakeSnapshot, anchor: LakeReader, sharding: Sharding) -> None:
        super().__init__(*anchor._known, anchor._scheme)
        self.name = anchor.name
        self._sharding = sharding
        self._shards = OpenShards(snapshot, anchor.name, sharding)

    def __repr__(self) -> str:
        return f"ShardedReader({self.name!r}, shards={self.shards}, version={self.version})"

    @property
    def sharding(self) -> Sharding:
        """How its rows are assigned to shards."""
        return self._sharding

    @property
    def _identity(self) -> str:
        snapshot, full = self._shards.snapshot, full_name(self.name)
        head = snapshot._base.find(full)
        if head is None:
            raise NotFound(f"The sharded table {self.name!r} is not in the snapshot.", name=self.name)
        return identity_of(snapshot.branch, head.id)

    @property
    def version(self) -> int:
        """The snapshot it is at."""
        return self._shards.snapshot.id

    def _reader(self, number: int) -> LakeReader:
        return self._shards.open(number)

    def shard(self, number: int) -> LakeReader:
        """One shard, to be read."""
        return self._reader(number)


class OpenShards:
    """The shards of one snapshot, each opened when it is first asked for."""

    def __init__(self, snapshot: LakeSnapshot, name: str, sharding: Sharding) -> None:
        self.snapshot = snapshot
        self._name = name
        self._sharding = sharding
        self._opened: dict[int, LakeReader] = {}

    def open(self, number: int) -> LakeReader:
        known = self._opened.get(number)
        if known is None:
            full = shard_name(full_name(self._name), number)
            known = self._opened[number] = self._sharding.verified(number, full, lambda: self.snapshot._physical(full))
        return known


def reader_of(snapshot: LakeSnapshot, opened: LakeReader) -> LakeReader:
    """The table that a name stands for: the one that was opened, or the sharded one whose anchor it is."""
    sharding = Sharding.of(opened._blind()[1].manifest, opened.name)
    return opened if sharding is None else ShardedReader(snapshot, opened, sharding)

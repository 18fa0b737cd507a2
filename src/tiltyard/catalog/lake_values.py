"""What a catalog knows: tables, their heads, and snapshots, each a step from one cut over all tables to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args

Isolation = Literal["snapshot", "serializable"]
Kind = Literal["create", "write", "drop", "rename", "adopt", "register"]
ReadLevel = Literal["nothing", "name", "rows", "table"]

READ_LEVELS: Final[tuple[ReadLevel, ...]] = get_args(ReadLevel)
"""How closely a transaction may look at a table, the closest last; see ``catalog/read_set.py``."""

MAIN = "main"
"""The line of history that is no branch."""


@dataclass(frozen=True, slots=True)
class TableHead:
    """One table as a cut has it.

    Attributes:
        id: stays the same whatever the table is called.
        name: its full name, namespaces first, joined with ``$``.
        location: its directory below the lake's root, or a URI of its own.
        version: the version everybody sees.
        data_version: the newest version that changed rows or schema; upkeep does not move it.
        naming: how its manifests are named.
        branch: the table's own branch that it lives on in this line of history; None for main.
        home: the lake's branch that the table's main line belongs to; others get a branch of the table when they write.
        refused: a transaction that read a version below this one is not committed any more.
        quarantine: why nobody may write to it; empty most of the time.
        transaction: id of the table's own transaction that made the version; empty where nobody noted it.
        owner: id of the line of history that may write to this branch of the table; empty in records of earlier releases.
        changed: the snapshot that made it what it is; 0 in records of earlier releases.
        appends_since: all versions above this one only added rows; -1 where nobody noted that.
    """

    id: str
    name: str
    location: str
    version: int
    data_version: int
    naming: str = "v2"
    branch: str | None = None
    home: str = MAIN
    refused: int = 0
    quarantine: str = ""
    transaction: str = ""
    owner: str = ""
    changed: int = 0
    appends_since: int = -1

    def only_appended(self, version: int) -> bool:
        """Whether all versions above an earlier one are known to have added rows and changed nothing else."""
        return 0 <= self.appends_since <= version


@dataclass(frozen=True, slots=True)
class Cut:
    """All tables at one moment.

    Attributes:
        branch: the line of history.
        snapshot: the step that led here; 0 before the first.
        tables: by full name.
        unfinished: by table's id and its own branch, the lowest version that was committed and may not have its final name yet.
        line: id of the line of history, which tells it from others that had or will have the name of the branch.
        names: the snapshot that last created, dropped, renamed or registered a table.
    """

    branch: str
    snapshot: int
    tables: Mapping[str, TableHead]
    unfinished: Mapping[tuple[str, str | None], int] = field(default_factory=dict)
    line: str = ""
    names: int = 0

    def is_unfinished(self, head: TableHead) -> bool:
        """Whether what stands under the name of this version may still be somebody else's."""
        first = self.unfinished.get((head.id, head.branch))
        return first is not None and first <= head.version

    def find(self, name: str) -> TableHead | None:
        return self.tables.get(name)

    def cut(self) -> Cut:
        """Itself: for whoever may have a view that is read table by table instead."""
        return self

    def by_id(self, table: str) -> TableHead | None:
        return next((head for head in self.tables.values() if head.id == table), None)


@dataclass(frozen=True, slots=True)
class VersionStep:
    """One version of one table inside a snapshot.

    Attributes:
        version: its number.
        path: the name of its manifest below the table's directory.
        staged: where the bytes wait until they have that name; None where they have it.
        transaction: id of the table's own transaction.
        operation: its kind.
        content: whether it changed rows or schema.
    """

    version: int
    path: str
    staged: str | None
    transaction: str = ""
    operation: str = ""
    content: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """What a snapshot did to one table.

    Attributes:
        table: its id.
        kind: what was done.
        name: what it is called afterwards; before, where it was dropped.
        base: the version it had; 0 for a new one.
        read: the version it was worked out on, where it was carried over others since.
        steps: versions added, lowest first.
        location, naming, branch: of a new table.
        former: the name before a rename.
        lost: versions that never took effect: a writer who does not know the catalog had taken their numbers, and was preferred.
        base_branch: the table's own branch that it was built on, empty for its main one; None where that is not compared.
        base_transaction: the table's own transaction that made the version it was built on; empty where that is not compared.
        owner: of a table taken over from another line of history that goes on writing to it: that line.
    """

    table: str
    kind: Kind
    name: str
    base: int
    read: int = 0
    steps: tuple[VersionStep, ...] = ()
    location: str = ""
    naming: str = "v2"
    branch: str | None = None
    former: str = ""
    lost: tuple[VersionStep, ...] = ()
    base_branch: str | None = None
    base_transaction: str = ""
    owner: str = ""

    @property
    def version(self) -> int:
        return self.steps[-1].version if self.steps else self.base

    @property
    def changes_names(self) -> bool:
        """Whether the list of all names is another one afterwards."""
        return bool(self.kind in ("create", "register", "drop", "rename") or self.former)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it gives to a table or takes from one."""
        return (self.name, *((self.former,) if self.former else ())) if self.changes_names else ()

    @property
    def operations(self) -> tuple[str, ...]:
        return tuple(step.operation for step in self.steps)


@dataclass(frozen=True, slots=True)
class SnapshotMember:
    """One of the commits that somebody else's version was made for as well.

    Attributes:
        transaction: its id, for ``Lake.outcome``.
        author, message, properties: as its writer gave them.
        tables: of a transaction over any number of tables, in a batch: the ids of those that it wrote to; none for a single verb.
        isolation, base: of such a one, how it was checked, and the snapshot that it was built on.
        key: its idempotency key, on its way into a batch; the record of the transaction keeps it.
    """

    transaction: str
    author: str = ""
    message: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    isolation: Isolation = "snapshot"
    base: int = 0
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed step over any number of tables.

    Attributes:
        id: counts up by one along a line of history.
        branch: that line.
        at: when it was committed, by the clock of the writer.
        transaction: its id, for ``Lake.outcome``.
        changes: what it did to each table.
        author, message, properties: as its writer gave them.
        isolation: how it was checked.
        base: the snapshot it was built on.
        voided: a foreign writer took the version first, so that this step changed nothing.
        unknown: what it did is not known, since the catalog that had it was lost; the tables cannot be read as of this snapshot.
        line: id of the line of history; empty in records of earlier releases.
        members: commits of others that are in it: single verbs in one version, or the transactions of a batch.
    """

    id: int
    branch: str
    at: datetime
    transaction: str
    changes: tuple[Change, ...]
    author: str = ""
    message: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    isolation: Isolation = "snapshot"
    base: int = 0
    voided: bool = False
    unknown: bool = False
    line: str = ""
    members: tuple[SnapshotMember, ...] = ()

    @property
    def transactions(self) -> tuple[str, ...]:
        """The ids of all transactions that were committed in it; a batch is none itself."""
        is_batch = any(member.tables for member in self.members)
        return (*(() if is_batch else (self.transaction,)), *(member.transaction for member in self.members))

    @property
    def authors(self) -> tuple[str, ...]:
        """The authors of all commits in it, as far as they are known, each once."""
        return tuple(dict.fromkeys(filter(None, (self.author, *(member.author for member in self.members)))))

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables it changed."""
        return tuple(change.name for change in self.changes)


@dataclass(frozen=True, slots=True)
class ExpectedHead:
    """What a transaction counts on for one table it read.

    Attributes:
        table, name: which one, and what it was called.
        base, data_version: the versions that it had.
        level: how closely it was looked at, which decides which of these must be as they were.
    """

    table: str
    name: str
    base: int
    data_version: int
    level: ReadLevel = "rows"


@dataclass(frozen=True, slots=True)
class Publication:
    """All that one transaction wants to commit.

    Attributes:
        transaction: its id.
        changes: what it does to each table; ``base`` is what it was built on.
        reads: tables that must not have changed, beside those.
        key: an idempotency key; a transaction that has the key of a committed one is that one.
        line: id of the line of history it was built on; empty where that is not compared.
        absent: names that no table may have got.
        names: the snapshot that must still be the last one to have changed a name; None where that does not matter.
        blind: whether it rests on nothing that it was told: the names that it takes must be free, and may have been in use since its base.
        noted: whether it only notes what the tables' files say has happened, so that no rule about who may write concerns it.
        members: commits of others that are in its version; of a batch all transactions that it is made of.
        data: its one version as base64, for the record of what is unfinished: so it is flushed with the decision, and by nothing else.
    """

    transaction: str
    changes: tuple[Change, ...]
    branch: str = MAIN
    reads: tuple[ExpectedHead, ...] = ()
    key: str | None = None
    author: str = ""
    message: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    isolation: Isolation = "snapshot"
    base: int = 0
    line: str = ""
    absent: tuple[str, ...] = ()
    names: int | None = None
    blind: bool = False
    noted: bool = False
    members: tuple[SnapshotMember, ...] = ()
    data: str = ""


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """What became of a transaction.

    Attributes:
        snapshot: the snapshot it made; the latest one if it changed nothing.
        transaction_id: for ``Lake.outcome``.
        tables: the version of each table that it wrote to.
        attempts: how many times it was published; more than one if others committed first.
        rebased: tables whose writes were rebased, with the versions they were rebased over.
        replayed: whether a transaction with the same idempotency key had been committed before; then nothing was written now.
        seconds: how long publishing took.
    """

    snapshot: int
    transaction_id: str
    tables: Mapping[str, int]
    attempts: int = 1
    rebased: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    replayed: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Moved:
    """A table that was not where a publication expected it.

    Attributes:
        table, name: which one.
        kind: ``write`` for one the transaction writes to, ``read`` for one it read, ``incompatible`` for one that was dropped, renamed
            or whose name is taken, ``foreign`` for one whose number a writer took that does not know the catalog, ``replaced`` for one
            that has the number, but not the version or branch of the table that was built on, ``line`` where the whole branch of the
            lake is another one than that (``name`` is its name, ``expected`` and ``actual`` are snapshots), ``name`` for a name that was
            read and stands for another table or for none by now; with an empty name for the list of all names; ``freed`` for a name
            that others took from a table since, whatever it stands for by now (``expected`` and ``actual`` are snapshots).
        expected, actual: versions; ``actual`` is None where the table is gone.
        head: where it is now.
    """

    table: str
    name: str
    kind: Literal["write", "read", "incompatible", "foreign", "replaced", "line", "name", "freed"]
    expected: int
    actual: int | None
    head: TableHead | None = None

"""Many writers of a lake whose catalog is PostgreSQL and whose tables lie on an object store, in virtual time, through the real ``Lake``.

Each transaction appends one file to one table: all writers to the same, each to its own, or each to one of some shards. Data files are made
up; staging, the decision in the catalog, turns at hot tables, rebase and final names are what users get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.lake_growth import AT_ONCE
from bench.scale.table_runs import DATA_BYTES, FIELDS, SimulatedRun, TableRun
from bench.scale.virtual_stores import Conditions, VirtualRecords, VirtualStore
from bench.scale.virtual_time import VirtualLocks
from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import Change, Publication, VersionStep
from tiltyard.catalog.open_records import MemoryRecords
from tiltyard.catalog.records import GivesTickets
from tiltyard.errors import ContentionError
from tiltyard.format.names import Scheme
from tiltyard.format.values import DataFormat
from tiltyard.interfaces import Runtime
from tiltyard.lake import Lake
from tiltyard.lakes.lake_tables import OpenedTable, OpenedTables
from tiltyard.lakes.opening import LakeLocation
from tiltyard.storage.handlers import ConditionalPutHandler
from tiltyard.testing.clocks import SeededRandomness
from tiltyard.transaction.apply.next_manifest import Creation
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.operations import Append, Overwrite
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.engine.access import WRITER, TableAccess

ROOT: Final = "s3://simulated/lake"


@dataclass(frozen=True, slots=True)
class LakeWay:
    """Which tables the writers of a lake write to.

    Attributes:
        name: what the page calls it.
        tables: over how many tables they are spread; 0 for one each.
    """

    name: str
    tables: int = 1


HOT: Final = LakeWay("lake, one table")
SHARDS: Final = LakeWay("lake, 16 shards", 16)
OWN: Final = LakeWay("lake, own tables", 0)
LAKE_WAYS: Final = (HOT, SHARDS, OWN)


class _Opened(OpenedTables):
    """The stores of all tables, as one writer reaches them."""

    def __init__(self, run: LakeRun) -> None:
        super().__init__()
        self._run = run

    def at(self, location: str, where: LakeLocation, runtime: Runtime) -> OpenedTable:
        home = (where.root, location)
        if home not in self._by_home:
            uri = where.uri_of(location)
            self._by_home[home] = OpenedTable(_Access(uri, self._run.store(uri), ConditionalPutHandler(), runtime))
        return self._by_home[home]


class _Access(TableAccess):
    """Where a table lives, its versions decoded once for all writers."""

    def ensure_safe(self) -> None:
        """Nothing: this store keeps its promises."""


class LakeRun(SimulatedRun):
    """One run: a lake with some tables, and writers before it."""

    def __init__(self, way: LakeWay, writers: int, *, seed: int, conditions: Conditions, others: int = 0) -> None:
        super().__init__(way.name, writers, seed, conditions)
        self.way = way
        self._stores: dict[str, VirtualStore] = {}
        self._shared = MemoryRecords()
        self._locks, self._tickets = VirtualLocks(self.time), VirtualLocks(self.time)
        self.acknowledged: list[tuple[str, str]] = []
        """Table and file of each append that was acknowledged."""
        self.tables = [f"t{number}" for number in range(way.tables or writers)]
        self._make(others)
        self.site.requests.clear()
        self.site.bytes_written = 0

    def store(self, home: str) -> VirtualStore:
        return self._stores.setdefault(home, VirtualStore(self.site, home))

    def lake(self, name: str) -> Lake:
        """A lake as another process would open it."""
        runtime = Runtime(self.time, SeededRandomness(f"{self.seed} {name}"))
        records = VirtualRecords(self.site, self._shared, self._locks, self._tickets)
        assert isinstance(records, GivesTickets)
        lake = Lake(LakeLocation(ROOT, False, lake="simulated"), records, runtime, name)
        lake._opened = _Opened(self)
        return lake

    # ---- the lake there is in the beginning ------------------------------------------------------------------------------------

    def _make(self, others: int) -> None:
        """Registers tables whose first version is there, and others that nobody opens."""
        catalog = Catalog(self._shared, Runtime(self.time, SeededRandomness("make")))
        catalog.initialize({"root": ROOT, "id": "simulated"})
        line = str(dict(self._shared.scan(["tip/"]))["tip/main"]["line"])
        changes = []
        for name in self.tables:
            uuid, home = SeededRandomness(name).uuid(), f"{ROOT}/{name}.lance"
            self.time.begin(self._first_version(home, uuid))
            changes.append(_created(name, uuid))
        changes += [_created(f"other{number}", f"other-{number}") for number in range(others)]
        self.time.run()
        for first in range(0, len(changes), AT_ONCE):
            catalog.publish(Publication(f"make-{first}", tuple(changes[first : first + AT_ONCE]), line=line))

    def _first_version(self, home: str, uuid: str) -> Callable[[], None]:
        def body() -> None:
            runtime = Runtime(self.time, SeededRandomness(home))
            committer = Committer(VersionLog(self.store(home)), ConditionalPutHandler(), runtime, WRITER)
            transaction = Transaction(0, uuid, Overwrite((TableRun.fragment("first"),), FIELDS))
            committer.create_table(transaction, Creation(DataFormat(), False), Scheme.V2)

        return body

    def _writer(self, number: int, most: int) -> Callable[[], None]:
        lake = self.lake(f"writer{number}")
        random = SeededRandomness(f"{self.seed} writer {number}")

        def body() -> None:
            count = 0
            while self.outcome.commits < most:
                table = self.tables[number if not self.way.tables else random.randrange(len(self.tables))]
                count += 1
                self._since[number] = self.time.seconds
                name = f"{number}-{count}"
                store = self.store(f"{ROOT}/{table}.lance")
                store.put_later(f"data/{name}.lance", b"\0" * DATA_BYTES)
                try:
                    with lake.transaction() as tx:
                        tx.table(table).commit(Append((TableRun.fragment(name),)))
                except ContentionError:
                    self.outcome.failed += 1
                    continue
                self.outcome.commits += 1
                self.outcome.waits.append(self.time.seconds - self._since.pop(number))
                self.acknowledged.append((table, f"{name}.lance"))
                if self.outcome.commits >= most:
                    self.time.end()

        return body

    def _check(self) -> None:
        """Every file that was acknowledged is in the latest version of its table, once."""
        self.site.conditions = Conditions(0.0, 0.0, statement=0.0, hop=0.0)
        found: dict[str, Counter[str]] = {}

        def body() -> None:
            lake = self.lake("checker")
            for table in self.tables:
                opened = lake.table(table)
                found[table] = Counter(file.path for fragment in opened.layout.fragments for file in fragment.files)
                self.outcome.versions += opened.version - 1

        requests = self.site.requests.copy()
        self.time.begin(body)
        self.time.run()
        self.outcome.requests = requests
        for table, path in self.acknowledged:
            assert found[table][path] == 1, f"{path} is {found[table][path]} times in {table}"


def _created(name: str, uuid: str) -> Change:
    step = VersionStep(1, f"_versions/{2**64 - 2:020d}.manifest", None, uuid, "Overwrite")
    return Change(f"id-{name}", "create", name, 0, 0, (step,), location=f"{name}.lance")

"""Lakes for tests: one site for each kind of catalog, and what is done to a lake from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import lance
import pyarrow as pa
import pytest

from tiltyard.catalog.catalog import no_queue
from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.publishing import locks
from tiltyard.catalog.records import Body, Decide, Found, Records, Writes
from tiltyard.catalog.server_records import ServerCatalog, publication_from_body
from tiltyard.errors import StorageError
from tiltyard.interfaces import ObjectStore, Runtime, SystemRandomness
from tiltyard.lake import Lake
from tiltyard.lakes.lake_snapshot import LakeSnapshot
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.options import RecoveryOptions, Storage
from tiltyard.testing import ManualClock
from tiltyard.verbs.changed_rows import Side
from tiltyard.verbs.engine.access import TableAccess

T = TypeVar("T")


def stored(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for a lake, with those that are about its storage as one value."""
    given = dict(arguments)
    storage = Storage(given.pop("storage_options", None), given.pop("durability", "os"), runtime=given.pop("runtime", None))
    return {**given, "storage": storage}


def recovering(arguments: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    """The same for a lake that gets its catalog back."""
    given = dict(arguments)
    author = given.pop("author", None)
    return {**stored(given), "options": RecoveryOptions(author=author, **how)}


@dataclass
class Site:
    """Where one lake is, so that any number of handles can be opened on it.

    Attributes:
        kind: which catalog it has.
        uri: what ``Lake.open`` takes.
        root: the local directory of its tables; None where they are elsewhere.
        arguments: what else ``Lake.open`` needs.
    """

    kind: str
    uri: str
    root: Path | None
    arguments: dict[str, Any] = field(default_factory=dict)
    opened: list[Lake] = field(default_factory=list)

    def open(self, *, runtime: Runtime | None = None, **more: Any) -> Lake:
        """Another handle, as another process would have it."""
        lake = Lake.open(self.uri, **stored({**self.arguments, **more, "runtime": runtime}))
        self.opened.append(lake)
        return lake

    def close(self) -> None:
        for lake in self.opened:
            lake.close()

    @property
    def directory(self) -> Path:
        """Its root, for tests that look at local files; others are skipped here."""
        if self.root is None:
            pytest.skip("looks at files on this machine")
        return self.root

    def files(self, below: str = "") -> set[str]:
        """All files of tables whose path holds ``below``; not those of a catalog beside them."""
        found = (str(path.relative_to(self.directory)) for path in self.directory.rglob("*") if path.is_file())
        return {path for path in found if below in path and not path.startswith("__manifest")}


def numbers(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def ids(table: Any) -> list[int]:
    """What is in the column ``id``: of our handle or of pylance's dataset."""
    rows = table.to_table() if isinstance(table, lance.LanceDataset) else table.to_arrow()
    return sorted(rows["id"].to_pylist())


def two_tables(lake: Lake) -> Lake:
    """The same lake with tables ``a`` and ``b``, both of which hold the id 1."""
    with lake.transaction(message="begin") as tx:
        tx.create_table("a", numbers(1))
        tx.create_table("b", numbers(1))
    return lake


def both(lake: Lake | LakeSnapshot | LakeTransaction) -> tuple[list[int], list[int]]:
    return ids(lake.table("a")), ids(lake.table("b"))


def add_to_both(tx: LakeTransaction, *values: int) -> LakeTransaction:
    tx.table("a").append(numbers(*values))
    tx.table("b").append(numbers(*values))
    return tx


def stock(lake: Lake, name: str) -> lance.LanceDataset:
    """The table as pylance sees it who knows nothing of the lake."""
    options = lake._where.storage.options
    return lance.dataset(uri_of(lake, name), storage_options=dict(options) if options else None)


class Located(str):
    """The URI of a table, and with it the keys to its store."""

    options: Mapping[str, Any] | None = None


def uri_of(lake: Lake, name: str) -> Located:
    """Where a table lives, asked of the catalog alone, so that nothing is finished or adopted on the way."""
    uri = Located(lake._where.uri_of(lake.catalog.cut(lake.branch).tables[name.replace(".", "$")].location))
    uri.options = lake._where.storage.options
    return uri


def directory_of(lake: Lake, name: str) -> Path:
    """The same for tests that look at files."""
    uri = uri_of(lake, name)
    if "://" in uri:
        pytest.skip("looks at files on this machine")
    return Path(uri)


def foreign_append(uri: str, *values: int) -> None:
    """A commit of a writer that does not know the lake."""
    options = uri.options if isinstance(uri, Located) else None
    lance.write_dataset(numbers(*values), str(uri), mode="append", storage_options=dict(options) if options else None)


def prompt_runtime() -> Runtime:
    """Nobody waits, and every wait is written down."""
    return Runtime(ManualClock(), SystemRandomness())


def together(*works: Callable[[], Any]) -> list[Any]:
    """What each came to, a value or an error, when all were begun at once."""
    results: list[Any] = [None] * len(works)
    start = threading.Barrier(len(works))

    def run(number: int, work: Callable[[], Any]) -> None:
        try:
            start.wait(30)
            results[number] = work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[number] = error

    threads = [threading.Thread(target=run, args=(number, work)) for number, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
    return results


# ---- catalogs that misbehave ------------------------------------------------------------------------------------------------------

Loss = Literal["before", "after"]


class WrappedRecords:
    """Passes every call on."""

    def __init__(self, inner: Records) -> None:
        self.inner = inner
        self.url = inner.url

    def get(self, keys: Collection[str]) -> Found:
        return self.inner.get(keys)

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        return self.inner.scan(prefixes, limit=limit, descending=descending)

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        return self.inner.transact(exclusive, shared, decide)

    def close(self) -> None:
        self.inner.close()


class LosingRecords(WrappedRecords):
    """Loses the answer of the ``at``-th transaction from now, before or after it was carried out, and may be down altogether.

    Attributes:
        down: all calls fail, and it is certain that nothing was done.
        then_down: goes down together with the lost answer.
        raises: what is raised in place of the answer; an error that leaves it open by default.
    """

    def __init__(self, inner: Records) -> None:
        super().__init__(inner)
        self.down = False
        self.then_down = False
        self.fired = False
        self.raises: Callable[[], BaseException] = lambda: StorageError("The answer was lost.", maybe_applied=True, transient=True)
        self._plan: tuple[int, Loss] | None = None

    def lose(self, at: int, when: Loss) -> None:
        self._plan = (at, when)
        self.fired = False

    def get(self, keys: Collection[str]) -> Found:
        self._check()
        return super().get(keys)

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        self._check()
        return super().scan(prefixes, limit=limit, descending=descending)

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        self._check()
        if self._plan is None:
            return super().transact(exclusive, shared, decide)
        at, when = self._plan
        self._plan = None if at == 1 else (at - 1, when)
        if at > 1:
            return super().transact(exclusive, shared, decide)
        if when == "after":
            super().transact(exclusive, shared, decide)
        self.fired = True
        self.down = self.then_down
        raise self.raises()

    def _check(self) -> None:
        if self.down:
            raise StorageError("The catalog does not answer.", transient=True)


class InterposedRecords(WrappedRecords):
    """Does something right before a transaction is carried out: the way to be faster than somebody."""

    def __init__(self, inner: Records, before: Callable[[], Any], *, times: int = 1, match: str = "tip/") -> None:
        super().__init__(inner)
        self._before = before
        self._times = times
        self._match = match

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        if self._times and any(key.startswith(self._match) for key in exclusive):
            self._times -= 1
            self._before()
        return super().transact(exclusive, shared, decide)


R = TypeVar("R", bound=Records)


def through(lake: Lake, wrap: Callable[[Records], R]) -> R:
    """Puts something between a lake and its catalog; what a server decides goes through it as a transaction, too.

    Commits that a server makes for its clients go past it, so handles opened from now on offer none.
    """
    served = isinstance(lake.catalog, ServerCatalog)
    records = wrap(_ServedRecords(lake.catalog.records) if served else lake.catalog.records)
    lake.catalog.records = records
    if isinstance(lake.catalog, ServerCatalog):
        lake.catalog._link = _Decisions(lake.catalog._link, records)  # type: ignore[assignment]
        lake.catalog.queues = no_queue
    return records


class Racing(InterposedRecords):
    """Does something right after the decision."""

    def transact(self, exclusive: Any, shared: Any, decide: Any) -> Any:
        result = self.inner.transact(exclusive, shared, decide)
        if self._times and any(key.startswith(self._match) for key in exclusive):
            self._times -= 1
            self._before()
        return result


@dataclass(frozen=True)
class _Request:
    """A decision that a server makes, in the place of one that is made here."""

    send: Callable[[], Any]

    def __call__(self, found: Found) -> Writes[Any]:
        raise AssertionError("the server decides")


class _ServedRecords(WrappedRecords):
    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        if isinstance(decide, _Request):
            answer: T = decide.send()
            return answer
        return super().transact(exclusive, shared, decide)


class _Decisions:
    """A link to a server whose decisions can be lost, and before which others can be faster, as with records at hand."""

    def __init__(self, link: Any, records: Records) -> None:
        self._link, self._records = link, records

    def post(self, path: str, body: Any, *, repeatable: bool = False) -> Any:
        publication = body.get("publication")
        keys = locks(publication_from_body(publication))[0] if publication is not None else ["pending/"]
        request = _Request(lambda: self._link.post(path, body))
        try:
            return self._records.transact(keys, [], request)
        except StorageError as error:
            if not (repeatable and error.transient):
                raise
            return self._records.transact(keys, [], request)


def reads_of_rows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables whose rows are read from now on to be compared, once for each time."""
    read: list[str] = []

    def noted(real: Any) -> Any:
        def call(self: Side, *given: Any, **more: Any) -> Any:
            read.append(self.access.uri)
            return real(self, *given, **more)

        return call

    for name in ("read", "take"):
        monkeypatch.setattr(Side, name, noted(getattr(Side, name)))
    return read


@contextmanager
def stores_through(wrap: Callable[[ObjectStore], ObjectStore]) -> Iterator[None]:
    """Puts something between lakes and their root, and the stores of all tables that are opened meanwhile."""

    def wrapped(plain: Callable[..., TableAccess]) -> Callable[..., TableAccess]:
        def opened(lake: Lake, *given: TableHead) -> TableAccess:
            access = plain(lake, *given)
            return replace(access, store=wrap(access.store))

        return opened

    with pytest.MonkeyPatch.context() as patched:
        for name in ("plain_access_of", "root_access"):
            patched.setattr(Lake, name, wrapped(getattr(Lake, name)))
        yield

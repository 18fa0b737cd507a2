"""Versions of a single table decided in a database: four steps, any of which may be the writer's last."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import lance
import pyarrow as pa
import pytest

from tests.support.lakes import LosingRecords, Loss, WrappedRecords, foreign_append, ids, numbers, together
from tests.support.records import fresh_database
from tiltyard import Table
from tiltyard.catalog.commit_store import RecordLedger, decided_in
from tiltyard.catalog.open_records import MemoryRecords, open_records
from tiltyard.catalog.records import Decide, Records
from tiltyard.errors import AlreadyExists, ConflictError, CorruptTable, InvalidInput, OutcomeUnknown, StorageError, TiltyardError
from tiltyard.interfaces import ObjectStore, system_runtime
from tiltyard.options import CommitOptions, Storage
from tiltyard.storage import lance_uri
from tiltyard.storage.external import UnfinishedError, VersionClaim
from tiltyard.storage.probe import forget
from tiltyard.testing import Killed, WrapperStore
from tiltyard.verbs.engine.access import TableAccess, open_access

pytest_plugins = ("tests.support.postgres",)

T = TypeVar("T")
STEPS = ("stage", "claim", "final name", "settle", "remove what was staged")


def place_at(uri: object, records: Records, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store) -> TableAccess:
    place = open_access(str(uri), Storage(durability="os"))
    place = replace(place, store=wrap(place.store))
    return place.decided_by(decided_in(records, system_runtime()))


def opened(uri: object, records: Records, **more: Any) -> Table:
    return Table._open(place_at(uri, records), **more)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table that has one version, which holds the id 1."""
    uri = str(tmp_path / "table")
    Table.create(uri, numbers(1), durability="os")
    return uri


class Script:
    """Notes each of the four steps, and dies for good at one of them, before or after it is done."""

    def __init__(self, dies_at: str | None = None, *, after: bool = False, watch: Callable[[str], None] = lambda step: None) -> None:
        self.steps: list[str] = []
        self._dies_at = dies_at
        self._after = after
        self._watch = watch
        self._dead = False

    def take(self, step: str, act: Callable[[], T]) -> T:
        if self._dead or (step == self._dies_at and not self._after):
            self._dead = True
            raise Killed(step)
        result = act()
        self.steps.append(step)
        self._watch(step)
        if step == self._dies_at:
            self._dead = True
            raise Killed(step)
        return result


class ScriptedStore(WrapperStore):
    def __init__(self, inner: ObjectStore, script: Script) -> None:
        super().__init__(inner)
        self._script = script

    def put(self, path: str, data: bytes) -> None:
        if ".manifest-" in path:
            self._script.take("stage", lambda: super(ScriptedStore, self).put(path, data))
        else:
            super().put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        if path.startswith("_versions/"):
            self._script.take("final name", lambda: super(ScriptedStore, self).put_if_absent(path, data))
        else:
            super().put_if_absent(path, data)

    def delete(self, path: str) -> None:
        if ".manifest-" in path:
            self._script.take("remove what was staged", lambda: super(ScriptedStore, self).delete(path))
        else:
            super().delete(path)


class ScriptedRecords(WrappedRecords):
    def __init__(self, inner: Records, script: Script) -> None:
        super().__init__(inner)
        self._script = script
        self._count = 0

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        self._count += 1
        step = "claim" if self._count == 1 else "settle"
        return self._script.take(step, lambda: super(ScriptedRecords, self).transact(exclusive, shared, decide))


def scripted(uri: str, records: Records, script: Script) -> Table:
    place = place_at(uri, ScriptedRecords(records, script), lambda store: ScriptedStore(store, script))
    return Table._open(place)


def staged(uri: str) -> list[str]:
    return sorted(path.name for path in Path(uri, "_versions").iterdir() if ".manifest-" in path.name)


# ---- the four steps ---------------------------------------------------------------------------------------------------------------


def test_a_commit_is_four_steps_in_order(uri: str) -> None:
    script = Script()
    scripted(uri, MemoryRecords(), script).append(numbers(2))
    assert tuple(script.steps) == STEPS


def test_the_directory_alone_is_a_whole_table_at_any_moment(uri: str, tmp_path: Path) -> None:
    copies: dict[str, str] = {}

    def copy(step: str) -> None:
        copies[step] = str(tmp_path / f"copy after {step}")
        shutil.copytree(uri, copies[step])

    scripted(uri, MemoryRecords(), Script(watch=copy)).append(numbers(2))
    seen = {step: ids(lance.dataset(copies[step])) for step in STEPS}
    assert seen == {step: [1] if step in STEPS[:2] else [1, 2] for step in STEPS}, "never more than one commit behind"
    for step, copied in copies.items():
        table = Table.open(copied)
        table.append(numbers(9))
        assert ids(table) == ids(lance.dataset(copied)) == [*seen[step], 9]
        assert table.check().problems == ()


@pytest.mark.parametrize("who", ["reader", "writer", "reader at its version"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whoever_comes_next_finishes_what_a_dead_writer_left(uri: str, step: str, after: bool, who: str) -> None:
    records = MemoryRecords()
    with pytest.raises(Killed):
        scripted(uri, records, Script(step, after=after)).append(numbers(2))
    claimed = STEPS.index(step) + after > 1
    named = STEPS.index(step) + after > 2
    assert ids(lance.dataset(uri)) == ([1, 2] if named else [1]), "a reader that does not know the store is at most one commit behind"
    if who == "writer":
        opened(uri, records).append(numbers(3))
        assert ids(lance.dataset(uri)) == ([1, 2, 3] if claimed else [1, 3])
    elif who == "reader" or not claimed:
        assert ids(opened(uri, records)) == ([1, 2] if claimed else [1])
    else:
        assert ids(opened(uri, records, version=2)) == [1, 2]
    if claimed:
        assert ids(lance.dataset(uri, version=2)) == [1, 2]
    assert not RecordLedger(records, lance_uri(uri)).unfinished()
    assert len(staged(uri)) == (0 if claimed and not named else len(staged(uri)))
    assert opened(uri, records).check().problems == ()


def test_an_open_handle_finishes_too(uri: str) -> None:
    records = MemoryRecords()
    first, second = opened(uri, records), opened(uri, records)
    with pytest.raises(Killed):
        scripted(uri, records, Script("claim", after=True)).append(numbers(2))
    assert first.layout.latest_version() == 2
    assert ids(first.refresh()) == [1, 2]
    second.append(numbers(3))
    assert ids(second) == [1, 2, 3]


def test_no_later_version_is_claimed_before_the_one_below_has_its_name(uri: str) -> None:
    records = MemoryRecords()
    with pytest.raises(Killed):
        scripted(uri, records, Script("claim", after=True)).append(numbers(2))
    ledger = RecordLedger(records, lance_uri(uri))
    (pending,) = ledger.unfinished()
    assert pending.version == 2
    with pytest.raises(UnfinishedError):
        ledger.claim(VersionClaim(3, "_versions/3.manifest", "_versions/3.manifest-x"), b"")
    with pytest.raises(AlreadyExists):
        ledger.claim(replace(pending, staged="other"), b"")


@pytest.mark.parametrize("step", ["claim", "final name"])
def test_many_may_finish_at_once(uri: str, step: str) -> None:
    records = MemoryRecords()
    with pytest.raises(Killed):
        scripted(uri, records, Script(step, after=True)).append(numbers(2))
    writers = [lambda n=n: opened(uri, records).append(numbers(n)).version for n in (3, 4)]
    results = together(*[lambda: ids(opened(uri, records))] * 6, *writers)
    assert not [one for one in results if isinstance(one, BaseException)], results
    assert all(one[:2] == [1, 2] for one in results[:6]), results
    assert sorted(results[6:]) == [3, 4]
    assert ids(opened(uri, records)) == [1, 2, 3, 4]
    assert opened(uri, records).check().problems == ()
    assert staged(uri) == []


def test_what_cannot_be_finished_is_not_read(uri: str) -> None:
    records = MemoryRecords()
    before = opened(uri, records)
    with pytest.raises(Killed):
        scripted(uri, records, Script("claim", after=True)).append(numbers(2))
    (name,) = staged(uri)
    Path(uri, "_versions", name).unlink()
    for use in (lambda: opened(uri, records), before.refresh, lambda: before.append(numbers(3)), lambda: opened(uri, records, version=2)):
        with pytest.raises(CorruptTable, match="version 2 was committed"):
            use()
    assert ids(lance.dataset(uri)) == [1]
    assert ids(before) == [1]


# ---- answers that are lost --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2], ids=["claim", "settle"])
def test_a_lost_answer_is_found_out(uri: str, at: int, when: Loss) -> None:
    records = LosingRecords(MemoryRecords())
    table = opened(uri, records)
    records.lose(at, when)
    assert table.append(numbers(2)).version == 2
    assert records.fired
    assert ids(opened(uri, records)) == [1, 2]
    assert table.check().problems == ()


@pytest.mark.parametrize("when", ["before", "after"])
def test_where_it_cannot_be_found_out_nothing_is_deleted(uri: str, when: Loss) -> None:
    records = LosingRecords(MemoryRecords())
    table = opened(uri, records)
    records.lose(1, when)
    records.then_down = True
    with pytest.raises((OutcomeUnknown, StorageError)) as caught:
        table.append(numbers(2))
    records.down = False
    if when == "after":
        assert isinstance(caught.value, OutcomeUnknown)
        assert ids(opened(uri, records)) == [1, 2]
    if isinstance(caught.value, OutcomeUnknown):
        kinds = {type(opened(uri, records).transactions.outcome(caught.value.transaction_id, version=2)).__name__ for _ in range(2)}
        assert kinds == {"Committed" if when == "after" else "Unknown"}, "as long as the number is free, it may still come"
    table.refresh().append(numbers(3))
    assert ids(opened(uri, records)) == ([1, 2, 3] if when == "after" else [1, 3])
    if isinstance(caught.value, OutcomeUnknown):
        outcome = opened(uri, records).transactions.outcome(caught.value.transaction_id, version=2)
        assert type(outcome).__name__ == ("Committed" if when == "after" else "NotCommitted")


# ---- writers that do not know the store -------------------------------------------------------------------------------------------


def test_plain_pylance_may_write_in_between(uri: str) -> None:
    records = MemoryRecords()
    table = opened(uri, records)
    for number in range(2, 8, 2):
        table.append(numbers(number))
        foreign_append(uri, number + 1)
    assert ids(table.refresh()) == [*range(1, 8)]
    assert [opened(uri, records, version=one).count_rows() for one in range(1, 8)] == [*range(1, 8)]


@pytest.mark.parametrize("after", ["stage", "claim"])
def test_plain_pylance_may_take_the_very_number(uri: str, after: str) -> None:
    records = MemoryRecords()
    script = Script(watch=lambda step: foreign_append(uri, 99) if step == after and script.steps.count(step) == 1 else None)
    result = scripted(uri, records, script).append(numbers(2))
    assert result.version == 3
    assert ids(opened(uri, records)) == ids(lance.dataset(uri)) == [1, 2, 99]
    assert opened(uri, records).check().problems == ()
    assert opened(uri, records).append(numbers(3)).version == 4


def test_plain_pylance_may_take_the_number_of_a_dead_writer(uri: str) -> None:
    records = MemoryRecords()
    with pytest.raises(Killed):
        scripted(uri, records, Script("claim", after=True)).append(numbers(2))
    foreign_append(uri, 99)
    assert ids(opened(uri, records)) == [1, 99], "nobody ever saw the other"
    opened(uri, records).append(numbers(3))
    assert ids(opened(uri, records)) == ids(lance.dataset(uri)) == [1, 3, 99]


def test_a_conflict_is_one_here_as_well(uri: str) -> None:
    records = MemoryRecords()
    one, two = opened(uri, records), opened(uri, records)
    one.update({"id": "id + 1"})
    with pytest.raises(ConflictError):
        two.update({"id": "id + 10"}, commit=CommitOptions(reexecutions=0))
    two.update({"id": "id + 10"})
    assert ids(two) == [12]


# ---- a store that cannot create a name once ---------------------------------------------------------------------------------------


class Overwriting(WrapperStore):
    """The last writer wins, and nobody is told."""

    conditional_put_known = False

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.inner.put(path, data)


@pytest.fixture
def overwriting() -> Iterator[Callable[[ObjectStore], ObjectStore]]:
    forget()
    yield Overwriting
    forget()


def test_a_store_that_overwrites_is_safe_through_the_ledger(uri: str, tmp_path: Path, overwriting: Callable[..., ObjectStore]) -> None:
    records = open_records(f"sqlite:///{tmp_path}/commits.db", durability="os")
    with pytest.raises(TiltyardError, match="overwrites"):
        Table._open(replace(open_access(uri), store=overwriting(open_access(uri).store))).append(numbers(0))

    def work(first: int) -> None:
        table = Table._open(place_at(uri, records, overwriting))
        for number in range(5):
            table.append(numbers(first + number), commit=CommitOptions(race_retries=100))

    results = together(*(lambda n=n: work(n) for n in (10, 20, 30)))
    assert results == [None] * 3
    table = Table._open(place_at(uri, records, overwriting))
    assert ids(table) == ids(lance.dataset(uri)) == [1, *range(10, 15), *range(20, 25), *range(30, 35)]
    assert table.layout.versions() == [*range(1, 17)]
    assert table.check().problems == ()
    records.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_dead_writer_on_a_store_that_overwrites(uri: str, step: str, overwriting: Callable[..., ObjectStore]) -> None:
    records = MemoryRecords()
    script = Script(step, after=True)
    script_store = place_at(uri, ScriptedRecords(records, script), lambda store: ScriptedStore(overwriting(store), script))
    if step != "final name":  # it has no such call here
        with pytest.raises(Killed):
            Table._open(script_store).append(numbers(2))
    table = Table._open(place_at(uri, records, overwriting))
    assert ids(table.refresh()) == ([1, 2] if step not in ("stage", "final name") else [1])
    table.append(numbers(3))
    assert table.check().problems == ()


# ---- branches and spellings -------------------------------------------------------------------------------------------------------


def test_a_branch_has_an_account_of_its_own(uri: str) -> None:
    records = MemoryRecords()
    main = opened(uri, records)
    main.append(numbers(2))
    main.branches.create("dev")
    dev = opened(uri, records, branch="dev")
    dev.append(numbers(10))
    main.append(numbers(3))
    dev.append(numbers(11))
    assert ids(opened(uri, records)) == ids(lance.dataset(uri)) == [1, 2, 3]
    assert ids(opened(uri, records, branch="dev")) == [1, 2, 10, 11]
    keys = {key.rpartition("/")[0] for key, _ in records.scan(["manifest/"])}
    assert len(keys) == 2
    script = Script("claim", after=True)
    place = place_at(uri, ScriptedRecords(records, script), lambda store: ScriptedStore(store, script))
    with pytest.raises(Killed):
        Table._open(place, branch="dev").append(numbers(12))
    assert ids(opened(uri, records)) == [1, 2, 3]
    assert ids(opened(uri, records, branch="dev")) == [1, 2, 10, 11, 12]


@pytest.mark.parametrize("spelling", ["file://{}", "{}/", "{}//", "relative", "{}/../table"])
def test_two_spellings_are_one_table(uri: str, spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = MemoryRecords()
    monkeypatch.chdir(Path(uri).parent)
    other = "table" if spelling == "relative" else spelling.format(uri)
    with pytest.raises(Killed):
        scripted(uri, records, Script("claim", after=True)).append(numbers(2))
    assert ids(opened(other, records)) == [1, 2]
    opened(other, records).append(numbers(3))
    assert ids(opened(uri, records)) == [1, 2, 3]
    assert len({key.rpartition("/")[0] for key, _ in records.scan(["manifest/"])}) == 1


@pytest.mark.parametrize("spelling", ["s3://bucket/table", "s3://bucket/table/", "s3a://bucket/table"])
def test_spellings_of_a_far_table_are_one_too(spelling: str) -> None:
    records = MemoryRecords()
    outside = decided_in(records, system_runtime())
    store, _ = outside(spelling, open_access("/nowhere").store)
    ledger: Any = store.ledger  # type: ignore[attr-defined]
    ledger.claim(VersionClaim(1, "_versions/1.manifest", "x"), b"")
    assert [key for key, _ in records.scan(["manifest/"])] == [f"manifest/s3%3A%2F%2Fbucket%2Ftable/{1:020d}"]


# ---- through the front door -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def commit_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/commits.db"
        return
    with fresh_database(request.getfixturevalue("postgres_url")) as url:
        yield url


def test_a_table_with_a_commit_store(tmp_path: Path, commit_store: str) -> None:
    uri = tmp_path / "t"
    table = Table.create(uri, numbers(1), storage=Storage(commit_store=commit_store, durability="os"))
    table.append(numbers(2))
    with pytest.raises(AlreadyExists):
        Table.create(uri, numbers(1), storage=Storage(commit_store=commit_store, durability="os"))

    def work(first: int) -> None:
        here = Table.open(uri, storage=Storage(commit_store=commit_store, durability="os"))
        for number in range(4):
            here.append(numbers(first + number))

    assert together(*(lambda n=n: work(n) for n in (10, 20, 30))) == [None] * 3
    table.refresh().delete("id = 1")
    assert ids(table) == ids(lance.dataset(str(uri))) == [2, *range(10, 14), *range(20, 24), *range(30, 34)]
    assert ids(Table.open(uri, version=1, storage=Storage(commit_store=commit_store))) == [1]
    assert ids(Table.open(uri)) == ids(table), "without the store it is a table like any other"
    assert table.check().problems == ()
    with pytest.raises(InvalidInput, match="exclude each other"):
        Table.open(uri, storage=Storage(commit_store=commit_store, handler="rename"))
    from tiltyard.catalog import commit_store as room

    for key in [key for key in room._open if key[0] == commit_store]:
        room._open.pop(key).close()


def test_the_password_of_a_commit_store_is_told_to_nobody(tmp_path: Path) -> None:
    secret = "pl4nted-password"
    with pytest.raises(TiltyardError) as caught:
        Table.create(tmp_path / "t", numbers(1), storage=Storage(commit_store=f"postgresql://ann:{secret}@127.0.0.1:9/x?connect_timeout=1"))
    assert secret not in str(caught.value) + repr(caught.value.to_dict())
    assert not list(tmp_path.rglob("*.manifest"))
    with pytest.raises(TiltyardError) as caught:
        Table.open(tmp_path / "t", storage=Storage(commit_store=f"nosuch://ann:{secret}@host/x"))
    assert secret not in str(caught.value) + repr(caught.value.to_dict())


def test_one_at_a_time_never_lets_two_win(uri: str, tmp_path: Path) -> None:
    """Two writers meet at the claim of one number."""
    records = open_records(f"sqlite:///{tmp_path}/commits.db", durability="os")
    barrier = threading.Barrier(2)

    class Meeting(WrappedRecords):
        met = False

        def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
            if not self.met:
                self.met = True
                barrier.wait(30)
            return super().transact(exclusive, shared, decide)

    tables = [opened(uri, Meeting(records)) for _ in range(2)]
    results = together(*(lambda t=t, n=n: t.append(pa.table({"id": [n]})) for n, t in enumerate(tables, 2)))
    assert sorted(one.version for one in results) == [2, 3]
    assert sorted(one.attempts for one in results) == [1, 2]
    assert ids(opened(uri, records)) == [1, 2, 3]
    records.close()

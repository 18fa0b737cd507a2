"""Writers that meet on one real table, ours and stock ones, driven by hand to the moments that matter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import HANDLERS, copy_of, files_below, handle, ids_of, is_version, make_template, place_at, rows
from tests.support.tables import open_stock
from tiltyard.errors import ContentionError, HistoryUnavailable, IncompatibleConflict, RetryableConflict, TiltyardError
from tiltyard.storage.local import LocalStore
from tiltyard.testing import CountingStore, PausingStore, WrapperStore
from tiltyard.testing.stores import Request, T
from tiltyard.transaction.race import CommitResult


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template") / "table")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return copy_of(template, tmp_path / "table")


class MeetingStore(WrapperStore):
    """Holds the first create of a version until all others have come to theirs: the barrier at the decisive step."""

    def __init__(self, inner: LocalStore, barrier: threading.Barrier) -> None:
        super().__init__(inner)
        self._barrier: threading.Barrier | None = barrier

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        barrier, due = self._barrier, is_version(method, path)
        if due and barrier is not None:
            self._barrier = None
            barrier.wait(30)
        return request(self.inner)


@pytest.mark.parametrize("writers", [2, 4])
@pytest.mark.parametrize("handler", ["conditional-put", "rename"])
def test_writers_meet_at_the_create(root: Path, handler: str, writers: int) -> None:
    """Exactly one wins each version; the others are carried over and land."""
    barrier = threading.Barrier(writers)
    tables = [handle(root, MeetingStore(LocalStore(root, durability="os"), barrier), handler=handler) for _ in range(writers)]
    with ThreadPoolExecutor(writers) as pool:
        results = list(pool.map(lambda pair: pair[1].append(rows(1000 + pair[0])), enumerate(tables)))
    assert sorted(result.version for result in results) == list(range(3, 3 + writers))
    assert [result.attempts for result in results].count(1) == 1
    last = max(results, key=lambda result: result.version)
    assert [winner.version for winner in last.rebased_over] == list(range(3, 2 + writers))
    table = ty.Table.open(root)
    assert ids_of(table) == [0, 1, 2, 3, *(1000 + number for number in range(writers))]
    assert table.check().problems == ()
    open_stock(str(root)).validate()


def test_two_writers_under_the_same_lock(root: Path) -> None:
    """The second one waits outside; it then finds the version taken."""
    with ThreadPoolExecutor(2) as pool:
        waits = [PausingStore(LocalStore(root, durability="os"), is_version) for _ in range(1)]
        first = handle(root, waits[0], handler="lock")
        second = handle(root, handler="lock")
        one = pool.submit(first.append, rows(10))
        waits[0].wait_until_reached()
        two = pool.submit(second.append, rows(20))
        waits[0].resume.set()
        versions = sorted([one.result(30).version, two.result(30).version])
    assert versions == [3, 4]
    assert ids_of(ty.Table.open(root)) == [0, 1, 2, 3, 10, 20]


def _paused(root: Path, work: Callable[[ty.Table], CommitResult], meanwhile: Callable[[], Any], **options: Any) -> CommitResult:
    """Our commit, stopped right before it creates its version, and what happens meanwhile."""
    store = PausingStore(LocalStore(root, durability="os"), is_version)
    table = handle(root, store, **options)
    with ThreadPoolExecutor(1) as pool:
        future: Future[CommitResult] = pool.submit(work, table)
        store.wait_until_reached()
        try:
            meanwhile()
        finally:
            store.resume.set()
        return future.result(30)


def _stock_append(root: Path, *ids: int) -> None:
    lance.write_dataset(rows(*ids), str(root), mode="append")


@pytest.mark.parametrize("handler", HANDLERS)
def test_stock_writer_takes_the_version_first(root: Path, handler: str) -> None:
    result = _paused(root, lambda table: table.append(rows(10)), lambda: _stock_append(root, 20), handler=handler)
    assert (result.version, result.attempts) == (4, 2)
    assert result.rebased_over[0].writer == "lance 14.0.2"
    assert ids_of(ty.Table.open(root)) == [0, 1, 2, 3, 10, 20]
    open_stock(str(root)).validate()


def test_stock_writer_is_carried_over_ours(root: Path) -> None:
    stale = open_stock(str(root))
    ty.Table.open(root).append(rows(10))
    lance.write_dataset(rows(20), stale, mode="append")
    assert ids_of(ty.Table.open(root)) == [0, 1, 2, 3, 10, 20]
    assert ty.Table.open(root).check().problems == ()


STOCK_COMMITS: dict[str, tuple[Callable[[Any], Any], list[int] | type[TiltyardError]]] = {
    "append": (lambda stock: lance.write_dataset(rows(20), stock, mode="append"), [0, 1, 2, 3, 10, 20]),
    "delete": (lambda stock: stock.delete("id = 1"), [0, 2, 3, 10]),
    "delete a fragment": (lambda stock: stock.delete("id = 3"), [0, 1, 2, 10]),
    "update": (lambda stock: stock.update({"id": "id + 50"}, where="id = 2"), [0, 1, 3, 10, 52]),
    "upsert": (
        lambda stock: stock.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(3, 60)),
        [0, 1, 2, 3, 10, 60],
    ),
    "index": (lambda stock: stock.create_scalar_index("id", "BTREE"), [0, 1, 2, 3, 10]),
    "compact": (lambda stock: stock.optimize.compact_files(), [0, 1, 2, 3, 10]),
    "config": (lambda stock: stock.update_config({"k": "v"}), [0, 1, 2, 3, 10]),
    "add a column": (lambda stock: stock.add_columns({"twice": "id * 2"}), [0, 1, 2, 3, 10]),
    "drop a column": (lambda stock: stock.drop_columns(["s"]), [0, 1, 2, 3, 10]),
    "rename a column": (lambda stock: stock.alter_columns({"path": "s", "name": "text"}), [0, 1, 2, 3, 10]),
    "forbid nulls": (lambda stock: stock.alter_columns({"path": "s", "nullable": False}), RetryableConflict),
    "overwrite": (lambda stock: lance.write_dataset(rows(7), stock, mode="overwrite"), IncompatibleConflict),
    "restore": (lambda stock: lance.dataset(stock.uri, version=1).restore(), IncompatibleConflict),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("moment", ["before", "racing"])
@pytest.mark.parametrize("name", STOCK_COMMITS)
def test_our_append_meets_what_stock_commits(root: Path, name: str, moment: str) -> None:
    commit, expected = STOCK_COMMITS[name]

    def meanwhile() -> None:
        commit(open_stock(str(root)))

    def run() -> CommitResult:
        if moment == "racing":
            return _paused(root, lambda table: table.append(rows(10), commit=ty.CommitOptions(reexecutions=0)), meanwhile)
        stale = handle(root)
        meanwhile()
        return stale.append(rows(10), commit=ty.CommitOptions(reexecutions=0))

    if isinstance(expected, list):
        result = run()
        assert result.read_version == 2
        table = ty.Table.open(root)
        assert ids_of(table) == expected
        assert table.version == result.version
    else:
        with pytest.raises(expected):
            run()
        assert 10 not in ids_of(ty.Table.open(root))
    table = ty.Table.open(root)
    report = table.check()
    assert report.problems == ()
    assert not any(path.startswith("data/") for path in report.orphans)
    if table.schema.names == ["id", "s"]:
        before = ids_of(table)
        _stock_append(root, 999)
        assert ids_of(table.refresh()) == [*before, 999]
    else:
        assert name in ("add a column", "drop a column", "rename a column")
    open_stock(str(root)).validate()


@pytest.mark.parametrize("name", [name for name in STOCK_COMMITS if name != "overwrite"])
def test_our_overwrite_meets_what_stock_commits(root: Path, name: str) -> None:
    """It replaces whatever came in between; only another overwrite stops it."""
    stale = handle(root)
    STOCK_COMMITS[name][0](open_stock(str(root)))
    result = stale.overwrite(rows(10))
    assert ids_of(ty.Table.open(root)) == [10]
    assert ty.Table.open(root).version == result.version
    assert ty.Table.open(root).check().problems == ()
    _stock_append(root, 11)
    assert ids_of(ty.Table.open(root)) == [10, 11]


def test_two_overwrites(root: Path) -> None:
    stale = handle(root)
    ty.Table.open(root).overwrite(rows(20), message="mine first")
    with pytest.raises(RetryableConflict) as caught:
        stale.overwrite(rows(10), commit=ty.CommitOptions(reexecutions=0))
    assert caught.value.winners[0].message == "mine first"
    assert ids_of(ty.Table.open(root)) == [20]
    assert ty.Table.open(root).check().orphans == ()
    stale.refresh().overwrite(rows(10))
    assert ids_of(ty.Table.open(root)) == [10]


def test_a_column_that_took_over_an_id(root: Path) -> None:
    """Stock writers give a dropped column's id out again; rows of ours for the old column must not turn up in the new one."""
    stock = open_stock(str(root))
    stock.add_columns({"x": "id + 100"})
    stale = handle(root)
    stock = open_stock(str(root))
    stock.drop_columns(["x"])
    stock = open_stock(str(root))
    stock.add_columns({"y": "id + 7000"})
    taken = {field.name(): field.id() for field in open_stock(str(root)).lance_schema.fields()}
    assert taken["y"] == 2, "the id was not given out again, so this test shows nothing"
    mine = pa.table({"id": pa.array([10], pa.int64()), "s": ["ten"], "x": pa.array([5], pa.int64())})
    with pytest.raises(RetryableConflict):
        stale.append(mine, commit=ty.CommitOptions(reexecutions=0))
    assert open_stock(str(root)).to_table(filter="id = 10").num_rows == 0


def test_cleanup_between_read_and_commit(root: Path) -> None:
    """The lesson of a stale writer whose window was cleaned: refuse, so that nothing is doubled or lost."""
    stale = handle(root)
    for number in range(3):
        _stock_append(root, 20 + number)
    open_stock(str(root)).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    before = ids_of(ty.Table.open(root))
    for verb in (stale.append, stale.overwrite):
        with pytest.raises(HistoryUnavailable):
            verb(rows(10))
    table = ty.Table.open(root)
    assert ids_of(table) == before
    table.append(rows(10))
    assert ids_of(table) == sorted([*before, 10])


def test_a_writer_paused_across_a_cleanup(root: Path) -> None:
    def meanwhile() -> None:
        for number in range(3):
            _stock_append(root, 20 + number)
        open_stock(str(root)).cleanup_old_versions(older_than=timedelta(0))

    try:
        _paused(root, lambda table: table.append(rows(10)), meanwhile)
    except TiltyardError:
        assert 10 not in ids_of(ty.Table.open(root))
    else:
        assert 10 in ids_of(ty.Table.open(root))


def test_data_files_are_written_once_however_often_the_race_is_run(root: Path) -> None:
    class Contested(CountingStore):
        def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
            if is_version(method, path):
                handle(root).append(rows(1000 + self.total))
                written.append(files_below(root, "data"))
            return super()._call(method, path, request, data=data)

    written: list[set[str]] = []
    before = files_below(root, "data")
    table = handle(root, Contested(LocalStore(root, durability="os")))
    with pytest.raises(ContentionError):
        table.append(rows(10), commit=ty.CommitOptions(race_retries=3))
    # One file of ours and one of theirs at the first try, and then only theirs.
    assert [len(files - before) for files in written] == [2, 3, 4, 5]
    assert len(files_below(root, "data") - before) == 4
    assert ty.Table.open(root).check().orphans == ()


def test_creators_meet(tmp_path: Path) -> None:
    root = tmp_path / "new"
    barrier = threading.Barrier(3)

    def create(number: int) -> ty.Table | TiltyardError:

        place = place_at(root, MeetingStore(LocalStore(root, durability="os"), barrier))
        try:
            return ty.Table._create(place, rows(number))
        except TiltyardError as error:
            return error

    with ThreadPoolExecutor(3) as pool:
        ends = list(pool.map(create, range(3)))
    assert sum(isinstance(end, ty.Table) for end in ends) == 1
    assert sum(isinstance(end, ty.errors.AlreadyExists) for end in ends) == 2
    (won,) = [number for number, end in enumerate(ends) if isinstance(end, ty.Table)]
    table = ty.Table.open(root)
    assert ids_of(table) == [won]
    report = table.check()
    assert (report.problems, report.orphans) == ((), ())


def test_a_table_made_by_stock_while_ours_is_being_made(tmp_path: Path) -> None:
    root = tmp_path / "new"

    class Late(WrapperStore):
        armed = True

        def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
            answer = request(self.inner)
            if method == "names" and self.armed:  # right after we saw that there is none
                self.armed = False
                lance.write_dataset(rows(1), str(root))
            return answer

    with pytest.raises(ty.errors.AlreadyExists):
        ty.Table._create(place_at(root, Late(LocalStore(root, durability="os"))), rows(2))
    table = ty.Table.open(root)
    assert ids_of(table) == [1]
    assert table.check().orphans == ()

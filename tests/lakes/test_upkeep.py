"""Cleaning up a lake: what stays is whole and readable, what goes goes entirely, and whoever was at work is served or told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

from tests.support.lakes import (
    InterposedRecords,
    LosingRecords,
    Site,
    add_to_both,
    both,
    ids,
    numbers,
    stock,
    stores_through,
    through,
    two_tables,
)
from tiltyard.errors import ConflictError, HistoryUnavailable, InvalidInput, NotFound, StorageError, TiltyardError
from tiltyard.interfaces import ObjectStore
from tiltyard.lake import Lake
from tiltyard.lakes.cleanup.lake_cleanup import LakeCleanupReport
from tiltyard.testing import PausingStore
from tiltyard.verbs.outcome import Committed, NotCommitted

NOBODY_ELSE = timedelta(0)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    """A lake of the quickest kind."""
    here = Site("sqlite", str(tmp_path / "lake"), tmp_path / "lake", {"catalog": "sqlite"})
    yield here
    here.close()


def contents(lake: Lake, at: Any = None) -> dict[str, list[int]]:
    shot = lake.snapshot(at)
    return {name: ids(shot.table(name)) for name in shot.tables()}


def all_contents(lake: Lake) -> dict[int, dict[str, list[int]]]:
    return {step.id: contents(lake, step.id) for step in lake.history()}


def assert_whole(lake: Lake) -> None:
    """All that is there can be read, by us and by pylance."""
    all_contents(lake)
    for name in lake.tables():
        report = lake.table(name).check()
        assert report.ok, report.problems
        assert ids(stock(lake, name)) == ids(lake.table(name))


def assert_nothing_left_over(site: Site, lake: Lake) -> None:
    """Every file belongs to a table of the lake, and to a version of it."""
    assert site.files("_tiltyard/staged/") == set()
    assert {path for path in site.files("_versions/") if "/d" in path.rpartition("/_versions")[2]} == set()
    known = {head.location for head in lake.catalog.cut(lake.branch).tables.values()}
    assert {path.partition("/")[0] for path in site.files(".lance/")} <= known
    for name in lake.tables():
        assert lake.table(name).check().orphans == (), name


# ---- snapshots -------------------------------------------------------------------------------------------------------------------


def test_old_snapshots_go_with_all_that_only_they_need(site: Site, lake: Lake) -> None:
    for value in range(2, 8):
        with lake.transaction() as tx:
            add_to_both(tx, value)
    lake.table("a").compact()
    before = all_contents(lake)
    dry = lake.cleanup(keep_snapshots=3, dry_run=True)
    assert all_contents(lake) == before
    files = site.files(".lance/")
    done = lake.cleanup(keep_snapshots=3, grace=NOBODY_ELSE)
    assert (
        (dry.snapshots, dry.floors, dry.dry_run) == (done.snapshots, done.floors, True) == ({"main": (1, 2, 3, 4, 5, 6)}, {"main": 7}, True)
    )
    assert done.tables["b"].versions == (1, 2, 3, 4, 5, 6), "the newest has version 7, as has the floor"
    assert done.bytes > 0
    assert {path for path in site.files(".lance/") if "/floor/" not in path and "/digests/" not in path} < files
    other = site.open()
    assert all_contents(other) == {number: rows for number, rows in before.items() if number >= 7}
    with pytest.raises(NotFound, match="no snapshot 6"):
        other.snapshot(6)
    with pytest.raises(NotFound, match="cleaned up"):
        other.snapshot(other.history()[-1].at - timedelta(seconds=1))
    assert other.snapshot(other.history()[-1].at).id == 7
    assert_whole(other)
    assert_nothing_left_over(site, other)
    assert not other.cleanup(keep_snapshots=3).snapshots["main"]
    with other.transaction() as tx:
        add_to_both(tx, 100)
    assert contents(other) == {"a": [*range(1, 8), 100], "b": [*range(1, 8), 100]}


def test_with_no_limit_no_snapshot_goes(site: Site, lake: Lake) -> None:
    with lake.transaction() as tx:
        add_to_both(tx, 2)
        tx.table("a").append(numbers(3))
    before, files = all_contents(lake), site.files(".lance/")
    report = lake.cleanup(grace=NOBODY_ELSE)
    assert (report.snapshots, report.tables["a"].versions) == ({"main": ()}, ()), "not even the version inside the transaction"
    assert all_contents(site.open()) == before
    assert {path for path in site.files(".lance/") if "floor" not in path} == files


def test_age_and_number_both_have_to_allow_it(small: Site) -> None:
    lake = two_tables(small.open())
    for value in (2, 3, 4):
        lake.table("a").append(numbers(value))
    assert lake.cleanup(older_than=timedelta(hours=1), keep_snapshots=1).snapshots == {"main": ()}
    assert lake.cleanup(older_than=timedelta(0), keep_snapshots=3).snapshots == {"main": (1,)}
    assert lake.cleanup(older_than=timedelta(0)).snapshots == {"main": (2, 3)}, "the newest stays"
    assert [step.id for step in lake.history()] == [4]


def test_tags_and_branches_keep_what_they_need(site: Site, lake: Lake) -> None:
    lake.create_table("c", numbers(5))
    lake.tags.create("early")
    for value in (2, 3):
        with lake.transaction() as tx:
            add_to_both(tx, value)
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.table("a").append(numbers(50))
    lake.drop_table("c")
    for value in (4, 5, 6):
        with lake.transaction() as tx:
            add_to_both(tx, value)
    early, on_side = contents(lake, "early"), contents(side)
    report = lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert report.kept["main"] == {2: ("tag early",), 4: ("branch side",)}
    assert report.dropped == ()
    other = site.open()
    there = other.on_branch("side")
    assert (contents(other, "early"), contents(there)) == (early, on_side)
    assert contents(other) == {"a": [1, 2, 3, 4, 5, 6], "b": [1, 2, 3, 4, 5, 6]}
    assert [step.id for step in other.history()] == [8, 4, 2]
    there.table("b").append(numbers(51))
    assert contents(there) == {"a": [1, 2, 3, 50], "b": [1, 2, 3, 51], "c": [5]}
    assert_whole(other)
    # ... and no longer than they are there
    other.tags.delete("early")
    other.branches.delete("side")
    last = other.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert len([one for one in last.dropped if "branch lake-side-" in one]) == 2
    assert [one for one in last.dropped if one.endswith("_c.lance")]
    assert [step.id for step in other.history()] == [8]
    assert contents(other) == {"a": [1, 2, 3, 4, 5, 6], "b": [1, 2, 3, 4, 5, 6]}
    assert_whole(other)
    assert_nothing_left_over(site, other)


def test_cuts_of_the_past_are_right_however_many_snapshots_went(small: Site) -> None:
    """More snapshots than share a bucket, cleaned up at a place in the middle of one, again and again."""
    lake = two_tables(small.open())
    expected = {1: {"a": 1, "b": 1}}
    for number in range(2, 150):
        if number % 25:
            old, new = ("c", "b") if "c" in lake.tables() else ("b", "c")
            lake.rename_table(old, new)
        else:
            lake.table("a").append(numbers(number))
        expected[number] = lake.snapshot().versions()
        if number in (30, 70, 131):
            lake.tags.create(f"t{number}")
        if number in (50, 100, 140):
            lake.cleanup(keep_snapshots=20)
    report = lake.cleanup(keep_snapshots=15)
    assert report.floors == {"main": 135}
    there = {30, 70, 131, *range(135, 150)}
    for number in range(1, 150):
        if number in there:
            assert lake.snapshot(number).versions() == expected[number], number
            assert lake.snapshot(number).table("a").count_rows() == expected[number]["a"]
        else:
            with pytest.raises(NotFound):
                lake.snapshot(number)
    lake.branches.create("late", 140)
    side = lake.on_branch("late")
    side.table("a").append(numbers(0))
    assert side.cleanup(keep_snapshots=1).floors == {"main": 149, "late": 141}
    assert contents(side)["a"] == sorted([1, 25, 50, 75, 100, 125, 0])
    assert lake.snapshot(140).versions() == expected[140]


def test_nobody_names_a_snapshot_that_is_about_to_go(small: Site) -> None:
    lake = two_tables(small.open())
    for value in (2, 3, 4):
        lake.table("a").append(numbers(value))
    other = small.open()
    # Just before the floor is raised it can be named, and then it stays ...
    through(lake, lambda inner: InterposedRecords(inner, lambda: other.tags.create("in-time", 2), match="cut/main/floor"))
    report = lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert report.kept["main"] == {2: ("tag in-time",)}
    assert contents(other, "in-time") == {"a": [1, 2], "b": [1]}


def test_a_name_that_comes_after_the_floor_is_refused(small: Site) -> None:
    lake = two_tables(small.open())
    for value in (2, 3, 4):
        lake.table("a").append(numbers(value))
    other = small.open()
    seen: list[str] = []
    calls: list[int] = []

    def name_it() -> None:
        calls.append(1)
        if len(calls) == 1:
            return  # the floor is raised with this one; with the next it is settled
        for make in (other.tags.create, other.branches.create):
            try:
                make("late", 2)
            except NotFound as error:
                seen.append(str(error))

    through(lake, lambda inner: InterposedRecords(inner, name_it, times=2, match="cut/main/floor"))
    report = lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert seen == ["Snapshot 2 was cleaned up. See lake.history()."] * 2
    assert (report.kept["main"], other.tags.list(), other.branches.list()) == ({}, [], [])


def test_the_beginning_of_a_branch_can_be_named(small: Site) -> None:
    lake = two_tables(small.open())
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.tags.create("fork")
    side.table("a").append(numbers(2))
    lake.table("a").append(numbers(3))
    lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert (contents(lake, "fork"), contents(side)) == ({"a": [1], "b": [1]}, {"a": [1, 2], "b": [1]})
    assert lake.check().problems == ()


def test_arguments_are_checked(small: Site) -> None:
    lake = small.open()
    for wrong in (
        {"keep_snapshots": 0},
        {"keep_snapshots": True},
        {"older_than": timedelta(-1)},
        {"older_than": 3},
        {"grace": timedelta(-1)},
    ):
        with pytest.raises(InvalidInput):
            lake.cleanup(**wrong)


# ---- transactions at work --------------------------------------------------------------------------------------------------------


def test_a_transaction_at_work_is_left_alone(site: Site, lake: Lake) -> None:
    working = site.open().transaction()
    add_to_both(working, 2)
    assert ids(working.table("a").lance) == [1, 2], "so that there is a detached version, too"
    made = working.create_table("new", numbers(9))
    made.append(numbers(10))
    report = lake.cleanup(keep_snapshots=1)
    assert [one.transaction for one in report.held] == [working.id]
    assert report.transactions == ()
    assert (ids(working.table("a").lance), ids(made)) == ([1, 2], [9, 10])
    working.table("b").delete("id = 1")
    working.commit()
    assert contents(lake) == {"a": [1, 2], "b": [2], "new": [9, 10]}
    assert_whole(lake)


def test_one_that_was_given_up_is_never_committed_and_leaves_nothing(site: Site, lake: Lake) -> None:
    silent = site.open().transaction()
    add_to_both(silent, 2)
    silent.table("a").update({"id": "id + 10"}, where="id = 1")
    assert ids(silent.table("a").lance) == [2, 11]
    silent.create_table("new", numbers(9)).append(numbers(10))
    report = lake.cleanup(grace=NOBODY_ELSE)
    assert [one.transaction for one in report.transactions] == [silent.id]
    assert [one for one in report.dropped if one.endswith("_new.lance")] == list(report.dropped)
    assert_nothing_left_over(site, lake)
    with pytest.raises(ConflictError, match="took it for dead") as caught:
        silent.commit()
    assert caught.value.retryable
    assert isinstance(lake.outcome(silent.id), NotCommitted)
    assert contents(site.open()) == {"a": [1], "b": [1]}
    assert_whole(lake)
    lake.run(lambda tx: add_to_both(tx, 3))
    assert both(lake) == ([1, 3], [1, 3])


@pytest.mark.parametrize("grace", [timedelta(days=1), NOBODY_ELSE])
def test_a_single_verb_that_is_held_up_at_the_catalog(site: Site, lake: Lake, grace: timedelta) -> None:
    """Its version is staged, its claim about to be made."""
    cleaner = site.open()
    reports: list[LakeCleanupReport] = []
    through(lake, lambda inner: InterposedRecords(inner, lambda: reports.append(cleaner.cleanup(keep_snapshots=1, grace=grace))))
    if grace:
        lake.table("a").append(numbers(2))
        assert len(reports[0].held) == 1
        assert contents(cleaner)["a"] == [1, 2]
    else:
        with pytest.raises(StorageError, match="aborted by a cleanup"):
            lake.table("a").append(numbers(2))
        assert len(reports[0].transactions) == 1
        assert contents(cleaner)["a"] == [1]
        cleaner.cleanup(grace=NOBODY_ELSE)
        assert_nothing_left_over(site, cleaner)
    assert_whole(cleaner)


@pytest.mark.parametrize(
    "call", [("put", "_tiltyard/staged/"), ("put", "_transactions/"), ("put_if_absent", "_versions/"), ("delete", "_tiltyard/staged/")]
)
def test_a_cleanup_while_a_transaction_is_held_up_in_the_store(small: Site, call: tuple[str, str]) -> None:
    method, prefix = call
    lake = two_tables(small.open())
    held: list[PausingStore] = []

    def pausing(store: ObjectStore) -> ObjectStore:
        if "_a.lance" not in store.uri:
            return store
        first = lambda one, path: one == method and path.startswith(prefix) and not any(other.reached.is_set() for other in held)  # noqa: E731
        held.append(PausingStore(store, first))
        return held[-1]

    failed: list[BaseException] = []

    def work() -> None:
        try:
            with stores_through(pausing), lake.transaction() as tx:
                add_to_both(tx, 2)
                tx.table("a").delete("id = 1")
        except TiltyardError as error:
            failed.append(error)

    writer = threading.Thread(target=work)
    writer.start()
    while not (reached := [one for one in held if one.reached.is_set()]):
        writer.join(0.01)
        assert writer.is_alive(), failed
    cleaner = Lake.open(small.uri, catalog="sqlite")
    cleaner.cleanup(keep_snapshots=1)
    reached[0].resume.set()
    writer.join(60)
    assert not failed
    assert both(cleaner) == ([2], [1, 2])
    # One that was about to give a version its name may do so after it was cleaned up. Nobody needs that version, and the next cleanup
    # takes it again.
    cleaner.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert_whole(cleaner)
    assert_nothing_left_over(small, cleaner)


def test_a_committed_transaction_that_was_never_finished_is_finished_not_swept(site: Site, lake: Lake) -> None:
    writer = site.open()
    tx = add_to_both(writer.transaction(), 2)

    class DeadError(BaseException):
        pass

    losing = through(writer, LosingRecords)
    losing.raises = DeadError
    losing.lose(1, "after")
    with pytest.raises(DeadError):
        tx.commit()
    cleaner = site.open(create=False)
    cleaner.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert isinstance(cleaner.outcome(tx.id), Committed)
    assert both(cleaner) == ([1, 2], [1, 2])
    assert_whole(cleaner)
    assert_nothing_left_over(site, cleaner)


def test_a_transaction_on_what_went_is_refused(site: Site, lake: Lake) -> None:
    late = site.open().transaction()
    late.table("a").append(numbers(9))
    for value in (2, 3):
        lake.table("a").append(numbers(value))
    lake.cleanup(keep_snapshots=1)
    with pytest.raises(HistoryUnavailable):
        late.commit()
    fresh = site.open().transaction()
    fresh.table("b").append(numbers(9))
    lake.table("a").append(numbers(4))
    lake.cleanup(keep_snapshots=1)
    fresh.commit()
    assert both(lake) == ([1, 2, 3, 4], [1, 9])


def test_a_table_that_is_being_made_is_refused_when_its_directory_was_given_up(site: Site, lake: Lake) -> None:
    maker, cleaner = site.open(), site.open()
    through(maker, lambda inner: InterposedRecords(inner, lambda: cleaner.cleanup(grace=NOBODY_ELSE)))
    with pytest.raises(ConflictError):
        maker.create_table("new", numbers(1))
    assert cleaner.tables() == ["a", "b"]
    cleaner.cleanup(grace=NOBODY_ELSE)
    assert_nothing_left_over(site, cleaner)
    maker.create_table("new", numbers(1))
    assert contents(cleaner)["new"] == [1]


def test_detached_versions_of_dead_transactions_go_and_those_of_others_stay(small: Site) -> None:
    lake = two_tables(small.open())
    tx = lake.transaction()
    tx.table("a").append(numbers(2))
    assert ids(tx.table("a").lance) == [1, 2]
    uri = lake.table("a").uri
    for staged in Path(uri, "_tiltyard/staged").rglob("*.manifest"):
        staged.unlink()  # as when a process dies while it cleans up behind itself
    theirs = lance.LanceDataset.commit(
        uri, lance.LanceOperation.Append(lance.fragment.write_fragments(numbers(7), uri)), read_version=1, detached=True
    )
    lake.cleanup(grace=NOBODY_ELSE)
    left = [path.name for path in Path(uri, "_versions").iterdir() if path.name.startswith("d")]
    assert left == [f"d{theirs.version}.manifest"]
    assert ids(lance.dataset(uri, version=theirs.version)) == [1, 7]


# ---- tables that are gone --------------------------------------------------------------------------------------------------------


def test_a_dropped_table_stays_as_long_as_a_snapshot_shows_it(site: Site, lake: Lake) -> None:
    lake.table("b").append(numbers(2))
    lake.drop_table("b")
    lake.create_table("b", numbers(77))
    lake.cleanup(keep_snapshots=3, grace=NOBODY_ELSE)
    assert contents(lake, 2) == {"a": [1], "b": [1, 2]}
    assert len(lake.cleanup(keep_snapshots=2, grace=NOBODY_ELSE).dropped) == 1
    assert contents(site.open()) == {"a": [1], "b": [77]}
    assert_whole(lake)
    assert_nothing_left_over(site, lake)


def test_a_registered_table_is_its_owners(small: Site, tmp_path: Path) -> None:
    lake = two_tables(small.open())
    lance.write_dataset(numbers(1), tmp_path / "mine")
    lake.register_table("mine", tmp_path / "mine").append(numbers(2))
    lake.drop_table("mine")
    lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert ids(lance.dataset(tmp_path / "mine")) == [1, 2]
    lake.register_table("mine", tmp_path / "mine")
    assert contents(lake)["mine"] == [1, 2]


def test_what_is_not_a_tables_directory_is_not_touched(small: Site) -> None:
    lake = two_tables(small.open())
    assert small.root is not None
    for name in ("notes.txt", "mine.lance/data/x.lance", "0123456789ab_x.txt/y"):
        path = small.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert {"notes.txt", "mine.lance/data/x.lance", "0123456789ab_x.txt/y"} <= small.files()


def test_a_table_that_cannot_be_read_keeps_nobody_from_the_others(small: Site) -> None:
    lake = two_tables(small.open())
    for value in (2, 3):
        with lake.transaction() as tx:
            add_to_both(tx, value)
    for manifest in Path(lake.table("a").uri, "_versions").iterdir():
        manifest.write_bytes(b"nothing")
    report = lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert ([*report.skipped], report.tables["b"].versions) == (["a"], (1, 2))
    assert report.to_dict()["skipped"]["a"]


# ---- dying on the way ------------------------------------------------------------------------------------------------------------


class DiedError(BaseException):
    pass


def _eventful(lake: Lake) -> None:
    """A lake with something of everything to clean up."""
    two_tables(lake)
    lake.create_table("c", numbers(5))
    lake.tags.create("early")
    lake.branches.create("side")
    lake.on_branch("side").table("a").append(numbers(50))
    lake.branches.delete("side")
    lake.create_table("d", numbers(6))
    lake.drop_table("d")
    for value in (2, 3):
        with lake.transaction() as tx:
            add_to_both(tx, value)
    dead = lake.transaction()
    add_to_both(dead, 9)
    dead.create_table("never", numbers(1))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_cleanup_that_dies_at_the_catalog_is_ended_by_the_next(tmp_path: Path, when: Any) -> None:
    step = 0
    while True:
        step += 1
        here = Site("sqlite", str(tmp_path / f"lake{step}"), tmp_path / f"lake{step}", {"catalog": "sqlite"})
        lake = here.open()
        _eventful(lake)
        now, early = contents(lake), contents(lake, "early")
        losing = through(lake, LosingRecords)
        losing.raises = DiedError
        losing.lose(step, when)
        try:
            lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
        except DiedError:
            pass
        other = here.open()
        assert (contents(other), contents(other, "early")) == (now, early), f"died {when} step {step}"
        other.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
        assert (contents(other), contents(other, "early")) == (now, early)
        assert [one.id for one in other.history()] == [6, 2]
        assert_whole(other)
        assert_nothing_left_over(here, other)
        here.close()
        if not losing.fired:
            break
    assert step > 8, "there were so many steps to die at"


def test_a_cleanup_that_dies_at_any_deletion_is_ended_by_the_next(tmp_path: Path) -> None:
    died = 0
    for number in range(0, 60, 7):
        here = Site("sqlite", str(tmp_path / f"lake{number}"), tmp_path / f"lake{number}", {"catalog": "sqlite"})
        lake = here.open()
        _eventful(lake)
        now, early = contents(lake), contents(lake, "early")
        left = [number]
        with stores_through(lambda store, left=left: _dying(store, left)):  # type: ignore[misc]
            try:
                lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
            except DiedError:
                died += 1
        other = here.open()
        assert (contents(other), contents(other, "early")) == (now, early), f"died at deletion {number}"
        other.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
        assert (contents(other), contents(other, "early")) == (now, early)
        assert_whole(other)
        assert_nothing_left_over(here, other)
        here.close()
    assert died > 3


def _dying(store: ObjectStore, left: list[int]) -> ObjectStore:
    from tiltyard.testing.stores import WrapperStore

    class Dying(WrapperStore):
        def delete(self, path: str) -> None:
            if left[0] == 0:
                raise DiedError
            left[0] -= 1
            super().delete(path)

    return Dying(store)


def test_two_cleanups_at_once(small: Site) -> None:
    lake = small.open()
    _eventful(lake)
    now = contents(lake)
    works = [threading.Thread(target=small.open().cleanup, kwargs={"keep_snapshots": 1, "grace": NOBODY_ELSE}) for _ in range(2)]
    for work in works:
        work.start()
    for work in works:
        work.join(120)
    lake.cleanup(keep_snapshots=1, grace=NOBODY_ELSE)
    assert contents(lake) == now
    assert_whole(lake)
    assert_nothing_left_over(small, lake)


def test_the_report_as_a_document(small: Site) -> None:
    lake = small.open()
    _eventful(lake)
    told = lake.cleanup(keep_snapshots=1, dry_run=True, grace=NOBODY_ELSE).to_dict()
    assert (told["dry_run"], told["floors"], told["snapshots"]["main"]) == (True, {"main": 6}, (1, 3, 4, 5))
    assert told["kept"] == {"main": {"2": ["tag early"]}}
    assert len(told["transactions"]) == 1
    seen: list[tuple[int, int]] = []
    lake.cleanup(keep_snapshots=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]

"""Cleanup beside writers, beside itself, and dying at every call it makes."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, files_below, handle, ids_of, is_version, rows
from tests.support.races import PATIENCE
from tests.support.tables import open_stock
from tiltyard.errors import ContentionError, HistoryUnavailable, IncompatibleConflict, NotFound, OutcomeUnknown, StorageError
from tiltyard.format.names import manifest_path
from tiltyard.storage.local import LocalStore
from tiltyard.testing import Fault, FaultStore, Killed
from tiltyard.testing.stores import Match, Request, T
from tiltyard.verbs.cleanup.cleanup_plan import AWAITED

KEEP = 2


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five versions; the first fragments and a vector are named by old ones alone."""
    root = tmp_path_factory.mktemp("cleanup") / "table"
    table = ty.Table.create(root, rows(1, 2, 3), durability="os")
    table.delete("id = 2")
    table.overwrite(rows(10, 11))
    table.append(rows(12))
    table.append(rows(13))
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "table"))


def _open(root: Path, version: int | None = None) -> ty.Table:
    return ty.Table.open(root, version=version, durability="os")


def _sound(root: Path, expected: list[int]) -> None:
    report = _open(root).check()
    assert report.problems == ()
    assert ids_of(_open(root)) == expected
    stock = open_stock(str(root))
    assert sorted(stock.to_table(columns=["id"])["id"].to_pylist()) == expected
    stock.validate()


def _settled(root: Path, expected: list[int]) -> None:
    """A second cleanup leaves nothing but what versions name; without a grace, so that nothing is left to foreign writers that stall."""
    _open(root).cleanup(keep_versions=KEEP, grace=timedelta(0))
    report = _open(root).check()
    assert (report.problems, report.orphans) == ((), ())
    assert len(files_below(root, "_tiltyard/floor")) == 1
    _sound(root, expected)


def _calls(method: str, part: str) -> Match:
    return lambda asked, path: asked == method and part in path


# ---- dying -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.TORN_WRITE], ids=lambda one: one.value
)
def test_a_cleanup_that_fails_at_any_call_leaves_a_table_and_nothing_that_a_second_one_misses(
    fault: Fault, template: Path, tmp_path: Path
) -> None:
    visited = 0
    for at in range(1, 200):
        root = Path(shutil.copytree(template, tmp_path / f"{at}"))
        store = FaultStore(LocalStore(root, durability="os"), fault, at)
        try:
            handle(root, store).cleanup(keep_versions=KEEP)
        except (Killed, StorageError):
            assert store.fired
        if not store.fired:
            break
        visited += 1
        versions = _open(root).layout.versions()
        assert versions == list(range(versions[0], 6)), f"{store.where}: a newer one went before an older one"
        assert ids_of(_open(root)) == [10, 11, 12, 13]
        _open(root).cleanup(keep_versions=KEEP)
        report = _open(root).check()
        assert (report.problems, report.orphans) == ((), ()), store.where
        assert _open(root).layout.versions() == [4, 5]
        shutil.rmtree(root)
    assert visited > (1 if fault is Fault.TORN_WRITE else 8)
    _sound(root, [10, 11, 12, 13])


def test_the_record_comes_before_the_first_deletion_and_versions_before_files(root: Path) -> None:
    seen: list[str] = []

    def note(method: str, path: str) -> bool:
        if method in ("put", "delete"):
            seen.append(path.partition("/")[0])
        return False

    handle(root, InterruptedStore(LocalStore(root), note, lambda: None)).cleanup(keep_versions=KEEP)
    order = list(dict.fromkeys(seen))
    assert order[:2] == ["_tiltyard", "_versions"]
    assert seen.count("_versions") == 3
    assert seen[-1] == "_tiltyard"


# ---- beside writers ----------------------------------------------------------------------------------------------------------


def _append(root: Path) -> list[int]:
    _open(root).append(rows(20))
    return [10, 11, 12, 13, 20]


def _delete(root: Path) -> list[int]:
    _open(root).delete("id = 12")
    return [10, 11, 13]


def _compact(root: Path) -> list[int]:
    _open(root).compact()
    return [10, 11, 12, 13]


def _stock(root: Path) -> list[int]:
    stock = open_stock(str(root))
    stock.delete("id = 10")
    return [11, 12, 13]


def _cleanup(root: Path) -> list[int]:
    _open(root).cleanup(keep_versions=1)
    return [10, 11, 12, 13]


MOMENTS: dict[str, Match] = {
    "before it looks": _calls("list", "data/"),
    "while it looks": _calls("names", "_versions/"),
    "before the record": _calls("put", "_tiltyard/floor/"),
    "before a version goes": _calls("delete", "_versions/"),
    "before a file goes": _calls("delete", "data/"),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("other", [_append, _delete, _compact, _stock, _cleanup], ids=lambda one: one.__name__.strip("_"))
def test_what_others_do_at_any_moment_stays(root: Path, other: Callable[[Path], list[int]], moment: str) -> None:
    expected: list[int] = []
    store = InterruptedStore(LocalStore(root, durability="os"), MOMENTS[moment], lambda: expected.extend(other(root)))
    handle(root, store).cleanup(keep_versions=KEEP)
    assert expected, "nobody came"
    _sound(root, expected)
    _settled(root, expected)


def test_files_that_came_while_it_looked_go_with_their_versions(root: Path) -> None:
    """Others commit so fast that a version comes and may go again between two listings."""

    def others() -> None:
        for number in (20, 21, 22):
            _open(root).overwrite(rows(number))

    store = InterruptedStore(LocalStore(root), _calls("list", "_versions/"), others)
    assert handle(root, store).cleanup(keep_versions=1).versions == (1, 2, 3, 4, 6, 7), "but for the one the handle is at"
    assert _open(root, 5).check().orphans == ()
    _settled(root, [22])


def test_what_an_announced_transaction_held_goes_as_soon_as_that_is_over(root: Path) -> None:
    """A delete names whole fragments, also ones of a version that goes; when it was refused, they are nobody's."""
    held: list[set[str]] = []

    def others() -> None:
        _open(root).overwrite(rows(20))
        held.append({one.reason for one in _open(root).cleanup(keep_versions=1).held})

    stale = handle(root, InterruptedStore(LocalStore(root), is_version, others))
    with pytest.raises(IncompatibleConflict):
        stale.delete("id = 10")
    assert held == [{AWAITED}]
    assert [one.kind for one in _open(root).cleanup().removed] == ["data"]
    assert _open(root).check().orphans == ()


@pytest.mark.parametrize("moment", ["before the create", "before the transaction"])
def test_a_cleanup_while_somebody_commits_takes_nothing_of_his(root: Path, moment: str) -> None:
    match = is_version if moment == "before the create" else _calls("put", "_transactions/")
    store = InterruptedStore(LocalStore(root), match, lambda: _open(root).cleanup(keep_versions=1))
    assert handle(root, store).append(rows(20)).version == 6
    _sound(root, [10, 11, 12, 13, 20])


def test_a_late_create_that_was_not_undone_is_removed_by_the_next_cleanup(root: Path) -> None:
    """Its writer died right after; the version it took had been somebody else's."""

    class _Died(BaseException):
        pass

    def others() -> None:
        for number in (20, 21, 22):
            _open(root).append(rows(number))
        _open(root).cleanup(keep_versions=1)

    def die(method: str, path: str) -> bool:
        return store.late and method in ("names", "get", "head", "list")

    class _Store(InterruptedStore):
        late = False

        def _call(self, method, path, request, *, data=None):  # type: ignore[no-untyped-def]
            if die(method, path):
                raise _Died
            answer = super()._call(method, path, request, data=data)
            if is_version(method, path):
                self.late = True
            return answer

    store = _Store(LocalStore(root), is_version, others)
    with pytest.raises(_Died):
        handle(root, store).append(rows(99))
    assert _open(root).layout.versions() == [6, 8]
    _settled(root, [10, 11, 12, 13, 20, 21, 22])
    assert _open(root).layout.versions() == [8]


class _Followed(InterruptedStore):
    """Does something else right after the create as well."""

    def __init__(self, root: Path, before: Callable[[], object], after: Callable[[], object]) -> None:
        super().__init__(LocalStore(root), is_version, before)
        self._after = after

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        answer = super()._call(method, path, request, data=data)
        if is_version(method, path):
            self._after()
        return answer


@pytest.mark.parametrize("first", ["ours", "stock"])
def test_a_late_version_that_is_cleaned_up_before_its_writer_looks_is_not_taken_for_one_in_time(root: Path, first: str) -> None:
    def others() -> None:
        for number in (20, 21, 22):
            _open(root).append(rows(number))
        if first == "ours":
            _open(root).cleanup(keep_versions=1)
        else:
            open_stock(str(root)).cleanup_old_versions(older_than=timedelta(0))

    late = handle(root, _Followed(root, others, lambda: _open(root).cleanup(keep_versions=1)))
    with pytest.raises(HistoryUnavailable if first == "ours" else OutcomeUnknown):
        late.append(rows(99))
    _sound(root, [10, 11, 12, 13, 20, 21, 22])


def test_a_version_in_time_that_is_cleaned_up_before_its_writer_looks_is_acknowledged(root: Path) -> None:
    def others() -> None:
        _open(root).overwrite(rows(20))
        _open(root).append(rows(21))
        _open(root).cleanup(keep_versions=1)

    late = handle(root, _Followed(root, lambda: None, others))
    made = late.append(rows(99))
    assert made.version == 6
    assert _open(root).transactions.outcome(made.transaction_id) == ty.outcomes.Committed(6)
    _sound(root, [20, 21])


@pytest.mark.parametrize("how", ["before it announces", "after it announced"])
def test_a_restore_is_refused_or_keeps_its_files(root: Path, how: str) -> None:
    """It names files of a version that a cleanup is about to take."""
    match = _calls("put", "_transactions/") if how == "before it announces" else is_version
    store = InterruptedStore(LocalStore(root), match, lambda: _open(root).cleanup(keep_versions=1))
    stale = handle(root, store)
    if how == "before it announces":
        with pytest.raises((HistoryUnavailable, NotFound)):
            stale.commit(ty.ops.Restore(2))
        _sound(root, [10, 11, 12, 13])
    else:
        stale.commit(ty.ops.Restore(2))
        _sound(root, [1, 3])


def test_a_restore_that_comes_while_versions_go_keeps_their_files(root: Path) -> None:
    restored: list[int] = []
    store = InterruptedStore(
        LocalStore(root), _calls("delete", "_versions/"), lambda: restored.append(_open(root).commit(ty.ops.Restore(2)).version)
    )
    handle(root, store).cleanup(keep_versions=1)
    assert restored == [6]
    _sound(root, [1, 3])


def test_a_restore_that_is_announced_while_versions_go_and_commits_when_all_is_over(root: Path) -> None:
    announced, over = threading.Event(), threading.Event()

    def wait() -> None:
        announced.set()
        assert over.wait(PATIENCE)

    restoring = handle(root, InterruptedStore(LocalStore(root), is_version, wait))
    with ThreadPoolExecutor(1) as pool:

        def announce() -> None:
            running.append(pool.submit(restoring.commit, ty.ops.Restore(2)))
            assert announced.wait(PATIENCE)

        running: list[Future[ty.CommitResult]] = []
        cleaning = handle(root, InterruptedStore(LocalStore(root), _calls("delete", "_versions/"), announce))
        try:
            held = cleaning.cleanup(keep_versions=1).held
        finally:
            over.set()
        assert running[0].result(PATIENCE).version == 6
    assert {one.reason for one in held} == {AWAITED}
    _sound(root, [1, 3])
    _settled(root, [1, 3])


@pytest.mark.parametrize("ref", ["tag", "branch"])
def test_a_tag_or_branch_that_comes_before_the_record_keeps_its_version(root: Path, ref: str) -> None:
    def refer() -> None:
        table = _open(root)
        if ref == "tag":
            table.tags.create("kept", 2)
        else:
            table.branches.create("kept", 2)

    store = InterruptedStore(LocalStore(root), _calls("put", "_tiltyard/floor/"), refer)
    report = handle(root, store).cleanup(keep_versions=KEEP)
    assert report.versions == (1, 3)
    assert report.kept[2] == (f"{ref} kept",)
    assert ids_of(_open(root, 2)) == [1, 3]
    _settled(root, [10, 11, 12, 13])


@pytest.mark.parametrize("ref", ["tag", "branch"])
def test_one_that_comes_after_the_record_is_refused(root: Path, ref: str) -> None:
    refused: list[str] = []

    def refer() -> None:
        table = _open(root)
        try:
            if ref == "tag":
                table.tags.create("late", 2)
            else:
                table.branches.create("late", 2)
        except NotFound as error:
            refused.append(str(error))

    store = InterruptedStore(LocalStore(root), _calls("delete", "_versions/"), refer)
    assert handle(root, store).cleanup(keep_versions=KEEP).versions == (1, 2, 3)
    assert len(refused) == 1
    assert not _open(root).tags
    assert not _open(root).branches


@pytest.mark.parametrize("times", [1, 3, 1000])
def test_others_who_remove_the_newest_version_while_it_is_looked_for(root: Path, times: int) -> None:
    """Files of old age that it named are named by the next one as well, which has to be read first."""
    for path in (root / "data").iterdir():
        os.utime(path, (0, 0))
    number = iter(range(20, 2000))

    def others() -> None:
        for _ in range(2):
            _open(root).append(rows(next(number)))
        newest = handle(root)
        for version in newest.layout.versions()[:-1]:
            (root / manifest_path(version, newest._scheme)).unlink()

    class _Reads(InterruptedStore):
        def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
            newest = max((root / "_versions").glob("*.manifest"), key=lambda one: -int(one.stem)).name
            if self._left and method == "get" and path.endswith(newest):
                self._left -= 1
                others()
            return request(self.inner)

    cleaner = handle(root, _Reads(LocalStore(root), is_version, others, times))
    if times == 1000:
        with pytest.raises(ContentionError):
            cleaner.cleanup(keep_versions=1)
    else:
        cleaner.cleanup(keep_versions=1)
    _sound(root, [10, 11, 12, 13, *range(20, next(number))])


def test_two_cleanups_with_different_ideas(root: Path) -> None:
    store = InterruptedStore(LocalStore(root), _calls("delete", "_versions/"), lambda: _open(root).cleanup(keep_versions=1))
    handle(root, store).cleanup(keep_versions=4)
    assert _open(root).layout.versions() == [5]
    assert _open(root).cleanup(older_than=timedelta(days=1)).floor == 5
    _sound(root, [10, 11, 12, 13])

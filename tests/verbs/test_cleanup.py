"""Old versions and leftovers go; what anybody needs stays; and nobody who was late gets to write over it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import (
    InterruptedStore,
    append,
    files_below,
    handle,
    ids_of,
    is_version,
    memory_place,
    memory_table,
    reopened,
    rows,
)
from tests.support.tables import open_stock
from tiltyard.errors import HistoryUnavailable, InvalidInput, NotFound
from tiltyard.format.names import manifest_path
from tiltyard.interfaces import Runtime
from tiltyard.storage.local import LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import ManualClock, SeededRandomness
from tiltyard.transaction.head import Floor, read_floor, read_records
from tiltyard.verbs.cleanup.cleanup_plan import BEGUN, OLD, REFUSED, REPLACED, YOUNG
from tiltyard.verbs.cleanup.foreign_writers import LEFT_TO_FOREIGN

NOTHING = timedelta(0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six versions: three appends, a delete, an update and an overwrite of all."""
    table = ty.Table.create(tmp_path / "table", rows(1, 2), durability="os")
    table.append(rows(3))
    table.append(rows(4))
    table.delete("id = 2")
    table.update({"s": "'new'"}, where="id = 3")
    table.overwrite(rows(10, 11))
    return tmp_path / "table"


def _open(root: Path, **options: Any) -> ty.Table:
    return ty.Table.open(root, durability="os", **options)


def _later(root: Path, **passed: float) -> ty.Table:
    """A handle whose clock is ahead by so much: files have the time of the machine."""
    return handle(root, runtime=Runtime(ManualClock(datetime.now(UTC) + timedelta(**passed)), SeededRandomness(1)))


def _sound(root: Path, *, orphans: tuple[str, ...] = ()) -> None:
    report = _open(root).check()
    assert report.problems == ()
    assert report.orphans == orphans
    open_stock(str(root)).validate()


# ---- which versions ----------------------------------------------------------------------------------------------------------


def test_without_a_policy_no_version_goes(root: Path) -> None:
    report = _open(root).cleanup()
    assert (report.versions, report.removed, report.floor) == ((), (), 1)
    assert _open(root).layout.versions() == [1, 2, 3, 4, 5, 6]
    assert files_below(root, "_tiltyard/floor") == set()


def test_the_newest_stay_and_files_of_the_others_go(root: Path) -> None:
    assert len(files_below(root, "data")) == 5
    report = _open(root).cleanup(keep_versions=1)
    assert report.versions == (1, 2, 3, 4, 5)
    assert report.floor == 6
    assert report.files == {"versions": 5, "data": 4, "deletions": 1, "transactions": 5}
    assert report.kept == {6: ("this handle is at it", "the latest")}
    assert len(files_below(root, "data")) == 1
    assert files_below(root, "_deletions") == set()
    assert ids_of(_open(root)) == [10, 11]
    _sound(root)
    assert open_stock(str(root)).to_table()["id"].to_pylist() == [10, 11]


def test_a_file_that_a_version_shares_with_one_that_goes_stays(root: Path) -> None:
    report = _open(root).cleanup(keep_versions=2)
    assert report.versions == (1, 2, 3, 4)
    assert report.files == {"versions": 4, "data": 1, "transactions": 4}, "version 5 still names the rest"
    assert ids_of(_open(root, version=5)) == [1, 3, 4]
    _sound(root)


def test_by_age(root: Path) -> None:
    table = _later(root, days=10)
    assert table.cleanup(older_than=timedelta(days=11)).versions == ()
    table.append(rows(12))
    report = table.cleanup(older_than=timedelta(days=9))
    assert report.versions == (1, 2, 3, 4, 5, 6)
    assert _open(root).layout.versions() == [7]
    assert ids_of(_open(root)) == [10, 11, 12]


def test_both_must_allow_it(root: Path) -> None:
    table = _later(root, days=10)
    assert table.cleanup(older_than=timedelta(days=1), keep_versions=4).versions == (1, 2)
    assert table.cleanup(older_than=timedelta(days=20), keep_versions=1).versions == ()


def test_tags_branches_and_asked_for_versions_stay(root: Path) -> None:
    table = _open(root)
    table.tags.create("good", 2)
    table.branches.create("try", 4)
    reader = _open(root, version=1)
    report = reader.cleanup(keep_versions=1, keep=[3])
    assert report.versions == (5,)
    assert report.kept == {
        1: ("this handle is at it",),
        2: ("tag good",),
        3: ("asked to keep",),
        4: ("branch try",),
        6: ("the latest",),
    }
    assert ids_of(reader) == [1, 2]
    assert ids_of(_open(root, version="good")) == [1, 2, 3]
    assert ids_of(_open(root, branch="try")) == [1, 3, 4]
    _sound(root)
    assert table.cleanup().versions == (1, 3), "that lasted for one cleanup"


def test_a_branch_is_cleaned_by_itself_and_keeps_what_it_shares(root: Path) -> None:
    table = _open(root)
    table.branches.create("try", 3)
    branch = _open(root, branch="try")
    branch.append(rows(20))
    branch.append(rows(21))
    assert branch.cleanup(keep_versions=1).versions == (3, 4)
    table.cleanup(keep_versions=1)
    assert table.layout.versions() == [3, 6]
    assert ids_of(_open(root, branch="try")) == [1, 2, 3, 4, 20, 21]
    assert ids_of(_open(root)) == [10, 11]
    assert _open(root, branch="try").check().problems == ()


def test_a_branch_whose_fork_point_is_lost_keeps_its_files(root: Path) -> None:
    table = _open(root)
    table.branches.create("try", 3)
    (root / manifest_path(3, table._scheme)).unlink()
    table.cleanup(keep_versions=1, grace=NOTHING)
    assert ids_of(_open(root, branch="try")) == [1, 2, 3, 4]


def test_a_dry_run_says_the_same_and_does_nothing(root: Path) -> None:
    before = sorted(path for path in root.rglob("*") if path.is_file())
    dry = _open(root).cleanup(keep_versions=1, dry_run=True)
    assert sorted(path for path in root.rglob("*") if path.is_file()) == before
    done = _open(root).cleanup(keep_versions=1)
    assert dry.to_dict() == {**done.to_dict(), "dry_run": True}
    assert done.to_dict()["bytes"] == sum(one.bytes for one in done.removed) > 0
    left = {path for path in root.rglob("*") if path.is_file()}
    assert {str(path.relative_to(root)) for path in set(before) - left} == {one.path for one in done.removed}


def test_progress_counts_to_the_end(root: Path) -> None:
    told: list[tuple[int, int]] = []
    report = _open(root).cleanup(keep_versions=1, progress=lambda done, total: told.append((done, total)))
    assert told == [(number + 1, len(report.removed)) for number in range(len(report.removed))]


@pytest.mark.parametrize(
    "wrong",
    [
        {"older_than": 3},
        {"older_than": -timedelta(1)},
        {"keep_versions": 0},
        {"keep_versions": True},
        {"keep": ["a"]},
        {"grace": -timedelta(1)},
    ],
)
def test_wrong_arguments_are_refused(root: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        _open(root).cleanup(**wrong)
    assert caught.value.argument == next(iter(wrong))


def test_v1_names_and_stock_tables_are_cleaned_alike(tmp_path: Path) -> None:
    uri = str(tmp_path / "stock")
    for number in range(4):
        lance.write_dataset(rows(number), uri, mode="append" if number else "create", enable_v2_manifest_paths=False)
    stock: Any = lance.dataset(uri)
    stock.create_scalar_index("id", "BTREE")
    stock.optimize.optimize_indices()
    stock.optimize.compact_files()
    table = _open(tmp_path / "stock")
    table.cleanup(keep_versions=1, older_than=NOTHING)
    assert table.layout.versions() == [table.version]
    _sound(tmp_path / "stock")
    assert open_stock(uri).to_table(filter="id = 2")["id"].to_pylist() == [2]
    assert len(files_below(tmp_path / "stock", "data")) == 1
    lance.write_dataset(rows(9), uri, mode="append")
    assert ids_of(_open(tmp_path / "stock")) == [0, 1, 2, 3, 9]


def test_versions_beside_the_line_of_history_stay(root: Path) -> None:
    stock = open_stock(str(root), 5)
    fragments = [one.metadata for one in stock.get_fragments() if one.metadata.deletion_file is None]
    detached = lance.LanceDataset.commit(str(root), lance.LanceOperation.Append(fragments[:1]), read_version=5, detached=True)
    rows_there = detached.count_rows()
    _open(root).cleanup(keep_versions=1, grace=NOTHING)
    assert lance.dataset(str(root), version=detached.version).to_table().num_rows == rows_there


# ---- leftovers ---------------------------------------------------------------------------------------------------------------


def _orphan(root: Path, name: str, days: float = 0) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left over")
    moment = datetime.now(UTC).timestamp() - days * 86400
    os.utime(path, (moment, moment))
    return path


ORPHANS = ("data/dead.lance", "data/dead/0.blob", "_deletions/0-1-7.bin", "_indices/11111111-2222-3333-4444-555555555555/index.idx")


def test_files_that_no_version_names_go_when_they_are_old(root: Path) -> None:
    paths = [_orphan(root, name, days=8) for name in ORPHANS]
    report = _open(root).cleanup()
    assert {(one.path, one.reason) for one in report.removed} == {(name, OLD) for name in ORPHANS}
    assert not any(path.exists() for path in paths)
    _sound(root)


def test_younger_ones_may_be_somebodys_and_are_held(root: Path) -> None:
    paths = [_orphan(root, name, days=6) for name in ORPHANS]
    report = _open(root).cleanup(keep_versions=1)
    assert {(one.path, one.reason) for one in report.held} == {(name, YOUNG) for name in ORPHANS}
    assert all(path.exists() for path in paths)
    assert _open(root).cleanup(grace=NOTHING).files == {"data": 1, "blobs": 1, "deletions": 1, "indices": 1}
    _sound(root)


def test_the_youngest_file_of_an_index_counts_for_all(root: Path) -> None:
    directory = "_indices/11111111-2222-3333-4444-555555555555/"
    _orphan(root, directory + "first.idx", days=9)
    _orphan(root, directory + "second.idx", days=1)
    assert len(_open(root).cleanup().held) == 2


def test_what_it_does_not_know_it_leaves(root: Path) -> None:
    paths = [_orphan(root, name, days=99) for name in ("data/readme.txt", "_tiltyard/probe.json", "_mem_wal/x/y", "notes", "_versions/x")]
    _open(root).cleanup(keep_versions=1, grace=NOTHING)
    assert all(path.exists() for path in paths)


class _Crash(BaseException):
    pass


def _crashed(root: Path) -> set[str]:
    """An append that dies right before its create: its data and its transaction stay. Returns what it left."""
    before = set(_open(root).check().orphans)

    def crash() -> None:
        raise _Crash

    with pytest.raises(_Crash):
        handle(root, InterruptedStore(LocalStore(root), is_version, crash)).append(rows(99))
    left = set(_open(root).check().orphans) - before
    assert {path.partition("/")[0] for path in left} == {"data", "_transactions"}
    return left


def test_a_crashed_attempt_is_told_by_its_transaction_long_before_the_time_of_grace(root: Path) -> None:
    """Once the version it read is gone for long, its writer would be refused: so it is nobody's."""
    left = _crashed(root)
    _open(root).append(rows(12))
    for hours, expected in ((0, False), (2, False), (4, True)):
        report = _later(root, hours=hours).cleanup(keep_versions=1)
        gone = {one.path for one in report.removed if one.reason == REFUSED}
        assert gone == (left if expected else set()), f"after {hours} hours"
    assert read_floor(LocalStore(root)) == Floor(7, 7)
    _sound(root)


def test_an_attempt_on_a_version_that_is_there_is_waited_for(root: Path) -> None:
    left = _crashed(root)
    for hours in (0, 2, 4, 24):
        assert {one.path for one in _later(root, hours=hours).cleanup(keep_versions=1).held} == left
    assert {one.path for one in _later(root, days=8).cleanup().removed} == left


def test_what_a_commit_was_carried_away_from_goes_at_once(root: Path) -> None:
    """Its transaction is in the history under another name."""
    table = _open(root)
    made = table.delete("id = 10")
    stale = f"_transactions/3-{made.transaction_id}.txn"
    text = (root / "_transactions" / f"6-{made.transaction_id}.txn").read_bytes()
    (root / stale).write_bytes(ty.Transaction(3, made.transaction_id, ty.Transaction.from_bytes(text).operation).to_bytes())
    report = table.cleanup()
    assert [(one.path, one.reason) for one in report.removed] == [(stale, REPLACED)]
    _sound(root)


def test_a_transaction_that_is_no_transaction_counts_by_its_age(root: Path) -> None:
    name = "_transactions/3-11111111-2222-3333-4444-555555555555.txn"
    _orphan(root, name, days=1)
    assert [one.reason for one in _open(root).cleanup().held] == [YOUNG]
    _orphan(root, name, days=8)
    assert [one.reason for one in _open(root).cleanup().removed] == [OLD]


def test_many_files_go_several_at_a_time(root: Path) -> None:
    paths = [_orphan(root, f"data/dead{number}.lance", days=8) for number in range(40)]
    told: list[tuple[int, int]] = []
    assert _open(root).cleanup(progress=lambda done, total: told.append((done, total))).files == {"data": 40}
    assert not any(path.exists() for path in paths)
    assert told == [(number, 40) for number in range(1, 41)]


# ---- the floor ---------------------------------------------------------------------------------------------------------------


def test_stock_pylance_neither_minds_the_record_nor_cleans_it(root: Path) -> None:
    table = _open(root)
    table.cleanup(keep_versions=2)
    (record,) = files_below(root, "_tiltyard/floor")
    stock = open_stock(str(root))
    lance.write_dataset(rows(12), str(root), mode="append")
    stock = open_stock(str(root))
    stock.cleanup_old_versions(older_than=NOTHING, delete_unverified=True)
    assert files_below(root, "_tiltyard/floor") == {record}
    assert ids_of(_open(root)) == [10, 11, 12]
    assert read_floor(LocalStore(root)).version == 5


def test_the_floor_rises_and_one_record_remains(root: Path) -> None:
    table = _open(root)
    for keep in (3, 2, 3, 1):
        table.cleanup(keep_versions=keep)
    assert read_floor(LocalStore(root)).version == 6
    assert len(files_below(root, "_tiltyard/floor")) == 1


def test_who_had_a_number_is_recorded_only_if_that_is_certain(root: Path) -> None:
    """A version that the next one does not stand on, or that has no next one, may be a late writer's."""
    table = _open(root)
    table.cleanup(keep_versions=1)
    for number in (21, 22):
        table.append(rows(number))
    (root / manifest_path(7, table._scheme)).unlink()
    table.cleanup(keep_versions=1)
    (record,) = read_records(LocalStore(root)).values()
    assert sorted(record.removed) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"removed": 3}'])
def test_a_damaged_record_still_says_its_floor(root: Path, damage: bytes) -> None:
    table = _open(root)
    table.cleanup(keep_versions=2)
    (record,) = files_below(root, "_tiltyard/floor")
    (root / "_tiltyard" / "floor" / record).write_bytes(damage)
    assert table.append(rows(12)).version == 7
    assert table.cleanup().floor == 5
    assert table.cleanup(keep_versions=1).versions == (5, 6)
    _sound(root)


def test_records_of_a_table_that_was_here_before_mean_nothing(root: Path) -> None:
    table = _open(root)
    table.cleanup(keep_versions=1, grace=NOTHING)
    kept = {path.name: path.read_bytes() for path in (root / "_tiltyard" / "floor").iterdir()}
    lance.LanceDataset.drop(str(root), {}) if hasattr(lance.LanceDataset, "drop") else None
    for path in sorted(root.rglob("*"), reverse=True) if root.exists() else ():
        path.unlink() if path.is_file() else path.rmdir()
    again = ty.Table.create(root, rows(1), durability="os")
    (root / "_tiltyard" / "floor").mkdir(parents=True)
    for name, text in kept.items():
        (root / "_tiltyard" / "floor" / name).write_bytes(text)
    assert again.append(rows(2)).version == 2
    assert _open(root).cleanup(keep_versions=1).versions == (1,)
    assert ids_of(_open(root)) == [1, 2]


def test_a_tag_on_a_version_that_was_given_up_is_refused(root: Path) -> None:
    """The cleanup may be on its way to it and have looked for tags already."""
    table = _open(root)
    table.tags.create("first", 3)
    _open(root, version=2).cleanup(keep_versions=1)
    with pytest.raises(NotFound, match="being removed by a cleanup"):
        table.tags.create("late", 2)
    assert set(table.tags) == {"first"}
    table.tags.create("second", 3)


def test_a_store_that_lists_in_order_is_cleaned_alike() -> None:
    store = MemoryStore()
    table = memory_table(store)
    for number in range(2, 6):
        table.commit(append(f"v{number}"))
    assert table.cleanup(keep_versions=2).versions == (1, 2, 3)
    assert read_floor(store).version == 4
    assert [one.rpartition("/")[2] for one in store.names("_transactions/")] == [
        f"{version - 1}-{table.transactions.describe(version).transaction_id}.txn" for version in (4, 5)
    ]

    def others() -> None:
        for name in ("a", "b"):
            reopened(store).commit(append(name))
        reopened(store).cleanup(keep_versions=1)

    late = ty.Table._open(memory_place(InterruptedStore(store, is_version, others)))
    with pytest.raises(HistoryUnavailable):
        late.commit(append("late"))
    assert reopened(store).layout.versions() == [7]


# ---- lessons from the field --------------------------------------------------------------------------------------------------


def _meanwhile(root: Path, cleanup: str) -> None:
    for number in (21, 22, 23):
        _open(root).append(rows(number))
    if cleanup == "ours":
        _open(root).cleanup(keep_versions=1)
    else:
        open_stock(str(root)).cleanup_old_versions(older_than=NOTHING)


def test_lance_3718_stock_pylance_writes_under_a_number_that_was_cleaned_up(root: Path) -> None:
    """A writer that stalls before its create is told that it succeeded, and its row is nowhere."""

    @contextmanager
    def stalled(version: int) -> Iterator[None]:
        # Of a thread of its own: pylance's own one waits for us.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_meanwhile, root, "stock").result()
        yield

    made = lance.write_dataset(rows(99), str(root), mode="append", commit_lock=stalled)
    assert made.version == 7
    assert ids_of(_open(root)) == [10, 11, 21, 22, 23], "99 is lost"


@pytest.mark.parametrize("stalled_once", [False, True])
def test_lance_3718_our_cleanup_by_number_leaves_stock_writers_the_numbers_of_the_last_hour(root: Path, stalled_once: bool) -> None:
    """A stock writer that stalls before its create meets the version that took its number, and goes over it."""
    stalls = iter([True])

    @contextmanager
    def stalled(version: int) -> Iterator[None]:
        if next(stalls, False):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(_meanwhile, root, "ours").result()
        yield

    if stalled_once:  # one that has committed before; otherwise nothing but its transaction file tells of it
        lance.write_dataset(rows(20), str(root), mode="append")
    lance.write_dataset(rows(99), str(root), mode="append", commit_lock=stalled)
    assert ids_of(_open(root)) == [10, 11, *([20] if stalled_once else []), 21, 22, 23, 99]
    _sound(root)


def test_versions_are_left_to_foreign_writers_for_an_hour(root: Path) -> None:
    lance.write_dataset(rows(20), str(root), mode="append")
    for number in (21, 22):
        _open(root).append(rows(number))
    report = _open(root).cleanup(keep_versions=1)
    assert report.versions == ()
    assert report.floor == 1
    assert report.kept[7] == (LEFT_TO_FOREIGN, "the policy")
    assert _later(root, minutes=59).cleanup(keep_versions=1, dry_run=True).versions == ()
    assert _later(root, minutes=61).cleanup(keep_versions=1, dry_run=True).versions == tuple(range(1, 9))


@pytest.mark.parametrize(
    "how", [{"grace": NOTHING, "keep_versions": 1}, {"older_than": NOTHING, "keep_versions": 1}, {"older_than": NOTHING}]
)
def test_whoever_says_how_long_writers_may_stall_is_believed(root: Path, how: dict[str, Any]) -> None:
    lance.write_dataset(rows(20), str(root), mode="append")
    assert _open(root).cleanup(**how).versions == tuple(range(1, 7))


@pytest.mark.parametrize("cleanup", ["ours", "stock"])
def test_lance_3718_a_stalled_writer_of_ours_is_refused(root: Path, cleanup: str) -> None:
    stalled = handle(root, InterruptedStore(LocalStore(root), is_version, lambda: _meanwhile(root, cleanup)))
    with pytest.raises(HistoryUnavailable) as caught:
        stalled.append(rows(99))
    assert (caught.value.missing, caught.value.head) == ((7,), 9)
    assert _open(root).layout.versions() == [9]
    assert ids_of(_open(root)) == [10, 11, 21, 22, 23]
    _sound(root)


def _three_more(root: Path) -> None:
    table = _open(root)
    table.update({"s": "'theirs'"}, where="id = 10")
    table.append(rows(12))
    table.cleanup(keep_versions=1)


def test_lance_3719_stock_pylance_doubles_the_row_of_a_stale_update(root: Path) -> None:
    stale = open_stock(str(root))
    _three_more(root)
    stale.update({"s": "'ours'"}, where="id = 10")
    assert ids_of(_open(root)) == [10, 10, 11, 12]


def test_lance_3719_stock_pylance_misses_the_row_of_a_stale_delete(root: Path) -> None:
    stale = open_stock(str(root))
    _three_more(root)
    stale.delete("id = 10")
    assert ids_of(_open(root)) == [10, 11, 12], "as if nothing had been asked"


@pytest.mark.parametrize("verb", ["update", "delete", "append", "compact", "overwrite", "merge", "add"])
def test_lance_3719_a_stale_handle_of_ours_is_refused(root: Path, verb: str) -> None:
    stale = _open(root)
    stale.append(rows(13))
    _three_more(root)
    assert _open(root).layout.versions() == [9]
    before = _open(root).to_arrow()
    verbs = {
        "update": lambda: stale.update({"s": "'ours'"}, where="id = 10"),
        "delete": lambda: stale.delete("id = 10"),
        "append": lambda: stale.append(rows(30)),
        "compact": lambda: stale.compact(),
        "overwrite": lambda: stale.overwrite(rows(40)),
        "merge": lambda: stale.merge(rows(10), "id").when_matched_update_all().execute(),
        "add": lambda: stale.add_columns({"y": "id + 1"}),
    }
    with pytest.raises(HistoryUnavailable) as caught:
        verbs[verb]()
    assert (caught.value.missing, caught.value.head) == ((7,), 9)
    assert _open(root).to_arrow() == before
    assert _open(root).check().problems == ()
    stale.refresh()
    assert stale.append(pa.table({"id": pa.array([31], pa.int64()), "s": ["x"]})).version == 10


def test_what_became_of_a_transaction_is_known_after_its_version_went(root: Path) -> None:
    table = _open(root)
    made = table.append(rows(12))
    _open(root).append(rows(13))
    _open(root).cleanup(keep_versions=1)
    other = "11111111-2222-3333-4444-555555555555"
    assert table.transactions.outcome(made.transaction_id) == ty.outcomes.Committed(7)
    assert isinstance(table.transactions.outcome(other, version=7), ty.outcomes.NotCommitted)
    assert isinstance(table.transactions.outcome(other), ty.outcomes.Unknown)


def test_leftovers_of_a_cleanup_that_was_interrupted_are_known_as_such(root: Path) -> None:
    def crash() -> None:
        raise _Crash

    def on_data(method: str, path: str) -> bool:
        return method == "delete" and path.startswith("data/")

    with pytest.raises(_Crash):
        handle(root, InterruptedStore(LocalStore(root), on_data, crash)).cleanup(keep_versions=1)
    assert _open(root).layout.versions() == [6]
    report = _open(root).cleanup()
    assert {one.reason for one in report.removed} == {BEGUN}
    assert report.files["data"] == 4
    _sound(root)
    assert _open(root).cleanup().removed == ()

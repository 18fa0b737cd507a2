"""The steps of one attempt, watched call by call: what is flushed, named and created in which order, and what each step looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyroaring import BitMap

import tiltyard as ty
from tests.support.commits import (
    FIELDS,
    InterruptedStore,
    append,
    fragment,
    is_version,
    last_id,
    memory_place,
    memory_table,
    noted_runtime,
    overwrite,
    plant,
    reopened,
    version_count,
)
from tiltyard import ops
from tiltyard.errors import ConflictError, HistoryUnavailable, OutcomeUnknown, RetryableConflict, StorageError
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.values import DataFragment
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import CountingStore, ManualClock, PowerLossStore, SeededRandomness, WrapperStore
from tiltyard.testing.stores import Request, T
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.deletion_vectors import DeletionVectors
from tiltyard.transaction.log import CreatedVersion, VersionLog
from tiltyard.transaction.race import RecordedCommit
from tiltyard.transaction.row_map import KEPT, ROW_ORDER
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT


def _rows(store: ObjectStore, *rows: int, at: DataFragment, version: int = 1) -> DataFragment:
    """The fragment with these rows deleted, in a file that is there."""
    vectors = DeletionVectors(store, SeededRandomness(sum(rows)))
    return replace(at, deletion_file=vectors.write(at, vectors.of(at) | BitMap(rows), version))


def _big(store: ObjectStore) -> ty.Table:
    """Version 2 of a table whose fragment 1 has ten rows."""
    table = memory_table(store)
    table.commit(ops.Append((fragment("big", 10),)))
    return table


def _commit(table: ty.Table, operation: ops.Operation, properties: Mapping[str, str] | None = None) -> ty.CommitResult:
    """Past the low door, which would look for data files that these tables do not have."""
    transaction = Transaction(table.version, table._access.runtime.random.uuid(), operation, dict(properties or {}))
    return table._access.committer.commit(transaction, table._file, Scheme.V2, RetryPolicy())[0]


def _load(store: ObjectStore, version: int) -> CreatedVersion:
    return VersionLog(store).committed(version, Scheme.V2)


def test_what_was_made_of_all_rows_goes_over_upkeep_alone() -> None:
    store = MemoryStore()
    table = memory_table(store)
    plant(store, ops.ReserveFragments(3))

    def replaced() -> ty.CommitResult:
        mine = Transaction(table.version, table._access.runtime.random.uuid(), overwrite("mine"))
        return table._access.committer.commit(mine, table._file, Scheme.V2, RetryPolicy(), unchanged=True)[0]

    assert replaced().version == 3
    table = reopened(store)
    plant(store, append("theirs"))
    with pytest.raises(ty.ExpectedVersionMismatch, match="then came version 4") as caught:
        replaced()
    assert (caught.value.expected, caught.value.actual, caught.value.read_version) == (3, 4, 3)
    assert version_count(store) == 4
    assert not any("mine" in name for name in store.names("data/"))


# ---- the order of things -----------------------------------------------------------------------------------------------------


def test_the_transaction_is_written_and_files_are_flushed_before_the_version() -> None:
    store = MemoryStore()
    memory_table(store)
    counting = CountingStore(store)
    table = reopened(counting)
    counting.reset()
    table.commit(append())
    writes = [(method, path.partition("/")[0]) for method, path in counting.log if method in ("sync", "put", "put_if_absent", "delete")]
    assert writes == [("put", "_transactions"), ("sync", "data"), ("put_if_absent", "_versions")]


def test_the_same_for_a_new_table() -> None:
    counting = CountingStore(MemoryStore())
    memory_table(counting)
    writes = [(method, path.partition("/")[0]) for method, path in counting.log if method in ("sync", "put", "put_if_absent", "delete")]
    assert writes == [("put", "_transactions"), ("sync", "data"), ("put_if_absent", "_versions")]


@pytest.mark.parametrize("made", [True, False])
def test_one_flush_does_for_data_and_transaction_where_the_store_can(made: bool) -> None:
    """Each flush is a wait for the disk, and nothing before the version depends on which of the two is there first."""
    store = PowerLossStore()
    flushed: list[tuple[str, ...]] = []
    real = store.sync

    def sync(paths: Iterable[str]) -> None:
        wanted = tuple(paths)
        flushed.append(tuple(path.partition("/")[0] for path in wanted))
        real(wanted)

    store.sync = sync  # type: ignore[method-assign]
    store.put_unsynced("data/first.lance", b"x")
    store.put_unsynced("data/ours.lance", b"x")
    table = memory_table(store)
    if made:
        flushed.clear()
        table.commit(append())
    assert flushed == [("data", "_transactions")]


def test_files_are_flushed_once_however_often_the_race_is_run() -> None:
    store = MemoryStore()
    memory_table(store)
    counting = CountingStore(store)
    table = reopened(InterruptedStore(counting, is_version, lambda: plant(store, append(f"theirs{version_count(store)}")), 3))
    counting.reset()
    assert table.commit(append()).attempts == 4
    assert counting.calls["sync"] == 1


def test_the_files_of_an_index_that_does_not_list_them_are_found() -> None:
    store = MemoryStore()
    memory_table(store)
    index = ops.IndexMetadata("00000000-0000-4000-8000-000000000001", (0,), "id_idx", 1)
    store.put(f"_indices/{index.uuid}/page.lance", b"")
    counting = CountingStore(store)
    table = reopened(counting)
    _commit(table, ops.CreateIndex((index,)))
    assert ("sync", f"_indices/{index.uuid}/page.lance") in counting.log


def test_a_store_that_cannot_flush_commits_nothing() -> None:
    store = MemoryStore()
    first = memory_table(store)

    class Full(WrapperStore):
        def sync(self, paths: Iterable[str]) -> None:
            raise StorageError("disk full")

    with pytest.raises(StorageError, match="disk full"):
        ty.Table(memory_place(Full(store)), first._file, Scheme.V2).commit(append())
    assert version_count(store) == 1


# ---- what a step looks at ------------------------------------------------------------------------------------------------------


def test_a_restore_brings_back_the_version_it_names() -> None:
    store = MemoryStore()
    table = memory_table(store)
    table.commit(append("more"))
    plant(store, append("theirs"))
    assert table.commit(ops.Restore(1)).version == 4
    first, made = _load(store, 1).manifest, _load(store, 4).manifest
    assert list(made.fragments) == list(first.fragments)
    assert made.max_fragment_id == 2, "ids are not given out again"


def test_a_version_that_must_not_be_built_upon_is_not_restored() -> None:
    store = MemoryStore()
    table = memory_table(store)
    table.commit(append("more"))
    seen: list[int] = []
    committer = replace(table._access.committer, vet=lambda file: seen.append(file.manifest.version))
    transaction = Transaction(2, "restore", ops.Restore(1))
    committer.commit(transaction, table._file, Scheme.V2, RetryPolicy())
    assert 1 in seen


def test_a_deletion_file_of_the_window_that_is_gone_is_history_that_cannot_be_read() -> None:
    store = MemoryStore()
    table = _big(store)
    big = table.layout.fragments[1]
    mine = ops.Delete((_rows(store, 1, at=big, version=2),))
    theirs = ops.Delete((_rows(store, 5, at=big, version=2),))
    _commit(reopened(store), theirs)
    assert theirs.updated_fragments[0].deletion_file is not None
    store.delete(theirs.updated_fragments[0].deletion_file.path(1))
    with pytest.raises(HistoryUnavailable) as caught:
        _commit(table, mine)
    assert (caught.value.missing, caught.value.head) == ((3,), 3)
    assert version_count(store) == 3


def test_a_read_version_without_its_transaction_inside_is_known_by_all_it_says() -> None:
    store = MemoryStore()
    memory_table(store)
    plant(store, append("stock"), inline=False)
    table = reopened(store)
    assert table.commit(append("a")).version == 3


def test_a_read_version_without_its_transaction_inside_that_was_replaced() -> None:
    store = MemoryStore()
    memory_table(store)
    plant(store, append("stock"), inline=False)
    table = reopened(store)
    store.delete(manifest_path(2, Scheme.V2))
    plant(store, append("another"), inline=False)
    with pytest.raises(HistoryUnavailable, match="another one now"):
        table.commit(append())
    assert version_count(store) == 2


def test_the_version_read_is_confirmed_once() -> None:
    store = MemoryStore()
    memory_table(store)
    counting = CountingStore(store)
    table = reopened(InterruptedStore(counting, is_version, lambda: plant(store, append(f"theirs{version_count(store)}")), 3))
    counting.reset()
    table.commit(append())
    assert counting.calls["get_range"] == 1


def test_every_version_of_the_window_is_met_once_and_none_twice() -> None:
    store = MemoryStore()
    table = memory_table(store)
    for number in range(3):
        plant(store, append(f"theirs{number}"))
    counting = CountingStore(store)
    racing = InterruptedStore(counting, is_version, lambda: plant(store, append("later")), 1)
    result = ty.Table(memory_place(racing), table._file, Scheme.V2).commit(append())
    assert [one.version for one in result.rebased_over] == [2, 3, 4, 5]
    gets = [path for method, path in counting.log if method == "get" and path.endswith(".manifest")]
    assert sorted(set(gets)) == sorted(manifest_path(version, Scheme.V2) for version in (2, 3, 4, 5))


def test_a_version_that_was_made_from_another_one_ends_the_window() -> None:
    """A late writer put another version below it, so what was there is not to be known."""
    store = MemoryStore()
    table = memory_table(store)
    strange = Transaction(1, "strange", append("theirs"), {PARENT: "somebody"})
    plant(store, append("theirs"), raw=strange.to_bytes())
    with pytest.raises(HistoryUnavailable, match="was made from another one") as caught:
        table.commit(append())
    assert caught.value.missing == (1,)
    assert version_count(store) == 2


def test_all_columns_of_an_append_were_dropped() -> None:
    store = MemoryStore()
    table = memory_table(store)
    mine = ops.Append((replace(fragment("ours"), files=(replace(fragment("ours").files[0], fields=(1,), column_indices=(0,)),)),))
    plant(store, ops.Project(FIELDS[:1], preserves_nullability=True), fields=FIELDS[:1])
    with pytest.raises(RetryableConflict, match="all columns of the new rows were dropped"):
        table.commit(mine)


# ---- what is said of it ---------------------------------------------------------------------------------------------------------


def test_a_version_is_stamped_after_the_one_below_it() -> None:
    store = MemoryStore()
    memory_table(store)
    early = Runtime(ManualClock(datetime(2020, 1, 1, tzinfo=UTC)), SeededRandomness(1))
    late = Runtime(ManualClock(datetime(2030, 1, 1, tzinfo=UTC)), SeededRandomness(2))
    reopened(store, runtime=early).commit(append("early"))
    reopened(store, runtime=late).commit(append("late"))
    stamps = [_load(store, version).manifest.timestamp_ns for version in (1, 2, 3)]
    assert stamps[0] < stamps[1] < stamps[2]
    assert stamps[1] - stamps[0] == 1_000
    assert stamps[2] == int(datetime(2030, 1, 1, tzinfo=UTC).timestamp()) * 10**9


def test_a_delete_that_was_carried_names_the_version_it_ended_up_on_and_leaves_no_other_file() -> None:
    store = MemoryStore()
    table = _big(store)
    big = table.layout.fragments[1]
    mine = ops.Delete((_rows(store, 1, at=big, version=2),))
    replaced = mine.updated_fragments[0].deletion_file
    assert replaced is not None

    def others() -> None:
        now = reopened(store)
        _commit(now, ops.Delete((_rows(store, 4 + now.version, at=now.layout.fragments[1], version=now.version),)))

    racing = ty.Table(memory_place(InterruptedStore(store, is_version, others, 2)), table._file, Scheme.V2)
    result = _commit(racing, mine)
    assert (result.version, result.read_version, result.attempts) == (5, 2, 3)
    stored = _load(store, 5)
    assert stored.transaction.read_version == 4
    ours = [name for name in store.names("_transactions/") if result.transaction_id in name]
    assert ours == [f"4-{result.transaction_id}.txn"]
    named = {one.deletion_file.path(1) for version in (3, 4, 5) for one in _load(store, version).manifest.fragments if one.deletion_file}
    assert {"_deletions/" + name for name in store.names("_deletions/")} == named, "replaced and half-way files are gone"
    vectors = DeletionVectors(store, SeededRandomness(1))
    assert sorted(vectors.of(list(stored.manifest.fragments)[1])) == [1, 6, 7]


def test_the_transaction_file_tells_of_the_operation_as_it_was_carried() -> None:
    """A rewrite keeps the version it read, and with it the name of its file, whatever it was carried over."""
    store = MemoryStore()
    table = _big(store)
    big = table.layout.fragments[1]
    table.commit(ops.ReserveFragments(1))
    packed = replace(fragment("packed", 10), id=2)

    def others() -> None:
        _commit(reopened(store), ops.Delete((_rows(store, 5, at=big, version=3),)))

    racing = ty.Table(memory_place(InterruptedStore(store, is_version, others)), table._file, Scheme.V2)
    result = _commit(racing, ops.Rewrite((ops.RewriteGroup((big,), (packed,)),)), {ROW_ORDER: KEPT})
    assert (result.version, result.attempts) == (5, 2)
    inside = _load(store, 5).transaction
    told = Transaction.from_bytes(store.get(f"_transactions/3-{result.transaction_id}.txn"))
    assert told.operation == inside.operation
    assert isinstance(told.operation, ops.Rewrite)
    assert told.operation.groups[0].new_fragments[0].deletion_file is not None


def _doubtful(store: ObjectStore, action: Callable[[], object]) -> ObjectStore:
    class Silent(WrapperStore):
        """No answer to a create, nor to a look at what became of it."""

        asked = False

        def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
            if is_version(method, path):
                self.asked = True
                action()
            if self.asked and path.endswith(".manifest"):
                raise StorageError("no answer", maybe_applied=True)
            return request(self.inner)

    return Silent(store)


def test_while_the_outcome_is_unknown_no_file_is_deleted() -> None:
    store = MemoryStore()
    table = _big(store)
    big = table.layout.fragments[1]
    mine = ops.Delete((_rows(store, 1, at=big, version=2),))
    _commit(reopened(store), ops.Delete((_rows(store, 5, at=big, version=2),)))
    brought = set(store.names("_deletions/"))
    counting = CountingStore(store)
    doubtful = ty.Table(memory_place(_doubtful(counting, lambda: None)), table._file, Scheme.V2)
    with pytest.raises(OutcomeUnknown):
        _commit(doubtful, mine)
    assert counting.calls["delete"] == 0
    assert len(set(store.names("_deletions/")) - brought) == 1, "the merged one, which a version may name by now"
    assert any(last_id(doubtful) in name for name in store.names("_transactions/"))


def test_after_a_refusal_what_was_merged_goes_and_what_was_brought_stays() -> None:
    store = MemoryStore()
    table = _big(store)
    big = table.layout.fragments[1]
    mine = ops.Delete((_rows(store, 1, at=big, version=2),))
    _commit(reopened(store), ops.Delete((_rows(store, 5, at=big, version=2),)))
    before = set(store.names("_deletions/"))

    def same_row() -> None:
        now = reopened(store)
        _commit(now, ops.Delete((_rows(store, 1, at=now.layout.fragments[1], version=3),)))

    racing = ty.Table(memory_place(InterruptedStore(store, is_version, same_row)), table._file, Scheme.V2)
    with pytest.raises(ConflictError):
        _commit(racing, mine)
    theirs = {one.deletion_file.path(1).removeprefix("_deletions/") for one in reopened(store).layout.fragments if one.deletion_file}
    assert set(store.names("_deletions/")) == before | theirs
    assert not any(last_id(racing) in name for name in store.names("_transactions/"))


def test_seconds_are_of_the_clock_that_was_given() -> None:
    store = MemoryStore()
    runtime = noted_runtime()
    table = memory_table(store, runtime=runtime)
    assert table.commit(append()).seconds == 0.0


def test_a_commit_is_taken_down_as_it_was_made() -> None:
    """For a transaction over several tables, which may have to make it again on another version."""
    store = MemoryStore()
    table = memory_table(store)
    plant(store, append("theirs"))
    taken: list[RecordedCommit] = []
    committer = replace(table._access.committer, recorded=taken)
    mine = Transaction(table.version, table._access.runtime.random.uuid(), append("ours"))
    result, _ = committer.commit(mine, table._file, table._scheme, RetryPolicy())
    [commit] = taken
    assert (result.version, commit.read.manifest.version) == (3, 2), "on top of what it was rebased over"
    assert (commit.transaction.uuid, commit.operation) == (mine.uuid, mine.operation)
    assert PARENT not in commit.transaction.properties, "which version it stands on is not its own to say another time"
    assert any(path.startswith("_transactions/") for path in commit.files())
    assert any("ours" in path for path in commit.files())

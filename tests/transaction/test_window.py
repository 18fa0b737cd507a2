"""The window of a refused transaction: judged as a whole before anything is re-executed. And our own files, right before the commit."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.commits import append, fragment, memory_place, memory_table, overwrite, plant, reopened, version_count
from tiltyard import ops
from tiltyard.errors import HistoryUnavailable, IncompatibleConflict, NotFound, RetryableConflict, StorageError
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.storage.local import LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.storage.wrapper import Request, T, WrapperStore
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.new_files import LOOK_AFTER, check_there, is_missing
from tiltyard.transaction.race import RecordedCommit
from tiltyard.transaction.resolve import Window, forbidden
from tiltyard.transaction.transaction import Transaction

FIELDS = (ops.Field("id", 0, -1, "int64"), ops.Field("s", 1, -1, "string"), ops.Field("x", 2, -1, "int32"))
GROWN = ops.Merge((fragment("first"),), FIELDS)


def _stale(store: MemoryStore) -> Transaction:
    """What a verb would commit that lists all fragments: each append since is a retryable conflict."""
    memory_table(store)
    return Transaction(1, "ours", GROWN)


def _commit(store: MemoryStore, mine: Transaction) -> None:
    place = memory_place(store)
    place.committer.commit(mine, place.load(1, Scheme.V2), Scheme.V2, RetryPolicy())


@pytest.mark.parametrize("last", [overwrite("other"), ops.Restore(1), ops.UnknownOperation()], ids=lambda one: one.name)
def test_a_retryable_conflict_does_not_hide_an_incompatible_one(last: ops.Operation) -> None:
    store = MemoryStore()
    mine = _stale(store)
    for operation in (append("a"), append("b"), last, append("c")):
        plant(store, operation)
    with pytest.raises(IncompatibleConflict) as caught:
        _commit(store, mine)
    [winner] = caught.value.winners
    assert (winner.version, winner.operation) == (4, last.name)
    assert (caught.value.operation, caught.value.read_version, caught.value.transaction_id) == ("Merge", 1, "ours")
    assert version_count(store) == 5


def test_a_retryable_conflict_tells_how_far_its_window_is_judged() -> None:
    store = MemoryStore()
    mine = _stale(store)
    plant(store, append("a"))
    plant(store, append("b"))
    with pytest.raises(RetryableConflict) as caught:
        _commit(store, mine)
    window = caught.value.window
    assert isinstance(window, Window)
    assert (window.transaction, window.judged.manifest.version) == (mine, 3)
    assert "window" not in str(caught.value.to_dict())
    assert pickle.loads(pickle.dumps(caught.value)).window is None
    log = VersionLog(store)
    assert window.judge(log, 3, Scheme.V2).judged is window.judged
    plant(store, append("c"))
    assert window.judge(log, 4, Scheme.V2).judged.manifest.version == 4
    plant(store, overwrite("d"))
    with pytest.raises(IncompatibleConflict):
        window.judge(log, 5, Scheme.V2)


def test_a_window_that_cannot_be_read_is_not_judged() -> None:
    store = MemoryStore()
    mine = _stale(store)
    for name in "abc":
        plant(store, append(name))
    first = VersionLog(store).load(1, Scheme.V2)
    path = manifest_path(3, Scheme.V2)
    whole = store.get(path)
    store.put(path, whole[:10])
    with pytest.raises(HistoryUnavailable) as caught:
        Window(mine, first).judge(VersionLog(store), 4, Scheme.V2)
    assert caught.value.missing == (3,)
    store.delete(path)
    with pytest.raises(HistoryUnavailable):
        Window(mine, first).judge(VersionLog(store), 4, Scheme.V2)
    store.put(path, whole)
    for transient, kind in ((True, StorageError), (False, HistoryUnavailable)):
        with pytest.raises(kind):
            Window(mine, first).judge(VersionLog(_Failing(store, path, transient)), 4, Scheme.V2)


class _Failing(WrapperStore):
    def __init__(self, inner: MemoryStore, path: str, transient: bool) -> None:
        super().__init__(inner)
        self._path, self._transient = path, transient

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if method == "get" and path == self._path:
            raise StorageError("The store does not answer.", name=path, transient=self._transient)
        return request(self.inner)


def test_a_version_that_was_made_from_another_one_ends_the_window() -> None:
    """The table was replaced by one that counts as far."""
    store, other = MemoryStore(), MemoryStore()
    mine = _stale(store)
    first = VersionLog(store).load(1, Scheme.V2)
    memory_table(other)
    reopened(other).commit(append("a"))
    with pytest.raises(HistoryUnavailable, match="made from another"):
        Window(mine, first).judge(VersionLog(other), 2, Scheme.V2)


def test_any_rule_that_forbids_is_enough() -> None:
    """A verdict on the pair alone is the first rule's; before a re-execution all of them are asked."""
    replaces = ops.DataReplacement((ops.Replacement(0, ops.DataFile("a.lance", (1,), (0,))),))
    drops = ops.Project(FIELDS[:1])
    found = forbidden(replaces, drops)
    assert found is not None
    assert found.names == ("field 1",)
    assert forbidden(replaces, ops.Project(FIELDS)) is None
    assert forbidden(Transaction(1, "ours", replaces), Transaction(1, "theirs", drops)) is not None


# ---- our own files ---------------------------------------------------------------------------------------------------------


class _Counting(WrapperStore):
    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.asked: list[str] = []

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if method == "head":
            self.asked.append(path)
        return request(self.inner)


def test_files_are_looked_for_where_it_costs_nothing_or_is_worth_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(b"a")
    local = LocalStore(tmp_path, durability="os")
    check_there(local, ["data/a"], "Append", ask=False)
    check_there(WrapperStore(local), ["data/a"], "Append", ask=False)
    for store in (local, WrapperStore(local)):
        with pytest.raises(StorageError, match=r"data/b and 1 others") as caught:
            check_there(store, ["data/a", "data/b", "data/c"], "Append", ask=False)
        assert (caught.value.name, caught.value.transient, caught.value.maybe_applied) == ("data/b", False, False)
    assert local.missing([f"data/{'n' * 300}"]) == [], "what cannot be asked for is not certainly gone"
    assert is_missing(local, "data/b")
    assert not is_missing(local, "data/a")
    memory = MemoryStore()
    memory.put("data/a", b"a")
    check_there(memory, ["data/b"], "Append", ask=False)
    check_there(memory, ["data/a"], "Append", ask=True)
    with pytest.raises(StorageError, match="data/b, written"):
        check_there(memory, ["data/a", "data/b"], "Append", ask=True)


def test_a_commit_asks_for_its_files_only_after_long_work() -> None:
    inner = MemoryStore()
    memory_table(inner)
    store = _Counting(inner)
    place = memory_place(store)
    read = place.load(1, Scheme.V2)
    now = place.runtime.clock.monotonic()
    place.committer.commit(Transaction(1, "quick", append("a")), read, Scheme.V2, RetryPolicy())
    place.committer.commit(Transaction(1, "soon", append("b")), read, Scheme.V2, RetryPolicy(begun=now - LOOK_AFTER / 2))
    assert [path for path in store.asked if path.startswith("data/")] == []
    late = RetryPolicy(begun=now - LOOK_AFTER)
    with pytest.raises(StorageError, match="re-execute the operation"):
        place.committer.commit(Transaction(1, "late", append("c")), read, Scheme.V2, late)
    assert version_count(inner) == 3
    with pytest.raises(NotFound):
        inner.head("_transactions/1-late.txn")
    inner.put("data/c.lance", b"c")
    place.committer.commit(Transaction(1, "later", append("c")), read, Scheme.V2, late)
    assert version_count(inner) == 4


def test_a_recorded_commit_leaves_the_look_to_its_transaction_and_says_how_old_its_files_are() -> None:
    inner = MemoryStore()
    memory_table(inner)
    place = memory_place(_Counting(inner))
    recorded: list[RecordedCommit] = []
    committer, begun = replace(place.committer, recorded=recorded), place.runtime.clock.monotonic() - LOOK_AFTER
    committer.commit(Transaction(1, "late", append("c")), place.load(1, Scheme.V2), Scheme.V2, RetryPolicy(begun=begun))
    assert [commit.begun for commit in recorded] == [begun]

"""Answers that get lost, writes that are torn, listings that lag: what a commit makes of a store it cannot take at its word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import tiltyard as ty
from tests.support.commits import (
    InterruptedStore,
    append,
    is_version,
    last_id,
    memory_place,
    memory_table,
    noted_runtime,
    plant,
    reopened,
    version_count,
)
from tiltyard import ops
from tiltyard.errors import (
    HistoryUnavailable,
    OutcomeUnknown,
    StorageError,
    UnsupportedFeature,
)
from tiltyard.format.manifest import encode_indices
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import Fault, FaultStore, WrapperStore
from tiltyard.testing.stores import LISTINGS, Request, T
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import without_marks

# ---- answers that get lost --------------------------------------------------------------------------------------------------


class Failing(WrapperStore):
    """Fails the calls that match, as often as told: before or after their effect, and with or without saying which."""

    def __init__(
        self,
        inner: ObjectStore,
        match: Callable[[str, str], bool],
        times: int,
        *,
        applied: bool,
        unsure: bool = True,
        transient: bool = True,
    ) -> None:
        super().__init__(inner)
        self._match, self.left, self._applied, self._unsure, self._transient = match, times, applied, unsure, transient

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if not self.left or not self._match(method, path):
            return request(self.inner)
        self.left -= 1
        if self._applied:
            request(self.inner)
        raise StorageError("no answer", name=path, maybe_applied=self._unsure, transient=self._transient)


def _reads_version(method: str, path: str) -> bool:
    return method == "get" and path.endswith(".manifest")


@pytest.mark.parametrize("lost_reads", [0, 1, 2])
def test_a_lost_answer_is_found_by_reading_back(lost_reads: int) -> None:
    store = MemoryStore()
    memory_table(store)
    table = reopened(store)
    deaf = Failing(Failing(store, is_version, 1, applied=True), _reads_version, lost_reads, applied=False, unsure=False)
    table = ty.Table(memory_place(deaf), table._file, Scheme.V2)
    result = table.commit(append())
    assert (result.version, result.attempts) == (2, 1)
    assert version_count(store) == 2


def test_a_lost_answer_that_cannot_be_read_back_is_unknown() -> None:
    store = MemoryStore()
    first = memory_table(store)
    deaf = Failing(Failing(store, is_version, 1, applied=True), _reads_version, 3, applied=False, unsure=False)
    table = ty.Table(memory_place(deaf), first._file, Scheme.V2)
    with pytest.raises(OutcomeUnknown) as caught:
        table.commit(append())
    error = caught.value
    assert error.version == 2
    assert error.retryable is False
    assert f"t.transactions.outcome('{error.transaction_id}', version=2)" in str(error)
    assert len(str(error)) < 300
    assert store.get(f"_transactions/1-{error.transaction_id}.txn")
    assert table.version == 1
    assert table.transactions.outcome(error.transaction_id) == ty.outcomes.Committed(2)


def test_a_request_that_may_still_be_under_way_is_unknown_until_its_version_is_there() -> None:
    store = MemoryStore()
    first = memory_table(store)
    table = ty.Table(memory_place(Failing(store, is_version, 3, applied=False)), first._file, Scheme.V2)
    with pytest.raises(OutcomeUnknown) as caught:
        table.commit(append())
    id = caught.value.transaction_id
    assert isinstance(table.transactions.outcome(id), ty.outcomes.Unknown)
    plant(store, append("theirs"))
    assert isinstance(table.transactions.outcome(id), ty.outcomes.NotCommitted)
    assert isinstance(reopened(store).transactions.outcome(id, version=2), ty.outcomes.NotCommitted)


def test_a_failure_for_certain_after_one_in_doubt_does_not_settle_the_doubt() -> None:
    """The first request is still on its way when the second one is turned away at the door."""
    store = MemoryStore()
    first = memory_table(store)
    inner = Failing(store, is_version, 1000, applied=False, unsure=False)
    table = ty.Table(memory_place(Failing(inner, is_version, 1, applied=False)), first._file, Scheme.V2)
    with pytest.raises(OutcomeUnknown):
        table.commit(append())


def test_a_failure_for_certain_is_tried_again() -> None:
    store = MemoryStore()
    first = memory_table(store)
    table = ty.Table(memory_place(Failing(store, is_version, 4, applied=False, unsure=False)), first._file, Scheme.V2)
    result = table.commit(append())
    assert (result.version, result.attempts, result.rebased_over) == (2, 5, ())


def test_a_failure_for_certain_that_stays_is_told_and_leaves_nothing() -> None:
    store = MemoryStore()
    first = memory_table(store)
    before = {info.path for info in store.list("")}
    table = ty.Table(memory_place(Failing(store, is_version, 1000, applied=False, unsure=False)), first._file, Scheme.V2)
    with pytest.raises(StorageError, match="no answer"):
        table.commit(append(), commit=ty.CommitOptions(race_retries=3))
    assert {info.path for info in store.list("")} == before


def test_a_failure_that_will_not_pass_is_told_at_once() -> None:
    store = MemoryStore()
    first = memory_table(store)
    before = {info.path for info in store.list("")}
    full = Failing(store, is_version, 1000, applied=False, unsure=False, transient=False)
    with pytest.raises(StorageError, match="no answer"):
        ty.Table(memory_place(full), first._file, Scheme.V2).commit(append())
    assert full.left == 999
    assert {info.path for info in store.list("")} == before


@pytest.mark.parametrize("transient", [True, False])
def test_a_window_that_the_store_does_not_give_out(transient: bool) -> None:
    """What may pass is waited for; what will not is history that cannot be read."""
    store = MemoryStore()
    first = memory_table(store)
    plant(store, append("theirs"))
    closed = Failing(store, _reads_version, 2, applied=False, unsure=False, transient=transient)
    table = ty.Table(memory_place(closed), first._file, Scheme.V2)
    if transient:
        assert table.commit(append()).attempts == 3
    else:
        with pytest.raises(HistoryUnavailable) as caught:
            table.commit(append())
        assert caught.value.missing == (2,)


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.TORN_WRITE])
def test_the_transaction_file_is_whole_when_the_commit_is(fault: Fault) -> None:
    store = MemoryStore()
    first = memory_table(store)
    failing = FaultStore(store, fault, 1, match=lambda method, path: path.endswith(".txn"))
    result = ty.Table(memory_place(failing), first._file, Scheme.V2).commit(append())
    assert failing.fired
    file = VersionLog(store).load(result.version, Scheme.V2)
    assert file.transaction is not None
    told = store.get("_transactions/" + file.manifest.transaction_file)
    assert without_marks(Transaction.from_bytes(told)) == without_marks(Transaction.from_bytes(file.transaction))


def test_a_torn_version_is_completed_by_whom_it_belongs_to() -> None:
    store = MemoryStore()
    first = memory_table(store)
    torn = FaultStore(store, Fault.TORN_WRITE, 1, match=is_version)
    result = ty.Table(memory_place(torn), first._file, Scheme.V2).commit(append())
    assert result.version == 2
    assert reopened(store).version == 2


def test_a_torn_version_that_could_be_anybodys_stays_as_it_is() -> None:
    """Another writer's file begins like ours when both carry the same indices: nobody can say whose half it is."""
    store = MemoryStore()
    memory_table(store)
    index = ops.IndexMetadata("0" * 32, (0,), "id_idx", 1, details=("/lance.table.BTreeIndexDetails", bytes(10_000)))
    plant(store, ops.CreateIndex((index,)), index_section=encode_indices((index,)))
    table = reopened(store)
    torn = FaultStore(store, Fault.TORN_WRITE, 1, match=is_version)
    with pytest.raises(OutcomeUnknown) as caught:
        ty.Table(memory_place(torn), table._file, Scheme.V2).commit(append())
    assert isinstance(table.transactions.outcome(caught.value.transaction_id, version=3), ty.outcomes.Unknown)
    with pytest.raises(HistoryUnavailable):
        table.commit(append("next"))


def test_a_torn_version_that_cannot_be_completed_is_unknown() -> None:
    store = MemoryStore()
    first = memory_table(store)
    torn = FaultStore(store, Fault.TORN_WRITE, 1, match=lambda method, path: method == "put_if_absent")
    blocked = Failing(torn, lambda method, path: method == "put" and path.endswith(".manifest"), 1, applied=False)
    with pytest.raises(OutcomeUnknown):
        ty.Table(memory_place(blocked), first._file, Scheme.V2).commit(append())


@pytest.mark.parametrize("cause", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_deletes_nothing(cause: type[BaseException]) -> None:
    """Ctrl-C while the request is out says nothing about its fate."""
    store = MemoryStore()
    memory_table(store)

    def interrupt() -> None:
        raise cause

    table = reopened(InterruptedStore(store, is_version, interrupt))
    with pytest.raises(cause):
        table.commit(append())
    assert any(last_id(table) in name for name in store.names("_transactions/"))


# ---- listings that lag behind -----------------------------------------------------------------------------------------------


class Stale(WrapperStore):
    """Lists what was there when it was made, for ever."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._then = {prefix: tuple(inner.names(prefix)) for prefix in ("_versions/", "_transactions/")}

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if method in LISTINGS:
            return iter(self._then.get(path, ()))  # type: ignore[return-value]
        return request(self.inner)


def test_a_listing_that_never_catches_up_costs_attempts_not_writes() -> None:
    store = MemoryStore()
    memory_table(store)
    table = ty.Table(memory_place(Stale(store)), reopened(store)._file, Scheme.V2)
    for number in range(3):
        plant(store, append(f"theirs{number}"))
    result = table.commit(append())
    assert (result.version, result.attempts) == (5, 4)
    assert [winner.version for winner in result.rebased_over] == [2, 3, 4]


def test_a_listing_from_before_the_read_version_is_told_from_a_table_cut_back() -> None:
    store = MemoryStore()
    memory_table(store)
    stale = Stale(store)
    plant(store, append("two"))
    plant(store, append("three"))
    table = ty.Table(memory_place(stale), reopened(store)._file, Scheme.V2)
    assert table.commit(append()).version == 4


def test_an_empty_listing_is_told_from_a_table_that_is_gone() -> None:
    empty = MemoryStore()
    stale = Stale(empty)
    memory_table(empty)
    table = ty.Table(memory_place(stale), reopened(empty)._file, Scheme.V2)
    assert table.commit(append()).version == 2


# ---- creating a table -------------------------------------------------------------------------------------------------------


def test_two_create_one_table() -> None:
    store = MemoryStore()
    racing = InterruptedStore(store, is_version, lambda: memory_table(store, runtime=noted_runtime(5)))
    with pytest.raises(ty.errors.AlreadyExists):
        memory_table(racing)
    assert len(list(store.names("_transactions/"))) == 1
    assert version_count(store) == 1


def test_a_table_is_not_made_where_there_is_one() -> None:
    store = MemoryStore()
    memory_table(store)
    before = {info.path for info in store.list("")}
    with pytest.raises(ty.errors.AlreadyExists) as caught:
        memory_table(store)
    assert "overwrite" in caught.value.advice
    assert {info.path for info in store.list("")} == before


def test_a_table_made_by_somebody_with_newer_features() -> None:
    store = MemoryStore()

    def newer() -> None:
        other = MemoryStore()
        memory_table(other, runtime=noted_runtime(5))
        log = VersionLog(other)
        file = replace(log.load(1, Scheme.V2).manifest, reader_flags=1 << 40)
        store.put(manifest_path(1, Scheme.V2), encode_manifest_file(file, None)[0])

    with pytest.raises(UnsupportedFeature):
        memory_table(InterruptedStore(store, is_version, newer))
    assert list(store.names("_transactions/")) == []


def test_a_create_whose_answer_was_lost() -> None:
    store = MemoryStore()
    assert memory_table(Failing(store, is_version, 1, applied=True)).version == 1
    assert reopened(store).version == 1

"""What became of a transaction: each answer, and that no two observers are ever told different things."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, fragment, is_version, memory_place, memory_table, plant, reopened, rows
from tests.support.tables import open_stock
from tiltyard import ops
from tiltyard.errors import OutcomeUnknown, StorageError
from tiltyard.format.flags import Feature
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.storage.local import LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import Fault, FaultStore
from tiltyard.transaction.log import VersionLog
from tiltyard.verbs.engine.access import open_access

NOBODY = "99999999-9999-4999-8999-999999999999"


def _append(name: str = "more") -> ops.Append:
    return ops.Append((fragment(name),))


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    memory_table(made)
    plant(made, _append("two"))
    return made


def _in_doubt(store: MemoryStore) -> tuple[ty.Table, OutcomeUnknown]:
    """A commit of version 3 of which nothing arrived, as far as anybody can see."""

    def silence() -> None:
        raise StorageError("no answer", maybe_applied=True, transient=True)

    first = reopened(store)
    table = ty.Table(memory_place(InterruptedStore(store, is_version, silence, times=3)), first._file, Scheme.V2)
    with pytest.raises(OutcomeUnknown) as caught:
        table.commit(_append("ours"))
    return table, caught.value


def test_committed(store: MemoryStore) -> None:
    table = reopened(store)
    result = table.commit(_append())
    plant(store, _append("later"))
    for observer in (table, reopened(store)):
        assert observer.transactions.outcome(result.transaction_id) == ty.outcomes.Committed(3)
        assert observer.transactions.outcome(result.transaction_id, version=3) == ty.outcomes.Committed(3)


def test_an_id_that_nobody_used_was_not_committed(store: MemoryStore) -> None:
    assert isinstance(reopened(store).transactions.outcome(NOBODY), ty.outcomes.NotCommitted)


def test_unknown_until_the_version_is_there(store: MemoryStore) -> None:
    table, error = _in_doubt(store)
    for observer in (table, reopened(store)):
        answer = observer.transactions.outcome(error.transaction_id, version=error.version)
        assert isinstance(answer, ty.outcomes.Unknown)
        assert "version 3 does not exist yet" in answer.reason
    assert isinstance(table.transactions.outcome(error.transaction_id), ty.outcomes.Unknown)
    reopened(store).commit(_append("theirs"))
    assert isinstance(table.transactions.outcome(error.transaction_id), ty.outcomes.NotCommitted)
    answer = reopened(store).transactions.outcome(error.transaction_id, version=3)
    assert isinstance(answer, ty.outcomes.NotCommitted)
    assert "version 3" in answer.reason


def test_whoever_knows_only_the_id_is_never_told_wrong(store: MemoryStore) -> None:
    _, error = _in_doubt(store)
    answer = reopened(store).transactions.outcome(error.transaction_id)
    assert isinstance(answer, ty.outcomes.Unknown)
    assert "transaction file" in answer.reason
    # The request arrives after all.
    log = VersionLog(store)
    inline = store.get(f"_transactions/2-{error.transaction_id}.txn")
    base = log.load(2, Scheme.V2).manifest
    made = replace(base, version=3, transaction_file=f"2-{error.transaction_id}.txn")
    store.put(manifest_path(3, Scheme.V2), encode_manifest_file(made, inline)[0])
    assert reopened(store).transactions.outcome(error.transaction_id) == ty.outcomes.Committed(3)


def test_a_withdrawn_transaction_was_not_committed(store: MemoryStore) -> None:
    table = reopened(store)
    plant(store, ops.Restore(1))
    with pytest.raises(ty.errors.IncompatibleConflict):
        table.commit(_append())
    random = table._access.runtime.random
    answer = reopened(store).transactions.outcome(random.uuids[-1])  # type: ignore[attr-defined]
    assert isinstance(answer, ty.outcomes.NotCommitted)


@pytest.mark.parametrize("cleaned", [[1], [2], [1, 2]])
def test_cleaned_history_settles_nothing(store: MemoryStore, cleaned: list[int]) -> None:
    plant(store, _append("three"))
    for version in cleaned:
        store.delete(manifest_path(version, Scheme.V2))
    answer = reopened(store).transactions.outcome(NOBODY)
    assert isinstance(answer, ty.outcomes.Unknown)
    assert "cleaned" in answer.reason
    assert isinstance(reopened(store).transactions.outcome(NOBODY, version=cleaned[-1]), ty.outcomes.Unknown)
    assert isinstance(reopened(store).transactions.outcome(NOBODY, version=3), ty.outcomes.NotCommitted)


def test_history_that_cannot_be_read_settles_nothing(store: MemoryStore) -> None:
    plant(store, _append("three"))
    path = manifest_path(2, Scheme.V2)
    table = reopened(store)
    sound = store.get(path)
    for damage in (sound[:-1], b"", sound[:40]):
        store.put(path, damage)
        answer = table.transactions.outcome(NOBODY)
        assert isinstance(answer, ty.outcomes.Unknown)
        assert "cannot be read" in answer.reason


def test_features_of_later_versions_settle_nothing(store: MemoryStore) -> None:
    table = reopened(store)
    plant(store, _append("three"), reader_flags=1 << 40)
    assert isinstance(table.transactions.outcome(NOBODY), ty.outcomes.Unknown)


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.UNAVAILABLE])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_store_that_fails_settles_nothing(store: MemoryStore, fault: Fault, at: int) -> None:
    failing = FaultStore(store, fault, at)
    table = ty.Table(memory_place(failing), reopened(store)._file, Scheme.V2)
    assert isinstance(table.transactions.outcome(NOBODY), ty.outcomes.Unknown)
    assert failing.fired


def test_a_version_that_vanishes_while_it_is_read_settles_nothing(store: MemoryStore) -> None:
    plant(store, _append("three"))
    path = manifest_path(2, Scheme.V2)
    vanishing = InterruptedStore(store, lambda method, name: name == path, lambda: store.delete(path))
    table = ty.Table(memory_place(vanishing), reopened(store)._file, Scheme.V2)
    assert isinstance(table.transactions.outcome(NOBODY), ty.outcomes.Unknown)


def test_a_version_without_a_transaction_is_not_ours(store: MemoryStore) -> None:
    plant(store, _append("three"), inline=False, file=False)
    assert isinstance(reopened(store).transactions.outcome(NOBODY), ty.outcomes.NotCommitted)


def test_a_table_without_transaction_files_needs_the_version(store: MemoryStore) -> None:
    """There, the absence of a transaction file says nothing about a request under way."""
    plant(store, _append("three"), file=False, writer_flags=int(Feature.NO_TRANSACTION_FILE))
    first = reopened(store)

    def silence() -> None:
        raise StorageError("no answer", maybe_applied=True, transient=True)

    table = ty.Table(memory_place(InterruptedStore(store, is_version, silence, times=3)), first._file, Scheme.V2)
    with pytest.raises(OutcomeUnknown) as caught:
        table.commit(_append("ours"))
    id = caught.value.transaction_id
    assert isinstance(reopened(store).transactions.outcome(id), ty.outcomes.Unknown)
    plant(store, _append("four"), file=False)
    assert isinstance(reopened(store).transactions.outcome(id), ty.outcomes.Unknown)
    assert isinstance(reopened(store).transactions.outcome(id, version=4), ty.outcomes.NotCommitted)
    assert isinstance(table.transactions.outcome(id), ty.outcomes.NotCommitted)


def test_a_table_that_is_gone(store: MemoryStore) -> None:
    table = reopened(store)
    for info in list(store.list("")):
        store.delete(info.path)
    assert isinstance(table.transactions.outcome(NOBODY), ty.outcomes.Unknown)
    assert isinstance(table.transactions.outcome(NOBODY, version=3), ty.outcomes.Unknown)


def test_stray_files_beside_the_transactions_do_no_harm(store: MemoryStore) -> None:
    for name in ("foo.txt", "x-y.txn", f"01-{NOBODY}.txn", f"1-{NOBODY.upper()}X.txn"):
        store.put("_transactions/" + name, b"")
    assert isinstance(reopened(store).transactions.outcome(NOBODY), ty.outcomes.NotCommitted)


def test_transactions_of_stock_writers(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, rows(1))
    open_stock(str(root)).delete("id = 1")
    deleted = ty.Table.open(root).history()[0]
    assert (deleted.operation, deleted.writer) == ("Delete", "lance 14.0.2")
    assert table.transactions.outcome(deleted.transaction_id) == ty.outcomes.Committed(2)


def test_a_creation_in_doubt(tmp_path: Path) -> None:
    """There is no handle to ask then, only the place; the advice says how."""
    root = tmp_path / "t"

    def silence() -> None:
        raise StorageError("no answer", maybe_applied=True, transient=True)

    store = InterruptedStore(LocalStore(root), is_version, silence, times=3)
    with pytest.raises(OutcomeUnknown) as caught:
        ty.Table._create(open_access(root, store=store), rows(1))
    error = caught.value
    assert f"ty.outcomes.outcome_at(uri, {error.transaction_id!r}, version=1)" in str(error)
    assert len(str(error)) < 300
    assert isinstance(ty.outcomes.outcome_at(root, error.transaction_id, version=error.version), ty.outcomes.Unknown)
    assert isinstance(ty.outcomes.outcome_at(root, error.transaction_id), ty.outcomes.Unknown)
    made = ty.Table.create(root, rows(2)).history()[0].transaction_id
    assert isinstance(ty.outcomes.outcome_at(root, error.transaction_id, version=error.version), ty.outcomes.NotCommitted)
    assert ty.outcomes.outcome_at(str(root), made) == ty.outcomes.Committed(1)


def test_where_there_never_was_a_table(tmp_path: Path) -> None:
    answer = ty.outcomes.outcome_at(tmp_path / "nothing", NOBODY)
    assert isinstance(answer, ty.outcomes.Unknown)
    assert "no table" in answer.reason
    assert not (tmp_path / "nothing").exists()

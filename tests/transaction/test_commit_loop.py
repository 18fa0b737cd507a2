"""The race for a version: lost and run again, given up, carried over, refused; and what an error tells of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tiltyard as ty
from tests.support.commits import (
    FIELDS,
    InterruptedStore,
    append,
    fragment,
    is_version,
    last_id,
    make_template,
    memory_table,
    noted_runtime,
    overwrite,
    plant,
    reopened,
    version_count,
)
from tests.transaction.test_rules import COMMITTED
from tiltyard import ops
from tiltyard.errors import (
    ConflictError,
    ContentionError,
    CorruptTable,
    IncompatibleConflict,
    InvalidInput,
    NotFound,
    RetryableConflict,
    StorageError,
    TiltyardError,
    UnsupportedFeature,
)
from tiltyard.format.flags import Feature
from tiltyard.format.names import Scheme
from tiltyard.format.values import BasePath
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import CountingStore, ManualClock
from tiltyard.transaction.backoff import DOUBLINGS, MOST_FAILURES, RetryPolicy
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT, without_marks

ADVANCE = 0.25
"""Seconds an attempt takes in these tests."""


def _contested(store: MemoryStore, times: int, runtime: Runtime | None = None) -> ty.Table:
    """A handle whose first ``times`` creates each come a moment after somebody else's."""
    runtime = runtime or noted_runtime()
    clock = runtime.clock
    assert isinstance(clock, ManualClock)

    def other() -> None:
        clock.advance(ADVANCE)
        plant(store, ops.Append((fragment(f"theirs{version_count(store)}"),)))

    return reopened(InterruptedStore(store, is_version, other, times), runtime=runtime)


def _slept(table: ty.Table) -> list[float]:
    clock = table._access.runtime.clock
    assert isinstance(clock, ManualClock)
    return clock.slept


# ---- losing a race ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("losses", [0, 1, 3, 7, 20])
def test_a_lost_race_is_run_again_from_the_new_head(losses: int) -> None:
    store = MemoryStore()
    memory_table(store)
    table = _contested(store, losses)
    result = table.commit(append())
    assert (result.version, result.attempts, result.read_version) == (losses + 2, losses + 1, 1)
    assert [winner.version for winner in result.rebased_over] == list(range(2, losses + 2))
    assert result.seconds == pytest.approx(losses * ADVANCE + sum(_slept(table)))
    made = reopened(store)
    assert made.version == result.version == table.version
    assert [file.path for one in made.layout.fragments for file in one.files][-1] == "ours.lance"
    assert len(made.layout.fragments) == losses + 2


@pytest.mark.parametrize("seed", range(5))
def test_waits_grow_in_units_of_an_attempt(seed: int) -> None:
    store = MemoryStore()
    memory_table(store)
    table = _contested(store, 12, noted_runtime(seed))
    table.commit(append())
    waits = _slept(table)
    assert len(waits) == 12
    for retry, seconds in enumerate(waits):
        assert 0 <= seconds <= min(ADVANCE * 2 ** (min(retry, DOUBLINGS) + 1), 5.0)
    assert max(waits) > ADVANCE  # one wait in units of a guess would be shorter


def test_writers_do_not_wait_in_step() -> None:
    first: set[float] = set()
    for seed in range(20):
        store = MemoryStore()
        memory_table(store)
        table = _contested(store, 1, noted_runtime(seed))
        table.commit(append())
        first.update(_slept(table))
    assert len(first) == 20


@pytest.mark.parametrize("max_retries", [0, 1, 20])
def test_giving_up(max_retries: int) -> None:
    store = MemoryStore()
    memory_table(store)
    table = _contested(store, 1000)
    before = set(store.names("_transactions/"))
    with pytest.raises(ContentionError) as caught:
        table.commit(append(), commit=ty.CommitOptions(race_retries=max_retries))
    error = caught.value
    assert error.attempts == max_retries + 1
    assert [winner.version for winner in error.winners] == list(range(2, max_retries + 3))
    assert all(winner.writer == "stranger 9.9" and winner.operation == "Append" and winner.transaction_id for winner in error.winners)
    assert error.operation == "Append"
    assert error.seconds == pytest.approx((max_retries + 1) * ADVANCE + sum(_slept(table)))
    assert len(_slept(table)) == max_retries
    assert table.version == 1
    ours = [name for name in set(store.names("_transactions/")) - before if error.winners[0].transaction_id[:8] not in name]
    assert not any(str(table._access.runtime.random.uuids[-1]) in name for name in ours)  # type: ignore[attr-defined]
    assert json.loads(json.dumps(error.to_dict()))["attempts"] == max_retries + 1


def test_by_default_a_lost_race_is_run_as_often_as_it_takes() -> None:
    store = MemoryStore()
    memory_table(store)
    result = _contested(store, 100).commit(append())
    assert (result.attempts, result.version) == (101, 102)


def test_a_store_that_goes_on_failing_is_not_asked_for_ever() -> None:
    store = MemoryStore()
    memory_table(store)
    tried = 0

    def fails() -> None:
        nonlocal tried
        tried += 1
        raise StorageError("The store is away.", name="x", transient=True)

    with pytest.raises(StorageError, match="away"):
        reopened(InterruptedStore(store, is_version, fails, 1000), runtime=noted_runtime()).commit(append())
    assert tried == MOST_FAILURES + 1
    assert version_count(store) == 1


def test_a_deadline_ends_the_race() -> None:
    store = MemoryStore()
    memory_table(store)
    table = _contested(store, 1000)
    transaction = Transaction(1, table._access.runtime.random.uuid(), append())
    with pytest.raises(ContentionError) as caught:
        table._access.committer.commit(transaction, table._file, Scheme.V2, RetryPolicy(1000, deadline=2.0))
    assert caught.value.seconds >= 2.0
    assert 1 < caught.value.attempts <= 8


def test_the_transaction_file_is_written_once_and_removed_on_failure() -> None:
    store = MemoryStore()
    memory_table(store)
    counting = CountingStore(store)
    table = reopened(InterruptedStore(counting, is_version, lambda: plant(store, append(f"theirs{version_count(store)}")), 1000))
    counting.reset()
    with pytest.raises(ContentionError):
        table.commit(append(), commit=ty.CommitOptions(race_retries=5))
    ours = [call for call in counting.log if call[1].startswith("_transactions/")]
    assert [method for method, _ in ours] == ["put", "delete"]
    assert ours[0][1] == ours[1][1]


@pytest.mark.parametrize("lost", [0, 2])
def test_both_copies_of_the_transaction_are_the_same(lost: int) -> None:
    """But for the digest of the version, and after a lost race the name of the one below: the file is not written again for that."""
    store = MemoryStore()
    memory_table(store)
    table = _contested(store, lost)
    result = table.commit(append(), commit=ty.CommitOptions(properties={"job": "nightly"}))
    file = VersionLog(store).load(result.version, Scheme.V2)
    name = file.manifest.transaction_file
    assert name == f"1-{result.transaction_id}.txn"
    assert file.transaction is not None
    inline, read = Transaction.from_bytes(file.transaction), Transaction.from_bytes(store.get("_transactions/" + name))
    assert (inline.properties[PARENT] == read.properties[PARENT]) is (lost == 0)
    assert without_marks(inline) == without_marks(read)
    assert (read.read_version, read.uuid, read.properties["job"]) == (1, result.transaction_id, "nightly")
    assert replace(inline, properties={}) == replace(read, properties={})
    assert read.operation == append()


def test_each_version_names_the_transaction_of_the_one_below() -> None:
    store = MemoryStore()
    table = memory_table(store)
    first, second = table.commit(append()), table.commit(append())
    log = VersionLog(store)
    assert log.committed(3, Scheme.V2).transaction.properties[PARENT] == first.transaction_id
    assert table.history(1)[0].properties == {}, "which is for us, not for people"
    assert second.version == 3


def test_a_table_without_transaction_files_gets_none() -> None:
    store = MemoryStore()
    memory_table(store)
    plant(store, append("other"), file=False, writer_flags=int(Feature.NO_TRANSACTION_FILE))
    table = reopened(store)
    before = list(store.names("_transactions/"))
    result = table.commit(append())
    assert list(store.names("_transactions/")) == before
    made = VersionLog(store).load(result.version, Scheme.V2)
    assert made.manifest.transaction_file == ""
    assert made.manifest.writer_flags & Feature.NO_TRANSACTION_FILE
    assert VersionLog(store).transaction_of(made).uuid == result.transaction_id


# ---- whom we meet -----------------------------------------------------------------------------------------------------------

EXPECTED = {
    "Append": {
        "Ovr": IncompatibleConflict,
        "Rst": IncompatibleConflict,
        "MW": IncompatibleConflict,
        "Mrg": RetryableConflict,
        "Prj": RetryableConflict,
    },
    "Overwrite": {"Ovr": RetryableConflict, "MW": IncompatibleConflict},
}


@pytest.mark.parametrize("distance", [1, 3])
@pytest.mark.parametrize("theirs", COMMITTED)
@pytest.mark.parametrize("mine", [append(), overwrite()], ids=lambda one: one.name)
def test_every_pair_through_the_store(mine: ops.Operation, theirs: str, distance: int) -> None:
    """The verdict does not depend on how far back the other commit lies, and a refusal leaves nothing behind."""
    store = MemoryStore()
    table = memory_table(store)
    planted = plant(store, COMMITTED[theirs])
    for number in range(distance - 1):
        plant(store, append(f"later{number}"))
    before = set(store.names("_transactions/"))
    expected = EXPECTED[mine.name].get(theirs)
    if expected is None:
        result = table.commit(mine)
        assert result.version == distance + 2
        assert result.rebased_over[0].operation == COMMITTED[theirs].name
        return
    with pytest.raises(ConflictError) as caught:
        table.commit(mine)
    error = caught.value
    assert type(error) is expected
    assert error.retryable == (expected is RetryableConflict)
    assert (error.operation, error.read_version) == (mine.name, 1)
    (winner,) = error.winners
    assert (winner.version, winner.operation, winner.writer) == (2, COMMITTED[theirs].name, "stranger 9.9")
    assert (winner.transaction_id, winner.message) == (planted.uuid, f"planted {COMMITTED[theirs].name}")
    assert error.advice
    assert error.advice in str(error)
    assert f"version 2 ({COMMITTED[theirs].name} by stranger 9.9)" in str(error)
    assert len(str(error)) < 300
    told = json.loads(json.dumps(error.to_dict()))
    assert told["kind"] == expected.kind
    assert told["winners"][0]["transaction_id"] == planted.uuid
    assert set(store.names("_transactions/")) == before
    assert table.version == 1
    assert version_count(store) == distance + 1


def test_a_config_key_both_change_is_named() -> None:
    store = MemoryStore()
    table = memory_table(store)
    plant(store, ops.UpdateConfig(ops.UpdateMap((("a", "1"), ("k", None)))))
    mine = replace(overwrite(), config_upsert_values={"k": "2", "z": "3"})
    with pytest.raises(IncompatibleConflict) as caught:
        table.commit(mine)
    assert caught.value.sample == ("k",)
    assert "(k)" in str(caught.value)


@pytest.mark.parametrize("mine", [append(), overwrite()], ids=lambda one: one.name)
def test_an_operation_nobody_knows(mine: ops.Operation) -> None:
    store = MemoryStore()
    table = memory_table(store)
    known = Transaction(1, "0" * 8, ops.UnknownOperation(116, b"\xa2\x07\x02\x08\x01"))
    plant(store, append(), raw=known.to_bytes())
    with pytest.raises(IncompatibleConflict) as caught:
        table.commit(mine)
    assert "116" in caught.value.winners[0].operation
    assert version_count(store) == 2


def test_the_first_refusal_counts() -> None:
    store = MemoryStore()
    table = memory_table(store)
    plant(store, append("fine"))
    plant(store, ops.Restore(1))
    plant(store, ops.Merge((), FIELDS))
    with pytest.raises(IncompatibleConflict) as caught:
        table.commit(append())
    assert [winner.version for winner in caught.value.winners] == [3]


def test_a_conflict_found_only_after_a_lost_race() -> None:
    store = MemoryStore()
    memory_table(store)
    table = reopened(InterruptedStore(store, is_version, lambda: plant(store, overwrite("theirs"))))
    before = set(store.names("_transactions/"))
    with pytest.raises(IncompatibleConflict):
        table.commit(append())
    assert len(set(store.names("_transactions/")) - before) == 1  # theirs


def test_a_feature_that_came_in_between() -> None:
    store = MemoryStore()
    table = memory_table(store)
    flags = int(Feature.MANAGED_BLOBS)
    plant(store, append(), reader_flags=flags, writer_flags=flags)
    with pytest.raises(UnsupportedFeature) as caught:
        table.commit(append())
    assert caught.value.bits == (flags,)
    assert version_count(store) == 2


def test_a_winner_with_features_we_cannot_read_is_no_doubt() -> None:
    store = MemoryStore()
    memory_table(store)
    table = reopened(InterruptedStore(store, is_version, lambda: plant(store, append("theirs"), reader_flags=1 << 40)))
    with pytest.raises(UnsupportedFeature):
        table.commit(append())
    assert not any(last_id(table) in name for name in store.names("_transactions/"))


def test_a_base_that_may_not_be_read_came_in_between() -> None:
    """Found before the commit, not after it: an error must not hide a commit that was made."""
    store = MemoryStore()
    table = memory_table(store)
    plant(store, ops.UpdateBases((BasePath(1, "/etc"),)), base_paths=(BasePath(1, "/etc"),))
    place = replace(table._access, uri="/some/table")
    with pytest.raises(CorruptTable):
        ty.Table(place, table._file, Scheme.V2).commit(append())
    assert version_count(store) == 2


# ---- a column's id that came to mean another column -------------------------------------------------------------------------


def _swap_column(store: ObjectStore) -> None:
    """Drops column 1 and adds another one that gets its id, as stock writers do once no file mentions it."""
    plant(store, ops.Project(FIELDS[:1], preserves_nullability=True), fields=FIELDS[:1])
    fields = (FIELDS[0], replace(FIELDS[1], name="other"))
    plant(store, ops.Merge((), fields, preserves_nullability=True), fields=fields)


def test_rows_are_not_read_as_another_column() -> None:
    store = MemoryStore()
    table = memory_table(store)
    _swap_column(store)
    with pytest.raises(RetryableConflict) as caught:
        table.commit(append())
    assert caught.value.sample == ("other",)
    assert [winner.version for winner in caught.value.winners] == [3]
    assert version_count(store) == 3


def test_a_renamed_and_a_dropped_column_are_no_obstacle() -> None:
    store = MemoryStore()
    table = memory_table(store)
    renamed = (FIELDS[0], replace(FIELDS[1], name="other"))
    plant(store, ops.Project(renamed, preserves_nullability=True), fields=renamed)
    plant(store, ops.Project(FIELDS[:1], preserves_nullability=True), fields=FIELDS[:1])
    assert table.commit(append()).version == 4


def test_an_overwrite_brings_its_own_columns() -> None:
    store = MemoryStore()
    table = memory_table(store)
    _swap_column(store)
    assert table.commit(overwrite()).version == 4


# ---- the low door -----------------------------------------------------------------------------------------------------------


def test_what_nobody_knows_is_not_committed() -> None:
    store = MemoryStore()
    table = memory_table(store)
    with pytest.raises(UnsupportedFeature):
        table.commit(ops.UnknownOperation(116, b"\xa2\x07\x00"))
    plant(store, append())
    with pytest.raises(TiltyardError):
        table.commit(ops.UnknownOperation(116, b"\xa2\x07\x00"))
    assert version_count(store) == 2


def test_a_clone_makes_a_new_table_and_is_refused_on_one_that_is_there() -> None:
    store = MemoryStore()
    table = memory_table(store)
    with pytest.raises(InvalidInput, match="a new one"):
        table.commit(ops.Clone(True, None, 1, "elsewhere"))
    assert version_count(store) == 1
    assert len(list(store.names("_transactions/"))) == 1  # that of its creation


def test_a_missing_data_file_is_found_before_the_commit(tmp_path: Path) -> None:
    root = make_template(tmp_path / "table")
    table = ty.Table.open(root)
    with pytest.raises(NotFound):
        table.commit(append("nowhere"))
    assert ty.Table.open(root).version == 2
    assert table.check().orphans == ()


def test_negative_retries_make_no_sense() -> None:
    with pytest.raises(InvalidInput):
        memory_table(MemoryStore()).commit(append(), commit=ty.CommitOptions(race_retries=-1))

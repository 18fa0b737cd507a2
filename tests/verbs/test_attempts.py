"""Commits that fail because of others leave a small record; ``why`` tells from it, and cleanup removes it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, copy_of, files_below, handle, is_version, make_template, noted_runtime, rows
from tests.support.tables import open_stock
from tiltyard.storage.local import LocalStore
from tiltyard.testing import Fault, FaultStore
from tiltyard.verbs.explain import ATTEMPTS, MOST_BYTES

NOBODY = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("attempts") / "table")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return copy_of(template, tmp_path / "table")


def _other(root: Path) -> ty.Table:
    return ty.Table.open(root, durability="os")


def _records(root: Path) -> set[str]:
    return files_below(root, ATTEMPTS)


def _raced(root: Path, action: Callable[[], Any], times: int = 1) -> ty.Table:
    """A handle each of whose first ``times`` creates comes right after somebody else did something."""
    return handle(root, InterruptedStore(LocalStore(root, durability="os"), is_version, action, times))


def _overwritten(root: Path) -> ty.RetryableConflict:
    """A commit that met another overwrite, and its error."""
    stale = _other(root)
    _other(root).overwrite(rows(20), message="mine first")
    with pytest.raises(ty.RetryableConflict) as caught:
        stale.overwrite(rows(10), commit=ty.CommitOptions(reexecutions=0))
    return caught.value


# ---- what is kept ------------------------------------------------------------------------------------------------------------


def test_a_conflict_leaves_a_record_of_all_its_error_said(root: Path) -> None:
    error = _overwritten(root)
    assert _records(root) == {f"{error.transaction_id}.json"}
    told = _other(root).transactions.explain(error.transaction_id)
    attempt = told.attempt
    assert attempt is not None
    assert isinstance(told.outcome, ty.outcomes.NotCommitted)
    assert (attempt.operation, attempt.read_version, attempt.kind, attempt.retryable) == ("Overwrite", 2, "retryable-conflict", True)
    assert (attempt.attempts, attempt.executions, attempt.sentence) == (1, 1, str(error))
    assert attempt.winners == error.winners
    assert [(one.version, one.operation, one.message) for one in attempt.winners] == [(3, "Overwrite", "mine first")]
    assert str(told) == str(error)
    assert json.loads(json.dumps(told.to_dict()))["attempt"]["winners"][0]["version"] == 3
    assert _other(root).transactions.failed() == [attempt]
    assert _other(root).check().ok
    open_stock(str(root)).validate()


def test_only_the_last_run_is_recorded_and_says_how_many_there_were(root: Path) -> None:
    table = _raced(root, lambda: _other(root).overwrite(rows(20)), times=100)
    with pytest.raises(ty.RetryableConflict) as caught:
        table.overwrite(rows(10), commit=ty.CommitOptions(reexecutions=3))
    (attempt,) = _other(root).transactions.failed()
    assert attempt.executions == caught.value.executions == 4
    assert attempt.transaction_id == caught.value.transaction_id


def test_a_commit_that_came_through_leaves_none(root: Path) -> None:
    table = _raced(root, lambda: _other(root).overwrite(rows(20)), times=2)
    result = table.overwrite(rows(10))
    assert result.executions == 3
    assert _records(root) == set()


def _incompatible(root: Path) -> None:
    stale = _other(root)
    _other(root).update_config({"color": "blue"})
    stale.update_config({"color": "green"})


def _contention(root: Path) -> None:
    _raced(root, lambda: _other(root).append(rows(20)), times=9).append(rows(10), commit=ty.CommitOptions(race_retries=2))


def _unreadable(root: Path) -> None:
    stale = _other(root)
    _other(root).append(rows(20))
    _other(root).append(rows(21))
    next((root / "_versions").glob(f"{2**64 - 1 - 3:020}.manifest")).unlink()
    stale.append(rows(10))


def _cleaned(root: Path) -> None:
    _other(root).commit(ty.Transaction(77, NOBODY, ty.ops.Append()))


def _same_key(root: Path) -> None:
    keyed = root.parent / "keyed"
    ty.Table.create(keyed, rows(1), primary_key=["id"], durability="os").overwrite(rows(2))
    root.rename(root.parent / "old")
    keyed.rename(root)
    stale = _other(root)
    _other(root).append(rows(7), message="seven")
    stale.append(rows(7, 8))


@pytest.mark.parametrize(
    ("lose", "kind", "versions"),
    [
        (_incompatible, "incompatible-conflict", [3]),
        (_contention, "contention", [3, 4, 5]),
        (_unreadable, "history-unavailable", []),
        (_cleaned, "history-unavailable", []),
        (_same_key, "key-conflict", [3]),
    ],
)
def test_each_way_to_lose(root: Path, lose: Callable[[Path], None], kind: str, versions: list[int]) -> None:
    with pytest.raises(ty.TiltyardError) as caught:
        lose(root)
    error: Any = caught.value
    assert error.kind == kind
    (attempt,) = _other(root).transactions.failed()
    assert (attempt.kind, attempt.transaction_id, attempt.sentence) == (kind, error.transaction_id, str(error))
    assert [one.version for one in attempt.winners] == versions
    assert attempt.operation
    assert attempt.read_version == error.read_version
    if kind == "key-conflict":
        assert attempt.sample == ("id 7",)
    if kind == "history-unavailable":
        assert attempt.missing == error.missing


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda table: table.append({"other": [1]}), id="input"),
        pytest.param(lambda table: table.append(rows(1)), id="key there"),
        pytest.param(lambda table: table.append(rows(9, 9)), id="key twice"),
        pytest.param(lambda table: table.restore(99), id="not found"),
    ],
)
def test_what_never_became_a_transaction_leaves_none(tmp_path: Path, work: Callable[[ty.Table], object]) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1), primary_key=["id"], durability="os")
    with pytest.raises(ty.TiltyardError):
        work(table)
    assert _records(tmp_path / "t") == set()


def test_an_unknown_outcome_leaves_none(root: Path) -> None:
    """Nobody may say that it failed."""

    def silence() -> None:
        raise ty.StorageError("no answer", maybe_applied=True, transient=True)

    with pytest.raises(ty.OutcomeUnknown):
        _raced(root, silence, times=3).append(rows(10))
    assert _records(root) == set()


def test_a_table_that_was_dropped_leaves_none(root: Path) -> None:
    stale = _other(root)
    shutil.rmtree(root)
    with pytest.raises(ty.HistoryUnavailable) as caught:
        stale.update_config({"a": "b"})
    assert caught.value.transaction_id
    assert not list(root.rglob("*.*"))


def test_it_can_be_turned_off(root: Path) -> None:
    _other(root).update_config({"tiltyard.failed_attempts": "off"})
    error = _overwritten(root)
    assert error.transaction_id
    assert _records(root) == set()
    _other(root).update_config({"tiltyard.failed_attempts": None})
    _overwritten(root)
    assert len(_records(root)) == 1


def test_a_store_that_refuses_the_record_changes_nothing(root: Path) -> None:
    store = FaultStore(LocalStore(root, durability="os"), Fault.ERROR_BEFORE, match=lambda method, path: path.startswith(ATTEMPTS))
    stale = handle(root, store)
    _other(root).overwrite(rows(20))
    with pytest.raises(ty.RetryableConflict) as caught:
        stale.overwrite(rows(10), commit=ty.CommitOptions(reexecutions=0))
    assert caught.value.winners[0].version == 3
    assert store.fired
    assert _records(root) == set()
    assert isinstance(_other(root).transactions.explain(caught.value.transaction_id).outcome, ty.outcomes.NotCommitted)


def test_a_record_is_small_and_holds_no_secret(root: Path) -> None:
    secret = "hunter2-is-long-enough"
    stale = ty.Table.open(root, durability="os", storage_options={"aws_secret_access_key": secret})
    other = _other(root)
    for number in range(60):
        other.append(rows(100 + number), message=f"{secret} {'x' * 5000}")
    other.overwrite(rows(1), message=f"s3://me:{secret}@host/x " + "y" * 100_000)
    with pytest.raises(ty.ConflictError) as caught:
        stale.delete("id = 1")
    text = (root / ATTEMPTS / f"{caught.value.transaction_id}.json").read_text()
    assert secret not in text
    assert len(text) < MOST_BYTES


# ---- what is told ------------------------------------------------------------------------------------------------------------


def test_why_of_a_committed_one_tells_what_it_was_rebased_over(root: Path) -> None:
    late, other = _other(root), _other(root)
    other.append(rows(20), message="twenty")
    other.append(rows(21))
    result = late.append(rows(10))
    told = late.transactions.explain(result.transaction_id)
    assert told.outcome == ty.outcomes.Committed(5)
    assert told.entry is not None
    assert told.entry.transaction_id == result.transaction_id
    assert [(one.version, one.message) for one in told.rebased_over] == [(3, "twenty"), (4, "")]
    assert [one.version for one in told.rebased_over] == [one.version for one in result.rebased_over]
    assert str(told) == "Append committed as version 5, rebased over version 3 (Append), version 4 (Append)."
    late.tags.create("mine", 5)
    late.append(rows(11))
    late.cleanup(keep_versions=1)
    later = late.transactions.explain(result.transaction_id)
    assert (later.rebased_over, later.missing) == ((), (3, 4))
    assert str(later).endswith("rebased over version 3 (cleaned up), version 4 (cleaned up).")
    assert str(late.transactions.explain(late.transactions.describe().transaction_id)) == "Append committed as version 6."


def test_why_of_one_that_is_nowhere(root: Path) -> None:
    told = _other(root).transactions.explain(NOBODY)
    assert (type(told.outcome), told.attempt, told.entry) == (ty.outcomes.NotCommitted, None, None)
    assert str(told).startswith("NotCommitted: ")
    with pytest.raises(ty.InvalidInput):
        _other(root).transactions.explain("")


def test_a_record_settles_what_a_cleaned_history_cannot(root: Path) -> None:
    error = _overwritten(root)
    table = _other(root)
    table.append(rows(30))
    table.cleanup(keep_versions=1)
    assert isinstance(table.transactions.outcome(error.transaction_id), ty.outcomes.Unknown)
    told = table.transactions.explain(error.transaction_id)
    assert told.outcome == ty.outcomes.NotCommitted("its writer ended in retryable-conflict")


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b'{"time": 3}', b"[" * 100_000, b"\xff\xfe", b"null"],
    ids=["empty", "half", "list", "other", "deep", "bytes", "null"],
)
def test_a_damaged_record_is_none(root: Path, damage: bytes) -> None:
    error = _overwritten(root)
    (root / ATTEMPTS / f"{error.transaction_id}.json").write_bytes(damage)
    told = _other(root).transactions.explain(error.transaction_id)
    assert (told.attempt, _other(root).transactions.failed()) == (None, [])


def test_a_record_under_another_name_is_none(root: Path) -> None:
    error = _overwritten(root)
    (root / ATTEMPTS / f"{error.transaction_id}.json").rename(root / ATTEMPTS / f"{NOBODY}.json")
    assert _other(root).transactions.explain(NOBODY).attempt is None
    assert _other(root).transactions.explain("../../secret").attempt is None


def test_a_branch_keeps_its_own(root: Path) -> None:
    _other(root).branches.create("side")
    first, second = (ty.Table.open(root, branch="side", durability="os") for _ in range(2))
    first.overwrite(rows(20))
    with pytest.raises(ty.RetryableConflict) as caught:
        second.overwrite(rows(10), commit=ty.CommitOptions(reexecutions=0))
    assert _records(root) == set()
    assert first.transactions.explain(caught.value.transaction_id).attempt is not None
    assert _other(root).transactions.explain(caught.value.transaction_id).attempt is None


# ---- cleanup -----------------------------------------------------------------------------------------------------------------


def _age(path: Path, days: int) -> None:
    when = path.stat().st_mtime - days * 86_400
    os.utime(path, (when, when))


def test_cleanup_removes_old_records_and_says_so(root: Path) -> None:
    old, young = (_overwritten(root).transaction_id for _ in range(2))
    _age(root / ATTEMPTS / f"{old}.json", days=8)
    (root / ATTEMPTS / "notes.json").write_text("somebody else's")
    _age(root / ATTEMPTS / "notes.json", days=99)
    table = _other(root)
    plan = table.cleanup(dry_run=True)
    assert [(one.path, one.kind) for one in plan.removed] == [(f"{ATTEMPTS}{old}.json", "attempts")]
    assert "failed attempt" in plan.removed[0].reason
    assert len(_records(root)) == 3
    assert table.cleanup().files == {"attempts": 1}
    assert _records(root) == {f"{young}.json", "notes.json"}


def test_they_go_by_the_age_that_versions_go_by(root: Path) -> None:
    error = _overwritten(root)
    _age(root / ATTEMPTS / f"{error.transaction_id}.json", days=2)
    table = _other(root)
    assert table.cleanup(older_than=timedelta(days=3)).files == {}
    assert table.cleanup(keep_versions=99).files == {}, "seven days are the default"
    assert table.cleanup(older_than=timedelta(days=1)).files == {"attempts": 1}


def test_time_comes_from_the_clock_of_the_writer(root: Path) -> None:
    runtime = noted_runtime()
    stale = handle(root, runtime=runtime)
    _other(root).overwrite(rows(20))
    with pytest.raises(ty.RetryableConflict):
        stale.overwrite(pa.table({"id": [1]}), commit=ty.CommitOptions(reexecutions=0))
    (attempt,) = _other(root).transactions.failed()
    assert attempt.time == runtime.clock.now()

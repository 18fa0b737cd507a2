"""Records of refused transactions: one for each refusal that reached its caller, none for others, never many, and never in the way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.lakes import LosingRecords, add_to_both, both, numbers, prompt_runtime, through, together, two_tables
from tiltyard.errors import StorageError
from tiltyard.lakes import refusals
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.lakes.refusals import MOST_KEPT, REFUSALS, LakeRefusal, refusals_of

ONCE = ty.CommitOptions(reexecutions=0)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ty.Lake]:
    with ty.Lake.open(tmp_path / "lake", author="ada", durability="os") as made:
        yield two_tables(made)


def refused(lake: ty.Lake, value: int = 1, **how: Any) -> LakeTransaction:
    """A transaction over both tables whose row of ``b`` somebody else deleted first."""
    tx = lake.transaction(**how)
    tx.table("a").append(numbers(value + 100))
    tx.table("b").delete(f"id = {value}")
    lake.signed("bob").table("b").delete(f"id = {value}", message="first")
    with pytest.raises(ty.RetryableConflict):
        tx.commit()
    return tx


def records(lake: ty.Lake) -> list[LakeRefusal]:
    return list(refusals_of(lake))


def folder(lake: ty.Lake) -> Path:
    return Path(lake.root_uri.removeprefix("file://")) / REFUSALS


def test_a_refusal_is_recorded_with_all_that_explains_it(lake: ty.Lake) -> None:
    tx = refused(lake, message="both at once")
    found = records(lake)
    assert [one.transaction_id for one in found] == [tx.id]
    told = found[0]
    assert (told.author, told.message, told.branch, told.base, told.executions) == ("ada", "both at once", "main", tx.base, 1)
    assert (told.kind, told.retryable, told.expected, told.actual) == ("retryable-conflict", True, 1, 2)
    assert {table.name: table.operations for table in told.tables} == {"a": ("Append",), "b": ("Delete",)}
    assert told.contested is not None
    assert told.contested.name == "b"
    assert [(winner.version, winner.operation, winner.author, winner.message) for winner in told.winners] == [(2, "Delete", "bob", "first")]
    assert "b is at version 2 by bob" in told.sentence
    assert told.line == lake.catalog.cut().line


def test_a_table_whose_name_is_anothers_by_now(lake: ty.Lake) -> None:
    tx = add_to_both(lake.transaction(), 2)
    was = lake.catalog.cut().tables["b"].id
    lake.drop_table("b")
    lake.rename_table("a", "b")
    with pytest.raises(ty.ExpectedVersionMismatch):
        tx.commit()
    told = records(lake)[0]
    assert (told.cause, told.actual) == ("incompatible", None)
    assert told.contested is not None
    assert (told.contested.id, told.contested.name) == (was, "b")
    assert {table.name for table in told.tables} == {"a", "b"}
    assert told.winners[-1].operation == "drop"


def test_a_read_that_others_changed(lake: ty.Lake) -> None:
    tx = lake.transaction(isolation="serializable")
    assert tx.table("a").count_rows() == 1
    tx.table("b").append(numbers(2))
    lake.table("a").append(numbers(3))
    with pytest.raises(ty.ExpectedVersionMismatch):
        tx.commit()
    told = records(lake)[0]
    assert told.cause == "read"
    assert told.contested is not None
    assert (told.contested.name, told.contested.operations) == ("a", ())


def test_nothing_is_recorded_of_what_is_committed(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ty.Lake, "root_access", lambda _: pytest.fail("a commit looked at the records"))
    with lake.transaction() as tx:
        add_to_both(tx, 2)
        lake.table("a").append(numbers(3))  # rebased over
    with pytest.raises(RuntimeError, match="changed my mind"), lake.transaction() as tx:  # noqa: PT012
        add_to_both(tx, 4)
        raise RuntimeError("changed my mind")
    monkeypatch.undo()
    assert records(lake) == []
    assert both(lake) == ([1, 2, 3], [1, 2])


def meeting(lake: ty.Lake, times: int) -> Callable[[LakeTransaction], None]:
    """What a function does that loses a row to somebody else so many times."""
    left = iter(range(times))

    def work(tx: LakeTransaction) -> None:
        tx.table("a").append(numbers(2))
        tx.table("b").delete("id > 0")
        if (number := next(left, None)) is not None:
            lake.signed("bob").table("b").update({"id": f"{number + 10}"}, where="id > 0")

    return work


def test_what_run_retried_with_success_is_no_refusal(lake: ty.Lake) -> None:
    lake.run(meeting(lake, 2))
    assert records(lake) == []
    assert both(lake) == ([1, 2], [])


def test_what_run_gave_up_is_one_refusal(lake: ty.Lake) -> None:
    with pytest.raises(ty.ConflictError):
        lake.run(meeting(lake, 9), commit=ty.CommitOptions(reexecutions=2))
    found = records(lake)
    assert [(one.executions, one.kind) for one in found] == [(3, "retryable-conflict")]


def test_run_records_no_conflict_that_is_not_its_own(lake: ty.Lake) -> None:
    def work(tx: LakeTransaction) -> None:
        add_to_both(tx, 2)
        raise ty.RetryableConflict("of something else")

    with pytest.raises(ty.RetryableConflict, match="something else"):
        lake.run(work, commit=ONCE)
    assert records(lake) == []


def test_whoever_begins_anew_by_himself_can_say_so(lake: ty.Lake) -> None:
    tx = lake.transaction()
    tx.keeps_refusal = False
    tx.table("b").delete("id = 1")
    lake.table("b").delete("id = 1")
    with pytest.raises(ty.RetryableConflict):
        tx.commit()
    assert records(lake) == []


def test_a_lost_answer_is_no_refusal_until_it_is_certain(tmp_path: Path) -> None:
    with ty.Lake.open(tmp_path / "lake", storage=ty.Storage(runtime=prompt_runtime())) as lake:
        losing = through(two_tables(lake), LosingRecords)
        tx = lake.transaction()
        tx.table("a").append(numbers(2))
        tx.table("b").delete("id = 1")
        losing.lose(1, "before")
        losing.then_down = True
        with pytest.raises(ty.OutcomeUnknown):
            tx.commit()
        losing.down = False
        assert records(lake) == []
        lake.table("b").delete("id = 1")
        with pytest.raises(ty.RetryableConflict):
            tx.commit()
        assert [one.transaction_id for one in records(lake)] == [tx.id]


class _Full:
    """A store that takes nothing."""

    def __init__(self) -> None:
        self.store, self.storage_options = self, None

    def put(self, path: str, data: bytes) -> None:
        raise StorageError("The disk is full.", name=path)


@pytest.mark.parametrize("broken", ["cannot be opened", "takes nothing"])
def test_a_record_that_cannot_be_written_changes_nothing(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def root_access(_: ty.Lake) -> Any:
        if broken == "takes nothing":
            return _Full()
        raise StorageError("The root is gone.", name="root")

    monkeypatch.setattr(ty.Lake, "root_access", root_access)
    refused(lake)
    lake.table("b").append(numbers(2))
    with pytest.raises(ty.RetryableConflict):
        lake.run(meeting(lake, 9), commit=ONCE)
    monkeypatch.undo()
    assert records(lake) == []
    assert lake.check().ok


def test_several_are_refused_at_once(lake: ty.Lake) -> None:
    waiting = []
    for number in range(6):
        tx = lake.signed(f"writer {number}").transaction()
        tx.table("a").append(numbers(number))
        tx.table("b").delete("id = 1")
        waiting.append(tx)
    lake.table("b").delete("id = 1")
    failed = together(*(tx.commit for tx in waiting))
    assert all(isinstance(error, ty.RetryableConflict) for error in failed)
    assert {one.author for one in records(lake)} == {f"writer {number}" for number in range(6)}


def _older(lake: ty.Lake, like: LakeRefusal, count: int) -> None:
    """So many records that are older, each by a second more."""
    newest = (folder(lake) / f"{like.transaction_id}.json").stat().st_mtime
    for number in range(count):
        other = replace(like, transaction_id=f"{number:08x}-0000-4000-8000-000000000000")
        path = folder(lake) / f"{other.transaction_id}.json"
        path.write_text(json.dumps({"lake": lake.id, **other.to_dict()}))
        os.utime(path, (newest - number - 1,) * 2)


def test_there_are_never_many(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "LOOKED_BY", 1)
    first = refused(lake)
    _older(lake, records(lake)[0], MOST_KEPT + 20)
    lake.table("b").append(numbers(7))
    last = refused(lake, 7)
    kept = [one.transaction_id for one in records(lake)]
    assert len(list(folder(lake).iterdir())) == MOST_KEPT == len(kept)
    assert kept[:3] == [last.id, first.id, "00000000-0000-4000-8000-000000000000"]


def test_a_cleanup_removes_what_is_old_or_too_many(lake: ty.Lake) -> None:
    tx = refused(lake)
    _older(lake, records(lake)[0], MOST_KEPT + 4)
    (folder(lake) / "notes.txt").write_text("not ours")
    assert lake.cleanup(dry_run=True).refusals == 5
    assert len(list(folder(lake).iterdir())) == MOST_KEPT + 6
    assert lake.cleanup().refusals == 5
    assert lake.cleanup().refusals == 0
    assert tx.id in {one.transaction_id for one in records(lake)}
    assert lake.cleanup(retention=ty.LakeRetention(outcomes=timedelta(0))).refusals == MOST_KEPT
    assert [path.name for path in folder(lake).iterdir()] == ["notes.txt"]
    assert lake.check().ok


def _said(**more: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda told: {**told, **more}


@pytest.mark.parametrize(
    "change",
    [
        _said(lake="another lake"),
        _said(transaction_id="another transaction"),
        _said(time="yesterday"),
        _said(tables=[{"id": "x"}]),
        _said(tables=7),
        _said(winners=["bob"]),
        _said(base=None),
        _said(expected="many"),
        lambda told: [told],
        lambda told: {name: value for name, value in told.items() if name != "kind"},
        lambda told: {**told, "sentence": "x" * 70_000},
    ],
)
def test_what_is_no_record_of_this_lake_is_left_out(lake: ty.Lake, change: Callable[[dict[str, Any]], Any]) -> None:
    first = refused(lake)
    path = folder(lake) / f"{first.id}.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    lake.table("b").append(numbers(7))
    last = refused(lake, 7)
    assert [one.transaction_id for one in records(lake)] == [last.id]


def test_a_record_is_small_and_holds_no_credential(tmp_path: Path) -> None:
    with ty.Lake.open(tmp_path / "lake", author="eve s3://me:hunter2@host", durability="os") as lake:
        with lake.transaction() as tx:
            for number in range(40):
                tx.create_table(f"t{number:02d}", numbers(1))
        tx = lake.transaction(message="see https://ada:hunter2@host " + "x" * 900)
        for number in range(40):
            tx.table(f"t{number:02d}").append(numbers(2))
        tx.table("t39").delete("id = 1")
        for _ in range(30):
            lake.table("t39").append(pa.table({"id": pa.array([5], pa.int64())}))
        lake.drop_table("t39")
        with pytest.raises(ty.ConflictError):
            tx.commit()
        data = (folder(lake) / f"{tx.id}.json").read_text()
        assert "hunter2" not in data
        assert len(data) < 20_000
        told = records(lake)[0]
        assert (len(told.tables), told.more) == (20, 20)
        assert told.contested is not None
        assert told.contested.name == "t39"


def test_merges_tell_of_their_conflicts_themselves(lake: ty.Lake) -> None:
    lake.branches.create("trial")
    for there in (lake, lake.on_branch("trial")):
        there.table("b").delete("id = 1")
        there.table("b").append(numbers(5))
    with pytest.raises(ty.MergeConflict):
        lake.branches.merge("trial", into="main")
    assert records(lake) == []

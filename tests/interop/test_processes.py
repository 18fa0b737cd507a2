"""Processes of ours and of plain pylance commit to one table at the same time: nothing acknowledged is lost or doubled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

import tiltyard as ty
from tests.interop.interop_writers import SCHEMA, Job, append_with_pylance, append_with_us, create_with_us, row, run_together
from tests.support.proving import pick
from tests.support.tables import Chronicle, open_stock
from tiltyard.interfaces import CommitHandler, ObjectStore
from tiltyard.storage.handlers import ConditionalPutHandler

Durability = Literal["fsync", "os"]


def _writers(each: int) -> list[tuple[str, Job]]:
    ours: list[tuple[str, Job]] = [(f"ours-{number}", append_with_us) for number in range(each)]
    return [*ours, *((f"stock-{number}", append_with_pylance) for number in range(each))]


@pytest.mark.parametrize(
    ("each", "commits", "durability", "stable"),
    [(4, pick(10, 25), "os", False), (2, 6, "fsync", True)],
    ids=["eight-writers-os", "four-writers-fsync-stable-row-ids"],
)
def test_all_that_was_acknowledged_is_there_exactly_once(
    each: int, commits: int, durability: Durability, stable: bool, tmp_path: Path
) -> None:
    uri = tmp_path / "t"
    ty.Table.create(uri, SCHEMA, stable_row_ids=stable, durability=durability)
    reports = run_together(uri, _writers(each), commits, durability)
    table = ty.Table.open(uri)
    rows = open_stock(str(uri)).to_table(columns=["writer", "sequence"]).to_pylist()
    found = Counter((one["writer"], one["sequence"]) for one in rows)
    acknowledged = {(report.writer, sequence) for report in reports for sequence in report.acknowledged}
    assert {pair for pair in acknowledged if pair[0].startswith("ours")} == {
        (f"ours-{number}", sequence) for number in range(each) for sequence in range(commits)
    }
    assert acknowledged <= set(found)
    # What pylance gave up on may have been applied all the same, but not twice.
    assert set(found.values()) == {1}
    assert set(found) <= {(writer, sequence) for writer, _ in _writers(each) for sequence in range(commits)}
    assert table.layout.versions() == list(range(1, len(found) + 2))
    history = table.history()
    assert len({entry.transaction_id for entry in history}) == len(history)
    assert [entry.operation for entry in history] == ["Append"] * len(found) + ["Overwrite"]
    assert [entry.rows for entry in reversed(history)] == list(range(len(found) + 1))
    assert sum(entry.writer.startswith("tiltyard") for entry in history) == each * commits + 1
    report = table.check()
    assert list(report.problems) == []
    # Attempts of pylance that lost leave files behind; ours do not: a file of ours that no version names would be one of these.
    assert sum(path.startswith("data/") for path in report.orphans) <= sum(len(report.failures) for report in reports)
    open_stock(str(uri)).validate()
    if stable:
        ids = open_stock(str(uri)).to_table(columns=["_rowid", "_row_created_at_version"])
        assert sorted(ids["_rowid"].to_pylist()) == list(range(len(found)))
        assert sorted(ids["_row_created_at_version"].to_pylist()) == list(range(2, len(found) + 2))


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_of_two_creators_one_wins_and_the_other_leaves_nothing(durability: Durability, tmp_path: Path) -> None:
    for attempt in range(2):
        uri = tmp_path / f"t{attempt}"
        reports = run_together(uri, [("a", create_with_us), ("b", create_with_us)], 1, durability)
        assert sorted(report.acknowledged for report in reports) == [(), (0,)]
        (loser,) = [report for report in reports if not report.acknowledged]
        (winner,) = [report for report in reports if report.acknowledged]
        assert loser.failures == ("already-exists",)
        assert open_stock(str(uri)).to_table()["writer"].to_pylist() == [winner.writer]
        assert len(list((uri / "data").iterdir())) == 1
        assert len(list((uri / "_transactions").iterdir())) == 1
        assert [path.name for path in (uri / "_versions").iterdir() if path.suffix == ".manifest"] == ["18446744073709551614.manifest"]
        Chronicle(str(uri)).sound()


@dataclass
class Overtaken:
    """A handler before whose only creation somebody else makes the table."""

    uri: Path
    real: CommitHandler
    name: str = "overtaken"

    def create(self, store: ObjectStore, path: str, data: bytes) -> None:
        ty.Table.create(self.uri, row("rival", 0), durability="os")
        self.real.create(store, path, data)


def test_a_creator_that_is_overtaken_at_the_last_moment_removes_its_files(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    with pytest.raises(ty.errors.AlreadyExists):
        ty.Table.create(uri, row("late", 0), storage=ty.Storage(handler=Overtaken(uri, ConditionalPutHandler()), durability="os"))
    assert open_stock(str(uri)).to_table()["writer"].to_pylist() == ["rival"]
    assert len(list((uri / "data").iterdir())) == len(list((uri / "_transactions").iterdir())) == 1
    Chronicle(str(uri)).sound()

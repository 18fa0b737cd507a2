"""From versions back to transactions: orders and numbers are those that a history had, whenever they are said to be certain."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tiltyard.catalog.marks import VersionMarks
from tiltyard.lakes.recovery.found import FoundVersion, LineKey
from tiltyard.lakes.recovery.regroup import Evidence, FoundTransaction, certain, contested, group, last_staged

START = datetime(2026, 1, 1, tzinfo=UTC)


def version(number: int, transaction: str, *, base: int = 0, at: int = 0, staged: str | None = None, count: int = 0) -> FoundVersion:
    marks = VersionMarks("lake", transaction, "main", "", base, "ada") if transaction else None
    maker = f"{transaction or 'foreign'}/{number}"
    moment = START + timedelta(seconds=at)
    return FoundVersion(number, f"_versions/{number}", staged, count, maker, "Append", True, 0, moment, "", marks, "", {}, {}, "v2")


def key(name: str) -> LineKey:
    return name, None


def ours(found: FoundVersion) -> bool:
    return bool(found.transaction)


def names(batches: list[list[FoundTransaction]]) -> list[list[str]]:
    return [[found.id for found in batch] for batch in batches]


def test_a_transaction_over_several_tables_is_one_group() -> None:
    lines = {key("a"): [version(2, "x"), version(3, "y")], key("b"): [version(2, "y"), version(3, "y")]}
    found = group(lines, ours)
    assert names(found) == [["x"], ["y"]]
    assert {line: len(part) for line, part in found[1][0].parts.items()} == {key("a"): 1, key("b"): 2}


def test_foreign_versions_in_a_row_are_one_group() -> None:
    found = group({key("a"): [version(2, ""), version(3, ""), version(4, "x"), version(5, "")]}, ours)
    assert [batch[0].is_foreign for batch in found] == [True, False, True]


def test_marks_that_contradict_each_other_come_at_once() -> None:
    lines = {key("a"): [version(2, "x"), version(3, "y")], key("b"): [version(2, "y"), version(3, "x")], key("c"): [version(2, "z")]}
    assert names(group(lines, ours)) == [["z"], ["x", "y"]]


def test_what_was_staged_last_counts() -> None:
    staged = [
        version(5, "x", staged="1", count=1),
        version(6, "x", staged="2", count=2),
        version(6, "x", staged="3", count=3),
        version(7, "x", staged="4", count=4),
        version(6, "other", staged="5", count=1),
    ]
    assert [found.staged for found in last_staged(staged, "x", 5)] == ["3", "4"]
    assert last_staged(staged, "x", 7) == []


def test_a_number_that_a_foreign_writer_took() -> None:
    staged = [version(6, "x", staged="1", count=1)]
    line = [version(5, "w"), version(6, "")]
    assert [found.staged for found in contested(line, staged, "x", 4)] == ["1"]
    assert contested([version(5, "w"), version(6, "x")], staged, "x", 4) == [], "it has its name, and was only left behind"
    assert contested([version(5, "w")], staged, "x", 4) == [], "nobody has the number"


@pytest.mark.parametrize(
    ("evidence", "sure"),
    [
        ([], 0),
        ([("a", 1), ("a", 2), ("a", 2)], 3),  # a handle that saw snapshot 1 when it was opened
        ([("a", 1), ("b", 1)], 0),  # which came first is not known
        ([("a", 1), ("b", 2)], 2),  # the second saw the first
        ([("a", 1), ("a", 3)], 0),  # one was not found, and where it was is not known
        ([("a", 1), ("a", 1), ("a", 4)], 0),
        ([("a", 2)], 0),
    ],
)
def test_numbers_that_are_certain(evidence: list[tuple[str, int]], sure: int) -> None:
    assert certain([Evidence(frozenset({key(name)}), least) for name, least in evidence], 0) == sure


def test_foreign_versions_have_numbers_only_where_a_later_commit_tells() -> None:
    foreign = Evidence(frozenset({key("a")}), 0, is_counted=False)
    assert certain([foreign, foreign], 5) == 0
    assert certain([foreign, Evidence(frozenset({key("a")}), 7)], 5) == 0, "it may have begun long before"
    assert certain([foreign, Evidence(frozenset({key("a")}), 7, exact=7)], 5) == 2
    assert certain([foreign, Evidence(frozenset({key("a")}), 8, exact=8)], 5) == 0
    assert certain([replace(foreign, is_counted=True), Evidence(frozenset({key("a")}), 6)], 5) == 2


@pytest.mark.parametrize("seed", range(200))
def test_random_histories(seed: int) -> None:
    """Some commits leave no trace, clocks differ, and bases are old. What is said to be certain is what was."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    tables = [key(name) for name in "abc"[: chance.randint(1, 3)]]
    lines: dict[LineKey, list[FoundVersion]] = {table: [] for table in tables}
    true: dict[str, int] = {}
    for number in range(1, chance.randint(2, 12)):
        if chance.random() < 0.1:
            continue  # a drop that nobody wrote down
        name = f"t{number}"
        true[name] = number
        touched = chance.sample(tables, chance.randint(1, len(tables)))
        base = number - 1 if chance.random() < 0.6 else chance.randrange(number)
        for table in touched:
            lines[table].append(version(len(lines[table]) + 2, name, base=base, at=number + chance.randint(-2, 2)))
    batches = group(lines, ours)
    assert all(len(batch) == 1 for batch in batches)
    order = [batch[0] for batch in batches]
    for line in lines.values():
        places = [next(place for place, found in enumerate(order) if found.id == one.transaction) for one in line]
        assert places == sorted(places)
    sure = certain([Evidence(frozenset(found.parts), found.base + 1) for found in order], 0)
    told = any(found.base > place for place, found in enumerate(order))
    if len(true) == max(true.values(), default=0):
        assert [true[found.id] for found in order[:sure]] == list(range(1, sure + 1))
    elif told:  # somebody saw a snapshot that is not there
        assert sure == 0

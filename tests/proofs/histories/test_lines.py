"""Histories as lines: what processes write, also those that die, comes back as the history it was."""

from __future__ import annotations

from itertools import count

import pytest

from tests.proofs.histories.executors import execute
from tiltyard.errors import InvalidInput
from tiltyard_proofs.histories import (
    Append,
    History,
    Op,
    Outcome,
    Read,
    Recorder,
    Transaction,
    began_line,
    check,
    dump,
    ended_line,
    load,
)


def test_there_and_back() -> None:
    history = execute(3, 200, "snapshot", faults=0.2)
    assert load(dump(history)) == history


def test_recorders_of_several_processes_are_merged_by_time() -> None:
    now = count(100)
    files: dict[str, list[str]] = {"p1": [], "p2": [], "p3": []}
    one, two, three = (Recorder(name, lines.append, lambda: next(now)) for name, lines in files.items())
    first = one.begin([Append("x", 1)])
    second = two.begin([Read("x"), Append("y", "a")])
    one.end(first, "ok", [Append("x", 1)])
    two.end(second, "failed", [Read("x", (1,)), Append("y", "a")])
    again = two.begin([Read("x")])
    two.end(again, "ok", [Read("x", (1,))])
    three.end(three.begin([Read("x"), Read("y")], final=True), "ok", [Read("x", (1,)), Read("y", ())])
    expected = (
        Transaction("p1", 0, 100, 102, (Append("x", 1),), "ok"),
        Transaction("p2", 0, 101, 103, (Read("x", (1,)), Append("y", "a")), "failed"),
        Transaction("p2", 1, 104, 105, (Read("x", (1,)),), "ok"),
        Transaction("p3", 0, 106, 107, (Read("x", (1,)), Read("y", ())), "ok", final=True),
    )
    for order in (["p1", "p2", "p3"], ["p3", "p2", "p1"]):
        assert load(*(files[name] for name in order)) == History(expected)


@pytest.mark.parametrize("kept", [0, 1, 20, -2])
def test_a_killed_process_leaves_an_unknown_outcome(kept: int) -> None:
    """However much of its last line got out."""
    ended = ended_line("p1", 0, 9, "ok", [Append("x", 1)])
    history = load([began_line("p1", 0, 5, [Append("x", 1)]), ended[:kept]])
    assert history.transactions == (Transaction("p1", 0, 5, None, (Append("x", 1),), "unknown"),)


def test_a_whole_line_counts_without_its_end() -> None:
    lines = [began_line("p1", 0, 5, [Append("x", 1)]), ended_line("p1", 0, 9, "ok", [Append("x", 1)]).rstrip("\n")]
    assert load(lines).transactions[0].outcome == "ok"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"process": "p", \n', "\n"], "not JSON"),
        (["[1]\n"], "lacks"),
        (['{"process": "p", "index": 1}\n'], "lacks"),
        ([ended_line("p", 0, 1, "ok", [])], "whole number"),
        ([began_line("p", 0, 1, [])] * 2, "second time"),
        (['{"process":"p","index":0,"began":1,"ended":2,"outcome":"perhaps","ops":[]}\n'], "perhaps"),
        (['{"process":"p","index":0,"began":1,"ops":[["write","x",1]]}\n'], "neither an append nor a read"),
        (['{"process":"p","index":0,"began":1,"ops":[["append","x",1.5]]}\n'], "neither an append nor a read"),
        (['{"process":"p","index":0,"began":1,"ops":[["read","x",[true]]]}\n'], "neither an append nor a read"),
    ],
)
def test_lines_that_say_nothing_clear_are_refused(lines: list[str], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        load(lines)


def one(*ops: Op, process: str = "p", index: int = 0, began: int = 1, ended: int | None = 2, outcome: Outcome = "ok") -> Transaction:
    return Transaction(process, index, began, ended, ops, outcome)


@pytest.mark.parametrize(
    ("transactions", "says"),
    [
        ([one(Append("x", 1)), one(Append("x", 1), process="q", outcome="failed")], "both append 1"),
        ([one(Append("x", 1), Append("x", 1))], "both append 1"),
        ([one(Append("x", True))], "neither an int nor a str"),
        ([one(), one()], "two transactions p/0"),
        ([one(index=1), one(index=2, began=0)], "one at a time"),
        ([one(ended=0)], "before it began"),
        ([one(ended=None)], "no end"),
        ([one(outcome="maybe")], "maybe"),  # type: ignore[arg-type]
    ],
)
def test_histories_that_cannot_be_judged_are_refused(transactions: list[Transaction], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        History(tuple(transactions))


def test_an_unknown_isolation_is_refused() -> None:
    with pytest.raises(InvalidInput, match="chaos"):
        check(History(()), "chaos")  # type: ignore[arg-type]

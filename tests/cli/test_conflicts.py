"""The commands on the conflict table, for people and for programs."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run
from tiltyard.conflicts import CELLS, RULES, SIGNS, UNKNOWN


@pytest.mark.parametrize("width", [40, 80, 200])
def test_explain_tells_rule_condition_reason_and_example(run: Run, width: int) -> None:
    done = run("conflicts", "explain", "delete", "rewrite", width=width)
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    assert "Delete is to be committed, Rewrite was committed meanwhile." in text
    assert text.index("rebase overlapping fragments, rows can be followed") < text.index("retry overlapping fragments")
    assert text.index("retry overlapping fragments") < text.index("compatible otherwise")
    assert "condition" in text
    assert "because" in text
    assert "deviation" in text
    assert "Ours deletes row 7 of fragment 0; theirs compacts fragments 0 and 1." in text
    assert "It is known where each row was put." in text
    facts = [line for line in done.out.splitlines() if line.startswith("  ")]
    assert max(map(len, facts)) <= width


def test_explain_says_when_there_is_nothing_to_say(run: Run) -> None:
    assert "compatible  always" in run("conflicts", "explain", "Append", "Append").out
    assert "One of these rules always applies" in run("conflicts", "explain", "Append", "Overwrite").out


@pytest.mark.parametrize("mine", RULES)
def test_explain_for_programs(run: Run, mine: str) -> None:
    for theirs in (*RULES, UNKNOWN):
        done = run("conflicts", "explain", mine, theirs, "--json")
        assert (done.code, done.err) == (0, "")
        found = json.loads(done.out)
        assert set(found) == {"committing", "committed", "sign", "rules", "otherwise"}
        assert (found["committing"], found["committed"], found["sign"]) == (mine, theirs, SIGNS[mine][theirs])
        assert [(one["when"], one["outcome"]) for one in found["rules"]] == [(one.when, one.then.value) for one in RULES[mine][theirs]]
        for one in found["rules"]:
            assert set(one) == {"when", "outcome", "why", "deviation", "condition", "example"}
            assert one["example"]["verdict"]["outcome"] == one["outcome"]
        if found["otherwise"] is not None:
            assert found["otherwise"]["example"]["verdict"]["outcome"] == "compatible"


@pytest.mark.parametrize("arguments", [("Vacuum", "Append"), ("Append", "Vacuum"), ("Unknown", "Append")])
def test_a_name_nobody_knows_is_an_error(run: Run, arguments: tuple[str, str]) -> None:
    done = run("conflicts", "explain", *arguments)
    assert (done.code, done.out) == (2, "")
    assert "There is no operation" in done.err
    told = run("conflicts", "explain", *arguments, "--json")
    assert (told.code, told.err) == (2, "")
    assert json.loads(told.out)["kind"] == "invalid-input"


def test_table_has_every_pair(run: Run) -> None:
    lines = run("conflicts", "table", width=120).out.splitlines()
    grid = {line.split()[0]: line.split()[1:] for line in lines[1 : 1 + len(RULES)]}
    assert grid == {mine: list(row.values()) for mine, row in SIGNS.items()}
    assert lines[0].split()[-2:] == ["Bas", "?"]
    legend = {line.split()[0] for line in lines[2 + len(RULES) :] if line[:1].strip()}
    assert legend == set(CELLS)


def test_table_for_programs(run: Run) -> None:
    found = json.loads(run("conflicts", "table", "--json").out)
    assert found["pairs"] == {mine: dict(row) for mine, row in SIGNS.items()}
    assert {sign: len(rules) for sign, rules in found["cells"].items()} == {sign: len(rules) for sign, rules in CELLS.items()}


def test_conflicts_alone_shows_its_commands(run: Run) -> None:
    done = run("conflicts", "--help")
    assert done.code == 0
    assert "explain" in done.out
    assert "table" in done.out

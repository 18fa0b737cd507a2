"""The conflict table as data: it is whole, and each cell can be read and reached."""

from __future__ import annotations

import pytest

from tiltyard import ops
from tiltyard.errors import InvalidInput
from tiltyard.format.values import BasePath, DataFile, DataFragment, Field
from tiltyard.transaction.conditions import CONDITIONS
from tiltyard.transaction.examples import DEEDS, explain
from tiltyard.transaction.rules import ABOUT_KEYS, CELLS, FREE, GRID, OPERATIONS, RULES, SIGNS, UNKNOWN, Outcome

FRAGMENT = DataFragment(0, (DataFile("a.lance", (0,), (0,)),), 1)
SCHEMA = (Field("id", 0, -1, "int64"),)

COMMITTED: dict[str, ops.Operation] = {
    "App": ops.Append((FRAGMENT,)),
    "Del": ops.Delete((FRAGMENT,), (3,), "id > 1"),
    "Ovr": ops.Overwrite((FRAGMENT,), SCHEMA),
    "Idx": ops.CreateIndex((ops.IndexMetadata("0" * 32, (0,), "id_idx", 1),)),
    "Rew": ops.Rewrite((ops.RewriteGroup((FRAGMENT,), (FRAGMENT,)),)),
    "Mrg": ops.Merge((FRAGMENT,), SCHEMA),
    "Prj": ops.Project(SCHEMA),
    "Rst": ops.Restore(1),
    "Rsv": ops.ReserveFragments(3),
    "Cln": ops.Clone(True, None, 1, "/elsewhere"),
    "Upd": ops.Update((), (FRAGMENT,), (FRAGMENT,)),
    "Cfg": ops.UpdateConfig(ops.UpdateMap((("k", "v"),))),
    "Rpl": ops.DataReplacement((ops.Replacement(0, DataFile("b.lance", (0,), (0,))),)),
    "MW": ops.UpdateMemWalState((ops.CompactedSsTable("0" * 32, 1),)),
    "Bas": ops.UpdateBases((BasePath(1, "/b"),)),
}


def test_the_grid_has_every_pair() -> None:
    names = [one.name for one in COMMITTED.values()]
    assert list(OPERATIONS) == list(COMMITTED)
    assert list(OPERATIONS.values()) == names
    assert list(SIGNS) == names
    for row in SIGNS.values():
        assert list(row) == [*names, UNKNOWN]


def test_every_sign_of_the_grid_has_a_cell_and_every_cell_a_place() -> None:
    used = {sign for row in SIGNS.values() for sign in row.values()}
    assert used - {FREE} == set(CELLS)
    assert all(bool(RULES[mine][theirs]) is (sign != FREE) for mine, row in SIGNS.items() for theirs, sign in row.items())


def test_the_columns_of_the_grid_stand_under_each_other() -> None:
    """Or nobody could read it beside the specification."""
    head, *rows = GRID.strip("\n").splitlines()
    columns = _word_starts(head)
    for row in rows:
        assert _word_starts(row) == [0, *(at + 1 for at in columns)]


def _word_starts(line: str) -> list[int]:
    return [at for at in range(len(line)) if line[at] != " " and (at == 0 or line[at - 1] == " ")]


def test_every_rule_can_be_read_and_decides_something() -> None:
    for sign, rules in CELLS.items():
        assert rules, sign
        # Only the last of several may hold always, or those after it would never be asked.
        assert all(rule.when != "always" for rule in rules[:-1]), sign
        for rule in rules:
            assert rule.then is not Outcome.COMPATIBLE
            assert rule.why
            assert not rule.why.endswith(".")
            assert rule.why[0].islower() or rule.why.startswith("a Merge")


def test_every_condition_is_asked_somewhere_and_says_what_it_asks() -> None:
    assert {rule.when for rules in CELLS.values() for rule in rules} == set(CONDITIONS)
    for condition in CONDITIONS.values():
        assert condition.meaning
    assert set(CONDITIONS) >= ABOUT_KEYS


def test_every_outcome_that_only_refuses_is_told_apart() -> None:
    assert {rule.then for rules in CELLS.values() for rule in rules} == {Outcome.REBASE, Outcome.RETRY, Outcome.INCOMPATIBLE}


@pytest.mark.parametrize("mine", RULES)
@pytest.mark.parametrize("theirs", [*RULES, UNKNOWN])
def test_every_rule_has_a_worked_example(mine: str, theirs: str) -> None:
    found = explain(mine, theirs)
    assert [one.rule for one in found.rules] == list(RULES[mine][theirs])
    for one in found.rules:
        assert one.example.verdict.rule == one.rule
        assert one.example.verdict.outcome is one.rule.then
        assert one.rule.why in one.example.verdict.reason
        assert one.meaning == CONDITIONS[one.rule.when].meaning
    ends_in_always = bool(found.rules) and found.rules[-1].rule.when == "always"
    assert (found.otherwise is None) == ends_in_always
    if found.otherwise is not None:
        assert found.otherwise.verdict.outcome is Outcome.COMPATIBLE


@pytest.mark.parametrize(
    ("given", "name"),
    [("CreateIndex", "CreateIndex"), ("create-index", "CreateIndex"), ("create_index", "CreateIndex"), ("idx", "CreateIndex")],
)
def test_names_are_taken_as_people_write_them(given: str, name: str) -> None:
    assert explain(given, given).committing == name
    assert explain(given, "unknown").committed == UNKNOWN
    assert explain(given, "?").committed == UNKNOWN


@pytest.mark.parametrize(
    ("mine", "theirs", "argument"),
    [("Vacuum", "Append", "committing"), ("Append", "Vacuum", "committed"), ("Unknown", "Append", "committing")],
)
def test_other_names_are_refused(mine: str, theirs: str, argument: str) -> None:
    with pytest.raises(InvalidInput, match="no operation") as caught:
        explain(mine, theirs)
    assert caught.value.argument == argument
    assert "Append" in caught.value.advice


def test_deeds_do_what_their_operation_says() -> None:
    for name, deeds in DEEDS.items():
        for deed in deeds:
            assert name in (deed.operation.name, UNKNOWN)
            assert deed.words

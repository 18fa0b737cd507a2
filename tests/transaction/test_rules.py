"""The rows of the conflict grid for Append and Overwrite as the committing side, cell by cell, and what the cells' letters mean."""

from __future__ import annotations

import pytest

from tiltyard import ops
from tiltyard.format.values import BasePath, DataFile, DataFragment, Field
from tiltyard.transaction.rules import CONDITIONS, RULES, Outcome, config_keys, decide

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
GRID = """
Append    | . | . | X | . | . | n | n | X | . | . | . | . | . | X | .
Overwrite | . | . | k | . | . | . | . | . | . | . | . | k | . | X | .
"""
MEANS = {
    ".": {Outcome.COMPATIBLE},
    "X": {Outcome.INCOMPATIBLE},
    "n": {Outcome.RETRY},  # the operations above make no promise on nullability
    "k": {Outcome.RETRY, Outcome.COMPATIBLE},  # and share no config key
}
MINE: dict[str, ops.Operation] = {"Append": ops.Append((FRAGMENT,)), "Overwrite": ops.Overwrite((FRAGMENT,), SCHEMA)}


def _cells() -> list[tuple[str, str, str]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in GRID.strip().splitlines()]
    return [(row[0], committed, letter) for row in rows for committed, letter in zip(COMMITTED, row[1:], strict=True)]


@pytest.mark.parametrize(("mine", "theirs", "letter"), _cells())
def test_cell(mine: str, theirs: str, letter: str) -> None:
    verdict = decide(MINE[mine], COMMITTED[theirs])
    assert verdict.outcome in MEANS[letter]
    assert verdict.reason


@pytest.mark.parametrize("theirs", [ops.Merge((FRAGMENT,), SCHEMA, preserves_nullability=True), ops.Project(SCHEMA, True)])
def test_an_append_goes_over_a_schema_change_that_keeps_nullability(theirs: ops.Operation) -> None:
    assert decide(MINE["Append"], theirs).outcome is Outcome.COMPATIBLE


def _overwrite(**config: str) -> ops.Overwrite:
    return ops.Overwrite((FRAGMENT,), SCHEMA, config_upsert_values=config)


@pytest.mark.parametrize(
    ("mine", "theirs", "outcome", "overlap"),
    [
        (_overwrite(), _overwrite(), Outcome.RETRY, ()),
        (_overwrite(), _overwrite(k="1"), Outcome.RETRY, ()),
        (_overwrite(a="1"), _overwrite(b="1"), Outcome.RETRY, ()),
        (_overwrite(a="1", k="1"), _overwrite(k="1"), Outcome.INCOMPATIBLE, ("k",)),
        (_overwrite(), ops.UpdateConfig(ops.UpdateMap((("k", "1"),))), Outcome.COMPATIBLE, ()),
        (_overwrite(a="1"), ops.UpdateConfig(ops.UpdateMap((("k", "1"),))), Outcome.COMPATIBLE, ()),
        (_overwrite(k="1"), ops.UpdateConfig(ops.UpdateMap((("k", "2"),))), Outcome.INCOMPATIBLE, ("k",)),
        (_overwrite(k="1"), ops.UpdateConfig(ops.UpdateMap((("k", None),))), Outcome.INCOMPATIBLE, ("k",)),
        (_overwrite(k="1"), ops.UpdateConfig(ops.UpdateMap((), replace=True)), Outcome.COMPATIBLE, ()),
        (_overwrite(k="1"), ops.UpdateConfig(table_metadata_updates=ops.UpdateMap((("k", "2"),))), Outcome.COMPATIBLE, ()),
        (_overwrite(k="1"), ops.UpdateConfig(schema_metadata_updates=ops.UpdateMap((("k", "2"),))), Outcome.COMPATIBLE, ()),
        (_overwrite(k="1"), ops.UpdateConfig(field_metadata_updates={0: ops.UpdateMap((("k", "2"),))}), Outcome.COMPATIBLE, ()),
    ],
)
def test_config_keys_of_an_overwrite(mine: ops.Operation, theirs: ops.Operation, outcome: Outcome, overlap: tuple[str, ...]) -> None:
    verdict = decide(mine, theirs)
    assert (verdict.outcome, verdict.overlap) == (outcome, overlap)


@pytest.mark.parametrize("mine", MINE)
@pytest.mark.parametrize("theirs", [ops.UnknownOperation(116, b"\xa2\x07\x00"), ops.UnknownOperation(), ops.UnknownOperation(115)])
def test_what_nobody_knows_goes_with_nothing(mine: str, theirs: ops.Operation) -> None:
    assert decide(MINE[mine], theirs).outcome is Outcome.INCOMPATIBLE


def test_the_table_is_whole() -> None:
    for row in RULES.values():
        assert "Unknown" in row
        for rules in row.values():
            assert rules
            # Only the last of several may hold always, or those after it would never be asked.
            assert all(rule.when != "always" for rule in rules[:-1])
            for rule in rules:
                assert rule.when in CONDITIONS
                assert rule.then is not Outcome.COMPATIBLE
                assert rule.why


def test_only_configs_have_config_keys() -> None:
    assert config_keys(MINE["Append"]) == frozenset()
    assert config_keys(ops.UpdateConfig()) == frozenset()


def test_a_cast_leaves_the_rows_of_an_append_behind() -> None:
    """A cast gives the column another id; rows written under the old one would read as nulls."""
    cast = ops.Merge((FRAGMENT,), (Field("id", 7, -1, "int32"),), preserves_nullability=True)
    verdict = decide(MINE["Append"], cast)
    assert (verdict.outcome, verdict.overlap) == (Outcome.RETRY, ("field 0",))
    assert decide(MINE["Overwrite"], cast).outcome is Outcome.COMPATIBLE
    assert CONDITIONS["it moved a written column to another field"](MINE["Overwrite"], cast) is None

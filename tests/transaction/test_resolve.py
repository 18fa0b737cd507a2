"""The verdict on a pair: its type, its sentence, and what it does with what is not known or cannot be read."""

from __future__ import annotations

import pytest

import tiltyard as ty
from tests.transaction.matrix_cases import TRIM, creates, delete, index, inserts, log_index, log_state, move, rewrite
from tests.transaction.matrix_cases import append as append_of
from tiltyard import ops
from tiltyard.conflicts import Context, Found, Outcome
from tiltyard.errors import CorruptTable, UnsupportedFeature, Winner
from tiltyard.transaction.footprint import MEM_WAL, config_keys, installs, progress, removed_fragments, touched_fragments
from tiltyard.transaction.resolve import rules_for

WINNER = Winner(7, "0b5b1b1e", "Delete", "lance 14.0.2", "tidy up")


def _transaction(operation: ops.Operation, read_version: int = 6) -> ty.Transaction:
    return ty.Transaction(read_version, "d3a2", operation)


def test_each_outcome_is_a_type() -> None:
    append = ops.Append()
    rows = delete({0: [1]}).operation
    found = [
        ty.conflicts.resolve(append, append),
        ty.conflicts.resolve(rows, rows),
        ty.conflicts.resolve(rows, ops.Merge()),
        ty.conflicts.resolve(append, ops.Restore(1)),
    ]
    assert [type(one) for one in found] == [ty.conflicts.Compatible, ty.conflicts.Rebase, ty.conflicts.Retry, ty.conflicts.Incompatible]
    assert [one.outcome for one in found] == list(Outcome)
    assert all(isinstance(one, ty.conflicts.Verdict) for one in found)


def test_verdicts_are_values() -> None:
    first, second = (ty.conflicts.resolve(_transaction(ops.Append()), ops.Restore(1)) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    with pytest.raises(AttributeError):
        first.reason = ""  # type: ignore[misc]
    match first:
        case ty.conflicts.Incompatible(reason=reason):
            assert reason == "Append read version 6, then came Restore: the table was restored to an older version."
        case _:
            pytest.fail("not the type it was")


def test_the_sentence_names_who_met_whom_and_where() -> None:
    mine, theirs = delete({3: [5, 6, 7, 8, 9, 10]}), delete({3: range(20)})
    context = Context(WINNER, my_rows=mine.rows, their_rows=theirs.rows)
    verdict = ty.conflicts.resolve(_transaction(mine.operation), _transaction(theirs.operation), context=context)
    assert verdict.reason == (
        "Delete read version 6, then came version 7 (Delete by lance 14.0.2): both changed the same rows "
        "(row 5 of fragment 3, row 6 of fragment 3, row 7 of fragment 3)."
    )
    assert verdict.rows == ((3, 5), (3, 6), (3, 7), (3, 8), (3, 9))
    assert verdict.sample == ("row 5 of fragment 3", "row 6 of fragment 3", "row 7 of fragment 3")


def test_without_a_winner_a_transaction_is_named_by_its_id() -> None:
    verdict = ty.conflicts.resolve(ops.Append(), _transaction(ops.Restore(1)))
    assert verdict.reason == "Append after Restore (transaction d3a2): the table was restored to an older version."


def test_a_rebase_that_depends_on_rows_says_so() -> None:
    mine, theirs = delete({0: [1], 4: [1]}, known=False), delete({0: [2], 4: [2]}, known=False)
    verdict = ty.conflicts.resolve(mine.operation, theirs.operation)
    assert isinstance(verdict, ty.conflicts.Rebase)
    assert verdict.undecided_fragments == verdict.merge_fragments == (0, 4)
    assert "once their rows are known to differ (fragment 0, fragment 4)" in verdict.reason
    known = Context(my_rows=delete({0: [1], 4: [1]}).rows, their_rows=delete({0: [2], 4: [2]}).rows)
    again = ty.conflicts.resolve(mine.operation, theirs.operation, context=known)
    assert isinstance(again, ty.conflicts.Rebase)
    assert (again.undecided_fragments, again.merge_fragments) == ((), (0, 4))
    assert "once" not in again.reason


def test_sentences_stay_short_whatever_met() -> None:
    names = {f"key {number} " + "x" * 100: "" for number in range(9)}
    mine = ops.UpdateConfig(ops.UpdateMap(tuple(names.items())))
    verdict = ty.conflicts.resolve(_transaction(mine), mine, context=Context(Winner(2**60, "t" * 36, "UpdateConfig", "w" * 200)))
    assert len(verdict.reason) < 300
    assert verdict.reason.endswith("...")
    assert len(verdict.names) == 9


def test_a_sample_has_three_at_most_and_the_most_telling_first() -> None:
    assert Found(fragments=(1, 2, 3, 4)).sample == ("fragment 1", "fragment 2", "fragment 3")
    assert Found(fragments=(1, 2), names=("index a",)).sample == ("index a", "fragment 1", "fragment 2")
    assert Found(fragments=(1,), rows=((1, 4),)).sample == ("row 4 of fragment 1",)
    assert Found().sample == ()


def test_an_operation_of_ours_that_nobody_knows_is_not_decided_upon() -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        ty.conflicts.resolve(ops.UnknownOperation(116), ops.Append())
    assert caught.value.writing
    assert caught.value.feature == "unknown operation 116"


def test_any_name_nobody_knows_stands_for_the_unknown() -> None:
    assert rules_for("Append", "unknown operation 999") == rules_for("Append", "no operation") == rules_for("Append", "Unknown")


def test_deciding_changes_nothing() -> None:
    mine, theirs = move({0: [1, 2]}), move({0: [3]})
    ty.conflicts.resolve(mine.operation, theirs.operation, context=Context(my_rows=mine.rows, their_rows=theirs.rows))
    assert (mine.rows, theirs.rows) == (move({0: [1, 2]}).rows, move({0: [3]}).rows)


def test_a_verdict_tells_whether_keys_are_at_stake() -> None:
    merge, append = inserts(1).operation, append_of([1])
    assert ty.conflicts.resolve(merge, merge).about_keys
    assert ty.conflicts.resolve(merge, append.operation).about_keys
    assert ty.conflicts.resolve(append.operation, merge).about_keys
    assert not ty.conflicts.resolve(merge, ops.Restore(1)).about_keys
    assert not ty.conflicts.resolve(append.operation, append.operation).about_keys


def test_a_merge_whose_key_types_are_unknown_is_never_let_pass() -> None:
    mine, theirs = inserts(1).operation, inserts(2).operation
    assert isinstance(ty.conflicts.resolve(mine, theirs), ty.conflicts.Retry)
    assert isinstance(ty.conflicts.resolve(mine, theirs, context=Context(key_types=("int64",))), ty.conflicts.Compatible)


def test_a_reuse_entry_nobody_knows_of_excuses_nothing() -> None:
    """A rewrite's transaction does not tell whether it postponed the remapping of indices."""
    first, second = rewrite((0, 1)).operation, rewrite((2, 3)).operation
    assert isinstance(ty.conflicts.resolve(first, second), ty.conflicts.Retry)
    assert isinstance(ty.conflicts.resolve(first, second, context=Context(my_reuse=True)), ty.conflicts.Retry)
    assert isinstance(ty.conflicts.resolve(first, second, context=Context(my_reuse=False)), ty.conflicts.Compatible)
    assert isinstance(ty.conflicts.resolve(first, second, context=Context(their_reuse=False)), ty.conflicts.Compatible)
    covering = creates(index("a", covers=(0, 1))).operation
    assert isinstance(ty.conflicts.resolve(covering, first), ty.conflicts.Retry)
    assert isinstance(ty.conflicts.resolve(first, covering), ty.conflicts.Retry)
    assert isinstance(ty.conflicts.resolve(TRIM.operation, first), ty.conflicts.Rebase)
    assert isinstance(ty.conflicts.resolve(first, TRIM.operation), ty.conflicts.Rebase)


BROKEN_COVERAGE = ops.CreateIndex((ops.IndexMetadata("0" * 32, (1,), "i", 1, b"\x01\x02"),))
BROKEN_LOG = creates(index(log_index().name, (), None, 8, "MemWal", b"\xff")).operation
BROKEN_SHARD = creates(index(log_index().name, (), None, 8, "MemWal", b"\x4a\x02\x10\x01")).operation
BROKEN_ROWS = ops.Update(
    (),
    (ops.DataFragment(0, (), 1),),
    fields_modified=(1,),
    update_mode=ops.UpdateMode.REWRITE_COLUMNS,
    updated_fragment_offsets={0: b"\x00"},
)
REWRITE = ops.Rewrite((ops.RewriteGroup((ops.DataFragment(0, (), 1),), ()),))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (REWRITE, BROKEN_COVERAGE),
        (BROKEN_COVERAGE, REWRITE),
        (creates(log_index()).operation, BROKEN_LOG),
        (log_state(5).operation, BROKEN_LOG),
        (log_state(5).operation, BROKEN_SHARD),
        (delete({0: [1]}).operation, BROKEN_ROWS),
    ],
)
def test_what_cannot_be_read_is_not_decided_upon(mine: ops.Operation, theirs: ops.Operation) -> None:
    with pytest.raises(CorruptTable):
        ty.conflicts.resolve(mine, theirs)


def test_settings_of_the_log_that_nobody_knows_count_as_settings() -> None:
    """A newer writer may set up the log in a way this release cannot see; two such ways are not merged as if they were one."""
    plain, newer = log_index(), log_index()
    assert newer.details is not None
    newer = ops.IndexMetadata(newer.uuid, (), newer.name, 6, None, (newer.details[0], newer.details[1] + b"\xfa\x06\x01x"))
    assert isinstance(ty.conflicts.resolve(ops.CreateIndex((plain,)), ops.CreateIndex((newer,))), ty.conflicts.Retry)
    assert isinstance(ty.conflicts.resolve(ops.CreateIndex((newer,)), ops.CreateIndex((newer,))), ty.conflicts.Rebase)


def test_operations_touch_only_what_is_theirs() -> None:
    append = ops.Append((ops.DataFragment(0, (), 1),))
    assert touched_fragments(append) == removed_fragments(append) == frozenset()
    assert config_keys(append) == frozenset()
    assert installs(append, MEM_WAL) is None
    assert progress(append) == {}

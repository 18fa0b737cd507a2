"""Operations carried over others, on a table of metadata alone: what is merged, carried, mapped or given up, and which files are left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyroaring import BitMap

from tests.support.carrying import IN_ORDER, Ground, compaction, packed
from tests.support.manifests import by_id, covers, data_file, deletions, index, part, row_ids, table, with_lineage
from tiltyard import ops
from tiltyard.errors import InvalidInput, NotFound, RetryableConflict
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import decode_indices
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.format.roaring import encode_roaring
from tiltyard.format.row_ids import fresh_row_ids
from tiltyard.format.values import DataFragment
from tiltyard.transaction.log import CreatedVersion
from tiltyard.transaction.operations import UpdateMode
from tiltyard.transaction.resolve import Compatible, Rebase
from tiltyard.transaction.transaction import Transaction

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])


def _files(ground: Ground) -> set[str]:
    return {"_deletions/" + name for name in ground.store.names("_deletions/")}


def _named(ground: Ground) -> set[str]:
    """Deletion files that the head names."""
    return {one.deletion_file.path(one.id) for one in ground.head.fragments if one.deletion_file is not None}


def _packed(ground: Ground, number: int, *old: int, **more: object) -> DataFragment:
    """Fragment 4 or 5: the rows of these whole fragments in their order, with their ids where rows have ids."""
    made = packed(number, sum(ground.fragment(one).physical_rows for one in old), **more)
    if ground.base.next_row_id:
        made = with_lineage(made, [row for one in old for row in row_ids(ground.fragment(one))])
    return made


# ---- merging ---------------------------------------------------------------------------------------------------------------


def test_what_both_deleted_is_deleted_and_nothing_else() -> None:
    ground = Ground()
    ground.commit(ground.delete({0: [9]}))
    mine = ground.rebaser(ground.delete({0: [1, 2], 1: [3]}))
    ground.commit(ground.delete({0: [5]}))
    assert isinstance(ground.meet(mine), Rebase)
    assert set(mine.rows(0)) == {1, 2}
    ground.land(mine)
    assert ground.deleted() == {0: [1, 2, 5, 9], 1: [3]}
    stored = ground.commits[-1].transaction
    assert (stored.read_version, ground.head.version) == (9, 10)


def test_a_fragment_nobody_else_touched_keeps_the_file_it_came_with() -> None:
    ground = Ground()
    operation = ground.delete({0: [1], 1: [3]})
    mine = ground.rebaser(operation)
    ground.commit(ground.delete({0: [5]}))
    ground.meet(mine)
    ground.land(mine)
    assert by_id(ground.head)[1].deletion_file == operation.updated_fragments[1].deletion_file


def test_the_same_row_twice_is_refused_and_named() -> None:
    ground = Ground()
    mine = ground.rebaser(ground.delete({0: [1, 5]}))
    ground.commit(ground.delete({0: [5, 6]}))
    with pytest.raises(RetryableConflict) as caught:
        ground.meet(mine)
    assert (caught.value.fragments, caught.value.sample) == ((0,), ("row 5 of fragment 0",))
    assert mine.garbage(None) == []


def test_a_fragment_emptied_by_both_goes() -> None:
    ground = Ground()
    mine = ground.rebaser(ground.delete({0: range(4)}))
    ground.commit(ground.delete({0: range(4, 10)}))
    ground.meet(mine)
    ground.land(mine)
    stored = ground.commits[-1].transaction.operation
    assert isinstance(stored, ops.Delete)
    assert (stored.updated_fragments, stored.deleted_fragment_ids) == ((), (0,))
    assert [one.id for one in ground.head.fragments] == [1, 2]


def test_an_update_over_a_delete_that_left_it_no_old_row() -> None:
    ground = Ground()
    update = ops.Update((), (ground.without(ground.fragment(0), range(4)),), (part(0, 4, name="moved"),))
    mine = ground.rebaser(update)
    ground.commit(ground.delete({0: range(4, 10)}))
    ground.meet(mine)
    ground.land(mine)
    stored = ground.commits[-1].transaction.operation
    assert isinstance(stored, ops.Update)
    assert (stored.updated_fragments, stored.removed_fragment_ids) == ((), (0,))
    assert [one.id for one in ground.head.fragments] == [1, 2, 6]


def test_columns_rewritten_in_place_and_rows_deleted_elsewhere_in_the_fragment() -> None:
    """The new column file is ours, the deletions are theirs."""
    ground = Ground()
    old = ground.fragment(0)
    new = replace(old, files=(replace(old.files[0], fields=(0, 1, 3, -2)), data_file("column", (4,))))
    update = ops.Update(
        (),
        (new,),
        (),
        fields_modified=(4,),
        update_mode=UpdateMode.REWRITE_COLUMNS,
        updated_fragment_offsets={0: encode_roaring(BitMap([1, 2]))},
    )
    mine = ground.rebaser(update)
    ground.commit(ground.delete({0: [5]}))
    ground.meet(mine)
    ground.land(mine)
    assert ground.deleted() == {0: [5]}
    assert by_id(ground.head)[0].files == new.files


def test_a_merged_file_is_used_again_while_the_head_has_the_same_deletions() -> None:
    ground = Ground()
    mine = ground.rebaser(ground.delete({0: [1]}))
    ground.commit(ground.delete({0: [5]}))
    ground.meet(mine)
    first = mine.settled(ground.head).operation
    written = _files(ground)
    ground.commit(ops.ReserveFragments(1))
    ground.meet(mine)
    assert mine.settled(ground.head).operation == first
    assert _files(ground) == written
    ground.commit(ground.delete({0: [6]}))
    ground.meet(mine)
    ground.land(mine)
    assert ground.deleted() == {0: [1, 5, 6]}


def test_files_that_nobody_needs_after_success_and_after_failure() -> None:
    ground = Ground()
    mine = ground.rebaser(ground.delete({0: [1]}))
    brought = _files(ground)
    ground.commit(ground.delete({0: [5]}))
    theirs = _files(ground) - brought
    ground.meet(mine)
    mine.settled(ground.head)
    ground.commit(ground.delete({0: [6]}))
    ground.meet(mine)
    before = _files(ground)
    ground.land(mine)
    assert set(mine.garbage(None)) == _files(ground) - brought - theirs - {one for one in before if one in _theirs(ground)}
    assert not brought & set(mine.garbage(None)), "what the caller brought is the caller's until it is committed"
    garbage = mine.garbage(ground.commits[-1].transaction)
    assert set(garbage) == _files(ground) - _named(ground) - _theirs(ground)
    assert brought <= set(garbage)


def _theirs(ground: Ground) -> set[str]:
    """Deletion files that versions before the head name."""
    return {
        one.deletion_file.path(one.id)
        for commit in ground.commits[:-1]
        for one in commit.manifest.fragments
        if one.deletion_file is not None
    }


def test_a_file_that_the_read_version_has_too_is_not_ours_to_replace() -> None:
    """An update of columns leaves the deletions of a fragment as they are."""
    ground = Ground()
    ground.commit(ground.delete({0: [9]}))
    old = ground.fragment(0)
    new = replace(old, files=(replace(old.files[0], fields=(0, 1, 3, -2)), data_file("column", (4,))))
    offsets = {0: encode_roaring(BitMap([1]))}
    mine = ground.rebaser(ops.Update((), (new,), (), (4,), update_mode=UpdateMode.REWRITE_COLUMNS, updated_fragment_offsets=offsets))
    ground.commit(ground.delete({0: [5]}))
    ground.meet(mine)
    ground.land(mine)
    assert ground.deleted() == {0: [5, 9]}
    assert mine.garbage(ground.commits[-1].transaction) == []


def test_columns_that_they_rewrote_without_a_word_are_found_out() -> None:
    """A stock writer's update that does not own up to it: its files differ from those before it."""
    ground = Ground()
    mine = ground.rebaser(ground.delete({0: [1]}))
    old = ground.fragment(0)
    new = replace(old, files=(replace(old.files[0], fields=(0, 1, 3, -2)), data_file("column", (4,))))
    transaction = Transaction(7, "theirs", ops.Update((), (new,)))
    made = replace(ground.head, version=8, fragments=FragmentList([new, *list(ground.head.fragments)[1:]]))
    _, file = encode_manifest_file(made, transaction.to_bytes())
    ground.commits.append(CreatedVersion(file, transaction))
    with pytest.raises(RetryableConflict, match="columns of a fragment both change"):
        ground.meet(mine)


# ---- bare operations -------------------------------------------------------------------------------------------------------


def test_an_operation_that_brings_rows_back_is_refused() -> None:
    ground = Ground()
    stale = ground.delete({0: [1]})
    ground.commit(ground.delete({0: [5]}))
    mine = ground.rebaser(stale)
    with pytest.raises(InvalidInput, match="leave out row 5"):
        mine.check_rows()
    mine = ground.rebaser(ground.delete({0: [1]}))
    mine.check_rows()
    assert set(mine.rows(0)) == {1}


def test_deletion_files_are_looked_at_only_where_the_operation_changes_them() -> None:
    ground = Ground()
    ground.commit(ground.delete({0: [1]}))
    for name in list(ground.store.names("_deletions/")):
        ground.store.delete("_deletions/" + name)
    ground.rebaser(ops.Update((), (ground.fragment(0),))).check_rows()
    ground.rebaser(ops.Append()).check_rows()
    missing = replace(part(0), deletion_file=deletions(2, number=99))
    with pytest.raises(NotFound):
        ground.rebaser(ops.Delete((missing,))).check_rows()


def test_what_a_side_removes_as_a_whole_is_all_of_its_rows() -> None:
    ground = Ground()
    ground.commit(ground.delete({1: [0, 4]}))
    assert list(ground.rebaser(ops.Delete((), (1,))).rows(1)) == [1, 2, 3, 5, 6, 7, 8, 9]


# ---- our rows, through their rewrite -----------------------------------------------------------------------------------------


@STABLE
def test_our_deletions_follow_a_rewrite(stable: bool) -> None:
    ground = Ground(table(stable=stable))
    mine = ground.rebaser(ground.delete({0: [1], 1: [3]}))
    brought = _files(ground)
    ground.commit(compaction(list(ground.head.fragments)[:2], _packed(ground, 4, 0, 1)), IN_ORDER)
    assert isinstance(ground.meet(mine), Rebase)
    ground.commit(ground.delete({4: [7]}))
    ground.meet(mine)
    ground.land(mine)
    assert ground.deleted() == {4: [1, 7, 13]}
    garbage = mine.garbage(ground.commits[-1].transaction)
    assert brought <= set(garbage)
    assert not _named(ground) & set(garbage)


@STABLE
def test_only_the_groups_with_rows_of_ours_are_looked_into(stable: bool) -> None:
    ground = Ground(table(stable=stable))
    mine = ground.rebaser(ground.delete({1: [3], 2: [0]}))
    groups = (
        ops.RewriteGroup((ground.fragment(0),), (_packed(ground, 4, 0),)),
        ops.RewriteGroup((ground.fragment(1),), (_packed(ground, 5, 1),)),
    )
    ground.commit(ops.Rewrite(groups), IN_ORDER)
    ground.meet(mine)
    ground.land(mine)
    assert ground.deleted() == {2: [0], 5: [3]}


def test_a_whole_fragment_that_was_compacted_is_deleted_where_its_rows_are_now() -> None:
    ground = Ground(table(stable=True))
    mine = ground.rebaser(ops.Delete((), (0,)))
    ground.commit(compaction(list(ground.head.fragments)[:2], _packed(ground, 4, 0, 1)))
    ground.meet(mine)
    ground.land(mine)
    assert ground.deleted() == {4: list(range(10))}
    stored = ground.commits[-1].transaction.operation
    assert isinstance(stored, ops.Delete)
    assert stored.deleted_fragment_ids == ()


def test_an_update_follows_a_rewrite_with_its_new_fragments() -> None:
    ground = Ground(table(stable=True))
    moved = with_lineage(part(0, 2, name="moved"), [1, 2])
    mine = ground.rebaser(ops.Update((1,), (ground.without(ground.fragment(0), [1, 2]),), (moved,)))
    ground.commit(compaction(list(ground.head.fragments)[:2], _packed(ground, 4, 0, 1)))
    ground.meet(mine)
    stored = mine.settled(ground.head).operation
    assert isinstance(stored, ops.Update)
    assert (stored.removed_fragment_ids, [one.id for one in stored.updated_fragments], stored.new_fragments) == ((), [4], (moved,))
    assert sorted(ground.vectors.of(stored.updated_fragments[0])) == [1, 2, *range(10, 20)]


def test_ids_that_lie_in_data_files_are_not_guessed() -> None:
    ground = Ground(table(stable=True))
    operation = ground.delete({0: [1]})
    mine = ground.rebaser(operation)
    ground.commit(compaction(list(ground.head.fragments)[:2], packed(4, 20, fields=(0, 1, 3, 4, -3), row_ids_spilled=True)))
    with pytest.raises(RetryableConflict, match="rewrote fragments"):
        ground.meet(mine)
    assert mine.transaction.operation == operation, "nothing was changed on the way"


def test_an_order_that_was_kept_with_another_number_of_rows_is_not_believed() -> None:
    """Such a rewrite was itself carried over deletions: which rows are missing is not in its order."""
    ground = Ground()
    mine = ground.rebaser(ground.delete({0: [1]}))
    ground.commit(ground.delete({1: [3]}))
    ground.meet(mine)
    new = ground.without(packed(4, 20), [13])
    ground.commit(compaction(list(ground.head.fragments)[:2], new), IN_ORDER)
    with pytest.raises(RetryableConflict, match="rewrote fragments"):
        ground.meet(mine)


def test_a_rewrite_without_a_word_about_its_order_is_not_followed() -> None:
    ground = Ground()
    mine = ground.rebaser(ground.delete({0: [1]}))
    ground.commit(compaction(list(ground.head.fragments)[:2], packed(4, 20)))
    with pytest.raises(RetryableConflict, match="rewrote fragments"):
        ground.meet(mine)


# ---- their rows, through our rewrite -----------------------------------------------------------------------------------------


@STABLE
def test_their_deletions_follow_our_rewrite(stable: bool) -> None:
    ground = Ground(table(stable=stable))
    ground.commit(ground.delete({1: [9]}))
    old = list(ground.head.fragments)[:2]
    new = packed(4, 19)
    mine = ground.rebaser(compaction(old, with_lineage(new, range(19)) if stable else new), IN_ORDER)
    for rows in ({0: [1]}, {0: [2], 1: [0]}, {2: [5]}):
        ground.commit(ground.delete(rows))
        ground.meet(mine)
    ground.land(mine)
    assert ground.deleted() == {2: [5], 4: [1, 2, 10]}
    stored = ground.commits[-1].transaction
    assert (stored.operation.name, stored.read_version) == ("Rewrite", 8), "a rewrite keeps the version it read"
    assert mine.garbage(stored) == []
    assert len(mine.garbage(None)) == 1


@STABLE
def test_deletions_that_came_after_a_lost_race_are_carried_as_well(stable: bool) -> None:
    ground = Ground(table(stable=stable))
    mine = ground.rebaser(compaction(list(ground.head.fragments)[:2], _packed(ground, 4, 0, 1)), IN_ORDER)
    for rows in ({0: [1]}, {0: [2], 1: [0]}):
        ground.commit(ground.delete(rows))
        ground.meet(mine)
        settled = mine.settled(ground.head)
        assert mine.settled(ground.head) == settled, "written once for what it is merged from"
    ground.land(mine)
    assert ground.deleted() == {4: [1, 2, 10]}
    assert len(mine.garbage(ground.commits[-1].transaction)) == 1, "the file of the lost race"


def test_an_old_fragment_that_went_as_a_whole_is_no_longer_rewritten() -> None:
    ground = Ground(table(stable=True))
    mine = ground.rebaser(compaction(list(ground.head.fragments)[:2], _packed(ground, 4, 0, 1)))
    ground.commit(ground.delete({}, [0]))
    ground.meet(mine)
    ground.land(mine)
    stored = ground.commits[-1].transaction.operation
    assert isinstance(stored, ops.Rewrite)
    assert [one.id for one in stored.groups[0].old_fragments] == [1]
    assert ground.deleted() == {4: list(range(10))}


def test_a_rewrite_of_nothing_that_is_left() -> None:
    ground = Ground(table(stable=True))
    groups = (
        ops.RewriteGroup((ground.fragment(0),), (_packed(ground, 4, 0),)),
        ops.RewriteGroup((ground.fragment(1),), (_packed(ground, 5, 1),)),
    )
    mine = ground.rebaser(ops.Rewrite(groups))
    ground.commit(ground.delete({1: [2]}, [0]))
    ground.meet(mine)
    ground.land(mine)
    stored = ground.commits[-1].transaction.operation
    assert isinstance(stored, ops.Rewrite)
    assert len(stored.groups) == 1
    assert [one.id for one in ground.head.fragments] == [2, 5]
    assert ground.deleted() == {5: [2]}


@pytest.mark.parametrize("new", [packed(0, 20), packed(4, 20, deletion_file=deletions(0))], ids=["without an id", "with deletions"])
def test_new_fragments_that_can_get_no_deletions_are_not_carried(new: DataFragment) -> None:
    ground = Ground()
    mine = ground.rebaser(compaction(list(ground.head.fragments)[:2], new), IN_ORDER)
    ground.commit(ground.delete({0: [1]}))
    with pytest.raises(RetryableConflict, match="rewrote fragments"):
        ground.meet(mine)


@STABLE
def test_only_the_groups_in_which_they_deleted_get_deletions(stable: bool) -> None:
    ground = Ground(table(stable=stable))
    groups = (
        ops.RewriteGroup((ground.fragment(0),), (_packed(ground, 4, 0),)),
        ops.RewriteGroup((ground.fragment(1),), (_packed(ground, 5, 1),)),
    )
    mine = ground.rebaser(ops.Rewrite(groups), IN_ORDER)
    ground.commit(ground.delete({1: [3]}))
    ground.meet(mine)
    ground.land(mine)
    assert [one.id for one in ground.head.fragments] == [2, 4, 5]
    assert ground.deleted() == {5: [3]}


def test_an_order_is_not_guessed_whoever_asks() -> None:
    ground = Ground()
    mine = ground.rebaser(ground.delete({0: [1]}))
    silent = Transaction(7, "theirs", compaction(list(ground.head.fragments)[:2], packed(4, 20)))
    old, new = list(ground.head.fragments)[:2], [packed(4, 20)]
    assert mine._followed({0: mine.rows(0)}, old, new, ground.head, silent) is None
    told = replace(silent, properties=IN_ORDER)
    assert mine._followed({0: mine.rows(0)}, old, new, ground.head, told) == {4: BitMap([1])}


def test_our_rewrite_whose_rows_cannot_be_found_gives_way() -> None:
    ground = Ground(table(stable=True))
    mine = ground.rebaser(compaction(list(ground.head.fragments)[:2], with_lineage(packed(4, 20), fresh_row_ids(50, 20))))
    ground.commit(ground.delete({0: [1]}))
    with pytest.raises(RetryableConflict, match="rewrote fragments"):
        ground.meet(mine)


# ---- indices ---------------------------------------------------------------------------------------------------------------


def test_an_index_loses_what_was_rewritten_under_it() -> None:
    ground = Ground()
    mine = ground.rebaser(ops.CreateIndex((index("w", [4], [0, 1], uuid=1), index("s", [1], [0, 1], uuid=2))))
    old = ground.fragment(0)
    new = replace(old, files=(replace(old.files[0], fields=(0, 1, 3, -2)), data_file("column", (4,))))
    ground.commit(ops.Update((), (new,), (), fields_modified=(4,), update_mode=UpdateMode.REWRITE_COLUMNS))
    assert isinstance(ground.meet(mine), Rebase)
    ground.land(mine)
    assert {one.name: covers(one) for one in decode_indices(ground.head, "")} == {"w": [1], "s": [0, 1]}


def test_what_is_to_be_dropped_is_dropped_under_its_new_id() -> None:
    old, other = index("w", [4], [0, 1], uuid=1), index("s", [1], [2], uuid=2)
    ground = Ground(table(indices=[old, other]))
    mine = ground.rebaser(ops.CreateIndex((), (old, other)))
    mapped = ops.RewrittenIndex(old.uuid, index("w", [4], [4], uuid=7).uuid)
    ground.commit(compaction(list(ground.head.fragments)[:2], packed(4, 20), rewritten_indices=(mapped,)))
    assert isinstance(ground.meet(mine), Rebase)
    ground.land(mine)
    assert decode_indices(ground.head, "") == ()


def test_what_does_not_touch_passes_as_it_is() -> None:
    ground = Ground()
    operation = ops.Append((part(0, name="more"),))
    mine = ground.rebaser(operation)
    ground.commit(ground.delete({0: [1]}))
    assert isinstance(ground.meet(mine), Compatible)
    assert mine.settled(ground.head) == mine.transaction
    assert mine.garbage(mine.transaction) == []

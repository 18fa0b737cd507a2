"""CreateIndex, Rewrite and what becomes of indices; the entries about the table itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.manifests import (
    BITMAP,
    FIELDS,
    STAMP,
    by_id,
    coverage,
    covers,
    data_file,
    deletions,
    ids,
    index,
    part,
    row_ids,
    table,
    with_lineage,
)
from tiltyard import ops
from tiltyard.errors import CorruptTable, IncompatibleConflict, InvalidInput, UnsupportedFeature
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import uuid_to_pb
from tiltyard.format.flags import Feature
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.row_ids import encode_row_ids, fresh_row_ids
from tiltyard.format.values import DataFragment, IndexFile, IndexMetadata
from tiltyard.transaction.apply.next_manifest import apply

REUSE, LOG = "__lance_frag_reuse", "__lance_mem_wal"
COVERED = int(Feature.COVERED_INDEX_METADATA)


def names(manifest: Manifest) -> list[str]:
    return [one.name for one in decode_indices(manifest, "")]


# ---- CreateIndex -----------------------------------------------------------------------------------------------------------


def test_indices_come_and_go() -> None:
    a, b, c = (index(name, [4], [0], uuid=number) for number, name in enumerate("abc", 1))
    base = table(indices=[a, b])
    made = apply(ops.CreateIndex((c,), (a,)), base, STAMP)
    assert names(made) == ["b", "c"]
    assert made.fragments is base.fragments
    assert names(apply(ops.CreateIndex((replace(a, name="again"),)), base, STAMP)) == ["b", "again"]
    none = apply(ops.CreateIndex((), (a, b)), base, STAMP)
    assert none.index_section == b""
    assert apply(ops.CreateIndex((), (c,)), base, STAMP).index_section == base.index_section


def test_the_flag_of_covering_indices_comes_and_goes() -> None:
    wide = index("wide", [4], [0], covering_fields=(1,))
    made = apply(ops.CreateIndex((wide,)), table(), STAMP)
    assert made.reader_flags & made.writer_flags & COVERED
    assert apply(ops.Delete(), made, STAMP).writer_flags & COVERED
    assert not apply(ops.CreateIndex((), (wide,)), made, STAMP).writer_flags & COVERED


def test_there_is_one_entry_about_the_table_itself() -> None:
    base = table(indices=[index(LOG, [], None, uuid=1), index("w", [4], [0], uuid=2)])
    made = apply(ops.CreateIndex((index(LOG, [], None, uuid=9),)), base, STAMP)
    assert [(one.name, one.uuid[-1]) for one in decode_indices(made, "")] == [("w", "2"), (LOG, "9")]


@pytest.mark.parametrize(
    ("new", "kind", "reason"),
    [
        ((index("a", [9], [0]),), IncompatibleConflict, "field 9"),
        ((index("a", [4], [0], covering_fields=(9,)),), IncompatibleConflict, "field 9"),
        ((index("a", [4], [0]), index("b", [4], [0])), InvalidInput, "one uuid"),
        ((index("a", [4], [0], base_id=3),), InvalidInput, "base 3"),
        ((replace(index("a", [4], [0]), fragment_bitmap=b"junk"),), InvalidInput, "invalid bitmap"),
    ],
)
def test_an_index_that_cannot_be_is_refused(new: tuple[IndexMetadata, ...], kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        apply(ops.CreateIndex(new), table(), STAMP)


# ---- segments that cover nothing -------------------------------------------------------------------------------------------


def test_of_several_segments_the_empty_ones_go() -> None:
    segments = [index("w", [4], [number], uuid=number + 1) for number in range(3)]
    base = table(indices=[*segments, index("s", [1], [0], uuid=8), replace(index("w", [4], None, uuid=9), name="w")])
    made = apply(ops.Delete((), (0, 1)), base, STAMP)
    assert [(one.name, covers(one)) for one in decode_indices(made, "")] == [("w", [2]), ("s", [0]), ("w", None)]


def test_the_oldest_stays_when_all_cover_nothing() -> None:
    old, new = index("w", [4], [0], uuid=1), replace(index("w", [4], [1], uuid=2), dataset_version=1)
    made = apply(ops.Delete((), (0, 1, 2)), table(indices=[old, new]), STAMP)
    assert [one.uuid for one in decode_indices(made, "")] == [new.uuid]


# ---- Rewrite ---------------------------------------------------------------------------------------------------------------


def rewriting(old: tuple[DataFragment, ...], *new: DataFragment, **more: Any) -> ops.Rewrite:
    return ops.Rewrite((ops.RewriteGroup(old, new),), **more)


def test_reserved_ids_are_above_all_others() -> None:
    made = apply(ops.ReserveFragments(3), table(), STAMP)
    assert (made.max_fragment_id, ids(made)) == (8, [0, 1, 2])
    assert apply(ops.ReserveFragments(3), table(max_fragment_id=None), STAMP).max_fragment_id == 5
    for wrong in (-1, 2**32):
        with pytest.raises(InvalidInput, match="cannot be reserved"):
            apply(ops.ReserveFragments(wrong), table(), STAMP)


def test_rewritten_fragments_stand_in_order_of_ids() -> None:
    base = table([part(0), part(1), part(2, deletion_file=deletions(4)), part(5)], reader_flags=1, writer_flags=1)
    made = apply(rewriting((part(1), base.fragments[2]), part(4, 16)), base, STAMP)
    assert ids(made) == [0, 4, 5]
    assert not made.reader_flags & Feature.DELETION_FILES
    unnumbered = apply(rewriting((part(0),), part(0, 4, "a"), part(0, 6, "b")), base, STAMP)
    assert (ids(unnumbered), unnumbered.max_fragment_id) == ([1, 2, 5, 6, 7], 7)


def test_mapped_indices_follow() -> None:
    indices = [
        index("mapped", [4], [0, 1, 2], uuid=1, created_at=5),
        index("other", [4], [0, 1], uuid=2),
        index("apart", [4], [2], uuid=3, kind=BITMAP),
    ]
    mapped = ops.RewrittenIndex(indices[0].uuid, index("", [], [], uuid=7).uuid, ("t", b"d"), 3, (IndexFile("x", 1),))
    dropped = ops.RewrittenIndex(index("", [], [], uuid=50).uuid, index("", [], [], uuid=51).uuid)
    operation = rewriting((part(0), part(1)), part(4, 20), rewritten_indices=(mapped, dropped))
    made = apply(operation, table(indices=indices), STAMP)
    assert coverage(made) == {"mapped": [2, 4], "other": [0, 1], "apart": [2]}
    one = decode_indices(made, "")[0]
    assert (one.uuid, one.files, one.created_at, one.dataset_version) == (mapped.new_id, mapped.files, 5, 3)


def test_on_stable_ids_indices_follow_by_themselves() -> None:
    indices = [
        index("by id", [4], [0, 1, 2], uuid=1, kind=BITMAP),
        index("by place", [4], [0, 1, 2], uuid=2),
        index("in part", [4], [0, 2], uuid=3, kind=BITMAP),
        index("apart", [4], [2], uuid=4, kind=BITMAP),
        index(LOG, [], None, uuid=5),
    ]
    base = table(stable=True, indices=indices)
    new = with_lineage(part(4, 20), range(20))
    made = apply(rewriting(tuple(base.fragments[:2]), new), base, STAMP)
    assert coverage(made) == {"by id": [2, 4], "by place": [2], "in part": [2], "apart": [2], LOG: None}
    assert row_ids(by_id(made)[4]) == list(range(20))


def test_an_index_mapped_in_a_clone_is_in_the_clone() -> None:
    base = table(indices=[index("w", [4], [0, 1], base_id=3)], base_paths=())
    mapped = ops.RewrittenIndex(index("", [], [], uuid=1).uuid, index("", [], [], uuid=7).uuid)
    made = apply(rewriting((part(0), part(1)), part(4, 20), rewritten_indices=(mapped,)), base, STAMP)
    assert decode_indices(made, "")[0].base_id is None


def _mapped(uuid: int = 1, new: int = 7) -> ops.RewrittenIndex:
    return ops.RewrittenIndex(index("", [], [], uuid=uuid).uuid, index("", [], [], uuid=new).uuid)


@pytest.mark.parametrize(
    ("operation", "kind", "reason"),
    [
        (rewriting((part(9),), part(4)), IncompatibleConflict, "no fragment 9"),
        (ops.Rewrite((ops.RewriteGroup((part(0),), ()), ops.RewriteGroup((part(0),), ()))), InvalidInput, "occurs twice"),
        (rewriting((part(0), part(2)), part(4, 10), part(4, 10)), InvalidInput, "occurs twice"),
        (rewriting((part(0),), part(2)), IncompatibleConflict, "exists already"),
        (rewriting((part(0),), part(6)), InvalidInput, "never reserved"),
        (rewriting((part(1, deletion_file=deletions(1)),), part(4, 9)), IncompatibleConflict, "deleted since"),
        (rewriting((part(0, 9),), part(4, 9)), IncompatibleConflict, "deleted since"),
        (rewriting((replace(part(0), files=(data_file("other"),)),), part(4)), IncompatibleConflict, "columns of fragment 0"),
        (rewriting((part(0),), part(4, 9)), InvalidInput, "9 rows of 10"),
        (rewriting((part(0), part(1)), part(4, 20), rewritten_indices=(_mapped(1),)), InvalidInput, "only a part"),
        (rewriting((part(0), part(1)), part(4, 20), rewritten_indices=(_mapped(2),)), InvalidInput, "cannot be remapped"),
        (rewriting((part(0),), part(4), rewritten_indices=(_mapped(3), _mapped(3, 8))), InvalidInput, "rewritten twice"),
        (rewriting((part(0),), part(4), rewritten_indices=(_mapped(3, 1),)), InvalidInput, "one uuid"),
    ],
)
def test_a_rewrite_that_does_not_fit_is_refused(operation: ops.Rewrite, kind: type[Exception], reason: str) -> None:
    indices = [index("part", [4], [0], uuid=1), index("silent", [4], None, uuid=2), index("full", [4], [0, 1, 2], uuid=3)]
    with pytest.raises(kind, match=reason):
        apply(operation, table(indices=indices), STAMP)


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (part(4), "has no row ids"),
        (with_lineage(part(4), range(5)), "invalid row ids"),
        (with_lineage(part(4), [*range(9), 8]), "one row id"),
        (with_lineage(part(4), range(5, 15)), "Row id 10, 11, 12, 13, 14 of a rewrite"),
        (with_lineage(part(4, 2**31, deletion_file=deletions(2**31 - 10)), range(5)), "never assigned"),
    ],
)
def test_a_rewrite_must_keep_row_ids(new: DataFragment, reason: str) -> None:
    base = table(stable=True)
    if new.physical_rows > 10:
        new = replace(new, row_ids=encode_row_ids(fresh_row_ids(0, new.physical_rows)))
    with pytest.raises(InvalidInput, match=reason):
        apply(rewriting(tuple(base.fragments[:1]), new), base, STAMP)


def test_row_ids_in_data_files_are_taken_on_trust() -> None:
    flags = int(Feature.STABLE_ROW_IDS)
    spilled = part(4, fields=(0, 1, 3, 4, -3), row_ids_spilled=True)
    base = table(stable=True)
    made = apply(rewriting(tuple(base.fragments[:1]), spilled), base, STAMP)
    assert made.reader_flags & made.writer_flags & Feature.SPILLED_ROW_LINEAGE
    back = apply(rewriting((spilled,), with_lineage(part(3), range(10))), replace(made, reader_flags=flags, writer_flags=flags), STAMP)
    assert not back.reader_flags & Feature.SPILLED_ROW_LINEAGE


def test_a_group_of_nothing_changes_no_coverage() -> None:
    base = table(stable=True, indices=[index("w", [4], [0], kind=BITMAP)])
    assert coverage(apply(rewriting(()), base, STAMP)) == {"w": [0]}


def test_a_rewrite_may_carry_deletions_over() -> None:
    base = table([part(0, deletion_file=deletions(4)), part(1)])
    made = apply(rewriting(tuple(base.fragments), part(4, 18, deletion_file=deletions(2))), base, STAMP)
    assert by_id(made)[4].live_rows == 16
    assert made.reader_flags & Feature.DELETION_FILES


def test_a_rewrite_made_before_a_column_was_dropped() -> None:
    old = replace(part(0), files=(data_file("a", (0, 1)), data_file("b", (3, 4))))
    base = table([replace(old, files=old.files[:1])], fields=FIELDS[:2])
    assert ids(apply(rewriting((old,), part(4)), base, STAMP)) == [4]


# ---- the entry for fragments used again ------------------------------------------------------------------------------------


def reuse(*groups: tuple[list[int], list[int]], uuid: int = 30) -> IndexMetadata:
    details = pb.FragmentReuseIndexDetails()
    version = details.inline.versions.add(dataset_version=6)
    for old, new in groups:
        group = version.groups.add()
        for number in old:
            group.old_fragments.add(id=number)
        for number in new:
            group.new_fragments.add(id=number)
    return replace(index(REUSE, [], [], uuid=uuid), details=("/lance.table.FragmentReuseIndexDetails", details.SerializeToString()))


def test_the_entry_is_replaced() -> None:
    base = table(indices=[reuse(uuid=30), index("w", [4], [0, 1, 2], uuid=1)])
    made = apply(rewriting((part(0),), part(4)), base, STAMP, reuse=reuse(([0], [4]), uuid=31))
    assert [one.uuid[-2:] for one in decode_indices(made, "")] == ["01", "31"]
    assert coverage(made)["w"] == [0, 1, 2]
    with pytest.raises(InvalidInput, match="not the fragment reuse entry"):
        apply(rewriting((part(0),), part(4)), base, STAMP, reuse=index("w", [4], [0]))


def test_a_column_that_changes_leaves_indices_whose_bitmaps_have_old_ids() -> None:
    """Else a reader would map the old ids to the fragment, and take the index's old values for its rows."""
    entry = reuse(([10, 11], [0]), ([12, 13], [1]), ([1], [2]))
    silent = index("silent", [4], None, uuid=3)
    base = table(indices=[entry, index("w", [4], [10, 11, 12, 13], uuid=1), index("s", [1], [10, 12, 13], uuid=2), silent])
    file = data_file("n", (4,))
    made = apply(ops.DataReplacement((ops.Replacement(2, file),)), base, STAMP)
    assert coverage(made) == {REUSE: [], "w": [0], "s": [2], "silent": None}


def test_segments_are_not_taken_for_empty_because_of_old_ids() -> None:
    base = table(indices=[reuse(([10], [0])), index("w", [4], [10], uuid=1), index("w", [4], [1], uuid=2)])
    assert names(apply(ops.Delete(), base, STAMP)) == [REUSE, "w", "w"]


def test_an_entry_in_a_file_of_its_own_is_not_guessed_at() -> None:
    details = pb.FragmentReuseIndexDetails(external=pb.ExternalFile(path="details.binpb", size=9)).SerializeToString()
    entry = replace(reuse(), details=("/lance.table.FragmentReuseIndexDetails", details))
    base = table(indices=[entry, index("w", [4], [10], uuid=1), index("w", [4], [11], uuid=2)])
    assert names(apply(ops.Delete(), base, STAMP)) == [REUSE, "w", "w"]
    with pytest.raises(UnsupportedFeature, match="Index w must be remapped"):
        apply(ops.DataReplacement((ops.Replacement(2, data_file("n", (4,))),)), base, STAMP)
    assert apply(ops.DataReplacement((ops.Replacement(2, data_file("n", (1,))),)), base, STAMP).version == 8


@pytest.mark.parametrize("details", [b"\xff", reuse(([2**40], [1])).details])
def test_a_damaged_entry_is_named(details: Any) -> None:
    entry = replace(reuse(), details=details if isinstance(details, tuple) else ("t", details))
    with pytest.raises(CorruptTable, match=REUSE):
        apply(ops.Delete(), table(indices=[entry, index("w", [4], [0])]), STAMP)


def test_an_entry_that_says_nothing_changes_nothing() -> None:
    base = table(indices=[replace(reuse(), details=None), index("w", [4], [7])])
    assert apply(ops.Delete(), base, STAMP).index_section == base.index_section


# ---- the write-ahead log ---------------------------------------------------------------------------------------------------

SHARDS = ("11111111-0000-0000-0000-000000000000", "22222222-0000-0000-0000-000000000000")


def log(*generations: int) -> IndexMetadata:
    details = pb.MemWalIndexDetails(num_shards=2, maintained_indexes=["w"])
    for shard, generation in zip(SHARDS, generations, strict=False):
        details.compacted_sstables.add(shard_id=uuid_to_pb(shard), generation=generation)
    return replace(index(LOG, [], None, uuid=40), details=("/lance.table.MemWalIndexDetails", details.SerializeToString()))


def progress(manifest: Manifest) -> list[int]:
    entry = next(one for one in decode_indices(manifest, "") if one.name == LOG)
    assert entry.details is not None
    details = pb.MemWalIndexDetails.FromString(entry.details[1])
    assert (details.num_shards, list(details.maintained_indexes), entry.dataset_version) == (2, ["w"], 8)
    return [one.generation for one in details.compacted_sstables]


def reached(*generations: int) -> tuple[ops.CompactedSsTable, ...]:
    return tuple(ops.CompactedSsTable(shard, generation) for shard, generation in zip(SHARDS, generations, strict=False) if generation)


def test_progress_is_recorded() -> None:
    base = table(indices=[index("w", [4], [0]), log(4)])
    assert progress(apply(ops.UpdateMemWalState(reached(5, 2)), base, STAMP)) == [5, 2]
    assert progress(apply(ops.Update((0,), compacted_sstables=reached(7)), base, STAMP)) == [7]
    assert apply(ops.UpdateMemWalState(), base, STAMP).index_section == base.index_section


@pytest.mark.parametrize("generation", [3, 4])
def test_progress_only_goes_forward(generation: int) -> None:
    base = table(indices=[log(4)])
    for operation in (ops.UpdateMemWalState(reached(generation)), ops.Update(compacted_sstables=reached(generation))):
        with pytest.raises(IncompatibleConflict, match="at generation 4"):
            apply(operation, base, STAMP)


def test_progress_needs_a_log_and_one_word_for_each_shard() -> None:
    with pytest.raises(IncompatibleConflict, match="no write-ahead log"):
        apply(ops.UpdateMemWalState(reached(1)), table(), STAMP)
    with pytest.raises(InvalidInput, match="twice"):
        apply(ops.UpdateMemWalState(reached(5) * 2), table(indices=[log(4)]), STAMP)
    with pytest.raises(CorruptTable, match=LOG):
        apply(ops.UpdateMemWalState(reached(5)), table(indices=[replace(log(4), details=("t", b"\xff"))]), STAMP)
    bare = apply(ops.UpdateMemWalState(reached(5)), table(indices=[replace(log(4), details=None)]), STAMP)
    assert bare.version == 8

"""Delete and Update on values: what changes, what stays, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from tests.support.manifests import (
    BITMAP,
    FIELDS,
    LEAVES,
    STAMP,
    by_id,
    coverage,
    created,
    data_file,
    deletions,
    ids,
    index,
    part,
    row_ids,
    table,
    updated,
    with_lineage,
)
from tiltyard import ops
from tiltyard.errors import CorruptTable, IncompatibleConflict, InvalidInput, UnsupportedFeature
from tiltyard.format.flags import Feature
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest
from tiltyard.format.roaring import encode_roaring
from tiltyard.format.row_ids import (
    RowIds,
    RowVersions,
    encode_row_ids,
    fresh_row_ids,
    joined,
    row_ids_of,
    row_versions_of,
    uniform_versions,
)
from tiltyard.format.segments import Bits, Holes, Listed, Range
from tiltyard.format.values import DataFragment
from tiltyard.transaction.apply.next_manifest import Spilled, apply
from tiltyard.transaction.apply.row_lineage import locate, stamped

COLUMNS = ops.UpdateMode.REWRITE_COLUMNS


def deleting(number: int, rows: int, **more: Any) -> DataFragment:
    return part(number, deletion_file=deletions(rows), **more)


# ---- Delete ----------------------------------------------------------------------------------------------------------------


def test_a_delete_changes_the_deletions_and_drops_fragments() -> None:
    made = apply(ops.Delete((deleting(1, 3),), (2,)), table(), STAMP)
    assert ids(made) == [0, 1]
    assert by_id(made)[1].live_rows == 7
    assert made.max_fragment_id == 5
    assert made.reader_flags & made.writer_flags & Feature.DELETION_FILES


def test_a_delete_of_nothing_makes_a_version() -> None:
    made = apply(ops.Delete(), table(), STAMP)
    assert (made.version, ids(made)) == (8, [0, 1, 2])


def test_removal_wins_over_deletions() -> None:
    made = apply(ops.Delete((deleting(1, 10),), (1,)), table(), STAMP)
    assert ids(made) == [0, 2]
    assert not made.reader_flags & Feature.DELETION_FILES


def test_the_flag_goes_with_the_last_deletions() -> None:
    base = table([deleting(0, 2), part(1)], reader_flags=1, writer_flags=1)
    assert apply(ops.Delete((), (1,)), base, STAMP).reader_flags & Feature.DELETION_FILES
    gone = apply(ops.Delete((), (0,)), base, STAMP)
    assert (gone.reader_flags | gone.writer_flags) & Feature.DELETION_FILES == 0


def test_a_delete_made_before_a_column_was_dropped_does_not_bring_its_file_back() -> None:
    old = replace(part(0, fields=(0, 1)), files=(data_file("a", (0, 1)), data_file("dropped", (3, 4))))
    base = table([replace(old, files=old.files[:1]), part(1)], fields=FIELDS[:2])
    made = apply(ops.Delete((replace(old, deletion_file=deletions(1)),)), base, STAMP)
    assert [file.path for file in by_id(made)[0].files] == ["a.lance"]


def test_a_delete_keeps_row_ids_and_versions() -> None:
    base = table(stable=True)
    made = by_id(apply(ops.Delete((deleting(1, 3),)), base, STAMP))[1]
    assert (row_ids(made), created(made), updated(made)) == (list(range(10, 20)), [2] * 10, [1] * 10)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (ops.Delete((deleting(9, 1),)), "no fragment 9"),
        (ops.Delete((), (9, 8, 7, 6, 12, 13)), "no fragment 6, 7, 8, 9, 12 and 1 more"),
        (ops.Delete((replace(deleting(1, 1), physical_rows=9),)), "has 10 rows"),
        (ops.Delete((part(0),)), "come back"),
    ],
)
def test_a_delete_that_does_not_fit_is_refused(operation: ops.Delete, reason: str) -> None:
    base = table([deleting(0, 2), part(1), part(2)])
    with pytest.raises(IncompatibleConflict, match=reason) as caught:
        apply(operation, base, STAMP)
    assert caught.value.operation == "Delete"
    assert caught.value.fragments


def test_deletions_that_did_not_see_those_there_are_refused() -> None:
    """More rows are deleted than before, but not the same ones."""
    base = table([deleting(0, 2), part(1)])
    for unseen in (deletions(5, 2), deletions(5, 2, 5)):
        with pytest.raises(IncompatibleConflict, match="come back"):
            apply(ops.Delete((part(0, deletion_file=unseen),)), base, STAMP)
    assert apply(ops.Delete((part(0, deletion_file=deletions(5, 2, 7)),)), base, STAMP).fragments.live_rows() == 15
    assert apply(ops.Delete((deleting(0, 2),)), base, STAMP).fragments.live_rows() == 18


def test_a_fragment_that_stands_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Fragment 1 occurs twice"):
        apply(ops.Delete((deleting(1, 1), deleting(1, 2))), table(), STAMP)


def test_what_nobody_could_read_is_refused() -> None:
    with pytest.raises(InvalidInput, match="an unreadable version"):
        apply(ops.Delete((deleting(1, 11),)), table(), STAMP)
    with pytest.raises(InvalidInput, match="cannot be written"):
        apply(ops.Delete((part(1, deletion_file=replace(deletions(1), id=2**70)),)), table(), STAMP)


# ---- Update: rows that move ------------------------------------------------------------------------------------------------


def moved(count: int, *numbers: int, name: str = "new") -> DataFragment:
    """A new fragment of ``count`` rows, of which the first have these ids."""
    return part(0, count, name, row_ids=encode_row_ids(row_ids_of(numbers)) if numbers else None)


def test_moved_rows_keep_their_ids_and_inserted_ones_get_new_ids() -> None:
    base = table(stable=True)
    operation = ops.Update((0,), (deleting(1, 2),), (moved(4, 3, 17, 12), moved(2, name="more")))
    made = apply(operation, base, STAMP)
    assert ids(made) == [1, 2, 6, 7]
    assert (made.max_fragment_id, made.next_row_id) == (7, 103)
    one, two = by_id(made)[6], by_id(made)[7]
    assert (row_ids(one), created(one), updated(one)) == ([3, 17, 12, 100], [1, 2, 2, 8], [8] * 4)
    assert (row_ids(two), created(two), updated(two)) == ([101, 102], [8, 8], [8, 8])
    assert (row_ids(by_id(made)[1]), updated(by_id(made)[1])) == (list(range(10, 20)), [1] * 10)


def test_without_stable_ids_rows_just_move() -> None:
    made = apply(ops.Update((0,), (deleting(1, 2),), (moved(12),)), table(), STAMP)
    assert (ids(made), made.next_row_id) == ([1, 2, 6], 0)
    assert by_id(made)[6].row_ids is None


def test_a_row_that_moved_twice_keeps_its_origin() -> None:
    """Both fragments still list it: one as a deleted row."""
    first = with_lineage(deleting(0, 1), range(10), created=1)
    second = with_lineage(part(1, 1), [4], created=1, updated=5)
    made = apply(
        ops.Update((1,), (replace(first, deletion_file=deletions(2, 2, 7)),), (moved(2, 4, 5),)), table([first, second], stable=True), STAMP
    )
    assert created(by_id(made)[6]) == [1, 1]


def test_where_nobody_wrote_down_when_a_row_was_created_it_is_the_first_version() -> None:
    source = replace(with_lineage(part(0), range(10)), created_at=None)
    made = apply(ops.Update((0,), (), (moved(1, 4),)), table([source], stable=True), STAMP)
    assert created(by_id(made)[6]) == [1]


def test_a_source_without_row_ids_is_no_source() -> None:
    """No reader of ours lets such a table in; still nothing is made up."""
    base = table(stable=True)
    bare = replace(base, fragments=FragmentList([part(0), *base.fragments[1:]]))
    with pytest.raises(InvalidInput, match="Row id 5 is in none"):
        apply(ops.Update((0,), (), (moved(1, 5),)), bare, STAMP)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (ops.Update((0,), (), (moved(1, 25),)), "Row id 25 is in none"),
        (ops.Update((0,), (), (moved(1, 99),)), "Row id 99 is in none"),
        (ops.Update((), (), (moved(1, 5),)), "more than the changed fragments hold"),
        (ops.Update((0,), (), (moved(2, 5, 5),)), "one row id"),
        (ops.Update((0,), (), (moved(1, 5), moved(1, 5, name="b"))), "one row id"),
        (ops.Update((0,), (), (moved(1, 5, 6),)), "2 row ids for 1 rows"),
        (ops.Update((0,), (), (part(0, 1, "new", row_ids=b"\xff"),)), "invalid row ids"),
        (ops.Update((0,), (), (part(0, 2**31, "new", row_ids=encode_row_ids(fresh_row_ids(0, 2**31))),)), "more than the changed"),
        (ops.Update((0,), (), (part(0, 1, "new", row_ids_spilled=True),)), "assigned at the commit"),
        (ops.Update((0,), (), (part(0, 1, "new", deletion_file=deletions(1)),)), "deletions"),
    ],
)
def test_moved_rows_that_cannot_be_are_refused(operation: ops.Update, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        apply(operation, table(stable=True), STAMP)


def test_row_ids_on_a_table_without_them_are_refused() -> None:
    with pytest.raises(InvalidInput, match="have none"):
        apply(ops.Update((0,), (), (moved(1, 5),)), table(), STAMP)


def test_row_ids_run_out() -> None:
    with pytest.raises(InvalidInput, match="no row ids left"):
        apply(ops.Update((0,), (), (moved(5, 5),)), table(stable=True, next_row_id=2**64 - 3), STAMP)


def test_indices_follow_moved_rows_where_they_know_them_by_id() -> None:
    indices = [
        index("on s", [1], [0, 1, 2], uuid=1, kind=BITMAP),
        index("on w", [4], [0, 1, 2], uuid=2, kind=BITMAP),
        index("elsewhere", [1], [1, 2], uuid=3, kind=BITMAP),
        index("by place", [1], [0, 1, 2], uuid=4),
        index("unknown", [1], None, uuid=5, kind=BITMAP),
        index("on x", [3], [0, 1, 2], uuid=6, kind=BITMAP),
    ]
    base = table(stable=True, indices=indices)
    pure, mixed = moved(1, 5), moved(2, 6, name="mixed")
    operation = ops.Update((), (deleting(0, 2),), (pure, mixed), fields_for_preserving_frag_bitmap=(4, 2))
    assert coverage(apply(operation, base, STAMP)) == {
        "on s": [0, 1, 2, 6],
        "on w": [0, 1, 2],
        "elsewhere": [1, 2],
        "by place": [0, 1, 2],
        "unknown": None,
        "on x": [0, 1, 2],  # st was assigned, and x is a part of it
    }
    for silent in (replace(operation, fields_for_preserving_frag_bitmap=()), replace(operation, new_fragments=(mixed,))):
        assert coverage(apply(silent, base, STAMP))["on s"] == [0, 1, 2]


# ---- Update: columns that are rewritten in place ---------------------------------------------------------------------------


def rewritten(number: int, field: int = 4, **more: Any) -> DataFragment:
    """The fragment with one column in a file of its own."""
    old = data_file(f"f{number}", [-2 if one == field else one for one in LEAVES])
    return replace(part(number, **more), files=(old, data_file(f"c{number}", [field])))


def in_columns(*fragments: DataFragment, **more: Any) -> ops.Update:
    return ops.Update(updated_fragments=fragments, fields_modified=(4,), update_mode=COLUMNS, **more)


def test_a_rewritten_column_leaves_its_indices() -> None:
    base = table(
        indices=[index("w", [4], [0, 1, 2], uuid=1), index("s", [1], [0, 1, 2], uuid=2), index("c", [1], [1], uuid=3, covering_fields=(4,))]
    )
    made = apply(in_columns(rewritten(1)), base, STAMP)
    assert [file.fields for file in by_id(made)[1].files] == [(0, 1, 3, -2), (4,)]
    assert coverage(made) == {"w": [0, 2], "s": [0, 1, 2], "c": []}


def test_an_index_on_a_struct_goes_stale_with_its_member() -> None:
    base = table(indices=[index("st", [2], [0, 1, 2])])
    operation = replace(in_columns(rewritten(1, 3)), fields_modified=(3,))
    assert coverage(apply(operation, base, STAMP)) == {"st": [0, 2]}


def test_the_rows_that_were_updated_are_marked() -> None:
    base = table(stable=True)
    marks = {1: encode_roaring(BitMap([0, 1, 4, 9])), 2: encode_roaring(BitMap())}
    made = by_id(apply(in_columns(rewritten(1), rewritten(2), updated_fragment_offsets=marks), base, STAMP))
    assert updated(made[1]) == [8, 8, 1, 1, 8, 1, 1, 1, 1, 8]
    assert updated(made[2]) == [1] * 10
    assert (row_ids(made[1]), created(made[1])) == (list(range(10, 20)), [2] * 10)


def test_marks_mean_nothing_where_no_account_is_kept() -> None:
    marks = {1: encode_roaring(BitMap([0]))}
    assert by_id(apply(in_columns(rewritten(1), updated_fragment_offsets=marks), table(), STAMP))[1].updated_at is None
    silent = table([replace(with_lineage(part(1), range(10)), updated_at=None)], stable=True)
    assert by_id(apply(in_columns(rewritten(1), updated_fragment_offsets=marks), silent, STAMP))[1].updated_at is None


def test_a_file_that_holds_nothing_any_more_goes() -> None:
    base = table([replace(part(1, fields=(0, 1, 3)), files=(data_file("a", (0, 1, 3)), data_file("w", (4,))))])
    dead = replace(by_id(base)[1], files=(data_file("a", (0, 1, 3)), data_file("w", (-2,)), data_file("v", (4,))))
    assert [file.path for file in by_id(apply(in_columns(dead), base, STAMP))[1].files] == ["a.lance", "v.lance"]


def test_a_file_of_which_only_dropped_columns_are_left_goes() -> None:
    base = table([replace(part(1), files=(data_file("a", (0, 1)), data_file("b", (3, 4))))], fields=(*FIELDS[:2], FIELDS[4]))
    dead = replace(by_id(base)[1], files=(data_file("a", (0, 1)), data_file("b", (3, -2)), data_file("w", (4,))))
    assert [file.path for file in by_id(apply(in_columns(dead), base, STAMP))[1].files] == ["a.lance", "w.lance"]
    told = replace(dead, files=(data_file("a", (0, 1)), data_file("b", (-3, 3, -2)), data_file("w", (4,))))
    assert [file.path for file in by_id(apply(in_columns(told), base, STAMP))[1].files] == ["a.lance", "b.lance", "w.lance"], "row ids"


def test_a_column_update_made_before_another_column_was_dropped() -> None:
    old = replace(part(1), files=(data_file("a", (0, 1, 4)), data_file("x", (3,))))
    base = table([replace(old, files=old.files[:1])], fields=(*FIELDS[:2], FIELDS[4]))
    update = replace(old, files=(data_file("a", (0, 1, -2)), data_file("x", (3,)), data_file("w", (4,))))
    assert [file.path for file in by_id(apply(in_columns(update), base, STAMP))[1].files] == ["a.lance", "w.lance"]


@pytest.mark.parametrize(
    ("operation", "kind", "reason"),
    [
        (replace(in_columns(rewritten(1)), fields_modified=(9,)), IncompatibleConflict, "no field 9"),
        (in_columns(rewritten(1, rows=9)), IncompatibleConflict, "has 10 rows"),
        (in_columns(replace(rewritten(1), files=rewritten(1).files[:1])), InvalidInput, "lose field 4"),
        (in_columns(replace(rewritten(1), files=(*part(1).files, data_file("c", [4])))), InvalidInput, "one field twice"),
        (in_columns(replace(rewritten(1), files=(rewritten(1).files[0], data_file("c", [4], minor=1)))), InvalidInput, "format 2.1"),
        (in_columns(replace(rewritten(1), files=(rewritten(1).files[0], data_file("../c", [4])))), InvalidInput, "stay in its directory"),
        (in_columns(rewritten(1), updated_fragment_offsets={1: b"junk"}), InvalidInput, "is invalid"),
        (in_columns(rewritten(1), updated_fragment_offsets={1: encode_roaring(BitMap([10]))}), InvalidInput, "Row 10"),
        (in_columns(rewritten(1), updated_fragment_offsets={1: encode_roaring(BitMap(range(100)))}), InvalidInput, "Row 99"),
    ],
)
def test_a_column_update_that_does_not_fit_is_refused(operation: ops.Update, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        apply(operation, table(stable=True), STAMP)


# ---- lineage that lies in data files ---------------------------------------------------------------------------------------


def _spilled(**more: Any) -> DataFragment:
    fields = (*LEAVES, -3, -4, -5)
    marks = {"row_ids_spilled": True, "created_at_spilled": True, "updated_at_spilled": True} | more
    return part(0, fields=fields, **marks)


LINEAGE = Spilled(row_ids_of(range(20, 30)), uniform_versions(10, 4), uniform_versions(10, 5))


def _stable(*fragments: DataFragment) -> Manifest:
    flags = int(Feature.STABLE_ROW_IDS | Feature.SPILLED_ROW_LINEAGE)
    return table(fragments, stable=True, reader_flags=flags, writer_flags=flags)


def test_moved_rows_are_found_in_data_files_somebody_read() -> None:
    base = _stable(_spilled())
    operation = ops.Update((), (replace(_spilled(), deletion_file=deletions(1)),), (moved(1, 25),))
    made = apply(operation, base, STAMP, spilled={0: LINEAGE})
    assert created(by_id(made)[6]) == [4]
    assert made.reader_flags & made.writer_flags & Feature.SPILLED_ROW_LINEAGE
    gone = apply(replace(operation, updated_fragments=(), removed_fragment_ids=(0,)), base, STAMP, spilled={0: LINEAGE})
    assert not gone.reader_flags & Feature.SPILLED_ROW_LINEAGE
    with pytest.raises(UnsupportedFeature, match="fragment 0 are in data files"):
        apply(operation, base, STAMP)


def test_row_versions_alone_may_lie_in_data_files() -> None:
    half = replace(_spilled(row_ids_spilled=False), row_ids=encode_row_ids(row_ids_of(range(20, 30))))
    with pytest.raises(UnsupportedFeature, match="fragment 0"):
        apply(ops.Update((0,), (), (moved(1, 25),)), _stable(half), STAMP)


def test_marks_in_data_files_become_inline() -> None:
    base = _stable(_spilled())
    change = replace(_spilled(), files=(data_file("f0", (0, 1, 3, -2, -3, -4, -5)), data_file("c", [4])))
    operation = in_columns(change, updated_fragment_offsets={0: encode_roaring(BitMap([2, 3]))})
    made = by_id(apply(operation, base, STAMP, spilled={0: LINEAGE}))[0]
    assert updated(made) == [5, 5, 8, 8, 5, 5, 5, 5, 5, 5]
    assert (made.updated_at_spilled, made.row_ids_spilled) == (False, True)
    with pytest.raises(UnsupportedFeature, match="fragment 0"):
        apply(operation, base, STAMP)


# ---- searching and stamping ------------------------------------------------------------------------------------------------


def _segment(kind: str, numbers: list[int]) -> Any:
    values = np.array(numbers, np.uint64)
    if kind == "listed":
        return Listed(values.astype("<u8").tobytes())
    low, high = min(numbers, default=0), max(numbers, default=-1) + 1
    missing = [number for number in range(low, high) if number not in numbers]
    if kind == "holes":
        return Holes(low, high, np.array(missing, "<u8").tobytes())
    bits = np.packbits(np.isin(np.arange(low, high), numbers), bitorder="little").tobytes()
    return Bits(low, high, bits) if kind == "bits" else Range(low, high)


@given(
    st.lists(
        st.tuples(st.sampled_from(["listed", "holes", "bits", "range"]), st.lists(st.integers(0, 40), min_size=1, unique=True)), max_size=4
    ),
    st.sets(st.integers(0, 45)),
)
def test_rows_are_found_wherever_they_are(shapes: list[tuple[str, list[int]]], wanted: set[int]) -> None:
    segments = tuple(_segment(kind, numbers if kind == "listed" else sorted(numbers)) for kind, numbers in shapes)
    everything = RowIds(segments).to_numpy().tolist()
    ordered = np.array(sorted(wanted), np.uint64)
    which, offsets = locate(ordered, RowIds(segments))
    found = sorted(zip(offsets.tolist(), ordered[which].tolist(), strict=True))
    assert found == [(place, number) for place, number in enumerate(everything) if number in wanted]


def test_a_range_costs_nothing_however_long() -> None:
    which, offsets = locate(np.array([5, 2**40], np.uint64), RowIds((Range(0, 2**61), Holes(2**61, 2**62, b""))))
    assert (which.tolist(), offsets.tolist()) == ([0, 1], [5, 2**40])


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=6), st.data())
def test_stamping_by_runs_is_stamping_row_by_row(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    before = joined(runs)
    offsets = data.draw(st.sets(st.integers(0, len(before) - 1), min_size=1))
    expected = before.to_numpy()
    expected[sorted(offsets)] = 9
    assert stamped(before, BitMap(offsets), 9) == row_versions_of(expected)


def test_stamping_does_not_count_rows() -> None:
    assert stamped(RowVersions(((2**32, 1),)), BitMap([7]), 2).runs == ((7, 1), (1, 2), (2**32 - 8, 1))


def test_a_damaged_bitmap_in_the_table_is_named() -> None:
    base = table(indices=[replace(index("w", [4], [0]), fragment_bitmap=b"junk")])
    with pytest.raises(CorruptTable, match="index w"):
        apply(in_columns(rewritten(1)), base, STAMP)

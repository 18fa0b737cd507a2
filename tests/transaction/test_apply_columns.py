"""Merge, Project and DataReplacement on values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.manifests import FIELDS, LEAVES, STAMP, by_id, coverage, data_file, deletions, ids, index, part, row_ids, table, updated
from tiltyard import ops
from tiltyard.errors import IncompatibleConflict, InvalidInput
from tiltyard.format.flags import Feature
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFile, DataFragment, Field
from tiltyard.transaction.apply.next_manifest import apply

NEW = Field("new", 5, -1, "int64")
MARK = int(Feature.NON_REUSABLE_FIELD_IDS)


def paths(fragment: DataFragment) -> list[str]:
    return [file.path.removesuffix(".lance") for file in fragment.files]


def apply_(operation: ops.Operation, base: Manifest) -> Manifest:
    return apply(operation, base, STAMP)


# ---- Merge -----------------------------------------------------------------------------------------------------------------


def widened(base: Manifest, *numbers: int) -> ops.Merge:
    """A column more in some fragments."""
    fragments = tuple(
        replace(one, files=(*one.files, data_file(f"n{one.id}", [5]))) if one.id in numbers else one for one in base.fragments
    )
    return ops.Merge(fragments, (*FIELDS, NEW))


def test_columns_are_added() -> None:
    base = table(schema_metadata={"m": b"x"})
    made = apply_(widened(base, 0, 1, 2), base)
    assert made.fields == (*FIELDS, NEW)
    assert [paths(one) for one in made.fragments] == [["f0", "n0"], ["f1", "n1"], ["f2", "n2"]]
    assert made.schema_metadata == {"m": b"x"}
    assert apply_(replace(widened(base), schema_metadata={"n": b"y"}), base).schema_metadata == {"n": b"y"}


def test_only_fragments_with_new_files_were_updated() -> None:
    base = table(stable=True)
    made = by_id(apply_(widened(base, 1), base))
    assert [updated(made[number])[0] for number in (0, 1, 2)] == [1, 8, 1]
    assert row_ids(made[1]) == list(range(10, 20))


def test_indices_on_columns_that_went_or_moved() -> None:
    indices = [
        index("id", [0], [0, 1, 2], uuid=1),
        index("w", [4], [0, 1, 2], uuid=2),
        index("s", [1], [0, 1, 2], uuid=3),
        index("st", [2], [0, 1, 2], uuid=4),
        index("c", [0], [0], uuid=5, covering_fields=(1,)),
    ]
    base = table(indices=indices)
    moved = replace(by_id(base)[1], files=(data_file("f1", (0, 1, -2, -2)), data_file("m", (3, 4))))
    without_s = tuple(one for one in FIELDS if one.id != 1)
    made = apply_(ops.Merge((by_id(base)[0], moved, by_id(base)[2]), without_s), base)
    assert coverage(made) == {"id": [0, 1, 2], "w": [0, 2], "st": [0, 2]}


def test_the_mark_of_field_ids_rises() -> None:
    base = table(max_allocated_field_id=4, writer_flags=MARK)
    made = apply_(widened(base, 0), base)
    assert (made.max_allocated_field_id, made.writer_flags & MARK) == (5, MARK)
    assert apply_(ops.Project(FIELDS[:1]), base).max_allocated_field_id == 4


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (lambda parts: parts[:2], IncompatibleConflict, "leaves out fragment 2"),
        (lambda parts: (*parts, part(9)), IncompatibleConflict, "no fragment 9"),
        (lambda parts: (*parts, parts[0]), InvalidInput, "occurs twice"),
        (lambda parts: (replace(parts[0], physical_rows=9), *parts[1:]), IncompatibleConflict, "10 rows"),
        (lambda parts: (replace(parts[0], deletion_file=deletions(3)), *parts[1:]), IncompatibleConflict, "deleted since"),
        (lambda parts: (*parts[:2], replace(parts[2], deletion_file=None)), IncompatibleConflict, "come back"),
        (lambda parts: (replace(parts[0], files=(data_file("x", (0, 1, 3, 4), base_id=3),)), *parts[1:]), InvalidInput, "base 3"),
    ],
)
def test_a_merge_of_other_rows_is_refused(change: Any, kind: type[Exception], reason: str) -> None:
    base = table([part(0), part(1), part(2, deletion_file=deletions(1))])
    with pytest.raises(kind, match=reason):
        apply_(ops.Merge(change(tuple(base.fragments)), FIELDS), base)


@pytest.mark.parametrize("schema", [(FIELDS[0], FIELDS[0]), (FIELDS[3],), (replace(FIELDS[0], id=-1),)])
def test_a_schema_that_is_no_tree_is_refused(schema: tuple[Field, ...]) -> None:
    base = table()
    with pytest.raises(InvalidInput, match="is invalid"):
        apply_(ops.Merge(tuple(base.fragments), schema), base)


# ---- Project ---------------------------------------------------------------------------------------------------------------


def test_files_without_a_column_left_go_and_others_stay_as_they_are() -> None:
    wide = replace(part(0), files=(data_file("a", (0, 1)), data_file("b", (3, 4)), data_file("c", (-2, 4))))
    base = table(
        [wide, part(1)], indices=[index("w", [4], [0], uuid=1), index("s", [1], [0], uuid=2), index("__lance_mem_wal", [], None, uuid=3)]
    )
    made = apply_(ops.Project(FIELDS[:2]), base)
    assert [paths(one) for one in made.fragments] == [["a"], ["f1"]]
    assert by_id(made)[1].files[0].fields == LEAVES
    assert coverage(made) == {"s": [0], "__lance_mem_wal": None}
    assert made.fields == FIELDS[:2]


def test_renamed_columns_touch_no_fragment() -> None:
    base = table()
    renamed = tuple(replace(one, name=one.name.upper()) for one in FIELDS)
    made = apply_(ops.Project(renamed), base)
    assert made.fields == renamed
    assert made.fragments is base.fragments


def test_a_file_with_row_ids_stays() -> None:
    lineage = data_file("lineage", (4, -3, -4, -5))
    spilled = [{"row_ids_spilled": True}, {"created_at_spilled": True}, {"updated_at_spilled": True}]
    for marks in spilled:
        one = replace(part(0), files=(data_file("a", (0, 1, 3)), lineage), **marks)  # type: ignore[arg-type]
        made = apply_(ops.Project(FIELDS[:2]), table([one]))
        assert paths(by_id(made)[0]) == ["a", "lineage"]
    made = apply_(ops.Project(FIELDS[:2]), table([replace(part(0), files=(data_file("a", (0, 1, 3)), lineage))]))
    assert paths(by_id(made)[0]) == ["a"]


def test_a_projection_cannot_make_columns() -> None:
    with pytest.raises(IncompatibleConflict, match="no field 5"):
        apply_(ops.Project((*FIELDS, NEW)), table())


# ---- DataReplacement -------------------------------------------------------------------------------------------------------


def replacing(file: DataFile, *numbers: int) -> ops.DataReplacement:
    return ops.DataReplacement(tuple(ops.Replacement(number, file) for number in numbers))


def test_a_file_of_the_same_columns_is_swapped() -> None:
    base = table([replace(part(0), files=(data_file("a", (0, 1, 3)), data_file("w", (4,), size=5)))])
    made = apply_(replacing(data_file("v", (4,), size=9), 0), base)
    assert by_id(made)[0].files == (data_file("a", (0, 1, 3)), data_file("v", (4,), size=9))


def test_columns_that_had_no_file_get_one() -> None:
    base = table(fields=(*FIELDS, NEW))
    made = apply_(replacing(data_file("n", (5,)), 1), base)
    assert [paths(one) for one in made.fragments] == [["f0"], ["f1", "n"], ["f2"]]


def test_columns_of_a_wider_file_are_retired() -> None:
    base = table(indices=[index("w", [4], [0, 1], uuid=1), index("st", [2], [0, 1], uuid=2), index("id", [0], [0, 1], uuid=3)])
    made = apply_(replacing(data_file("n", (3, 4)), 1, 2), base)
    assert by_id(made)[1].files == (data_file("f1", (0, 1, -2, -2)), data_file("n", (3, 4)))
    assert coverage(made) == {"w": [0], "st": [0], "id": [0, 1]}


def test_a_column_with_and_one_without_a_file() -> None:
    made = apply_(replacing(data_file("n", (4, 5)), 1), table(fields=(*FIELDS, NEW)))
    assert by_id(made)[1].files == (data_file("f1", (0, 1, 3, -2)), data_file("n", (4, 5)))


def test_columns_spread_over_files_leave_no_dead_file() -> None:
    base = table([replace(part(0), files=(data_file("a", (0, 1)), data_file("x", (3,)), data_file("y", (4, 77))))])
    made = apply_(replacing(data_file("n", (3, 4)), 0), base)
    assert paths(by_id(made)[0]) == ["a", "n"]


def test_all_rows_of_the_fragment_were_updated() -> None:
    made = by_id(apply_(replacing(data_file("n", (4,)), 1), table(stable=True)))
    assert (updated(made[1]), updated(made[0])) == ([8] * 10, [1] * 10)


def test_versions_in_a_data_file_become_inline() -> None:
    spilled = part(0, fields=(*LEAVES, -5), updated_at_spilled=True)
    flags = int(Feature.STABLE_ROW_IDS | Feature.SPILLED_ROW_LINEAGE)
    base = table([spilled], stable=True, reader_flags=flags, writer_flags=flags)
    base = replace(base, fragments=type(base.fragments)([replace(base.fragments[0], updated_at=None)]))
    made = apply_(replacing(data_file("n", (4,)), 0), base)
    assert updated(by_id(made)[0]) == [8] * 10
    assert not made.writer_flags & Feature.SPILLED_ROW_LINEAGE


def test_the_oldest_format_takes_whole_files_only() -> None:
    old = replace(part(0), files=(replace(data_file("f", (0, 1, 3)), major=0, minor=2), replace(data_file("g", (4,)), major=0, minor=2)))
    base = table([old], data_format=None)
    new = replace(data_file("n", (4,)), major=0, minor=2)
    assert paths(by_id(apply_(replacing(new, 0), base))[0]) == ["f", "n"]
    with pytest.raises(InvalidInput, match="oldest format"):
        apply_(replacing(replace(data_file("n", (3,)), major=0, minor=2), 0), base)


@pytest.mark.parametrize(
    ("operation", "kind", "reason"),
    [
        (replacing(data_file("n", (4,)), 9), IncompatibleConflict, "no fragment 9"),
        (replacing(data_file("n", (9,)), 0), IncompatibleConflict, "no field 9"),
        (replacing(data_file("n", (4,)), 0, 0), InvalidInput, "occurs twice"),
        (replacing(data_file("n", (-2,)), 0), InvalidInput, "no field"),
        (replacing(data_file("f0"), 0), InvalidInput, "already"),
        (replacing(data_file("n", (4,), minor=1), 0), InvalidInput, "format 2.1"),
        (replacing(data_file("/n", (4,)), 0), InvalidInput, "not relative"),
        (
            ops.DataReplacement((ops.Replacement(0, data_file("a", (4,))), ops.Replacement(1, data_file("b", (1,))))),
            InvalidInput,
            "different fields",
        ),
    ],
)
def test_a_replacement_that_does_not_fit_is_refused(operation: ops.DataReplacement, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        apply_(operation, table())


def test_a_replacement_of_nothing_makes_a_version() -> None:
    made = apply_(ops.DataReplacement(), table())
    assert (made.version, ids(made)) == (8, [0, 1, 2])

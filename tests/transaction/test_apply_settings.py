"""UpdateConfig, UpdateBases, Restore and Clone on values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.manifests import FIELDS, STABLE, STAMP, by_id, data_file, deletions, ids, index, part, table
from tiltyard import ops
from tiltyard.errors import IncompatibleConflict, InvalidInput, TiltyardError, UnsupportedFeature
from tiltyard.format.flags import Feature
from tiltyard.format.keys import CLUSTERING_KEY_POSITION, PRIMARY_KEY, PRIMARY_KEY_POSITION
from tiltyard.format.manifest import decode_indices
from tiltyard.format.values import BasePath
from tiltyard.ops import UpdateMap
from tiltyard.transaction.apply.next_manifest import apply, clone

# ---- UpdateConfig ----------------------------------------------------------------------------------------------------------


def test_maps_are_changed_or_replaced() -> None:
    base = table(config={"a": "1", "b": "2"}, table_metadata={"t": "1"}, schema_metadata={"s": b"1"})
    changes = UpdateMap((("a", None), ("c", "3"), ("c", "4"), ("z", None)))
    made = apply(ops.UpdateConfig(changes, changes, UpdateMap((("é", "ü"), ("s", None)))), base, STAMP)
    assert (made.config, made.table_metadata, made.schema_metadata) == ({"b": "2", "c": "4"}, {"t": "1", "c": "4"}, {"é": "ü".encode()})
    replaced = UpdateMap((("n", "1"),), replace=True)
    made = apply(ops.UpdateConfig(replaced, replaced, replaced), base, STAMP)
    assert (made.config, made.table_metadata, made.schema_metadata) == ({"n": "1"}, {"n": "1"}, {"n": b"1"})
    same = apply(ops.UpdateConfig(), base, STAMP)
    assert (same.config, same.fields, same.fragments) == (base.config, base.fields, base.fragments)


def test_the_flag_follows_the_config() -> None:
    made = apply(ops.UpdateConfig(UpdateMap((("a", "1"),))), table(), STAMP)
    assert (made.writer_flags, made.reader_flags) == (Feature.TABLE_CONFIG, 0)
    assert apply(ops.UpdateConfig(UpdateMap((("a", None),))), made, STAMP).writer_flags == 0


def on(number: int, key: str, value: str | None, *, replacing: bool = False) -> ops.UpdateConfig:
    return ops.UpdateConfig(field_metadata_updates={number: UpdateMap(((key, value),), replacing)})


def test_members_follow_field_metadata() -> None:
    made = apply(on(4, "ARROW:extension:name", "my.type"), table(), STAMP)
    assert (made.fields[4].extension_name, made.fields[4].metadata) == ("my.type", {"ARROW:extension:name": b"my.type"})
    made = apply(on(0, PRIMARY_KEY, "true"), table(), STAMP)
    assert (made.fields[0].primary_key, made.fields[0].primary_key_position) == (True, 0)
    made = apply(on(0, PRIMARY_KEY_POSITION, "1"), table(), STAMP)
    assert (made.fields[0].primary_key, made.fields[0].primary_key_position) == (True, 1)
    made = apply(on(4, CLUSTERING_KEY_POSITION, "1"), table(), STAMP)
    assert made.fields[4].clustering_key_position == 1


@pytest.mark.parametrize(
    "change",
    [
        on(0, PRIMARY_KEY, "true"),
        on(0, PRIMARY_KEY, None),
        on(0, "other", "x", replacing=True),
        on(4, PRIMARY_KEY_POSITION, "2"),
        on(4, CLUSTERING_KEY_POSITION, "2"),
        on(1, CLUSTERING_KEY_POSITION, "1"),
        on(4, "other", "x", replacing=True),
    ],
)
def test_a_key_does_not_change(change: ops.UpdateConfig) -> None:
    base = apply(on(4, CLUSTERING_KEY_POSITION, "1"), apply(on(0, PRIMARY_KEY, "true"), table(), STAMP), STAMP)
    with pytest.raises(InvalidInput, match="cannot change"):
        apply(change, base, STAMP)
    assert apply(on(0, "unit", "x"), base, STAMP).fields[0].primary_key


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (on(9, "k", "v"), IncompatibleConflict, "no field 9"),
        (on(0, PRIMARY_KEY, "perhaps"), InvalidInput, "valid primary key"),
        (on(0, CLUSTERING_KEY_POSITION, "first"), InvalidInput, "valid clustering key"),
        (on(1, PRIMARY_KEY, "true"), InvalidInput, "nullable"),
        (on(2, PRIMARY_KEY, "true"), InvalidInput, "struct"),
    ],
)
def test_metadata_that_cannot_be_is_refused(change: ops.UpdateConfig, kind: type[TiltyardError], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        apply(change, table(), STAMP)


# ---- UpdateBases -----------------------------------------------------------------------------------------------------------


def test_bases_get_the_first_free_ids() -> None:
    base = table(base_paths=(BasePath(0, "/zero"), BasePath(2, "/two", name="two")))
    new = (BasePath(0, "/a"), BasePath(9, "/b", True, "b"), BasePath(0, "/c"))
    made = apply(ops.UpdateBases(new), base, STAMP)
    assert [(one.id, one.path) for one in made.base_paths] == [(0, "/zero"), (2, "/two"), (1, "/a"), (9, "/b"), (3, "/c")]
    assert made.reader_flags & made.writer_flags & Feature.BASE_PATHS


@pytest.mark.parametrize(
    ("new", "kind"),
    [
        ((BasePath(2, "/x"),), IncompatibleConflict),
        ((BasePath(0, "/two"),), IncompatibleConflict),
        ((BasePath(0, "/x", name="two"),), IncompatibleConflict),
        ((BasePath(0, "/x"), BasePath(0, "/x")), IncompatibleConflict),
        ((BasePath(0, ""),), InvalidInput),
        ((BasePath(2**32, "/x"),), InvalidInput),
    ],
)
def test_bases_that_clash_are_refused(new: tuple[BasePath, ...], kind: type[TiltyardError]) -> None:
    with pytest.raises(kind):
        apply(ops.UpdateBases(new), table(base_paths=(BasePath(2, "/two", name="two"),)), STAMP)


# ---- Restore ---------------------------------------------------------------------------------------------------------------


def test_content_comes_back_and_marks_stay() -> None:
    old = table(
        [part(0, deletion_file=deletions(1))],
        version=3,
        stable=True,
        next_row_id=10,
        max_fragment_id=0,
        config={"old": "1"},
        fields=FIELDS[:2],
    )
    base = table(stable=True, config={"new": "1"}, max_allocated_field_id=9, indices=[index("w", [4], [0])])
    made = apply(ops.Restore(3), base, STAMP, restored=old)
    assert (made.version, ids(made), made.fields, made.config) == (8, [0], FIELDS[:2], {"old": "1"})
    assert (made.max_fragment_id, made.next_row_id, made.max_allocated_field_id, made.index_section) == (5, 100, 9, b"")
    both = Feature.DELETION_FILES | Feature.STABLE_ROW_IDS
    assert (made.reader_flags, made.writer_flags) == (both, both | Feature.TABLE_CONFIG | Feature.NON_REUSABLE_FIELD_IDS)


def test_marks_of_the_older_version_count_if_higher() -> None:
    old = table(version=3, max_fragment_id=50, next_row_id=500)
    made = apply(ops.Restore(3), table(), STAMP, restored=old)
    assert (made.max_fragment_id, made.next_row_id) == (50, 500)
    empty = table([], version=3, max_fragment_id=None)
    assert apply(ops.Restore(3), replace(empty, version=7), STAMP, restored=empty).max_fragment_id is None


def test_flags_are_those_of_the_content() -> None:
    mixed = int(Feature.MIXED_FILE_VERSIONS)
    base = table([part(0, deletion_file=deletions(1))], reader_flags=1 | mixed, writer_flags=1 | mixed, base_paths=(BasePath(1, "/b"),))
    made = apply(ops.Restore(3), base, STAMP, restored=table(version=3))
    assert (made.reader_flags, made.writer_flags) == (mixed, mixed)


@pytest.mark.parametrize(
    ("restored", "kind"),
    [
        (None, InvalidInput),
        (table(version=4, stable=True), InvalidInput),
        (table(version=3, stable=True, branch="dev"), InvalidInput),
        (table(version=3), IncompatibleConflict),
        (table(version=3, stable=True, reader_flags=STABLE | 64, writer_flags=STABLE), UnsupportedFeature),
        (table(version=3, stable=True, reader_flags=STABLE, writer_flags=STABLE | 2**20), UnsupportedFeature),
    ],
)
def test_a_version_that_cannot_be_restored(restored: Any, kind: type[TiltyardError]) -> None:
    with pytest.raises(kind):
        apply(ops.Restore(3), table(stable=True), STAMP, restored=restored)


# ---- Clone -----------------------------------------------------------------------------------------------------------------

SHALLOW = ops.Clone(True, None, 7, "/source")


def _source(**more: Any) -> Any:
    inner = replace(part(1), files=(data_file("x", base_id=1),), deletion_file=replace(deletions(1), base_id=1))
    parts = [part(0, deletion_file=deletions(1)), inner]
    settings = {"base_paths": (BasePath(1, "/one"),), "config": {"k": "v"}, "indices": [index("w", [4], [0])]} | more
    return table(parts, **settings)


def test_a_shallow_clone_refers_to_its_source() -> None:
    made = clone(SHALLOW, _source(), STAMP)
    assert (made.version, ids(made), made.max_fragment_id, made.config, made.branch) == (7, [0, 1], 5, {"k": "v"}, None)
    assert made.base_paths == (BasePath(1, "/one"), BasePath(0, "/source", is_dataset_root=True))
    assert [one.files[0].base_id for one in made.fragments] == [0, 1]
    assert [one.deletion_file.base_id for one in made.fragments if one.deletion_file] == [0, 1]
    assert decode_indices(made, "")[0].base_id == 0
    assert made.reader_flags & Feature.BASE_PATHS & made.writer_flags
    assert made.transaction_file == STAMP.transaction_file
    again = clone(replace(SHALLOW, ref_name="dev", branch_name="inner"), replace(made, branch="dev"), STAMP)
    assert (again.base_paths[-1], again.branch) == (BasePath(2, "/source", True, "dev"), "inner")


def test_a_deep_clone_has_everything_at_home() -> None:
    made = clone(replace(SHALLOW, is_shallow=False), _source(branch="dev"), STAMP)
    assert (made.base_paths, made.branch, made.version) == ((), None, 7)
    assert [(one.files[0].base_id, one.deletion_file and one.deletion_file.base_id) for one in made.fragments] == [(None, None)] * 2
    assert not made.reader_flags & Feature.BASE_PATHS
    assert made.reader_flags & Feature.DELETION_FILES


@pytest.mark.parametrize(
    ("operation", "more", "kind", "reason"),
    [
        (replace(SHALLOW, ref_version=6), {}, InvalidInput, "is 6, not 7"),
        (replace(SHALLOW, ref_path=""), {}, InvalidInput, "where its files are"),
        (replace(SHALLOW, is_shallow=False, branch_name="b"), {}, InvalidInput, "branch"),
        (SHALLOW, {"reader_flags": 64}, UnsupportedFeature, "data overlays"),
        (SHALLOW, {"writer_flags": 2**20}, UnsupportedFeature, "cannot write"),
    ],
)
def test_a_clone_that_cannot_be_made(operation: ops.Clone, more: dict[str, Any], kind: type[TiltyardError], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        clone(operation, _source(**more), STAMP)


def test_files_of_one_name_cannot_come_together() -> None:
    twice = table([part(0), replace(part(1), files=(data_file("f0", base_id=1),))], base_paths=(BasePath(1, "/one"),))
    with pytest.raises(InvalidInput, match=r"f0\.lance"):
        clone(replace(SHALLOW, is_shallow=False), twice, STAMP)
    assert by_id(clone(SHALLOW, twice, STAMP))[1].files[0].base_id == 1


def test_overlays_are_not_cloned() -> None:
    with pytest.raises(UnsupportedFeature, match="overlays"):
        clone(SHALLOW, table([replace(part(0), overlays=(b"",))]), STAMP)


def test_a_clone_is_not_committed_to_a_table() -> None:
    with pytest.raises(InvalidInput, match="makes a new one"):
        apply(SHALLOW, table(), STAMP)

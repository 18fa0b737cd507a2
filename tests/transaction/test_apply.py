"""What the next version says after an append and an overwrite: by the rules for every operation, on values and on real tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import FIELDS, InterruptedStore, fragment, handle, is_version, rows
from tests.support.stock import stock_manifest
from tests.support.tables import open_stock
from tiltyard import ops
from tiltyard.errors import InvalidInput, RetryableConflict, UnsupportedFeature
from tiltyard.format.flags import Feature
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.row_ids import decode_row_ids, decode_row_versions
from tiltyard.format.values import BasePath, DataFormat, DataFragment, DeletionFile, WriterVersion
from tiltyard.storage.local import LocalStore
from tiltyard.transaction.apply.next_manifest import Creation, Stamp, apply, create
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.verify import to_be_sealed

STAMP = Stamp(1_700_000_000_123_456_000, WriterVersion("tiltyard", "0"), "7-x.txn")
STABLE = int(Feature.STABLE_ROW_IDS)
DELETIONS = int(Feature.DELETION_FILES)
SWAPPED = FIELDS[::-1]


def _manifest(**changes: Any) -> Manifest:
    return replace(
        Manifest(
            version=7,
            fields=FIELDS,
            fragments=FragmentList([replace(fragment("old"), id=3)]),
            max_fragment_id=5,
            data_format=DataFormat("lance", "2.2"),
            config={"k": "v"},
            table_metadata={"t": "m"},
            base_paths=(BasePath(1, "/base"),),
            branch="dev",
            index_section=b"\x0a\x00",
            writer_flags=int(Feature.TABLE_CONFIG | Feature.BASE_PATHS),
            reader_flags=int(Feature.BASE_PATHS),
        ),
        **changes,
    )


def _append(*sizes: int) -> ops.Append:
    return ops.Append(tuple(fragment(f"new{number}", size) for number, size in enumerate(sizes)))


def _overwrite(*sizes: int, **more: Any) -> ops.Overwrite:
    return ops.Overwrite(_append(*sizes).fragments, SWAPPED, {"m": b"x"}, **more)


def _ids(manifest: Manifest) -> list[int]:
    return [one.id for one in manifest.fragments]


# ---- on values --------------------------------------------------------------------------------------------------------------


def test_append_adds_and_keeps() -> None:
    base = _manifest()
    made = apply(_append(1, 2), base, STAMP)
    assert _ids(made) == [3, 6, 7]
    assert made.max_fragment_id == 7
    assert (made.version, made.timestamp_ns, made.writer, made.transaction_file) == (8, STAMP.timestamp_ns, STAMP.writer, "7-x.txn")
    for kept in ("fields", "schema_metadata", "index_section", "config", "table_metadata", "base_paths", "branch", "data_format"):
        assert getattr(made, kept) == getattr(base, kept)
    assert (made.reader_flags, made.writer_flags) == (base.reader_flags, base.writer_flags)
    assert made.next_row_id == 0
    assert all(one.row_ids is None for one in made.fragments)


def test_overwrite_replaces_rows_and_schema_and_nothing_else() -> None:
    base = _manifest()
    made = apply(_overwrite(1, 2), base, STAMP)
    assert _ids(made) == [6, 7]
    assert made.max_fragment_id == 7
    assert (made.fields, made.schema_metadata, made.index_section) == (SWAPPED, {"m": b"x"}, b"")
    for kept in ("config", "table_metadata", "base_paths", "branch", "data_format"):
        assert getattr(made, kept) == getattr(base, kept)


def test_an_overwrite_with_nothing_keeps_the_high_water_marks() -> None:
    base = _manifest(next_row_id=40, reader_flags=STABLE, writer_flags=STABLE)
    made = apply(_overwrite(), base, STAMP)
    assert (_ids(made), made.max_fragment_id, made.next_row_id) == ([], 5, 40)
    assert made.writer_flags & Feature.STABLE_ROW_IDS


def test_config_of_an_overwrite_is_merged() -> None:
    made = apply(_overwrite(1, config_upsert_values={"k": "new", "more": "1"}), _manifest(), STAMP)
    assert made.config == {"k": "new", "more": "1"}
    made = apply(_overwrite(1, config_upsert_values={"k": "new"}), _manifest(config={}, writer_flags=0), STAMP)
    assert made.writer_flags & Feature.TABLE_CONFIG


def test_the_first_fragment_ever_has_the_id_0() -> None:
    empty = _manifest(fragments=FragmentList(), max_fragment_id=None)
    assert _ids(apply(_append(1, 1), empty, STAMP)) == [0, 1]
    nothing = apply(_append(), empty, STAMP)
    assert (_ids(nothing), nothing.max_fragment_id) == ([], None)


def test_a_high_water_mark_that_was_never_written_is_found() -> None:
    assert _ids(apply(_append(1), _manifest(max_fragment_id=None), STAMP)) == [3, 4]


def test_stable_row_ids_go_on_and_lineage_says_the_new_version() -> None:
    base = _manifest(next_row_id=100, reader_flags=STABLE, writer_flags=STABLE)
    for operation in (_append(2, 3), _overwrite(2, 3)):
        made = apply(operation, base, STAMP)
        assert made.next_row_id == 105
        one, two = made.fragments[-2:]
        for part, first, size in ((one, 100, 2), (two, 102, 3)):
            assert part.row_ids is not None
            assert part.created_at is not None
            assert part.created_at == part.updated_at
            assert decode_row_ids(part.row_ids, physical_rows=size, source="").to_numpy().tolist() == list(range(first, first + size))
            assert decode_row_versions(part.created_at, physical_rows=size, source="").to_numpy().tolist() == [8] * size
        assert made.reader_flags & made.writer_flags & Feature.STABLE_ROW_IDS


def test_flags_of_old_fragments_go_with_them() -> None:
    flags = int(Feature.DELETION_FILES | Feature.SPILLED_ROW_LINEAGE)
    base = _manifest(reader_flags=flags | STABLE, writer_flags=flags | STABLE)
    kept = apply(_append(1), base, STAMP)
    gone = apply(_overwrite(1), base, STAMP)
    assert kept.reader_flags & flags == kept.writer_flags & flags == flags
    assert gone.reader_flags & flags == gone.writer_flags & flags == 0


def test_sticky_flags_stay() -> None:
    mixed, silent = int(Feature.MIXED_FILE_VERSIONS), int(Feature.NO_TRANSACTION_FILE)
    base = _manifest(reader_flags=mixed, writer_flags=mixed | silent)
    for operation in (_append(1), _overwrite(1)):
        made = apply(operation, base, STAMP)
        assert made.reader_flags & mixed == mixed
        assert made.writer_flags & (mixed | silent) == mixed | silent


def test_covering_indices_go_with_an_overwrite() -> None:
    flag = int(Feature.COVERED_INDEX_METADATA)
    base = _manifest(reader_flags=flag, writer_flags=flag)
    assert apply(_append(1), base, STAMP).writer_flags & flag
    assert not apply(_overwrite(1), base, STAMP).writer_flags & flag


def test_the_field_id_mark_rises_with_an_overwrite() -> None:
    base = _manifest(max_allocated_field_id=9, writer_flags=int(Feature.NON_REUSABLE_FIELD_IDS))
    higher = tuple(replace(one, id=one.id + 10) for one in FIELDS)
    made = apply(ops.Overwrite((), higher), base, STAMP)
    assert made.max_allocated_field_id == 11
    assert made.writer_flags & Feature.NON_REUSABLE_FIELD_IDS
    assert apply(ops.Overwrite(), base, STAMP).max_allocated_field_id == 9


def test_what_cannot_be_applied_is_refused() -> None:
    operation = ops.UnknownOperation(116)
    with pytest.raises(UnsupportedFeature) as caught:
        apply(operation, _manifest(), STAMP)
    assert caught.value.feature == operation.name
    assert caught.value.writing


def _file(**changes: Any) -> DataFragment:
    sound = fragment("new")
    return replace(sound, files=(replace(sound.files[0], **changes),))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (_file(path="../../etc/passwd"), "it names"),
        (_file(path="/etc/passwd"), "it names"),
        (_file(path=""), "it names"),
        (_file(column_indices=(0,)), "2 fields but 1 columns"),
        (_file(column_indices=()), "2 fields but 0 columns"),
        (_file(fields=(0, 0)), "one field twice"),
        (_file(column_indices=(0, 0)), "one column"),
        (replace(fragment("new"), physical_rows=0), "how many rows"),
        (_file(base_id=9), "base 9"),
        (_file(minor=1), "format 2.1, the table has 2.2"),
        (replace(fragment("new"), physical_rows=-1), "-1 rows"),
        (replace(fragment("new"), physical_rows=2**33), "8589934592 rows"),
        (replace(fragment("new"), deletion_file=DeletionFile(False, 1, 1, 1)), "deletions"),
        (replace(fragment("new"), overlays=(b"",)), "overlays"),
        (replace(fragment("new"), row_ids_spilled=True), "row ids"),
    ],
)
def test_what_would_make_an_unreadable_version_is_refused(bad: DataFragment, reason: str) -> None:
    for operation in (ops.Append((bad,)), ops.Overwrite((bad,), FIELDS)):
        with pytest.raises(InvalidInput, match=reason):
            apply(operation, _manifest(), STAMP)
    with pytest.raises(InvalidInput, match=reason):
        create(ops.Overwrite((bad,), FIELDS), Creation(DataFormat()), STAMP)


def test_columns_that_the_new_schema_lacks_are_refused() -> None:
    """They would be read as nulls, without an error."""
    with pytest.raises(InvalidInput, match="field 1"):
        apply(ops.Overwrite((fragment("new"),), FIELDS[:1]), _manifest(), STAMP)


def test_files_in_a_base_the_table_has_and_of_mixed_formats_are_fine() -> None:
    assert len(apply(ops.Append((_file(base_id=1),)), _manifest(), STAMP).fragments) == 2
    mixed = int(Feature.MIXED_FILE_VERSIONS)
    assert len(apply(ops.Append((_file(minor=1),)), _manifest(reader_flags=mixed, writer_flags=mixed), STAMP).fragments) == 2
    assert len(apply(ops.Append((_file(minor=1),)), _manifest(data_format=None), STAMP).fragments) == 2


def test_fragment_ids_run_out() -> None:
    with pytest.raises(InvalidInput, match="fragment ids"):
        apply(_append(1), _manifest(max_fragment_id=2**32 - 1), STAMP)


def test_row_ids_run_out() -> None:
    full = _manifest(next_row_id=2**64 - 2, reader_flags=STABLE, writer_flags=STABLE)
    with pytest.raises(InvalidInput, match="row ids"):
        apply(_append(1, 5), full, STAMP)


def test_create() -> None:
    operation = ops.Overwrite((fragment("a", 2),), FIELDS, {"m": b"x"}, {"k": "v"}, (BasePath(1, "/b"),))
    made = create(operation, Creation(DataFormat("lance", "2.2"), stable_row_ids=True, branch="dev"), STAMP)
    assert (made.version, _ids(made), made.max_fragment_id, made.next_row_id, made.branch) == (1, [0], 0, 2, "dev")
    assert (made.config, made.base_paths, made.schema_metadata) == ({"k": "v"}, operation.initial_bases, {"m": b"x"})
    both = int(Feature.STABLE_ROW_IDS | Feature.BASE_PATHS)
    assert (made.reader_flags, made.writer_flags) == (both, both | Feature.TABLE_CONFIG)


def test_create_takes_no_base_twice_and_an_overwrite_none_at_all() -> None:
    twice = ops.Overwrite((), FIELDS, initial_bases=(BasePath(1, "/a"), BasePath(1, "/b")))
    with pytest.raises(InvalidInput, match="share one id"):
        create(twice, Creation(DataFormat()), STAMP)
    with pytest.raises(InvalidInput, match="new table"):
        apply(ops.Overwrite((), FIELDS, initial_bases=(BasePath(4, "/a"),)), _manifest(), STAMP)


# ---- on real tables ---------------------------------------------------------------------------------------------------------


def _stock(root: Path, **options: Any) -> Any:
    return lance.write_dataset(rows(*range(8)), str(root), max_rows_per_file=4, **options)


def test_deletions_and_indices_survive_an_append_and_go_with_an_overwrite(tmp_path: Path) -> None:
    stock = _stock(tmp_path / "t")
    stock.create_scalar_index("id", "BTREE")
    stock.delete("id = 5")
    table = ty.Table.open(tmp_path / "t")
    table.append(rows(100))
    manifest = stock_manifest(tmp_path / "t", table.version)
    assert manifest.reader_feature_flags & manifest.writer_feature_flags & DELETIONS
    assert [index.name for index in open_stock(str(tmp_path / "t")).describe_indices()] == ["id_idx"]
    assert open_stock(str(tmp_path / "t")).to_table(filter="id = 100").num_rows == 1
    table.overwrite(rows(1, 2))
    manifest = stock_manifest(tmp_path / "t", table.version)
    assert (manifest.reader_feature_flags | manifest.writer_feature_flags) & DELETIONS == 0
    assert not manifest.HasField("index_section")
    assert [one.id for one in manifest.fragments] == [3]
    assert open_stock(str(tmp_path / "t")).describe_indices() == []
    open_stock(str(tmp_path / "t")).create_scalar_index("id", "BTREE")
    open_stock(str(tmp_path / "t")).delete("id = 1")
    assert ty.Table.open(tmp_path / "t").count_rows() == 1


def test_row_ids_as_stock_would_give_them(tmp_path: Path) -> None:
    """The same history by both writers gives the same row ids and row versions."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    table = ty.Table.create(ours, rows(*range(8)), stable_row_ids=True, options=ty.TableOptions(files=ty.FileLimits(rows=4)))
    _stock(theirs, enable_stable_row_ids=True)
    table.append(rows(8, 9))
    lance.write_dataset(rows(8, 9), str(theirs), mode="append")
    table.overwrite(rows(1, 2, 3))
    lance.write_dataset(rows(1, 2, 3), str(theirs), mode="overwrite")
    for version in (1, 2, 3):
        one, two = stock_manifest(ours, version), stock_manifest(theirs, version)
        assert one.next_row_id == two.next_row_id
        assert one.max_fragment_id == two.max_fragment_id
        assert [(f.id, f.physical_rows) for f in one.fragments] == [(f.id, f.physical_rows) for f in two.fragments]
        for mine, stock in zip(one.fragments, two.fragments, strict=True):
            for member in ("inline_row_ids", "inline_created_at_versions", "inline_last_updated_at_versions"):
                assert getattr(mine, member) == getattr(stock, member), member
    columns = ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    assert open_stock(str(ours), 2).to_table(columns=columns).equals(open_stock(str(theirs), 2).to_table(columns=columns))


def _with_non_reusable_ids(root: Path) -> None:
    """Marks the newest version by hand, as no public call does: ids up to 5 were given out."""
    log = VersionLog(LocalStore(root))
    found = log.head()
    assert found is not None
    file = log.load(*found)
    flags = file.manifest.writer_flags | Feature.NON_REUSABLE_FIELD_IDS
    inline = to_be_sealed(log.transaction_of(file)).to_bytes()
    data, _ = encode_manifest_file(replace(file.manifest, writer_flags=int(flags), max_allocated_field_id=5), inline)
    log.store.put(manifest_path(found[0], Scheme.V2), data)


NESTED = pa.table({"a": pa.array([1], pa.int64()), "st": pa.array([{"x": 1, "l": [1, 2]}]), "z": ["z"]})


@pytest.mark.parametrize("data", [rows(1, 2), NESTED], ids=["flat", "nested"])
def test_an_overwrite_never_reuses_a_field_id_where_that_is_asked_for(tmp_path: Path, data: pa.Table) -> None:
    root = tmp_path / "t"
    ty.Table.create(root, rows(0))
    _with_non_reusable_ids(root)
    table = ty.Table.open(root)
    table.append(rows(1))
    assert stock_manifest(root, 2).max_allocated_field_id == 5
    table.overwrite(data)
    manifest = stock_manifest(root, 3)
    ids = [one.id for one in manifest.fields]
    assert ids == list(range(6, 6 + len(ids)))
    assert manifest.max_allocated_field_id == max(ids)
    assert manifest.writer_feature_flags & Feature.NON_REUSABLE_FIELD_IDS
    assert table.to_arrow().equals(data)
    stock = open_stock(str(root))
    assert stock.to_table().equals(data)
    name = data.schema.names[0]
    stock.add_columns({"more": f"{name} + 1"})
    manifest = stock_manifest(root, 4)
    assert manifest.fields[-1].id == max(ids) + 1 == manifest.max_allocated_field_id
    fresh = ty.Table.open(root)
    assert fresh.to_arrow(["more"])["more"].to_pylist() == [value + 1 for value in data[name].to_pylist()]
    fresh.append(data)
    assert fresh.count_rows() == 2 * data.num_rows
    assert fresh.check().problems == ()


def test_a_stale_overwrite_takes_ids_above_those_given_out_meanwhile(tmp_path: Path) -> None:
    root = tmp_path / "t"
    ty.Table.create(root, rows(0))
    _with_non_reusable_ids(root)
    stale = ty.Table.open(root)
    open_stock(str(root)).add_columns({"more": "id + 1"})
    stale.overwrite(rows(9))
    manifest = stock_manifest(root, 3)
    assert [one.id for one in manifest.fields] == [7, 8]
    assert manifest.max_allocated_field_id == 8
    assert ty.Table.open(root).to_arrow().equals(rows(9))


def test_an_overwrite_whose_ids_were_given_out_at_the_last_moment_must_be_run_again(tmp_path: Path) -> None:
    root = tmp_path / "t"
    ty.Table.create(root, rows(0))
    _with_non_reusable_ids(root)
    racing = InterruptedStore(LocalStore(root), is_version, lambda: open_stock(str(root)).add_columns({"more": "id + 1"}))
    table = handle(root, racing)
    with pytest.raises(RetryableConflict) as caught:
        table.overwrite(rows(9), commit=ty.CommitOptions(reexecutions=0))
    assert [winner.version for winner in caught.value.winners] == [2]
    assert ty.Table.open(root).check().orphans == ()
    table.refresh().overwrite(rows(9))
    assert [one.id for one in stock_manifest(root, 3).fields] == [7, 8]
    assert table.to_arrow().equals(rows(9))


def test_an_empty_overwrite_takes_new_ids_too(tmp_path: Path) -> None:
    root = tmp_path / "t"
    ty.Table.create(root, rows(0))
    _with_non_reusable_ids(root)
    ty.Table.open(root).overwrite(rows(1).schema)
    assert [one.id for one in stock_manifest(root, 2).fields] == [6, 7]


def test_the_low_door_must_number_above_the_mark_too(tmp_path: Path) -> None:
    root = tmp_path / "t"
    ty.Table.create(root, rows(0))
    _with_non_reusable_ids(root)
    with pytest.raises(InvalidInput, match="up to 5"):
        ty.Table.open(root).commit(ops.Overwrite((), FIELDS))


def test_what_stock_put_into_the_manifest_is_carried_on(tmp_path: Path) -> None:
    root = tmp_path / "t"
    stock = _stock(root)
    stock.update_config({"k": "v"})
    stock.update_metadata({"t": "m"})
    table = ty.Table.open(root)
    for commit in (table.append, table.overwrite):
        commit(rows(9))
        manifest = stock_manifest(root, table.version)
        assert dict(manifest.config) == {"k": "v"}
        assert dict(manifest.table_metadata) == {"t": "m"}
        assert manifest.writer_feature_flags & Feature.TABLE_CONFIG
        assert not manifest.reader_feature_flags & Feature.TABLE_CONFIG
        assert manifest.data_format.version == "2.2"
        assert manifest.writer_version.library == "tiltyard"
    assert open_stock(str(root)).config() == {"k": "v"}

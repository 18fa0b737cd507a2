"""Every kind of table that stock pylance makes, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import lance
import numpy as np
import pyarrow as pa
from lance import DatasetBasePath, LanceDataset, LanceOperation
from lance.file import LanceFileWriter
from lance.fragment import DataFile, write_fragments

from tests.support.samples import table_of
from tests.support.tables import open_stock

VECTOR: Final = pa.list_(pa.float32(), 8)
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("s", pa.string()),
        pa.field("l", pa.list_(pa.string())),
        pa.field("v", VECTOR),
    ]
)
ROWS: Final = table_of(SCHEMA, 40)
MORE: Final = table_of(SCHEMA, 10, 40)
BLOB: Final = {"lance-encoding:blob": "true"}
PRIMARY_KEY: Final = {"lance-schema:unenforced-primary-key": "true"}


@dataclass(frozen=True, slots=True)
class Made:
    """A table and what is known of it beforehand."""

    uri: str
    operations: Sequence[str]
    """What its history must say, oldest version that is left first."""
    branch: str | None = None
    allowed_bases: Sequence[str] = ()


def write(rows: Any, path: Path, **options: Any) -> Any:
    return lance.write_dataset(rows, str(path), **options)


def _add(path: Path, rows: Any = MORE) -> Any:
    return write(rows, path, mode="append")


def _plain(path: Path, **options: Any) -> Made:
    rows = ROWS.drop_columns(["l"]) if options.get("data_storage_version") == "0.1" else ROWS
    write(rows, path, max_rows_per_file=20, **options)
    _add(path, MORE.select(rows.schema.names))
    open_stock(str(path)).delete("id % 7 = 0")
    return Made(str(path), ["Overwrite", "Append", "Delete"])


def _all_deleted(path: Path) -> Made:
    write(ROWS, path).delete("true")
    return Made(str(path), ["Overwrite", "Delete"])


def _no_rows(path: Path) -> Made:
    write(SCHEMA.empty_table(), path)
    return Made(str(path), ["Overwrite"])


def _bitmap_deletions(path: Path) -> Made:
    table = write(pa.table({"id": pa.array(range(12_000), pa.int64())}), path)
    table.delete("id % 2 = 0")
    assert list((path / "_deletions").glob("*.bin"))
    return Made(str(path), ["Overwrite", "Delete"])


def _scalar_index(column: str, kind: str) -> Callable[[Path], Made]:
    def make(path: Path) -> Made:
        write(ROWS, path).create_scalar_index(column, kind)
        _add(path)
        return Made(str(path), ["Overwrite", "CreateIndex", "Append"])

    return make


def _vector_index(kind: str, **options: Any) -> Callable[[Path], Made]:
    def make(path: Path) -> Made:
        rows = np.random.default_rng(0).random((300, 8), dtype=np.float32)
        table = pa.table(
            {"id": pa.array(range(300), pa.int64()), "v": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=VECTOR)}
        )
        write(table, path).create_index("v", kind, num_partitions=1, **options)
        _add(path, table.slice(0, 10))
        return Made(str(path), ["Overwrite", "CreateIndex", "Append"])

    return make


def _spatial_index(path: Path) -> Made:
    point = pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("y", pa.float64(), nullable=False)])
    schema = pa.schema([pa.field("g", point, metadata={"ARROW:extension:name": "geoarrow.point"})])
    write(pa.table({"g": pa.array([{"x": float(n), "y": 1.0} for n in range(9)], point)}).cast(schema), path).create_scalar_index(
        "g", "RTREE"
    )
    return Made(str(path), ["Overwrite", "CreateIndex"])


def _several_indices(path: Path) -> Made:
    table = write(ROWS, path)
    table.create_scalar_index("id", "BTREE")
    table.create_scalar_index("s", "INVERTED")
    _add(path)
    table = open_stock(str(path))
    table.optimize.optimize_indices(num_indices_to_merge=0)
    table.drop_index("s_idx")
    return Made(str(path), ["Overwrite", "CreateIndex", "CreateIndex", "Append", "CreateIndex", "CreateIndex"])


def _deferred_remap(path: Path) -> Made:
    table = write(ROWS, path, max_rows_per_file=10)
    table.create_scalar_index("id", "BTREE")
    table.optimize.compact_files(defer_index_remap=True)
    assert "__lance_frag_reuse" in {index.name for index in table.describe_indices()}
    return Made(str(path), ["Overwrite", "CreateIndex", "ReserveFragments", "Rewrite"])


def _branch(path: Path) -> Made:
    write(ROWS, path).create_branch("dev")
    _add(path)
    _add(path / "tree" / "dev")
    open_stock(str(path / "tree" / "dev")).delete("id < 5")
    return Made(str(path), ["Clone", "Append", "Delete"], branch="dev")


def _branch_of_branch(path: Path) -> Made:
    first = write(ROWS, path).create_branch("feature/x")
    inner = lance.write_dataset(MORE, first, mode="append").create_branch("feature/x.y")
    inner.tags.create("deep", ("feature/x.y", inner.version))
    lance.write_dataset(MORE, inner, mode="append")
    return Made(str(path), ["Clone", "Append"], branch="feature/x.y")


def _main_with_branch(path: Path) -> Made:
    _branch(path)
    return Made(str(path), ["Overwrite", "Append"])


def _tags(path: Path) -> Made:
    table = write(ROWS, path)
    table.tags.create("first", 1)
    _add(path).tags.create("v2.0_x-1", 2)
    _add(path)
    return Made(str(path), ["Overwrite", "Append", "Append"])


def _shallow_clone(path: Path) -> Made:
    source = path.with_name("source")
    _plain(source)
    open_stock(str(source)).create_scalar_index("id", "BTREE")
    open_stock(str(source)).shallow_clone(str(path), 4)
    _add(path)
    open_stock(str(path)).delete("id % 5 = 0")
    return Made(str(path), ["Clone", "Append", "Delete"], allowed_bases=[str(source)])


def _clone_of_clone(path: Path) -> Made:
    middle = path.with_name("middle")
    bases = [*_shallow_clone(middle).allowed_bases, str(middle)]
    table = open_stock(str(middle))
    table.tags.create("here", table.version)
    table.shallow_clone(str(path), "here")
    return Made(str(path), ["Clone"], allowed_bases=bases)


def _deep_clone(path: Path) -> Made:
    source = path.with_name("source")
    _plain(source)
    open_stock(str(source)).deep_clone(str(path), 3)
    return Made(str(path), ["Clone"])


def _several_bases(path: Path) -> Made:
    one, two, three = (path.with_name(name) for name in ("one", "two", "three"))
    for base in (one, two, three):
        base.mkdir(parents=True)
    bases = [DatasetBasePath(str(one), name="one", is_dataset_root=True), DatasetBasePath(str(two), name="two")]
    table = write(ROWS, path, initial_bases=bases, target_bases=["one"])
    table = write(MORE, path, mode="append", target_bases=["two"])
    table.add_bases([DatasetBasePath(str(three), name="three")])
    write(MORE, path, mode="append", target_bases=["three"])
    open_stock(str(path)).delete("id % 9 = 0")
    return Made(str(path), ["Overwrite", "Append", "UpdateBases", "Append", "Delete"], allowed_bases=[str(one), str(two), str(three)])


def _maps(path: Path) -> Made:
    table = write(ROWS.replace_schema_metadata({"origin": "é"}), path)
    table.update_config({"team": "blue", "gone": "soon"})
    table.delete_config_keys(["gone"])
    table.update_metadata({"owner": "me"})
    table.update_schema_metadata({"more": "text"})
    table.update_field_metadata({"s": {"unit": "words"}})
    return Made(str(path), ["Overwrite", *["UpdateConfig"] * 5])


def _primary_key(position: bool) -> Callable[[Path], Made]:
    def make(path: Path) -> Made:
        marks = {"lance-schema:unenforced-primary-key:position": "1"} if position else PRIMARY_KEY
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=marks), pa.field("s", pa.string())])
        table = write(table_of(schema, 20), path)
        table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table_of(schema, 10, 15))
        return Made(str(path), ["Overwrite", "Update"])

    return make


def _spilled_lineage(path: Path) -> Made:
    rows = 120_000
    shuffled = np.random.default_rng(1).permutation(rows)
    table = write(pa.table({"id": pa.array(range(rows), pa.int64())}), path, enable_stable_row_ids=True)
    table.update_config({"lance.row_lineage.spill": "true"})
    table.merge_insert("id").when_matched_update_all().execute(pa.table({"id": pa.array(shuffled[:-10], pa.int64())}))
    return Made(str(path), ["Overwrite", "UpdateConfig", "Update"])


def _write_ahead_log(path: Path) -> Made:
    write(ROWS, path).initialize_mem_wal(unsharded=True)
    return Made(str(path), ["Overwrite", "CreateIndex"])


def _blobs(version: str) -> Callable[[Path], Made]:
    def make(path: Path) -> Made:
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("b", pa.large_binary(), metadata=BLOB)])
        write(pa.table({"id": [1, 2, 3], "b": [b"x" * 10, b"y" * 100_000, None]}, schema=schema), path, data_storage_version=version)
        open_stock(str(path)).delete("id = 1")
        return Made(str(path), ["Overwrite", "Delete"])

    return make


def _changed_columns(path: Path) -> Made:
    table = write(ROWS, path, max_rows_per_file=20)
    table.add_columns({"double": "id * 2"})
    table.add_columns(pa.field("empty", pa.string()))
    table.alter_columns({"path": "double", "name": "twice"})
    table.alter_columns({"path": "twice", "data_type": pa.int32()})
    table.drop_columns(["l"])
    return Made(str(path), ["Overwrite", "Merge", "Merge", "Project", "Merge", "Project"])


def _replaced_column(path: Path) -> Made:
    table = write(ROWS, path)
    file = path / "data" / "replacement.lance"
    with LanceFileWriter(str(file), pa.schema([("s", pa.string())])) as writer:
        writer.write_batch(pa.table({"s": ["r"] * ROWS.num_rows}))
    group = LanceOperation.DataReplacementGroup(0, DataFile(file.name, [1], [0], 2, 2, file.stat().st_size))
    LanceDataset.commit(table, LanceOperation.DataReplacement([group]), read_version=1)
    return Made(str(path), ["Overwrite", "DataReplacement"])


def _rewritten_columns(path: Path) -> Made:
    table = write(ROWS, path)
    changed, modified = table.get_fragments()[0].update_columns(pa.table({"id": pa.array([2], pa.int64()), "s": ["new"]}), "id", "id")
    update = LanceOperation.Update(updated_fragments=[changed], fields_modified=modified, update_mode="rewrite_columns")
    LanceDataset.commit(table, update, read_version=1)
    return Made(str(path), ["Overwrite", "Update"])


def _compacted(path: Path) -> Made:
    table = write(ROWS, path, max_rows_per_file=10, enable_stable_row_ids=True)
    table.create_scalar_index("id", "BTREE")
    table.update({"s": "'changed'"}, where="id < 4")
    table.delete("id > 35")
    table.optimize.compact_files()
    return Made(str(path), ["Overwrite", "CreateIndex", "Update", "Delete", "ReserveFragments", "Rewrite"])


def _set_back(path: Path) -> Made:
    write(ROWS, path)
    write(MORE.select(["id"]), path, mode="overwrite")
    open_stock(str(path), 1).restore()
    return Made(str(path), ["Overwrite", "Overwrite", "Restore"])


def _cleaned(path: Path) -> Made:
    table = write(ROWS, path)
    table.tags.create("kept", 1)
    for _ in range(3):
        _add(path)
    open_stock(str(path)).cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    return Made(str(path), ["Overwrite", "Append"])


def _detached(path: Path) -> Made:
    table = write(ROWS, path)
    LanceDataset.commit(table, LanceOperation.Append(write_fragments(MORE, table)), read_version=1, detached=True)
    return Made(str(path), ["Overwrite"])


def _described(path: Path) -> Made:
    write(ROWS, path, commit_message="the first", transaction_properties={"who": "me"})
    return Made(str(path), ["Overwrite"])


def _plain_kinds() -> dict[str, Callable[[Path], Made]]:
    kinds: dict[str, Callable[[Path], Made]] = {}
    for version in ("0.1", "2.0", "2.1", "2.2", "2.3"):
        for naming in ("v1", "v2"):
            for stable in (False, True):
                options = {"data_storage_version": version, "enable_v2_manifest_paths": naming == "v2", "enable_stable_row_ids": stable}
                name = f"plain_{version}_{naming}_{'stable' if stable else 'addresses'}"
                kinds[name] = lambda path, options=options: _plain(path, **options)  # type: ignore[misc]
    return kinds


KINDS: Final[dict[str, Callable[[Path], Made]]] = {
    **_plain_kinds(),
    "no_rows": _no_rows,
    "all_rows_deleted": _all_deleted,
    "bitmap_deletions": _bitmap_deletions,
    "btree": _scalar_index("id", "BTREE"),
    "bitmap": _scalar_index("id", "BITMAP"),
    "label_list": _scalar_index("l", "LABEL_LIST"),
    "ngram": _scalar_index("s", "NGRAM"),
    "zonemap": _scalar_index("id", "ZONEMAP"),
    "inverted": _scalar_index("s", "INVERTED"),
    "bloomfilter": _scalar_index("id", "BLOOMFILTER"),
    "rtree": _spatial_index,
    "ivf_flat": _vector_index("IVF_FLAT"),
    "ivf_sq": _vector_index("IVF_SQ"),
    "ivf_rq": _vector_index("IVF_RQ"),
    "ivf_pq": _vector_index("IVF_PQ", num_sub_vectors=2),
    "ivf_hnsw_flat": _vector_index("IVF_HNSW_FLAT"),
    "ivf_hnsw_sq": _vector_index("IVF_HNSW_SQ"),
    "ivf_hnsw_pq": _vector_index("IVF_HNSW_PQ", num_sub_vectors=2),
    "several_indices": _several_indices,
    "deferred_remap": _deferred_remap,
    "branch": _branch,
    "branch_of_branch": _branch_of_branch,
    "main_with_branch": _main_with_branch,
    "tags": _tags,
    "shallow_clone": _shallow_clone,
    "clone_of_clone": _clone_of_clone,
    "deep_clone": _deep_clone,
    "several_bases": _several_bases,
    "config_and_metadata": _maps,
    "primary_key": _primary_key(position=False),
    "primary_key_position": _primary_key(position=True),
    "spilled_lineage": _spilled_lineage,
    "write_ahead_log": _write_ahead_log,
    "blobs_first_form": _blobs("2.1"),
    "blobs_second_form": _blobs("2.2"),
    "changed_columns": _changed_columns,
    "replaced_column": _replaced_column,
    "rewritten_columns": _rewritten_columns,
    "compacted": _compacted,
    "set_back": _set_back,
    "cleaned": _cleaned,
    "detached": _detached,
    "described": _described,
}

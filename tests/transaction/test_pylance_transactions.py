"""Transactions as pylance writes them: each kind it can write is read, understood and written back; damaged ones are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import lance
import pyarrow as pa
import pytest
from lance import DatasetBasePath, LanceDataset, LanceOperation
from lance.file import LanceFileWriter
from lance.fragment import DataFile as PylanceDataFile

from tiltyard.errors import CorruptTable
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.values import BasePath
from tiltyard.transaction import operations as ops
from tiltyard.transaction.transaction import Transaction

OPERATIONS: tuple[type, ...] = get_args(ops.Operation)

ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "v": ["x"] * 10, "w": pa.array([0] * 10, pa.int64())})
KEYED = pa.schema([pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"}), pa.field("v", pa.string())])


def _replace_column(uri: str) -> None:
    table = lance.dataset(uri)
    path = Path(uri) / "data" / "replacement.lance"
    with LanceFileWriter(str(path), pa.schema([("v", pa.string())])) as writer:
        writer.write_batch(pa.table({"v": ["r"] * 10}))
    file = PylanceDataFile(path.name, [1], [0], 2, 2, path.stat().st_size)
    group = LanceOperation.DataReplacementGroup(table.get_fragments()[0].fragment_id, file)
    LanceDataset.commit(table, LanceOperation.DataReplacement([group]), read_version=table.version, commit_message="swap")


def _update_columns(uri: str) -> None:
    table = lance.dataset(uri)
    changed, modified = table.get_fragments()[0].update_columns(pa.table({"id": pa.array([2], pa.int64()), "w": [9]}), "id", "id")
    update = LanceOperation.Update(updated_fragments=[changed], fields_modified=modified, update_mode="rewrite_columns")
    LanceDataset.commit(table, update, read_version=table.version)


def _upsert(uri: str, rows: pa.Table) -> None:
    lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)


def _steps(root: Path) -> dict[str, Callable[[], Any]]:
    """What is done with pylance, in this order; each step leaves one transaction behind, or as many as its comment says."""
    plain, keyed = str(root / "plain"), str(root / "keyed")
    properties = {"__lance_commit_message": "more rows", "who": "me"}
    three = pa.table({"id": pa.array([1, 100], pa.int64()), "v": ["m", "n"], "w": [1, 2]})
    # pylance declares its own argument as another type than it takes.
    cast: Any = {"path": "double", "data_type": pa.int32()}
    rename: Any = {"path": "double", "name": "twice"}
    (root / "elsewhere").mkdir()
    return {
        "create": lambda: lance.write_dataset(ROWS, plain),
        "append": lambda: lance.write_dataset(ROWS, plain, mode="append", max_rows_per_file=5, transaction_properties=properties),
        "delete": lambda: lance.dataset(plain).delete("id = 3"),
        "delete fragment": lambda: lance.dataset(plain).delete("id > 4 and _rowaddr >= 8589934592"),
        "update": lambda: lance.dataset(plain).update({"v": "'y'"}, where="id = 4"),
        "upsert": lambda: _upsert(plain, three),
        "update columns": lambda: _update_columns(plain),
        "add column": lambda: lance.dataset(plain).add_columns({"double": "id * 2"}),
        "cast": lambda: lance.dataset(plain).alter_columns(cast),
        "rename": lambda: lance.dataset(plain).alter_columns(rename),
        "drop column": lambda: lance.dataset(plain).drop_columns(["twice"]),
        "index": lambda: lance.dataset(plain).create_scalar_index("id", "BTREE"),
        "compact": lambda: lance.dataset(plain).optimize.compact_files(),  # two: ids are reserved first
        "drop index": lambda: lance.dataset(plain).drop_index("id_idx"),
        "restore": lambda: lance.dataset(plain, version=2).restore(),  # type: ignore[no-untyped-call]
        "config": lambda: lance.dataset(plain).update_config({"a": "1", "b": None}),
        "table metadata": lambda: lance.dataset(plain).update_metadata({"k": "v"}),
        "schema metadata": lambda: lance.dataset(plain).update_schema_metadata({"s": "1"}, replace=True),
        "field metadata": lambda: lance.dataset(plain).update_field_metadata({"v": {"f": "1"}}),
        "overwrite": lambda: lance.write_dataset(ROWS, plain, mode="overwrite"),
        "replace data": lambda: _replace_column(plain),
        "shallow clone": lambda: lance.dataset(plain).shallow_clone(str(root / "shallow"), 2),
        "deep clone": lambda: lance.dataset(plain).deep_clone(str(root / "deep"), 2),
        "branch": lambda: lance.dataset(plain).create_branch("dev"),
        "bases": lambda: lance.dataset(plain).add_bases([DatasetBasePath(str(root / "elsewhere"), name="cold")]),
        "keyed create": lambda: lance.write_dataset(
            pa.table({"id": [1, 2], "v": ["a", "b"]}, schema=KEYED), keyed, enable_stable_row_ids=True
        ),
        "keyed upsert": lambda: _upsert(keyed, pa.table({"id": [2, 3], "v": ["c", "d"]}, schema=KEYED)),
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The transaction files that each step left, oldest first."""
    root = tmp_path_factory.mktemp("pylance")
    seen: set[Path] = set()
    found = {}
    for step, act in _steps(root).items():
        act()
        new = set(root.rglob("*.txn")) - seen
        seen |= new
        found[step] = sorted(new, key=lambda path: path.stat().st_mtime_ns)
    return found


def _only(written: dict[str, list[Path]], step: str, kind: type) -> Any:
    (path,) = written[step]
    operation = Transaction.from_bytes(path.read_bytes()).operation
    assert type(operation) is kind
    return operation


def test_all_of_pylance_reads_and_writes_back_the_same(written: dict[str, list[Path]]) -> None:
    kinds = set()
    for path in (path for paths in written.values() for path in paths):
        wire = path.read_bytes()
        read = Transaction.from_bytes(wire, path.name)
        kinds.add(type(read.operation))
        assert read.file_name == path.name
        assert pb.Transaction.FromString(read.to_bytes()) == pb.Transaction.FromString(wire)
        # Maps apart, whose order is free, not even a byte differs.
        if not isinstance(read.operation, ops.UpdateConfig) and len(read.properties) < 2:
            assert read.to_bytes() == wire
        assert Transaction.from_bytes(read.to_bytes()) == read
    assert kinds == set(OPERATIONS) - {ops.UpdateMemWalState, ops.UnknownOperation}


def test_rows_written_by_pylance(written: dict[str, list[Path]]) -> None:
    create = _only(written, "create", ops.Overwrite)
    assert [field.name for field in create.schema] == ["id", "v", "w"]
    assert [(fragment.id, fragment.physical_rows) for fragment in create.fragments] == [(0, 10)]
    append = Transaction.from_bytes(written["append"][0].read_bytes())
    assert (append.read_version, append.message, append.properties["who"]) == (1, "more rows", "me")
    assert isinstance(append.operation, ops.Append)
    assert [(fragment.id, fragment.physical_rows) for fragment in append.operation.fragments] == [(0, 5), (0, 5)]
    delete = _only(written, "delete", ops.Delete)
    assert delete.predicate == "id = 3"
    assert {fragment.id: fragment.live_rows for fragment in delete.updated_fragments} == {0: 9, 1: 4}
    assert _only(written, "delete fragment", ops.Delete).deleted_fragment_ids == (2,)
    overwrite = _only(written, "overwrite", ops.Overwrite)
    assert sum(fragment.physical_rows for fragment in overwrite.fragments) == 10


def test_changes_written_by_pylance(written: dict[str, list[Path]]) -> None:
    update = _only(written, "update", ops.Update)
    assert update.update_mode is ops.UpdateMode.REWRITE_ROWS
    assert update.fields_for_preserving_frag_bitmap == (1,)
    assert sum(fragment.physical_rows for fragment in update.new_fragments) == 2
    assert update.inserted_rows is None
    upsert = _only(written, "upsert", ops.Update)
    assert upsert.inserted_rows is None
    assert sum(fragment.physical_rows for fragment in upsert.new_fragments) == 3
    columns = _only(written, "update columns", ops.Update)
    assert columns.update_mode is ops.UpdateMode.REWRITE_COLUMNS
    assert columns.fields_modified == (2,)
    assert [file.fields for file in columns.updated_fragments[0].files] == [(0, 1, -2), (2,)]
    keyed = _only(written, "keyed upsert", ops.Update).inserted_rows
    assert keyed is not None
    assert keyed.field_ids == (0,)
    assert (len(keyed.bloom.bitmap), keyed.bloom.num_bits, keyed.bloom.number_of_items) == (32768, 262144, 8192)
    assert sum(byte.bit_count() for byte in keyed.bloom.bitmap) == 8  # one key was inserted; it sets a bit in each of 8 words
    replace = _only(written, "replace data", ops.DataReplacement)
    assert [replacement.new_file.path for replacement in replace.replacements] == ["replacement.lance"]
    assert Transaction.from_bytes(written["replace data"][0].read_bytes()).message == "swap"


def test_schemas_written_by_pylance(written: dict[str, list[Path]]) -> None:
    added = _only(written, "add column", ops.Merge)
    assert [field.name for field in added.schema] == ["id", "v", "w", "double"]
    assert all(fragment.files[-1].fields == (3,) for fragment in added.fragments)
    assert [field.logical_type for field in _only(written, "cast", ops.Merge).schema] == ["int64", "string", "int64", "int32"]
    assert _only(written, "rename", ops.Project).schema[-1].name == "twice"
    dropped = _only(written, "drop column", ops.Project)
    assert [field.name for field in dropped.schema] == ["id", "v", "w"]
    keyed = _only(written, "keyed create", ops.Overwrite)
    assert [field.primary_key for field in keyed.schema] == [True, False]
    assert _only(written, "config", ops.UpdateConfig).config_updates.replace is False
    assert dict(_only(written, "config", ops.UpdateConfig).config_updates.entries) == {"a": "1", "b": None}
    assert _only(written, "table metadata", ops.UpdateConfig).table_metadata_updates == ops.UpdateMap((("k", "v"),))
    assert _only(written, "schema metadata", ops.UpdateConfig).schema_metadata_updates == ops.UpdateMap((("s", "1"),), replace=True)
    assert _only(written, "field metadata", ops.UpdateConfig).field_metadata_updates == {1: ops.UpdateMap((("f", "1"),))}


def test_upkeep_written_by_pylance(written: dict[str, list[Path]]) -> None:
    index = _only(written, "index", ops.CreateIndex)
    assert [(new.name, new.fields) for new in index.new_indices] == [("id_idx", (0,))]
    reserve, rewrite = (Transaction.from_bytes(path.read_bytes()).operation for path in written["compact"])
    assert reserve == ops.ReserveFragments(1)
    assert isinstance(rewrite, ops.Rewrite)
    (group,) = rewrite.groups
    assert len(group.old_fragments) > 1
    assert sum(old.live_rows for old in group.old_fragments) == sum(new.physical_rows for new in group.new_fragments)
    assert [remapped.old_id for remapped in rewrite.rewritten_indices] == [index.new_indices[0].uuid]
    dropped = _only(written, "drop index", ops.CreateIndex)
    assert [old.uuid for old in dropped.removed_indices] == [rewrite.rewritten_indices[0].new_id]
    assert _only(written, "restore", ops.Restore) == ops.Restore(2)
    plain = str(written["create"][0].parent.parent)
    assert _only(written, "shallow clone", ops.Clone) == ops.Clone(True, None, 2, plain)
    assert _only(written, "deep clone", ops.Clone) == ops.Clone(False, None, 2, plain)
    branch = _only(written, "branch", ops.Clone)
    assert (branch.is_shallow, branch.ref_path, branch.branch_name) == (True, plain, "dev")
    bases = _only(written, "bases", ops.UpdateBases)
    assert bases == ops.UpdateBases((BasePath(0, str(Path(plain).parent / "elsewhere"), False, "cold"),))


def _damage(wire: bytes, chance: random.Random) -> bytes:
    out = bytearray(wire)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(5):
            case 0 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(out):
                out[at] = chance.choice((0x00, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 2:
                del out[at : at + chance.choice((1, 3, 2**16))]
            case 3:
                out[at:at] = chance.randbytes(chance.choice((1, 4, 40)))
            case _:
                start = chance.randrange(len(out) + 1)
                out[at:at] = out[start : start + chance.randrange(200)]
    return bytes(out)


def _read(damaged: bytes) -> Transaction | CorruptTable:
    try:
        return Transaction.from_bytes(damaged, "damaged.txn")
    except CorruptTable as error:
        return error
    except Exception as error:
        error.add_note(f"from {damaged[:4000].hex()}")
        raise


def test_damaged_transactions_are_corrupt_or_still_transactions(written: dict[str, list[Path]]) -> None:
    chance = random.Random(20260301)
    wires = [path.read_bytes() for paths in written.values() for path in paths] * 200
    refused = 0
    for wire in wires:
        damaged = _damage(wire, chance)
        read = _read(damaged)
        if isinstance(read, CorruptTable):
            refused += 1
            assert read.file == "damaged.txn"
            assert len(str(read)) < 300
        else:
            again = read.to_bytes()
            assert Transaction.from_bytes(again).to_bytes() == again, damaged[:4000].hex()
    assert len(wires) > 5000
    assert 0 < refused < len(wires)

"""Primary keys that hold: whatever is appended and merged, and by whom, no two rows have one key."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter
from xxhash import xxh64_intdigest

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle, is_version
from tests.support.tables import open_stock
from tiltyard import ops
from tiltyard.errors import InvalidInput, KeyConflict, UnsupportedFeature
from tiltyard.format.values import DataFile, DataFragment
from tiltyard.storage.local import LocalStore
from tiltyard.transaction.key_filter import STRICT_BYTES, hashes_of_numbers, key_filter
from tiltyard.verbs.keys.primary_keys import KnownKeys, in_words

_DAY = datetime.date(2024, 2, 29)
_MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 1, 5)

TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-1, 0, 1, 2]),
    (pa.uint16(), [0, 1, 65535, 7]),
    (pa.int64(), [-(2**63), 0, 2**63 - 1, 5]),
    (pa.uint64(), [0, 2**64 - 1, 2**63, 5]),
    (pa.float16(), [np.float16(0.5), np.float16(1.5), np.float16(-2.0), np.float16(3.0)]),
    (pa.float64(), [0.1, -0.0, float("inf"), float("nan")]),
    (pa.decimal128(20, 2), [Decimal("0.10"), Decimal("-1.00"), Decimal("99.99"), Decimal("5.00")]),
    (pa.date32(), [_DAY + datetime.timedelta(number) for number in range(4)]),
    (pa.timestamp("us", "UTC"), [_MOMENT.replace(tzinfo=datetime.UTC) + datetime.timedelta(microseconds=number) for number in range(4)]),
    (pa.timestamp("ns"), [1, 2, 3, 4]),
    (pa.time64("us"), [datetime.time(1, 2, 3, number) for number in range(4)]),
    (pa.duration("s"), [datetime.timedelta(seconds=number) for number in range(4)]),
    (pa.string(), ["", "a", "a\0b", "ä"]),
    (pa.large_binary(), [b"", b"\0", b"\0\0", b"x"]),
    (pa.binary(3), [b"abc", b"\0\0\0", b"xyz", b"123"]),
    (pa.bool_(), [True, False]),
]
KINDS = pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])


def _rows(*ids: int, x: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array([x] * len(ids), pa.int64())})


def _make(root: Path, *ids: int, **options: Any) -> ty.Table:
    return ty.Table.create(root, _rows(*(ids or range(5))), primary_key=["id"], **options)


def _ids(root: Path) -> list[int]:
    stock = open_stock(str(root))
    stock.validate()
    table = ty.Table.open(root)
    assert table.check().orphans == ()
    ours = sorted(table.to_arrow()["id"].to_pylist())
    assert sorted(stock.to_table()["id"].to_pylist()) == ours
    return ours


def _upsert(table: ty.Table, rows: pa.Table, **how: Any) -> ty.CommitResult:
    return table.merge(rows, how.pop("on", None)).when_matched_update_all().when_not_matched_insert_all().execute(**how)


# ---- append ----------------------------------------------------------------------------------------------------------------


def _stream(*ids: int) -> pa.RecordBatchReader:
    rows = _rows(*ids)
    return pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches(max_chunksize=1)))


@pytest.mark.parametrize("as_given", [_rows, _stream], ids=["table", "stream"])
def test_an_append_refuses_keys_that_are_there_and_keys_that_come_twice(tmp_path: Path, as_given: Callable[..., Any]) -> None:
    root = tmp_path / "t"
    table = _make(root)
    with pytest.raises(KeyConflict) as caught:
        table.append(as_given(7, 3, 8, 1))
    error = caught.value
    assert (sorted(error.sample), error.operation, error.read_version, error.retryable) == (["id 1", "id 3"], "Append", 1, False)
    with pytest.raises(KeyConflict) as caught:
        table.append(as_given(7, 8, 7, 9, 9, 7))
    assert caught.value.sample == ("id 7", "id 9")
    assert ty.Table.open(root).layout.versions() == [1]
    assert _ids(root) == [0, 1, 2, 3, 4], "and no file is left"
    table.append(as_given(7, 8))
    table.delete("id = 7")
    table.append(as_given(7))
    assert _ids(root) == [0, 1, 2, 3, 4, 7, 8]


def test_what_is_allowed(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.append(_rows(1, 1), on_duplicate="allow")
    assert _ids(root) == [0, 1, 1, 1, 2, 3, 4]
    with pytest.raises(InvalidInput, match="on_duplicate"):
        table.append(_rows(9), on_duplicate="ignore")  # type: ignore[arg-type]
    bare = ty.Table.create(tmp_path / "bare", _rows(1))
    bare.append(_rows(1, 1))
    assert _ids(tmp_path / "bare") == [1, 1, 1]


def test_nulls_and_empty_appends(tmp_path: Path) -> None:
    table = _make(tmp_path / "t")
    with pytest.raises(InvalidInput, match="null"):
        table.append(pa.table({"id": pa.array([None], pa.int64()), "x": [1]}))
    table.append(_rows())
    table.append(_stream())
    assert table.count_rows() == 5
    empty = ty.Table.create(tmp_path / "e", _rows().schema, primary_key=["id"])
    empty.append(_rows(1))
    with pytest.raises(KeyConflict):
        empty.append(_rows(1))


@KINDS
def test_all_key_types(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    root = tmp_path / "t"

    def rows(some: list[Any], x: int) -> pa.Table:
        return pa.table({"k": pa.array(some, kind), "x": pa.array([x] * len(some), pa.int64())})

    first = values[: len(values) // 2]
    table = ty.Table.create(root, rows(first, 0), primary_key=["k"])
    for one in first:
        with pytest.raises(KeyConflict):
            table.append(rows([one], 1))
    with pytest.raises(KeyConflict):
        table.append(rows([values[-1], values[-1]], 1))
    result = _upsert(table, rows(values, 2))
    assert dict(result.rows) == {"inserted": len(values) - len(first), "updated": len(first), "deleted": 0}
    assert table.to_arrow()["x"].to_pylist() == [2] * len(values)
    result = _upsert(table, rows(values, 3))
    assert result.rows["updated"] == len(values)
    open_stock(str(root)).validate()


@KINDS
def test_two_merges_of_one_new_key_of_any_type(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    """pylance's own filter is empty for most of these types."""
    root = tmp_path / "t"
    rows = [pa.table({"k": pa.array([one], kind), "x": pa.array([number], pa.int64())}) for number, one in enumerate(values[:2])]
    table = ty.Table.create(root, rows[0].slice(0, 0), primary_key=["k"])
    stale = ty.Table.open(root)
    _upsert(table, rows[0])
    with pytest.raises(KeyConflict) as caught:
        _upsert(stale, rows[0], commit=ty.CommitOptions(reexecutions=0))
    assert len(caught.value.sample) == 1
    _upsert(stale, rows[1], commit=ty.CommitOptions(reexecutions=0))
    stale = ty.Table.open(root, version=1)
    assert dict(_upsert(stale, rows[0]).rows) == {"inserted": 0, "updated": 1, "deleted": 0}
    assert table.refresh().count_rows() == 2
    assert table.check().problems == ()


def test_both_zeros_are_one_key(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"k": [0.0, float("nan")]}), primary_key=["k"])
    for one in (-0.0, float("nan")):
        with pytest.raises(KeyConflict):
            table.append(pa.table({"k": [one]}))


def test_keys_that_cannot_be_compared(tmp_path: Path) -> None:
    rows = pa.table({"k": pa.array(['{"a": 1}'], pa.json_()), "x": [1]})
    table = ty.Table.create(tmp_path / "t", rows, primary_key=["k"], options=ty.TableOptions(on_duplicate="allow"))
    with pytest.raises(UnsupportedFeature, match="json"):
        table.append(rows)
    with pytest.raises(UnsupportedFeature, match="json"):
        table.merge(rows).when_matched_update_all().execute()
    assert table.append(rows, on_duplicate="allow").version == 2
    assert "json" in table.check().not_checked[0]


# ---- beside others ---------------------------------------------------------------------------------------------------------


def _interrupted(root: Path, act: Callable[[], Any]) -> ty.Table:
    return handle(root, InterruptedStore(LocalStore(root), is_version, act))


def _stock_upsert(root: Path, rows: pa.Table) -> Any:
    return open_stock(str(root)).merge_insert(["id"]).when_matched_update_all().when_not_matched_insert_all().execute(rows)


OTHERS: dict[str, Callable[[Path, pa.Table], Any]] = {
    "our append": lambda root, rows: ty.Table.open(root).append(rows),
    "our careless append": lambda root, rows: ty.Table.open(root).append(rows, on_duplicate="allow"),
    "our merge": lambda root, rows: _upsert(ty.Table.open(root), rows),
    "pylance's append": lambda root, rows: lance.write_dataset(rows.cast(open_stock(str(root)).schema), str(root), mode="append"),
    "pylance's merge": _stock_upsert,
    "pylance's update": lambda root, rows: open_stock(str(root)).update({"id": str(rows["id"][0])}, "id = 0"),
}
FIRST = pytest.mark.parametrize("first", OTHERS)


@FIRST
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_an_append_after_somebody_wrote_the_key(tmp_path: Path, first: str, stable: bool) -> None:
    root = tmp_path / "t"
    _make(root, stable_row_ids=stable)
    table = _interrupted(root, lambda: OTHERS[first](root, _rows(70)))
    with pytest.raises(KeyConflict) as caught:
        table.append(_rows(60, 70))
    error = caught.value
    assert (error.sample, error.executions, [one.version for one in error.winners]) == (("id 70",), 1, [2])
    assert _ids(root).count(70) == 1
    assert 60 not in _ids(root)


@FIRST
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_a_merge_after_somebody_wrote_the_key(tmp_path: Path, first: str, stable: bool) -> None:
    root = tmp_path / "t"
    _make(root, stable_row_ids=stable)
    stale = ty.Table.open(root)
    table = _interrupted(root, lambda: OTHERS[first](root, _rows(70)))
    result = _upsert(table, _rows(60, 70, x=9))
    assert (result.read_version, dict(result.rows)) == (2, {"inserted": 1, "updated": 1, "deleted": 0})
    assert _ids(root).count(70) == 1
    assert table.to_arrow(filter="id = 70")["x"].to_pylist() == [9]
    with pytest.raises(KeyConflict) as caught:
        _upsert(stale, _rows(70), commit=ty.CommitOptions(reexecutions=0))
    assert caught.value.sample == ("id 70",)


@FIRST
@pytest.mark.parametrize(
    "act", [lambda table: table.append(_rows(80)), lambda table: _upsert(table, _rows(80), commit=ty.CommitOptions(reexecutions=0))]
)
def test_other_keys_are_in_nobodys_way(tmp_path: Path, first: str, act: Callable[[ty.Table], ty.CommitResult]) -> None:
    root = tmp_path / "t"
    _make(root)
    result = act(_interrupted(root, lambda: OTHERS[first](root, _rows(70))))
    assert [one.version for one in result.rebased_over] == [2]
    assert _ids(root)[-2:] == [70, 80]


@FIRST
def test_an_append_that_allows_everything_passes(tmp_path: Path, first: str) -> None:
    root = tmp_path / "t"
    _make(root)
    table = _interrupted(root, lambda: OTHERS[first](root, _rows(70)))
    table.append(_rows(70), on_duplicate="allow")
    assert _ids(root).count(70) == 2


def test_a_key_that_came_and_went_again(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    stale = ty.Table.open(root)
    table.append(_rows(70))
    table.delete("id = 70")
    with pytest.raises(KeyConflict):
        stale.append(_rows(70))
    assert dict(_upsert(stale, _rows(70)).rows)["inserted"] == 1
    assert _ids(root).count(70) == 1


def test_keys_that_were_written_in_place(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root)
    stale = ty.Table.open(root)
    stock = open_stock(str(root))
    fragment = stock.get_fragment(0)
    values = pa.table({"_rowaddr": pa.array([2], pa.uint64()), "id": pa.array([70], pa.int64())})
    written, fields = fragment.update_columns(values, left_on="_rowaddr", right_on="_rowaddr")
    operation = lance.LanceOperation.Update(updated_fragments=[written], fields_modified=fields, update_mode="rewrite_columns")
    lance.LanceDataset.commit(stock, operation, read_version=1)
    with pytest.raises(KeyConflict):
        stale.append(_rows(70))
    assert dict(_upsert(stale, _rows(70)).rows)["updated"] == 1


def test_a_key_column_that_was_replaced(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    stale, merging = ty.Table.open(root), ty.Table.open(root)
    writer = LanceFileWriter(str(root / "data" / "other.lance"), pa.schema([pa.field("id", pa.int64(), nullable=False)]), version="2.2")
    writer.write_batch(pa.table({"id": pa.array([70, 71, 72, 73, 74], pa.int64())}))
    writer.close()
    old = table.layout.fragments[0].files[0]
    table.commit(ops.DataReplacement((ops.Replacement(0, DataFile("other.lance", (0,), (0,), old.major, old.minor)),)))
    with pytest.raises(KeyConflict):
        stale.append(_rows(72))
    stale.append(_rows(90))
    assert dict(_upsert(merging, _rows(72, 80)).rows) == {"inserted": 1, "updated": 1, "deleted": 0}


def test_columns_without_an_annotation_are_compared_as_well(tmp_path: Path) -> None:
    root = tmp_path / "t"
    ty.Table.create(root, _rows(1))
    for first in ("our append", "pylance's append", "pylance's merge"):
        stale = ty.Table.open(root)
        OTHERS[first](root, _rows(70))
        with pytest.raises(KeyConflict):
            _upsert(stale, _rows(70), on="id", commit=ty.CommitOptions(reexecutions=0))
        _upsert(stale, _rows(70), on="id")
        assert _ids(root) == [1, 70]
        stale.delete("id = 70")


def test_a_false_alarm_of_the_filters_is_found_to_be_one(tmp_path: Path) -> None:
    """A committed merge whose filter has all bits set accuses every key; a look at its rows acquits ours."""
    root = tmp_path / "t"
    table = _make(root)
    stale, other = ty.Table.open(root), ty.Table.open(root)
    _upsert(table, _rows(70))
    made = table.layout.fragments[-1]
    bloom = ops.BloomFilter(b"\xff" * 32768, 32768 * 8, 8192, 0.00057)
    copy = tmp_path / "t" / "data" / "copy.lance"
    copy.write_bytes((root / "data" / made.files[0].path).read_bytes())
    file = DataFile("copy.lance", made.files[0].fields, made.files[0].column_indices, made.files[0].major, made.files[0].minor)
    accusing = ops.Update(
        new_fragments=(DataFragment(0, (file,), 1),),
        inserted_rows=ops.KeyExistenceFilter((0,), bloom=bloom),
        update_mode=ops.UpdateMode.REWRITE_ROWS,
    )
    table.delete("id = 70")
    table.commit(accusing)
    assert [one.version for one in _upsert(stale, _rows(71), commit=ty.CommitOptions(reexecutions=0)).rebased_over] == [2, 3, 4]
    other.append(_rows(72))
    with pytest.raises(KeyConflict):
        ty.Table.open(root, version=1).append(_rows(70))
    assert _ids(root) == [0, 1, 2, 3, 4, 70, 71, 72]


def test_many_keys_whose_filters_overlap(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    stale = ty.Table.open(root)
    _upsert(table, _rows(*range(100_000, 140_000)))
    assert _upsert(stale, _rows(*range(200_000, 240_000)), commit=ty.CommitOptions(reexecutions=0)).rows["inserted"] == 40_000
    assert len(_ids(root)) == 80_005


def test_a_merge_tells_others_which_keys_it_inserted(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    stale = open_stock(str(root))
    _upsert(table, _rows(1, 70))
    assert _operation(root).inserted_rows == key_filter((0,), pa.table({"id": pa.array([70], pa.int64())}))
    merge = stale.merge_insert(["id"]).when_matched_update_all().when_not_matched_insert_all().conflict_retries(0)
    with pytest.raises(OSError, match=r"(?i)concurrent writers"):
        merge.execute(_rows(70))
    assert _ids(root).count(70) == 1


def _operation(root: Path) -> Any:
    table = ty.Table.open(root)
    return table._access.log.committed(table.version, table._scheme).transaction.operation


def test_keys_of_types_that_pylance_leaves_out_are_told_strictly(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, pa.table({"id": pa.array([1], pa.int16())}), primary_key=["id"])
    _upsert(table, pa.table({"id": pa.array([2], pa.int16())}))
    assert len(_operation(root).inserted_rows.bloom.bitmap) == STRICT_BYTES


def test_a_renamed_key_is_still_the_key(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    stale = ty.Table.open(root)
    stock = open_stock(str(root))
    stock.alter_columns({"path": "id", "name": "number"})
    table.refresh()
    table.append(pa.table({"number": pa.array([70], pa.int64()), "x": [1]}))
    with pytest.raises(KeyConflict):
        stale.append(_rows(70))


# ---- looking keys up -------------------------------------------------------------------------------------------------------


def _found(known: KnownKeys, keys: pa.Table) -> list[int | None]:
    found: list[int | None] = [None] * keys.num_rows
    for place, row in zip(*known.matches(keys), strict=True):
        found[place] = int(row)
    return found


def test_keys_of_several_columns_are_looked_up_exactly() -> None:
    count = 500
    random = np.random.default_rng(3)
    columns = {
        "a": pa.array(random.integers(0, 9, count)),
        "b": pa.array([f"{number}" for number in random.integers(0, 9, count)]),
        "c": pa.array(random.integers(0, 9, count) / 2),
    }
    rows = pa.table(columns)
    distinct = rows.group_by(["a", "b", "c"], use_threads=False).aggregate([]).slice(0, 200)
    known = KnownKeys(distinct)
    assert known.repeated().num_rows == 0
    wanted = {tuple(row.values()): place for place, row in enumerate(distinct.to_pylist())}
    assert _found(known, rows) == [wanted.get(tuple(row.values())) for row in rows.to_pylist()]
    twice = pa.concat_tables([distinct, distinct.slice(5, 2)])
    assert KnownKeys(twice).repeated().to_pylist() == distinct.slice(5, 2).to_pylist()


def test_nulls_are_no_keys_and_parts_do_not_run_together() -> None:
    known = KnownKeys(pa.table({"a": ["x", "xy"], "b": ["yz", "z"]}))
    assert _found(known, pa.table({"a": ["x", "xy", "x", None], "b": ["yz", "z", "z", "z"]})) == [0, 1, None, None]
    numbers = KnownKeys(pa.table({"a": [1, 2]}))
    assert _found(numbers, pa.table({"a": [None, 2, 3]})) == [None, 1, None]
    assert [one.tolist() for one in numbers.matches(pa.table({"a": [None, 2, 3]}))] == [[1], [1]]
    pairs = KnownKeys(pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"]}))
    assert [one.tolist() for one in pairs.matches(pa.table({"a": [2, 1, 3], "b": ["y", "y", "x"]}))] == [[1], [1]]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.int32(), pa.timestamp("ns"), pa.date32()], ids=str)
def test_many_numbers_are_looked_up_exactly(kind: pa.DataType) -> None:
    raw = np.random.default_rng(4).permutation(50_000).astype("int32" if kind.bit_width == 32 else "int64")
    values = pa.array(raw).cast(kind) if not pa.types.is_temporal(kind) else pa.array(raw).view(kind)
    known = KnownKeys(pa.table({"k": values.slice(0, 3000)}))
    turned = values.take(pa.array(range(49_999, -1, -1)))
    places, rows = known.matches(pa.table({"k": turned}))
    assert places.tolist() == [*range(47_000, 50_000)]
    assert rows.tolist() == [*range(2999, -1, -1)]


def test_keys_in_words() -> None:
    rows = pa.table({"a": [1, 2], "t": pa.array([1, 2], pa.timestamp("ns")), "s": ["x" * 90, "y"]})
    assert in_words(rows) == [f"a 1, t 1970-01-01 00:00:00.000000001, s '{'x' * 39}...", "a 2, t 1970-01-01 00:00:00.000000002, s 'y'"]


def test_hashes_of_numbers_are_those_of_their_bytes() -> None:
    numbers = np.array([0, 1, 2**63, 2**64 - 1, *np.random.default_rng(5).integers(0, 2**63, 50)], np.uint64)
    assert hashes_of_numbers(numbers).tolist() == [xxh64_intdigest(int(one).to_bytes(8, "little")) for one in numbers]


def test_a_stream_keeps_its_keys_alone(tmp_path: Path) -> None:
    """Of rows that go by, only the key columns stay in memory."""
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [0], "wide": ["-"]}), primary_key=["id"])
    wide = "w" * 100_000

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(1, 200):
            yield pa.RecordBatch.from_pydict({"id": [number], "wide": [wide]})
            most.append(pa.total_allocated_bytes())

    most: list[int] = []
    table.append(pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64()), ("wide", pa.string())]), batches()))
    assert table.count_rows() == 200
    assert max(most) - most[0] < 100 * 100_000

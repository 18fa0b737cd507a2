"""Columns added: by SQL, by key, by a function, all null; as stock pylance sees the outcome."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.evolving import FORMATS, LIVE, STABLE, column, make, more, seen
from tiltyard.errors import InvalidInput, UnsupportedFeature


def _doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"y": pa.array([2 * number for number in batch["id"].to_pylist()], pa.int64())})


def _operation(table: ty.Table) -> Any:
    return table._access.log.committed(table.version, table._scheme).transaction.operation


@STABLE
@FORMATS
def test_columns_by_expression(tmp_path: Path, stable: bool, data_format: str) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable, data_format=data_format)
    result = table.add_columns(
        {"y": "x + id", "t": "concat(s.b, '!')", "one": 1, "lit": "7", "when": pa.scalar(7, pa.date32())}, message="more"
    )
    assert (result.version, result.operation, table.version) == (3, "Merge", 3)
    assert table.history()[0].message == "more"
    assert column(root, "y") == {number: 11 * number for number in LIVE}
    assert column(root, "t") == {number: f"b{number}!" for number in LIVE}
    assert set(column(root, "one").values()) == {1}
    assert table.schema.field("when").type == pa.date32()
    assert all(one.nullable for one in table.schema), "who appends need not know the new columns"
    assert _operation(table).preserves_nullability
    table.append(more(20))
    assert column(root, "y")[20] is None
    assert ty.Table.open(root, version=2).schema.names == ["id", "x", "s"]
    table.delete("y = 11")
    assert set(column(root, "id")) == {*LIVE, 20} - {1}


@STABLE
@FORMATS
@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.struct([("p", pa.string()), ("q", pa.list_(pa.int8()))]), pa.list_(pa.float32(), 4)], ids=str
)
def test_null_columns_write_nothing(tmp_path: Path, stable: bool, data_format: str, kind: pa.DataType) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable, data_format=data_format)
    files = sorted((root / "data").iterdir())
    table.add_columns(pa.field("n", kind))
    assert sorted((root / "data").iterdir()) == files
    assert set(column(root, "n").values()) == {None}
    table.add_columns(pa.schema([pa.field("m", pa.int8(), metadata={"unit": "K"}), pa.field("k", pa.string())]))
    assert seen(root).schema.field("m").metadata == {b"unit": b"K"}


@pytest.mark.parametrize("data_format", ["2.1", "2.2"])
def test_structs_get_members(tmp_path: Path, data_format: str) -> None:
    root = tmp_path / "t"
    table = make(root, data_format=data_format)
    deep = pa.struct([("p", pa.int64()), ("q", pa.list_(pa.string()))])
    members = [("c", pa.int64()), ("d", deep), ("e", pa.string())]
    table.add_columns(pa.schema([("n", pa.int8()), ("s", pa.struct(members)), ("m", pa.int8())]))
    assert table.schema.names == ["id", "x", "s", "n", "m"]
    assert [one.name for one in table.schema.field("s").type] == ["a", "b", "c", "d", "e"]
    assert column(root, "s")[3] == {"a": 3, "b": "b3", "c": None, "d": None, "e": None}
    table.add_columns(pa.field("s", pa.struct([("d", pa.struct([("r", pa.int64())]))])))
    table.append([{"id": 20, "s": {"a": 1, "c": 2, "d": {"p": 3, "q": ["4"], "r": 5}, "e": "6"}}])
    assert column(root, "s")[20] == {"a": 1, "b": None, "c": 2, "d": {"p": 3, "q": ["4"], "r": 5}, "e": "6"}
    assert column(root, "s")[4]["d"] is None
    strict = pa.field("z", pa.int8(), nullable=False)
    for kind in (pa.struct([("a", pa.int64())]), pa.int8(), pa.struct([strict]), pa.struct([])):
        with pytest.raises(InvalidInput):
            table.add_columns(pa.field("s", kind))


def test_structs_get_no_members_in_the_old_format(tmp_path: Path) -> None:
    table = make(tmp_path / "t", data_format="2.0")
    with pytest.raises(UnsupportedFeature):
        table.add_columns(pa.field("s", pa.struct([("c", pa.int8())])))
    seen(tmp_path / "t")


@STABLE
def test_columns_looked_up_by_key(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable)
    source = pa.table({"name": ["five", "six", "nobody"], "id": pa.array([5, 6, 99], pa.int16())})
    table.add_columns(source.to_reader(), on="id")
    assert column(root, "name") == dict.fromkeys(LIVE) | {5: "five", 6: "six"}


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ({"id": [1, 1], "y": [1, 2]}, "several rows"),
        ({"id": [1, None], "y": [1, 2]}, "null in a row"),
        ({"id": ["a"], "y": [1]}, "does not fit"),
        ({"k": [1], "y": [1]}, "no column 'id'"),
        ({"id": [1], "x": [1]}, "already"),
        ({"id": [1]}, "no column to add"),
    ],
)
def test_lookups_that_cannot_be(tmp_path: Path, source: dict[str, list[Any]], match: str) -> None:
    table = make(tmp_path / "t")
    with pytest.raises(InvalidInput, match=match):
        table.add_columns(pa.table(source), on="id")
    assert table.layout.latest_version() == 2
    seen(tmp_path / "t")


def test_a_lookup_must_find_all_rows_of_a_column_without_nulls(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("y", pa.int8(), nullable=False)])
    with pytest.raises(InvalidInput, match="null"):
        table.add_columns(pa.table({"id": [1], "y": [1]}, schema=schema), on="id")
    seen(root)
    table.add_columns(pa.table({"id": LIVE, "y": LIVE}, schema=schema), on="id")
    assert not _operation(table).preserves_nullability, "rows of who does not know the column would have nulls in it"
    assert column(root, "y") == {number: number for number in LIVE}


@STABLE
@FORMATS
def test_columns_made_by_a_function(tmp_path: Path, stable: bool, data_format: str) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable, data_format=data_format)
    given: list[tuple[int, list[str]]] = []
    told: list[tuple[int, int]] = []

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        given.append((batch.num_rows, batch.schema.names))
        return _doubled(batch)

    table.add_columns(
        work, read_columns=["id"], backfill=ty.Backfill(batch_size=3, progress=lambda done, total: told.append((done, total)))
    )
    assert column(root, "y") == {number: 2 * number for number in LIVE}
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert sum(count for count, _ in given) == len(LIVE), "no row is asked for twice"
    assert {tuple(names) for _, names in given} == {("id",)}
    assert max(count for count, _ in given) <= 3


KINDS = [
    (pa.json_(), '{"a":1}'),
    (pa.uuid(), b"0123456789abcdef"),
    (pa.dictionary(pa.int8(), pa.string()), "x"),
    (pa.decimal128(9, 2), Decimal("1.25")),
    (pa.list_(pa.float32(), 2), [1.0, 2.0]),
    (pa.list_(pa.struct([("p", pa.int8()), ("q", pa.string())])), [{"p": 1, "q": None}]),
    (pa.struct([pa.field("p", pa.int8(), nullable=False), pa.field("q", pa.list_(pa.string()))]), {"p": 1, "q": ["z"]}),
    (pa.string_view(), "seen"),
    (pa.timestamp("us", "UTC"), datetime(2020, 1, 2, tzinfo=UTC)),
]


@pytest.mark.parametrize("nullable", [True, False], ids=["nullable", "not null"])
@pytest.mark.parametrize(("kind", "value"), KINDS, ids=[str(kind)[:30] for kind, _ in KINDS])
def test_columns_of_all_kinds(tmp_path: Path, kind: pa.DataType, value: Any, nullable: bool) -> None:
    root = tmp_path / "t"
    table = make(root)
    schema = pa.schema([pa.field("y", kind, nullable)])

    def values(batch: pa.RecordBatch) -> pa.RecordBatch:
        given = [None if nullable and number % 3 == 0 else value for number in batch["id"].to_pylist()]
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        array = pa.array(given, storage)
        return pa.RecordBatch.from_arrays([array.cast(kind) if storage is not kind else array], schema=schema)

    table.add_columns(values, read_columns=["id"], backfill=ty.Backfill(schema=schema))
    found = column(root, "y")
    assert {number for number, one in found.items() if one is None} == {number for number in LIVE if nullable and number % 3 == 0}
    assert table.schema.field("y").nullable is nullable
    assert table.schema.field("y").type == (pa.string() if kind == pa.string_view() else kind)
    assert str(found[1]).replace(" ", "") in (str(value).replace(" ", ""), "30313233-3435-3637-3839-616263646566")
    table.distributed.replace_data(values, ["y"], backfill=ty.Backfill(read_columns=["id"]))
    assert column(root, "y") == found


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda batch: batch.slice(1), "rows for a batch of"),
        (lambda batch: {"y": 1}, "must return"),
        (lambda batch: pa.record_batch({"x": batch["id"]}), "already"),
        (lambda batch: pa.record_batch({"y": pa.nulls(batch.num_rows)}), "no type"),
        (lambda batch: pa.record_batch({"a.b": batch["id"]}), "cannot be called"),
        (lambda batch: pa.record_batch({"y" if batch["id"][0].as_py() < 5 else "z": batch["id"]}), "The columns are"),
        (lambda batch: pa.record_batch({"y": batch["id"] if batch["id"][0].as_py() < 5 else batch["id"].cast("string")}), None),
    ],
)
def test_functions_that_return_something_else(tmp_path: Path, made: Any, match: str | None) -> None:
    root = tmp_path / "t"
    table = make(root)
    if match is None:
        table.add_columns(made, read_columns=["id"])
        assert column(root, "y") == {number: number for number in LIVE}
        return
    with pytest.raises(InvalidInput, match=match):
        table.add_columns(made, read_columns=["id"])
    seen(root)


def test_the_error_of_a_function_comes_through_and_nothing_is_left(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 10 in batch["id"].to_pylist():
            raise ZeroDivisionError("ten")
        return _doubled(batch)

    with pytest.raises(ZeroDivisionError, match="ten"):
        table.add_columns(work, read_columns=["id"])
    seen(root)


def test_an_empty_table_cannot_tell_what_a_function_makes(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, pa.schema([("id", pa.int64())]))
    with pytest.raises(InvalidInput, match="schema="):
        table.add_columns(_doubled)
    table.add_columns(_doubled, backfill=ty.Backfill(schema=pa.schema([("y", pa.int16())])))
    assert seen(root).schema.field("y").type == pa.int16()


def test_work_goes_on_at_its_checkpoint(tmp_path: Path) -> None:
    root, mark = tmp_path / "t", tmp_path / "mark"
    table = make(root)
    asked: list[int] = []

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        asked.extend(batch["id"].to_pylist())
        if 10 in asked and len(asked) <= len(LIVE):
            raise ZeroDivisionError("ten")
        return _doubled(batch)

    with pytest.raises(ZeroDivisionError):
        table.add_columns(work, read_columns=["id"], backfill=ty.Backfill(checkpoint=mark))
    with mark.open("a") as out:
        out.write('\n{"key": "cut o')
    with pytest.raises(InvalidInput, match="other columns"):
        table.add_columns(work, read_columns=["x"], backfill=ty.Backfill(checkpoint=mark))
    asked.clear()
    asked.extend(range(100))
    ty.Table.open(root).append(more(20))
    ty.Table.open(root).delete("id = 1")
    ty.Table.open(root).add_columns(work, read_columns=["id"], backfill=ty.Backfill(checkpoint=mark))
    assert asked[100:] == [10, 11, 20], "finished fragments are not asked again, whatever was deleted in them"
    assert not mark.exists()
    assert column(root, "y") == {number: 2 * number for number in [*LIVE, 20] if number != 1}


def test_a_checkpoint_whose_files_are_gone_begins_anew(tmp_path: Path) -> None:
    root, mark = tmp_path / "t", tmp_path / "mark"
    table = make(root)
    before = {path.name for path in (root / "data").iterdir()}
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.add_columns(_doubled, read_columns=["id"], backfill=ty.Backfill(checkpoint=mark, progress=stop))
    for path in (root / "data").iterdir():
        if path.name not in before:
            path.unlink()
    table.add_columns(_doubled, read_columns=["id"], backfill=ty.Backfill(checkpoint=mark))
    assert column(root, "y") == {number: 2 * number for number in LIVE}


def test_what_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    table, mark = make(tmp_path / "t"), tmp_path / "mark"
    for text in ("my diary", '{"dear": "diary"}', "[]", '{"mark": "tiltyard columns 1", "work": "other"}'):
        mark.write_text(text)
        with pytest.raises(InvalidInput, match="mark"):
            table.add_columns(_doubled, read_columns=["id"], backfill=ty.Backfill(checkpoint=mark))
        assert mark.read_text() == text


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        ({}, {}, "cannot be made"),
        (7, {}, "cannot be made"),
        (pa.table({"y": [1]}), {}, "on="),
        ({"x": "1"}, {}, "already"),
        ({"y": None}, {}, "SQL expression"),
        ({1: "1"}, {}, "is text"),
        ({"y": "no_such + 1"}, {}, "no_such"),
        ({"y": "x +"}, {}, "something is missing after"),
        ({"_rowid": "1"}, {}, "cannot be called"),
        ({"a.b": "1"}, {}, "cannot be called"),
        ({"a`b": "1"}, {}, "cannot be called"),
        ({"y": "x"}, {"read_columns": ["x"]}, "are for a function only"),
        (pa.field("y", pa.int8(), nullable=False), {}, "no nulls"),
        (pa.field("y", pa.null()), {}, "no type"),
        (_doubled, {"read_columns": ["nope"]}, "no column 'nope'"),
        (_doubled, {"backfill": 3}, "backfill"),
        (_doubled, {"backfill": ty.Backfill(progress=3)}, "progress"),  # type: ignore[arg-type]
    ],
)
def test_columns_that_cannot_be_added(tmp_path: Path, columns: Any, options: dict[str, Any], match: str) -> None:
    table = make(tmp_path / "t")
    with pytest.raises(InvalidInput, match=match):
        table.add_columns(columns, **options)
    assert table.layout.latest_version() == 2
    seen(tmp_path / "t")


def test_blobs_are_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    blob = pa.field("y", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    with pytest.raises(UnsupportedFeature):
        table.add_columns(lambda batch: batch, backfill=ty.Backfill(schema=pa.schema([blob])))
    seen(tmp_path / "t")


@pytest.mark.parametrize("name", ["a b", 'a"b', "SELECT", "a-b", "Ä", "x'); --", "*"])
def test_odd_names_mean_themselves(tmp_path: Path, name: str) -> None:
    root = tmp_path / "t"
    table = make(root)
    table.add_columns({name: "x + 1"})
    table.add_columns(lambda batch: pa.record_batch({"y": batch[name]}), read_columns=[name])
    table.distributed.replace_data(lambda batch: pa.record_batch({name: pa.compute.add(batch[name], 1)}), [name])
    path = f"`{name.replace('`', '``')}`"
    table.alter_columns({"path": path, "data_type": pa.int64(), "nullable": False})
    assert column(root, "y") == {number: 10 * number + 1 for number in LIVE}
    assert column(root, name) == {number: 10 * number + 2 for number in LIVE}
    assert table.schema.field(name).nullable is False
    table.drop_columns([path])
    assert seen(root).schema.names == ["id", "x", "s", "y"]

"""What is given to a verb is what is stored, or it is refused: no column is dropped, no type read as another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.errors import InvalidInput

AB = pa.schema({"a": pa.int64(), "b": pa.int64()})


@pytest.fixture
def table(tmp_path: Path) -> ty.Table:
    return ty.Table.create(tmp_path / "t", AB, durability="os")


def _files(table: ty.Table) -> list[Path]:
    return [path for path in Path(table.uri, "data").rglob("*") if path.is_file()]


def test_columns_that_only_later_rows_have(tmp_path: Path, table: ty.Table) -> None:
    table.append([{"a": 1}, {"b": 3, "a": 2}])
    assert table.to_arrow().to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": 3}]
    made = ty.Table.create(tmp_path / "new", [{"x": 1}, {"y": "one"}, {"z": 2.5, "x": 3}])
    assert made.schema.names == ["x", "y", "z"]
    assert made.to_arrow().to_pylist()[2] == {"x": 3, "y": None, "z": 2.5}
    with pytest.raises(InvalidInput, match="c is not in the table"):
        table.append([{"a": 1}, {"c": 2}])


def _stream(*batches: dict[str, Any]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(AB, (pa.record_batch(batch) for batch in batches))


FIRST = {"a": [1], "b": [10]}


@pytest.mark.parametrize("as_generator", [False, True], ids=["reader", "generator"])
def test_batches_in_another_order_are_put_in_order(table: ty.Table, as_generator: bool) -> None:
    batches = [FIRST, {"b": [20], "a": [2]}]
    table.append(iter(map(pa.record_batch, batches)) if as_generator else _stream(*batches))
    assert table.to_arrow().to_pydict() == {"a": [1, 2], "b": [10, 20]}


@pytest.mark.parametrize(
    "other",
    [
        {"a": [1.5], "b": [1]},
        {"a": ["x"], "b": [1]},
        {"a": [1]},
        {"a": [1], "b": [2], "c": [3]},
        {"a": [1], "c": [2]},
        {"c": [1], "d": [2]},
    ],
    ids=lambda other: str(other),
)
@pytest.mark.parametrize("verb", ["append", "overwrite", "create"])
def test_batches_of_another_kind_are_refused(table: ty.Table, tmp_path: Path, other: dict[str, Any], verb: str) -> None:
    rows = _stream(FIRST, other)
    with pytest.raises(InvalidInput, match="batch of the stream"):
        ty.Table.create(tmp_path / "new", rows) if verb == "create" else getattr(table, verb)(rows)
    assert table.refresh().version == 1
    assert _files(table) == []
    assert not list((tmp_path / "new").rglob("*.lance"))


def test_streams_under_another_schema_are_compared_too(table: ty.Table) -> None:
    """Where columns are matched by name and cast, the batches are looked at all the same."""
    backwards = pa.schema({"b": pa.int64(), "a": pa.int64()})
    table.append(pa.RecordBatchReader.from_batches(backwards, (pa.record_batch(batch) for batch in (FIRST, {"b": [20], "a": [2]}))))
    assert table.to_arrow().to_pydict() == {"a": [1, 2], "b": [10, 20]}


class Mine(Exception):
    pass


@pytest.mark.parametrize(
    "error", [Mine("x"), KeyError("k"), RuntimeError("schema"), KeyboardInterrupt(), pa.ArrowInvalid("y"), OSError(5)], ids=repr
)
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("verb", ["append", "overwrite"])
def test_what_a_stream_raises_comes_out_as_it_is(table: ty.Table, error: BaseException, after: int, verb: str) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from [pa.record_batch(FIRST, schema=AB)] * after
        raise error

    for rows in (broken(), pa.RecordBatchReader.from_batches(AB, broken())):
        with pytest.raises(type(error)) as caught:
            getattr(table, verb)(rows)
        assert caught.value is error
    assert table.refresh().version == 1
    assert _files(table) == []


@pytest.mark.parametrize(
    "rows", [{"a": [2**70]}, [{"a": 2**70}], {"a": [1, "x"]}, {1: [2]}, [{1: 2}], {"a": 5}, 7, "ab", [1, 2], []], ids=repr
)
def test_what_is_no_rows(table: ty.Table, rows: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        table.append(rows)
    assert caught.value.argument == "data"


def test_nulls_where_the_schema_says_there_are_none(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    table = ty.Table.create(tmp_path / "t", schema)
    false = pa.Table.from_arrays([pa.array([1, None])], schema=schema)
    for rows in (false, false.to_reader()):
        with pytest.raises(InvalidInput, match="null"):
            table.append(rows)
    assert table.refresh().version == 1


def test_arguments_of_the_wrong_kind(table: ty.Table, tmp_path: Path) -> None:
    wrong: list[tuple[str, Any]] = [
        ("message", lambda: table.append(FIRST, message=5)),  # type: ignore[arg-type]
        ("properties", lambda: table.append(FIRST, commit=ty.CommitOptions(properties=[1]))),  # type: ignore[arg-type]
        ("race_retries", lambda: table.append(FIRST, commit=ty.CommitOptions(race_retries="many"))),  # type: ignore[arg-type]
        ("config", lambda: ty.Table.create(tmp_path / "n", AB, options=ty.TableOptions(config={"a": 1}))),  # type: ignore[dict-item]
        ("filter", lambda: table.to_arrow(filter=5)),  # type: ignore[arg-type]
        ("filter", lambda: table.scan(filter=["a = 1"])),  # type: ignore[arg-type]
        ("filter", lambda: table.count_rows(5)),  # type: ignore[arg-type]
        ("columns", lambda: table.to_arrow(columns=5)),  # type: ignore[arg-type]
        ("columns", lambda: table.to_arrow(columns=["a", 5])),  # type: ignore[list-item]
        ("columns", lambda: table.scan(columns={"a": 5})),  # type: ignore[dict-item]
        ("operation", lambda: table.commit("x")),  # type: ignore[arg-type]
        ("operation", lambda: table.commit(None)),  # type: ignore[arg-type]
    ]
    for argument, call in wrong:
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.argument == argument
    assert table.layout.versions() == [1]
    assert not (tmp_path / "n").exists()


def test_one_column_by_its_name(table: ty.Table) -> None:
    table.append(FIRST)
    assert table.to_arrow("b").to_pydict() == table.scan("b").read_all().to_pydict() == {"b": [10]}

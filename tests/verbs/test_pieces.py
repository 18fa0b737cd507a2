"""Rows that other processes wrote: committed by the rules of append, overwrite and create, once, whoever wrote them how often."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import files_below, rows
from tiltyard.distributed import Piece, RowChange, RowPlan, WriteTask
from tiltyard.errors import AlreadyExists, InvalidInput, KeyConflict, RetryableConflict
from tiltyard.verbs.distributed import write_tasks as piece_module


def _write(task: WriteTask, first: int) -> Piece:
    return task.write(rows(*range(first, first + 3)))


def _travelled(task: WriteTask) -> WriteTask:
    found: WriteTask = pickle.loads(pickle.dumps(task))
    return found


def _ids(table: ty.Table) -> list[int]:
    return sorted(table.refresh().to_arrow()["id"].to_pylist())


def test_other_processes_write_and_one_commits(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, rows(0), primary_key=["id"])
    task = table.distributed.write_task()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        made = list(pool.map(_write, [task, task], [10, 20]))
    assert (table.refresh().version, [one.rows for one in made]) == (1, [3, 3])
    result = table.distributed.append(made, message="from afar", commit=ty.CommitOptions(properties={"job": "7"}))
    assert (result.version, result.operation, result.rows) == (2, "Append", {"inserted": 6})
    assert _ids(table) == [0, 10, 11, 12, 20, 21, 22]
    entry = table.transactions.describe()
    assert (entry.message, entry.properties["job"]) == ("from afar", "7")
    assert sorted(lance.dataset(str(root)).to_table()["id"].to_pylist()) == _ids(table)
    assert table.check().ok


def test_a_task_shows_no_credentials(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1), storage_options={"aws_secret_access_key": "hunter22"})
    task = table.distributed.write_task()
    assert "hunter22" not in repr(task) + str(task)
    assert _travelled(task).storage_options == {"aws_secret_access_key": "hunter22"}
    assert "hunter22" not in repr(task.write(rows(2)))


# ---- keys --------------------------------------------------------------------------------------------------------------------


def test_keys_are_compared_inside_a_piece_across_pieces_and_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1, 2), primary_key=["id"])
    task = table.distributed.write_task()
    for inline in (1 << 20, 0):  # once with keys that travel, once with keys that are read from the files
        monkeypatch.setattr(piece_module, "INLINE_KEYS", inline)
        twice, some, others, there = (task.write(rows(*ids)) for ids in [(5, 5), (6, 7), (7, 8), (2, 9)])
        assert (some.keys is None) == (inline == 0)
        for given, named in [([twice], "id 5"), ([some, others], "id 7"), ([there], "id 2")]:
            with pytest.raises(KeyConflict, match=named):
                table.distributed.append(given)
        assert (table.layout.latest_version(), _ids(table)) == (1, [1, 2])
        assert table.distributed.discard([twice, some, others, there]) == 4
    assert table.distributed.append([task.write(rows(2))], on_duplicate="allow").version == 2


def test_a_key_that_somebody_else_brought_meanwhile(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1), primary_key=["id"])
    piece = table.distributed.write_task().write(rows(5, 6))
    ty.Table.open(tmp_path / "t").append(rows(6))
    with pytest.raises(KeyConflict, match="id 6"):
        table.distributed.append([piece])
    assert _ids(table) == [1, 6]


def test_pieces_are_carried_over_what_others_did(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1), primary_key=["id"])
    piece = table.distributed.write_task().write(rows(5))
    other = ty.Table.open(tmp_path / "t")
    other.append(rows(2))
    other.delete("id = 1")
    result = table.distributed.append([piece])
    assert [one.operation for one in result.rebased_over] == ["Append", "Delete"]
    assert _ids(table) == [2, 5]


# ---- columns -----------------------------------------------------------------------------------------------------------------


def test_the_schema_is_checked_before_anybody_writes(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1))
    with pytest.raises(InvalidInput, match="not in the table"):
        table.distributed.write_task(schema=pa.schema([("other", pa.int64())]))
    with pytest.raises(InvalidInput, match="needs schema="):
        table.distributed.write_task(overwrite=True)
    task = table.distributed.write_task()
    with pytest.raises(InvalidInput):
        task.write(pa.table({"id": ["text"]}))


def test_columns_that_changed_since_the_task_was_made(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1], "v": ["a"]}))
    piece = table.distributed.write_task().write(pa.table({"id": [2], "v": ["b"]}))
    ty.Table.open(tmp_path / "t").drop_columns(["v"])
    with pytest.raises(RetryableConflict, match="column v is gone") as caught:
        table.refresh().distributed.append([piece])
    assert not caught.value.retryable
    assert "write the rows again" in str(caught.value)
    assert _ids(table) == [1]


def test_a_column_that_was_renamed_or_added_is_no_hindrance(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1], "v": ["a"]}), primary_key=["id"])
    task = table.distributed.write_task(on_duplicate="allow")
    piece = task.write(pa.table({"id": [2], "v": ["b"]}))
    assert piece.keys is None
    other = ty.Table.open(tmp_path / "t")
    other.alter_columns({"path": "id", "name": "number"})
    other.add_columns({"more": "1"})
    table.refresh().distributed.append([piece])
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["number"]) == [
        {"number": 1, "v": "a", "more": 1},
        {"number": 2, "v": "b", "more": None},
    ]
    with pytest.raises(KeyConflict, match="number 2"):
        table.distributed.append([task.write(pa.table({"id": [2], "v": ["c"]}))])


@pytest.mark.parametrize("stable", [False, True])
def test_pieces_of_nested_columns_in_slices_read_back_as_they_were(tmp_path: Path, stable: bool) -> None:
    whole = pa.table(
        {
            "id": pa.array(range(1000)),
            "s": [None if i % 7 == 0 else f"text {i}" for i in range(1000)],
            "b": [i % 3 == 0 for i in range(1000)],
            "l": [[i] * (i % 4) if i % 5 else None for i in range(1000)],
            "st": [{"a": i, "t": str(i)} if i % 6 else None for i in range(1000)],
            "v": pa.array([[float(i), 1.0] for i in range(1000)], pa.list_(pa.float32(), 2)),
        }
    )
    table = ty.Table.create(tmp_path / "t", whole.schema, stable_row_ids=stable)
    task = table.distributed.write_task(files=ty.FileLimits(rows=70))
    batches = whole.to_batches(max_chunksize=33)
    made = [task.write(iter(batches[:11])), task.write(iter(batches[11:])), task.write(iter([]))]
    assert [len(one.fragments) for one in made] == [6, 10, 0]
    table.distributed.append(made)
    assert table.to_arrow().sort_by("id").equals(whole)
    assert table.check().ok


def test_rows_that_pylance_must_convert_are_written_by_it(tmp_path: Path) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64()), blob])
    table = ty.Table.create(tmp_path / "t", schema, options=ty.TableOptions(data_format="2.1"))
    data = pa.table({"id": [1, 2], "b": pa.array([b"x" * 10, b"y"], pa.large_binary())}, schema=schema)
    table.distributed.append([table.distributed.write_task().write(data), _travelled(table.distributed.write_task()).write(data)])
    assert table.count_rows() == 4
    again = table.distributed.write_task(overwrite=True, schema=schema)
    table.distributed.overwrite(again, [again.write(data)])
    assert (table.count_rows(), table.check().ok) == (2, True)


# ---- attempts that are lost --------------------------------------------------------------------------------------------------


def test_of_two_attempts_at_one_part_one_is_committed_and_the_other_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, rows(0))
    task = table.distributed.write_task()
    pieces = [task.write(rows(1), part="0"), task.write(rows(2), part="1"), task.write(rows(1), part="0")]
    unheard = task.write(rows(2), part="1")  # of which the committer never hears
    others = table.distributed.write_task().write(rows(9))  # of a task that is still at work
    table.distributed.append([*pieces, pieces[0]], leftovers=True)
    assert _ids(table) == [0, 1, 2]
    there = files_below(root, "data")
    assert len(there) == 4
    assert not there & {path for one in (pieces[2], unheard) for path in one.paths}
    table.distributed.append([others])
    assert _ids(table) == [0, 1, 2, 9]


def test_groups_of_one_task_do_not_clear_one_another_away(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(0))
    task = table.distributed.write_task()
    first, second = task.grouped("1").write(rows(1)), task.grouped("2").write(rows(2))
    table.distributed.append([first], leftovers=True)
    table.distributed.append([second], leftovers=True)
    assert _ids(table) == [0, 1, 2]


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, rows(0))
    before = files_below(root, "data")

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows(1, 2).to_batches()
        raise OSError("the source broke")

    for most in (1, 1000):  # in files that are done, and in one that is not
        with pytest.raises(OSError, match="the source broke"):
            table.distributed.write_task(files=ty.FileLimits(rows=most)).write(batches())
        assert files_below(root, "data") == before


def test_discarding_leaves_what_was_committed(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, rows(0))
    task = table.distributed.write_task()
    mine, lost = task.write(rows(1)), task.write(rows(2))
    table.distributed.append([mine])
    with pytest.raises(InvalidInput, match="They are committed"):
        table.distributed.discard([mine])
    assert table.distributed.discard([lost, None]) == 1
    assert len(files_below(root, "data")) == 2
    assert task.discard([None], all_of_token=False) == 0


# ---- replacing and making ----------------------------------------------------------------------------------------------------


def test_pieces_replace_a_table_and_its_schema(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1, 2), primary_key=["id"])
    schema = pa.schema([pa.field("name", pa.string()), pa.field("id", pa.int64())])
    task = _travelled(table.distributed.write_task(overwrite=True, schema=schema))
    pieces = [task.write(pa.table({"id": [5], "name": ["a"]})), task.write(pa.table({"id": [6]}))]
    with pytest.raises(KeyConflict, match="id 5"):
        table.distributed.overwrite(task, [*pieces, task.write(pa.table({"id": [5]}))])
    result = table.distributed.overwrite(task, pieces, message="anew")
    assert (result.operation, result.rows, table.primary_key) == ("Overwrite", {"inserted": 2}, ("id",))
    assert table.to_arrow().sort_by("id").to_pylist() == [{"name": "a", "id": 5}, {"name": None, "id": 6}]
    with pytest.raises(InvalidInput, match="another purpose"):
        table.distributed.overwrite(table.distributed.write_task(), [])
    assert table.check().ok
    empty = table.distributed.write_task(overwrite=True, schema=schema, primary_key=[])
    table.distributed.overwrite(empty, [])
    assert (table.count_rows(), table.primary_key) == (0, ())


def test_a_table_that_never_gives_an_id_out_twice(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": [1], "b": [2]}), str(tmp_path / "t"))
    table = ty.Table.open(tmp_path / "t")
    schema = pa.schema([pa.field("s", pa.struct([pa.field("x", pa.int64())])), pa.field("id", pa.int64())])
    task = table.distributed.write_task(overwrite=True, schema=schema)
    table.distributed.overwrite(task, [task.write(pa.table({"s": [{"x": 3}], "id": [4]}))])
    assert lance.dataset(str(tmp_path / "t")).to_table().to_pylist() == [{"s": {"x": 3}, "id": 4}]
    table.append(pa.table({"s": [{"x": 5}], "id": [6]}))
    assert table.count_rows() == 2


def test_a_table_is_made_of_pieces(tmp_path: Path) -> None:
    task = _travelled(
        ty.distributed.new_table(
            tmp_path / "t", rows(1).schema, primary_key=["id"], stable_row_ids=True, options=ty.TableOptions(config={"k": "v"})
        )
    )
    pieces = [task.write(rows(1)), task.write(rows(2))]
    assert not (tmp_path / "t" / "_versions").exists()
    with pytest.raises(KeyConflict, match="id 1"):
        ty.distributed.create_table(task, [*pieces, task.write(rows(1))])
    table = ty.distributed.create_table(task, pieces, leftovers=True)
    assert (_ids(table), table.primary_key, table.settings.config["k"]) == ([1, 2], ("id",), "v")
    assert len(files_below(tmp_path / "t", "data")) == 2
    with pytest.raises(AlreadyExists):
        ty.distributed.create_table(task, pieces)
    assert table.append(rows(3)).version == 2
    assert table.check().ok


def test_what_is_no_piece(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1))
    with pytest.raises(InvalidInput, match="not a piece"):
        table.distributed.append([rows(1)])
    assert table.distributed.append([]).version == 2


@pytest.mark.parametrize("kind", ["append", "overwrite", "change"])
def test_files_that_lie_elsewhere_become_part_of_no_table(tmp_path: Path, kind: str) -> None:
    """Two tables of the same columns: only where the files lie tells the pieces apart."""
    mine, other = ty.Table.create(tmp_path / "mine", rows(1), durability="os"), ty.Table.create(tmp_path / "other", rows(1))
    task = other.distributed.write_task(overwrite=True, schema=rows(1).schema) if kind == "overwrite" else other.distributed.write_task()
    piece = task.write(rows(2))
    ways: dict[str, Callable[[], object]] = {
        "append": lambda: mine.distributed.append([piece]),
        "overwrite": lambda: mine.distributed.overwrite(task, [piece]),
        "change": lambda: mine.distributed.change_rows(
            lambda _: RowChange({}, [piece], (), None, {"inserted": 1}), RowPlan(inserting=True)
        ),
    }
    with pytest.raises(InvalidInput, match="the table is at"):
        ways[kind]()
    assert (_ids(mine), mine.layout.latest_version()) == ([1], 1)
    assert piece.paths[0] in files_below(tmp_path / "other", "data")


def test_a_table_may_be_named_in_several_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ty.Table.create("t", rows(1))
    for write, commit in (
        ("t", tmp_path / "t"),
        (tmp_path / "t", "t"),
        (f"file://{tmp_path}/t", "./t/"),
        (f"{tmp_path}/t/", tmp_path / "t"),
    ):
        ty.Table.open(commit).distributed.append([ty.Table.open(write).distributed.write_task().write(rows(2))])
    assert ty.Table.open("t").count_rows() == 5


def test_reading_columns_of_pieces(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1], "v": ["a"], "w": [0.5]}))
    task = table.distributed.write_task()
    both = [task.write(pa.table({"id": [2, 3]})), None, task.write(pa.table({"id": [4], "v": ["b"]}))]
    assert task.read(both, ["v"]).to_pylist() == [{"v": None}, {"v": None}, {"v": "b"}]
    assert task.read(both, ["v", "id"])["id"].to_pylist() == [2, 3, 4]
    assert task.read(both).column_names == ["id", "v", "w"]

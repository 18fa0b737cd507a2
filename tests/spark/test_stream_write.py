"""Streaming write: a micro-batch is there once, however often it is sent, by whomever, and whatever happened to the table in between."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import types as st

import tiltyard as ty
from tests.support.commits import files_below
from tiltyard.distributed import FoundKeys, MatchTask
from tiltyard.errors import InvalidInput, KeyConflict
from tiltyard.spark.idempotency import source_of
from tiltyard.spark.source import TiltyardSource
from tiltyard.spark.source_options import Options
from tiltyard.spark.stream.stream_writing import Sent, TiltyardStreamWriter, newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = st.StructType([st.StructField("id", st.LongType()), st.StructField("s", st.StringType())])


def rows(*ids: int, s: str = "") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "s": [s or str(one) for one in ids]})


def _writer(path: object, *, overwrite: bool = False, **options: Any) -> TiltyardStreamWriter:
    given = {"path": str(path), "query_id": "q", **{name: str(value) for name, value in options.items()}}
    return TiltyardStreamWriter(Options(given), SCHEMA, overwrite)


def _send(path: object, batch: int, *parts: pa.Table, overwrite: bool = False, **options: Any) -> list[Sent]:
    """One micro-batch, as Spark does it: tasks have a writer that was made once, the commit has one of its own."""
    tasks: TiltyardStreamWriter = pickle.loads(pickle.dumps(_writer(path, overwrite=overwrite, **options)))
    sent: list[Sent] = pickle.loads(pickle.dumps([tasks.write(iter(part.to_batches())) for part in parts]))
    _writer(path, overwrite=overwrite, **options).commit(sent, batch)
    return sent


def _ids(path: object) -> list[int]:
    return sorted(ty.Table.open(str(path)).to_arrow()["id"].to_pylist())


def _nothing_else(path: Path) -> bool:
    table = ty.Table.open(path)
    return files_below(path, "data") == {file.path for one in table.layout.fragments for file in one.files}


def test_a_batch_that_is_sent_again_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for _ in range(3):
        _send(path, 0, rows(1), rows(2), message="stream")
    _send(path, 1, rows(3))
    _send(path, 0, rows(1), rows(2))
    assert _ids(path) == [1, 2, 3]
    table = ty.Table.open(path)
    assert (table.layout.latest_version(), ty.distributed.last_done(table, "q")) == (3, 1)
    assert _nothing_else(path)
    assert table.transactions.describe(2).message == "stream"


def test_a_batch_without_rows_commits_nothing(tmp_path: Path) -> None:
    _send(tmp_path / "t", 0, rows(1))
    _send(tmp_path / "t", 1, rows())
    _writer(tmp_path / "t").commit([], 2)
    assert ty.Table.open(tmp_path / "t").version == 2
    _send(tmp_path / "t", 3, rows(2))
    assert _ids(tmp_path / "t") == [1, 2]


def _cleaned(path: Path) -> None:
    ty.Table.open(path).cleanup(keep_versions=1, grace=timedelta(0))


def _by_pylance(path: Path) -> None:
    lance.write_dataset(rows(100), str(path), mode="append")
    dataset = lance.dataset(str(path))
    dataset.delete("id = 100")
    dataset.optimize.compact_files()
    dataset.create_scalar_index("id", "BTREE")
    dataset.update_config({"theirs": "1"})
    dataset.cleanup_old_versions(older_than=timedelta(0))


def _by_us(path: Path) -> None:
    table = ty.Table.open(path)
    table.append(rows(100))
    table.delete("id = 100")
    table.add_columns({"more": "1"})
    table.drop_columns(["more"])
    table.update_config({"ours": "1"})
    table.compact()
    table.create_index("id", "BTREE", replace=True)


@pytest.mark.parametrize("between", [_cleaned, _by_pylance, _by_us], ids=lambda one: one.__name__)
def test_whatever_happens_to_the_table_it_is_known_that_a_batch_is_in(tmp_path: Path, between: Callable[[Path], None]) -> None:
    path = tmp_path / "t"
    _send(path, 7, rows(1, 2))
    between(path)
    between(path)
    _send(path, 7, rows(1, 2))
    assert _ids(path) == [1, 2]
    _send(path, 8, rows(3))
    assert (_ids(path), ty.Table.open(path).check().ok) == ([1, 2, 3], True)


def test_what_a_restore_takes_away_comes_again_when_it_is_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _send(path, 0, rows(1))
    _send(path, 1, rows(2))
    ty.Table.open(path).restore(2)
    assert _ids(path) == [1]
    _send(path, 0, rows(1))
    _send(path, 1, rows(2))
    assert _ids(path) == [1, 2]
    lance.dataset(str(path), version=2).restore()  # type: ignore[no-untyped-call]  # pylance says nothing of types
    _send(path, 1, rows(2))
    assert _ids(path) == [1, 2]


def test_two_drivers_of_one_query_at_once(tmp_path: Path) -> None:
    """Both have looked before either commits: what decides is the commit itself."""
    path = tmp_path / "t"
    _send(path, 0, rows(1))
    sent = [_writer(path).write(iter(rows(2).to_batches())) for _ in range(2)]
    drivers = [_writer(path), _writer(path)]
    stale = ty.Table.open(path)
    drivers[0].commit([sent[0]], 1)
    with pytest.raises(ty.AlreadyCommitted):
        stale.append(rows(2), commit=ty.CommitOptions(properties=ty.distributed.once("q", 1)))
    drivers[1].commit([sent[1]], 1)
    assert (_ids(path), _nothing_else(path)) == ([1, 2], True)


def test_other_queries_count_for_themselves(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _send(path, 5, rows(1))
    _send(path, 0, rows(2), query_id="other")
    assert _ids(path) == [1, 2]


def test_complete_mode_replaces_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _send(path, 0, rows(1, 2), overwrite=True)
    _send(path, 1, rows(3), overwrite=True)
    _send(path, 0, rows(1, 2), overwrite=True)
    assert (_ids(path), _nothing_else(path) or len(files_below(path, "data"))) == ([3], 2)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("keyed", [True, False])
def test_upserts(tmp_path: Path, keyed: bool, stable: bool) -> None:
    path = tmp_path / "t"
    how: dict[str, Any] = {"mode": "upsert", "primary_key": "id"} if keyed else {"mode": "upsert", "on": "id"}
    how["stable_row_ids"] = stable
    _send(path, 0, rows(1, 2), **how)
    _send(path, 1, rows(2, s="two"), rows(3), **how)
    ty.Table.open(path).update({"s": "'later'"}, where="id = 2")
    _send(path, 1, rows(2, s="two"), rows(3), **how)  # again: it must not undo what came after it
    assert ty.Table.open(path).to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "s": "1"},
        {"id": 2, "s": "later"},
        {"id": 3, "s": "3"},
    ]
    with pytest.raises(KeyConflict):
        _send(path, 2, rows(9), rows(9, s="x"), **how)
    _send(path, 2, rows(9, s="b"), rows(9, s="a"), newest_by="s", **how)
    assert ty.Table.open(path).to_arrow(filter="id = 9")["s"].to_pylist() == ["b"]
    assert ty.distributed.last_done(ty.Table.open(path), "q") == 2


def test_the_files_that_tasks_wrote_for_an_upsert_are_the_tables(tmp_path: Path) -> None:
    """The driver looks for the keys, and for nothing else."""
    path = tmp_path / "t"
    how: dict[str, Any] = {"mode": "upsert", "primary_key": "id"}
    _send(path, 0, rows(1, 2, 3), **how)
    writer = _writer(path, **how)
    sent = [writer.write(iter(part.to_batches())) for part in (rows(2, s="two"), rows(4))]
    _writer(path, **how).commit(sent, 1)
    table = ty.Table.open(path)
    paths = {file.path for fragment in table.layout.fragments for file in fragment.files}
    assert {name for one in sent for name in one.piece.paths} < paths
    assert table.to_arrow().sort_by("id")["s"].to_pylist() == ["1", "two", "3", "4"]
    assert _nothing_else(path)
    assert table.check().ok


def test_an_upsert_of_some_columns_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "t"
    ty.Table.create(path, pa.table({"id": pa.array([1, 2]), "s": ["1", "2"], "more": ["a", "b"]}), primary_key=["id"])
    _send(path, 0, rows(2, s="two"), rows(3), mode="upsert")
    assert ty.Table.open(path).to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "s": "1", "more": "a"},
        {"id": 2, "s": "two", "more": "b"},
        {"id": 3, "s": "3", "more": None},
    ]


def test_an_upsert_carried_over_what_others_did_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "t"
    how: dict[str, Any] = {"mode": "upsert", "primary_key": "id"}
    _send(path, 0, rows(1, 2, 3), **how)
    writer = _writer(path, **how)
    sent = [writer.write(iter(rows(2, 4, s="new").to_batches()))]
    ty.Table.open(path).delete("id = 1")
    ty.Table.open(path).merge(rows(4, s="theirs"), "id").when_not_matched_insert_all().execute()
    _writer(path, **how).commit(sent, 1)
    table = ty.Table.open(path)
    assert table.to_arrow().sort_by("id").to_pylist() == [{"id": 2, "s": "new"}, {"id": 3, "s": "3"}, {"id": 4, "s": "new"}]


def test_a_column_that_is_added_between_two_runs_of_an_upsert_keeps_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    how: dict[str, Any] = {"mode": "upsert", "primary_key": "id"}
    _send(path, 0, rows(1, 2), **how)
    searched: list[int] = []
    known = MatchTask.find

    def find(task: MatchTask) -> FoundKeys:
        searched.append(1)
        found = known(task)
        if len(searched) == 1:
            ty.Table.open(path).add_columns({"w": "id * 100"})
        return found

    monkeypatch.setattr(MatchTask, "find", find)
    _send(path, 1, rows(1, 3, s="new"), **how)
    assert ty.Table.open(path).to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "s": "new", "w": 100},
        {"id": 2, "s": "2", "w": 200},
        {"id": 3, "s": "new", "w": None},
    ]
    assert searched == [1], "the files were of no use any more"
    assert ty.Table.open(path).check().ok


@pytest.mark.parametrize("parts", [(rows(1, s="new"),), (rows(1, s="new"), rows(1, s="a"))], ids=["one", "two"])
def test_an_upsert_changes_all_rows_of_a_key(tmp_path: Path, parts: tuple[pa.Table, ...]) -> None:
    """Whether or not the batch has the key twice, and whatever way it therefore takes."""
    path = tmp_path / "t"
    ty.Table.create(path, rows(1, 1, 2))
    _send(path, 0, *parts, mode="upsert", on="id", newest_by="s")
    table = ty.Table.open(path)
    assert table.to_arrow().sort_by("id").to_pylist() == [{"id": 1, "s": "new"}, {"id": 1, "s": "new"}, {"id": 2, "s": "2"}]
    assert table.check().ok


def test_an_upsert_into_a_table_that_was_made_anew_meanwhile(tmp_path: Path) -> None:
    """The files lie where the table was; the rows get to where it is."""
    lake = ty.Lake.open(tmp_path / "lake")
    lake.create_table("t", rows(1), primary_key=["id"])
    given = Options({"lake": str(tmp_path / "lake"), "table": "t", "query_id": "q", "mode": "upsert"})
    tasks = TiltyardStreamWriter(given, SCHEMA, False)
    sent = [tasks.write(iter(rows(2).to_batches()))]
    lake.drop_table("t")
    lake.create_table("t", rows(9), primary_key=["id"])
    TiltyardStreamWriter(given, SCHEMA, False).commit(sent, 0)
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [2, 9]
    assert lake.check().ok


def test_a_batch_without_rows_leaves_nothing_of_an_upsert(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _send(path, 0, rows(), mode="upsert", primary_key="id")
    assert (files_below(path, "data"), ty.Table.open(path).version) == (set(), 1)


def test_the_newest_row_of_each_key() -> None:
    data = pa.table({"k": [1, 2, 1, 2, 3], "n": [5, 1, 4, 1, None], "v": ["a", "b", "c", "d", "e"]})
    assert newest(data, ["k"], "n").sort_by("k").to_pylist() == [
        {"k": 1, "n": 5, "v": "a"},
        {"k": 2, "n": 1, "v": "d"},
        {"k": 3, "n": None, "v": "e"},
    ]
    assert newest(data.slice(0, 0), ["k"], "n").num_rows == 0


def test_an_abort_removes_what_was_written(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "t")
    sent = writer.write(iter(rows(1).to_batches()))
    _writer(tmp_path / "t").abort([sent, None], 0)
    assert files_below(tmp_path / "t", "data") == set()
    writer.abort([None], 1)


def test_who_a_query_is() -> None:
    assert source_of(None, "spark-id") == "spark-id"
    assert source_of("mine", "spark-id") == "mine:spark-id"
    assert source_of("mine", None) == "mine"
    with pytest.raises(InvalidInput, match="needs the option query_id"):
        source_of(None, None)
    with pytest.raises(InvalidInput, match="short name"):
        source_of("a b", None)


@pytest.mark.parametrize(
    "options",
    [{"mode": "replace"}, {"mode": "upsert"}, {"on": "id"}, {"mode": "upsert", "on": "nobody"}, {"epoch": 3}, {"version": 1}],
    ids=str,
)
def test_options_that_cannot_be_meant(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        _writer(tmp_path / "t", **options)


def test_a_query_may_have_a_name(tmp_path: Path) -> None:
    """Spark hands it over as an option. It is no part of who the query is: that is told by its checkpoint."""
    assert _writer(tmp_path / "t", queryName="ingest").how == _writer(tmp_path / "t").how


# ---- through Spark -----------------------------------------------------------------------------------------------------------


def test_a_query_of_sparks_from_table_to_table(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(TiltyardSource)
    ty.Table.create(tmp_path / "from", rows(1, 2))
    where = {"lake": str(tmp_path / "lake"), "table": "to"}
    lake = ty.Lake.open(tmp_path / "lake")

    def run(**options: str) -> list[int]:
        frame = spark.readStream.format("tiltyard").load(str(tmp_path / "from"))
        sink = frame.writeStream.format("tiltyard").options(**where, **options, checkpointLocation=str(tmp_path / "log"))
        query = sink.trigger(availableNow=True).queryName("ingest").start()
        query.awaitTermination()
        return sorted(lake.table("to").to_arrow()["id"].to_pylist())

    assert run() == [1, 2]
    ty.Table.open(tmp_path / "from").append(rows(3))
    assert run() == [1, 2, 3]
    marks = [name for name in lake.table("to").settings.config if name.startswith("tiltyard.once.")]
    assert len(marks) == 1  # the same query before and after: Spark's own id of it, from its checkpoint
    # The driver died after the commit and before Spark noted that the batch is done: it is sent again.
    newest_note = max((tmp_path / "log" / "commits").iterdir(), key=lambda path: int(path.name) if path.name.isdecimal() else -1)
    newest_note.unlink()
    (newest_note.parent / f".{newest_note.name}.crc").unlink()
    assert run() == [1, 2, 3]
    assert lake.check().ok

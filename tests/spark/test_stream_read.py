"""Streaming read: each row of each version once, in order, whatever else was done to the table in between."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

import tiltyard as ty
from tiltyard.errors import HistoryUnavailable, InvalidInput, RetryableConflict
from tiltyard.spark.source import TiltyardSource
from tiltyard.spark.source_options import Options
from tiltyard.spark.stream.stream_reading import TiltyardStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = st.StructType([st.StructField("id", st.LongType()), st.StructField("s", st.StringType())])
FEED = st.StructType([*SCHEMA.fields, st.StructField("_change_type", st.StringType()), st.StructField("_commit_version", st.LongType())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "s": [str(one) for one in ids]})


def _reader(path: object, schema: st.StructType = SCHEMA, **options: Any) -> TiltyardStreamReader:
    return TiltyardStreamReader(Options({"path": str(path), **{name: str(value) for name, value in options.items()}}), schema)


class Query:
    """What Spark does: asks how far, reads that far, remembers it."""

    def __init__(self, path: object, schema: st.StructType = SCHEMA, **options: Any) -> None:
        self.reader = _reader(path, schema, **options)
        self.at = self.reader.initialOffset()

    def batch(self, end: dict[str, int] | None = None) -> list[dict[str, Any]]:
        end = end or json.loads(json.dumps(self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())))
        parts = self.reader.partitions(self.at, end) if end != self.at else []
        worker, parts = pickle.loads(pickle.dumps((self.reader, parts)))
        found = [row for part in parts for batch in worker.read(part) for row in batch.to_pylist()]
        self.reader.commit(end)
        self.at = end
        return sorted(found, key=lambda row: (row.get("_commit_version", 0), row["id"], row.get("_change_type", "")))

    def ids(self) -> list[int]:
        return [row["id"] for row in self.batch()]

    def batches(self) -> list[list[int]]:
        found = []
        while some := self.ids():
            found.append(some)
        return found


def test_first_all_there_is_and_then_what_comes(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1, 2))
    table.append(rows(3))
    table.delete("id = 1")  # before the query begins: it is simply not there
    query = Query(tmp_path / "t")
    assert (query.at, query.ids(), query.at) == ({"version": 0}, [2, 3], {"version": 3})
    assert query.ids() == []
    table.append(rows(4))
    lance.write_dataset(rows(5, 6), str(tmp_path / "t"), mode="append")
    assert (query.ids(), query.at, query.ids()) == ([4, 5, 6], {"version": 5}, [])


def test_upkeep_is_no_data(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1))
    query = Query(tmp_path / "t", startingVersion=1)
    table.append(rows(2))
    table.compact()
    table.create_index("id", "BTREE")
    table.update_config({"k": "v"})
    table.add_columns({"more": "id * 2"})
    assert query.ids() == [1, 2]
    table.append(pa.table({"id": [3], "s": ["3"], "more": [6]}))
    lance.dataset(str(tmp_path / "t")).optimize.compact_files()
    assert (query.ids(), query.ids()) == ([3], [])


def test_where_a_query_begins(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1))
    table.append(rows(2))
    table.append(rows(3))
    second = table.transactions.describe(2).timestamp
    assert Query(tmp_path / "t", startingVersion=2).ids() == [2, 3]
    assert Query(tmp_path / "t", startingTimestamp=second.isoformat()).ids() == [2, 3]
    assert Query(tmp_path / "t", startingTimestamp=(second + timedelta(days=1)).isoformat()).ids() == []
    later = Query(tmp_path / "t", startingVersion=5)
    latest = Query(tmp_path / "t", startingVersion="latest")
    assert (later.ids(), latest.ids()) == ([], [])
    for number in (4, 5):
        table.append(rows(number))
    assert (later.ids(), latest.ids()) == ([5], [4, 5])


def test_a_query_that_dies_before_its_first_batch_begins_at_the_same_place(tmp_path: Path) -> None:
    """Spark writes down where the batch ends, not where it began."""
    table = ty.Table.create(tmp_path / "t", rows(1))
    cases: tuple[dict[str, Any], ...] = ({}, {"startingVersion": "latest"})
    for options in cases:
        first = Query(tmp_path / "t", **options)
        end = first.reader.latestOffset(first.at, ReadAllAvailable())
        before = [row["id"] for row in first.batch(end)]
        table.append(rows(table.layout.latest_version() + 10))
        again = Query(tmp_path / "t", **options)
        assert [row["id"] for row in again.batch(end)] == before
        assert again.ids() == [table.layout.latest_version() + 9]


def test_admission_by_versions_rows_and_bytes(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1))
    for number in range(2, 8):
        table.append(rows(number))
    every = list(range(1, 8))
    assert Query(tmp_path / "t", startingVersion=1).batches() == [every]
    assert Query(tmp_path / "t", startingVersion=1, max_versions_per_trigger=3).batches() == [[1, 2, 3], [4, 5, 6], [7]]
    assert Query(tmp_path / "t", startingVersion=1, max_rows_per_trigger=2).batches() == [[1, 2], [3, 4], [5, 6], [7]]
    assert Query(tmp_path / "t", startingVersion=1, max_bytes_per_trigger=1).batches() == [[one] for one in every]
    # The table as it is comes in pieces as well, and what is added meanwhile comes after.
    query = Query(tmp_path / "t", max_rows_per_trigger=3)
    assert (query.ids(), query.at) == ([1, 2, 3], {"version": 7, "done": 3})
    table.append(rows(8))
    assert (query.batches(), query.at) == ([[4, 5, 6], [7], [8]], {"version": 8})
    whole = _reader(tmp_path / "t", startingVersion=1, max_rows_per_trigger=1)
    assert whole.latestOffset(whole.initialOffset(), ReadAllAvailable()) == {"version": 8}


def test_available_now_ends(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1))
    table.append(rows(2))
    query = Query(tmp_path / "t", startingVersion=1, max_versions_per_trigger=1)
    query.reader.prepareForTriggerAvailableNow()
    table.append(rows(3))
    assert query.batches() == [[1], [2]]
    assert query.reader.reportLatestOffset() == {"version": 2}


def test_changed_rows_end_a_stream_of_appends_and_say_why(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1, 2))
    query = Query(tmp_path / "t")
    assert query.ids() == [1, 2]
    table.append(rows(3))
    table.delete("id = 1")
    with pytest.raises(RetryableConflict, match=r"Version 3 changed rows .*Delete.*read_changes.*ignore_changes"):
        query.batch()
    ignoring = Query(tmp_path / "t", startingVersion=2, ignore_changes=True)
    assert ignoring.ids() == [3]
    table.update({"s": "'x'"}, where="id = 3")
    assert ignoring.batch() == [{"id": 3, "s": "x"}]
    table.overwrite(rows(9))
    assert ignoring.ids() == [9]


@pytest.mark.parametrize("stable", [False, True])
def test_the_change_feed(tmp_path: Path, stable: bool) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1, 2), primary_key=["id"], stable_row_ids=stable)
    query = Query(tmp_path / "t", FEED, read_changes=True)

    def told() -> list[tuple[object, ...]]:
        return [(row["_commit_version"], row["_change_type"], row["id"], row["s"]) for row in query.batch()]

    assert told() == [(1, "insert", 1, "1"), (1, "insert", 2, "2")]
    table.append(rows(3))
    table.delete("id = 2")
    table.merge(pa.table({"id": [3, 4], "s": ["three", "four"]})).when_matched_update_all().when_not_matched_insert_all().execute()
    table.compact()
    changed = [(4, "update", 3, "three")] if stable else [(4, "delete", 3, "3"), (4, "insert", 3, "three")]
    assert told() == [(2, "insert", 3, "3"), (3, "delete", 2, "2"), *changed, (4, "insert", 4, "four")]
    assert told() == []


def test_columns_are_known_by_their_ids(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1))
    query = Query(tmp_path / "t", startingVersion=1)
    table.alter_columns({"path": "s", "name": "text"})
    table.append(pa.table({"id": [2], "text": ["two"]}))
    assert query.batch() == [{"id": 1, "s": "1"}, {"id": 2, "s": "two"}]
    table.add_columns({"more": "id"})
    wide = st.StructType([st.StructField("id", st.LongType()), st.StructField("more", st.LongType())])
    assert Query(tmp_path / "t", wide, startingVersion=1).batch() == [{"id": 1, "more": None}, {"id": 2, "more": None}]
    table.drop_columns(["text"])
    table.append(pa.table({"id": [3], "more": [3]}))
    with pytest.raises(InvalidInput, match="Column s is gone"):
        query.batch()


def test_a_version_that_was_cleaned_up_too_soon(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(1))
    for number in (2, 3, 4):
        table.append(rows(number))
    table.cleanup(keep_versions=1, grace=timedelta(0))
    with pytest.raises(HistoryUnavailable, match="cleaned up before the stream had read it"):
        Query(tmp_path / "t", startingVersion=2).batch()
    assert Query(tmp_path / "t").ids() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "options",
    [{"startingVersion": 0}, {"startingVersion": "x"}, {"startingVersion": 1, "startingTimestamp": "2026-01-01"}, {"version": 3},
     {"startingTimestamp": "soon"}, {"read_changes": True, "ignore_changes": True}, {"max_rows_per_trigger": 0}, {"maxFiles": 1}],
    ids=str,
)  # fmt: skip
def test_options_that_cannot_be_meant(tmp_path: Path, options: dict[str, Any]) -> None:
    ty.Table.create(tmp_path / "t", rows(1))
    with pytest.raises(InvalidInput):
        _reader(tmp_path / "t", **options).initialOffset()


# ---- through Spark -----------------------------------------------------------------------------------------------------------


def test_a_query_of_sparks_reads_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(TiltyardSource)
    lake = ty.Lake.open(tmp_path / "lake")
    lake.create_table("t", rows(1, 2), primary_key=["id"], stable_row_ids=True)
    source = spark.readStream.format("tiltyard").options(lake=str(tmp_path / "lake"), table="t", read_changes="true")

    def run() -> list[tuple[object, ...]]:
        out, log = tmp_path / "out", tmp_path / "log"
        frame = source.option("max_versions_per_trigger", "1").load()
        query = frame.writeStream.format("parquet").option("checkpointLocation", str(log)).trigger(availableNow=True).start(str(out))
        query.awaitTermination()
        found = spark.read.schema(frame.schema).parquet(str(out)).collect()
        return sorted((row["_commit_version"], row["_change_type"], row["id"]) for row in found)

    first = [(1, "insert", 1), (1, "insert", 2)]
    assert run() == first
    lake.table("t").append(rows(3))
    lake.table("t").delete("id = 1")
    assert run() == [*first, (2, "insert", 3), (3, "delete", 1)]

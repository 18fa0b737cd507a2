"""What workers hand over as columns, and keys of joins that scans hear of when a query is executed: the same rows as without either."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import tiltyard as ty
from tests.support.proving import sample
from tests.support.spark_queries import comparable
from tiltyard.spark import enable
from tiltyard.spark.read import join_keys
from tiltyard.spark.read.optimizer_rule import install, remove, rule_of
from tiltyard.spark.sql_catalog.session_catalog import use_lake

SEED = 20261117
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def all_kinds(rows: int, random: Random) -> pa.Table:
    """Every type that has its own way through the JVM, with nulls at random places, in none, and everywhere."""

    def some(make: Any, kind: pa.DataType, nulls: float = 0.3) -> pa.Array:
        return pa.array([None if random.random() < nulls else make() for _ in range(rows)], kind)

    def wide() -> int:
        return random.choice([0, -1, 10**17 - 1, -(10**17) + 1, random.randrange(-(10**12), 10**12)])

    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "flag": some(lambda: random.random() < 0.5, pa.bool_()),
            "tiny": some(lambda: random.randrange(-128, 128), pa.int8()),
            "small": some(lambda: random.randrange(-(2**15), 2**15), pa.int16()),
            "whole": some(lambda: random.randrange(-(2**31), 2**31), pa.int32()),
            "long": some(lambda: random.randrange(-(2**63), 2**63), pa.int64()),
            "real": some(lambda: random.choice([0.0, -0.0, float("inf"), random.random()]), pa.float32()),
            "number": some(lambda: random.choice([-0.0, 1e300, random.random()]), pa.float64()),
            "price": some(lambda: Decimal(wide()).scaleb(-2), pa.decimal128(18, 2)),
            "large": some(lambda: Decimal(wide()).scaleb(-2), pa.decimal128(30, 2)),
            "day": some(lambda: date(1900, 1, 1) + timedelta(days=random.randrange(60_000)), pa.date32()),
            "at": some(lambda: EPOCH + timedelta(microseconds=random.randrange(-(10**15), 10**15)), pa.timestamp("us", "UTC")),
            "wall": some(lambda: datetime(1950, 1, 1) + timedelta(seconds=random.randrange(10**9)), pa.timestamp("us")),
            "text": some(lambda: random.choice(["", "a", "ß" * 9, "x" * random.randrange(40)]), pa.string()),
            "bytes": some(lambda: bytes(random.randrange(256) for _ in range(random.randrange(5))), pa.binary()),
            "list": some(lambda: [random.randrange(9) for _ in range(random.randrange(4))], pa.list_(pa.int32())),
            "struct": some(lambda: {"a": random.choice([None, 1]), "b": "x"}, pa.struct([("a", pa.int32()), ("b", pa.string())])),
            "none": some(lambda: 1, pa.int32(), 1.0),
            "full": some(lambda: "y", pa.string(), 0.0),
        }
    )


@pytest.fixture
def rows_only(spark: SparkSession) -> Iterator[None]:
    remove(spark)
    rule = install(spark, columnar=False)
    assert not rule.columnar
    yield
    remove(spark)


def test_every_type_arrives_as_it_was_stored(spark: SparkSession, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    table = all_kinds(900, Random(SEED))
    ty.Table.create(tmp_path / "t", table.slice(0, 600)).append(table.slice(600))
    remove(spark)
    assert enable(spark).rule
    rule = rule_of(spark)
    assert rule is not None
    assert rule.columnar
    frame = spark.read.format("tiltyard").option("batch_rows", "250").load(str(tmp_path / "t"))
    assert "ColumnarToRow" in _plan(frame)
    got = comparable(frame.collect())
    groups = comparable(frame.groupBy("text", "flag").agg({"price": "sum", "whole": "max", "day": "min"}).collect())
    narrow = comparable(frame.filter("whole % 3 = 0").select("day", "price", "text").collect())
    remove(spark)
    plain = spark.read.format("tiltyard").load(str(tmp_path / "t"))
    assert "ColumnarToRow" not in _plan(plain)
    assert got == comparable(plain.collect())
    assert groups == comparable(plain.groupBy("text", "flag").agg({"price": "sum", "whole": "max", "day": "min"}).collect())
    assert narrow == comparable(plain.filter("whole % 3 = 0").select("day", "price", "text").collect())
    assert len(got) == 900


def test_rows_are_handed_over_where_columns_cannot_be(spark: SparkSession, tmp_path: Path, rows_only: None) -> None:
    ty.Table.create(tmp_path / "t", all_kinds(50, Random(SEED)))
    frame = spark.read.format("tiltyard").load(str(tmp_path / "t"))
    assert "ColumnarToRow" not in _plan(frame.filter("id > 3"))
    assert frame.filter("id > 3 and id % 2 = 0").count() == 23


def test_a_session_beside_the_first_has_columns_too(spark: SparkSession, tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", pa.table({"id": range(100)}))
    enable(spark)
    other = spark.newSession()
    assert enable(other).rule
    frame = other.read.format("tiltyard").load(str(tmp_path / "t")).filter("id % 2 = 0")
    assert "ColumnarToRow" in _plan(frame)
    assert len(frame.collect()) == 50
    enable(other, rule=False)


@pytest.fixture
def star(spark: SparkSession, tmp_path: Path) -> ty.Lake:
    """Facts whose keys are of several types, some null, some without a dimension; and dimensions, one with a key twice."""
    random = Random(SEED)
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    keys = range(-40, 40)
    dimension = {
        "long_key": pa.array(keys, pa.int64()),
        "whole_key": pa.array(keys, pa.int32()),
        "text_key": pa.array([f"k{key}" for key in keys]),
        "day_key": pa.array([date(2020, 1, 1) + timedelta(days=key) for key in keys]),
        "group": pa.array([key % 8 for key in keys], pa.int32()),
    }
    lake.create_table("dim", pa.concat_tables([pa.table(dimension), pa.table(dimension).slice(3, 2)]))
    places: list[int | None] = [random.choice([None, *range(-60, 60)]) for _ in range(4000)]
    facts = {
        "id": pa.array(range(4000), pa.int64()),
        "l": pa.array(places, pa.int64()),
        "w": pa.array(places, pa.int32()),
        "t": pa.array([None if place is None else f"k{place}" for place in places]),
        "d": pa.array([None if place is None else date(2020, 1, 1) + timedelta(days=place) for place in places]),
        "price": pa.array([Decimal(number).scaleb(-2) for number in range(4000)], pa.decimal128(12, 2)),
    }
    table = lake.create_table("facts", pa.table(facts).slice(0, 2500))
    table.append(pa.table(facts).slice(2500))
    table.delete("id % 97 = 3")
    enable(spark)
    use_lake(spark, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    return lake


JOINS = (
    "SELECT * FROM lake.facts JOIN lake.dim ON {f} = {k} WHERE group = {g}",
    "SELECT id, group FROM lake.dim JOIN lake.facts ON {f} = {k} WHERE group < {g} AND id % 3 = 1",
    "SELECT count(*), sum(price) FROM lake.facts JOIN lake.dim ON {f} = {k} AND group = {g}",
    "SELECT id FROM lake.facts WHERE {f} IN (SELECT {k} FROM lake.dim WHERE group = {g})",
    "SELECT id, group FROM lake.dim LEFT JOIN lake.facts ON {f} = {k} WHERE group = {g}",
    "SELECT id, group FROM lake.facts LEFT JOIN lake.dim ON {f} = {k} AND group = {g}",
    "SELECT id FROM lake.facts WHERE {f} NOT IN (SELECT {k} FROM lake.dim WHERE group = {g})",
    "SELECT one.id FROM lake.facts one JOIN lake.facts two ON one.id = two.id JOIN lake.dim ON one.{f} = {k} WHERE group = {g}",
    "SELECT id FROM lake.facts JOIN lake.dim ON {f} = {k} WHERE group = 99",
    "SELECT one.id FROM (SELECT * FROM lake.facts ORDER BY id LIMIT 50) one JOIN lake.dim ON one.{f} = {k} WHERE group = {g}",
)
KEYS = (("l", "long_key"), ("w", "whole_key"), ("t", "text_key"), ("d", "day_key"), ("w", "long_key"))


@pytest.mark.parametrize("most", [1000, 3], ids=["by a condition", "by the worker"])
def test_keys_of_joins_leave_out_only_what_the_join_would(
    spark: SparkSession, star: ty.Lake, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    rule = rule_of(spark)
    assert rule is not None
    queries = [join.format(f=fact, k=key, g=number % 8) for number, (fact, key) in enumerate(KEYS) for join in JOINS]
    chosen = sample(queries, 12)
    monkeypatch.setattr(join_keys, "MOST_VALUES", most)
    before = rule.planner.refined
    found = [comparable(spark.sql(query).collect()) for query in chosen]
    assert rule.planner.refined - before >= 3
    assert rule.last_failure == ""
    assert not rule.planner.declined
    spark.conf.set("spark.sql.optimizer.dynamicPartitionPruning.enabled", "false")
    try:
        for query, rows in zip(chosen, found, strict=True):
            assert rows == comparable(spark.sql(query).collect()), query
    finally:
        spark.conf.unset("spark.sql.optimizer.dynamicPartitionPruning.enabled")
    assert sum(bool(rows) for rows in found) > len(found) // 2


def test_a_data_frame_used_twice_has_the_keys_of_each_use(spark: SparkSession, star: ty.Lake) -> None:
    facts, dim = spark.table("lake.facts"), spark.table("lake.dim")
    frames = [facts.join(dim.filter(f"group = {group}"), facts["l"] == dim["long_key"]) for group in (1, 2)]
    counts = [frame.count() for frame in frames]
    assert frames[0].union(frames[1]).count() == sum(counts)
    assert [frame.count() for frame in frames] == counts
    assert facts.count() == star.table("facts").count_rows()


def test_statements_that_change_rows_by_a_join_are_right(spark: SparkSession, star: ty.Lake) -> None:
    before = {row["id"]: row for row in star.table("facts").to_arrow().to_pylist()}
    spark.sql("DELETE FROM lake.facts WHERE l IN (SELECT long_key FROM lake.dim WHERE group = 3)")
    gone = {number for number, row in before.items() if row["l"] is not None and -40 <= row["l"] < 40 and row["l"] % 8 == 3}
    assert gone
    assert {row["id"] for row in star.table("facts").to_arrow().to_pylist()} == set(before) - gone


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.int16()])
def test_keys_are_found_whatever_their_range(kind: pa.DataType) -> None:
    least, most = (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    values = [least, most, 0, None, 5, -7, least + 1]
    batch = pa.record_batch({"k": pa.array(values, kind)})
    for wanted in ([least], [most, least], [0, 5, 6], [], [-7, 10**9], [most]):
        test = join_keys.key_test([join_keys.KeysAmong("k", pa.array(wanted, pa.int64()))])
        assert test is not None
        assert test(batch).column(0).to_pylist() == [value for value in values if value in wanted]

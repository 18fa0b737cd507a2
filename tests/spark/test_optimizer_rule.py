"""The optimizer's rule: what goes into the scan, what stays with Spark, and what it costs nobody who does not want it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import tiltyard as ty
from tiltyard.spark import enable
from tiltyard.spark.read.filters import condition
from tiltyard.spark.read.optimizer_rule import rule_of

SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("s", pa.string()),
        ("d", pa.float64()),
        ("u", pa.uint64()),
        ("ns", pa.timestamp("ns")),
        ("x`y", pa.int32()),
        ("st", pa.struct([("q", pa.int32())])),
    ]
)


@pytest.fixture
def ruled(spark: SparkSession) -> Iterator[SparkSession]:
    assert enable(spark).rule
    yield spark
    enable(spark, rule=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rule") / "t"
    rows = 1000
    table = {"id": range(rows), "g": [number % 10 for number in range(rows)], "s": [f"n{number}" for number in range(rows)]}
    table |= {"big": [2**62] * rows, "st": [{"q": number} for number in range(rows)]}
    ty.Table.create(path, pa.table(table))
    return path


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def _read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("tiltyard").options(**options).load(str(path))


def test_columns_and_filters_go_into_the_scan(ruled: SparkSession, place: Path) -> None:
    frame = _read(ruled, place)
    plan = _plan(frame.filter("id > 5 and (g = 1 or s like 'n1%') and id % 2 = 0").select("s"))
    assert "(`id` > 5) AND ((`g` = 1) OR (starts_with(`s`, 'n1')))" in plan
    scan = plan[plan.index("BatchScan") :]
    assert scan.startswith("BatchScan tiltyard[id#")
    assert "big#" not in scan
    assert "st#" not in scan
    assert "g#" not in scan, "a filter that is done with needs no column"
    assert "% 2) = 0" in plan, "what pylance might see otherwise stays with Spark"


def test_limits_and_counts(ruled: SparkSession, place: Path) -> None:
    frame = _read(ruled, place)
    assert "LocalTableScan" in _plan(frame.groupBy().count())
    assert (frame.count(), frame.filter("g = 3").count()) == (1000, 100)
    assert len(frame.filter("g = 3").limit(7).collect()) == 7
    assert len(frame.limit(0).collect()) == 0
    assert len(frame.filter("id % 2 = 0 and g = 4").limit(500).collect()) == 100


def test_aggregates_are_made_by_workers(ruled: SparkSession, place: Path) -> None:
    frame = _read(ruled, place)
    found = frame.filter("id >= 500").groupBy("g").agg({"id": "sum", "s": "max"})
    assert "aggregated by g" in _plan(found)
    wanted = {group: range(500 + group, 1000, 10) for group in range(10)}
    rows = {row["g"]: (row["sum(id)"], row["max(s)"]) for row in found.collect()}
    assert rows == {group: (sum(ids), max(f"n{number}" for number in ids)) for group, ids in wanted.items()}
    plain = frame.filter("id % 2 = 0").groupBy("g").count()
    assert "aggregated" not in _plan(plain), "a filter that stays with Spark comes before it counts"
    assert sorted(tuple(row) for row in plain.collect()) == [(group, 100) for group in range(0, 10, 2)]


def test_sums_that_overflow(ruled: SparkSession, place: Path) -> None:
    frame = _read(ruled, place)
    assert frame.filter("id < 1").agg({"big": "sum"}).collect()[0][0] == 2**62
    with pytest.raises(Exception, match=r"OVERFLOW"):
        frame.agg({"big": "sum"}).collect()
    ruled.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert frame.filter("id < 4").agg({"big": "sum"}).collect()[0][0] == 0, "without ANSI a sum goes round"
    finally:
        ruled.conf.unset("spark.sql.ansi.enabled")


def test_small_tables_are_broadcast(ruled: SparkSession, place: Path) -> None:
    frame = _read(ruled, place)
    assert "BroadcastHashJoin" in _plan(frame.alias("a").join(frame.alias("b"), "id"))


def test_other_rules_and_sessions_are_left_alone(spark: SparkSession, place: Path) -> None:
    first, second = enable(spark), enable(spark)
    assert first == second
    assert spark._jsparkSession.experimental().extraOptimizations().size() == 3
    again = SparkSession.getActiveSession()
    assert again is not None
    assert enable(again).rule
    assert spark._jsparkSession.experimental().extraOptimizations().size() == 3, "the same session by another object"
    other = spark.newSession()
    assert "where" not in _plan(_read(other, place).filter("id = 1"))
    off = enable(spark, rule=False)
    assert not off.rule
    assert rule_of(spark) is None
    assert spark._jsparkSession.experimental().extraOptimizations().size() == 0


def test_another_minor_of_spark_reads_without_the_rule(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.spark.enabling.TESTED", ("9.9",))
    told = enable(spark)
    assert not told.rule
    assert "made for Spark 9.9" in str(told)


def test_an_old_spark_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.spark.enabling.OLDEST", (99, 0))
    with pytest.raises(ty.UnsupportedFeature, match=r"Use Spark 99\.0 or later"):
        enable(spark)


def test_a_spark_that_is_another_inside_reads_without_the_rule(spark: SparkSession, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.spark.read.optimizer_rule._compiled", {})
    monkeypatch.setattr(
        "tiltyard.spark.read.optimizer_rule._source", lambda name: "package tiltyard; public class NarrowScans extends NotThere {}"
    )
    other = spark.newSession()
    told = enable(other)
    assert not told.rule
    assert "this Spark refused it" in str(told)
    assert "CompileException" in str(told)
    assert _read(other, place).filter("id = 3").count() == 1


def test_a_table_that_is_gone_says_so(ruled: SparkSession, tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1]}))
    frame = _read(ruled, tmp_path / "t", version="1")
    table.append(pa.table({"id": [2]}))
    for manifest in (tmp_path / "t" / "_versions").glob("*"):
        manifest.unlink()
    with pytest.raises(Exception, match=r"NotFound|not found|cannot be read"):
        frame.filter("id = 1").collect()
    rule = rule_of(ruled)
    assert rule is not None
    assert any("NotFound" in why for why in rule.planner.declined)
    rule.planner.declined.clear()


def test_views_of_a_lake(ruled: SparkSession, tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake")
    lake.create_table("orders", pa.table({"id": [1, 2], "item": ["a", "b"]}))
    lake.create_table("sales.stock", pa.table({"item": ["a"], "left": [5]}))
    told = enable(ruled, lake=lake)
    assert told.views == ("orders", "sales.stock")
    query = "select o.id, s.left from orders o join `sales.stock` s on o.item = s.item order by o.id"
    assert [tuple(row) for row in ruled.sql(query).collect()] == [(1, 5)]
    with lake.transaction() as tx:
        tx.table("orders").append(pa.table({"id": [3], "item": ["a"]}))
        tx.table("sales.stock").update({"left": "left - 1"})
    assert [tuple(row) for row in ruled.sql(query).collect()] == [(1, 4), (3, 4)], "a view is at the newest version"
    rule = rule_of(ruled)
    assert rule is not None
    rule.planner.snapshots.clear()
    nested = "select count(*) c from orders where id in (select id from orders where id > (select min(left) - 3 from `sales.stock`))"
    assert ruled.sql(nested).collect()[0][0] == 2
    assert len(rule.planner.snapshots) == 1, "all of one query is read at one snapshot"
    lake.rename_table("orders", "bought")
    fresh = told.refresh()
    assert fresh.views == ("bought", "sales.stock")
    assert not ruled.catalog.tableExists("orders")
    assert ruled.sql("select count(*) from bought").collect()[0][0] == 3
    by_uri = enable(ruled, lake=str(tmp_path / "lake"))
    assert by_uri.views == fresh.views
    for name in fresh.views:
        ruled.catalog.dropTempView(f"`{name}`")
    with pytest.raises(ty.InvalidInput):
        enable(ruled, lake=5)  # type: ignore[arg-type]


def _node(kind: str, *children: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"c": kind, "k": list(children), "t": "boolean", **more}


def _column(name: str) -> dict[str, Any]:
    return _node("AttributeReference", n=name)


def _value(kind: str, value: str | None) -> dict[str, Any]:
    return {"c": "Literal", "k": [], "t": kind, "v": value}


Q = _node("GetStructField", _column("st"), n="q")


@pytest.mark.parametrize(
    "node",
    [
        _node("EqualTo", _column("u"), _value("decimal(20,0)", "5")),
        _node("GreaterThan", _column("ns"), _value("timestamp_ntz", "5")),
        _node("EqualTo", _column("x`y"), _value("integer", "5")),
        _node("IsNull", Q),
        _node("Not", _node("EqualTo", Q, _value("integer", "5"))),
        _node("EqualNullSafe", Q, _value("integer", "5")),
        _node("EqualTo", _column("gone"), _value("integer", "5")),
        _node("EqualTo", _column("d"), _value("double", "NaN")),
        _node("EqualTo", _column("i"), _value("integer", None)),
        _node("In", _column("i"), _value("integer", "1"), _value("integer", None)),
        _node("RLike", _column("s"), _value("string", "a")),
        _node("Or", _node("IsNull", _column("i")), _node("RLike", _column("s"), _value("string", "a"))),
        _node("Not", _node("And", _node("IsNull", _column("i")), _node("RLike", _column("s"), _value("string", "a")))),
        _node("EqualTo", _column("s"), _value("string", "a\0b")),
    ],
)
def test_what_might_mean_something_else_is_not_pushed(node: dict[str, Any]) -> None:
    assert condition(node, SCHEMA) is None


def test_half_of_an_and_is_pushed_and_repeated() -> None:
    found = condition(_node("And", _node("IsNull", _column("i")), _node("RLike", _column("s"), _value("string", "a"))), SCHEMA)
    assert found is not None
    assert (found.sql, found.exact) == ("(`i` IS NULL)", False)


def test_a_field_of_a_struct_is_pushed_and_repeated() -> None:
    found = condition(_node("Or", _node("EqualTo", Q, _value("integer", "5")), _node("IsNotNull", Q)), SCHEMA)
    assert found is not None
    assert (found.sql, found.exact) == ("((`st`.`q` = 5) OR (`st`.`q` IS NOT NULL))", False)


def test_nan_is_above_everything() -> None:
    above = condition(_node("GreaterThan", _column("d"), _value("double", "1.0E10")), SCHEMA)
    below = condition(_node("GreaterThanOrEqual", _value("double", "0.0"), _column("d")), SCHEMA)
    assert above is not None
    assert below is not None
    assert above.sql == "((`d` > 10000000000.0) OR isnan(`d`))"
    assert below.sql == "((`d` <= 0.0) AND NOT isnan(`d`))"


def test_quotes_in_text() -> None:
    found = condition(_node("EqualTo", _column("s"), _value("string", "a' OR 'b'='b")), SCHEMA)
    assert found is not None
    assert found.sql == "(`s` = 'a'' OR ''b''=''b')"

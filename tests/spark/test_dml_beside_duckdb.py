"""Sequences of statements through the catalog leave what DuckDB makes of the same: nulls, duplicates, structs, columns that come and go.

A statement that DuckDB takes may be refused here for two reasons only, which are looked for beforehand: the keyed table would get a key
twice or null, or a merge would touch a row of the table twice. Then nothing may have changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tests.spark.dml_statements import Statements, Step
from tests.support.proving import pick
from tiltyard.spark.read.optimizer_rule import rule_of
from tiltyard.spark.sql_catalog.session_catalog import use_lake

SEEDS = range(1, 1 + pick(4, 40))
STEPS = 130
"""Statements of each seed: 520 in ``make test``."""
SHARDED = range(101, 101 + pick(1, 10))
SHARDED_STEPS = 70
"""Statements of each seed over a keyed table that is sharded."""
LOOKS = 4
"""After so many statements the tables are compared: what one did wrong stays wrong."""

KEY = pa.field("id", pa.int64(), nullable=False)
COLUMNS = [
    pa.field("v", pa.int32()),
    pa.field("s", pa.string()),
    pa.field("p", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
    pa.field("l", pa.list_(pa.int32())),
]


QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.ui.explainMode": "simple",
}
"""Over so few rows, compiling each plan takes longer than it, and so does describing it for pages that nobody looks at."""
NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": "-1"}
"""Joins without a job of their own for one side; every other seed has them with."""
FEW = 1000
"""Rows up to which the driver reads a table, for half of the seeds; workers read all for the others."""


@pytest.fixture
def quick(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    chosen = {**QUICK, **(NO_BROADCAST if request.node.callspec.params["seed"] % 2 else {})}
    before = {name: spark.conf.get(name, None) for name in chosen}
    for name, value in chosen.items():
        spark.conf.set(name, value)
    ty.spark.enable(spark)
    rule = rule_of(spark)
    assert rule is not None
    rule.planner.small.most_rows = FEW if request.node.callspec.params["seed"] % 4 > 1 else 0
    yield spark
    rule.planner.small.most_rows = 0
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


@pytest.mark.parametrize("seed", SEEDS)
def test_statements_leave_what_duckdb_makes_of_them(quick: SparkSession, tmp_path: Path, seed: int) -> None:
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    lake.create_table("k", pa.schema([KEY, *COLUMNS]), primary_key=["id"])
    assert_beside_duckdb(quick, lake, tmp_path, seed, STEPS)


@pytest.mark.parametrize("seed", SHARDED)
def test_statements_over_a_sharded_table(quick: SparkSession, tmp_path: Path, seed: int) -> None:
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    lake.create_table("k", pa.schema([KEY, *COLUMNS]), primary_key=["id"], shard_by="id", shards=3, stable_row_ids=bool(seed % 2))
    assert_beside_duckdb(quick, lake, tmp_path, seed, SHARDED_STEPS)
    assert isinstance(lake.table("k"), ty.ShardedTable)


def assert_beside_duckdb(spark: SparkSession, lake: ty.Lake, tmp_path: Path, seed: int, steps: int) -> None:
    lake.create_table("u", pa.schema([KEY.with_nullable(True), *COLUMNS]))
    use_lake(spark, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    statements, refusals, done = Statements(seed), 0, 0
    with duckdb.connect() as beside:
        for name in ("k", "u"):
            beside.execute(f"CREATE TABLE {name} (id BIGINT, v INTEGER, s VARCHAR, p STRUCT(x INTEGER, y INTEGER), l INTEGER[])")
        while done < steps:
            kept = deepcopy(statements.tables)
            step = statements.next()
            before = lake.snapshot().id
            if (step.may_twice and is_twice(beside, step)) or (
                step.again is not None and beside.execute(step.again).fetchone() is not None
            ):
                statements.tables = kept
                continue
            done += 1
            print(f"seed {seed} statement {done}: {step.spark}")
            why = expected_refusal(beside, step)
            if why is not None:
                refusals += 1
                with pytest.raises(Exception, match=why):
                    spark.sql(step.spark)
                assert lake.snapshot().id == before, "a statement that was refused changed something"
                statements.tables = kept
                continue
            spark.sql(step.spark)
            assert lake.snapshot().id <= before + 1, "a statement is one transaction"
            if done % LOOKS == 0:
                assert_same(lake, beside)
        assert_same(lake, beside)
    assert refusals < steps // 2, "hardly anything was done"
    assert lake.check().ok


def is_twice(beside: duckdb.DuckDBPyConnection, step: Step) -> bool:
    return step.once is not None and beside.execute(step.once).fetchone() is not None


def expected_refusal(beside: duckdb.DuckDBPyConnection, step: Step) -> str | None:
    """Runs it in DuckDB; takes it back where Spark has to refuse, and says how."""
    if is_twice(beside, step):
        return "MERGE_CARDINALITY_VIOLATION"
    beside.execute("BEGIN")
    for text in step.duck:
        beside.execute(text)
    if step.table == "k" and beside.execute("SELECT id FROM k GROUP BY id HAVING count(*) > 1 OR id IS NULL").fetchone() is not None:
        beside.execute("ROLLBACK")
        return r"KEY_CONFLICT|NOT_NULL_ASSERT_VIOLATION|may not be null|NULL value"
    beside.execute("COMMIT")
    return None


def assert_same(lake: ty.Lake, beside: duckdb.DuckDBPyConnection) -> None:
    for name in ("k", "u"):
        assert ours(lake, name) == theirs(beside, name), f"one of the last {LOOKS} statements printed"


def ours(lake: ty.Lake, name: str) -> list[str]:
    table = lake.table(name).to_arrow()
    return sorted([str(table.column_names)] + [str(tuple(row.values())) for row in table.to_pylist()])


def theirs(beside: duckdb.DuckDBPyConnection, name: str) -> list[str]:
    table = beside.table(name).to_arrow_table()
    return sorted([str(table.column_names)] + [str(tuple(row.values())) for row in table.to_pylist()])

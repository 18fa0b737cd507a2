"""The lake as a catalog: how a session gets it, what a statement reads, and what happens beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tiltyard.spark.spark_table import SparkTable
from tiltyard.spark.sql_catalog import replace_statements, row_statements, statements_run
from tiltyard.spark.sql_catalog.catalog_changes import _CHANGES, _USED
from tiltyard.spark.sql_catalog.session_catalog import use_lake
from tiltyard.spark.sql_catalog.statements_run import CLAUSES, USED
from tiltyard.spark.statements import plan_members
from tiltyard.spark.write import row_jobs, row_verbs

ROWS = pa.table({"id": [1, 2, 3], "v": [10, 20, 30]})


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> ty.Lake:
    ty.spark.enable(spark)
    made = ty.Lake.open(tmp_path / "lake", durability="os")
    made.create_table("a", ROWS, primary_key=["id"])
    made.create_table("b", ROWS)
    use_lake(spark, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    return made


def values(lake: ty.Lake, name: str = "a") -> dict[int, Any]:
    return {row["id"]: row["v"] for row in lake.table(name).to_arrow().to_pylist()}


PACKAGE = "org.apache.spark.sql.catalyst.plans.logical"
REFUSED = {"TableSpec": {"collation", "serde", "constraints"}}
"""Members that make a statement refused, by name."""


def test_every_member_of_a_plan_is_read_or_refused(spark: SparkSession) -> None:
    """A member of a release to come is a clause that nobody read: this test says so first."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for kind, used in USED.items():
        found = jvm.java.lang.Class.forName(f"{PACKAGE}.{kind}", False, loader)
        members = {str(field.getName()) for field in found.getDeclaredFields() if "$" not in str(field.getName())}
        constructor = found.getConstructors()[0].getParameterCount()
        stated = used | REFUSED.get(kind, set())
        assert stated <= members, f"{kind}: {stated - members} is none"
        assert len(stated) == constructor, f"{kind} has {constructor} members, of which {sorted(stated)} are known"
    assert set(CLAUSES) == set().union(*REFUSED.values())


@pytest.mark.parametrize("kind", sorted(replace_statements.USED))
def test_every_member_of_what_is_replaced_is_read(spark: SparkSession, kind: str) -> None:
    if spark.version.startswith("4.2"):
        pytest.skip("this Spark has no such clause")
    jvm: Any = spark._jvm
    found = jvm.java.lang.Class.forName(f"{PACKAGE}.{kind}")
    made = max(found.getConstructors(), key=lambda constructor: int(constructor.getParameterCount()))
    assert {str(item.getName()) for item in made.getParameters()} == replace_statements.USED[kind]


@pytest.mark.parametrize("clause", ["USING (id) {rows}", "ON r.id = s.id ({rows}) AS s"])
def test_rows_of_a_replacing_insert_are_computed_once(spark: SparkSession, lake: ty.Lake, clause: str) -> None:
    """What was deleted for a row is what that row replaces, though each look at ``rand()`` gives others."""
    lake.create_table("r", pa.table({"id": range(100), "v": [0] * 100}))
    rows = "SELECT id, 1L AS v FROM range(100) WHERE rand() < 0.5"
    spark.sql(f"INSERT INTO lake.r REPLACE {clause.format(rows=rows)}")
    found = lake.table("r").to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(100))
    assert 10 < sum(found["v"].to_pylist()) < 90


def test_a_replacing_insert_in_a_transaction_and_after_a_conflict(
    spark: SparkSession, lake: ty.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lake.snapshot().id
    with ty.spark.transaction(spark):
        spark.sql("INSERT INTO lake.a REPLACE USING (id) SELECT 2L, 99L")
        spark.sql("INSERT INTO lake.a REPLACE ON a.id = s.id (SELECT id, v + 1 AS v FROM lake.a WHERE id = 2) AS s")
    assert (values(lake), lake.snapshot().id) == ({1: 10, 2: 100, 3: 30}, before + 1)
    changed, meddled = row_jobs.changed, [0]

    def late(*given: Any, **named: Any) -> Any:
        found = changed(*given, **named)
        meddled[0] += 1
        if meddled[0] == 1:
            lake.table("a").update({"v": "1000"}, where="id = 2")
        return found

    monkeypatch.setattr(row_verbs, "changed", late)
    spark.sql("INSERT INTO lake.a REPLACE USING (id) SELECT 2L, 5L")
    assert values(lake) == {1: 10, 2: 5, 3: 30}
    assert meddled == [2]


def test_every_change_of_a_table_is_made_or_refused(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    changes = jvm.java.lang.Class.forName("org.apache.spark.sql.connector.catalog.TableChange").getDeclaredClasses()
    known = {str(item.getSimpleName()) for item in changes}
    assert set(_USED) == set(_CHANGES) <= known


def test_one_query_reads_one_snapshot(spark: SparkSession, lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both tables change together between the two being resolved: either both are seen changed, or none."""
    from tiltyard.spark.sql_catalog import catalog_tables

    load, done = catalog_tables.load, [0]

    def meddling(*given: Any) -> Any:
        found = load(*given)
        done[0] += 1
        if done[0] == 1:
            with lake.transaction() as tx:
                tx.table("a").update({"v": "0"})
                tx.table("b").update({"v": "0"})
        return found

    monkeypatch.setattr(catalog_tables, "load", meddling)
    [row] = spark.sql("SELECT (SELECT sum(v) FROM lake.a), (SELECT sum(v) FROM lake.b)").collect()
    assert tuple(row) == (60, 60)
    assert values(lake) == {1: 0, 2: 0, 3: 0}


JOINED = "FROM lake.a AS x JOIN lake.b AS y ON x.id = y.id AND x.v = y.v WHERE y.v > 10"
"""Spark offers keys of such a join to the scans of its sides."""


@pytest.mark.parametrize(
    ("statement", "after"),
    [
        ("INSERT INTO lake.a SELECT x.id + 10, y.v {joined}", {1: 10, 2: 20, 3: 30, 12: 20, 13: 30}),
        ("UPDATE lake.a SET v = 0 WHERE id IN (SELECT x.id {joined})", {1: 10, 2: 0, 3: 0}),
        ("DELETE FROM lake.a WHERE v > (SELECT min(x.v) {joined})", {1: 10, 2: 20}),
        (
            "MERGE INTO lake.a AS t USING (SELECT id, v FROM lake.b WHERE v > 10) AS s ON t.id = s.id AND t.v = s.v"
            " WHEN MATCHED THEN UPDATE SET v = 0 WHEN NOT MATCHED THEN INSERT *",
            {1: 10, 2: 0, 3: 0},
        ),
        (
            "MERGE INTO lake.a AS t USING (SELECT * FROM VALUES (3L, 30L), (4L, 40L) AS q(id, v)) AS s ON t.id = s.id AND t.v = s.v"
            " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *",
            {1: 10, 2: 20, 4: 40},
        ),
    ],
    ids=["insert", "update", "delete", "merge", "merge-values"],
)
def test_statements_whose_rows_come_from_joins_on_several_columns(
    spark: SparkSession, lake: ty.Lake, statement: str, after: dict[int, int]
) -> None:
    spark.sql(statement.replace("{joined}", JOINED))
    assert values(lake) == after


def test_an_update_by_a_subquery_beside_columns_that_have_no_order(spark: SparkSession, lake: ty.Lake) -> None:
    """What a statement changes is not offered keys of groups, which Spark would make of all columns."""
    lake.create_table("n", pa.table({"id": [1, 2], "v": pa.array([None, 2], pa.int64()), "l": [[1], [2]], "p": [{"x": 1}, {"x": 2}]}))
    spark.sql("UPDATE lake.n SET l = array(7L), v = (SELECT max(o.v) FROM lake.b o WHERE o.id = n.id) WHERE v IS NULL")
    assert lake.table("n").to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "v": 10, "l": [7], "p": {"x": 1}},
        {"id": 2, "v": 2, "l": [2], "p": {"x": 2}},
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lake.a SET v = 0 WHERE id = 1 AND id = 2",
        "MERGE INTO lake.a USING (SELECT 1L AS id WHERE false) q ON a.id = q.id WHEN MATCHED THEN UPDATE SET v = 0"
        " WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id)",
        "MERGE INTO lake.a USING (SELECT 1L AS id, 0 AS w) q ON a.id = q.id AND q.w > 5 WHEN MATCHED AND v > 0 THEN UPDATE SET v = 0",
        "MERGE INTO lake.a USING (SELECT 1L AS id WHERE false) q ON a.id = q.id WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id)",
    ],
)
def test_statements_of_which_spark_sees_that_no_row_changes(spark: SparkSession, lake: ty.Lake, statement: str) -> None:
    """Their plans have no scan of the table any more; that must not look as if the primary key was assigned."""
    before = lake.snapshot().id
    spark.sql(statement)
    assert (values(lake), lake.snapshot().id) == ({1: 10, 2: 20, 3: 30}, before)


STATEMENTS = {
    "UPDATE lake.a SET v = v + 1 WHERE id = 1": {1: 1001, 2: 20, 3: 30},
    "DELETE FROM lake.a WHERE v < 15 OR v = 30": {1: 1000, 2: 20},
    "MERGE INTO lake.a USING (SELECT 1L AS id) q ON a.id = q.id WHEN MATCHED THEN UPDATE SET v = a.v + 1": {1: 1001, 2: 20, 3: 30},
}


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_statement_is_executed_again_after_a_conflict(
    spark: SparkSession, lake: ty.Lake, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer changes the very row after it was read: the statement then stands on what that one wrote."""
    changed, meddled = row_jobs.changed, [0]

    def late(*given: Any, **named: Any) -> Any:
        found = changed(*given, **named)
        meddled[0] += 1
        if meddled[0] == 1:
            lake.table("a").update({"v": "1000"}, where="id = 1")
        return found

    monkeypatch.setattr(row_statements, "changed", late)
    spark.sql(text)
    assert values(lake) == STATEMENTS[text]
    assert meddled == [2]


OVER_ITSELF = {
    "INSERT OVERWRITE lake.b SELECT id, v + 1 FROM lake.b": {1: 1001, 2: 21, 3: 31, 4: 41},
    "INSERT OVERWRITE lake.b SELECT id, v + 1 FROM lake.b VERSION AS OF 1": {1: 11, 2: 21, 3: 31},
    "INSERT OVERWRITE lake.b SELECT id, v + 1 FROM lake.a": {1: 11, 2: 21, 3: 31},
    "INSERT INTO lake.b REPLACE WHERE id < 9 SELECT id, v + 1 FROM lake.b": {1: 1001, 2: 21, 3: 31, 4: 41},
    "CREATE OR REPLACE TABLE lake.b AS SELECT id, v + 1 AS v FROM lake.b WHERE id IN (SELECT id FROM lake.b)":
        {1: 1001, 2: 21, 3: 31, 4: 41},
    "INSERT INTO lake.b REPLACE USING (id) SELECT id, v + 1 FROM lake.b": {1: 1001, 2: 21, 3: 31, 4: 41},
    "INSERT INTO lake.b AS t REPLACE ON t.id = s.id (SELECT id, v + 1 AS v FROM lake.b) AS s": {1: 1001, 2: 21, 3: 31, 4: 41},
    "MERGE INTO lake.b t USING lake.b s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v + 1": {1: 1001, 2: 21, 3: 31, 4: 41},
    "MERGE INTO lake.b t USING (SELECT id, v + 1 AS v FROM lake.b) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *":
        {1: 1001, 2: 21, 3: 31, 4: 41},
    "UPDATE lake.b SET v = (SELECT max(v) + 1 FROM lake.b s WHERE s.id = b.id)": {1: 1001, 2: 21, 3: 31, 4: 41},
}  # fmt: skip


def meddle(lake: ty.Lake) -> None:
    lake.table("b").append(pa.table({"id": [4], "v": [40]}))
    lake.table("b").update({"v": "1000"}, where="id = 1")


@pytest.mark.parametrize("text", OVER_ITSELF)
def test_a_statement_replaces_only_what_it_read(spark: SparkSession, lake: ty.Lake, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others commit after Spark resolved the table, which the statement reads as well: what they wrote must not get lost."""
    if spark.version.startswith("4.2") and "lake.b REPLACE" in text.replace(" AS t", ""):
        pytest.skip("this Spark has no such clause")
    check, done = plan_members.check_used, list[int]()

    def meddling(*given: Any) -> None:
        check(*given)
        if not done:
            done.append(1)
            meddle(lake)

    monkeypatch.setattr(statements_run, "check_used", meddling)
    spark.sql(text)
    assert values(lake, "b") == OVER_ITSELF[text]


def test_rows_that_replace_what_they_were_read_from_are_read_again(
    spark: SparkSession, lake: ty.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others commit when all rows are written, and only the commit is left."""
    replace_rows, done = SparkTable.replace_rows, list[int]()

    def late(table: SparkTable, *given: Any, **named: Any) -> Any:
        found = replace_rows(table, *given, **named)
        done.append(1)
        if len(done) == 1:
            meddle(lake)
        return found

    monkeypatch.setattr(SparkTable, "replace_rows", late)
    spark.sql("INSERT OVERWRITE lake.b SELECT id, v + 1 FROM lake.b")
    assert values(lake, "b") == {1: 1001, 2: 21, 3: 31, 4: 41}
    assert len(done) == 2


def test_cached_rows_do_not_replace_later_ones(spark: SparkSession, lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = spark.table("lake.b").cache()
    check = plan_members.check_used

    def meddling(*given: Any) -> None:
        check(*given)
        meddle(lake)

    try:
        assert cached.count() == 3
        monkeypatch.setattr(statements_run, "check_used", meddling)
        with pytest.raises(Exception, match=r"cached rows of version 1.*Uncache"):
            spark.sql("INSERT OVERWRITE lake.b SELECT id, v + 1 FROM lake.b")
    finally:
        cached.unpersist()
    assert values(lake, "b") == {1: 1000, 2: 20, 3: 30, 4: 40}


SWAPPED = (
    "INSERT INTO lake.b VALUES (7, 70)",
    "INSERT OVERWRITE lake.b VALUES (7, 70)",
    "UPDATE lake.b SET v = 99 WHERE id = 1",
    "MERGE INTO lake.b USING (SELECT 1L AS id) q ON b.id = q.id WHEN MATCHED THEN UPDATE SET v = 99",
    "MERGE INTO lake.b USING (SELECT 7L AS id, 70L AS v) q ON b.id = q.id WHEN NOT MATCHED THEN INSERT *",
)


@pytest.mark.parametrize("statement", SWAPPED)
def test_columns_that_were_swapped_meanwhile_take_nothing(
    spark: SparkSession, lake: ty.Lake, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Spark lines values up with the columns as they were when it analyzed the statement; as many of them are not the same ones."""
    check = plan_members.check_used

    def meddling(*given: Any) -> None:
        check(*given)
        table = lake.table("b")
        for name, other in (("v", "w"), ("id", "v"), ("w", "id")):
            table.alter_columns({"path": name, "name": other})
            table = lake.table("b")

    monkeypatch.setattr(statements_run, "check_used", meddling)
    with pytest.raises(Exception, match=r"columns changed while the statement (was planned|ran)"):
        spark.sql(statement)
    assert values(lake, "b") == {10: 1, 20: 2, 30: 3}


def test_in_executors_as_on_the_driver(spark: SparkSession, lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_statements, "Work", lambda: ty.spark.Work(driver_bytes=0))
    spark.sql(
        "MERGE INTO lake.a USING (VALUES (3L, 5L), (4L, 6L) q(id, v)) ON a.id = q.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *"
    )
    assert values(lake) == {1: 10, 2: 20, 4: 6}


def test_what_a_statement_does_not_name_stays_as_it_is_stored(spark: SparkSession, lake: ty.Lake) -> None:
    """Spark has no nanoseconds and no vectors of a fixed length: an update of another column must not go through it."""
    stored = pa.table({
        "id": pa.array([1, 2], pa.uint32()),
        "at": pa.array([1_000_000_001, None], pa.timestamp("ns")),
        "e": pa.array([[1.0, 2.0], None], pa.list_(pa.float16(), 2)),
        "n": [1, 2],
    })  # fmt: skip
    lake.create_table("odd", stored, stable_row_ids=True)
    spark.sql("UPDATE lake.odd SET n = 7 WHERE id = 1")
    spark.sql("MERGE INTO lake.odd USING (SELECT 2L AS id) q ON odd.id = q.id WHEN MATCHED THEN UPDATE SET n = 8")
    after = lake.table("odd").to_arrow().sort_by("id")
    assert after.schema.types == stored.schema.types
    assert after.drop(["n"]).to_pylist() == stored.drop(["n"]).to_pylist()
    assert after["n"].to_pylist() == [7, 8]


def test_what_was_said_of_a_write_is_in_the_history(spark: SparkSession, lake: ty.Lake) -> None:
    spark.sql("INSERT INTO lake.a WITH (message = 'four') VALUES (4, 40)")
    spark.range(5, 6).selectExpr("id", "id AS v").writeTo("lake.a").option("message", "five").append()
    assert [entry.message for entry in lake.table("a").history(2)] == ["five", "four"]
    assert spark.sql("SELECT message FROM lake.a.history LIMIT 1").collect()[0][0] == "five"


def test_properties_and_comments_come_back(spark: SparkSession, lake: ty.Lake) -> None:
    spark.sql(
        "CREATE TABLE lake.n (id BIGINT COMMENT 'who', e ARRAY<FLOAT>) TBLPROPERTIES ('primary_key' = 'id', 'vectors' = 'e:2', 'x' = '1')"
    )
    made = lake.table("n")
    assert made.primary_key == ("id",)
    assert made.schema.field("e").type == pa.list_(pa.float32(), 2)
    assert [row.comment for row in spark.sql("DESCRIBE lake.n").collect()][:1] == ["who"]
    assert {row.key: row.value for row in spark.sql("SHOW TBLPROPERTIES lake.n").collect()} == {"primary_key": "id", "x": "1"}
    text = spark.sql("SHOW CREATE TABLE lake.n").collect()[0][0]
    lake.drop_table("n")
    spark.sql(text)
    assert lake.table("n").primary_key == ("id",)


def test_a_catalog_says_what_is_wrong_with_it(spark: SparkSession, lake: ty.Lake, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.catalog.other", "some.Class")
    with pytest.raises(ty.InvalidInput, match="another catalog"):
        use_lake(spark, "other", {"lake": str(tmp_path)})
    with pytest.raises(ty.InvalidInput, match="plain word"):
        ty.spark.enable(spark, lake=lake, catalog="not this")
    use_lake(spark, "lake", {"lake": str(tmp_path / "nowhere")})
    with pytest.raises(Exception, match="nowhere"):
        spark.sql("SELECT * FROM lake.a")
    spark.conf.unset("spark.sql.catalog.other")


def test_a_session_of_its_own_gets_it_by_enable(spark: SparkSession, lake: ty.Lake) -> None:
    """Another session of the same Spark: settings, strategy and catalog are its own."""
    other = spark.newSession()
    told = ty.spark.enable(other, lake=lake, catalog="mine")
    assert told.catalog == "mine"
    assert "catalog mine" in str(told)
    other.sql("UPDATE mine.a SET v = 0 WHERE id = 1")
    assert spark.sql("SELECT v FROM lake.a WHERE id = 1").collect()[0][0] == 0
    ty.spark.enable(spark)


def test_configure_is_all_that_a_builder_needs(tmp_path: Path) -> None:
    class Builder:
        """What ``configure`` uses of Spark's."""

        def __init__(self) -> None:
            self._options: dict[str, str] = {"spark.jars": "/some.jar"}

        def config(self, name: str, value: str) -> Builder:
            self._options[name] = value
            return self

    given: Any = Builder()
    made: Any = ty.spark.configure(given, tmp_path / "lake", catalog="gold", storage_options={"region": "x"})
    options = made._options
    assert options["spark.sql.catalog.gold"] == "tiltyard.LakeCatalog"
    assert options["spark.sql.catalog.gold.uri"] == str(tmp_path / "lake")
    assert options["spark.sql.catalog.gold.storage.region"] == "x"
    jars = options["spark.jars"].split(",")
    assert jars == ["/some.jar", ty.spark.catalog_jar()]
    assert Path(jars[1]).stat().st_size > 10_000


def test_a_table_that_is_used_twice_is_read_once(spark: SparkSession, lake: ty.Lake) -> None:
    """Scans of the same rows are equal, so that Spark reuses what it shuffled or broadcast."""
    grouped = "SELECT id, sum(v) AS v FROM lake.b GROUP BY id"
    text = f"SELECT /*+ MERGE(x, y) */ x.v + y.v AS v FROM ({grouped}) x JOIN ({grouped}) y ON x.id = y.id"  # noqa: S608 - nobody else's text
    query = spark.sql(text)
    assert sorted(row.v for row in query.collect()) == [20, 40, 60]
    assert "ReusedExchange" in executed(query)
    other = spark.sql(text.replace("GROUP BY id) y", "WHERE v > 10 GROUP BY id) y"))
    assert sorted(row.v for row in other.collect()) == [40, 60]
    assert "ReusedExchange" not in executed(other)


def executed(query: Any) -> str:
    return str(query._jdf.queryExecution().executedPlan().toString())


def test_sizes_are_those_of_the_files(spark: SparkSession, lake: ty.Lake) -> None:
    rows = pa.table({"id": range(50_000), "same": ["x" * 100] * 50_000})
    lake.create_table("large", rows)
    stored = sum(file.size for fragment in lake.table("large").layout.fragments for file in fragment.files)
    plan: Any = spark.table("lake.large")._jdf
    assert 0.5 * stored < int(str(plan.queryExecution().optimizedPlan().stats().sizeInBytes())) < 1.5 * stored < rows.nbytes / 4


@pytest.mark.parametrize("there", [True, False])
def test_streams_by_name(spark: SparkSession, lake: ty.Lake, tmp_path: Path, there: bool) -> None:
    """Into a table that is there, or one that the stream makes: Spark names its default format for that."""
    if there:
        spark.sql("CREATE TABLE lake.sink (id BIGINT, v BIGINT)")
    for number in (4, 5):  # the second time there is one row more
        written = spark.readStream.table("lake.a").writeStream.queryName("ingest").option("checkpointLocation", str(tmp_path / "c"))
        query = written.trigger(availableNow=True).toTable("lake.sink")
        assert query.awaitTermination(300)
        assert query.exception() is None
        lake.table("a").append(pa.table({"id": [number], "v": [10 * number]}))
    assert values(lake, "sink") == {1: 10, 2: 20, 3: 30, 4: 40}


def test_what_spark_cached_is_of_its_version(spark: SparkSession, lake: ty.Lake) -> None:
    spark.sql("CACHE TABLE lake.b")
    try:
        assert "InMemoryRelation" in executed(spark.table("lake.b"))
        spark.sql("INSERT INTO lake.b VALUES (4, 40)")
        assert spark.table("lake.b").count() == 4
    finally:
        spark.catalog.clearCache()

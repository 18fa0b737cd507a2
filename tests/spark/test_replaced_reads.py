"""Data frames that replace the table they were read from: what others committed since is never undone without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import tiltyard as ty
from tests.support.spark_tables import EVERYWHERE
from tiltyard.spark import SparkTable, Work
from tiltyard.spark.sql_catalog.session_catalog import use_lake
from tiltyard.spark.write.replaced_reads import ReplacedVersions

ROWS = pa.table({"id": [1, 2, 3], "v": [10, 20, 30]})
THEIRS = {1: 1000, 2: 20, 3: 30, 4: 40}
BOTH = {1: 1001, 2: 21, 3: 31, 4: 41}
OURS = {1: 11, 2: 21, 3: 31}


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> ty.Lake:
    made = ty.Lake.open(tmp_path / "lake", durability="os")
    made.create_table("b", ROWS)
    ty.spark.enable(spark, lake=str(tmp_path / "lake"))
    use_lake(spark, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    return made


def meddle(lake: ty.Lake, name: str = "b") -> None:
    lake.table(name).append(pa.table({"id": [4], "v": [40]}))
    lake.table(name).update({"v": "1000"}, where="id = 1")


def values(lake: ty.Lake, name: str = "b") -> dict[int, Any]:
    return {row["id"]: row["v"] for row in lake.table(name).to_arrow().to_pylist()}


def loaded(spark: SparkSession, lake: ty.Lake, **options: Any) -> DataFrame:
    return spark.read.format("tiltyard").options(lake=lake.url, table="b", **options).load()


READS: dict[str, Callable[[SparkSession, ty.Lake], DataFrame]] = {
    "by options": loaded,
    "by path": lambda spark, lake: spark.read.format("tiltyard").load(lake.table("b").uri),
    "by name": lambda spark, _: spark.table("lake.b"),
    "to_df": lambda spark, lake: lake.spark(spark).table("b").to_df(),
    "in a subquery": lambda spark, lake: _in_subquery(spark, lake),
}


def _in_subquery(spark: SparkSession, lake: ty.Lake) -> DataFrame:
    loaded(spark, lake).createOrReplaceTempView("read_before")
    return spark.sql("SELECT id, (SELECT max(v) FROM read_before r WHERE r.id = s.id) AS v FROM VALUES (1L), (2L), (3L) AS s(id)")


WRITES: dict[str, Callable[[SparkTable, DataFrame], Any]] = {
    "overwrite": lambda table, df: table.overwrite(df),
    "overwrite_as": lambda table, df: table.overwrite_as(df, ROWS.schema),
    "replace_rows": lambda table, df: table.replace_rows(df),
}


def raised_by(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "v + 1 AS v")


@pytest.mark.parametrize("work", [Work(), EVERYWHERE], ids=["driver", "executors"])
@pytest.mark.parametrize("cached", [False, True], ids=["", "cached"])
@pytest.mark.parametrize("read", READS)
def test_verbs_after_others_committed(spark: SparkSession, lake: ty.Lake, read: str, cached: bool, work: Work) -> None:
    df = raised_by(READS[read](spark, lake))
    if cached:
        df.persist().count()
    try:
        meddle(lake)
        for write in WRITES.values():
            with pytest.raises(ty.ExpectedVersionMismatch, match=r"rows read at version 1, then came version 2 \(Append.*Read the table"):
                write(lake.spark(spark, work).table("b"), df)
        assert values(lake) == THEIRS
    finally:
        df.unpersist()
    WRITES["overwrite"](lake.spark(spark, work).table("b"), raised_by(loaded(spark, lake)))
    assert values(lake) == BOTH


@pytest.mark.parametrize("work", [Work(), EVERYWHERE], ids=["driver", "executors"])
@pytest.mark.parametrize("write", WRITES)
def test_verbs_while_others_commit(spark: SparkSession, lake: ty.Lake, write: str, work: Work) -> None:
    """All rows are read, and only the commit is left."""

    def late(step: str) -> None:
        if step in ("committing", "writing on the driver"):
            meddle(lake)

    df = raised_by(loaded(spark, lake))
    with pytest.raises(ty.ExpectedVersionMismatch):
        WRITES[write](lake.spark(spark, replace(work, progress=late)).table("b"), df)
    assert values(lake) == THEIRS


def test_a_table_by_path(spark: SparkSession, tmp_path: Path) -> None:
    made = ty.Table.create(str(tmp_path / "t"), ROWS, durability="os")
    df = raised_by(spark.read.format("tiltyard").load(str(tmp_path / "t")))
    made.compact()
    made.indices.create("id", "BTREE")
    assert SparkTable.for_path(spark, made.uri).overwrite(df).read_version == 1, "upkeep changes no rows"
    df = raised_by(SparkTable.for_path(spark, made.uri).to_df())
    made.refresh().append(pa.table({"id": [4], "v": [40]}))
    with pytest.raises(ty.ExpectedVersionMismatch):
        SparkTable.for_path(spark, made.uri).overwrite(df)
    assert made.refresh().count_rows() == 4


def test_rows_of_a_version_that_was_asked_for_replace_all(spark: SparkSession, lake: ty.Lake) -> None:
    meddle(lake)
    table = lake.spark(spark).table("b")
    for df in (table.to_df(1), loaded(spark, lake, version=1), spark.read.option("versionAsOf", 1).table("lake.b")):
        table.overwrite(raised_by(df))
        assert values(lake) == OURS
    table.overwrite(spark.createDataFrame(ROWS))  # one that reads nothing of it, either
    assert values(lake) == {1: 10, 2: 20, 3: 30}


def test_a_view_that_follows_its_table(spark: SparkSession, lake: ty.Lake) -> None:
    df = raised_by(spark.table("b"))
    df.collect()
    meddle(lake)
    lake.spark(spark).table("b").overwrite(df)
    assert values(lake) == BOTH
    df.persist().count()
    try:
        with pytest.raises(ty.ConflictError, match="it is not known of which version"):
            lake.spark(spark).table("b").overwrite(df)
    finally:
        df.unpersist()
    assert values(lake) == BOTH


# ---- through the data source -------------------------------------------------------------------------------------------------


def save(df: DataFrame, lake: ty.Lake) -> None:
    df.write.format("tiltyard").mode("overwrite").options(lake=lake.url, table="b").save()


@pytest.mark.parametrize("cached", [False, True], ids=["", "cached"])
@pytest.mark.parametrize("read", READS)
def test_save_after_others_committed(spark: SparkSession, lake: ty.Lake, read: str, cached: bool) -> None:
    df = raised_by(READS[read](spark, lake))
    if cached:
        df.persist().count()
    try:
        meddle(lake)
        with pytest.raises(PySparkException, match=r"rows read at version 1, then came version 2 \(Append"):
            save(df, lake)
        assert values(lake) == THEIRS
    finally:
        df.unpersist()
    save(raised_by(loaded(spark, lake)), lake)
    assert values(lake) == BOTH


def test_save_while_others_commit(spark: SparkSession, lake: ty.Lake) -> None:
    """Rows are on their way to the writer when somebody else commits."""
    url = lake.url

    def late(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                ty.Lake.open(url, create=False).table("b").append(pa.table({"id": [4], "v": [40]}))
            yield batch

    df = loaded(spark, lake).coalesce(1).mapInArrow(late, "id long, v long")
    with pytest.raises(PySparkException, match="rows read at version 1, then came version 2"):
        save(df, lake)
    assert values(lake) == {1: 10, 2: 20, 3: 30, 4: 40}
    blind = spark.createDataFrame(ROWS).coalesce(1).mapInArrow(late, "id long, v long")
    save(blind, lake)  # which replaces what is there, as ever
    assert values(lake) == {1: 10, 2: 20, 3: 30}


def test_save_after_the_rule_looked(spark: SparkSession, lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, answers = ReplacedVersions.apply, list[str]()

    def late(self: ReplacedVersions, overwrite: Any) -> str:
        answers.append(apply(self, overwrite))
        meddle(lake)
        return answers[-1]

    monkeypatch.setattr(ReplacedVersions, "apply", late)
    with pytest.raises(PySparkException, match="rows read at version 1, then came version 2"):
        save(raised_by(spark.table("b")), lake)
    assert (values(lake), answers) == (THEIRS, ["1"])


def test_save_of_what_nobody_can_judge(spark: SparkSession, lake: ty.Lake) -> None:
    df = raised_by(spark.table("b"))
    df.persist().count()
    try:
        with pytest.raises(PySparkException, match="it is not known of which version"):
            save(df, lake)
    finally:
        df.unpersist()
    with pytest.raises(PySparkException, match="expected_version is for an overwrite, not for an append"):
        df.write.format("tiltyard").mode("append").options(lake=lake.url, table="b", expected_version=1).save()
    meddle(lake)
    save(raised_by(loaded(spark, lake, version=1)), lake)
    assert values(lake) == OURS


# ---- through the catalog -----------------------------------------------------------------------------------------------------

DOORS: dict[str, Callable[[DataFrame, str], Any]] = {
    "overwrite": lambda df, name: df.writeTo(name).overwrite(f.lit(True)),
    "overwrite where": lambda df, name: df.writeTo(name).overwrite(f.col("id") < 9),
    "overwritePartitions": lambda df, name: df.writeTo(name).overwritePartitions(),
    "replace": lambda df, name: df.writeTo(name).replace(),
    "createOrReplace": lambda df, name: df.writeTo(name).createOrReplace(),
    "saveAsTable": lambda df, name: df.write.mode("overwrite").saveAsTable(name),
    "insertInto": lambda df, name: df.write.insertInto(name, overwrite=True),
    "replaceWhere": lambda df, name: df.write.mode("overwrite").option("replaceWhere", "id < 9").saveAsTable(name),
}


@pytest.mark.parametrize("door", DOORS)
def test_writes_by_name(spark: SparkSession, lake: ty.Lake, door: str) -> None:
    """A data frame by name is read again at the latest version; one of ``format("tiltyard")``, or cached, is refused."""
    lake.drop_table("b")
    spark.sql("CREATE TABLE lake.b (id BIGINT, v BIGINT) PARTITIONED BY (id)")
    lake.table("b").append(ROWS)
    by_name, by_options, view = (raised_by(df) for df in (spark.table("lake.b"), loaded(spark, lake), spark.table("b")))
    cached = spark.table("lake.b").selectExpr("id", "v + 1 AS v").persist()
    assert cached.count() == 3
    meddle(lake)
    try:
        for df in (by_options, cached):
            with pytest.raises(Exception, match="version 2"):
                DOORS[door](df, "lake.b")
            assert values(lake) == THEIRS
    finally:
        cached.unpersist()
    DOORS[door](by_name, "lake.b")
    assert values(lake) == BOTH
    DOORS[door](view, "lake.b")
    assert values(lake) == {1: 1002, 2: 22, 3: 32, 4: 42}


# ---- in transactions ---------------------------------------------------------------------------------------------------------

STATEMENTS = (
    "INSERT OVERWRITE lake.b SELECT id, v + 1 FROM lake.b",
    "INSERT OVERWRITE lake.b SELECT id, v + 1 AS v FROM b",
    "CREATE OR REPLACE TABLE lake.b AS SELECT id, v + 1 AS v FROM lake.b",
    "INSERT INTO lake.b REPLACE WHERE id < 9 SELECT id, v + 1 FROM lake.b",
)


@pytest.mark.parametrize("text", STATEMENTS)
def test_statements_of_a_transaction(spark: SparkSession, lake: ty.Lake, text: str) -> None:
    def run() -> None:
        with ty.spark.transaction(spark):
            spark.sql(text)
            meddle(lake)

    with pytest.raises(ty.ConflictError):
        run()
    assert values(lake) == THEIRS


def test_verbs_of_a_transaction(spark: SparkSession, lake: ty.Lake) -> None:
    runs: list[int] = []

    def work(tx: ty.LakeTransaction) -> None:
        table = tx.spark(spark).table("b")
        table.overwrite(raised_by(table.to_df()))
        runs.append(1)
        if len(runs) == 1:
            meddle(lake)

    def once() -> None:
        with lake.transaction() as tx:
            work(tx)

    with pytest.raises(ty.ConflictError, match="rows read at version 1, then came version 2"):
        once()
    assert values(lake) == THEIRS
    lake.run(work)
    assert values(lake) == BOTH


def test_upkeep_and_blind_overwrites_beside_a_transaction(spark: SparkSession, lake: ty.Lake) -> None:
    lake.table("b").append(pa.table({"id": [4], "v": [40]}))
    with lake.transaction() as tx:
        table = tx.spark(spark).table("b")
        table.overwrite(raised_by(table.to_df()))
        lake.table("b").compact()
    assert values(lake) == {**OURS, 4: 41}
    with lake.transaction() as tx:
        tx.spark(spark).table("b").overwrite(spark.createDataFrame(ROWS))
        meddle(lake)
    assert values(lake) == {1: 10, 2: 20, 3: 30}


def test_what_a_transaction_wrote_itself_is_what_it_reads(spark: SparkSession, lake: ty.Lake) -> None:
    before = loaded(spark, lake)
    meddle(lake)
    with lake.transaction() as tx:
        table = tx.spark(spark).table("b")
        with pytest.raises(ty.ExpectedVersionMismatch):
            table.overwrite(before)  # read before the transaction began
        table.append(spark.createDataFrame([(5, 50)], "id long, v long"))
        table.overwrite(raised_by(table.to_df()))
    assert values(lake) == {**BOTH, 5: 51}


def _merged(table: SparkTable, df: DataFrame) -> ty.CommitResult:
    return table.merge(df, on="id").when_matched_update_all().when_not_matched_insert_all().execute()


MERGES: dict[str, Callable[[SparkTable, DataFrame], ty.CommitResult]] = {
    "upsert": _merged,
    "join": lambda table, df: table.merge(df, on="id").when_matched_update({"v": "source.v"}, where="source.v > 0").execute(),
    "by source": lambda table, df: table.merge(df, on="id").when_matched_update_all().when_not_matched_by_source_delete().execute(),
}


@pytest.mark.parametrize("work", [Work(), EVERYWHERE], ids=["driver", "executors"])
@pytest.mark.parametrize("how", MERGES)
@pytest.mark.parametrize("read", READS)
def test_merges_of_what_was_read_before_others_committed(spark: SparkSession, lake: ty.Lake, read: str, how: str, work: Work) -> None:
    df = raised_by(READS[read](spark, lake))
    meddle(lake)
    with pytest.raises(ty.ExpectedVersionMismatch, match=r"rows read at version 1, then came version 2 \(Append.*Read the table again"):
        MERGES[how](lake.spark(spark, work).table("b"), df)
    assert values(lake) == THEIRS
    MERGES[how](lake.spark(spark, work).table("b"), raised_by(READS[read](spark, lake)))
    assert values(lake) == (BOTH if read != "in a subquery" else {1: 1001, 2: 21, 3: 31} | ({} if how == "by source" else {4: 40}))


@pytest.mark.parametrize("work", [Work(), EVERYWHERE], ids=["driver", "executors"])
@pytest.mark.parametrize("how", MERGES)
def test_merges_while_others_commit(spark: SparkSession, lake: ty.Lake, how: str, work: Work) -> None:
    def late(step: str) -> None:
        if step in ("committing", "merging on the driver"):
            meddle(lake)

    df = raised_by(loaded(spark, lake))
    with pytest.raises(ty.ExpectedVersionMismatch):
        MERGES[how](lake.spark(spark, replace(work, progress=late)).table("b"), df)
    assert values(lake) == THEIRS


def test_merges_go_over_upkeep_and_named_versions(spark: SparkSession, lake: ty.Lake) -> None:
    df = raised_by(loaded(spark, lake))
    lake.table("b").compact()
    lake.table("b").indices.create("id", "BTREE")
    assert _merged(lake.spark(spark).table("b"), df).version > 1
    assert values(lake) == OURS
    meddle(lake)
    _merged(lake.spark(spark).table("b"), lake.spark(spark).table("b").to_df(version=1))
    assert values(lake) == {1: 10, 2: 20, 3: 30, 4: 40}, "that version was asked for"
    with lake.transaction() as tx:
        table = tx.spark(spark).table("b")
        _merged(table, raised_by(table.to_df()))
        _merged(table, raised_by(table.to_df()))
    assert values(lake) == {1: 12, 2: 22, 3: 32, 4: 42}


def test_a_merge_of_other_rows_is_rebased_as_before(spark: SparkSession, lake: ty.Lake) -> None:
    df = spark.createDataFrame([(2, 5), (7, 70)], "id bigint, v bigint")
    _merged(lake.spark(spark, replace(EVERYWHERE, progress=_once(lambda: meddle(lake)))).table("b"), df)
    assert values(lake) == {**THEIRS, 2: 5, 7: 70}


def _once(work: Callable[[], None]) -> Callable[[str], None]:
    left = [work]

    def late(step: str) -> None:
        if step == "committing" and left:
            left.pop()()

    return late

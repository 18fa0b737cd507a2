"""Statements that Spark's parser reads and our tables run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tiltyard.spark import sql

ROWS = pa.table({"id": [1, 2, 3, 4], "v": [10, 20, None, 40], "s": ["a", "b", "c", None]})
MORE = pa.table({"id": [3, 4, 5], "v": [300, 400, 500], "s": ["C", "D", "E"]})


@pytest.fixture
def lake(tmp_path: Path) -> ty.Lake:
    made = ty.Lake.open(tmp_path / "lake", durability="os")
    made.create_table("a", ROWS, primary_key=["id"])
    made.create_table("ns.more", MORE)
    return made


def found(lake: ty.Lake, name: str = "a") -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in lake.table(name).to_arrow().to_pylist()), key=lambda row: row[0])


MERGES = {
    "MERGE INTO a USING ns.more AS m ON a.id = m.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *": [
        (1, 10, "a"), (2, 20, "b"), (3, 300, "C"), (4, 400, "D"), (5, 500, "E"),
    ],
    """MERGE INTO a AS t USING (SELECT id AS k, v + 1 AS w FROM ns.more WHERE id <> 4) q ON q.k = t.id
       WHEN MATCHED AND t.v IS NULL THEN UPDATE SET v = q.w, t.s = upper(t.s)
       WHEN NOT MATCHED THEN INSERT (id, v) VALUES (q.k, -q.w)
       WHEN NOT MATCHED BY SOURCE AND t.v > 15 THEN DELETE""": [(1, 10, "a"), (3, 301, "C"), (5, -501, None)],
    """MERGE INTO a USING ns.more ON a.id = more.id AND more.v > 300
       WHEN MATCHED THEN DELETE WHEN NOT MATCHED BY SOURCE THEN UPDATE SET s = concat(coalesce(s, ''), '!')""": [
        (1, 10, "a!"), (2, 20, "b!"), (3, None, "c!"),
    ],
    "MERGE INTO a USING (SELECT * FROM VALUES (1, 7), (9, 8) AS q(id, v)) AS q ON a.id = q.id WHEN MATCHED THEN UPDATE SET v = DEFAULT": [
        (1, None, "a"), (2, 20, "b"), (3, None, "c"), (4, 40, None),
    ],
}  # fmt: skip


@pytest.mark.parametrize("text", MERGES)
def test_merge(spark: SparkSession, lake: ty.Lake, text: str) -> None:
    [told] = sql(spark, text, lake).collect()
    assert found(lake) == MERGES[text]
    assert told.num_affected_rows == told.num_updated_rows + told.num_deleted_rows + told.num_inserted_rows > 0
    assert lake.table("a").version == told.version == 2
    assert not [one for one in spark.catalog.listTables() if one.name.startswith("_ty")]


CHANGES: dict[str, list[tuple[Any, ...]]] = {
    "DELETE FROM a WHERE v > 15 OR s = 'c'": [(1, 10, "a")],
    "delete from a": [],
    "DELETE FROM a AS q WHERE q.id IN (SELECT id FROM ns.more)": [(1, 10, "a"), (2, 20, "b")],
    "UPDATE a SET v = v + id, s = 'x' WHERE id < 3": [(1, 11, "x"), (2, 22, "x"), (3, None, "c"), (4, 40, None)],
    "UPDATE a AS q SET q.V = (SELECT max(v) FROM ns.more)": [(1, 500, "a"), (2, 500, "b"), (3, 500, "c"), (4, 500, None)],
    "INSERT INTO a SELECT id + 10, v, s FROM ns.more WHERE id = 5": [
        (1, 10, "a"),
        (2, 20, "b"),
        (3, None, "c"),
        (4, 40, None),
        (15, 500, "E"),
    ],
    "INSERT OVERWRITE a (s, id, v) VALUES ('z', 7, 70)": [(7, 70, "z")],
}


@pytest.mark.parametrize("text", CHANGES)
def test_changes(spark: SparkSession, lake: ty.Lake, text: str) -> None:
    sql(spark, text, lake)
    assert [tuple(sorted(row, key=str)) for row in found(lake)] == [tuple(sorted(row, key=str)) for row in CHANGES[text]]


def test_the_past(spark: SparkSession, lake: ty.Lake) -> None:
    lake.tags.create("first")
    sql(spark, "DELETE FROM a WHERE id > 1", lake)
    moment = lake.history()[0].at
    lake.table("a").append(pa.table({"id": [9]}))
    texts = {
        "SELECT count(*) FROM a": 2,
        "SELECT count(*) FROM a VERSION AS OF 1": 4,
        "SELECT count(*) FROM a VERSION AS OF 'first'": 4,
        f"SELECT count(*) FROM a TIMESTAMP AS OF '{moment.isoformat()}'": 1,  # noqa: S608 - nobody else's text
        "WITH a AS (SELECT 1 AS id) SELECT count(*) FROM a": 1,
        "SELECT count(a.v) + count(n.id) FROM a VERSION AS OF 1 LEFT JOIN a AS n ON n.id = a.id": 4,
        "WITH q AS (SELECT * FROM a VERSION AS OF 1) SELECT (SELECT count(*) FROM a) + count(*) FROM q JOIN ns.more ON more.id = q.id": 4,
        "SELECT count(*) FROM a TABLESAMPLE (100 PERCENT)": 2,
    }
    assert {text: sql(spark, text, lake).first()[0] for text in texts} == texts  # type: ignore[index]  # each has one row


def test_paths_and_transactions_and_optimize(spark: SparkSession, lake: ty.Lake, tmp_path: Path) -> None:
    made = ty.Table.create(
        str(tmp_path / "t t"), ROWS, primary_key=["id"], durability="os", options=ty.TableOptions(files=ty.FileLimits(rows=1))
    )
    name = f"tiltyard.`{tmp_path / 't t'}`"
    sql(spark, f"UPDATE {name} SET v = 0")  # noqa: S608 - nobody else's text
    for when, total in (("", 0), ("VERSION AS OF 1 AS old", 70)):
        assert sql(spark, f"SELECT sum(v) FROM {name} {when}").collect()[0][0] == total  # noqa: S608 - nobody else's text
    [told] = sql(spark, f"OPTIMIZE {name};").collect()
    assert told.fragments_before >= told.fragments_after == 1
    assert made.refresh().version == told.version
    [same] = sql(spark, f"OPTIMIZE {name} WHERE id > 0 ZORDER BY (v, ID)").collect()
    assert same.version == told.version, "they are in that order"
    with lake.transaction() as tx:
        sql(spark, "DELETE FROM a WHERE id = 1", tx)
        sql(spark, "UPDATE a SET v = 1", tx)
        assert sql(spark, "SELECT sum(v) FROM a", tx).first()[0] == 3  # type: ignore[index]  # one row
        with pytest.raises(ty.UnsupportedFeature, match="AS OF is not supported"):
            sql(spark, "SELECT * FROM a VERSION AS OF 1", tx)
        assert len(found(lake)) == 4
    assert len(found(lake)) == 3


def test_everything_else_is_sparks(spark: SparkSession, lake: ty.Lake) -> None:
    assert sql(spark, "SELECT 1 AS one").columns == ["one"]
    assert sql(spark, "SHOW TABLES", lake).count() >= 0
    spark.range(3).createOrReplaceTempView("mine")
    assert sql(spark, "SELECT count(*) FROM mine JOIN a USING (id)", lake).first()[0] == 2  # type: ignore[index]  # one row
    with pytest.raises(ty.UnsupportedFeature, match="Pass lake="):
        sql(spark, "DELETE FROM mine WHERE id = 1")
    spark.catalog.dropTempView("mine")
    assert sql(spark, "SELECT count(*) FROM `ns.more`", lake).collect()[0][0] == 3  # as its view is called


BAD = {
    "MERGE INTO a USIN ns.more ON true": (ty.InvalidInput, "position 18"),
    "SELEKT 1": (ty.InvalidInput, "Line 1, position 0"),
    "DELETE FROM a WHERE": (ty.InvalidInput, "missing after WHERE"),
    "DELETE FROM a WHERE nope = 1": (ty.InvalidInput, "nope"),
    "UPDATE a SET nope = 1": (ty.InvalidInput, "no column 'nope'"),
    "UPDATE a SET id = 1": (ty.InvalidInput, "primary key"),
    "UPDATE a SET s.x = 1": (ty.UnsupportedFeature, r"line 1, position 13"),
    "UPDATE a VERSION AS OF 1 SET v = 1": (ty.InvalidInput, "position 17"),
    "INSERT INTO a VALUES (1, 2)": (ty.InvalidInput, "2 values for 3 columns"),
    "MERGE INTO a USING ns.more AS m ON a.id = m.id": (ty.InvalidInput, "WHEN|clause|understood"),
    "MERGE INTO a USING (SELECT id FROM ns.more) AS m ON a.id = m.id WHEN MATCHED THEN UPDATE SET *": (ty.InvalidInput, "no column 'v'"),
    "MERGE INTO a USING ns.more AS m ON a.v < m.v WHEN MATCHED THEN UPDATE SET s = m.s": (ty.InvalidInput, "matches several"),
    "MERGE INTO a USING (SELECT * FROM ns.more UNION ALL SELECT * FROM ns.more) AS m ON a.id = m.id WHEN MATCHED THEN DELETE": (
        ty.KeyConflict, "id 3",
    ),
    "MERGE INTO a USING (SELECT 1 AS k) AS m ON a.id = m.k + 90 WHEN NOT MATCHED THEN INSERT (id) VALUES (m.k)": (ty.KeyConflict, "id 1"),
    "OPTIMIZE nope": (ty.NotFound, "nope"),
    "OPTIMIZE a WHERE nope = 1": (ty.InvalidInput, "nope"),
    "OPTIMIZE a ZORDER BY (nope)": (ty.InvalidInput, "no column 'nope'"),
    "OPTIMIZE a SOMEHOW": (ty.InvalidInput, "SOMEHOW"),
    "OPTIMIZE": (ty.InvalidInput, "name"),
    "SELECT * FROM a VERSION AS OF 99": (ty.NotFound, "99"),
    "": (ty.InvalidInput, "text"),
}  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_done_is_said_with_its_place(spark: SparkSession, lake: ty.Lake, text: str) -> None:
    kind, words = BAD[text]
    with pytest.raises(kind, match=words) as raised:
        sql(spark, text, lake)
    assert len(str(raised.value)) < 300
    assert (lake.table("a").version, len(found(lake))) == (1, 4)


class Client:
    """What tells a Connect session from others: where its class comes from."""

    __module__ = "pyspark.sql.connect.session"

    def sql(self, text: str) -> str:
        return f"passed on: {text}"


@pytest.mark.parametrize(
    "text", ["MERGE INTO a USING b ON a.id = b.id WHEN MATCHED THEN DELETE", " optimize a", "SELECT * FROM a VERSION AS OF 1"]
)
def test_a_connect_session_is_told_that_it_has_no_parser(text: str) -> None:
    client: Any = Client()
    with pytest.raises(ty.UnsupportedFeature, match="Connect"):
        sql(client, text)
    assert str(sql(client, "SELECT 1")) == "passed on: SELECT 1"

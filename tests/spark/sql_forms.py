"""The forms of SQL and of the DataFrame API that the catalog of a lake is asked for, and what becomes of each.

The tables before each: ``a`` with primary key ``id``, ``ns.more`` without one, ``st`` with a struct; the tag ``first`` is of that state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import tiltyard as ty

Row = tuple[Any, ...]
A: Final[tuple[Row, ...]] = ((1, 10, "a"), (2, 20, "b"), (3, None, "c"), (4, 40, None))
MORE: Final[tuple[Row, ...]] = ((3, 300, "C"), (4, 400, "D"), (5, 500, "E"))
ST: Final[tuple[Row, ...]] = ((1, {"x": 1, "y": 2}), (2, {"x": 3, "y": 4}))


@dataclass(frozen=True)
class Form:
    """One form.

    Attributes:
        text: as a user writes it.
        rows: what a query gives, or what the table holds afterwards.
        table: which table, where it is about one.
        refused: what the refusal says, where it is refused; nothing changes then.
        run: what does it, for a form of the DataFrame API.
    """

    text: str
    rows: tuple[Row, ...] | None = None
    table: str | None = None
    refused: str | None = None
    run: Callable[[SparkSession], Any] | None = None


NEW: Final = {
    "SELECT count(*) FROM lake.a@v1": "4.3", "spark.table('lake.a@v1').count()": "4.3", "COMMENT ON COLUMN lake.a.s IS 'words'": "4.3",
}  # fmt: skip
"""Forms that an older Spark cannot parse, and the first release that does."""


def query(text: str, *rows: Row, run: Callable[[SparkSession], Any] | None = None) -> Form:
    return Form(text, rows, run=run)


def change(text: str, table: str, *rows: Row, run: Callable[[SparkSession], Any] | None = None) -> Form:
    return Form(text, rows, table, run=run)


def refused(text: str, words: str, run: Callable[[SparkSession], Any] | None = None) -> Form:
    return Form(text, refused=words, run=run)


def _operations(text: str) -> Callable[[SparkSession], Any]:
    return lambda spark: spark.sql(text).select("version", "operation").collect()


def _nine(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT 9L AS id, 1L AS v, 'w' AS s")


READING: Final = (
    query("SELECT * FROM lake.a WHERE id < 3", A[0], A[1]),
    query("SELECT count(*), sum(v), min(s) FROM lake.a", (4, 70, "a")),
    query("SELECT a.id, m.v FROM lake.a JOIN lake.ns.more m ON a.id = m.id", (3, 300), (4, 400)),
    query("SELECT id FROM lake.a WHERE id NOT IN (SELECT id FROM lake.ns.more)", (1,), (2,)),
    query("SELECT p.x FROM lake.st WHERE p.y > 2", (3,)),
    query("WITH q AS (SELECT max(v) AS v FROM lake.ns.more) SELECT id FROM lake.ns.more JOIN q USING (v)", (5,)),
    query("SELECT count(*) FROM lake.a VERSION AS OF 1", (4,)),
    query("SELECT count(*) FROM lake.a VERSION AS OF 'first'", (4,)),
    query("SELECT count(*) FROM lake.a FOR SYSTEM_VERSION AS OF 1", (4,)),
    query("SELECT count(*) FROM lake.a TIMESTAMP AS OF current_timestamp()", (4,)),
    query("SELECT count(*) FROM lake.A", (4,)),
    query("SELECT count(*) FROM lake.a@v1", (4,)),
    query("spark.table('lake.a@v1').count()", (4,), run=lambda spark: [(spark.table("lake.a@v1").count(),)]),
    query("SELECT count(*) FROM lake.a WITH (filter = 'id = 2')", (1,)),
    query("SELECT id FROM lake.a LIMIT 1 OFFSET 3", (4,)),
    query("SELECT _rowaddr FROM lake.a WHERE id = 2", (1,)),
    query("SELECT count(*) FROM lake.a TABLESAMPLE (100 PERCENT)", (4,)),
    query("TABLE lake.ns.more", *MORE),
    query("SELECT id FROM lake.a EXCEPT SELECT id FROM lake.ns.more", (1,), (2,)),
    query("SELECT version, operation FROM lake.a.history", (1, "Overwrite")),
    query("SELECT id, tables FROM lake.a.snapshots", (1, "a, ns.more, st")),
    query("SELECT id, rows, files FROM lake.a.fragments", (0, 4, 1)),
    query("SELECT type, name FROM lake.a.refs", ("tag", "first")),
    query(
        "SELECT id, _change, _version FROM table_changes('lake.a', 1, 1) WHERE id < 3", (1, "insert", 1), (2, "insert", 1),
    ),
    query("SELECT count(*) FROM table_changes('lake.ns.more', 1)", (3,)),
    query("SELECT count(*) FROM table_changes('lake.a', 1) x JOIN table_changes('lake.ns.more', 1) y ON x.id = y.id", (2,)),
    query("spark.table('lake.a').count()", (4,), run=lambda spark: [(spark.table("lake.a").count(),)]),
    query(
        "spark.read.option('versionAsOf', 1).table('lake.a')",
        *A,
        run=lambda spark: spark.read.option("versionAsOf", 1).table("lake.a").collect(),
    ),
    query(
        "spark.read.option('filter', 'id = 2').table('lake.a')",
        A[1],
        run=lambda spark: spark.read.option("filter", "id = 2").table("lake.a").collect(),
    ),
    refused("SELECT * FROM table_changes('lake.a')", "a first version"),
    refused("SELECT * FROM table_changes('nowhere.a', 1)", "no catalog of a lake"),
    refused("SELECT * FROM lake.nope", "`lake`.`nope` cannot be found"),
    refused("SELECT * FROM lake.a VERSION AS OF 99", "no version 99"),
    refused("SELECT * FROM lake.a VERSION AS OF 'nope'", "nope"),
    refused("SELECT * FROM lake.a TIMESTAMP AS OF '2001-01-01'", "of that time"),
    refused("SELECT * FROM lake.a.nope", "cannot be found"),
    refused("SELECT count(*) FROM lake.a WITH (filtr = 'id = 2')", "no option 'filtr'.*Did you mean filter"),
    refused(
        "spark.read.option('readChangeFeed', True).table('lake.a').count()",
        "no option 'readchangefeed' for a batch read.*read_changes",
        run=lambda spark: spark.read.option("readChangeFeed", True).table("lake.a").count(),
    ),
    refused(
        "spark.read.option('startingVersion', 1).table('lake.a').count()",
        "no option 'startingversion' for a batch read",
        run=lambda spark: spark.read.option("startingVersion", 1).table("lake.a").count(),
    ),
    refused(
        "spark.read.option('filtr', 'id = 2').table('lake.a')",
        "no option 'filtr'.*Did you mean filter",
        run=lambda spark: spark.read.option("filtr", "id = 2").table("lake.a").collect(),
    ),
)  # fmt: skip

INSERTING: Final = (
    change("INSERT INTO lake.a VALUES (9, 90, 'z')", "a", *A, (9, 90, "z")),
    change("INSERT INTO lake.a (s, id) VALUES ('z', 9)", "a", *A, (9, None, "z")),
    change("INSERT INTO lake.a (id, v, s) VALUES (9, DEFAULT, 'z')", "a", *A, (9, None, "z")),
    change("INSERT INTO lake.a SELECT id + 10, v, s FROM lake.ns.more WHERE id = 5", "a", *A, (15, 500, "E")),
    change("INSERT INTO lake.a BY NAME SELECT 'z' AS s, 9 AS id", "a", *A, (9, None, "z")),
    change("INSERT INTO lake.a TABLE lake.a LIMIT 0", "a", *A),
    change("WITH q AS (SELECT 9L, 1L, 'w') INSERT INTO lake.a SELECT * FROM q", "a", *A, (9, 1, "w")),
    change("FROM lake.ns.more INSERT INTO lake.a SELECT id * 10, v, s WHERE id = 5", "a", *A, (50, 500, "E")),
    change("INSERT INTO lake.a WITH (message = 'nine') VALUES (9, 90, 'z')", "a", *A, (9, 90, "z")),
    change("INSERT INTO lake.st VALUES (3, named_struct('x', 5, 'y', 6))", "st", *ST, (3, {"x": 5, "y": 6})),
    change("INSERT OVERWRITE lake.ns.more VALUES (9, 9, 'z')", "ns.more", (9, 9, "z")),
    change("INSERT OVERWRITE lake.ns.more (id) VALUES (9)", "ns.more", (9, None, None)),
    change("INSERT OVERWRITE lake.ns.more BY NAME SELECT 'z' AS s, 9 AS id", "ns.more", (9, None, "z")),
    change("INSERT OVERWRITE lake.a SELECT * FROM lake.a WHERE id > 2", "a", A[2], A[3]),
    change("INSERT INTO lake.a REPLACE WHERE id < 3 SELECT 1L, 5L, 'r'", "a", (1, 5, "r"), A[2], A[3]),
    change("INSERT INTO lake.a REPLACE USING (id) SELECT 2L, 6L, 'q'", "a", A[0], (2, 6, "q"), A[2], A[3]),
    change(
        "INSERT INTO lake.ns.more REPLACE USING (ID, v) VALUES (3, 300, 'x'), (3, 300, 'y'), (4, 7, 'z'), (NULL, 500, 'n')",
        "ns.more",
        *MORE[1:],
        (3, 300, "x"),
        (3, 300, "y"),
        (4, 7, "z"),
        (None, 500, "n"),
    ),
    change("INSERT INTO lake.a BY NAME REPLACE USING (id) SELECT 'q' AS s, 4L AS id", "a", *A[:3], (4, None, "q")),
    change("INSERT INTO lake.a REPLACE USING (id) SELECT * FROM lake.ns.more WHERE id > 5", "a", *A),
    change("INSERT INTO lake.a REPLACE USING (id) SELECT id, v + 1, s FROM lake.a WHERE id < 3", "a", (1, 11, "a"), (2, 21, "b"), *A[2:]),
    change(
        "INSERT INTO lake.a AS t REPLACE ON t.id = s.id (SELECT 3L id, 5L v, 'r' s) AS s",
        "a",
        *A[:2],
        (3, 5, "r"),
        A[3],
    ),
    change(
        "WITH q AS (SELECT 9L AS k, 1L AS v, 'w' AS s) INSERT INTO lake.a REPLACE ON a.v < q2.k * 3 (SELECT * FROM q) AS q2",
        "a",
        *A[2:],
        (9, 1, "w"),
    ),
    change(
        "INSERT WITH SCHEMA EVOLUTION INTO lake.ns.more BY NAME SELECT 9L AS id, 1 AS extra",
        "ns.more",
        *((*row, None) for row in MORE),
        (9, None, None, 1),
    ),
    change(
        "df.write.insertInto('lake.ns.more')",
        "ns.more",
        *MORE,
        (9, 1, "w"),
        run=lambda s: s.sql("SELECT 9L, 1L, 'w'").write.insertInto("lake.ns.more"),
    ),
    change(
        "df.write.insertInto('lake.ns.more', overwrite=True)",
        "ns.more",
        (9, 1, "w"),
        run=lambda s: s.sql("SELECT 9L, 1L, 'w'").write.insertInto("lake.ns.more", overwrite=True),
    ),
    change(
        "df.writeTo('lake.ns.more').append()",
        "ns.more",
        *MORE,
        (9, None, "w"),
        run=lambda s: s.sql("SELECT 'w' AS s, 9L AS id, null AS v").writeTo("lake.ns.more").append(),
    ),
    change(
        "df.writeTo('lake.ns.more').overwrite(col('id') > 3)",
        "ns.more",
        MORE[0],
        (9, 1, "w"),
        run=lambda s: s.sql("SELECT 9L AS id, 1L AS v, 'w' AS s").writeTo("lake.ns.more").overwrite(f.col("id") > 3),
    ),
    change(
        "df.write.mode('append').saveAsTable('lake.ns.more')",
        "ns.more",
        *MORE,
        (9, 1, "w"),
        run=lambda s: s.sql("SELECT 9L AS id, 1L AS v, 'w' AS s").write.mode("append").saveAsTable("lake.ns.more"),
    ),
    refused("INSERT INTO lake.a VALUES (1, 5, 'dup')", r"KEY_CONFLICT\].*id 1"),
    refused("INSERT INTO lake.a VALUES (9, 5)", "not enough data columns"),
    refused("INSERT INTO lake.a (nope) VALUES (9)", "`nope` cannot be resolved"),
    refused("INSERT INTO lake.a VALUES ('x', 5, 's')", "CAST_INVALID_INPUT|cannot be cast|INCOMPATIBLE_DATA"),
    refused("INSERT INTO lake.a PARTITION (id = 3) SELECT 1, 'a'", "PARTITION clause"),
    refused("INSERT INTO lake.a REPLACE USING (nope) SELECT 2L, 6L, 'q'", "no column 'nope', which REPLACE USING names"),
    refused("INSERT INTO lake.a REPLACE ON a.nope = s.id (SELECT 3L id, 5L v, 'r' s) AS s", "`nope` cannot be resolved"),
    refused("INSERT INTO lake.a VERSION AS OF 1 VALUES (9, 1, 'x')", "syntax error|Syntax error"),
    refused("INSERT INTO lake.a.history VALUES (1)", "does not support|not enough|UNSUPPORTED"),
    refused("INSERT INTO lake.a WITH (mesage = 'x') VALUES (9, 1, 'x')", "no option 'mesage'.*Did you mean message"),
    change(
        "df.write.mode('append').option('mergeSchema', True).saveAsTable('lake.ns.more')",
        "ns.more",
        *MORE,
        (9, None, None),
        run=lambda s: (
            s.sql("SELECT 9L AS id, NULL AS v, NULL AS s").write.mode("append").option("mergeSchema", True).saveAsTable("lake.ns.more")
        ),
    ),
    change(
        "df.write.mode('overwrite').option('replaceWhere', 'id > 3').saveAsTable('lake.ns.more')",
        "ns.more",
        MORE[0],
        (9, 1, "w"),
        run=lambda s: _nine(s).write.mode("overwrite").option("replaceWhere", "id > 3").saveAsTable("lake.ns.more"),
    ),
    change(
        "df.write.option('replaceWhere', 'id > 3').insertInto('lake.ns.more', overwrite=True)",
        "ns.more",
        MORE[0],
        (9, 1, "w"),
        run=lambda s: _nine(s).write.option("replaceWhere", "id > 3").insertInto("lake.ns.more", overwrite=True),
    ),
    change(
        "df.write.mode('overwrite').option('overwriteSchema', True).saveAsTable('lake.ns.more')",
        "ns.more",
        (0,),
        run=lambda s: s.range(1).write.mode("overwrite").option("overwriteSchema", True).saveAsTable("lake.ns.more"),
    ),
    refused(
        "df.write.mode('overwrite').option('replaceWhere', 'id < 3').saveAsTable('lake.ns.more')",
        "does not fulfil replaceWhere",
        run=lambda s: _nine(s).write.mode("overwrite").option("replaceWhere", "id < 3").saveAsTable("lake.ns.more"),
    ),
    refused(
        "df.write.mode('overwrite').option('overwriteSchema', False).saveAsTable('lake.ns.more')",
        "replaces the columns too.*insertInto",
        run=lambda s: _nine(s).write.mode("overwrite").option("overwriteSchema", False).saveAsTable("lake.ns.more"),
    ),
    refused(
        "df.write.mode('append').option('replaceWhere', 'id > 3').saveAsTable('lake.ns.more')",
        "'replacewhere'.*overwrite",
        run=lambda s: _nine(s).write.mode("append").option("replaceWhere", "id > 3").saveAsTable("lake.ns.more"),
    ),
    refused(
        "df.write.mode('append').saveAsTable('lake.a') with a column too many",
        "TOO_MANY_DATA_COLUMNS|EXTRA_COLUMNS",
        run=lambda s: s.sql("SELECT 9L AS id, 1L AS v, 'w' AS s, 1 AS extra").write.mode("append").saveAsTable("lake.a"),
    ),
    refused(
        "df.writeTo('lake.a').overwritePartitions()",
        r"without PARTITIONED BY.*overwrite\(condition\)",
        run=lambda s: s.table("lake.a").writeTo("lake.a").overwritePartitions(),
    ),
)

CHANGING: Final = (
    change("DELETE FROM lake.a WHERE v > 15 OR s = 'c'", "a", A[0]),
    change("DELETE FROM lake.a", "a"),
    change("DELETE FROM lake.a AS q WHERE q.id IN (SELECT id FROM lake.ns.more)", "a", A[0], A[1]),
    change("DELETE FROM lake.a WHERE EXISTS (SELECT 1 FROM lake.ns.more m WHERE m.id = a.id)", "a", A[0], A[1]),
    change("DELETE FROM lake.a WHERE id = 77", "a", *A),
    change("TRUNCATE TABLE lake.a", "a"),
    change("UPDATE lake.a SET v = 0 WHERE id = 1 AND id = 2", "a", *A),
    change(
        "MERGE INTO lake.a USING (SELECT 1L AS id WHERE false) q ON a.id = q.id WHEN MATCHED THEN UPDATE SET v = 0 "
        "WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id)",
        "a", *A,
    ),
    change(
        "MERGE WITH SCHEMA EVOLUTION INTO lake.st t USING (SELECT 1L AS id, named_struct('x', 5, 'y', 6, 'z', 7) AS p) q "
        "ON t.id = q.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        "st", (1, {"x": 5, "y": 6, "z": 7}), (2, {"x": 3, "y": 4, "z": None}),
    ),
    change("UPDATE lake.a SET v = v + id, s = 'x' WHERE id < 3", "a", (1, 11, "x"), (2, 22, "x"), A[2], A[3]),
    change("UPDATE lake.a AS q SET q.V = 0", "a", (1, 0, "a"), (2, 0, "b"), (3, 0, "c"), (4, 0, None)),
    change("UPDATE lake.a SET v = DEFAULT WHERE id = 1", "a", (1, None, "a"), *A[1:]),
    change(
        "UPDATE lake.a SET v = (SELECT max(v) FROM lake.ns.more m WHERE m.id = a.id) WHERE id > 2",
        "a", *A[:2], (3, 300, "c"), (4, 400, None),
    ),
    change("UPDATE lake.st SET p.x = 9 WHERE id = 1", "st", (1, {"x": 9, "y": 2}), ST[1]),
    change(
        "MERGE INTO lake.a USING lake.ns.more AS m ON a.id = m.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        "a", A[0], A[1], *MORE,
    ),
    change(
        "MERGE INTO lake.a t USING (SELECT ID, V, S FROM lake.ns.more) m ON t.id = m.ID WHEN MATCHED THEN UPDATE SET *",
        "a", A[0], A[1], MORE[0], MORE[1],
    ),
    change(
        "MERGE INTO lake.a t USING (SELECT id AS k, v + 1 AS w FROM lake.ns.more WHERE id <> 4) q ON q.k = t.id "
        "WHEN MATCHED AND t.v IS NULL THEN UPDATE SET v = q.w, t.s = upper(t.s) "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (q.k, -q.w) WHEN NOT MATCHED BY SOURCE AND t.v > 15 THEN DELETE",
        "a", A[0], (3, 301, "C"), (5, -501, None),
    ),
    change(
        "MERGE INTO lake.a USING lake.ns.more ON a.id = more.id AND more.v > 300 WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET s = concat(coalesce(s, ''), '!')",
        "a", (1, 10, "a!"), (2, 20, "b!"), (3, None, "c!"),
    ),
    change(
        "WITH q AS (SELECT 1L AS id) MERGE INTO lake.a USING q ON a.id = q.id WHEN MATCHED THEN DELETE", "a", *A[1:],
    ),
    change(
        "MERGE INTO lake.a USING (VALUES (1L, 7L), (9L, 8L) AS q(id, v)) ON a.id = q.id "
        "WHEN NOT MATCHED AND v > 7 THEN INSERT (id) VALUES (q.id)",
        "a", *A, (9, None, None),
    ),
    change(
        "MERGE INTO lake.a USING (SELECT CAST(NULL AS BIGINT) AS id) q ON a.id = q.id WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED BY SOURCE AND id = 4 THEN UPDATE SET s = 'left'",
        "a", *A[:3], (4, 40, "left"),
    ),
    change(
        "MERGE INTO lake.ns.more t USING (VALUES (9L, 1L), (9L, 2L) AS q(id, v)) ON t.id = q.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, v) VALUES (q.id, q.v)",
        "ns.more", *MORE, (9, 1, None), (9, 2, None),
    ),
    change(
        "MERGE INTO lake.a t USING lake.a s ON t.id = s.id AND s.id = 1 WHEN MATCHED THEN UPDATE SET v = s.v * 2",
        "a", (1, 20, "a"), *A[1:],
    ),
    change(
        "MERGE INTO lake.st t USING (SELECT 1L AS id) q ON t.id = q.id WHEN MATCHED THEN UPDATE SET t.p.y = 0",
        "st", (1, {"x": 1, "y": 0}), ST[1],
    ),
    change(
        "MERGE WITH SCHEMA EVOLUTION INTO lake.a t USING (SELECT 1L id, 5L v, 's' s, 'new' extra) u ON t.id = u.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        "a", (1, 5, "s", "new"), *((*row, None) for row in A[1:]),
    ),
    change(
        "df.mergeInto('lake.a', ...).whenMatched().updateAll().whenNotMatched().insertAll().merge()",
        "a", A[0], A[1], *MORE,
        run=lambda s: (
            s.table("lake.ns.more").alias("m").mergeInto("lake.a", f.expr("a.id = m.id"))
            .whenMatched().updateAll().whenNotMatched().insertAll().merge()
        ),
    ),
    refused("UPDATE lake.a SET id = 5", "part of the primary key"),
    refused("UPDATE lake.a SET nope = 5", "`nope` cannot be resolved"),
    refused("DELETE FROM lake.a WHERE nope = 5", "`nope` cannot be resolved"),
    refused("UPDATE lake.a VERSION AS OF 1 SET v = 1", "yntax error"),
    refused("DELETE FROM lake.a.history WHERE version = 1", "does not support|UNSUPPORTED"),
    refused("UPDATE lake.a SET v = id div 0 WHERE id = 1", "DIVIDE_BY_ZERO"),
    refused("MERGE INTO lake.a USING lake.ns.more m ON a.v < m.v WHEN MATCHED THEN UPDATE SET s = m.s", "MERGE_CARDINALITY_VIOLATION"),
    refused(
        "MERGE INTO lake.a USING (SELECT 1 AS k) AS m ON a.id = m.k + 90 WHEN NOT MATCHED THEN INSERT (id) VALUES (m.k)",
        r"KEY_CONFLICT\].*id 1",
    ),
    refused(
        "MERGE INTO lake.a USING (VALUES (9L), (9L) AS q(id)) ON a.id = q.id WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id)",
        r"KEY_CONFLICT\].*id 9",
    ),
    refused("MERGE INTO lake.a USING (SELECT 1L AS id) m ON a.id = m.id WHEN MATCHED THEN UPDATE SET *", "`v` cannot be resolved"),
    refused("MERGE INTO lake.a USING lake.ns.more m ON a.id = m.id WHEN MATCHED THEN UPDATE SET id = m.id + 1", "primary key"),
)  # fmt: skip

MAKING: Final = (
    change("CREATE TABLE lake.n (id BIGINT NOT NULL, x STRING COMMENT 'words')", "n"),
    change("CREATE TABLE lake.n (id BIGINT) USING tiltyard TBLPROPERTIES ('primary_key' = 'id', 'mine' = '1')", "n"),
    change("CREATE TABLE lake.n (id INT, e ARRAY<FLOAT>) TBLPROPERTIES ('vectors' = 'e:2')", "n"),
    change("CREATE TABLE IF NOT EXISTS lake.a (other INT)", "a", *A),
    change("CREATE TABLE lake.n AS SELECT id, s FROM lake.a WHERE id < 3", "n", (1, "a"), (2, "b")),
    change("CREATE TABLE IF NOT EXISTS lake.a AS SELECT 1 AS one", "a", *A),
    change("CREATE TABLE lake.deep.er.n AS SELECT 1 AS one", "deep.er.n", (1,)),
    change("CREATE TABLE lake.n LIKE lake.a", "n"),
    change("CREATE OR REPLACE TABLE lake.a AS SELECT 'n' AS name", "a", ("n",)),
    change("CREATE OR REPLACE TABLE lake.n AS SELECT 'n' AS name", "n", ("n",)),
    change("CREATE OR REPLACE TABLE lake.a (x INT)", "a"),
    change("REPLACE TABLE lake.a AS SELECT id FROM lake.a WHERE id = 1", "a", (1,)),
    change("ALTER TABLE lake.a ADD COLUMNS (n INT COMMENT 'hi', m DOUBLE)", "a", *((*row, None, None) for row in A)),
    change("ALTER TABLE lake.st ADD COLUMN p.z INT", "st", (1, {"x": 1, "y": 2, "z": None}), (2, {"x": 3, "y": 4, "z": None})),
    change("ALTER TABLE lake.a DROP COLUMN s", "a", *(row[:2] for row in A)),
    change("ALTER TABLE lake.a DROP COLUMNS IF EXISTS (s, nope)", "a", *(row[:2] for row in A)),
    change("ALTER TABLE lake.a RENAME COLUMN s TO t", "a", *A),
    change("ALTER TABLE lake.st ALTER COLUMN p.x TYPE BIGINT", "st", *ST),
    change("ALTER TABLE lake.a ALTER COLUMN s COMMENT 'words'", "a", *A),
    change("ALTER TABLE lake.a SET TBLPROPERTIES ('x' = 'y')", "a", *A),
    change("ALTER TABLE lake.a UNSET TBLPROPERTIES ('x')", "a", *A),
    change("COMMENT ON TABLE lake.a IS 'mine'", "a", *A),
    change("ALTER TABLE lake.a RENAME TO b", "b", *A),
    change("ALTER TABLE lake.ns.more RENAME TO less", "ns.less", *MORE),
    change("DROP TABLE lake.ns.more", "a", *A),
    change("DROP TABLE IF EXISTS lake.nope", "a", *A),
    change("CREATE NAMESPACE lake.fresh", "a", *A),
    change("DROP NAMESPACE lake.ns CASCADE", "a", *A),
    change("df.write.saveAsTable('lake.n')", "n", (0,), (1,), run=lambda s: s.range(2).write.saveAsTable("lake.n")),
    change(
        "df.write.mode('overwrite').saveAsTable('lake.a')", "a", (0,), (1,),
        run=lambda s: s.range(2).write.mode("overwrite").saveAsTable("lake.a"),
    ),
    change("df.write.mode('ignore').saveAsTable('lake.a')", "a", *A, run=lambda s: s.range(2).write.mode("ignore").saveAsTable("lake.a")),
    change("df.writeTo('lake.n').create()", "n", (0,), (1,), run=lambda s: s.range(2).writeTo("lake.n").create()),
    change("df.writeTo('lake.a').replace()", "a", (0,), (1,), run=lambda s: s.range(2).writeTo("lake.a").replace()),
    change(
        "df.writeTo('lake.n').tableProperty('primary_key', 'id').createOrReplace()", "n", (0,), (1,),
        run=lambda s: s.range(2).writeTo("lake.n").tableProperty("primary_key", "id").createOrReplace(),
    ),
    refused("CREATE TABLE lake.a (id INT)", "already exists"),
    change("CREATE TABLE lake.n (id INT) PARTITIONED BY (id)", "n"),
    change("CREATE TABLE lake.n (id INT) CLUSTER BY (id)", "n"),
    change("ALTER TABLE lake.a CLUSTER BY (v)", "a", *A),
    change(
        "df.write.partitionBy('id').saveAsTable('lake.n')", "n", (0,), (1,),
        run=lambda s: s.range(2).write.partitionBy("id").saveAsTable("lake.n"),
    ),
    change(
        "df.write.clusterBy('id').saveAsTable('lake.n')", "n", (0,), (1,),
        run=lambda s: s.range(2).write.clusterBy("id").saveAsTable("lake.n"),
    ),
    change("CREATE TABLE lake.n CLUSTER BY (id) AS SELECT 1 AS id", "n", (1,)),
    change("COMMENT ON COLUMN lake.a.s IS 'words'", "a", *A),
    change("ALTER TABLE lake.st DROP COLUMN p.x", "st", (1, {"y": 2}), (2, {"y": 4})),
    change("ALTER TABLE lake.st RENAME COLUMN p.x TO z", "st", (1, {"z": 1, "y": 2}), (2, {"z": 3, "y": 4})),
    refused("ALTER TABLE lake.ns.more ALTER COLUMN s FIRST", "UpdateColumnPosition"),
    refused("ALTER TABLE lake.ns.more SET LOCATION '/nowhere'", "'location' is decided when the table is made"),
    refused("COMMENT ON NAMESPACE lake.ns IS 'x'", "namespace of a lake has no properties"),
    refused("CREATE TABLE lake.n (id BIGINT GENERATED ALWAYS AS IDENTITY)", "identity column"),
    refused("CREATE TABLE lake.n (id INT, x INT GENERATED ALWAYS AS (id + 1))", "generated columns"),
    refused("DROP TABLE lake.a PURGE", "PURGE"),
    refused("CREATE TABLE lake.n (id INT) PARTITIONED BY (bucket(4, id))", "PARTITIONED BY.*plain columns"),
    refused("CREATE TABLE lake.n (id INT) USING parquet", "USING parquet.*USING tiltyard"),
    refused("CREATE TABLE lake.n USING parquet AS SELECT 1 AS id", "USING parquet.*USING tiltyard"),
    refused("CREATE TABLE lake.n (id INT) LOCATION '/nowhere'", "LOCATION"),
    refused("CREATE TABLE lake.n (id INT DEFAULT 3)", "default value"),
    refused("CREATE TABLE lake.n (id INT PRIMARY KEY)", "constraint"),
    refused("CREATE TABLE lake.n (id INT) OPTIONS (x = 1)", "OPTIONS"),
    refused("CREATE TABLE lake.n (v INTERVAL YEAR)", "no type for column v"),
    refused("REPLACE TABLE lake.nope AS SELECT 1 AS one", "no table 'nope'"),
    refused("ALTER TABLE lake.a ADD COLUMN f INT FIRST", "FIRST or AFTER"),
    refused("ALTER TABLE lake.a ADD COLUMN f INT DEFAULT 5", "DEFAULT|default"),
    refused("ALTER TABLE lake.a ADD COLUMN f INT NOT NULL", "NOT NULL"),
    refused("ALTER TABLE lake.a ALTER COLUMN s SET NOT NULL", "non-nullable"),
    refused("ALTER TABLE lake.a DROP COLUMN id", "primary key"),
    refused("ALTER TABLE lake.a SET TBLPROPERTIES ('primary_key' = 'v')", "decided when the table is made"),
    refused("ALTER TABLE lake.a ADD CONSTRAINT c CHECK (id > 0)", "onstraint"),
    refused("DROP TABLE lake.nope", "cannot be found"),
    refused("DROP NAMESPACE lake.ns", "CASCADE"),
    refused("CREATE VIEW lake.w AS SELECT 1", "views"),
    refused("df.write.saveAsTable('lake.a')", "already", run=lambda s: s.range(2).write.saveAsTable("lake.a")),
)  # fmt: skip

TELLING: Final = (
    query("SHOW TABLES IN lake", ("", "a", False), ("", "st", False)),
    query("SHOW TABLES IN lake.ns", ("ns", "more", False)),
    query("SHOW TABLES IN lake LIKE 's*'", ("", "st", False)),
    query("SHOW NAMESPACES IN lake", ("ns",)),
    query("SHOW COLUMNS IN lake.a", ("id",), ("s",), ("v",)),
    query("DESCRIBE lake.a", ("id", "bigint", None), ("v", "bigint", None), ("s", "string", None)),
    query("DESCRIBE lake.a v", ("col_name", "v"), ("comment", "NULL"), ("data_type", "bigint")),
    query("SHOW TBLPROPERTIES lake.a", ("primary_key", "id")),
    query("SHOW TBLPROPERTIES lake.a ('primary_key')", ("primary_key", "id")),
    query("SHOW PROCEDURES IN lake.system", *(("lake", ["system"], "system", name) for name in (
        "analyze", "branch", "cherry_pick", "cleanup", "clone_lake", "compact", "create_index", "diff", "fast_forward", "merge_branch",
        "protect_branch", "rebase_branch", "report_check", "restore", "restore_snapshot", "revert", "rollback", "tag", "unprotect_branch",
        "vacuum",
    ))),
    query(
        "spark.catalog.listTables('lake')", ("a",), ("st",),
        run=lambda s: [(table.name,) for table in s.catalog.listTables("lake")],
    ),
    query("EXPLAIN OPTIMIZE lake.a", ("== Physical Plan ==\nCall lake.system.compact(a, null, null, null, null)\n\n",)),
    query("EXPLAIN INSERT INTO lake.a REPLACE USING (id) SELECT 2L, 6L, 'q'", ('== Physical Plan ==\nTiltyard AppendData ["a"]\n\n',)),
    query("EXPLAIN UPDATE lake.a SET v = 1", ('== Physical Plan ==\nTiltyard WriteDelta ["a"]\n\n',)),
    query("spark.catalog.tableExists('lake.a')", (True,), run=lambda s: [(s.catalog.tableExists("lake.a"),)]),
    query("CALL lake.system.compact(table => 'a')", (1, 1, 1)),
    query("CALL lake.system.compact('ns.more', 1000)", (1, 1, 1)),
    query("CALL lake.system.tag('second')", ("second", 1)),
    query("CALL lake.system.branch(name => 'b', snapshot => 1)", ("b", 1)),
    change("CALL lake.system.restore(table => 'a', version => 1)", "a", *A),
    change("CALL lake.system.create_index(table => 'a', column => 'v')", "a", *A),
    query("OPTIMIZE lake.a", (1, 1, 1)),
    query("optimize `lake`.`ns`.`more`;", (1, 1, 1)),
    change("RESTORE TABLE lake.a TO VERSION AS OF 1", "a", *A),
    query("DESCRIBE HISTORY lake.a", (1, "Overwrite"), run=_operations("DESCRIBE HISTORY lake.a")),
    query("DESC HISTORY lake.a LIMIT 1", (1, "Overwrite"), run=_operations("DESC HISTORY lake.a LIMIT 1")),
    query("ANALYZE TABLE lake.a COMPUTE STATISTICS", (1, 4, 1, 1, 3)),
    query("ANALYZE TABLE lake.a COMPUTE STATISTICS NOSCAN", (1, 4, 1, 0, 3)),
    query("ANALYZE TABLE lake.a COMPUTE STATISTICS FOR COLUMNS V, id", (1, 4, 1, 1, 2)),
    query("ANALYZE TABLE lake.a COMPUTE STATISTICS FOR ALL COLUMNS", (1, 4, 1, 1, 3)),
    query("CALL lake.system.analyze(table => 'a', columns => 'id, s')", (1, 4, 1, 1, 2)),
    refused("ANALYZE TABLE lake.a PARTITION (id = 1) COMPUTE STATISTICS", r"ANALYZE TABLE \.\.\. PARTITION.*Leave PARTITION out"),
    refused("ANALYZE TABLE lake.a COMPUTE STATISTICS FOR COLUMNS nope", "Column 'nope' cannot be analyzed: there is no such column"),
    query("OPTIMIZE lake.a WHERE id = 1", (1, 1, 1)),
    query("OPTIMIZE lake.a WHERE s = \"it's\" AND id < 3L", (1, 1, 1)),
    query("OPTIMIZE lake.a ZORDER BY (id)", (1, 1, 1)),
    query("OPTIMIZE lake.a ZORDER BY (V, id)", (1, 1, 3)),
    query(
        "OPTIMIZE lake.a ZORDER BY (v)", *A,
        run=lambda s: (s.sql("OPTIMIZE lake.a ZORDER BY (v)").collect(), s.sql("SELECT * FROM lake.a").collect())[1],
    ),
    change("OPTIMIZE lake.ns.more WHERE id > 3 ZORDER BY s, `v`", "ns.more", *MORE),
    query("CALL lake.system.compact(table => 'a', where => 'id > 1', cluster_by => 'v')", (1, 1, 3)),
    query("EXPLAIN OPTIMIZE lake.a WHERE s = 'x' ZORDER BY (v)", (
        "== Physical Plan ==\nCall lake.system.compact(a, null, s = 'x', `v`, null)\n\n",
    )),
    refused("OPTIMIZE lake.a FULL", "FULL.*CLUSTER BY.*has none.*ZORDER BY"),
    refused("OPTIMIZE lake.a FULL ZORDER BY (v)", "FULL.*ZORDER BY names others"),
    refused("OPTIMIZE lake.a SOMEHOW", "SOMEHOW"),
    refused("OPTIMIZE lake.a WHERE nope = 1", "nope"),
    refused("OPTIMIZE lake.a WHERE", "WHERE needs a condition"),
    refused("OPTIMIZE lake.a ZORDER BY (nope)", "no column 'nope'"),
    refused("OPTIMIZE lake.st ZORDER BY (p)", "cannot be sorted by 'p'"),
    refused("OPTIMIZE lake.a ZORDER BY", "ZORDER BY needs names of columns"),
    change("VACUUM lake.a", "a", *A),
    query("VACUUM lake.a DRY RUN", ("a", 0, 0, 0, "[]")),
    query("VACUUM lake.a RETAIN 200 HOURS DRY RUN", ("a", 0, 0, 0, "[]")),
    refused("VACUUM lake.a RETAIN 24 HOURS", r"VACUUM keeps 168 hours.*RETAIN says 24.*system\.cleanup\(older_than_hours => 24\)"),
    refused("VACUUM lake.nope", "nope"),
    refused("VACUUM lake.a LITE", "VACUUM ... LITE"),
    refused("VACUUM lake.a RETAIN 1 WEEK", "RETAIN needs a whole number of HOURS"),
    change("CALL lake.system.cleanup(older_than_hours => 24, dry_run => true)", "a", *A),
    refused("RESTORE lake.a TO VERSION AS OF 99", "99"),
    refused("RESTORE lake.a", "TO VERSION AS OF"),
    change("CALL lake.system.revert(snapshot => 1, dry_run => true)", "a", *A),
    change("CALL lake.system.restore_snapshot(1)", "a", *A),
    query("CALL lake.system.diff(before => 'main@1', after => 'main')", (0, 0, 0, 0, "[]")),
    refused("CALL lake.system.diff('main', 'nope')", "nope"),
    refused("CALL lake.system.merge_branch('nope')", "no branch 'nope'"),
    refused("CALL lake.system.rebase_branch('main')", "cannot be rebased"),
    refused("CALL lake.system.cherry_pick(source => 'nope', snapshot => 1)", "no branch 'nope'"),
    refused("CALL lake.system.protect_branch('main')", "rule"),
    refused("CALL lake.system.nope()", "nope"),
    refused("CALL lake.system.restore('a')", "version or tag"),
    refused("CALL lake.system.compact('nope')", "no table 'nope'"),
    refused("CALL lake.system.fast_forward('nope')", "nope"),
)  # fmt: skip


def made_lake(place: Path, *, sharded: bool = False) -> ty.Lake:
    """A lake with the tables that all forms begin with; ``sharded`` where ``a`` and ``ns.more`` are, by their ids."""
    made = ty.Lake.open(place, durability="os")
    shards: dict[str, Any] = {"primary_key": ["id"], "shard_by": "id", "shards": 3} if sharded else {}
    with made.transaction() as tx:
        for name, rows, key in (("a", A, ["id"]), ("ns.more", MORE, None)):
            ids, values, texts = (list(column) for column in zip(*rows, strict=True))
            tx.create_table(name, pa.table({"id": pa.array(ids), "v": pa.array(values), "s": texts}), **({"primary_key": key} | shards))
        members = pa.struct([("x", pa.int32()), ("y", pa.int32())])
        tx.create_table("st", pa.table({"id": pa.array([1, 2]), "p": pa.array([row[1] for row in ST], members)}))
    made.tags.create("first")
    return made


def run(session: SparkSession, form: Form) -> Any:
    """What the form gives."""
    return form.run(session) if form.run is not None else session.sql(form.text).collect()


def plain(rows: Any) -> list[str]:
    """Rows in an order, so that they can be compared."""
    return sorted(str(tuple(row)) for row in rows)


FORMS: Final = (*READING, *INSERTING, *CHANGING, *MAKING, *TELLING)

_OF_SHARDS: Final = {
    form.text: form
    for form in (
        refused("SELECT count(*) FROM lake.a VERSION AS OF 1", "snapshots of the lake.*TIMESTAMP AS OF"),
        refused("SELECT count(*) FROM lake.a FOR SYSTEM_VERSION AS OF 1", "snapshots of the lake.*TIMESTAMP AS OF"),
        refused("SELECT count(*) FROM lake.a@v1", "snapshots of the lake.*TIMESTAMP AS OF"),
        refused("SELECT version, operation FROM lake.a.history", r"no history.*lake\.history"),
        refused("SELECT id, rows, files FROM lake.a.fragments", "no layout.*shard"),
        refused("SELECT count(*) FROM table_changes('lake.ns.more', 1)", "no changes.*each shard"),
        query("SELECT count(DISTINCT _shard) FROM lake.a", (2,)),
        refused(
            "INSERT INTO lake.ns.more REPLACE USING (ID, v) VALUES (3, 300, 'x'), (3, 300, 'y'), (4, 7, 'z'), (NULL, 500, 'n')",
            "NOT_NULL_ASSERT_VIOLATION|null",
        ),
        refused(
            "MERGE INTO lake.ns.more t USING (VALUES (9L, 1L), (9L, 2L) AS q(id, v)) ON t.id = q.id "
            "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, v) VALUES (q.id, q.v)",
            r"KEY_CONFLICT\].*id 9",
        ),
        refused("UPDATE lake.a SET id = 5", "id says which shard a row is in and cannot be updated.*Delete the rows"),
        refused("MERGE INTO lake.a USING lake.ns.more m ON a.id = m.id WHEN MATCHED THEN UPDATE SET id = m.id + 1", "id says which shard"),
        refused("CREATE OR REPLACE TABLE lake.a AS SELECT 'n' AS name", "sharded by id by one without id in its key.*Select id"),
        change("CREATE OR REPLACE TABLE lake.a AS SELECT 5L AS id, 'n' AS name", "a", (5, "n")),
        refused("CREATE OR REPLACE TABLE lake.a (x INT)", "sharded by id by one without id in its key.*drop the table"),
        refused("ALTER TABLE lake.a DROP COLUMN id", "id says which shard a row is in and cannot be dropped"),
    )
}
"""What is otherwise where ``a`` and ``ns.more`` are sharded by their ids, and what there is only then."""
_AS_PLAIN: Final = (*INSERTING, *CHANGING, *MAKING)
SHARDED: Final = (
    *_OF_SHARDS.values(),
    *(form for form in _AS_PLAIN if form.text not in _OF_SHARDS and ("lake.a" in form.text or "lake.ns.more" in form.text)),
)
"""The forms that the tests run on sharded tables."""

_TITLES: Final = {
    "Reading": READING,
    "Inserting": INSERTING,
    "Deleting, updating, merging": CHANGING,
    "Tables, columns, namespaces": MAKING,
    "Showing and calling": TELLING,
}
_BEGIN: Final = """# SQL forms on Spark

What the [catalog of a lake](../guides/spark-catalog.md) does with each form of SQL and of the DataFrame API, in classic sessions of Spark
4.3 and 4.2, and in Connect sessions of 4.3. Each line is a test (`tests/spark/sql_forms.py`): a form that works gives the right result in
one transaction; one that is refused changes nothing, and the message names the clause (Spark's parser does where only 4.2 refuses it).
`make test` runs some of the lines, `make prove-tests` all, also in Connect sessions (`tests/spark/test_connect.py`), and
`make spark-versions` those of 4.2. A Connect client has the catalog of settings that its server was started with, or that it sets itself if
the server has the jar.
On a server without it, all forms are refused by Spark, which does not know the name.
"""

_SHARDED_BEGIN: Final = """## Sharded tables

Where `a` and `ns.more` are [sharded](../guides/sharded.md) by `id`, the forms above that insert into them, change, replace or alter
them do the same, each in one transaction over the shards that it concerns, but for these:
"""


def page() -> str:
    """The page of all forms, as the documentation has it."""
    parts = [_BEGIN]
    for title, forms in _TITLES.items():
        lines = [f"| `{form.text}` | {' | '.join(_verdicts(form))} |" for form in forms]
        parts.append("\n".join([f"## {title}", "", "| form | 4.3 | 4.2 | Connect |", "|---|---|---|---|", *lines, ""]))
    lines = [f"| `{form.text}` | {'works' if form.refused is None else 'refused'} |" for form in _OF_SHARDS.values()]
    parts.append("\n".join([_SHARDED_BEGIN, "| form | verdict |", "|---|---|", *lines, ""]))
    return "\n".join(parts)


def _verdicts(form: Form) -> tuple[str, str, str]:
    """In classic sessions of Spark 4.3 and of 4.2, and in Connect sessions of 4.3."""
    verdict = "works" if form.refused is None else "refused"
    return verdict, "refused" if form.text in NEW else verdict, verdict


if __name__ == "__main__":
    print(page(), end="")

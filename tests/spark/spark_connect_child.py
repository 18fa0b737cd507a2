"""A Connect session in a process of its own: started with a directory to work in and numbers of forms, prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from unittest import mock

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.core import DefaultChannelBuilder

import tiltyard as ty
from tests.spark.spark_connect_forms import differences
from tests.support.servers import free_ports
from tiltyard.spark import SparkTable, Work, enable


def written_and_changed(spark: SparkSession, lake: ty.Lake, place: Path) -> list[list[object]]:
    """What is left after the verbs, all of them in executors."""
    spark.range(10).selectExpr("id", "cast(id as string) s").write.format("tiltyard").mode("append").save(str(place / "t"))
    table = SparkTable.for_path(spark, place / "t", work=Work(driver_bytes=0, driver_table_rows=0))
    table.append(spark.range(10, 12).selectExpr("id", "'new' s"))
    table.merge(
        spark.range(9, 13).selectExpr("id", "'merged' s"), on="id"
    ).when_matched_update_all().when_not_matched_insert_all().execute()
    table.update({"s": "concat(s, '!')"}, "id = 0")
    table.delete("id between 2 and 8")
    table.add_columns({"twice": "id * 2"})
    table.compact()
    table.create_index("id", "BTREE")
    with lake.transaction() as tx:
        tx.spark(spark).write(spark.range(7, 8).selectExpr("id", "1.5D v"), "orders")
    return [list(row) for row in table.to_df().orderBy("id").collect()]


def self_reads(spark: SparkSession, lake: ty.Lake) -> dict[str, str]:
    """What became of overwrites and merges of a table by rows that were read from it before another writer came."""
    lake.create_table("own", pa.table({"id": [1, 2]}))
    table = lake.spark(spark).table("own")
    loaded = spark.read.format("tiltyard").option("lake", lake.url).option("table", "own").load()
    reads = {"to_df": table.to_df(), "loaded": loaded, "named": spark.table("shop.own"), "sql": spark.sql("SELECT * FROM shop.own")}
    other, told = spark.range(3), lake.table("own").version
    lake.table("own").append(pa.table({"id": [3]}))
    seen = {}
    for name, df in reads.items():
        for verb in ("overwrite", "merge"):
            try:
                table.overwrite(df) if verb == "overwrite" else table.merge(df, "id").when_matched_delete().execute()
                seen[f"{name} {verb}"] = "done"
            except ty.ConflictError as error:
                seen[f"{name} {verb}"] = type(error).__name__
    seen["rows"] = str(sorted(lake.table("own").to_arrow()["id"].to_pylist()))
    try:
        table.overwrite(loaded, commit=ty.CommitOptions(expected_version=told))
    except ty.ExpectedVersionMismatch:
        seen["told"] = "refused"
    table.overwrite(table.to_df().filter("id > 1"))
    table.overwrite(table.to_df(version=told))
    seen["after"] = str(sorted(lake.table("own").to_arrow()["id"].to_pylist()))
    table.overwrite(other)
    seen["replaced"] = str(sorted(lake.table("own").to_arrow()["id"].to_pylist()))
    return seen


def by_the_server(spark: SparkSession) -> list[list[object]]:
    """What is left after statements on the catalog that the server was started with."""
    spark.sql("INSERT INTO shop.orders VALUES (50, 5.0), (51, 5.5)")
    spark.sql(
        """MERGE INTO shop.orders o USING (SELECT 50L AS id, 6.0D AS v UNION ALL SELECT 52L, 7.0D) n ON o.id = n.id
        WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
    )
    spark.sql("DELETE FROM shop.orders WHERE id = 51")
    spark.sql("OPTIMIZE shop.orders")
    spark.range(60, 61).selectExpr("id", "1.0D AS v").writeTo("shop.orders").append()
    return [list(row) for row in spark.sql("SELECT id, v FROM shop.orders WHERE id >= 50 ORDER BY id").collect()]


def main(place: Path, forms: list[int]) -> None:
    from tests.support.spark import SETTINGS

    lake = ty.Lake.open(place / "lake")
    lake.create_table("orders", pa.table({"id": [1, 2, 3], "v": [0.5, None, float("nan")]}))
    [port] = free_ports(1)  # the one that is always the same may be another run's
    mock.patch.object(DefaultChannelBuilder, "default_port", return_value=port).start()
    builder = SparkSession.builder.remote("local[1]").config("spark.connect.grpc.binding.port", str(port))
    for key, value in {**SETTINGS, "spark.local.dir": str(place / "local"), "spark.sql.warehouse.dir": str(place / "warehouse")}.items():
        builder = builder.config(key, value)
    spark = ty.spark.configure(builder, place / "lake", catalog="shop").getOrCreate()
    told = enable(spark, lake=str(place / "lake"))
    frame = spark.read.format("tiltyard").option("lake", str(place / "lake")).option("table", "orders").load()
    seen = {
        "connect": told.connect,
        "rule": told.rule,
        "notices": list(told.notices),
        "views": list(told.views),
        "rows": [row.id for row in frame.filter("id > 1 and (v is null or isnan(v))").orderBy("id").collect()],
        "counted": frame.count(),
        "by_name": spark.sql("select sum(id) s from orders").collect()[0].s,
    }
    lake.table("orders").append(pa.table({"id": [4], "v": [1.0]}))
    told.refresh()
    seen["after"] = spark.sql("select count(*) c from orders").collect()[0].c
    seen["pinned"] = frame.count()
    seen["verbs"] = written_and_changed(spark, lake, place)
    seen["transaction"] = lake.table("orders").count_rows()
    seen["catalog"] = by_the_server(spark)
    seen["self"] = self_reads(spark, lake)
    seen["forms"] = differences(spark, place / "forms", forms)
    print("SEEN " + json.dumps(seen), flush=True)
    spark.stop()
    os._exit(0)  # the server of a local Connect session does not always end by itself


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

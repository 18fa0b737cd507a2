"""A Spark application that knows of Tiltyard by its settings alone; submitted by the cluster test."""

from __future__ import annotations

from pyspark.sql import SparkSession

ROWS = 300_000
"""More than the driver writes by itself."""


def main() -> None:
    spark = SparkSession.builder.appName("catalog").getOrCreate()
    spark.sql("CREATE TABLE lake.shop.orders (id BIGINT NOT NULL, v BIGINT) TBLPROPERTIES ('primary_key' = 'id')")
    spark.range(ROWS).selectExpr("id", "id * 2 AS v").createOrReplaceTempView("first")
    spark.range(ROWS // 2, ROWS + 1000).selectExpr("id", "-id AS v").createOrReplaceTempView("second")
    spark.sql("INSERT INTO lake.shop.orders SELECT * FROM first")
    spark.sql(
        """MERGE INTO lake.shop.orders t USING second s ON t.id = s.id
        WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
    )
    spark.sql("DELETE FROM lake.shop.orders WHERE id % 10 = 0")
    [row] = spark.sql("SELECT count(*), count(DISTINCT id), sum(v) FROM lake.shop.orders").collect()
    print("found", *row)
    spark.stop()


if __name__ == "__main__":
    main()

"""Runs the dbt project beside this file on a lake, twice, and its tests: ``python run.py LAKE``. Needs dbt-core and dbt-spark."""

from __future__ import annotations

import sys
from pathlib import Path

from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

import tiltyard as ty

HERE = Path(__file__).resolve().parent


def main(place: str) -> int:
    """Makes the session that dbt then finds, with the lake as its default catalog."""
    ty.Lake.open(place).close()
    builder = SparkSession.builder.master("local[2]").config("spark.sql.defaultCatalog", "lake").config("spark.ui.enabled", "false")
    spark = ty.spark.configure(builder, lake=place).getOrCreate()
    ty.spark.enable(spark)
    for command in ("run", "run", "test"):
        done = dbtRunner().invoke([command, "--project-dir", str(HERE), "--profiles-dir", str(HERE), "--target-path", f"{place}.dbt"])
        if not done.success:
            print(f"dbt {command} failed: {done.exception}", file=sys.stderr)
            return 1
    with ty.Lake.open(place) as lake:
        found = {name: lake.table(name).count_rows() for name in lake.tables()}
    spark.stop()
    print(found)
    return 0 if found == {"shop.events": 6, "shop.orders": 10, "shop.totals": 3} else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

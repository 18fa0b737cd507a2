"""Star joins as TPC-DS asks them: a long table of sales and small tables around it, by the catalog against the same rows in Parquet.

    python -m bench.star_joins                          three million sales, six questions, about two minutes
    python -m bench.star_joins --rows 12000000          --json for figures, --check to fail when the aim is missed

The sales lie in the order of their dates, as sales do, in files of the same length on both sides. Spark broadcasts the small tables, and
offers our scan the keys that are left of them. Both sides run in turn in one session, ``--rounds`` times after one run that does not count;
results of all runs are compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import tiltyard as ty
from bench.circumstances import circumstances, in_words
from bench.commit import Figure
from bench.spark_session import arguments, session, show
from bench.tpch import asked, geometric_mean
from tiltyard.spark import enable

AIM: Final = 1.2
DAYS: Final = 5 * 365
ITEMS: Final = 20_000
CUSTOMERS: Final = 50_000
STORES: Final = 60
ROWS_PER_FILE: Final = 1 << 18
SEED: Final = 19

QUERIES: Final[Mapping[str, str]] = {
    "brands of a month": """SELECT d_year, i_brand, sum(ss_price) s FROM @sales JOIN @dates ON ss_date = d_date
        JOIN @items ON ss_item = i_item WHERE i_manager = 7 AND d_moy = 11 GROUP BY d_year, i_brand ORDER BY d_year, s DESC, i_brand""",
    "categories of one month": """SELECT i_category, sum(ss_price) s FROM @sales JOIN @dates ON ss_date = d_date
        JOIN @items ON ss_item = i_item WHERE d_moy = 12 AND d_year = 2022 GROUP BY i_category ORDER BY s DESC, i_category""",
    "stores of a state": """SELECT st_name, sum(ss_profit) s FROM @sales JOIN @dates ON ss_date = d_date
        JOIN @stores ON ss_store = st_store WHERE st_state = 'TN' AND d_year = 2021 GROUP BY st_name ORDER BY st_name""",
    "customers of an age": """SELECT i_category, avg(ss_quantity) q, count(*) n FROM @sales JOIN @customers ON ss_customer = c_customer
        JOIN @items ON ss_item = i_item WHERE c_born BETWEEN 1980 AND 1982 AND i_category IN ('Books', 'Music')
        GROUP BY i_category ORDER BY i_category""",
    "few items": """SELECT i_item, sum(ss_quantity) q FROM @sales JOIN @items ON ss_item = i_item
        WHERE i_brand = 'brand 17' AND i_manager < 20 GROUP BY i_item ORDER BY i_item""",
    "all four": """SELECT i_brand, st_state, sum(ss_price) s FROM @sales JOIN @dates ON ss_date = d_date JOIN @items ON ss_item = i_item
        JOIN @stores ON ss_store = st_store JOIN @customers ON ss_customer = c_customer
        WHERE d_year = 2023 AND d_moy BETWEEN 4 AND 6 AND i_manager BETWEEN 10 AND 30 AND c_born < 1960
        GROUP BY i_brand, st_state ORDER BY s DESC, i_brand, st_state LIMIT 100""",
}


def tables(rows: int) -> dict[str, pa.Table]:
    """The star."""
    random = np.random.default_rng(SEED)
    days = np.datetime64("2020-01-01") + np.arange(DAYS)
    months = days.astype("datetime64[M]").astype(int)
    cents = random.integers(100, 50_000, rows)
    return {
        "sales": pa.table({
            "ss_date": np.sort(random.integers(0, DAYS, rows)),
            "ss_item": random.integers(0, ITEMS, rows),
            "ss_store": random.integers(0, STORES, rows).astype(np.int32),
            "ss_customer": random.integers(0, CUSTOMERS, rows),
            "ss_quantity": random.integers(1, 100, rows).astype(np.int32),
            "ss_price": cents,
            "ss_profit": cents - random.integers(0, 20_000, rows),
        }),
        "dates": pa.table({
            "d_date": np.arange(DAYS),
            "d_year": (months // 12 + 1970).astype(np.int32),
            "d_moy": (months % 12 + 1).astype(np.int32),
        }),
        "items": pa.table({
            "i_item": np.arange(ITEMS),
            "i_brand": [f"brand {number}" for number in random.integers(0, 500, ITEMS)],
            "i_category": random.choice(["Books", "Music", "Shoes", "Sports", "Women", "Men", "Home", "Jewelry"], ITEMS),
            "i_manager": random.integers(0, 100, ITEMS).astype(np.int32),
        }),
        "stores": pa.table({
            "st_store": np.arange(STORES, dtype=np.int32),
            "st_name": [f"store {number}" for number in range(STORES)],
            "st_state": random.choice(["TN", "SD", "AL", "GA", "OH"], STORES),
        }),
        "customers": pa.table({"c_customer": np.arange(CUSTOMERS), "c_born": random.integers(1930, 2005, CUSTOMERS).astype(np.int32)}),
    }  # fmt: skip


def make(spark: SparkSession, place: Path, rows: int) -> None:
    """The same rows in files of the same length on both sides."""
    lake = ty.Lake.open(place / "lake", durability="os")
    for name, table in tables(rows).items():
        (place / "parquet" / name).mkdir(parents=True)
        made: Any = None
        for start in range(0, table.num_rows, ROWS_PER_FILE):
            part = table.slice(start, ROWS_PER_FILE)
            pq.write_table(part, place / "parquet" / name / f"part-{start:010}.parquet")
            made = lake.create_table(name, part) if made is None else made
            if start:
                made.append(part)
        spark.read.parquet(str(place / "parquet" / name)).createOrReplaceTempView(f"parquet_{name}")
    print(enable(spark, lake=lake), file=sys.stderr)


def measure(spark: SparkSession, place: Path, rows: int, rounds: int) -> Iterator[Figure]:
    make(spark, place, rows)
    ratios = []
    for name, text in QUERIES.items():
        found = asked(spark, name, text, rounds)
        ours, parquet = found["ours"].median, found["parquet"].median
        ratios.append(ours / parquet)
        yield Figure(name, ours, parquet, "ms", None)
    mean = geometric_mean(ratios)
    yield Figure("geometric mean, in hundredths", 100 * mean, 100.0, "ms", AIM)


def main() -> None:
    options = arguments(__doc__, 3_000_000, 5, "of the table of sales").parse_args()
    before = circumstances()
    with session(options.cores) as (spark, place):
        show(measure(spark, place, options.rows, options.rounds), options)
    print(in_words(before), file=sys.stderr)


if __name__ == "__main__":
    main()

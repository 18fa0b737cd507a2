"""Two Spark applications, a plain pylance process and a compactor on one table at once: nothing is lost, nothing is doubled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import tiltyard as ty
from tests.support.children import path_of_the_tree
from tests.support.proving import pick
from tests.support.spark_jobs import batch_write, start
from tests.support.spark_killed import KilledSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITS = pick(2, 20)
ROWS = 50


def _beside(*arguments: object, **pipes: Any) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.spark.spark_beside", *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path_of_the_tree()}, cwd=root, **pipes)


def test_the_ledger_of_four_writers_balances(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(KilledSource)  # the source as it is: nobody is killed here
    path, compacted = tmp_path / "t", tmp_path / "compacted"
    ty.Table.create(path, pa.schema([("id", pa.int64()), ("s", pa.string())]))
    one_writer = COMMITS * ROWS
    other = start(tmp_path / "other", {"do": "appends", "path": str(path), "first": one_writer, "commits": COMMITS, "rows": ROWS})
    compactor = _beside("compactor", path, compacted, stdin=subprocess.PIPE)
    assert compactor.stdin is not None
    plain = _beside("pylance", path, 2 * one_writer, COMMITS, ROWS, stdout=compactor.stdin)
    try:
        for number in range(COMMITS):
            batch_write(spark, str(path), number * ROWS, ROWS, {})
            compactor.stdin.write(b"\n")
            compactor.stdin.flush()
        assert plain.wait(timeout=300) == 0
        assert other.wait(timeout=300) == 0, (tmp_path / "other" / "log.txt").read_text()[-2000:]
    finally:
        compactor.stdin.close()
        assert compactor.wait(timeout=120) == 0
    table = ty.Table.open(path)
    assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(3 * one_writer))
    assert table.check().ok
    made = [entry.operation for entry in table.history()]
    assert made.count("Append") == 3 * COMMITS
    assert int(compacted.read_text()) > 0

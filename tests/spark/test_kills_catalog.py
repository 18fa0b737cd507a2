"""Drivers that are killed in a statement of the catalog: nothing is lost, and nothing comes twice when it is run again.

They are started where ``python3`` is another interpreter, so that the data source and its workers have to be found without that name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tests.spark.spark_catalog_killed import AFTER, POINTS
from tests.support.proving import pick
from tiltyard.spark.sql_catalog.session_catalog import use_lake

MERGE = """MERGE INTO lake.a t USING (SELECT id, -id AS v FROM range(2, 6)) s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""


@pytest.mark.parametrize("point", pick(POINTS[:1], POINTS))
def test_a_driver_that_dies(spark: SparkSession, tmp_path: Path, point: str) -> None:
    place = str(tmp_path / "lake")
    lake = ty.Lake.open(place, durability="os")
    lake.create_table("a", pa.table({"id": [1, 2, 3], "v": [10, 20, 30]}), primary_key=["id"])
    after = {1: 10, 2: -2, 3: -3, 4: -4, 5: -5}
    job = json.dumps({"lake": place, "text": MERGE, "point": point})
    command = [sys.executable, "-m", "tests.spark.spark_catalog_killed", job]
    died = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500, env=beside_another_python(tmp_path))
    assert died.returncode == -signal.SIGKILL, died.stderr[-3000:]
    assert values(lake) == (after if point == AFTER else {1: 10, 2: 20, 3: 30})
    ty.spark.enable(spark)
    use_lake(spark, "lake", {"lake": place, "durability": "os"})
    spark.sql(MERGE)
    assert values(lake) == after
    assert lake.check().ok


def beside_another_python(place: Path) -> dict[str, str]:
    """An environment whose ``python3`` is not the interpreter that runs this, and knows nothing: nobody may call it."""
    other = place / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 'this is another python3' >&2\nexit 7\n")
    other.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    return {**kept, "PATH": f"{other.parent}{os.pathsep}{kept['PATH']}"}


def values(lake: ty.Lake) -> dict[int, Any]:
    return {row["id"]: row["v"] for row in lake.table("a").to_arrow().to_pylist()}

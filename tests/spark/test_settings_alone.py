"""An application that has the catalog by settings alone, submitted as on a cluster: it works, and it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

import tiltyard as ty
from tests.support.children import path_of_the_tree, with_pandas
from tests.support.spark import SETTINGS

APPLICATION = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sql("CREATE TABLE lake.shop.orders AS SELECT id FROM range(7)")
print("found", spark.table("lake.shop.orders").count())
spark.stop()
"""


def test_an_application_ends(tmp_path: Path) -> None:
    """With the process that the JVM started for it, which would hold the output open; and neither complains of the other's end."""
    ty.Lake.open(tmp_path / "lake", durability="os").close()
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    told = {"spark.sql.catalog.lake": "tiltyard.LakeCatalog", "spark.sql.catalog.lake.uri": str(tmp_path / "lake"), **SETTINGS}
    told |= {"spark.local.dir": str(tmp_path / "local"), "spark.log.level": "ERROR"}
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]", "--jars", ty.spark.catalog_jar()]
    command += [part for name, value in told.items() for part in ("--conf", f"{name}={value}")]
    known = {"PYTHONPATH": path_of_the_tree(), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment = with_pandas({**os.environ, **known, "SPARK_LOCAL_IP": "127.0.0.1"})
    done = subprocess.run([*command, application], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "found 7\n"), done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]

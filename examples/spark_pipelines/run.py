"""Runs the project beside this file with Spark's own ``spark-pipelines``, with a lake as its catalog: ``python run.py DIRECTORY [RUNS]``.

In the second run a file more has come; the third makes everything again. Needs ``pip install "pyspark[pipelines]"``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from lance_namespace import CreateNamespaceRequest

import tiltyard as ty

HERE = Path(__file__).resolve().parent
FILES = (
    [{"id": 1, "customer": 0, "kind": "sale"}, {"id": 2, "customer": 1, "kind": "refund"}],
    [{"id": 3, "customer": 1, "kind": "refund"}],
)
RUNS = (["run"], ["run"], ["run", "--full-refresh-all"])


def main(directory: str, runs: str = "3") -> int:
    """Makes the project and the lake, and runs what the command would run by hand."""
    place = Path(directory).resolve()
    project = make_project(place)
    lake = ty.Lake.open(place / "lake")
    lake.namespace().create_namespace(CreateNamespaceRequest(id=["shop"]))
    for number, arguments in enumerate(RUNS[: int(runs)]):
        if number < len(FILES):
            (project / "landing" / f"{number}.json").write_text("\n".join(map(json.dumps, FILES[number])))
        command = [str(Path(sys.executable).with_name("spark-pipelines")), *arguments]
        subprocess.run(command, cwd=project, env=settings(place), check=True)
        print(json.dumps(content(lake)), flush=True)
    return 0 if lake.check().ok else 1


def make_project(place: Path) -> Path:
    """A copy of the project in that directory."""
    project = place / "project"
    shutil.copytree(HERE, project, ignore=shutil.ignore_patterns("__pycache__", Path(__file__).name))
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("PLACE", place.as_posix()))
    (project / "landing").mkdir()
    return project


def settings(place: Path) -> dict[str, str]:
    """An environment with the catalog in Spark's own file of settings: by ``--conf``, Spark 4.3 loses some of more than ten."""
    conf = place / "conf"
    conf.mkdir(exist_ok=True)
    told = {
        "spark.jars": ty.spark.catalog_jar(),
        "spark.sql.catalog.lake": "tiltyard.LakeCatalog",
        "spark.sql.catalog.lake.uri": str(place / "lake"),
        "spark.ui.enabled": "false",
    }
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in told.items()))
    return {**os.environ, "SPARK_CONF_DIR": str(conf), "PYSPARK_PYTHON": sys.executable}


def content(lake: ty.Lake) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table, in order."""
    return {name: sorted(lake.table(name).to_arrow().to_pylist(), key=str) for name in lake.tables()}


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

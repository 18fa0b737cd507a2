"""Runs the tests of SQL on releases of Spark beside the one in the lock, each installed in a directory of its own.

``python -m tools.spark_versions [--release 4.2] [-- arguments of pytest]``
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASES = ("4.2",)
TESTS = ("tests/spark/test_members.py", "tests/spark/test_sql_catalog.py", "tests/spark/test_sql_forms.py")


def installed(release: str) -> Path:
    """A directory with that release of PySpark and nothing else; made when it is not there."""
    place = ROOT / "build" / f"spark-{release}"
    if not (place / "pyspark").is_dir():
        uv = str(Path(sys.executable).parent / "uv")
        subprocess.run([uv, "pip", "install", "--no-deps", "--target", str(place), f"pyspark=={release}.*"], check=True)
    return place


def run(release: str, arguments: list[str]) -> int:
    """The tests, in all their forms, with that release in front of the other one."""
    paths = [str(installed(release)), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TILTYARD_PROVE": "1"}
    print(f"Spark {release}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", *(arguments or TESTS)]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", action="append", help="a minor release such as 4.2; all of them without it")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    given = parser.parse_args()
    return max(run(release, given.arguments) for release in given.release or RELEASES)


if __name__ == "__main__":
    raise SystemExit(main())

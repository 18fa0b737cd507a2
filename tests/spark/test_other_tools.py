"""Tools of others that build tables by SQL, with a lake as Spark's catalog: our examples of them, run as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import path_with, with_pandas
from tests.support.environments import environment
from tests.support.proving import pick

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DBT = ("dbt-core==1.10.*", "dbt-spark==1.9.*")
"""In an environment of their own: their dependencies are none of ours."""


def run(python: Path | str, script: Path, place: Path, *arguments: str, **more: str) -> str:
    """What the example prints; it fails with whatever is run in it."""
    told = with_pandas({**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **more})
    command = [python, script, place, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=told, cwd=place.parent, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.timeout(1000)
def test_spark_pipelines(tmp_path: Path) -> None:
    """Views over views, and streams of files and of tables: each row once after a second run, and after a full refresh."""
    runs = pick(2, 3)
    said = run(sys.executable, EXAMPLES / "spark_pipelines" / "run.py", tmp_path / "place", str(runs), PYTHONPATH=path_with(ROOT / "src"))
    seen: list[dict[str, list[dict[str, Any]]]] = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    sale, refund, more = (
        {"id": 1, "customer": 0, "kind": "sale"}, {"id": 2, "customer": 1, "kind": "refund"}, {"id": 3, "customer": 1, "kind": "refund"},
    )  # fmt: skip
    assert len(seen) == runs
    for number, events in enumerate([[sale, refund], [sale, refund, more], [sale, refund, more]][:runs]):
        refunds = [event for event in events if event["kind"] == "refund"]
        assert sorted(seen[number]["shop.events"], key=lambda row: row["id"]) == events
        assert sorted(seen[number]["shop.refunds"], key=lambda row: row["id"]) == [
            {"id": event["id"], "customer": event["customer"]} for event in refunds
        ]
        assert {row["kind"]: row["count"] for row in seen[number]["shop.kinds"]} == {"sale": 1, "refund": len(refunds)}
        assert [row["id"] for row in seen[number]["shop.orders"]] == [*range(10)]
        assert {row["customer"]: (row["orders"], row["amount"]) for row in seen[number]["shop.totals"]} == {
            0: (4, 27.0), 1: (3, 18.0), 2: (3, 22.5),
        }  # fmt: skip


@pytest.mark.timeout(1400)
def test_dbt(tmp_path: Path) -> None:
    """The example compares what it finds; skipped, with the reason, where dbt cannot be installed."""
    home = environment(DBT)
    paths = path_with(ROOT / "src", sysconfig.get_path("purelib"))
    told = {"PYTHONPATH": paths, "DBT_LOG_PATH": str(tmp_path / "logs"), "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
    run(home / "bin" / "python", EXAMPLES / "dbt" / "run.py", tmp_path / "lake", **told)

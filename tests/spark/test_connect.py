"""A Connect session reads and writes the same, without the rule, and says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.sql_forms import FORMS
from tests.support.children import path_of_the_tree, with_pandas
from tests.support.proving import PROVING, sample

PATIENCE = 3000 if PROVING else 500
"""Seconds; the long form runs every form of the page."""


@pytest.mark.timeout(PATIENCE + 60)
def test_a_connect_session(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": path_of_the_tree(), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment = with_pandas({**os.environ, **paths})  # which a Connect client cannot do without
    chosen = sample(range(len(FORMS)), 5)
    child = [sys.executable, "-m", "tests.spark.spark_connect_child", str(tmp_path), json.dumps(chosen)]
    done = subprocess.run(child, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, done.stdout + done.stderr
    seen = json.loads(lines[0].removeprefix("SEEN "))
    assert seen["connect"]
    assert not seen["rule"]
    assert any("Connect client cannot reach the optimizer" in one for one in seen["notices"])
    assert any("no catalog: a Connect client cannot add one" in one for one in seen["notices"])
    assert seen["views"] == ["orders"]
    assert (seen["rows"], seen["counted"], seen["by_name"]) == ([2, 3], 3, 6)
    assert (seen["after"], seen["pinned"]) == (4, 3)
    merged = [[one, "merged", 2 * one] for one in range(9, 13)]
    assert seen["verbs"] == [[0, "0!", 0], [1, "1", 2], *merged]
    assert seen["transaction"] == 5
    assert seen["catalog"] == [[50, 6.0], [52, 7.0], [60, 1.0]]
    unknown = {f"{read} {verb}": "ConflictError" for read in ("loaded", "named", "sql") for verb in ("overwrite", "merge")}
    known = {f"to_df {verb}": "ExpectedVersionMismatch" for verb in ("overwrite", "merge")}
    assert seen["self"] == unknown | known | {"rows": "[1, 2, 3]", "told": "refused", "after": "[1, 2]", "replaced": "[0, 1, 2]"}
    assert seen["forms"] == {}, "forms that are not as the page says"

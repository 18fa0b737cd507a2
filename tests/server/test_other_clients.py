"""Clients beside pylance and lancedb in Python, each in an environment of its own that is built once and kept: DuckDB, polars, daft, Node.

Long form only: the environments take minutes to build. Not among them is lance-ray: it starts a cluster of processes for one append, and
commits to the store like DuckDB does, which is shown here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.proving import PROVING
from tests.support.served import Served

CLIENTS = Path(__file__).parent / "clients"
PACKAGES = {
    "duckdb_polars.py": ("duckdb==1.5.5", "duckdb-extension-lance==1.5.5", "pylance==14.0.2", "polars==2.1.0", "pyarrow"),
    "daft_client.py": ("daft==0.7.26", "daft-lance==0.6.0"),
    "node_client.mjs": ("@lancedb/lancedb@0.39.0", "apache-arrow@18.1.0"),
}
SEEN = {
    "duckdb_polars.py": {"duckdb": [[1, "Ada"], [2, "duck"]], "polars": [[1, "Ada"], [2, "duck"], [3, "polar bear"]]},
    "daft_client.py": {"daft": [[1, "Ada"], [2, "daft"]]},
    "node_client.mjs": {"node": [[1, "Ada"], [2, "node"]]},
}


def environment(script: str) -> Path:
    """The directory with the packages of a client, built where it is not there yet."""
    packages = PACKAGES[script]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiltyard" / "clients"
    home = cache / f"{Path(script).stem}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "built").exists():
            shutil.rmtree(home, ignore_errors=True)
            _build(home, script, packages)
            (home / "built").touch()
    return home


def _build(home: Path, script: str, packages: tuple[str, ...]) -> None:
    if script.endswith(".mjs"):
        home.mkdir()
        (home / "package.json").write_text("{}", encoding="utf-8")
        npm = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *packages]
        subprocess.run(npm, cwd=home, check=True, capture_output=True)
        return
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, env=_plain())
    subprocess.run([str(home / "bin/python"), "-m", "pip", "install", "--quiet", *packages], check=True, capture_output=True, env=_plain())


def _plain() -> dict[str, str]:
    """The environment without the paths of this tree: a client knows nothing of it."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.mark.skipif(not PROVING, reason="builds environments for other clients, which takes minutes")
@pytest.mark.parametrize("script", sorted(PACKAGES))
def test_other_clients_read_and_write_a_table(server: Served, script: str) -> None:
    home = environment(script)
    with server.lake() as lake:
        if "people" in lake.tables():
            lake.drop_table("people")
        lake.create_table("people", pa.table({"id": pa.array([1], pa.int64()), "name": ["Ada"]}))
        program = ["node"] if script.endswith(".mjs") else [str(home / "bin/python")]
        done = subprocess.run(
            [*program, str(CLIENTS / script), server.url], cwd=home, env=_plain(), capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert json.loads(done.stdout.splitlines()[-1]) == SEEN[script]
        rows = lake.table("people").to_arrow().to_pylist()
        assert sorted([row["id"], row["name"]] for row in rows) == max(SEEN[script].values(), key=len)
        assert lake.check().ok

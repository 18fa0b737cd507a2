"""A batching writer and other processes: one that is forked, and one that ends without closing it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tiltyard as ty
from tests.support.commits import ids_of, rows

REPOSITORY = Path(__file__).resolve().parents[2]

FORKED = """
import os, sys, tiltyard as ty
table = ty.Table.open(sys.argv[1], durability="os")
writer = table.writer(max_delay=1e6)
writer.append({"id": [1], "s": ["parent"]})
child = os.fork()
if not child:
    try:
        writer.append({"id": [2], "s": ["child"]})
    except ty.InvalidInput as error:
        print(error, flush=True)
    writer.close()
    os._exit(0)
os.waitpid(child, 0)
writer.close()
"""

NOT_CLOSED = """
import sys, tiltyard as ty
writer = ty.Table.open(sys.argv[1], durability="os").writer(max_delay=1e6)
writer.append({"id": [1], "s": ["kept"]})
"""


def _run(script: str, root: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_process_cannot_use_it_and_commits_nothing_of_it(tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", rows(0))
    assert "made in another process" in _run(FORKED, tmp_path / "t")
    assert ids_of(ty.Table.open(tmp_path / "t")) == [0, 1]


def test_a_process_that_ends_commits_what_waits(tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", rows(0))
    _run(NOT_CLOSED, tmp_path / "t")
    assert ids_of(ty.Table.open(tmp_path / "t")) == [0, 1]

"""SIGKILL of a process that writes through a batching writer: only what was not acknowledged may be lost, and nothing is doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import lance
import pytest

import tiltyard as ty
from tests.faults.batch_writer_killed import EACH
from tests.support.commits import rows
from tests.support.proving import pick

REPOSITORY = Path(__file__).resolve().parents[2]
ROUNDS = pick((1, 20, 45), tuple(range(1, 100, 5)))
"""How many acknowledged appends each process gets to tell of."""


def _killed(kind: str, root: Path, first: int, after: int) -> list[int]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    command = [sys.executable, "-m", "tests.faults.batch_writer_killed", kind, str(root), str(first)]
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        told = [int(child.stdout.readline()) for _ in range(after)]
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().splitlines(keepends=True)
        assert child.wait() == -signal.SIGKILL
    return told + [int(line) for line in rest if line.endswith("\n")]


def _ids(table: ty.TableReader) -> list[int]:
    return sorted(table.to_arrow(["id"])["id"].to_pylist())


@pytest.mark.parametrize("kind", ["table", "lake"])
def test_what_was_acknowledged_is_there_once(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    lake = None
    if kind == "lake":
        lake = ty.Lake.open(root)
        lake.create_table("t", rows(0))
    else:
        ty.Table.create(root, rows(0))
    acknowledged = [0]
    for number, after in enumerate(ROUNDS):
        acknowledged += _killed(kind, root, 1 + number * 10_000, after)
        table = ty.Table.open(root) if lake is None else lake.table("t")
        found = _ids(table)
        assert len(found) == len(set(found)), "a row is there twice"
        assert set(acknowledged) <= set(found), "an acknowledged row is lost"
        for thread in range(4):
            mine = [one for one in found if one // EACH == thread and one % EACH >= 1 + number * 10_000]
            assert mine == list(range(mine[0], mine[0] + len(mine))) if mine else True, "rows of one thread are committed in order"
        with table.writer() as writer:  # whoever comes next goes on
            writer.append(rows(-1 - number))
        acknowledged.append(-1 - number)
        assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == _ids(table)
    assert (ty.Table.open(root) if lake is None else lake.table("t")).check().ok
    if lake is not None:
        assert lake.check().ok
        lake.close()

"""SIGKILL of a process that appends to a sharded table and reshards it: no acknowledged row is lost, none doubled, none is half there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import tiltyard as ty
from tests.faults.sharded_killed import MANY
from tests.support.commits import rows
from tests.support.proving import pick

REPOSITORY = Path(__file__).resolve().parents[2]
ROUNDS = pick((2, 5), tuple(range(1, 40, 3)))
"""How many acknowledged appends each process gets to tell of."""


def _killed(root: Path, first: int, after: int) -> list[int]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    command = [sys.executable, "-m", "tests.faults.sharded_killed", str(root), str(first)]
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        told = [int(child.stdout.readline()) for _ in range(after)]
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().splitlines(keepends=True)
        assert child.wait() == -signal.SIGKILL
    return told + [int(line) for line in rest if line.endswith("\n")]


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake", durability="os")
    lake.create_table("t", rows(-1), primary_key=["id"], shard_by="id", shards=4)
    acknowledged: list[int] = []
    for number, after in enumerate(ROUNDS):
        acknowledged += _killed(tmp_path / "lake", 1 + number * 1000, after)
        table = lake.table("t")
        found = sorted(table.to_arrow(["id"])["id"].to_pylist())
        assert len(found) == len(set(found)), "a row is there twice"
        appends = {one // MANY for one in found if one >= 0}
        assert set(acknowledged) <= appends, "an acknowledged append is lost"
        assert found == [one for one in found if one < 0] + sorted(one * MANY + row for one in appends for row in range(MANY)), "in part"
        table.append(rows(-2 - number))
        assert table.check().ok
        assert lake.check().ok
    lake.close()

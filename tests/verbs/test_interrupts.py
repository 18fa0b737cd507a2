"""Ctrl-C stays KeyboardInterrupt, whatever pylance or the commit is doing, and leaves a sound table."""

from __future__ import annotations

import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.proving import pick

INTERRUPTS = pick(2, 60)

PRESSES = 4
PATIENCE = 20.0
"""Seconds that one is given to take effect."""

CHILD = """
import signal, sys
import lance.file, lance.fragment  # a module whose import is interrupted stays half made
import pyarrow as pa
import tiltyard as ty

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests in the background has it ignored
uri, kind = sys.argv[1:]
rows = pa.table({"id": list(range(50_000)), "n": [number % 97 for number in range(50_000)], "s": ["x" * 40] * 50_000})
number = 0


def stream():
    for batch in rows.select(["id", "n", "s"]).to_batches(max_chunksize=500):
        yield batch


def work():
    global number
    number += 1
    table = ty.Table.open(uri, durability="os")
    if kind == "read":
        table.to_arrow(filter="s like '%y%' or n % 7 = 3")
    elif kind == "scan":
        for batch in table.scan(filter="n > 3", options={"batch_size": 100}):
            pass
    elif kind == "append":
        table.append(pa.RecordBatchReader.from_batches(rows.schema, stream()))
        table.delete("true")
    elif kind == "merge":
        table.merge(rows.slice(0, 2000), on="id").when_matched_update_all("source.n >= target.n").execute()
    elif kind == "commit":
        table.update_config({"a": str(number)})
    elif kind == "columns":
        if "z" in table.schema.names:
            table.drop_columns(["z"])
        else:
            table.add_columns(lambda batch: pa.record_batch({"z": batch["n"]}), read_columns=["n"], backfill=ty.Backfill(batch_size=500))


def told():
    try:
        print("working", flush=True)
        while True:
            work()
    except BaseException as error:
        return type(error).__name__, str(error)


for _ in range(int(sys.stdin.readline())):
    name, text = told()
    print(name, text[:200].replace("\\n", " "), flush=True)
    sys.stdin.readline()
"""


def _interrupted(child: subprocess.Popen[str], answers: IO[str]) -> str:
    """What a child says to Ctrl-C. Once, on a loaded machine, one was lost and nobody knows where; pressed again, it must be obeyed."""
    for _ in range(PRESSES):
        child.send_signal(signal.SIGINT)
        if select.select([answers], [], [], PATIENCE)[0]:
            return answers.readline()
    raise AssertionError(f"no answer to {PRESSES} interrupts")


@pytest.mark.parametrize("kind", ["read", "scan", "append", "merge", "commit", "columns"])
def test_ctrl_c_is_a_keyboard_interrupt(kind: str, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    size = 50_000
    rows = pa.table({"id": list(range(size)), "n": [number % 97 for number in range(size)], "s": ["x" * 40] * size})
    ty.Table.create(uri, rows, durability="os")
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(uri), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(f"{INTERRUPTS}\n")
        child.stdin.flush()
        moments = random.Random(f"{kind} 5")
        for _ in range(INTERRUPTS):
            assert child.stdout.readline() == "working\n"
            time.sleep(moments.uniform(0, 0.4))  # any moment will do; this only makes them differ
            assert (told := _interrupted(child, child.stdout)).split() == ["KeyboardInterrupt"], told
            child.stdin.write("\n")
            child.stdin.flush()
        assert child.wait(60) == 0, child.stderr.read() if child.stderr else ""
    finally:
        child.kill()
        child.communicate()
    assert ty.Table.open(uri).check().ok

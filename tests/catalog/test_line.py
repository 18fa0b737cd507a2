"""Processes in line for the one right to write: in turn, freed by death, and never held up for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.process_queue import ProcessQueue
from tiltyard.catalog.records import Writes
from tiltyard.catalog.sqlite import Sqlite
from tiltyard.interfaces import Runtime
from tiltyard.testing import ManualClock, SeededRandomness

HOLDER = """
import sys
from pathlib import Path
from tiltyard.catalog.process_queue import ProcessQueue
from tiltyard.interfaces import SystemClock
line = ProcessQueue(Path(sys.argv[1]))
assert line.enter(SystemClock(), 0.0)
print("in", flush=True)
sys.stdin.read()
"""


def test_one_at_a_time_in_the_line(tmp_path: Path) -> None:
    clock = ManualClock()
    first, second = ProcessQueue(tmp_path), ProcessQueue(tmp_path)
    assert first.enter(clock, 1.0)
    assert not second.enter(clock, 1.0)
    assert clock.monotonic() >= 1.0
    first.leave()
    assert second.enter(clock, 1.0)
    second.leave()
    first.close()
    second.close()


def test_whoever_dies_makes_room(tmp_path: Path) -> None:
    clock = ManualClock()
    line = ProcessQueue(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        assert not line.enter(clock, 1.0)
        holder.kill()
        holder.wait()
        assert line.enter(clock, 1.0)
    line.close()


def test_where_no_line_can_be_had_nobody_waits(tmp_path: Path) -> None:
    clock = ManualClock()
    line = ProcessQueue(tmp_path / "missing")
    assert not line.enter(clock, 60.0)
    assert clock.monotonic() == 0.0
    line.leave()
    line.close()


def test_a_holder_that_hangs_keeps_nobody_from_writing(tmp_path: Path) -> None:
    clock = ManualClock()
    hanging = ProcessQueue(tmp_path)
    records = open_records(f"sqlite:///{tmp_path}/catalog.db", runtime=Runtime(clock, SeededRandomness("line")))
    assert hanging.enter(clock, 0.0)
    records.transact(["a"], [], lambda found: Writes(None, {"a": {"x": 1}}))
    assert records.get(["a"]) == {"a": {"x": 1}}
    assert 60.0 > clock.monotonic() >= Sqlite.patience.seconds
    records.close()
    hanging.close()

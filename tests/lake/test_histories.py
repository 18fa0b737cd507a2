"""Transactions by several processes, whose catalog loses answers and kills them: they must see what their isolation allows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lake_workload import make_tables, read_all
from tiltyard.lake import Lake
from tiltyard.testing.histories import History, Isolation, Recorder, check, load

PROCESSES = 4
SEED = 20_261


def run_processes(address: str, root: Path, isolation: Isolation, transactions: int, directory: Path) -> tuple[History, int]:
    """Lets processes run until so many transactions were begun; one that is killed is followed by another. The history, and the deaths."""
    with Lake.open(address, root=root, durability="os") as lake:
        make_tables(lake)
    files: list[Path] = []
    deaths = 0

    def start(count: int) -> tuple[subprocess.Popen[bytes], Path, int]:
        name = f"p{len(files)}"
        file = directory / f"{name}.jsonl"
        file.touch()
        files.append(file)
        command = [sys.executable, "-m", "tests.support.lake_workload", address, str(root), str(file), name, str(SEED)]
        with file.with_suffix(".log").open("wb") as log:
            return subprocess.Popen([*command, isolation, str(count)], stderr=log), file, count

    running = [start(transactions // PROCESSES) for _ in range(PROCESSES)]
    while running:
        process, file, count = running.pop(0)
        code = process.wait()
        if code == 0:
            continue
        assert code == -9, f"a process ended with {code}: {file.with_suffix('.log').read_text()[-3000:]}"
        deaths += 1
        begun = sum('"began"' in line for line in file.read_text().splitlines())
        if count > begun:
            running.append(start(count - begun))
    with Lake.open(address, root=root, durability="os") as lake:
        last = directory / "last.jsonl"
        with last.open("w") as lines:
            recorder = Recorder("last", lines.write, lambda: sys.maxsize)
            recorder.end(recorder.begin([], final=True), "ok", read_all(lake))
        assert lake.catalog.pending() == []
    texts = [file.read_text().splitlines(keepends=True) for file in (*files, last)]
    return load(*texts), deaths


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_no_anomaly_under_faults_and_kills(isolation: Isolation, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    history, deaths = run_processes(str(tmp_path / "lake"), tmp_path / "lake", isolation, 2500, tmp_path)
    outcomes = [one.outcome for one in history.transactions]
    print({one: outcomes.count(one) for one in ("ok", "failed", "unknown")}, f"{deaths} killed")
    assert len(outcomes) >= 2500
    assert outcomes.count("ok") > 1000
    assert deaths > 0
    report = check(history, isolation)
    assert report.ok, str(report)

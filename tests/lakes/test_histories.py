"""Transactions by several processes, whose catalog loses answers and kills them: they must see what their isolation allows."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType

import pytest

from tests.lakes import name_workload
from tests.lakes.name_workload import make_rows, read_rows, steps_of
from tests.support import lake_workload
from tests.support.children import fork_server
from tests.support.lake_workload import make_tables, read_all
from tests.support.proving import pick
from tiltyard.lake import Lake
from tiltyard_proofs.histories import Anomaly, Define, History, Isolation, Listing, NameStep, Recorder, check, load

PROCESSES = 4
TRANSACTIONS = pick(200, 2500)
OF_NAMES = pick(400, 2000)
SEED = 20_261


_server = fork_server()


def _work(workload: str, arguments: Sequence[str], log: Path) -> None:
    """What a child does; what it complains of is in a file."""
    with log.open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    import_module(workload).main(*arguments)


def run_processes(
    address: str, root: Path, isolation: Isolation, transactions: int, directory: Path, workload: ModuleType = lake_workload
) -> tuple[History, int, list[NameStep]]:
    """Lets processes run until so many transactions were begun; one that is killed is followed by another.

    Returns:
        The history, how many were killed, and what each snapshot did to names.
    """
    make, read = (make_tables, read_all) if workload is lake_workload else (make_rows, read_rows)
    with Lake.open(address, root=root, durability="os") as lake:
        make(lake)
    files: list[Path] = []
    deaths = 0

    def start(count: int) -> tuple[ForkServerProcess, Path, int]:
        name = f"p{len(files)}"
        file = directory / f"{name}.jsonl"
        file.touch()
        files.append(file)
        arguments = (address, str(root), str(file), name, str(SEED), isolation, str(count))
        process = _server.Process(target=_work, args=(workload.__name__, arguments, file.with_suffix(".log")))
        process.start()
        return process, file, count

    running = [start(transactions // PROCESSES) for _ in range(PROCESSES)]
    while running:
        process, file, count = running.pop(0)
        process.join()
        code = process.exitcode
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
            recorder.end(recorder.begin([], final=True), "ok", read(lake))
        assert lake.catalog.pending() == []
        steps = steps_of(lake)
    texts = [file.read_text().splitlines(keepends=True) for file in (*files, last)]
    return load(*texts), deaths, steps


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_no_anomaly_under_faults_and_kills(isolation: Isolation, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    history, deaths, _ = run_processes(str(tmp_path / "lake"), tmp_path / "lake", isolation, TRANSACTIONS, tmp_path)
    outcomes = [one.outcome for one in history.transactions]
    print({one: outcomes.count(one) for one in ("ok", "failed", "unknown")}, f"{deaths} killed")
    assert len(outcomes) >= TRANSACTIONS
    assert outcomes.count("ok") > 0.4 * TRANSACTIONS
    assert deaths > 0
    report = check(history, isolation)
    assert report.ok, str(report)


def test_no_anomaly_of_names_under_faults_and_kills(tmp_path: Path) -> None:
    """Tables are made, dropped, renamed and listed by several processes, and what they do depends on names: a serial order explains it."""
    print(f"seed {SEED}")
    history, deaths, steps = run_processes(str(tmp_path / "lake"), tmp_path / "lake", "serializable", OF_NAMES, tmp_path, name_workload)
    ok = [one for one in history.transactions if one.outcome == "ok"]
    changed = [one for one in ok if any(isinstance(op, Define) for op in one.ops)]
    listed = [one for one in ok if any(isinstance(op, Listing) for op in one.ops)]
    print(f"{len(history)} transactions, {len(ok)} ok, {len(changed)} changed names, {len(listed)} listed them, {deaths} killed")
    assert len(history) >= OF_NAMES
    assert len(changed) > 0.15 * OF_NAMES
    assert len(listed) > 0.05 * OF_NAMES
    report = check(history, "serializable", names=steps)
    assert report.ok, str(report)


def test_skews_of_names_are_found_under_snapshot_isolation(tmp_path: Path) -> None:
    """The same work under the weaker isolation shows what the stronger one is for: the checker sees it, and nothing worse."""
    print(f"seed {SEED}")
    history, _, steps = run_processes(str(tmp_path / "lake"), tmp_path / "lake", "snapshot", 600, tmp_path, name_workload)
    weak = check(history, "snapshot", names=steps)
    assert weak.ok, str(weak)
    strict = check(history, "serializable", names=steps)
    skews = [finding for finding in strict.findings if finding.anomaly is Anomaly.WRITE_SKEW]
    assert any((edge.key or "").startswith("name ") for finding in skews for edge in finding.cycle), str(strict)

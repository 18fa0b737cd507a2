"""Writers that append to one table from processes of their own, ours and plain pylance's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Literal

import pyarrow as pa

from tests.support.children import fork_server

PATIENCE = 240.0
"""Seconds after which something that should have happened is called a failure."""

SCHEMA = pa.schema([pa.field("writer", pa.string(), nullable=False), pa.field("sequence", pa.int64(), nullable=False)])

_server = fork_server()


@dataclass(frozen=True, slots=True)
class Report:
    """What one writer knows for certain, and what it was told otherwise."""

    writer: str
    acknowledged: tuple[int, ...]
    failures: tuple[str, ...]


Job = Callable[[str, str, int, Literal["fsync", "os"], Barrier], Report]


def row(writer: str, sequence: int) -> pa.Table:
    return pa.table({"writer": [writer], "sequence": [sequence]}, schema=SCHEMA)


def append_with_us(uri: str, writer: str, commits: int, durability: Literal["fsync", "os"], start: Barrier) -> Report:
    """Every commit must be acknowledged: one that is not ends the process with its error."""
    import tiltyard as ty

    table = ty.Table.open(uri, durability=durability)
    start.wait(PATIENCE)
    for sequence in range(commits):
        table.append(row(writer, sequence), commit=ty.CommitOptions(race_retries=200))  # how fair the race is, is not asked here
    return Report(writer, tuple(range(commits)), ())


def append_with_pylance(uri: str, writer: str, commits: int, durability: Literal["fsync", "os"], start: Barrier) -> Report:
    import lance

    lance.dataset(uri)
    start.wait(PATIENCE)
    acknowledged, failures = [], []
    for sequence in range(commits):
        try:
            lance.write_dataset(row(writer, sequence), uri, mode="append")
            acknowledged.append(sequence)
        except (OSError, RuntimeError, ValueError) as error:
            failures.append(str(error))
    return Report(writer, tuple(acknowledged), tuple(failures))


def create_with_us(uri: str, writer: str, _commits: int, durability: Literal["fsync", "os"], start: Barrier) -> Report:
    """Acknowledged is the one commit there is, if it was this writer's."""
    import tiltyard as ty

    start.wait(PATIENCE)
    try:
        ty.Table.create(uri, row(writer, 0), durability=durability)
    except ty.errors.AlreadyExists as error:
        return Report(writer, (), (error.kind,))
    return Report(writer, (0,), ())


def run_together(uri: Path, jobs: Sequence[tuple[str, Job]], commits: int, durability: Literal["fsync", "os"]) -> list[Report]:
    """One process for each job, let loose at the same moment."""
    start = _server.Barrier(len(jobs))
    ends = []
    try:
        for writer, job in jobs:
            ours, theirs = _server.Pipe(duplex=False)
            process = _server.Process(target=_run, args=(theirs, job, str(uri), writer, commits, durability, start), daemon=True)
            process.start()
            theirs.close()
            ends.append((process, ours))
        reports = []
        for process, pipe in ends:
            assert pipe.poll(PATIENCE), f"{process.name} did not report"
            reports.append(pipe.recv())
            process.join(PATIENCE)
        return reports
    finally:
        for process, pipe in ends:
            pipe.close()
            process.kill()  # nothing to a process that has ended
            process.join(PATIENCE)


def _run(pipe: Connection, job: Job, uri: str, writer: str, commits: int, durability: Literal["fsync", "os"], start: Barrier) -> None:
    with pipe:
        pipe.send(job(uri, writer, commits, durability, start))

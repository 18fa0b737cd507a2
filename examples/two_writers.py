"""Two processes append to one table at the same time: one through Tiltyard, one through plain pylance.

Neither knows of the other. Each batch becomes a version of its own; the one that loses the race for a version is rebased over the winner.
At the end every acknowledged row must be there exactly once, in the eyes of both libraries.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pyarrow as pa

BATCHES = 8
ROWS = 50
PATIENCE = 60.0
"""Seconds after which a writer that says nothing is given up."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a writer reports: a version it was promised, or that it is done."""

    writer: str
    batch: int = -1
    version: int = 0
    over: tuple[int, ...] = ()
    """The versions it was rebased over, as far as the library tells."""
    refused: str = ""

    @property
    def done(self) -> bool:
        return self.batch < 0


def batch_of(writer: str, batch: int) -> pa.Table:
    return pa.table({"writer": [writer] * ROWS, "batch": [batch] * ROWS, "row": list(range(ROWS))})


def write_with_tiltyard(uri: str, start: Barrier, said: Queue[Said]) -> None:
    import tiltyard as ty

    table = ty.Table.open(uri)
    table.lance  # noqa: B018 - loads pylance, which writes the data files, before the race begins
    for batch in range(BATCHES):
        start.wait(PATIENCE)
        try:
            result = table.append(batch_of("tiltyard", batch))
        except ty.TiltyardError as error:
            said.put(Said("tiltyard", batch, refused=str(error)))
            continue
        said.put(Said("tiltyard", batch, result.version, tuple(winner.version for winner in result.rebased_over)))
    said.put(Said("tiltyard"))


def write_with_pylance(uri: str, start: Barrier, said: Queue[Said]) -> None:
    import lance

    dataset = lance.dataset(uri)
    for batch in range(BATCHES):
        start.wait(PATIENCE)
        try:
            dataset = lance.write_dataset(batch_of("pylance", batch), dataset, mode="append")
        except OSError as error:  # what pylance raises when it gives up on a commit
            said.put(Said("pylance", batch, refused=str(error)))
            dataset = lance.dataset(uri)
            continue
        said.put(Said("pylance", batch, dataset.version))
    said.put(Said("pylance"))


def race(uri: str) -> list[Said]:
    """Lets both write, prints what they say as it comes, and gives what was promised."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    said: Queue[Said] = context.Queue()
    jobs = (write_with_tiltyard, write_with_pylance)
    writers = [context.Process(target=job, args=(uri, start, said), daemon=True) for job in jobs]
    promised: list[Said] = []
    working = len(writers)
    try:
        for writer in writers:
            writer.start()
        while working:
            word = said.get(timeout=PATIENCE)
            if word.done:
                working -= 1
                continue
            print(_sentence(word))
            if not word.refused:
                promised.append(word)
        for writer in writers:
            writer.join(PATIENCE)
    finally:
        for writer in writers:
            if writer.is_alive():  # one of them failed: the other would wait for it
                writer.kill()
                writer.join(PATIENCE)
    return promised


def _sentence(word: Said) -> str:
    if word.refused:
        return f"  {word.writer:<9} batch {word.batch:>2} was refused: {word.refused}"
    over = f", rebased over version {', '.join(map(str, word.over))}" if word.over else ""
    return f"  {word.writer:<9} batch {word.batch:>2} is version {word.version:>2}{over}"


def prove(uri: str, promised: list[Said]) -> bool:
    """Each row that was promised is there exactly once, and nothing else is; both libraries say so."""
    import lance

    import tiltyard as ty

    expected = {(word.writer, word.batch, row) for word in promised for row in range(ROWS)}
    fine = True
    for name, rows in {"tiltyard": ty.Table.open(uri).to_arrow(), "pylance": lance.dataset(uri).to_table()}.items():
        found = list(zip(*(rows[column].to_pylist() for column in ("writer", "batch", "row")), strict=True))
        lost, doubled, foreign = len(expected - set(found)), len(found) - len(set(found)), len(set(found) - expected)
        print(f"  {name:<9} reads {len(found):,} of {len(expected):,} rows: {lost} lost, {doubled} doubled, {foreign} unexpected")
        fine = fine and not (lost or doubled or foreign)
    return fine


def tiltyard(*arguments: str) -> int:
    """Runs a command of the command line and shows it."""
    print(f"\n$ tiltyard {' '.join(Path(argument).name if os.sep in argument else argument for argument in arguments)}", flush=True)
    return subprocess.run([sys.executable, "-m", "tiltyard.cli", *arguments], check=False).returncode


def main() -> int:
    import tiltyard as ty

    with tempfile.TemporaryDirectory() as directory:
        uri = str(Path(directory) / "readings.lance")
        schema = pa.schema({"writer": pa.string(), "batch": pa.int64(), "row": pa.int64()})
        ty.Table.create(uri, schema, options=ty.TableOptions(message="an empty table"))
        print(f"Two processes append {BATCHES} batches of {ROWS} rows each to one table, one with tiltyard, one with plain pylance.")
        print("Both start each batch at the same moment and want the same version.\n", flush=True)
        started = time.monotonic()
        promised = race(uri)
        seconds = time.monotonic() - started
        print(f"\n{len(promised)} of {2 * BATCHES} batches acknowledged in {seconds:.1f} s, the start of both processes included.")
        tiltyard("log", uri, "--all")
        print("\nIs every acknowledged row there exactly once?", flush=True)
        fine = prove(uri, promised)
        sound = tiltyard("check", uri) == 0
    print("\nNothing lost, nothing doubled." if fine and sound else "\nSomething is wrong: see above.")
    return 0 if fine and sound else 1


if __name__ == "__main__":
    raise SystemExit(main())

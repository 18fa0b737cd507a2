"""What others do to a table while Spark writes to it: ``python -m tests.support.spark_beside pylance|compactor path ...``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import lance
import pyarrow as pa

import tiltyard as ty
from tiltyard.errors import ContentionError, RetryableConflict


def append_by_pylance(path: str, first: int, commits: int, rows: int) -> None:
    """A plain writer, which knows nothing of us. It looks for a conflict itself and tries again."""
    for number in range(commits):
        begin = first + number * rows
        ids = range(begin, begin + rows)
        lance.write_dataset(pa.table({"id": pa.array(ids, pa.int64()), "s": [str(one) for one in ids]}), path, mode="append")


def compact_until(path: str, stop: str) -> None:
    """Compacts as long as others write; how often it got through is in the file it was told to watch."""
    done = 0
    while not Path(stop).exists():
        try:
            table = ty.Table.open(path)
            before = table.version
            done += table.compact().version > before
        except (RetryableConflict, ContentionError):
            pass  # the writers come first
        time.sleep(0.05)
    Path(stop).write_text(str(done))


if __name__ == "__main__":
    what, path, *more = sys.argv[1:]
    if what == "pylance":
        append_by_pylance(path, *map(int, more))
    else:
        compact_until(path, *more)

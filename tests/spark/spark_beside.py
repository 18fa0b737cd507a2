"""What others do to a table while Spark writes to it: ``python -m tests.spark.spark_beside pylance|compactor path ...``."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import lance
import pyarrow as pa

import tiltyard as ty
from tiltyard.errors import ContentionError, RetryableConflict


def append_by_pylance(path: str, first: int, commits: int, rows: int) -> None:
    """A plain writer, which knows nothing of us. It looks for a conflict itself and tries again; each commit is a line of output."""
    for number in range(commits):
        begin = first + number * rows
        ids = range(begin, begin + rows)
        lance.write_dataset(pa.table({"id": pa.array(ids, pa.int64()), "s": [str(one) for one in ids]}), path, mode="append")
        print(number, flush=True)


def compact_beside(path: str, told: str) -> None:
    """Compacts once for each line that others send, while they write on; how often it got through is in a file in the end."""
    done = 0
    for _ in sys.stdin:
        table = ty.Table.open(path)
        before = table.version
        with suppress(RetryableConflict, ContentionError):  # the writers come first
            done += table.compact().version > before
    Path(told).write_text(str(done))


if __name__ == "__main__":
    what, path, *more = sys.argv[1:]
    if what == "pylance":
        append_by_pylance(path, *map(int, more))
    else:
        compact_beside(path, *more)

"""A process whose threads append through one batching writer until it is killed; it says which ids were acknowledged.

Run as ``python -m tests.faults.batch_writer_killed KIND ROOT FIRST``, KIND being ``table`` or ``lake``.
"""

from __future__ import annotations

import sys
import threading
from itertools import count

import tiltyard as ty
from tests.support.commits import rows

THREADS = 4
EACH = 1_000_000
"""Ids that each thread may use."""


def main(kind: str, root: str, first: int) -> None:
    table: ty.Table | ty.LakeTable = ty.Table.open(root, durability="os") if kind == "table" else ty.Lake.open(root).table("t")
    writer = table.writer(max_delay=0.003, max_rows=30)
    lock = threading.Lock()

    def write(thread: int) -> None:
        for number in count(first + thread * EACH):
            receipt = writer.append(rows(number))
            if number % 3 == 0:  # others are asked for later, or never
                receipt.result()
                with lock:
                    print(number, flush=True)

    for thread in range(THREADS):
        threading.Thread(target=write, args=(thread,), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""A process that appends to a sharded table in one thread and reshards it in another, until it is killed; it says what was acknowledged.

Run as ``python -m tests.faults.sharded_killed ROOT FIRST``.
"""

from __future__ import annotations

import sys
import threading
from itertools import count, cycle

import tiltyard as ty
from tests.support.commits import rows

MANY = 6
"""Rows of an append; together they are there, or none of them."""


def main(root: str, first: int) -> None:
    lake = ty.Lake.open(root, durability="os")

    def append() -> None:
        table = lake.table("t")
        for number in count(first):
            try:
                table.append(rows(*range(number * MANY, (number + 1) * MANY)))
            except (ty.ConflictError, ty.ContentionError):  # the other thread was faster, too often
                continue
            print(number, flush=True)

    def reshard() -> None:
        table = lake.table("t")
        assert isinstance(table, ty.ShardedTable)
        for shards in cycle((3, 5, 2)):
            try:
                table.reshard(shards)
            except (ty.ConflictError, ty.ContentionError):
                continue

    for work in (append, reshard):
        threading.Thread(target=work, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""A process that makes a table and writes to it until it is killed at a store call; it says what was acknowledged.

Run as ``python -m tests.faults.killed_writer ROOT HANDLER``; ``TILTYARD_KILL_AT`` and ``TILTYARD_KILL_WHEN`` say where it dies.
"""

from __future__ import annotations

import sys

import tiltyard as ty
from tests.support.commits import rows
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.local import LocalStore
from tiltyard.testing import KillPoint
from tiltyard.verbs.engine.access import open_access

STEPS = ("create", "append", "overwrite", "append")


def write(store: ObjectStore, root: str, handler: str) -> None:
    """Step n brings the row n."""
    place = open_access(root, ty.Storage(handler=handler), store=store)
    table = ty.Table._create(place, rows(0))
    print(1, flush=True)
    for number, step in enumerate(STEPS[1:], 1):
        result = table.append(rows(number)) if step == "append" else table.overwrite(rows(number))
        print(result.version, flush=True)


if __name__ == "__main__":
    write(KillPoint.from_environment(LocalStore(sys.argv[1])), sys.argv[1], sys.argv[2])

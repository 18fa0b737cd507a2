"""A process that makes a table and writes to it until it is killed at a store call; it says what was acknowledged."""

from __future__ import annotations

from contextlib import redirect_stdout
from pathlib import Path

import tiltyard as ty
from tests.support.commits import rows
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.local import LocalStore
from tiltyard.testing import KillPoint
from tiltyard.testing.faults import When
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


def write_and_die(root: str, handler: str, at: int, when: When, said: Path) -> None:
    """What a child does: the call ``at`` is its last. What was acknowledged is in a file."""
    with said.open("w") as out, redirect_stdout(out):
        write(KillPoint(LocalStore(root), at, when=when, really=True), root, handler)

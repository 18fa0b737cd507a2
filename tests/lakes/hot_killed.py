"""A writer of a lake at a table that others want as well, in a process that may kill itself while it is its turn.

python -m tests.lakes.hot_killed SETTINGS    (JSON: uri, arguments, table, first, point)

It tells each number on its output once the transaction that wrote it is acknowledged, and goes on until its input is closed or it dies.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from tests.support.lakes import numbers
from tiltyard.catalog.lake_values import Moved
from tiltyard.catalog.records import Decide, Found, Writes
from tiltyard.lake import Lake
from tiltyard.lakes.commit_transaction import StagedTransaction
from tiltyard.lakes.hot_tables import HotTables, Turn

T = TypeVar("T")

POINTS: Final = ("turn taken", "rebased", "publish: before", "publish: decided", "publish: after", "named", "turn given back")
"""Where a writer may die that others wait for."""


def deadly(point: str, lake: Lake) -> None:
    """Sees to it that this process dies at a point, when it has waited for others before."""
    waited = False

    def reached(here: str) -> None:
        if here == point and waited:
            os.kill(os.getpid(), signal.SIGKILL)

    take, leave, carry_over, transact = Turn.take, Turn.leave, StagedTransaction._carry_over, lake.catalog.records.transact

    def taking(turn: Turn, *, lost: bool = False) -> bool:
        nonlocal waited
        taken = take(turn, lost=lost)
        waited = turn._ticket is not None and turn._ticket.waited
        reached("turn taken")
        return taken

    def leaving(turn: Turn) -> None:
        held = turn.taken
        if held:
            reached("named")
        leave(turn)
        if held:
            reached("turn given back")

    def carrying(tx: StagedTransaction, several: Iterable[Moved]) -> None:
        found = list(several)
        carry_over(tx, found)
        if found:
            reached("rebased")

    def transacting(exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        if not any(key.startswith("tip/") for key in exclusive):
            return transact(exclusive, shared, decide)

        def decided(found: Found) -> Writes[T]:
            writes = decide(found)
            reached("publish: decided")
            return writes

        reached("publish: before")
        result = transact(exclusive, shared, decided)
        reached("publish: after")
        return result

    always: Callable[[HotTables, Collection[str]], bool] = lambda _, tables: True  # noqa: E731
    for owner, name, value in (
        (HotTables, "any_of", always),
        (Turn, "take", taking),
        (Turn, "leave", leaving),
        (StagedTransaction, "_carry_over", carrying),
        (lake.catalog.records, "transact", transacting),
    ):
        setattr(owner, name, value)


def main(settings: str) -> None:
    given = json.loads(settings)
    with Lake.open(given["uri"], **{"durability": "os", **given["arguments"]}) as lake:
        if given["point"]:
            deadly(given["point"], lake)
        number = given["first"]
        while not select.select([sys.stdin], [], [], 0)[0]:
            with lake.transaction() as tx:
                tx.table(given["table"]).append(numbers(number))
                tx.table("hot").append(numbers(number))
            print(number, flush=True)
            number += 1


@contextmanager
def writer(uri: str, arguments: dict[str, Any], table: str, first: int, point: str = "") -> Any:
    """Such a process; without a point it goes on until its input is closed."""
    settings = {"uri": uri, "arguments": {key: str(value) for key, value in arguments.items()}, "table": table, "first": first}
    command = [sys.executable, "-m", "tests.lakes.hot_killed", json.dumps({**settings, "point": point})]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    main(sys.argv[1])

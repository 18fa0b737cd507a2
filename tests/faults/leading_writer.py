"""A process that leads, waits until others are in line, and stops or dies at a named point of the commit it makes for them.

Arguments: the table's directory, how many to wait for, the point, the signal it sends to itself there, the verb. It prints ``leading`` as
soon as it leads, and ``done`` if it gets that far.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import tiltyard as ty
from tests.support.commits import rows
from tests.support.in_line import in_company
from tiltyard.storage.local_queue import QUEUE, LocalPlace
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.joint_delete import JointDelete
from tiltyard.transaction.log import Landing
from tiltyard.transaction.turns import Turns
from tiltyard.verbs.engine.rows_in_memory import RowsInMemory

POINTS: Final = ("gathered", "written", "announced", "created", "told", "half answered", "answered")
LEADERS_ROW: Final = 1000


def main() -> None:
    uri, followers, point, number, verb = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]

    def stop() -> None:
        os.kill(os.getpid(), number)

    _wait_for(uri, followers)
    owner, name, count = {
        "gathered": (Turns, "members", 1),
        "written": {"append": (LocalPlace, "offers", 1), "rows": (RowsInMemory, "write", 1), "delete": (JointDelete, "operation", 1)}[verb],
        "announced": (Committer, "_prepared", 1),
        "created": (Landing, "create", 1),
        "told": (LocalPlace, "tell", 1),
        "half answered": (LocalPlace, "answer", 1),
        "answered": (LocalPlace, "answer", followers),
    }[point]
    _after(owner, name, count, stop)
    table = in_company(ty.Table.open(uri), followers if verb == "rows" else 0)
    if verb == "delete":
        table.delete(f"id = {LEADERS_ROW}")
    else:
        table.append(rows(LEADERS_ROW))
    print("done", flush=True)


def _wait_for(uri: str, followers: int) -> None:
    """The leader says that it leads, and looks at the queue only when everybody is there."""
    real = LocalPlace.offers

    def offers(self: LocalPlace, most: int) -> Any:
        print("leading", flush=True)
        pause = threading.Event()
        for _ in range(60_000):  # who gives up waiting is not there any more, and must not be waited for
            if len(list((Path(uri) / QUEUE).glob(".tmp.q*"))) >= followers:
                break
            pause.wait(0.001)
        LocalPlace.offers = real  # type: ignore[method-assign]
        return self.offers(most)

    LocalPlace.offers = offers  # type: ignore[method-assign]


def _after(owner: type, name: str, count: int, action: Callable[[], None]) -> None:
    """Does something after so many calls of a method, once."""
    calls = 0
    real = getattr(owner, name)

    def wrapped(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal calls
        result = real(self, *given, **named)
        calls += 1
        if calls == count:
            action()
        return result

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    main()

"""A process that forks others, each of which does one verb and is killed in the middle; importing everything anew would take longer.

It has loaded all libraries and used none of them: what they start when they are first used, threads above all, does not survive a fork.
Run as ``python -m tests.faults.kill_server``; a line of JSON for each job comes in, and one goes out when that child is gone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance.fragment
import lance.optimize

from tests.support.kill_verbs import TRIALS, opened
from tiltyard.interfaces import ObjectStore
from tiltyard.storage import files, open_store
from tiltyard.storage.wrapper import Request, T, WrapperStore
from tiltyard.verbs.engine import access as place

assert lance.optimize  # loaded, not used

_UNIQUE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{40,}|[01]{20,}[0-9a-f]+|\d{15,}|#\d+")


class Points:
    """Counts the points that a verb comes by, notes their names, and ends the process at one of them."""

    def __init__(self, at: int | None) -> None:
        self.names: list[str] = []
        self._at = at
        self.armed = False

    def reach(self, name: str) -> None:
        if self.armed:
            self.names.append(_UNIQUE.sub("*", name))
            if len(self.names) == self._at:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, call: Callable[[], T]) -> T:
        self.reach(f"before {name}")
        try:
            return call()
        finally:
            self.reach(f"after {name}")


class PointStore(WrapperStore):
    """Every call of a store is two points."""

    def __init__(self, inner: ObjectStore, points: Points) -> None:
        super().__init__(inner)
        self._points = points

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        return self._points.around(f"{method} {path}", lambda: request(self.inner))


def _lay(points: Points) -> None:
    """Lays points around each store that is opened from now on, and into the steps by which a local file comes about."""
    # Where it is used, not where it is defined: a branch, a base and the target of a clone are opened there, too.
    vars(place)["open_store"] = lambda *args, **options: PointStore(open_store(*args, **options), points)

    def after(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **options: Any) -> Any:
            done = step(*args, **options)
            points.reach(name)
            return done

        return stepped

    files.write_temporary = after("a file is staged", files.write_temporary)
    files.copy_temporary = after("a copy is staged", files.copy_temporary)
    files.create_name = after("a file has two names", files.create_name)


def _child(job: dict[str, Any]) -> None:
    trial, root = TRIALS[job["verb"]], Path(job["root"])
    points = Points(job.get("at"))
    _lay(points)
    table = opened(root, trial)
    acknowledged = table.update_config({"acknowledged": "yes"}).version
    Path(job["acknowledged"]).write_text(str(acknowledged))
    points.armed = True
    trial.act(table, points.reach)
    Path(job["names"]).write_text(json.dumps(points.names))


def _run(job: dict[str, Any]) -> int:
    """How a child ended: minus the signal's number, or its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 3
    try:
        _child(job)
        code = 0
    finally:  # a child must never get back to where its parent reads jobs
        if code:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        print(_run(json.loads(line)), flush=True)

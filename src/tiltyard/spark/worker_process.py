"""The Python processes that Spark starts: made fit for short work, which is what scans and micro-batches are.

Two things in such a process take longer than our work in it. It sends what it has in several small parts; the second waits until the JVM
acknowledges the first, and the JVM, which has nothing to say, waits 40 ms before it does. And after each task Spark has Python look for
garbage among all objects, 50 ms of processor time once the modules for Arrow and Lance are loaded, which nobody ever drops.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
from contextlib import suppress
from typing import Final

_OF_WORKERS: Final = ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_DIR", "PYTHON_WORKER_FACTORY_SOCK_PATH")
_HIGHEST: Final = 256
"""File descriptors that are looked at: the connection is among the first that a process has."""
_LOOPBACK: Final = ("127.0.0.1", "::1")

_modules: int | None = None
"""How many were loaded when work in this process last began; None before the first."""


def is_worker() -> bool:
    """Whether Spark started this process; a driver is none."""
    return any(name in os.environ for name in _OF_WORKERS)


def begin_work() -> None:
    """Called where Spark calls us in a process of its own; does nothing elsewhere, and little after the second time.

    What was loaded by the work before is taken out of the search for garbage. Only then, not when it was loaded: Spark has just
    searched, so what is there is in use, and no garbage is kept for good.
    """
    global _modules
    if not is_worker():
        return
    if _modules is None:
        send_at_once()
    elif len(sys.modules) != _modules:
        gc.freeze()
    _modules = len(sys.modules)


def send_at_once() -> int:
    """Has the connections of this process to processes of the same machine send small parts without waiting; how many there are."""
    found = 0
    for descriptor in range(_HIGHEST):
        with suppress(OSError):  # closed, or no connection
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                found += _sends_at_once(descriptor)
    return found


def _sends_at_once(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getpeername()[0] not in _LOOPBACK:
            return False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return True

"""The bookkeeping of versions that stock clients published, done for many at once, out of the way of their next commits.

A version is committed and has its name before its client is answered. What is left - a flush, a record that goes, a staged name that goes -
is a write to the catalog of its own. Done at once it would stand in the way of the client's next commit; so it waits a moment, and is one
write for all versions since the last. Whoever reads a table meanwhile does it for that table; a server that dies leaves it to the next.
"""

from __future__ import annotations

import threading
from typing import Final

from tiltyard.lakes.namespaces.publish_staged import UnsettledVersion, settle_all

WAIT: Final = 0.05
"""Seconds for which bookkeeping waits for more of its kind."""
MOST: Final = 128
"""Versions that are settled in one step."""


class SettleQueue:
    """Versions that wait for their bookkeeping, and the thread that does it. ``add`` may be called from any thread."""

    def __init__(self, wait: float = WAIT) -> None:
        self._wait = wait
        self._waiting: list[UnsettledVersion] = []
        self._lock = threading.Lock()
        self._news, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="tiltyard-settling", daemon=True)
        self._thread.start()

    def add(self, settlement: UnsettledVersion) -> None:
        """Takes a version; one that comes after the end is settled at once."""
        with self._lock:
            if not self._end.is_set():
                self._waiting.append(settlement)
                if len(self._waiting) == 1:  # the thread is woken once for many: whoever commits does not wait for it
                    self._news.set()
                return
        settle_all([settlement])

    def close(self) -> None:
        """Settles what waits. Closing twice does no harm."""
        with self._lock:
            self._end.set()
        self._news.set()
        self._thread.join()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self._news.wait()
            stopping = self._end.wait(self._wait)  # whatever came before the end is among what is taken next
            self._news.clear()
            while some := self._taken():
                settle_all(some)

    def _taken(self) -> list[UnsettledVersion]:
        with self._lock:
            some, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            return some

"""Records in the memory of this process: for tests and as the plainest form of the interface."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import TypeVar

from tiltyard.catalog.bodies import check_keys, decode, encode
from tiltyard.catalog.records import Body, Decide, Found

T = TypeVar("T")


class MemoryRecords:
    """Records that live and die with the process. Kept as text, so that what comes back is what any database would give."""

    url = "memory:"

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._lock = threading.RLock()

    def get(self, keys: Collection[str]) -> Found:
        check_keys(keys)
        with self._lock:
            return {key: decode(key, self._bodies[key], self.url) for key in keys if key in self._bodies}

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        with self._lock:
            keys = sorted((key for key in self._bodies if key.startswith(tuple(prefixes))), reverse=descending)
            return [(key, decode(key, self._bodies[key], self.url)) for key in keys[:limit]]

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        check_keys((*exclusive, *shared))
        with self._lock:
            locked = {*exclusive, *shared}
            writes = decide(self.get(locked))
            while taken := [key for key in writes.put if key in self._bodies and key not in locked]:
                locked.update(taken)
                writes = decide(self.get(locked))
            check_keys((*writes.put, *writes.delete))
            self._bodies.update({key: encode(key, body) for key, body in writes.put.items()})
            for key in writes.delete:
                self._bodies.pop(key, None)
            return writes.result

    def close(self) -> None:
        pass

"""Records around records: count what a catalog is asked."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Sequence, Sized
from typing import TypeVar

from tiltyard.catalog.records import Body, Decide, Found, Records, Writes

T = TypeVar("T")
S = TypeVar("S", bound=Sized)


class CountingRecords:
    """Passes every call on to ``inner`` and counts it.

    Attributes:
        calls: how often ``get``, ``scan`` and ``transact`` were called, and how often a ``decide`` was asked.
        log: (method, keys or prefixes) of every call, in order.
        found: how many records were read.
    """

    def __init__(self, inner: Records) -> None:
        self.inner = inner
        self.url = inner.url
        self._lock = threading.Lock()
        self.reset()

    def __repr__(self) -> str:
        return f"CountingRecords({self.inner!r})"

    def reset(self) -> None:
        self.calls: Counter[str] = Counter()
        self.log: list[tuple[str, tuple[str, ...]]] = []
        self.found = 0

    @property
    def gets(self) -> int:
        return self.calls["get"]

    @property
    def scans(self) -> int:
        return self.calls["scan"]

    @property
    def transacts(self) -> int:
        return self.calls["transact"]

    @property
    def decisions(self) -> int:
        return self.calls["decide"]

    def get(self, keys: Collection[str]) -> Found:
        self._count("get", keys)
        return self._read(self.inner.get(keys))

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        self._count("scan", prefixes)
        return self._read(self.inner.scan(prefixes, limit=limit, descending=descending))

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        self._count("transact", (*exclusive, *shared))

        def counted(found: Found) -> Writes[T]:
            self._count("decide", found)
            return decide(self._read(found))

        return self.inner.transact(exclusive, shared, counted)

    def close(self) -> None:
        self.inner.close()

    def _read(self, found: S) -> S:
        with self._lock:
            self.found += len(found)
        return found

    def _count(self, method: str, keys: Collection[str]) -> None:
        with self._lock:
            self.calls[method] += 1
            self.log.append((method, tuple(keys)))

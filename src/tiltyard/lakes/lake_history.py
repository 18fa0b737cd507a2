"""The history of a lake, read as it is looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import overload

from tiltyard.catalog.lake_values import Snapshot
from tiltyard.lakes.table_names import shown

ReadDown = Callable[[int | None, int | None], Iterator[Snapshot]]
"""Snapshots, latest first: at most so many, and only those before one."""


class LakeHistory(Sequence[Snapshot]):
    """Snapshots, latest first. Asking for the first reads few, asking how many there are reads all. Threads may share it."""

    def __init__(self, read: ReadDown, limit: int | None, before: int | None) -> None:
        self._begin, self._limit, self._before = read, limit, before
        self._coming: Iterator[Snapshot] | None = None
        self._read: list[Snapshot] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"LakeHistory({self[:3]!r}, ...)"

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._up_to(None))

    def __iter__(self) -> Iterator[Snapshot]:
        at = 0
        while at < len(self._up_to(at + 1)):
            yield self._read[at]
            at += 1

    @overload
    def __getitem__(self, at: int) -> Snapshot: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Snapshot]: ...

    def __getitem__(self, at: int | slice) -> Snapshot | Sequence[Snapshot]:
        if isinstance(at, slice):
            forward = all(bound is None or bound >= 0 for bound in (at.start, at.stop)) and (at.step or 1) > 0
            return self._up_to(at.stop if forward else None)[at]
        return self._up_to(at + 1 if at >= 0 else None)[at]

    def _up_to(self, count: int | None) -> list[Snapshot]:
        """So many of them are read, or all that there are."""
        with self._lock:
            while count is None or len(self._read) < count:
                step = self._next()
                if step is None:
                    break
                self._read.append(_shown(step))
            return self._read

    def _next(self) -> Snapshot | None:
        if self._coming is None:
            before = self._read[-1].id if self._read else self._before
            self._coming = self._begin(None if self._limit is None else self._limit - len(self._read), before)
        try:
            return next(self._coming, None)
        except BaseException:
            self._coming = None  # it failed halfway; whoever asks again goes on from there
            raise


def _shown(snapshot: Snapshot) -> Snapshot:
    """With names of tables as people write them."""
    return replace(
        snapshot, changes=tuple(replace(change, name=shown(change.name), former=shown(change.former)) for change in snapshot.changes)
    )

"""Sees whether a writer who knows nothing of the queue was beaten to a version.

Such a writer leaves nothing behind that could be found later: stock Lance writes a version under a name with ``#`` in it, and takes that
away again if somebody else has the number. The kernel tells of it (inotify); times of files do not, since they go on by milliseconds.
A user can have few such descriptors, so a process has one for all its tables.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

_CREATED: Final = 0x100
_MOVED_HERE: Final = 0x80
_ONLY_A_DIRECTORY: Final = 0x1000000
_MOST_BYTES: Final = 1 << 16
_HEAD: Final = struct.Struct("iIII")
_STAGED: Final = b"#"
"""Stands in the name of what stock Lance is about to make a version of."""
_HINT: Final = b"latest_version_hint"
"""What it renews once it has made one, under another name first. Ours is written in place, which nobody is told of."""


class Strangers:
    """Those beside one directory of versions. Whoever leads asks; all who ask in one process share what there is to tell."""

    def __init__(self, directory: str) -> None:
        self._notices = _here()
        self._watch = self._notices.add(directory)
        weakref.finalize(self, self._notices.drop, self._watch).atexit = False

    def were_beaten(self) -> bool:
        """Whether the last of them who tried to make a version since somebody asked has made none, as far as one can see."""
        return _STAGED in self._notices.last(self._watch)


class _Notices:
    """What the kernel tells this process of new names in directories. A forked child leaves what is its parent's alone."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()  # garbage may be collected, and a watch dropped, wherever memory is asked for
        self._libc: Any = ctypes.CDLL(None)
        self._users: Counter[int] = Counter()
        self._last: dict[int, bytes] = {}
        try:
            self._descriptor = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except AttributeError:  # pragma: no cover - not a Linux
            self._descriptor = -1

    def add(self, directory: str) -> int:
        """Watches a directory, which has one number however often it is watched; -1 where the system does not let us."""
        if self._descriptor < 0:
            return -1
        wanted = _CREATED | _MOVED_HERE | _ONLY_A_DIRECTORY
        with self._lock:
            watch = int(self._libc.inotify_add_watch(self._descriptor, os.fsencode(directory), wanted))
            self._users[watch] += 1
        return watch

    def drop(self, watch: int) -> None:
        if self._process != os.getpid():
            return
        with self._lock:
            self._users[watch] -= 1
            if watch >= 0 and not self._users[watch]:
                del self._users[watch]
                self._last.pop(watch, None)
                self._libc.inotify_rm_watch(self._descriptor, watch)

    def last(self, watch: int) -> bytes:
        """The last name in a directory that tells of a stranger since somebody asked; nothing where there was none."""
        if self._process != os.getpid():
            return b""
        with self._lock:
            with suppress(OSError):  # nothing happened
                while data := os.read(self._descriptor, _MOST_BYTES):
                    for where, name in _names(data):
                        if where in self._users and (_STAGED in name or _HINT in name):
                            self._last[where] = name
                    if len(data) < _MOST_BYTES // 2:
                        break
            return self._last.pop(watch, b"")


def _names(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + _HEAD.size <= len(data):
        watch, _, _, length = _HEAD.unpack_from(data, place)
        place += _HEAD.size + length
        yield watch, data[place - length : place]


_by_process: Final[dict[int, _Notices]] = {}


def _here() -> _Notices:
    """Of this process. Without a lock, which a fork could leave locked for ever in the child."""
    found = _by_process.get(os.getpid())
    return found if found is not None else _by_process.setdefault(os.getpid(), _Notices())

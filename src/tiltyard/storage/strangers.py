"""Sees whether a writer who knows nothing of the queue was beaten to a version.

Such a writer leaves nothing behind that could be found later: stock Lance writes a version under a name with ``#`` in it, and takes that
away again if somebody else has the number. The kernel tells of it (inotify); times of files do not, since they go on by milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from typing import Final

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
    """Those beside one directory of versions. Whoever leads asks; only in the process that made it."""

    def __init__(self, directory: str) -> None:
        self._process = os.getpid()
        self._descriptor = _watch(directory)
        weakref.finalize(self, _close, self._descriptor)

    def were_beaten(self) -> bool:
        """Whether the last of them who tried to make a version since we asked has made none, as far as one can see."""
        if self._descriptor < 0 or self._process != os.getpid():  # forked: what is told is the parent's
            return False
        names = list[bytes]()
        try:
            while data := os.read(self._descriptor, _MOST_BYTES):
                names += _names(data)
                if len(data) < _MOST_BYTES // 2:
                    break
        except OSError:
            pass  # nothing happened, or the directory is gone
        return _STAGED in next((name for name in reversed(names) if _STAGED in name or _HINT in name), b"")


def _names(data: bytes) -> list[bytes]:
    found, place = list[bytes](), 0
    while place + _HEAD.size <= len(data):
        length = _HEAD.unpack_from(data, place)[3]
        place += _HEAD.size + length
        found.append(data[place - length : place])
    return found


def _watch(directory: str) -> int:
    """A descriptor that tells of new names in a directory; -1 where the system has none to give."""
    try:
        libc = ctypes.CDLL(None)
        descriptor = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if descriptor >= 0 and libc.inotify_add_watch(descriptor, os.fsencode(directory), _CREATED | _MOVED_HERE | _ONLY_A_DIRECTORY) < 0:
            os.close(descriptor)
            return -1
    except (OSError, AttributeError):  # pragma: no cover - not a Linux
        return -1
    return descriptor


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)

"""Who writes to an SQLite file at the moment: from the system's list of locks, since SQLite itself does not know."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_WRITE_BYTE: Final = 120
"""The byte of the file ``-shm`` that is locked by whoever writes to a database with a write-ahead log."""

_LOCKS: Final = Path("/proc/locks")
# Its state stands after the name of its program, which stands in brackets and may hold any character.
_STOPPED: Final = "Tt"


def writer_of(database: Path) -> str:
    """The process that writes to a database and what to do about it, in a sentence; empty where that cannot be told.

    Only reads: to ask the file itself one would have to open and close it, and closing it gives up all locks of this very process.
    """
    try:
        shared = Path(f"{database}-shm").stat()
        held = _LOCKS.read_text()
    except OSError:
        return ""
    # 1: POSIX  ADVISORY  WRITE 3568 fd:00:1234 120 120
    inode = f"{os.major(shared.st_dev):02x}:{os.minor(shared.st_dev):02x}:{shared.st_ino}"
    for line in held.splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[1:4] == ["POSIX", "ADVISORY", "WRITE"] and fields[5] == inode and _covers(fields[6], fields[7]):
            return _told(fields[4])
    return ""


def _covers(start: str, end: str) -> bool:
    return int(start) <= _WRITE_BYTE and (end == "EOF" or int(end) >= _WRITE_BYTE)


def _told(pid: str) -> str:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        state = ""
    if state and state in _STOPPED:
        return f"Process {pid} holds its lock and is stopped: let it go on (kill -CONT {pid}) or end it."
    return f"Process {pid} holds its lock: wait for it, or end it if it hangs."

"""A directory to measure in, whose files are made as fast as on a disk that nobody used before.

On ext4 without a journal whoever creates a file goes over all inodes of its block group that were freed in the last minutes. A new
directory is put into the group of the one above it, so below /tmp, where tests and benchmarks delete thousands of files, a new file took
740 us where it takes 17 elsewhere. Directories below a scratch directory are therefore spread over the disk (what ``chattr +T`` does), and
what is measured one after the other should lie in directories of its own.
"""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_GET_FLAGS: Final = 0x80086601
_SET_FLAGS: Final = 0x40086602
_TOP_OF_HIERARCHY: Final = 0x00020000
_WORD: Final = struct.Struct("l")


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A temporary directory, gone afterwards; each directory that is made in it lies somewhere else on the disk."""
    with tempfile.TemporaryDirectory(prefix=f"tiltyard-{name}-", ignore_cleanup_errors=True) as made:
        with suppress(OSError):  # a file system without such a flag
            spread(made)
        yield Path(made)


def spread(directory: str) -> None:
    """Has the file system put the directories below this one far from each other.

    Raises:
        OSError: the file system has no such flag.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        (flags,) = _WORD.unpack(fcntl.ioctl(descriptor, _GET_FLAGS, _WORD.pack(0)))
        fcntl.ioctl(descriptor, _SET_FLAGS, _WORD.pack(flags | _TOP_OF_HIERARCHY))
    finally:
        os.close(descriptor)

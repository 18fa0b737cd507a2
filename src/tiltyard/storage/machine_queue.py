"""The queue of the writers on this machine before one table of an object store.

It is the queue of a local disk (``local_queue``), in a directory that only this user can enter: the store itself has nothing that could
wake a writer. Writers on other machines know nothing of it and race with whoever leads here. So a machine is one writer to all others.
"""

# System calls on strings, as in local_queue.
# ruff: noqa: PTH104, PTH108, PTH123

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tiltyard.storage.files import write_temporary
from tiltyard.storage.local_queue import QUEUE, LocalPlace, LocalQueue
from tiltyard.storage.paths import TEMPORARY_PREFIX

_ONLY_OURS: Final = 0o700
_CARRIED: Final = f"{TEMPORARY_PREFIX}.version"
_MOST_CARRIED: Final = 4 * 2**20
"""Longer ones take as long to hand over as to read."""


class MachineQueue(LocalQueue):
    """The queue of one table.

    Attributes:
        slowness: how many times as long as on a local disk a turn takes: requests may be repeated for half a minute.
        shared: what those of this process leave for each other, by name.
    """

    slowness = 15.0
    look_every = 0.2
    seldom = 128
    longest_lead = 0
    takes_rows = False

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.shared: dict[str, Any] = {}

    def waited_for(self) -> int:
        """All of the company: a version takes far longer than they take to come back."""
        return self.company

    def place(self, transaction_id: str, since: float) -> MachinePlace:
        return MachinePlace(self, self._root, transaction_id, since)


class MachinePlace(LocalPlace):
    """One commit before the table."""

    __slots__ = ()

    def carry(self, path: str, data: bytes) -> None:
        """Leaves what was written to the store; what is too long for that has to be read there."""
        with suppress(OSError):
            directory = f"{self.root}/{QUEUE}"
            kept = f"{directory}/{_CARRIED}"
            if len(data) > _MOST_CARRIED:
                os.unlink(kept)
                return
            os.rename(write_temporary(directory, path.encode() + b"\n" + data, durable=False), kept)

    def carried(self, path: str) -> bytes:
        try:
            with open(f"{self.root}/{QUEUE}/{_CARRIED}", "rb", buffering=0) as file:
                name, _, data = file.readall().partition(b"\n")
        except OSError:
            return b""
        return data if name == path.encode() else b""


def machine_queue(identity: str) -> MachineQueue | None:
    """The queue of this user's writers on this machine; None where there is no directory that is safe from others."""
    own = Path(tempfile.gettempdir()) / f"tiltyard-{os.getuid()}"
    root = own / hashlib.sha256(identity.encode()).hexdigest()[:32]
    try:
        own.mkdir(_ONLY_OURS, exist_ok=True)
        found = own.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return None
        for name in ("_versions", QUEUE):
            (root / name).mkdir(_ONLY_OURS, parents=True, exist_ok=True)
    except OSError:
        return None
    return MachineQueue(str(root))

"""A commit lock held by the operating system on a file: for writers that share one file system."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from tiltyard.errors import InvalidInput, StorageError
from tiltyard.interfaces import Clock, SystemClock

_MARK = b"tiltyard lock: "
_HOLDER_LIMIT = 200
_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.01


class FileLock:
    """A lock on a file, among threads and processes; the system frees it when the holder dies.

    Call it with a version to get a context manager, which is the form of pylance's ``commit_lock`` too. The lock covers the whole
    table: the version only has to be there. The lock file is made on first use and never removed, because a process
    that waits for a removed file excludes no other.

    Args:
        path: the lock file; the same one for all writers of a table.
        timeout: seconds to wait for the holder; 0 asks once.
        clock: time and sleeping.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 30.0, clock: Clock | None = None) -> None:
        if not timeout >= 0:
            raise InvalidInput(f"A lock cannot wait {timeout} seconds.", argument="timeout")
        # Made absolute now, so that a later change of the working directory does not split the lock in two.
        self.path = Path(path).resolve()
        self.timeout = timeout
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"FileLock({str(self.path)!r}, timeout={self.timeout})"

    @contextmanager
    def __call__(self, version: int) -> Iterator[None]:
        deadline = self._clock.monotonic() + self.timeout
        gate = _gate(self.path)
        # The gate is for the threads of this process: file systems that emulate flock may not tell them apart.
        if not gate.acquire(timeout=min(self.timeout, threading.TIMEOUT_MAX)):
            raise self._busy()
        try:
            lease = self._take(deadline)
            try:
                yield
                if not lease.is_valid(self.path):
                    raise self._lost()
            finally:
                lease.release()
        finally:
            gate.release()

    def _take(self, deadline: float) -> _Lease:
        pause = _FIRST_PAUSE
        while True:
            lease = self._try()
            if lease is not None:
                return lease
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise self._busy()
            self._clock.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _try(self) -> _Lease | None:
        try:
            lease = _Lease(_open(self.path))
            try:
                # The file may have been removed and made again between open and flock: then this is nobody's lock.
                if _flock(lease.fd) and lease.is_valid(self.path):
                    lease.sign()
                    return lease
            except BaseException:
                lease.release()
                raise
            lease.release()
            return None
        except OSError as error:
            raise StorageError(
                f"The lock file {self.path} cannot be locked: {error.strerror}.",
                name=str(self.path),
                advice="Nothing was written. Put the lock file where all writers may write and files can be locked.",
            ) from error

    def _busy(self) -> StorageError:
        return StorageError(
            f"The lock file {self.path} is held by {_holder(self.path)}; waited {self.timeout:g} s.",
            name=str(self.path),
            transient=True,
            advice="Nothing was written. Try again; if the holder hangs, end it.",
        )

    def _lost(self) -> StorageError:
        return StorageError(
            f"The lock file {self.path} was removed or replaced while it was held, so another writer may have been at work.",
            name=str(self.path),
            maybe_applied=True,
            advice="Read back what was written. Never remove a lock file.",
        )


class _Lease:
    """An open, possibly locked lock file."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _LEASES.add(self)

    def is_valid(self, path: Path) -> bool:
        """Whether the file we locked is still the one that others would lock."""
        if self.fd < 0:
            return False
        try:
            there = path.stat()
        except OSError:
            return False
        return os.path.samestat(os.fstat(self.fd), there)

    def sign(self) -> None:
        """Writes down who holds the lock, for those who wait; a file that somebody else filled is left as it is."""
        before = os.pread(self.fd, len(_MARK), 0)
        if before in (b"", _MARK):
            line = _MARK + f"process {os.getpid()} on {socket.gethostname()}\n".encode()
            os.pwrite(self.fd, line[:_HOLDER_LIMIT], 0)
            os.ftruncate(self.fd, min(len(line), _HOLDER_LIMIT))

    def release(self) -> None:
        _LEASES.discard(self)
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            try:
                # Said aloud rather than left to close: a child forked meanwhile may keep the same open file.
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


def _flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            line = file.read(_HOLDER_LIMIT)
    except OSError:
        return "somebody"
    if not line.startswith(_MARK):
        return "somebody"
    text = line[len(_MARK) :].decode("utf-8", "replace").strip()
    return "".join(letter for letter in text if letter.isprintable()) or "somebody"


_GATES: WeakValueDictionary[Path, threading.Lock] = WeakValueDictionary()
_GATES_GUARD = threading.Lock()
_LEASES: set[_Lease] = set()


def _gate(path: Path) -> threading.Lock:
    """One lock for all threads of this process that want one file; it lives as long as somebody holds or waits."""
    with _GATES_GUARD:
        gate = _GATES.get(path)
        if gate is None:
            gate = _GATES[path] = threading.Lock()
        return gate


def _forget_inherited_leases() -> None:
    """A forked child holds nothing: kept open, its copies would outlive a parent that dies; and nobody would open its gates."""
    global _GATES, _GATES_GUARD
    _GATES, _GATES_GUARD = WeakValueDictionary(), threading.Lock()
    for lease in _LEASES:
        os.close(lease.fd)
        lease.fd = -1
    _LEASES.clear()


os.register_at_fork(after_in_child=_forget_inherited_leases)

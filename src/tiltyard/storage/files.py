"""The few steps on a POSIX file system from which a name that is created at most once is made.

A new file is first written under a temporary name beside its target and only then given its real name with ``link``, which fails when
the name is taken. So no reader ever sees half a file, and of many writers exactly one gets the name.
"""
# Plain calls on strings: these functions are the hot path of every commit, and each call here is one system call.
# ruff: noqa: PTH108, PTH116, PTH123

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor

from tiltyard.errors import StorageError
from tiltyard.storage.paths import TEMPORARY_PREFIX

_LINK_UNSUPPORTED = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK})
_RENAME_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_UNSURE = frozenset({errno.EIO, errno.EINTR, errno.ETIMEDOUT, errno.ESTALE})
_TRANSIENT = frozenset({errno.EIO, errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ETIMEDOUT, errno.ESTALE, errno.EMFILE, errno.ENFILE})
_ADVICE = {
    errno.ENOSPC: "Free space on this file system, then try again.",
    errno.EDQUOT: "The disk quota is used up: free space, then try again.",
    errno.EROFS: "The file system is read-only: remount it or use another place.",
    errno.EACCES: "Give this user the right to write there.",
    errno.EPERM: "Give this user the right to write there.",
    errno.EMFILE: "Too many files are open: raise the limit (ulimit -n).",
    errno.ENFILE: "Too many files are open on this machine.",
    errno.ENAMETOOLONG: "Use a shorter path.",
    errno.ENOTDIR: "A part of the path is a file: choose another root or name.",
    errno.ENOTSUP: "Nothing was written. Keep tables on another file system, or in an object store.",
    errno.EIO: "Check the disk: the system reports an input/output error.",
}
_DROPPED = "Check the disk, then write the data again: the system may have dropped the bytes it could not flush."
TICK = 50_000_000
"""Nanoseconds after which two changes of a directory have different times, whatever clock its file system has."""
_PIECE = 1 << 20
"""Bytes that are handed to the system at once. For 4 MiB and more ext4 looks for large pieces of free memory (Linux 6.18): a new file of
16 MB took 32 ms in one call and 3 ms in pieces."""
_MOST_AT_ONCE = 8
_flushers: ThreadPoolExecutor
"""Threads that flush; none is begun before somebody has several files to flush."""
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


class FlushFailed(OSError):
    """A flush that failed. Asking again proves nothing: the system may have dropped the bytes, and then says that all is well."""


def storage_error(
    action: str, path: str, root: str, error: OSError, *, maybe_applied: bool = False, unsynced: bool = False
) -> StorageError:
    """Says in our own terms what the operating system refused."""
    reason = error.strerror or type(error).__name__
    flushing = isinstance(error, FlushFailed)
    return StorageError(
        f"Cannot {action} {path!r} in {root}: {reason}.",
        name=path,
        maybe_applied=maybe_applied,
        transient=not flushing and error.errno in _TRANSIENT,
        unsynced=unsynced,
        advice=_DROPPED if flushing and error.errno == errno.EIO else _ADVICE.get(error.errno or 0, ""),
    )


def is_unsure(error: OSError) -> bool:
    """Whether the step may have happened although it was reported as failed, as on a network file system."""
    return error.errno in _UNSURE and not isinstance(error, FlushFailed)


def temporary_name(directory: str) -> str:
    return f"{directory}/{TEMPORARY_PREFIX}.{os.urandom(8).hex()}"


def write_temporary(directory: str, data: bytes, *, durable: bool) -> str:
    """Writes a fresh temporary file and returns its path; on failure nothing stays behind."""
    temporary = temporary_name(directory)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            _write_all(descriptor, data)
            if durable:
                flush(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _write_all(descriptor: int, data: bytes) -> None:
    written, whole = 0, memoryview(data)
    while written < len(data):
        written += os.write(descriptor, whole[written : written + _PIECE])


def overwrite(path: str, data: bytes) -> None:
    """Puts a few bytes into a file as it is: no new name, no flush. Who reads meanwhile may see some of the old ones."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.pwrite(descriptor, data, 0)
        if os.fstat(descriptor).st_size > len(data):
            os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def copy_temporary(source: str, directory: str, *, durable: bool) -> str:
    """Copies a file to a fresh temporary name in ``directory``; on failure nothing stays behind."""
    temporary = temporary_name(directory)
    with open(source, "rb") as reading, open(temporary, "xb") as writing:
        try:
            shutil.copyfileobj(reading, writing, 1 << 20)
            writing.flush()
            if durable:
                flush(writing.fileno())
        except BaseException:
            os.unlink(temporary)
            raise
    return temporary


def create_name(staged: str, target: str) -> bool:
    """Gives the file ``staged`` the name ``target`` or raises ``FileExistsError``. Returns whether the old name is gone already."""
    try:
        os.link(staged, target)
    except OSError as error:
        if error.errno not in _LINK_UNSUPPORTED:
            raise
        _rename_no_replace(staged, target, error)
        return True
    return False


def _rename_no_replace(staged: str, target: str, link_error: OSError) -> None:
    """For file systems without hard links. Creating the target directly is no way out: others would see it half written."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        rename = libc.renameat2
    except AttributeError:
        raise _cannot_create_once(target, link_error) from link_error
    if rename(_AT_FDCWD, os.fsencode(staged), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(_RENAME_NOREPLACE)) == 0:
        return
    code = ctypes.get_errno()
    if code in _RENAME_UNSUPPORTED:
        raise _cannot_create_once(target, link_error) from link_error
    raise OSError(code, os.strerror(code), target)


def _cannot_create_once(target: str, error: OSError) -> OSError:
    reason = f"the file system has neither hard links ({error.strerror}) nor a rename that spares an existing file"
    return OSError(errno.ENOTSUP, reason, target)


def is_same_file(one: str, other: str) -> bool:
    """Whether both names lead to one file: a create that was repeated by a network file system met its own result."""
    try:
        first, second = os.stat(one), os.stat(other)
    except FileNotFoundError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def flush(descriptor: int) -> None:
    """Flushes an open file or directory to the disk."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise FlushFailed(error.errno, error.strerror) from error


def sync_path(path: str) -> None:
    """Flushes a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def sync_together(paths: Sequence[str]) -> list[OSError | None]:
    """Flushes files and directories at the same time; what went wrong with each. A disk takes little longer for several than for one."""
    others: list[Future[OSError | None]] = []
    for path in paths[1:]:
        try:
            others.append(_flushers.submit(_flushed, path))
        except RuntimeError:  # the interpreter is about to end, and begins no threads any more
            break
    here = [_flushed(path) for path in (*paths[:1], *paths[1 + len(others) :])]
    return [*here[:1], *(future.result() for future in others), *here[1:]]


def _flushed(path: str) -> OSError | None:
    try:
        sync_path(path)
    except OSError as error:
        return error
    return None


def _new_flushers() -> None:
    """A forked child has the pool of its parent and none of its threads."""
    global _flushers
    _flushers = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="tiltyard-flush")


_new_flushers()
os.register_at_fork(after_in_child=_new_flushers)


def sync_parent(path: str) -> str:
    """Flushes the directory that holds ``path`` and returns it."""
    parent = path.rpartition("/")[0] or "/"
    try:
        sync_path(parent)
    except PermissionError:
        pass  # a directory that may be entered but not read cannot be flushed by anybody with our rights
    return parent


def sync_above(directory: str, root: str, flushed: Set[str]) -> set[str]:
    """Flushes the directories above, up to the mount point or to one that was flushed before; returns the root and those above it.

    Another process, pylance for one, may have made them just now and not have flushed them yet. If one fails, none counts as flushed.
    """
    settled, below = set(), os.path.realpath(root).rstrip("/") + "/"
    here = os.path.realpath(directory)
    while here not in flushed and not os.path.ismount(here):
        if not here.startswith(below):
            settled.add(here)
        here = sync_parent(here)
    return settled


def changed_at(path: str) -> float | None:
    """When a directory last changed, in seconds; None where it is gone."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return None

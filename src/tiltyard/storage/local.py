"""A directory of the local (or a network) file system as an object store."""
# System calls on strings, counted: see files.py.
# ruff: noqa: PTH100, PTH102, PTH105, PTH106, PTH108, PTH112, PTH113, PTH116, PTH123, PTH208

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal

from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, StorageError
from tiltyard.interfaces import ObjectInfo
from tiltyard.storage import files
from tiltyard.storage.paths import check_path, check_prefix, check_range, is_plain, is_temporary

Durability = Literal["fsync", "os"]

_FILES = (".manifest/", ".txn/", ".json/")
"""Endings only a file has, a slash behind, in the directories every commit lists. Not ``.lance``: a table's directory has that too."""
ADVICE = "_versions/latest_version_hint.json"
"""Every commit renews it and nobody depends on it: it is written in place, and not flushed. Whoever finds it torn lists instead."""

MOST_ANCHORED = 1000
"""Directories that are remembered as flushed: every transaction of a lake has one of its own."""

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def _plain_files(names: list[str]) -> bool:
    """Whether all of these are files by their endings, and none is temporary.

    Every commit lists its versions, and asking each of a thousand names costs as much as listing them. No name holds a slash.
    """
    joined = "/" + "/".join(names) + "/"
    if "#" in joined or "/." in joined:
        return False
    found = 0
    for ending in _FILES:  # most often all of them have the first
        found += joined.count(ending)
        if found == len(names):
            return True
    return not names


def _is_file(directory: str, name: str) -> bool:
    return not is_temporary(name) and (f"{name}/".endswith(_FILES) or not os.path.isdir(directory + name))


class LocalStore:
    """Objects are files below ``root``; directories appear when they are needed.

    ``durability="fsync"``: a write that returned survives a power loss; the file is flushed before it gets its name, and the directory
    after. ``"os"``: the system flushes when it likes; a write survives the death of the process, but a power loss may take it back, in any
    order, or leave an empty file under its name.

    >>> store = LocalStore("/data/lake/orders.lance")
    >>> store.put_if_absent("_versions/1.manifest", b"...")
    """

    ordered = False
    """A directory has no order, and sorting thousands of names to find one would be waste."""

    conditional_put_known = True
    """``link`` never replaces, so nobody needs to probe."""

    def __init__(self, root: str | os.PathLike[str], *, durability: Durability = "fsync") -> None:
        if durability not in ("fsync", "os"):
            raise InvalidInput(f"No such durability: {durability!r}.", argument="durability", advice="Use 'fsync' or 'os'.")
        self.uri = os.path.abspath(os.fspath(root))
        self.durability: Durability = durability
        self._durable = durability == "fsync"
        self._base = self.uri.rstrip("/") + "/"
        self._above: set[str] = set()
        """The root and directories above it that were flushed, by their real names."""
        self._anchored: dict[str, list[int]] = {}
        """Directories whose names were flushed, and when those above them had last changed by then."""

    def __repr__(self) -> str:
        return f"LocalStore({self.uri!r}, durability={self.durability!r})"

    def _at(self, path: str) -> str:
        return self._base + (path if is_plain(path) else check_path(path))

    @staticmethod
    def _checked(prefix: str) -> str:
        return prefix if prefix.endswith("/") and is_plain(prefix[:-1]) else check_prefix(prefix)

    # reading

    def get(self, path: str) -> bytes:
        target = self._at(path)
        try:
            with open(target, "rb", buffering=0) as file:
                return file.readall()
        except _ABSENT:
            raise self._not_found(path) from None
        except OSError as error:
            raise files.storage_error("read", path, self.uri, error) from error

    def get_range(self, path: str, start: int, length: int) -> bytes:
        target = self._at(path)
        if length < 0:
            check_range(path, length)
        try:
            descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                first = max(size + start, 0) if start < 0 else start
                wanted = max(min(length, size - first), 0)
                data = os.pread(descriptor, wanted, first)
                while len(data) < wanted and (more := os.pread(descriptor, wanted - len(data), first + len(data))):
                    data += more
                return data
            finally:
                os.close(descriptor)
        except _ABSENT:
            raise self._not_found(path) from None
        except OSError as error:
            raise files.storage_error("read", path, self.uri, error) from error

    def head(self, path: str) -> ObjectInfo:
        target = self._at(path)
        try:
            info = _info(path, os.stat(target))
        except _ABSENT:
            info = None
        except OSError as error:
            raise files.storage_error("look at", path, self.uri, error) from error
        if info is None:
            raise self._not_found(path)
        return info

    def list(self, prefix: str, *, offset: str | None = None) -> Iterator[ObjectInfo]:
        entries = sorted(self._walk(self._checked(prefix)), key=lambda found: found[0])
        return self._infos(entries if offset is None else [found for found in entries if found[0] > offset])

    def names(self, prefix: str) -> Iterator[str]:
        directory = self._base + self._checked(prefix)
        try:
            names = os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return iter(())
        except OSError as error:
            raise files.storage_error("list", prefix, self.uri, error) from error
        return iter(names if _plain_files(names) else [name for name in names if _is_file(directory, name)])

    def temporary(self, prefix: str) -> Iterator[ObjectInfo]:
        """Files below ``prefix`` that are still being written, by us or by pylance, or were when somebody died."""
        return self._infos(self._walk(self._checked(prefix), temporary=True))

    # writing

    def put(self, path: str, data: bytes) -> None:
        if path == ADVICE:
            self._advise(self._at(path), path, data)
        else:
            self._settle(self._put(path, data, durable=self._durable), path)

    def put_unsynced(self, path: str, data: bytes) -> None:
        self._put(path, data, durable=False)

    def _put(self, path: str, data: bytes, *, durable: bool) -> str:
        """Writes a file under its name, and returns the directory."""
        target = self._at(path)
        directory = target.rpartition("/")[0]
        temporary = self._stage(directory, path, data, durable=durable)
        try:
            os.replace(temporary, target)
        except OSError as error:
            self._discard(temporary, path)
            raise self._failed("replace", path, error) from error
        return directory

    def put_if_absent(self, path: str, data: bytes) -> None:
        target = self._at(path)
        directory = target.rpartition("/")[0]
        self._publish(self._stage(directory, path, data, durable=self._durable), target, path)
        self._settle(directory, path)

    def copy_if_absent(self, source: str, target: str) -> None:
        origin, goal = self._at(source), self._at(target)
        directory = goal.rpartition("/")[0]
        self._require_file(origin, source)
        self._make_directory(directory, target)
        try:
            temporary = files.copy_temporary(origin, directory, durable=self._durable)
        except _ABSENT:
            raise self._not_found(source) from None
        except OSError as error:
            raise files.storage_error("copy to", target, self.uri, error) from error
        self._publish(temporary, goal, target)
        self._settle(directory, target)

    def rename_if_absent(self, source: str, target: str) -> None:
        origin, goal = self._at(source), self._at(target)
        directory = goal.rpartition("/")[0]
        self._require_file(origin, source)
        self._make_directory(directory, target)
        try:
            if self._durable:
                files.sync_path(origin)
            moved = files.create_name(origin, goal)
        except FileExistsError:
            raise _taken(target) from None
        except _ABSENT:
            raise self._not_found(source) from None
        except OSError as error:
            raise self._failed("rename to", target, error) from error
        self._settle(directory, target)
        if not moved:
            self._discard(origin, source)

    def move_if_absent(self, source: str, target: str) -> None:
        """Gives a file another name, for whoever looks only after ``sync`` made it survive a power loss: one flush instead of two."""
        origin, goal = self._at(source), self._at(target)
        self._require_file(origin, source)
        self._make_directory(goal.rpartition("/")[0], target)
        try:
            if not files.create_name(origin, goal):
                os.unlink(origin)
        except FileExistsError:
            raise _taken(target) from None
        except _ABSENT:
            raise self._not_found(source) from None
        except OSError as error:
            raise self._failed("rename to", target, error) from error

    def link_if_absent(self, source: str, target: str) -> None:
        """Gives a file a second name, at once visible, that ``flush`` makes survive a power loss."""
        origin, goal = self._at(source), self._at(target)
        self._require_file(origin, source)
        try:
            os.link(origin, goal, follow_symlinks=False)
        except FileExistsError:
            raise _taken(target) from None
        except OSError as error:
            raise self._failed("create", target, error) from error

    def flush(self, path: str) -> None:
        """Makes the name of a file survive a power loss."""
        self._settle(self._at(path).rpartition("/")[0], path, maybe_applied=False)

    def delete(self, path: str) -> None:
        target = self._at(path)
        try:
            os.unlink(target)
        except _ABSENT:
            return
        except OSError as error:
            raise files.storage_error("delete", path, self.uri, error) from error

    def remove_empty(self, prefix: str, before: datetime) -> None:
        """Whoever is about to write into such a directory makes it again: ``rmdir`` never takes a file with it."""
        # Ages first: a directory changes when one below it goes.
        ages = {directory: files.changed_at(directory) for directory, _, _ in os.walk(self._base + self._checked(prefix), topdown=False)}
        for directory, age in ages.items():
            if age is None or age > before.timestamp():
                continue
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise files.storage_error("remove the directory", prefix, self.uri, error) from error

    def sync(self, paths: Iterable[str]) -> None:
        if not self._durable:
            return
        targets = {self._at(path): path for path in paths}
        directories = {target.rpartition("/")[0]: path for target, path in targets.items()}
        failures = files.sync_together([*targets, *directories])
        for path, error in zip([*targets.values(), *directories.values()], failures, strict=True):
            if error is not None:
                gone = isinstance(error, _ABSENT)
                raise self._not_found(path) if gone else files.storage_error("flush", path, self.uri, error) from error
        for directory, path in directories.items():
            self._settle(directory, path, maybe_applied=False, flushed=True)

    def missing(self, paths: Iterable[str]) -> Sequence[str]:
        gone = []
        for path in paths:
            try:
                os.stat(self._at(path))
            except _ABSENT:
                gone.append(path)
            except OSError:
                continue  # nobody can say that it is not there
        return gone

    # steps of a write

    def _advise(self, target: str, path: str, data: bytes) -> None:
        try:
            files.overwrite(target, data)
        except OSError as error:
            raise files.storage_error("write", path, self.uri, error) from error

    def _stage(self, directory: str, path: str, data: bytes, *, durable: bool) -> str:
        try:
            return files.write_temporary(directory, data, durable=durable)
        except FileNotFoundError:
            self._make_directory(directory, path)
        except OSError as error:
            raise files.storage_error("write", path, self.uri, error) from error
        try:
            return files.write_temporary(directory, data, durable=durable)
        except OSError as error:
            raise files.storage_error("write", path, self.uri, error) from error

    def _publish(self, temporary: str, target: str, path: str) -> None:
        """The one step that decides: the temporary file, which is ours alone, gets its name."""
        moved = False
        try:
            moved = files.create_name(temporary, target)
        except FileExistsError:
            if not files.is_same_file(temporary, target):
                raise _taken(path) from None
        except OSError as error:
            raise self._failed("create", path, error) from error
        finally:
            if not moved:
                self._discard(temporary, path)

    def _discard(self, temporary: str, path: str) -> None:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._in_doubt("remove the temporary file of", path, error) from error

    def _settle(self, directory: str, path: str, *, maybe_applied: bool = True, flushed: bool = False) -> None:
        """Makes a name survive a power loss; it is visible already, so a failure here leaves the outcome open.

        A cleanup removes directories that are empty, and pylance makes them again without a flush. So a directory counts as flushed only
        as long as nothing came or went in those above it, up to the root: their times are looked at before those are ``flushed``.
        """
        if not self._durable:
            return
        try:
            if not flushed:
                files.sync_path(directory)
            levels, times, above = [directory], [0], directory
            while len(above) > len(self.uri):
                above = above.rpartition("/")[0]
                levels.append(above)
                times.append(os.stat(above or "/").st_ctime_ns)
            if self._anchored.get(directory) != times:
                self._anchor(levels, times)
        except OSError as error:
            if maybe_applied:
                raise self._in_doubt("flush the directory of", path, error) from error
            raise files.storage_error("flush the directory of", path, self.uri, error) from error

    def _anchor(self, levels: Sequence[str], times: Sequence[int]) -> None:
        """Flushes the names of a directory and of those above it, up to one of which nothing has changed."""
        since = [[0, *times[level + 1 :]] for level in range(len(levels))]
        known = next((level for level, path in enumerate(levels) if self._anchored.get(path) == since[level]), None)
        stop = set() if known is None else {os.path.realpath(levels[known])}
        self._above |= files.sync_above(levels[0], self.uri, self._above | stop)
        if len(self._anchored) > MOST_ANCHORED:
            self._anchored.clear()
        settled = time.time_ns() - files.TICK
        self._anchored.update((path, state) for path, state in zip(levels, since, strict=True) if max(state) < settled)

    def _failed(self, action: str, path: str, error: OSError) -> StorageError:
        """What to say when the step that names a file failed."""
        return self._in_doubt(action, path, error) if files.is_unsure(error) else files.storage_error(action, path, self.uri, error)

    def _in_doubt(self, action: str, path: str, error: OSError) -> StorageError:
        """What to say when a name may be there already: to be read, but not yet flushed."""
        return files.storage_error(action, path, self.uri, error, maybe_applied=True, unsynced=self._durable)

    def _make_directory(self, directory: str, path: str) -> None:
        try:
            made = _make_directories(directory)
            if self._durable:
                self._above.difference_update(made)
                for child in made:
                    self._anchored.pop(child, None)
                    files.sync_parent(child)
        except OSError as error:
            raise files.storage_error("make the directory of", path, self.uri, error) from error

    def _require_file(self, target: str, path: str) -> None:
        if not os.path.isfile(target):
            raise self._not_found(path)

    # steps of a listing

    def _walk(self, prefix: str, *, temporary: bool = False) -> Iterator[tuple[str, os.DirEntry[str]]]:
        pending = [prefix]
        while pending:
            below = pending.pop()
            try:
                with os.scandir(self._base + below) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):  # a link to a directory could lead round in a circle
                            pending.append(f"{below}{entry.name}/")
                        elif is_temporary(entry.name) == temporary:
                            yield below + entry.name, entry
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise files.storage_error("list", below, self.uri, error) from error

    def _infos(self, entries: Iterable[tuple[str, os.DirEntry[str]]]) -> Iterator[ObjectInfo]:
        for path, entry in entries:
            try:
                info = _info(path, entry.stat())
            except FileNotFoundError:
                continue  # deleted since the directory was read
            except OSError as error:
                raise files.storage_error("look at", path, self.uri, error) from error
            if info is not None:
                yield info

    def _not_found(self, path: str) -> NotFound:
        return NotFound(f"There is no {path!r} in {self.uri}.", name=path)


def _taken(path: str) -> AlreadyExists:
    return AlreadyExists(f"{path!r} exists already.", name=path)


def _info(path: str, status: os.stat_result) -> ObjectInfo | None:
    if not stat.S_ISREG(status.st_mode):
        return None
    return ObjectInfo(path, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def _make_directories(directory: str) -> tuple[str, ...]:
    """Makes a directory and those above it; returns the ones that were missing, topmost first."""
    missing = []
    while directory and not os.path.isdir(directory):
        missing.append(directory)
        directory = directory.rpartition("/")[0]
    missing.reverse()
    for name in missing:
        try:
            os.mkdir(name)
        except FileExistsError:
            if not os.path.isdir(name):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None
    return tuple(missing)

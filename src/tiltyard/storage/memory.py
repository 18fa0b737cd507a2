"""Objects in the memory of this process: for tests, the simulator and short-lived tables."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import count

from tiltyard.errors import AlreadyExists, NotFound
from tiltyard.interfaces import Clock, ObjectInfo, SystemClock
from tiltyard.storage.paths import check_path, check_prefix, check_range, is_temporary, is_visible

_numbers = count(1)


class MemoryStore:
    """A thread-safe store that lives and dies with the process. Two instances never share anything.

    >>> store = MemoryStore()
    >>> store.put("a/b", b"1")
    >>> list(store.names("a/"))
    ['b']
    """

    ordered = True
    conditional_put_known = True

    def __init__(self, uri: str | None = None, *, clock: Clock | None = None) -> None:
        self.uri = f"memory://{next(_numbers)}" if uri is None else uri
        self._clock = clock or SystemClock()
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"MemoryStore({self.uri!r})"

    def get(self, path: str) -> bytes:
        return self._find(path)[0]

    def get_range(self, path: str, start: int, length: int) -> bytes:
        check_range(path, length)
        data = self._find(path)[0]
        first = max(len(data) + start, 0) if start < 0 else start
        return data[first : first + length]

    def put(self, path: str, data: bytes) -> None:
        check_path(path)
        with self._lock:
            self._objects[path] = (bytes(data), self._clock.now())

    def put_if_absent(self, path: str, data: bytes) -> None:
        check_path(path)
        with self._lock:
            if path in self._objects:
                raise AlreadyExists(f"{path!r} exists already.", name=path)
            self._objects[path] = (bytes(data), self._clock.now())

    def copy_if_absent(self, source: str, target: str) -> None:
        with self._lock:
            self.put_if_absent(target, self.get(source))

    def rename_if_absent(self, source: str, target: str) -> None:
        with self._lock:
            self.copy_if_absent(source, target)
            del self._objects[source]

    def head(self, path: str) -> ObjectInfo:
        data, modified = self._find(path)
        return ObjectInfo(path, len(data), modified)

    def list(self, prefix: str, *, offset: str | None = None) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            found = [
                ObjectInfo(path, len(data), modified)
                for path, (data, modified) in self._objects.items()
                if path.startswith(prefix) and is_visible(path) and (offset is None or path > offset)
            ]
        return iter(sorted(found, key=lambda info: info.path))

    def names(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        with self._lock:
            below = [path[len(prefix) :] for path in self._objects if path.startswith(prefix)]
        return iter(sorted(name for name in below if "/" not in name and not is_temporary(name)))

    def delete(self, path: str) -> None:
        check_path(path)
        with self._lock:
            self._objects.pop(path, None)

    def sync(self, paths: Iterable[str]) -> None:
        """Nothing to do: nothing here survives a power loss."""

    def _find(self, path: str) -> tuple[bytes, datetime]:
        check_path(path)
        with self._lock:
            try:
                return self._objects[path]
            except KeyError:
                raise NotFound(f"There is no {path!r} in {self.uri}.", name=path) from None

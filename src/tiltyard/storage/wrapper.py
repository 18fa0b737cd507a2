"""A store around a store: the bases of all that count, hold up, break or redirect calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from tiltyard.interfaces import HasDirectories, KeepsTemporaries, ObjectInfo, ObjectStore, SeesFiles

T = TypeVar("T")
Request = Callable[[ObjectStore], T]
"""One call, ready to be put to a store: usually the wrapped one, sometimes another."""


class ForwardingStore:
    """Passes every call on to ``inner`` as it is; a subclass overrides the calls that it answers in its own way."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.uri = inner.uri
        self.ordered = inner.ordered

    @property
    def conditional_put_known(self) -> bool:
        return bool(getattr(self.inner, "conditional_put_known", False))

    @property
    def location(self) -> str:
        return str(getattr(self.inner, "location", self.inner.uri))

    @property
    def look_seconds(self) -> float:
        return float(getattr(self.inner, "look_seconds", 0.0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def get(self, path: str) -> bytes:
        return self.inner.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.inner.get_range(path, start, length)

    def put(self, path: str, data: bytes) -> None:
        self.inner.put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.inner.put_if_absent(path, data)

    def rename_if_absent(self, source: str, target: str) -> None:
        self.inner.rename_if_absent(source, target)

    def copy_if_absent(self, source: str, target: str) -> None:
        self.inner.copy_if_absent(source, target)

    def head(self, path: str) -> ObjectInfo:
        return self.inner.head(path)

    def list(self, prefix: str, *, offset: str | None = None) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, offset=offset)

    def names(self, prefix: str) -> Iterator[str]:
        return self.inner.names(prefix)

    def temporary(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.inner.temporary(prefix) if isinstance(self.inner, KeepsTemporaries) else iter(())

    def remove_empty(self, prefix: str, before: datetime) -> None:
        if isinstance(self.inner, HasDirectories):
            self.inner.remove_empty(prefix, before)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def missing(self, paths: Iterable[str]) -> Sequence[str] | None:
        return self.inner.missing(paths) if isinstance(self.inner, SeesFiles) else None

    def sync(self, paths: Iterable[str]) -> None:
        self.inner.sync(paths)


class WrapperStore(ForwardingStore):
    """Passes every call through ``_call``, which a subclass overrides to act before, after or instead.

    Only looking for empty directories and for local files is left out: on an object store these send no requests that could fail.
    """

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        return request(self.inner)

    def get(self, path: str) -> bytes:
        return self._call("get", path, lambda store: store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self._call("get_range", path, lambda store: store.get_range(path, start, length))

    def put(self, path: str, data: bytes) -> None:
        self._call("put", path, lambda store: store.put(path, data), data=data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._call("put_if_absent", path, lambda store: store.put_if_absent(path, data), data=data)

    def rename_if_absent(self, source: str, target: str) -> None:
        self._call("rename_if_absent", target, lambda store: store.rename_if_absent(source, target))

    def copy_if_absent(self, source: str, target: str) -> None:
        self._call("copy_if_absent", target, lambda store: store.copy_if_absent(source, target))

    def head(self, path: str) -> ObjectInfo:
        return self._call("head", path, lambda store: store.head(path))

    def list(self, prefix: str, *, offset: str | None = None) -> Iterator[ObjectInfo]:
        # read to the end at once: otherwise a fault or a delay would come after the call it belongs to
        return self._call("list", prefix, lambda store: iter(tuple(store.list(prefix, offset=offset))))

    def names(self, prefix: str) -> Iterator[str]:
        return self._call("names", prefix, lambda store: iter(tuple(store.names(prefix))))

    def temporary(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._call("list", prefix, lambda store: iter(tuple(store.temporary(prefix)) if isinstance(store, KeepsTemporaries) else ()))

    def delete(self, path: str) -> None:
        self._call("delete", path, lambda store: store.delete(path))

    def sync(self, paths: Iterable[str]) -> None:
        wanted = tuple(paths)
        self._call("sync", ",".join(wanted), lambda store: store.sync(wanted))

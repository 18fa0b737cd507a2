"""A disk that can lose its power: a model of what ``LocalStore`` may rely on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tiltyard.errors import NotFound
from tiltyard.interfaces import Clock, ObjectInfo, Randomness
from tiltyard.storage.local import Durability
from tiltyard.storage.memory import MemoryStore
from tiltyard.storage.paths import check_path
from tiltyard.testing.clocks import SeededRandomness
from tiltyard.testing.faults import Killed


@dataclass(frozen=True, slots=True)
class _Effect:
    """A change of one name that the disk has not been told to keep."""

    path: str
    data: bytes | None
    """What the name leads to now; None for a removal."""

    flushed: bool
    """Whether the contents are on the disk, so that only the name can be lost."""


class PowerLossStore:
    """A ``LocalStore`` until ``crash()``, which keeps flushed files and any random part of the others.

    An unflushed name may be lost or kept, each on its own and so in any order; a kept name whose contents were not flushed may lead to the
    contents, to half of them or to nothing. ``put_unsynced`` stands for a file that pylance writes without flushing; ``sync`` flushes it
    in the ``"fsync"`` mode and does nothing in the ``"os"`` mode, like the real store.

    Attributes:
        steps: how many steps (write, flush, name, flush the directory) were taken so far.
        stop_at: the power fails at this step: ``Killed`` is raised before it, and at every call until ``crash()``.
    """

    ordered = False
    conditional_put_known = True

    def __init__(
        self,
        durability: Durability = "fsync",
        *,
        random: Randomness | None = None,
        clock: Clock | None = None,
        stop_at: int | None = None,
    ) -> None:
        self.uri = "memory://power-loss"
        self.durability: Durability = durability
        self.steps = 0
        self.stop_at = stop_at
        self._random = random or SeededRandomness(0)
        self._clock = clock
        self._seen = MemoryStore(self.uri, clock=clock)
        self._kept: dict[str, bytes] = {}
        self._pending: tuple[_Effect, ...] = ()

    def __repr__(self) -> str:
        return f"PowerLossStore({self.uri!r}, durability={self.durability!r})"

    def crash(self) -> None:
        """Power off and on: afterwards the store shows what the disk kept."""
        for effect in self._pending:
            if self._random.randrange(2):
                continue
            if effect.data is None:
                self._kept.pop(effect.path, None)
            else:
                self._kept[effect.path] = effect.data if effect.flushed else self._remains(effect.data)
        self._pending = ()
        self.stop_at = None
        self._seen = MemoryStore(self.uri, clock=self._clock)
        for path, data in self._kept.items():
            self._seen.put(path, data)

    def _remains(self, data: bytes) -> bytes:
        return (data, data[: len(data) // 2], b"")[self._random.randrange(3)]

    def put_unsynced(self, path: str, data: bytes) -> None:
        """A file that is not flushed: another process wrote it, or ``sync`` is to flush it with others."""
        self._step()
        self._seen.put(path, data)
        self._pending += (_Effect(path, data, flushed=False),)

    def put(self, path: str, data: bytes) -> None:
        check_path(path)
        self._write(path, data, create=False)

    def put_if_absent(self, path: str, data: bytes) -> None:
        check_path(path)
        self._write(path, data, create=True)

    def copy_if_absent(self, source: str, target: str) -> None:
        self._write(check_path(target), self.get(source), create=True)

    def rename_if_absent(self, source: str, target: str) -> None:
        self._write(check_path(target), self.get(source), create=True)
        self._remove(source)

    def delete(self, path: str) -> None:
        check_path(path)
        self._step()
        try:
            self._seen.head(path)
        except NotFound:
            return
        self._remove(path)

    def sync(self, paths: Iterable[str]) -> None:
        for path in paths:
            data = self.get(path)
            if self.durability == "fsync":
                self._step()
                self._keep(path, data)

    def _write(self, path: str, data: bytes, *, create: bool) -> None:
        """The steps of ``LocalStore``: write aside, flush, give the name, flush the directory."""
        durable = self.durability == "fsync"
        self._step()
        if durable:
            self._step()
        self._step()
        if create:
            self._seen.put_if_absent(path, data)
        else:
            self._seen.put(path, data)
        self._pending += (_Effect(path, data, flushed=durable),)
        if durable:
            self._step()
            self._keep(path, data)

    def _remove(self, path: str) -> None:
        self._seen.delete(path)
        self._pending += (_Effect(path, None, flushed=True),)

    def _keep(self, path: str, data: bytes) -> None:
        self._kept[path] = data
        self._pending = tuple(effect for effect in self._pending if effect.path != path)

    def _step(self) -> None:
        self.steps += 1
        if self.stop_at is not None and self.steps >= self.stop_at:
            raise Killed(f"the power failed at step {self.steps}")

    def get(self, path: str) -> bytes:
        return self._alive().get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self._alive().get_range(path, start, length)

    def head(self, path: str) -> ObjectInfo:
        return self._alive().head(path)

    def list(self, prefix: str, *, offset: str | None = None) -> Iterator[ObjectInfo]:
        return self._alive().list(prefix, offset=offset)

    def names(self, prefix: str) -> Iterator[str]:
        return self._alive().names(prefix)

    def _alive(self) -> MemoryStore:
        if self.stop_at is not None and self.steps >= self.stop_at:
            raise Killed("the power is off")
        return self._seen

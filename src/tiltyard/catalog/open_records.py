"""From an address to the records there."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from tiltyard.catalog.record_codec import check_keys, decode, encode
from tiltyard.catalog.records import Body, Decide, Found, Records
from tiltyard.interfaces import Runtime
from tiltyard.storage.local import Durability

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://", "postgresql+psycopg://")


def open_records(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    runtime: Runtime | None = None,
    durability: Durability = "fsync",
) -> Records:
    """The records at an address, made there if there are none yet.

    ``sqlite:///`` and a path (all that follows is the path, as it is); ``postgresql://...``; or a lake's root, a directory or ``s3://``
    and the like, for records in a table ``__manifest`` there.
    """
    # Imported here: nobody should wait for a database he does not use.
    text = os.fspath(url)
    if text.startswith(_SQLITE):
        from tiltyard.catalog.sql_records import SqlRecords
        from tiltyard.catalog.sqlite import Sqlite

        return SqlRecords(Sqlite(text.removeprefix(_SQLITE), durability=durability), runtime=runtime)
    if text.startswith(_POSTGRES):
        from tiltyard.catalog.postgres import Postgres
        from tiltyard.catalog.sql_records import SqlRecords

        return SqlRecords(Postgres(text, durability=durability), runtime=runtime)
    from tiltyard.catalog.manifest_records import ManifestRecords

    return ManifestRecords(text, storage_options=storage_options, durability=durability, runtime=runtime)


T = TypeVar("T")


class MemoryRecords:
    """Records that live and die with the process. Kept as text, so that what comes back is what any database would give."""

    url = "memory:"

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._lock = threading.RLock()

    def get(self, keys: Collection[str]) -> Found:
        check_keys(keys)
        with self._lock:
            return {key: decode(key, self._bodies[key], self.url) for key in keys if key in self._bodies}

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        with self._lock:
            keys = sorted((key for key in self._bodies if key.startswith(tuple(prefixes))), reverse=descending)
            return [(key, decode(key, self._bodies[key], self.url)) for key in keys[:limit]]

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        check_keys((*exclusive, *shared))
        with self._lock:
            locked = {*exclusive, *shared}
            writes = decide(self.get(locked))
            while taken := [key for key in writes.put if key in self._bodies and key not in locked]:
                locked.update(taken)
                writes = decide(self.get(locked))
            check_keys((*writes.put, *writes.delete))
            self._bodies.update({key: encode(key, body) for key, body in writes.put.items()})
            for key in writes.delete:
                self._bodies.pop(key, None)
            return writes.result

    def close(self) -> None:
        pass

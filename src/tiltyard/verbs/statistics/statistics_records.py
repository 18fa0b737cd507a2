"""Where statistics are kept: records in a directory of ours beside the data, by names of data files.

A name of a data file is given once, and the file never changes, so a record needs no version and no transaction. Its entry tells the
file's size and rows as well: what does not agree with the manifest is not used. Whoever loses a record loses time, never a row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from tiltyard.errors import NotFound, StorageError
from tiltyard.format.statistics import MOST_BYTES, ColumnStatistics, FileStatistics, decode_statistics, encode_statistics
from tiltyard.interfaces import ObjectInfo, ObjectStore
from tiltyard.transaction.new_files import at_once

RECORDS: Final = "_tiltyard/statistics/"
_SUFFIX: Final = ".statistics"
_SMALL: Final = 1024**2
"""Records below this size are joined; larger ones are left, so that a table of very many files is not written anew each time."""
_MOST_RECORDS: Final = 4
"""Records that a cleanup leaves as they are."""
_JOINS: Final = "0"
"""What the name of a record ends with whose writer joins all others: one of sixteen, so that there are few without a look at each write."""


class StatisticsRecords:
    """The statistics that one table's directory knows of. Threads may share one."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[str, FileStatistics] = {}
        self._read: set[str] = set()
        self._looked: set[str] = set()
        self._lock = threading.Lock()

    def find(self, names: Collection[str], version: str) -> dict[str, FileStatistics]:
        """Statistics by names of files, as far as they are known.

        Args:
            names: which.
            version: whose files they are: for one version the directory is listed once.
        """
        with self._lock:
            if any(name not in self._known for name in names):
                self._look(version)
            return {name: self._known[name] for name in names if name in self._known}

    def any(self, version: str) -> bool:
        """Whether there are statistics of any file; as for ``find``, the directory is listed once for a version."""
        with self._lock:
            if not self._known:
                self._look(version)
            return bool(self._known)

    def _look(self, version: str) -> None:
        if version not in self._looked:
            self._looked.add(version)
            for path, files in read_records(self._store, self._read):
                self._read.add(path)
                join_into(self._known, files or {})

    def forget(self) -> None:
        """Has the records read again: there are better ones."""
        with self._lock:
            self._looked.clear()
            self._known.clear()
            self._read.clear()


def read_records(store: ObjectStore, known: Iterable[str] = ()) -> Iterator[tuple[str, dict[str, FileStatistics] | None]]:
    """The records that are not known, by path; None where one says nothing: it is damaged, too long, or of a later kind.

    A store that does not answer counts as one without records: nobody needs them.
    """
    seen = set(known)
    with suppress(StorageError):
        wanted = [info for info in list(store.list(RECORDS)) if info.path.endswith(_SUFFIX) and info.path not in seen]
        yield from at_once(lambda info: (info.path, _read(store, info)), wanted)


def _read(store: ObjectStore, info: ObjectInfo) -> dict[str, FileStatistics] | None:
    if info.size > MOST_BYTES:
        return None
    try:
        return decode_statistics(store.get(info.path))
    except (NotFound, StorageError):
        return None  # joined with others meanwhile


def join_into(known: dict[str, FileStatistics], more: Mapping[str, FileStatistics]) -> None:
    """Adds what another record says. Where two do not mean the same file, neither is believed."""
    for name, file in more.items():
        before = known.get(name)
        if before is None:
            known[name] = file
        elif (before.size, before.rows) != (file.size, file.rows):
            known[name] = replace(before, columns={})
        else:
            known[name] = replace(before, columns={**before.columns, **{at: _better(before.columns.get(at), column) for at, column in file.columns.items()}})  # fmt: skip  # noqa: E501


def _better(before: ColumnStatistics | None, after: ColumnStatistics) -> ColumnStatistics:
    """Of two that say the same, the one that says more."""
    return before if before is not None and before.distinct is not None and after.distinct is None else after


def write_record(store: ObjectStore, unique: str, files: Mapping[str, FileStatistics]) -> bool:
    """Keeps statistics under a name that nobody else has; whether that worked. One of sixteen writers joins what others left."""
    if not files:
        return True
    try:
        store.put(f"{RECORDS}{unique}{_SUFFIX}", encode_statistics(files))
        if unique.endswith(_JOINS):
            join_records(store, unique)
    except StorageError:
        return False  # the rows are what counts; they are read without
    return True


def join_records(store: ObjectStore, unique: str, keep: Callable[[str], bool] = lambda name: True) -> None:
    """Puts all small records into one, then deletes them. Others may read, write and join meanwhile: what is told twice is told.

    Args:
        store: the table's.
        unique: names the new record.
        keep: says of the name of a data file whether it is worth telling of.
    """
    infos = [info for info in list(store.list(RECORDS)) if info.path.endswith(_SUFFIX) and info.size < _SMALL]
    joined: dict[str, FileStatistics] = {}
    read: list[str] = []
    for path, files in at_once(lambda info: (info.path, _read(store, info)), infos):
        if files is not None:
            join_into(joined, files)
            read.append(path)
    kept = {name: file for name, file in joined.items() if keep(name)}
    if len(read) < 2 and len(kept) == len(joined):
        return
    if kept:
        store.put(f"{RECORDS}{unique}-joined{_SUFFIX}", encode_statistics(kept))
    for path in read:
        store.delete(path)


@dataclass(frozen=True, slots=True)
class Remaining:
    """Which data files are still there, after a cleanup: their groups' names without what went, and those it did delete."""

    there: Collection[str]
    gone: Collection[str]
    before: datetime
    """Records written later may tell of files that were not there yet when it looked."""


def clean_records(store: ObjectStore, unique: str, left: Remaining) -> None:
    """Drops what is told of files that are gone, and records that say nothing. A store that fails here is asked the next time."""
    with suppress(StorageError):
        infos = [info for info in list(store.list(RECORDS)) if info.path.endswith(_SUFFIX)]
        found = [(info, _read(store, info)) for info in infos]
        dropped = {name for info, files in found for name in files or {} if _is_gone(name, left, young=info.modified >= left.before)}
        for info, files in found:
            if files is None and info.modified < left.before:
                store.delete(info.path)
        if dropped or len(found) > _MOST_RECORDS:
            _rewritten(store, unique, [(info.path, files) for info, files in found if files is not None], dropped)


def _rewritten(store: ObjectStore, unique: str, records: list[tuple[str, dict[str, FileStatistics]]], dropped: Collection[str]) -> None:
    kept: dict[str, FileStatistics] = {}
    for _, files in records:
        join_into(kept, {name: file for name, file in files.items() if name not in dropped})
    if kept:
        store.put(f"{RECORDS}{unique}-cleaned{_SUFFIX}", encode_statistics(kept))
    for path, _ in records:
        store.delete(path)


def _is_gone(name: str, left: Remaining, *, young: bool) -> bool:
    group = f"data/{name.removesuffix('.lance')}"
    return group in left.gone or (not young and group not in left.there)

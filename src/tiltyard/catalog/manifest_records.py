"""Records in a Lance table, ``__manifest``, in the lake's root: a catalog that needs nothing but the object store.

Whoever writes reads one version of the table, decides, and publishes rows in the place of others. A row that every publish rewrites makes
any two of them conflict, so what was looked at cannot have changed when a publish lands. A compaction in between changes no record, and
a publish goes over it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from tiltyard.catalog.manifest_mirror import RowMirror
from tiltyard.catalog.manifest_publish import publish_rows
from tiltyard.catalog.manifest_rows import GONE, HEAD, Row, access_of, by_key, head_row, row_of, table_of
from tiltyard.catalog.process_queue import Patience
from tiltyard.catalog.record_codec import check_keys
from tiltyard.catalog.records import Body, Decide, Found, Offering, Ticket, Writes
from tiltyard.catalog.tickets import FileTickets, NoTicket
from tiltyard.errors import (
    AlreadyExists,
    ConflictError,
    ContentionError,
    CorruptTable,
    HistoryUnavailable,
    NotFound,
    OutcomeUnknown,
    StorageError,
    TiltyardError,
    fit,
)
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.options import CommitOptions, Storage
from tiltyard.storage.local import Durability, LocalStore
from tiltyard.table import Table
from tiltyard.transaction.head import HeadCheck
from tiltyard.verbs.engine.access import open_access
from tiltyard.verbs.write import NewTable, Writing, create_table

T = TypeVar("T")

NAME: Final = "__manifest"
_log = logging.getLogger("tiltyard.lake")

_CLEAN_EVERY: Final = 8
_SMALLEST_FRAGMENT: Final = 4096
_KEPT_VERSIONS: Final = 32
_GRACE: Final = timedelta(hours=1)
"""Far longer than any publish takes."""


class ManifestRecords:
    """Records in the table ``__manifest`` below a root: a directory or a place in an object store.

    May be used by many threads.

    Args:
        root: the lake's root.
        storage_options: as for pylance.
        durability: as for a table.
        attempts: how often a publish is tried while others are faster.
        upkeep: after how many publishes the table is compacted, by whoever made the last of them; after eight times as many, which takes
            longer, old versions of it are removed.
        kept: how long old versions are kept for those who are reading them.
        store: in place of the usual one below the root, for tests.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        durability: Durability = "fsync",
        runtime: Runtime | None = None,
        attempts: int = 5,
        upkeep: int = 128,
        kept: timedelta = timedelta(minutes=1),
        store: ObjectStore | None = None,
    ) -> None:
        uri = f"{os.fspath(root).rstrip('/')}/{NAME}"
        self._access = open_access(uri, Storage(storage_options, durability), runtime=runtime, store=store)
        self._patience = Patience(first=0.1, longest=2.0, attempts=attempts, seconds=600.0)
        self._upkeep, self._kept = upkeep, kept
        self._publishing, self._reading = threading.Lock(), threading.Lock()
        self._mirror = RowMirror(self._access)
        self._check = HeadCheck(self._access.log, self._access.runtime)
        self._scheme = Scheme.V2
        self._tickets = FileTickets(Path(self._access.store.uri)) if type(self._access.store) is LocalStore else None
        self.url = self._access.store.uri
        self._create()

    def __repr__(self) -> str:
        return f"ManifestRecords({self.url!r})"

    def get(self, keys: Collection[str]) -> Found:
        check_keys(keys)
        if not keys:
            return {}
        rows = self._persist(lambda: self._rows(self._newest(), keys))
        return _bodies(rows, keys, self.url)

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        if not prefixes:
            return []
        rows = self._persist(lambda: self._scanned(self._newest(), prefixes))
        chosen = (rows[::-1] if descending else rows)[:limit]
        return [(key, row.body(self.url)) for key, row in chosen]

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        check_keys((*exclusive, *shared))
        # Threads of one process, and processes of one machine, wait for each other here instead of losing to each other.
        with self._publishing, self._in_line():
            result, publishes = self._persist(lambda: self._attempt({*exclusive, *shared}, decide))
        if publishes and publishes % self._upkeep == 0:
            self._keep_compact(clean=publishes % (_CLEAN_EVERY * self._upkeep) == 0)
        return result

    def ticket(self, names: Collection[str], longest: float) -> Ticket:
        return NoTicket() if self._tickets is None else self._tickets.take(names, longest)

    def ticket_for(self, names: Collection[str], longest: float, who: Offering) -> Ticket:
        """A ticket for somebody who makes an offer; in an object store there are none."""
        return NoTicket() if self._tickets is None else self._tickets.take(names, longest, who)

    def close(self) -> None:
        self._mirror = RowMirror(self._access)

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        ticket = self.ticket([NAME], self._patience.longest)
        try:
            yield
        finally:
            ticket.give_back()

    # one try

    def _attempt(self, wanted: set[str], decide: Decide[T]) -> tuple[T, int]:
        """Reads, decides and publishes, all on one version. Gives the number of the publish; 0 if there was nothing to write."""
        file = self._newest()
        rows = self._rows(file, wanted)
        while True:
            writes = decide(_bodies(rows, wanted, self.url))
            if not writes.put and not writes.delete:
                return writes.result, 0
            check_keys((*writes.put, *writes.delete))
            unseen = {*writes.put, *writes.delete} - wanted
            rows = {**rows, **self._rows(file, unseen)} if unseen else rows
            taken = {key for key in unseen if key in writes.put and access_of(key)[1] in rows and rows[access_of(key)[1]].key() == key}
            if not taken:
                return writes.result, self._publish(file, rows, writes)
            wanted |= taken

    def _publish(self, read: ManifestFile, rows: Mapping[str, Row], writes: Writes[T]) -> int:
        publishes = (rows[HEAD].publishes() if HEAD in rows else 0) + 1
        changed = [*_changed(rows, writes), head_row(publishes, self._access.runtime.random.uuid())]
        with self._reading:
            self._follow(read)
            places = self._mirror.places(row.object_id for row in changed)
        try:
            file, made = publish_rows(self._access, read, self._scheme, changed, places, rows.keys())
        except (ConflictError, ContentionError, HistoryUnavailable) as error:
            raise _Again(str(error)) from error
        except OutcomeUnknown as error:
            raise StorageError(
                fit(f"It is not known whether {self.url} was written: {error}", limit=220),
                name=self.url,
                maybe_applied=True,
                transient=True,
                advice="Check whether the change is there before you try again.",
            ) from error
        except StorageError as error:
            if error.maybe_applied:  # that was said of some file; the version was not created, for certain
                raise StorageError(
                    fit(str(error), limit=250), name=self.url, transient=error.transient, advice="Nothing was written."
                ) from error
            raise
        with self._reading, suppress(TiltyardError):  # it is published; whoever asks next reads it
            self._mirror.follow(self._access.trusted(file), made)
        return publishes

    # reading

    def _newest(self) -> ManifestFile:
        """The newest version. Mostly that is the one we know, which takes a few small questions to find out."""
        last, scheme = self._mirror.file, self._scheme
        if last is not None and self._check.is_newest(last.manifest.version, scheme):
            with suppress(HistoryUnavailable):
                self._check.confirm(last, scheme, last.manifest.version, last.manifest.version)
                return last
        version, self._scheme = self._access.head()
        return self._access.load(version, self._scheme)

    def _follow(self, file: ManifestFile) -> None:
        """Makes the mirror show a version."""
        try:
            self._mirror.follow(file)
        except (NotFound, CorruptTable, HistoryUnavailable) as error:
            if self._access.head()[0] > file.manifest.version:
                # Old versions are removed now and then, and this reader took its time.
                raise _Again("the version that was read is gone") from error
            raise

    def _rows(self, file: ManifestFile, keys: Collection[str]) -> dict[str, Row]:
        """The rows in the places of these records, by id, and the one that every publish touches."""
        with self._reading:
            self._follow(file)
            return self._mirror.rows({HEAD, *(access_of(key)[1] for key in keys)})

    def _scanned(self, file: ManifestFile, prefixes: Sequence[str]) -> list[tuple[str, Row]]:
        with self._reading:
            self._follow(file)
            return self._mirror.scan(prefixes)

    # trying again, and keeping the table in shape

    def _persist(self, attempt: Callable[[], T]) -> T:
        patience, runtime = self._patience, self._access.runtime
        start, tries = runtime.clock.monotonic(), 0
        while True:
            try:
                return attempt()
            except _Again as again:
                reason = str(again)
            tries += 1
            seconds = runtime.clock.monotonic() - start
            if tries >= patience.attempts or seconds > patience.seconds:
                what = f"The catalog {self.url} was not written in {tries} tries and {seconds:.1f} s; last: {reason}"
                raise ContentionError(what, operation="catalog", attempts=tries, seconds=seconds)
            runtime.clock.sleep(patience.wait(tries - 1, runtime))

    def _create(self) -> None:
        if self._access.log.head() is not None:
            return
        try:
            create_table(self._access, table_of([head_row(0, "")]), NewTable(), {}, Writing())
        except AlreadyExists:
            pass  # somebody else was faster, and made the same

    def _keep_compact(self, *, clean: bool) -> None:
        """Keeps what a publish costs from growing with the number of those before. No part of it: if it fails, the next one does it."""
        try:
            table = Table._open(self._access)
            table.compact(target_rows=_SMALLEST_FRAGMENT, commit=CommitOptions(race_retries=3, reexecutions=1))
            if clean:
                table.cleanup(older_than=self._kept, keep_versions=_KEPT_VERSIONS, grace=_GRACE)
        except TiltyardError as error:
            _log.info("compaction or cleanup of the catalog %s failed; it is tried again later: %s", self.url, error)


class _Again(Exception):
    """Others were faster; another try may fare better."""


def _bodies(rows: Mapping[str, Row], keys: Collection[str], where: str) -> dict[str, Body]:
    found = by_key(rows.values())
    return {key: found[key].body(where) for key in keys if key in found}


def _changed(rows: Mapping[str, Row], writes: Writes[T]) -> list[Row]:
    """The rows of a merge that does what was decided."""
    put: dict[str, Row] = {}
    for key, body in writes.put.items():
        if key not in writes.delete:
            row = row_of(key, body)
            there = put.get(row.object_id) or rows.get(row.object_id)
            if there is not None and there.key() != key and there.key() not in writes.delete:
                raise AlreadyExists(
                    f"There is a {there.object_type} {row.object_id!r}, so no {row.object_type} can have that name.",
                    name=row.object_id,
                    advice="In this catalog tables and namespaces share their names: choose another.",
                )
            put[row.object_id] = row
    for key in writes.delete:
        _, object_id = access_of(key)
        if object_id in rows and rows[object_id].key() == key and object_id not in put:
            put[object_id] = Row(object_id, GONE)
    return list(put.values())

"""Records in a Lance table, ``__manifest``, in the lake's root: a catalog that needs nothing but the object store.

Whoever writes reads one version of the table, decides, and publishes by a merge on ``object_id``. A row that every publish rewrites makes
any two of them conflict, so what was looked at cannot have changed when a publish lands. A compaction in between changes no record, and
a publish goes over it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from tiltyard.catalog.manifest_rows import (
    COLUMNS,
    GONE,
    HEAD,
    Row,
    access_of,
    by_key,
    head_row,
    row_of,
    rows_of,
    table_of,
    with_ids,
    with_prefixes,
)
from tiltyard.catalog.process_queue import Patience
from tiltyard.catalog.record_codec import check_keys
from tiltyard.catalog.records import Body, Decide, Found, Writes
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
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.options import CommitOptions, Storage
from tiltyard.storage.local import Durability
from tiltyard.table import Table
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.verbs.engine.access import open_access
from tiltyard.verbs.engine.reexecution import ReexecutionPolicy
from tiltyard.verbs.merge import merge_rows
from tiltyard.verbs.merge_plan import Clause, MergePlan
from tiltyard.verbs.write import NewTable, Writing, create_table

T = TypeVar("T")

NAME: Final = "__manifest"
_log = logging.getLogger("tiltyard.lake")

_ONCE: Final = ReexecutionPolicy(RetryPolicy(max_retries=0), reexecutions=0)
"""A publish that meets another one fails, and what to write is decided anew: carried over it would be an answer to another question."""

_MOST_IDS: Final = 1000
"""With more than so many ids it is quicker to read all rows than to understand the question."""

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
        upkeep: after how many publishes the table is compacted and old versions of it are removed, by whoever made the last of them.
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
        upkeep: int = 32,
        kept: timedelta = timedelta(minutes=1),
        store: ObjectStore | None = None,
    ) -> None:
        uri = f"{os.fspath(root).rstrip('/')}/{NAME}"
        self._access = open_access(uri, Storage(storage_options, durability), runtime=runtime, store=store)
        self._patience = Patience(first=0.1, longest=2.0, attempts=attempts, seconds=600.0)
        self._upkeep, self._kept = upkeep, kept
        self._publishing = threading.Lock()
        self._last: Table | None = None
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
        wanted = tuple(prefixes)
        if not wanted:
            return []
        rows = self._persist(lambda: self._scanned(wanted, limit, descending))
        return [(key, row.body(self.url)) for key, row in rows]

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        check_keys((*exclusive, *shared))
        # Threads of one process wait for each other here instead of losing to each other.
        with self._publishing:
            result, publishes = self._persist(lambda: self._attempt({*exclusive, *shared}, decide))
            if publishes and publishes % self._upkeep == 0:
                self._keep_compact()
        return result

    def close(self) -> None:
        self._last = None

    # one try

    def _attempt(self, wanted: set[str], decide: Decide[T]) -> tuple[T, int]:
        """Reads, decides and publishes, all on one version. Gives the number of the publish; 0 if there was nothing to write."""
        table = self._newest()
        rows = self._rows(table, wanted)
        while True:
            writes = decide(_bodies(rows, wanted, self.url))
            if not writes.put and not writes.delete:
                return writes.result, 0
            check_keys((*writes.put, *writes.delete))
            unseen = {*writes.put, *writes.delete} - wanted
            rows = {**rows, **self._rows(table, unseen)} if unseen else rows
            taken = {key for key in unseen if key in writes.put and access_of(key)[1] in rows and rows[access_of(key)[1]].key() == key}
            if not taken:
                return writes.result, self._publish(table, rows, writes)
            wanted |= taken

    def _publish(self, table: Table, rows: Mapping[str, Row], writes: Writes[T]) -> int:
        publishes = (rows[HEAD].publishes() if HEAD in rows else 0) + 1
        changed = _changed(rows, writes)
        source = table_of([*changed, head_row(publishes, self._access.runtime.random.uuid())])
        plan = MergePlan(on=("object_id",), matched=(Clause("update"),), inserts=(Clause("insert"),))
        if any(row.object_type == GONE for row in changed):
            plan = replace(plan, matched=(Clause("delete", f"source.object_type = '{GONE}'"), *plan.matched))
        try:
            # The version that was read, whatever became of the table since: not through a handle, which others may move.
            _, file = merge_rows(self._access, table._file, table._scheme, source, plan, {}, _ONCE)
        except (ConflictError, ContentionError, HistoryUnavailable) as error:
            raise _Again(str(error)) from error
        except OutcomeUnknown as error:
            raise StorageError(
                fit(f"Publishing to {self.url} may or may not have been done: {error}", limit=220),
                name=self.url,
                maybe_applied=True,
                transient=True,
                advice="Look whether it is there before trying again.",
            ) from error
        except StorageError as error:
            if error.maybe_applied:  # that was said of some file; the version was not created, for certain
                raise StorageError(
                    fit(str(error), limit=250), name=self.url, transient=error.transient, advice="Nothing was written."
                ) from error
            raise
        self._last = Table(self._access, self._access.trusted(file), table._scheme)
        return publishes

    # reading

    def _newest(self) -> Table:
        """A handle on the newest version, which nobody moves."""
        version, scheme = self._access.head()
        file = self._access.load(version, scheme)
        last = self._last
        if last is None or last._file.message.joined() != file.message.joined():
            last = self._last = Table(self._access, file, scheme)
        return last

    def _rows(self, table: Table, keys: Collection[str]) -> dict[str, Row]:
        """The rows in the places of these records, by id, and the one that every publish touches."""
        ids = {HEAD, *(access_of(key)[1] for key in keys)}
        found = self._read(table, with_ids(ids) if len(ids) <= _MOST_IDS else None)
        return {row.object_id: row for row in found if row.object_id in ids}

    def _scanned(self, prefixes: tuple[str, ...], limit: int | None, descending: bool) -> list[tuple[str, Row]]:
        table = self._newest()
        condition = with_prefixes(prefixes)
        if limit is None:
            found = {key: row for key, row in by_key(self._read(table, condition)).items() if key.startswith(prefixes)}
            return sorted(found.items(), reverse=descending)
        # Keys first: there may be many, and their bodies are the larger part.
        every = by_key(self._read(table, condition, COLUMNS[:2]))
        keys = sorted((key for key in every if key.startswith(prefixes)), reverse=descending)[:limit]
        bodies = by_key(self._rows(table, keys).values()) if keys else {}
        return [(key, bodies[key]) for key in keys]

    def _read(self, table: Table, condition: str | None, columns: Sequence[str] = COLUMNS) -> list[Row]:
        try:
            return rows_of(table.to_arrow(columns, condition))
        except (NotFound, CorruptTable, HistoryUnavailable) as error:
            if self._access.head()[0] > table.version:
                # Old versions are removed now and then, and this reader took its time.
                raise _Again("the version that was read is gone") from error
            raise

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

    def _keep_compact(self) -> None:
        """Keeps what a publish costs from growing with the number of those before. No part of it: if it fails, the next one does it."""
        try:
            table = Table._open(self._access)
            table.compact(target_rows=_SMALLEST_FRAGMENT, commit=CommitOptions(race_retries=3, reexecutions=1))
            table.cleanup(older_than=self._kept, keep_versions=_KEPT_VERSIONS, grace=_GRACE)
        except TiltyardError as error:
            _log.info("upkeep of %s failed, which does no harm: %s", self.url, error)


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
                    f"There is a {there.object_type} {row.object_id!r}, so there can be no {row.object_type} of that name.",
                    name=row.object_id,
                    advice="In this catalog tables and namespaces share their names: choose another.",
                )
            put[row.object_id] = row
    for key in writes.delete:
        _, object_id = access_of(key)
        if object_id in rows and rows[object_id].key() == key and object_id not in put:
            put[object_id] = Row(object_id, GONE)
    return list(put.values())

"""Upkeep beside a pipeline: compaction, indices and cleanup, each in commits of its own, while runs go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import tiltyard as ty
from tiltyard.pipeline.consumed import Mark, ensure_tables, marks_of, oldest_needed, record
from tiltyard.pipeline.run_report import UpkeepReport
from tiltyard.pipeline.spec import Maintenance

UPKEEP: Final = ":upkeep"
"""What upkeep has in the place of a source; no source can be called so."""


def run_upkeep(lake: ty.Lake, pipeline: str, work: Sequence[Maintenance], run: str) -> list[UpkeepReport]:
    """Does what is due. What others are in the way of waits for the next time."""
    reports = []
    for maintenance in work:
        started = time.monotonic()
        try:
            did = _done(lake, maintenance) if _claimed(lake, pipeline, maintenance, run) else "not due yet"
        except (ty.ConflictError, ty.ContentionError, ty.HistoryUnavailable) as error:
            did = f"postponed after a conflict ({error.kind})"
        reports.append(UpkeepReport(maintenance.name, maintenance.kind, did, time.monotonic() - started))
    return reports


def _claimed(lake: ty.Lake, pipeline: str, one: Maintenance, run: str) -> bool:
    """Whether it is due, and nobody else has begun it; all runners of a pipeline share one clock of it in the lake."""
    if one.every is None:
        return True
    ensure_tables(lake)
    now = datetime.now(UTC)
    with lake.transaction(message=f"{pipeline}: {one.name}") as tx:
        before = marks_of(tx, pipeline).get(UPKEEP, {}).get(one.name, {}).get("at")
        if before is not None and now - datetime.fromisoformat(before) < one.every:
            return False
        record(tx, pipeline, [Mark(UPKEEP, one.name, {"at": now.isoformat()})], run, now)
    return True


def _done(lake: ty.Lake, one: Maintenance) -> str:
    match one.kind:
        case "compact":
            return "; ".join(_compacted(lake, name, one) for name in one.tables)
        case "index":
            return "; ".join(_indexed(lake, name, one) for name in one.tables)
        case "cleanup":
            return _cleaned(lake, one)


def _compacted(lake: ty.Lake, name: str, one: Maintenance) -> str:
    if name not in lake.tables():
        return f"{name} does not exist yet"
    table = lake.table(name)
    before = len(table.layout.fragments)
    if before < one.min_fragments:
        return f"{name} has {before} fragment{'' if before == 1 else 's'}, fewer than min_fragments"
    result = table.compact(message=f"upkeep {one.name}")
    over = f", rebased over {len(result.rebased_over)}" if result.rebased_over else ""
    return f"{name}: {before} fragments became {len(table.layout.fragments)}{over}"


def _indexed(lake: ty.Lake, name: str, one: Maintenance) -> str:
    if name not in lake.tables():
        return f"{name} does not exist yet"
    table = lake.table(name)
    assert one.column is not None
    there = [index for index in table.indices.list() if index.columns == (one.column,) and index.type.upper() == one.index_type.upper()]
    if not there:
        table.create_index(one.column, one.index_type)
        return f"{name}: an index on {one.column}"
    if not there[0].missing:
        return f"{name}: {there[0].name} is up to date"
    table.indices.optimize([there[0].name])
    return f"{name}: {there[0].name} brought up to date"


def _cleaned(lake: ty.Lake, one: Maintenance) -> str:
    """Removes old snapshots, but none that a pipeline still has to read changes from."""
    sight = lake.snapshot()
    needed = oldest_needed(sight)
    keep = one.keep_snapshots
    if needed is not None:
        keep = max(keep or 0, sight.id - needed + 1)
    report = lake.cleanup(older_than=one.older_than, keep_snapshots=keep)
    gone = sum(map(len, report.snapshots.values()))
    return f"{gone} snapshot{'' if gone == 1 else 's'} removed"


@dataclass
class BackgroundMaintenance:
    """Upkeep in a thread of its own, for as long as a run takes."""

    lake: ty.Lake
    pipeline: str
    work: Sequence[Maintenance]
    run: str
    reports: list[UpkeepReport] = field(default_factory=list)
    _failure: ty.TiltyardError | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        if self.work:
            self._thread = threading.Thread(target=self._work, name=f"upkeep of {self.pipeline}", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            self.reports = run_upkeep(self.lake, self.pipeline, self.work, self.run)
        except ty.TiltyardError as error:
            self._failure = error

    def join(self) -> None:
        """Waits until it is done."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def told(self) -> Sequence[UpkeepReport]:
        """What it did.

        Raises:
            TiltyardError: it failed, and not because of others.
        """
        if self._failure is not None:
            raise self._failure
        return self.reports

"""Upkeep by the server: compaction, indices and cleanup, each when it is due, beside all who read and write.

What is due is decided in the catalog: a record for each policy says when it was begun last, and whoever replaces it runs the policy. So
several servers of one lake do it once, and a server that starts again does not begin anew. A policy goes table by table; each step is a
commit of its own, by the verbs that everybody uses: they are rebased over other writers, or put off till the next time. A server that is
told to stop finishes the table it is at. One that is killed loses nothing, as any writer.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.errors import ConflictError, ContentionError, HistoryUnavailable, NotFound, StorageError, TiltyardError
from tiltyard.lakes.cleanup.lake_cleanup import GRACE
from tiltyard.lakes.table_names import full_name
from tiltyard.redact import redact
from tiltyard.server.upkeep_policies import UpkeepPolicy

if TYPE_CHECKING:
    from tiltyard.lake import Lake

UPKEEP: Final = "upkeep/"
AUTHOR: Final = "upkeep"
"""Who commits, for the history and the audit log."""
LONGEST_WAIT: Final = 60.0
"""Seconds after which it is looked again what is due: clocks are set, and other servers take their part."""
MIN_FRAGMENTS: Final = 8
TARGET_ROWS: Final = 1024 * 1024
DELETIONS: Final = 0.1
WHOLE_LAKE: Final = ""

Became = Literal["done", "nothing", "put off", "failed", "would"]

_log = logging.getLogger("tiltyard.server.upkeep_runs")


class StoppedError(Exception):
    """The server is told to stop, in the middle of a cleanup."""


@dataclass(frozen=True, slots=True)
class UpkeepStep:
    """What a policy did to one table, or to the lake.

    Attributes:
        policy, kind: which.
        target: the table; empty for the lake.
        became: what it came to; ``nothing`` where there was nothing to do, ``would`` where it was only asked.
        told: the same in words.
        transaction: what it committed, if anything.
        seconds: how long it took.
    """

    policy: str
    kind: str
    target: str
    became: Became
    told: str
    transaction: str = ""
    seconds: float = 0.0


def never() -> bool:
    """For whoever does not stop in the middle."""
    return False


def run_policy(lake: Lake, policy: UpkeepPolicy, *, dry_run: bool = False, stopping: Callable[[], bool] = never) -> Iterator[UpkeepStep]:
    """Does what a policy says, now, table by table; what fails at one table is told, and does not keep it from the others.

    Args:
        lake: the lake; it commits as ``upkeep``.
        policy: what to do.
        dry_run: only says what would be done.
        stopping: asked between two tables, and between those of a cleanup.
    """
    mine = lake.signed(AUTHOR)
    targets = [WHOLE_LAKE] if policy.kind == "cleanup" else [name for name in mine.tables() if policy.covers(full_name(name))]
    for target in targets:
        if stopping():
            return
        began = time.monotonic()
        step = _attempted(mine, policy, target, dry_run, stopping)
        yield replace(step, seconds=time.monotonic() - began)


def _attempted(lake: Lake, policy: UpkeepPolicy, target: str, dry_run: bool, stopping: Callable[[], bool]) -> UpkeepStep:
    works: dict[str, Callable[[], UpkeepStep]] = {
        "compact": lambda: _compacted(lake, policy, target, dry_run),
        "index": lambda: _indexed(lake, policy, target, dry_run),
        "cleanup": lambda: _cleaned(lake, policy, dry_run, stopping),
    }
    try:
        return works[policy.kind]()
    except StoppedError:
        return UpkeepStep(policy.name, policy.kind, target, "put off", "the server stops; the next run continues it")
    except (ConflictError, ContentionError, HistoryUnavailable, NotFound) as error:
        return UpkeepStep(policy.name, policy.kind, target, "put off", f"it conflicts with other writers ({error.kind})")
    except (TiltyardError, OSError, RuntimeError, ValueError) as error:  # the last three are pylance's
        return UpkeepStep(policy.name, policy.kind, target, "failed", redact(str(error))[:300])


def _compacted(lake: Lake, policy: UpkeepPolicy, name: str, dry_run: bool) -> UpkeepStep:
    table, settings = lake.table(name), policy.settings
    rows, share = settings.get("target_rows", TARGET_ROWS), settings.get("deletions", DELETIONS)
    fragments = table.layout.fragments
    small = sum(fragment.physical_rows < rows for fragment in fragments)
    worn = sum(fragment.physical_rows - fragment.live_rows > share * fragment.physical_rows for fragment in fragments)
    if small < settings.get("min_fragments", MIN_FRAGMENTS) and not worn:
        return _step(policy, name, "nothing", f"{small} small fragments, too few to compact")
    found = f"{small} small fragments, {worn} with many deletions"
    if dry_run:
        return _step(policy, name, "would", f"would rewrite {found}")
    done = table.compact(target_rows=rows, deletions=share, message=f"upkeep: {policy.name}")
    left = len(lake.table(name).layout.fragments)
    return replace(_step(policy, name, "done", f"{found}: {len(fragments)} became {left}"), transaction=done.transaction_id)


def _indexed(lake: Lake, policy: UpkeepPolicy, name: str, dry_run: bool) -> UpkeepStep:
    table, least = lake.table(name), policy.settings.get("min_rows", 1)
    late = {index.name: index.missing_rows for index in table.indices.list() if index.missing_rows >= least}
    if not late:
        return _step(policy, name, "nothing", "all indices are up to date")
    found = ", ".join(f"{index} ({rows:,} rows)" for index, rows in late.items())
    if dry_run:
        return _step(policy, name, "would", f"would extend {found}")
    done = table.indices.optimize(list(late), merge=policy.settings.get("merge", False), message=f"upkeep: {policy.name}")
    return replace(_step(policy, name, "done", f"extended {found}"), transaction=done.transaction_id)


def _cleaned(lake: Lake, policy: UpkeepPolicy, dry_run: bool, stopping: Callable[[], bool]) -> UpkeepStep:
    def progress(done: int, total: int) -> None:
        if stopping() and done < total:
            raise StoppedError

    settings = policy.settings
    report = lake.cleanup(
        older_than=settings.get("older_than"),
        keep_snapshots=settings.get("keep_snapshots"),
        grace=settings.get("grace", GRACE),
        dry_run=dry_run,
        progress=progress,
    )
    snapshots = sum(map(len, report.snapshots.values()))
    told = f"{snapshots:,} snapshots, {report.bytes:,} bytes of tables, {len(report.dropped):,} directories"
    if report.skipped:
        first = next(iter(report.skipped.items()))
        told += f"; skipped {len(report.skipped):,}, such as {first[0][:60]}: {first[1][:120]}"
    became: Became = "would" if dry_run else "done" if snapshots or report.bytes or report.dropped else "nothing"
    return _step(policy, WHOLE_LAKE, became, redact(told))


def _step(policy: UpkeepPolicy, target: str, became: Became, told: str) -> UpkeepStep:
    return UpkeepStep(policy.name, policy.kind, target, became, told)


# ---- when ------------------------------------------------------------------------------------------------------------------------


def record_key(policy: UpkeepPolicy) -> str:
    """Where the catalog has when a policy was begun; names of policies may be longer than keys."""
    return UPKEEP + hashlib.sha256(f"{policy.kind} {policy.name}".encode()).hexdigest()[:32]


def claim(lake: Lake, policy: UpkeepPolicy) -> datetime | None:
    """Takes a policy that is due: None where it is ours to run now, or when it will be due. One that waits for a time of the day begins
    to wait when it is first seen."""
    key, now = record_key(policy), lake.catalog.runtime.clock.now()

    def decide(found: Found) -> Writes[datetime | None]:
        last = _moment(found.get(key))
        due = policy.schedule.next_after(last, now)
        body: Body = {"name": policy.name[:200], "kind": policy.kind, "at": now.isoformat()}
        if due <= now:
            return Writes(None, {key: body})
        return Writes(due, {key: body} if last is None else {})

    return lake.catalog.records.transact([key], [], decide)


def _moment(body: Body | None) -> datetime | None:
    return None if body is None else datetime.fromisoformat(str(body["at"]))


class UpkeepThread:
    """Runs policies when they are due, one at a time, until it is stopped.

    Args:
        lake: the lake.
        policies: what to do.
        note: is told of each step.
    """

    def __init__(self, lake: Lake, policies: Sequence[UpkeepPolicy], note: Callable[[UpkeepStep], Any]) -> None:
        self._lake, self._policies, self._note = lake, policies, note
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tiltyard-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begins nothing more; what is at work goes on to its next table."""
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """Waits for what is at work; whether it ended in time. If not, it ends with the process, which loses nothing."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            waits = [self._run_if_due(policy) for policy in self._policies]
            self._stop.wait(max(0.0, min(waits, default=LONGEST_WAIT)))

    def _run_if_due(self, policy: UpkeepPolicy) -> float:
        """Runs a policy if it is due; seconds until it is the next time, as far as is known."""
        if self._stop.is_set():
            return 0.0
        try:
            due = claim(self._lake, policy)
            if due is not None:
                left = due - self._lake.catalog.runtime.clock.now()
                return min(LONGEST_WAIT, max(left, timedelta(0)).total_seconds())
            for step in run_policy(self._lake, policy, stopping=self._stop.is_set):
                self._note(step)
        except (StorageError, ContentionError) as error:
            _log.warning("upkeep %s waits for the catalog: %s", policy.name, redact(str(error)))
            return LONGEST_WAIT / 6
        return 0.0

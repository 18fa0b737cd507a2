"""Fragments put together by other processes: pylance plans on the driver, each group is rewritten by whoever takes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tiltyard.options import Storage
from tiltyard.verbs.distributed.cluster_tasks import ClusterTask
from tiltyard.verbs.distributed.scan_tasks import ScanTask
from tiltyard.verbs.engine.access import open_access
from tiltyard.verbs.engine.pylance import lance_errors


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Some neighbouring fragments that are to become fewer. It can be pickled.

    Attributes:
        scan: the version.
        plan: what pylance is to do, in its own words.
        rows: how many rows there are to rewrite.
    """

    scan: ScanTask
    plan: str
    rows: int

    def run(self) -> str:
        """Writes the new files; returns what pylance reports of them, for the driver."""
        from lance import optimize

        access = open_access(self.scan.uri, Storage(self.scan.storage_options))
        with lance_errors(access, "compact fragments", self.scan.number):
            return str(_class(optimize, "CompactionTask").from_json(self.plan).execute(self.scan.dataset()).json())


CompactRunner: TypeAlias = Callable[[Sequence[CompactTask | ClusterTask]], Sequence[Any]]
"""Runs tasks somewhere and gives what ``run`` of each returned, in order."""


def narrowed(task: Any, chosen: Collection[int]) -> list[Any]:
    """A task of pylance as far as it is about chosen fragments: neighbours among them, and single ones for their deleted rows."""
    from lance import optimize

    told = json.loads(task.json())
    runs: list[list[Any]] = [[]]
    for fragment in told["task"]["fragments"]:
        if fragment["id"] in chosen:
            runs[-1].append(fragment)
        else:
            runs.append([])
    if runs == [told["task"]["fragments"]]:
        return [task]
    made = []
    for run in runs:
        if len(run) > 1 or (run and run[0].get("deletion_file")):
            told["task"]["fragments"] = run
            made.append(_class(optimize, "CompactionTask").from_json(json.dumps(told)))
    return made


def run_tasks(scan: ScanTask, tasks: Sequence[Any], runner: CompactRunner) -> list[Any]:
    """Has pylance's tasks run; gives its results."""
    from lance import optimize

    known = dict(scan.fragments)
    given = [CompactTask(scan, task.json(), sum(known.get(fragment.id, 0) for fragment in task.fragments)) for task in tasks]
    return [_class(optimize, "RewriteResult").from_json(name) for name in runner(given)]


def _class(module: Any, name: str) -> Any:
    """A class whose stub knows less of it than it can do."""
    return getattr(module, name)

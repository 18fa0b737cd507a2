"""Fragments put together by other processes: pylance plans on the driver, each group is rewritten by whoever takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tiltyard.options import Storage
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
        """Writes the new files; gives what pylance says of them, which goes back to the driver."""
        from lance import optimize

        access = open_access(self.scan.uri, Storage(self.scan.storage_options))
        with lance_errors(access, "compact fragments", self.scan.number):
            return str(_class(optimize, "CompactionTask").from_json(self.plan).execute(self.scan.dataset()).json())


CompactRunner: TypeAlias = Callable[[Sequence[CompactTask]], Sequence[str]]
"""Runs tasks somewhere and gives what each of them said, in order."""


def run_tasks(scan: ScanTask, tasks: Sequence[Any], runner: CompactRunner) -> list[Any]:
    """Has pylance's tasks run; gives its results."""
    from lance import optimize

    known = dict(scan.fragments)
    given = [CompactTask(scan, task.json(), sum(known.get(fragment.id, 0) for fragment in task.fragments)) for task in tasks]
    return [_class(optimize, "RewriteResult").from_json(name) for name in runner(given)]


def _class(module: Any, name: str) -> Any:
    """A class whose stub knows less of it than it can do."""
    return getattr(module, name)

"""A process that backs up, restores, rebuilds or upgrades a lake and dies, by SIGKILL, at a step that is named before.

Every write to a store, every transaction of a database and every step of writing the backup's file is a step. One run without a death
tells the names of all steps; then a run dies at each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tests.support.lake_killed as killed
import tiltyard.lakes.opening as opening
import tiltyard.lakes.recovery.backup as backups
import tiltyard.verbs.engine.access as places
from tests.support.lake_killed import SteppingRecords, SteppingStore, Steps
from tests.support.lakes import Site, recovering
from tests.support.lost_catalogs import lose_catalog
from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.records import Writes
from tiltyard.lake import Lake
from tiltyard.storage import open_store


def command(name: str, uri: str, arguments: dict[str, Any], file: Path) -> None:
    """Runs one of the commands to its end."""
    if name == "restore":
        Lake.restore(uri, file, **recovering(arguments))
    elif name == "rebuild":
        Lake.rebuild(uri, **recovering(arguments))
    else:
        with Lake.open(uri, **arguments) as lake:
            _ = lake.backup(file) if name == "backup" else lake.upgrade()


def run_child(name: str, uri: str, arguments: dict[str, Any], file: Path, deadly: int | None, names: Path) -> None:
    steps = Steps(deadly, names)

    def stepping_store(*given: Any, **more: Any) -> Any:
        return SteppingStore(open_store(*given, **more), steps)

    def stepping_records(*given: Any, **more: Any) -> Any:
        return SteppingRecords(open_records(*given, **more), steps)

    def stepping(what: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **more: Any) -> Any:
            steps.take(f"{what}: before")
            done = plain(*given, **more)
            steps.take(f"{what}: after")
            return done

        return step

    vars(places)["open_store"] = vars(opening)["open_store"] = stepping_store
    vars(opening)["open_records"] = stepping_records
    for what in ("write_temporary", "sync_parent"):
        vars(backups)[what] = stepping(what, vars(backups)[what])
    command(name, uri, arguments, file)
    steps.take("done")


def child(*arguments: Any) -> int:
    """Runs a child to its end or its death; what it ended with."""
    return killed.child(*arguments, target=run_child)


class Pristine:
    """A lake as it is now, which can be put back as often as one likes; its catalog may be lost."""

    def __init__(self, site: Site, copy: Path) -> None:
        self._site, self._copy = site, copy
        self._records: dict[str, Any] = {}
        if site.kind == "postgres":
            records = open_records(site.uri)
            self._records = dict(records.scan([""]))
            records.close()
        shutil.copytree(site.directory, copy)

    def put_back(self) -> None:
        site = self._site
        lose_catalog(site)
        shutil.rmtree(site.directory)
        shutil.copytree(self._copy, site.directory)
        if self._records:
            records = open_records(site.uri)
            records.transact([], [], lambda found: Writes(None, self._records))
            records.close()

"""Losing the catalog of a lake, whatever its kind, and telling what the lake held before and after."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import tiltyard.lakes.branches.lake_refs
import tiltyard.lakes.cleanup.pins
import tiltyard.lakes.lake_transaction
from tests.support.lakes import Site, ids, recovering
from tiltyard.catalog.marks import Marks
from tiltyard.catalog.records import Writes
from tiltyard.lake import Lake
from tiltyard.lakes.recovery.restoring import LakeRecoveryReport


def lose_catalog(site: Site) -> None:
    """Removes the catalog and nothing else; handles that are open on it are closed before."""
    for lake in site.opened:
        lake.close()
    site.opened.clear()
    if site.kind == "postgres":
        with psycopg.connect(site.uri, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS tiltyard_records, tiltyard_schema")
        return
    for path in site.directory.glob("catalog.db*"):
        path.unlink()
    shutil.rmtree(site.directory / "__manifest", ignore_errors=True)


def restore(site: Site, backup: Any, **more: Any) -> LakeRecoveryReport:
    return Lake.restore(site.uri, backup, **recovering(site.arguments, **more))


def rebuild(site: Site, **more: Any) -> LakeRecoveryReport:
    return Lake.rebuild(site.uri, **recovering(site.arguments, **more))


def contents(lake: Lake, at: Any = None) -> dict[str, list[int]]:
    """The ids in each table of a snapshot."""
    shot = lake.snapshot(at)
    return {name: ids(shot.table(name)) for name in shot.tables()}


def commits(lake: Lake) -> list[tuple[Any, ...]]:
    """What the history says of each snapshot, but for when it was."""
    return [
        (step.transaction, tuple(sorted(step.tables)), step.author, step.message, dict(step.properties))
        for step in lake.history()
        if not step.unknown
    ]


def all_contents(lake: Lake) -> dict[int, dict[str, list[int]]]:
    return {step.id: contents(lake, step.id) for step in lake.history() if not step.unknown}


def whole(lake: Lake) -> dict[str, Any]:
    """All that a user can see of a lake."""
    branches = {name: contents(lake.on_branch(name)) for name in lake.branches}
    tags = {tag.name: contents(lake, tag.name) for tag in lake.tags.list()}
    return {"main": contents(lake), "branches": branches, "tags": tags, "commits": commits(lake)}


def records_of(lake: Lake) -> Mapping[str, Any]:
    return dict(lake.catalog.records.scan([""]))


# ---- a lake of the release before ----------------------------------------------------------------------------------------------------

FORMAT_1 = {
    "lake": {"format", "id", "created", "root"},
    "tip": {"snapshot", "at"},
    "table": {"id", "name", "location", "version", "data_version", "naming", "branch", "home", "refused", "quarantine"},
    "transaction": {"state", "snapshot", "branch", "at", "key"},
    "branch": {"origin", "snapshot", "created", "id"},
    "tag": {"snapshot", "branch", "created"},
    "pending": {"table", "lake_branch", "branch", "version", "path", "staged", "transaction", "alone"},
    "snapshot": {
        "id", "branch", "at", "transaction", "changes", "author", "message", "properties", "isolation", "base", "voided"
    },
    "change": {"table", "kind", "name", "base", "read", "steps", "location", "naming", "branch", "former", "lost"},
}  # fmt: skip
"""The members that the release before wrote into each kind of record; kinds that are missing here it did not write at all, or as today."""
LATER = ("place/", "ended/", "pin/", "root/")


@contextmanager
def unmarked() -> Iterator[None]:
    """Lets lakes make tables and versions as the release before did: nothing says whose they are."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Marks, "stamp", lambda self: None)
        patched.setattr(tiltyard.lakes.lake_transaction, "write_owner", lambda *given: None)
        patched.setattr(tiltyard.lakes.branches.lake_refs, "make_pin", lambda *given: None)
        patched.setattr(tiltyard.lakes.cleanup.pins, "write_pin", lambda *given: None)
        yield


def as_format_1(site: Site) -> None:
    """Takes away all that the release before did not write: the claim, the journal, owner files, and members of records."""
    with Lake.open(site.uri, **{"durability": "os", **site.arguments}) as lake:
        records = lake.catalog.records
        there = dict(records.scan([""]))
        put = {key: _format_1(key, body) for key, body in there.items() if not key.startswith(LATER)}
        records.transact([*there], [], lambda found: Writes(None, put, [key for key in there if key not in put]))
    shutil.rmtree(site.directory / "_tiltyard", ignore_errors=True)
    for owner in site.directory.glob("*/_tiltyard/owner.json"):
        owner.unlink()


def _format_1(key: str, body: Mapping[str, Any]) -> dict[str, Any]:
    kind = key.partition("/")[0]
    if kind == "cut":
        return {name: [_kept("table", head) for head in value] if name == "tables" else value for name, value in body.items()}
    kept = _kept(kind, body)
    if kind == "lake":
        return {**kept, "format": 1}
    if kind == "snapshot":
        return {**kept, "changes": [_kept("change", change) for change in kept["changes"]]}
    return kept


def _kept(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name in FORMAT_1[kind]} if kind in FORMAT_1 else dict(body)

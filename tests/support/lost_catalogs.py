"""Losing the catalog of a lake, whatever its kind, and telling what the lake held before and after."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import psycopg

from tests.support.lakes import Site, ids
from tiltyard.catalog.codec import LAKE
from tiltyard.catalog.records import Writes
from tiltyard.lake import Lake
from tiltyard.lakes.restoring import LakeRecoveryReport


def lose_catalog(site: Site) -> None:
    """Removes the catalog and nothing else; handles that are open on it are closed before."""
    for lake in site.opened:
        lake.close()
    site.opened.clear()
    if site.kind == "postgres":
        with psycopg.connect(site.uri, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS tiltyard_records, tiltyard_schema")
        return
    assert site.root is not None
    for path in site.root.glob("catalog.db*"):
        path.unlink()
    shutil.rmtree(site.root / "__manifest", ignore_errors=True)


def restore(site: Site, backup: Any, **more: Any) -> LakeRecoveryReport:
    return Lake.restore(site.uri, backup, **{"durability": "os", **site.arguments, **more})


def rebuild(site: Site, **more: Any) -> LakeRecoveryReport:
    return Lake.rebuild(site.uri, **{"durability": "os", **site.arguments, **more})


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


def as_format_1(site: Site) -> None:
    """Turns a lake into one that the release before made: no claim, no owner files, no journal; nothing is said of itself.

    Its tables must have been made without marks, see ``unmarked``.
    """
    assert site.root is not None
    with Lake.open(site.uri, **{"durability": "os", **site.arguments}) as lake:
        records = lake.catalog.records
        body = {key: value for key, value in records.get([LAKE])[LAKE].items() if key in ("id", "created", "root")}
        records.transact([LAKE], [], lambda found: Writes(None, {LAKE: {"format": 1, **body}}))
    shutil.rmtree(site.root / "_tiltyard", ignore_errors=True)
    for owner in site.root.glob("*/_tiltyard/owner.json"):
        owner.unlink()

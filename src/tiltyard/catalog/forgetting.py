"""How a catalog forgets: each step is atomic, can be repeated, and leaves a catalog that is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.codec import BRANCHES, BUCKET, GONE, cut_key, cuts_prefix, gone_key, snapshot_key, table_key
from tiltyard.catalog.cuts import Floor, Line, body_of, floor_from, floor_key, named_cut_key
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.values import MAIN, TableHead

AT_ONCE: Final = 500
"""Records that are deleted in one step."""


def give_up_below(catalog: Catalog, line: Line, snapshot: int, at: datetime, heads: Mapping[str, TableHead]) -> None:
    """Raises the floor of a line of history. After this nobody names a snapshot below it, and no transaction is committed that was
    built on what only such a snapshot needs. Nothing is deleted yet.

    Args:
        catalog: of the lake.
        line: as it was read.
        snapshot: the oldest one that stays.
        at: when it was committed.
        heads: all tables right after it.
    """
    floor = floor_key(line.branch)
    keys = {head.id: table_key(line.branch, head.id) for head in heads.values()}

    def decide(found: Found) -> Writes[None]:
        if not _is_still(line, found):
            return Writes(None)
        put: dict[str, Body] = {}
        known = floor_from(found, line.branch)
        if known.snapshot < snapshot:
            before = Floor(line.begin, line.begun_at, line.begins_with) if known.heads is None else known.lowest
            put[floor] = Floor(snapshot, at, heads, before).to_body()
        for table, key in keys.items():
            if key in found and int(found[key]["refused"]) < heads[table].version:
                put[key] = {**found[key], "refused": heads[table].version}
        return Writes(None, put)

    catalog.records.transact([floor, *keys.values()], _identity(line), decide)


def forget(catalog: Catalog, line: Line, floor: int, named: Mapping[int, Mapping[str, TableHead]]) -> None:
    """Deletes the records of snapshots below the floor. Those that somebody named stay, each with a cut of its own.

    Leaves all of it to another cleanup that has raised the floor further meanwhile: only that one knows all names below it.
    """
    cuts = {named_cut_key(line.branch, number): body_of(heads.values()) for number, heads in named.items()}
    going = [number for number in (*line.strays, *(step.id for step in line.steps)) if number < floor and number not in named]
    keys = [snapshot_key(line.branch, number) for number in sorted(going)]
    keys += [named_cut_key(line.branch, number) for number in line.named if number not in named]
    keys += [key for key, _ in catalog.records.scan([cuts_prefix(line.branch)]) if _is_below(key, line.branch, floor)]
    if not _settle(catalog, line, floor, cuts):
        return
    for first in range(0, len(keys), AT_ONCE):
        part = keys[first : first + AT_ONCE]
        _step(catalog, line, part, lambda found, part=part: Writes(None, delete=[key for key in part if key in found]))  # type: ignore[misc]


def _settle(catalog: Catalog, line: Line, floor: int, cuts: Mapping[str, Body]) -> bool:
    """Writes the cuts of named snapshots down. From then on nobody needs what is below the floor."""
    key = floor_key(line.branch)

    def decide(found: Found) -> Writes[bool]:
        known = floor_from(found, line.branch)
        if not _is_still(line, found) or known.heads is None or known.snapshot > floor:
            return Writes(False)
        put = {one: body for one, body in cuts.items() if one not in found}
        if known.before is not None:
            put[key] = replace(known, before=None).to_body()
        return Writes(True, put)

    return catalog.records.transact([key, *cuts], _identity(line), decide)


def _is_below(key: str, branch: str, floor: int) -> bool:
    """Whether a cut written down for a bucket is one that nobody begins from any more."""
    bucket = key.removeprefix(cuts_prefix(branch))
    return bucket.isdecimal() and key == cut_key(branch, int(bucket)) and int(bucket) * BUCKET - 1 < floor


def _step(catalog: Catalog, line: Line, keys: Sequence[str], decide: Callable[[Found], Writes[None]]) -> None:
    catalog.records.transact(keys, _identity(line), lambda found: decide(found) if _is_still(line, found) else Writes(None))


def _identity(line: Line) -> list[str]:
    return [] if line.branch == MAIN else [BRANCHES + line.branch]


def _is_still(line: Line, found: Found) -> bool:
    """Whether the branch is the one that was read: it may have been deleted, or begun anew."""
    return line.branch == MAIN or str(found.get(BRANCHES + line.branch, {}).get("id")) == line.identity


# ---- directories of tables -----------------------------------------------------------------------------------------------------------


def condemn(catalog: Catalog, locations: Iterable[str]) -> None:
    """Notes that directories are given up. After this no table is made in them; their files are still to be deleted."""
    keys = [gone_key(location) for location in locations]
    now = catalog.runtime.clock.now().isoformat()
    if keys:
        catalog.records.transact(keys, [], lambda found: Writes(None, {key: {"at": now, "left": True} for key in keys if key not in found}))


def reprieve(catalog: Catalog, locations: Iterable[str]) -> None:
    """Takes that back for directories that turned out to have a table."""
    keys = [gone_key(location) for location in locations]
    if keys:
        catalog.records.transact(keys, [], lambda found: Writes(None, delete=[key for key in keys if key in found]))


def emptied(catalog: Catalog, location: str) -> None:
    """Notes that the files of a directory are deleted. That it was given up stays known: a slow writer may still want to use it."""
    key = gone_key(location)
    catalog.records.transact([key], [], lambda found: Writes(None, {key: {**found[key], "left": False}} if key in found else {}))


def condemned(catalog: Catalog) -> dict[str, bool]:
    """Directories that were given up, and whether there may still be files in them."""
    return {key.removeprefix(GONE): bool(body["left"]) for key, body in catalog.records.scan([GONE])}

"""Expiry: removes records of transactions committed long ago, so that no later answer about them is wrong.

What goes is remembered in 6 bytes each (``expired/``): that the transaction was committed. So whoever asks for its outcome is told that its
record has expired, and nobody can have it aborted. An in-doubt transaction that comes back after so long must not be committed twice: the
tip of its branch says up to which snapshot records have expired, and a transaction that was begun before that one is refused.

Only committed transactions expire. The record of an aborted one is the proof on which its files are deleted, and keeps its writer from
publishing what is gone; there is one for each that died. What a name was used for is forgotten together with the outcomes of that time
(``freed/``). A single verb needs no record of its own: the version log of its table says
whether its transaction is there. ``gone/``, ``ended/`` and ``place/`` stay as well: somebody may come back with the pieces of a table whose
directory was given up, however late.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import MAIN, TableHead
from tiltyard.catalog.publishing import COMMITTED, LEADER
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.snapshot_index import BranchHistory, SnapshotFloor, body_of, floor_from, floor_key, named_cut_key
from tiltyard.catalog.value_codec import (
    BRANCHES,
    BUCKET,
    EXPIRED,
    FREED,
    GONE,
    TRANSACTIONS,
    cut_key,
    cuts_prefix,
    gone_key,
    idempotency_key,
    snapshot_key,
    table_key,
    tip_key,
    transaction_key,
)

AT_ONCE: Final = 400
_BYTES: Final = 6


def digest(transaction: str) -> str:
    """A few letters that tell a transaction from others, well enough to err on the safe side."""
    return base64.b64encode(hashlib.sha256(transaction.encode()).digest()[:_BYTES]).decode()


def expired_among(catalog: Catalog, transactions: Collection[str]) -> set[str]:
    """Those among transactions without a record that were committed, and whose records have expired."""
    wanted = {digest(transaction): transaction for transaction in transactions}
    if not wanted:
        return set()
    length = len(digest(""))
    found: set[str] = set()
    for _, body in catalog.records.scan([EXPIRED]):
        text = str(body["committed"])
        found.update(wanted[part] for at in range(0, len(text), length) if (part := text[at : at + length]) in wanted)
    return found


def expire(catalog: Catalog, outcomes: timedelta, keys: timedelta, now: datetime, *, dry_run: bool) -> int:
    """Deletes the records of transactions that were committed longer ago than their outcome may be asked for; how many.

    Args:
        catalog: of the lake.
        outcomes: how long that is.
        keys: how long an idempotency key holds; the record of its transaction stays as long.
        now: the time.
        dry_run: only counts.
    """
    pending = {pending.transaction for pending in catalog.pending()}
    going: dict[str, list[tuple[str, Body]]] = defaultdict(list)
    for key, body in catalog.records.scan([TRANSACTIONS]):
        transaction = key.removeprefix(TRANSACTIONS)
        keep = max(outcomes, keys) if "key" in body else outcomes
        if (
            body["state"] == COMMITTED
            and str(body.get(LEADER, transaction)) not in pending
            and now - datetime.fromisoformat(str(body["at"])) >= keep
        ):
            going[str(body["branch"])].append((transaction, body))
    if dry_run:
        return sum(map(len, going.values()))
    done = 0
    for branch, records in going.items():
        _raise_floor(catalog, branch, max(int(body["snapshot"]) for _, body in records))
        for first in range(0, len(records), AT_ONCE):
            done += _forget(catalog, records[first : first + AT_ONCE])
    _forget_freed(catalog)
    return done


def _forget_freed(catalog: Catalog) -> None:
    """Deletes what says when a name was freed, where all transactions that looked before are refused anyway."""
    freed = [key for key, _ in catalog.records.scan([FREED])]
    for first in range(0, len(freed), AT_ONCE):
        tips = {key: tip_key(key.removeprefix(FREED).partition("/")[0]) for key in freed[first : first + AT_ONCE]}

        def decide(found: Found, tips: Mapping[str, str] = tips) -> Writes[None]:
            floors = {key: int(found.get(tip, {}).get("expired", 0)) for key, tip in tips.items()}
            return Writes(None, delete=[key for key in tips if key in found and int(found[key]["snapshot"]) <= floors[key]])

        catalog.records.transact([*tips], sorted({*tips.values()}), decide)


def _raise_floor(catalog: Catalog, branch: str, snapshot: int) -> None:
    """Refuses transactions begun before a snapshot. A branch that is gone refuses them all."""
    tip = tip_key(branch)

    def decide(found: Found) -> Writes[None]:
        body = found.get(tip)
        if body is None or int(body.get("expired", 0)) >= snapshot:
            return Writes(None)
        # One that began anew counts from where it began, and nothing on it is as old as what expires.
        return Writes(None, {tip: {**body, "expired": min(snapshot, int(body["snapshot"]))}})

    catalog.records.transact([tip], [], decide)


def _forget(catalog: Catalog, records: Sequence[tuple[str, Body]]) -> int:
    keys = {transaction_key(transaction): transaction for transaction, _ in records}
    named = {idempotency_key(str(body["key"])): transaction for transaction, body in records if "key" in body}
    chunk = EXPIRED + catalog.runtime.random.uuid()

    def decide(found: Found) -> Writes[int]:
        gone = sorted(key for key in keys if key in found and found[key]["state"] == COMMITTED)
        freed = [key for key, transaction in named.items() if key in found and found[key]["transaction"] == transaction]
        if not gone:
            return Writes(0)
        return Writes(len(gone), {chunk: {"committed": "".join(digest(keys[key]) for key in gone)}}, [*gone, *freed])

    return catalog.records.transact([*keys, *named], [], decide)


def give_up_below(catalog: Catalog, line: BranchHistory, snapshot: int, at: datetime, heads: Mapping[str, TableHead]) -> None:
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
            before = SnapshotFloor(line.begin, line.begun_at, line.begins_with) if known.heads is None else known.lowest
            put[floor] = SnapshotFloor(snapshot, at, heads, before).to_body()
        for table, key in keys.items():
            if key in found and int(found[key]["refused"]) < heads[table].version:
                put[key] = {**found[key], "refused": heads[table].version}
        return Writes(None, put)

    catalog.records.transact([floor, *keys.values()], _identity(line), decide)


def forget(catalog: Catalog, line: BranchHistory, floor: int, named: Mapping[int, Mapping[str, TableHead]]) -> None:
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


def _settle(catalog: Catalog, line: BranchHistory, floor: int, cuts: Mapping[str, Body]) -> bool:
    """Writes the cuts of named snapshots down. From then on nobody needs what is below the floor."""
    key = floor_key(line.branch)

    def decide(found: Found) -> Writes[bool]:
        known = floor_from(found, line.branch)
        if not _is_still(line, found) or known.heads is None or known.snapshot > floor:
            return Writes(False)
        put = {cut: body for cut, body in cuts.items() if cut not in found}
        if known.before is not None:
            put[key] = replace(known, before=None).to_body()
        return Writes(True, put)

    return catalog.records.transact([key, *cuts], _identity(line), decide)


def _is_below(key: str, branch: str, floor: int) -> bool:
    """Whether a cut written down for a bucket is one that nobody begins from any more."""
    bucket = key.removeprefix(cuts_prefix(branch))
    return bucket.isdecimal() and key == cut_key(branch, int(bucket)) and int(bucket) * BUCKET - 1 < floor


def _step(catalog: Catalog, line: BranchHistory, keys: Sequence[str], decide: Callable[[Found], Writes[None]]) -> None:
    catalog.records.transact(keys, _identity(line), lambda found: decide(found) if _is_still(line, found) else Writes(None))


def _identity(line: BranchHistory) -> list[str]:
    return [] if line.branch == MAIN else [BRANCHES + line.branch]


def _is_still(line: BranchHistory, found: Found) -> bool:
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

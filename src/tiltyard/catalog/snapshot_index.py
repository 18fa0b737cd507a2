"""Snapshots of the past: built from the nearest one that was stored and the changes since.

A cleanup forgets old snapshots. What it leaves is a floor, which is the cut after the oldest snapshot that it keeps, and the cuts of those
below that somebody named. Below the floor there is nothing else, so nobody may give a snapshot there a name any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tiltyard.catalog.lake_values import Cut, Snapshot, TableHead
from tiltyard.catalog.line_identity import line_in
from tiltyard.catalog.publishing import new_head, next_head
from tiltyard.catalog.records import Body, Found, Records
from tiltyard.catalog.value_codec import (
    BRANCHES,
    BUCKET,
    bucket_prefix,
    cut_key,
    cuts_prefix,
    head_from_body,
    head_to_body,
    snapshot_from_body,
    snapshot_key,
    snapshots_prefix,
    tip_key,
)
from tiltyard.errors import NotFound, StorageError

TRIES: Final = 5
"""How often the past is read again because a cleanup was at work on it."""
_GAPS: Final = "Run `tiltyard lake check`, then restore the catalog from a backup, or rebuild it."

Heads = dict[str, TableHead]
"""Tables by id."""


def floor_key(branch: str) -> str:
    return f"{cuts_prefix(branch)}floor"


def named_cut_key(branch: str, snapshot: int) -> str:
    """The cut right after a snapshot below the floor that somebody named."""
    return f"{named_cuts_prefix(branch)}{snapshot:020d}"


def named_cuts_prefix(branch: str) -> str:
    return f"{cuts_prefix(branch)}at/"


@dataclass(frozen=True, slots=True)
class SnapshotFloor:
    """Where the past begins on one line of history.

    Attributes:
        snapshot: the oldest one that stays; 0 where all of it does.
        at: when it was committed.
        heads: all tables right after it; None where nobody has raised the floor yet.
        before: the floor before it was raised, as long as nothing in between is deleted.
    """

    snapshot: int = 0
    at: datetime | None = None
    heads: Mapping[str, TableHead] | None = None
    before: SnapshotFloor | None = None

    @property
    def lowest(self) -> SnapshotFloor:
        """From where on all records are there."""
        return self if self.before is None else self.before

    def to_body(self) -> Body:
        tables = [head_to_body(head) for head in (self.heads or {}).values()]
        before = None if self.before is None else self.before.to_body()
        return {"snapshot": self.snapshot, "at": self.at.isoformat() if self.at else None, "tables": tables, "before": before}


def floor_from(found: Found, branch: str) -> SnapshotFloor:
    """The floor among records that were read."""
    body = found.get(floor_key(branch))
    return SnapshotFloor() if body is None else _floor(body)


def _floor(body: Body) -> SnapshotFloor:
    at, before = body["at"], body["before"]
    return SnapshotFloor(
        int(body["snapshot"]), datetime.fromisoformat(at) if at else None, _heads(body), None if before is None else _floor(before)
    )


def check_not_forgotten(found: Found, branch: str, snapshot: int) -> None:
    """For whoever gives a snapshot a name: cleanup counts on nobody doing so below the floor.

    Raises:
        NotFound: it may be gone already, or be about to go.
    """
    if snapshot < floor_from(found, branch).snapshot:
        raise NotFound(f"Snapshot {snapshot} was cleaned up.", name=str(snapshot), advice="See lake.history().")


def cut_at(records: Records, snapshot: int, branch: str) -> Cut:
    """All tables as they were right after a snapshot.

    Raises:
        NotFound: there is no such snapshot.
    """
    for _ in range(TRIES):
        cut = _cut_at(records, snapshot, branch)
        if cut is not None:
            return cut
    raise StorageError(
        f"The history of branch {branch!r} at {records.url} has gaps before {snapshot}.", advice=_GAPS, name=branch, transient=True
    )


def _cut_at(records: Records, snapshot: int, branch: str) -> Cut | None:
    bucket, begin, tip = snapshot // BUCKET, BRANCHES + branch, tip_key(branch)
    found = records.get([cut_key(branch, bucket), snapshot_key(branch, snapshot), begin, tip, *_kept_keys(branch, snapshot)])
    line = line_in(found.get(tip), records, branch)

    def cut(heads: Heads) -> Cut:
        return Cut(branch, snapshot, {head.name: head for head in heads.values()}, line=line)

    begun = int(found[begin]["snapshot"]) if begin in found else 0
    floor = floor_from(found, branch)
    if floor.heads is not None and snapshot == floor.snapshot:
        return cut(dict(floor.heads))
    if (named := named_cut_key(branch, snapshot)) in found:
        return cut(_heads(found[named]))
    floor = floor.lowest
    if snapshot < floor.snapshot or (snapshot != begun and snapshot_key(branch, snapshot) not in found):
        raise NotFound(f"There is no snapshot {snapshot} on branch {branch!r}.", name=str(snapshot), advice="See lake.history().")
    if found.get(snapshot_key(branch, snapshot), {}).get("unknown"):
        what = f"The tables of snapshot {snapshot} of branch {branch!r} are not known: the catalog that had it was lost."
        raise NotFound(what, name=str(snapshot), advice="See lake.history() for what was recovered.")
    after, heads = _nearest(records, found, branch, bucket, begun, floor)
    found_steps = map(snapshot_from_body, _bodies(records, branch, (after + 1) // BUCKET, bucket))
    steps = [step for step in found_steps if after < step.id <= snapshot]
    if [step.id for step in steps] != list(range(after + 1, snapshot + 1)):
        return None  # a cleanup took away what stood on, after we had read where to begin
    if any(step.line and step.line != line for step in steps):
        return None  # the branch began anew after we had read where it begins
    for step in steps:
        follow(step, heads)
    return cut(heads)


def _kept_keys(branch: str, snapshot: int) -> tuple[str, str]:
    """Where a cleanup left a cut that it did not take away."""
    return floor_key(branch), named_cut_key(branch, snapshot)


def _nearest(records: Records, found: Found, branch: str, bucket: int, begun: int, floor: SnapshotFloor) -> tuple[int, Heads]:
    """A snapshot at or before the beginning of a bucket whose cut is known, and that cut."""
    below, lowest = found.get(cut_key(branch, bucket)), max(floor.snapshot, begun)
    for at in _aligned(bucket, lowest // BUCKET):
        if below is not None:
            break
        bucket, below = at, records.get([cut_key(branch, at)]).get(cut_key(branch, at))
    after = max(bucket * BUCKET - 1, begun)  # the cut that a branch begins with stands in the bucket of its beginning
    if floor.heads is not None and (below is None or after < floor.snapshot):
        return floor.snapshot, dict(floor.heads)
    return (begun, {}) if below is None else (after, _heads(below))


def cut_stride(tables: int | None) -> int:
    """After how many buckets a cut is written down: a power of two, so that a later one knows where to look."""
    return 1 if tables is None else 1 << max(-(-tables // BUCKET) - 1, 0).bit_length()


def _aligned(bucket: int, lowest: int) -> Iterator[int]:
    """The buckets below one at which a cut may have been written down, nearest first, and last the lowest at which there can be one."""
    seen = bucket
    for power in range(bucket.bit_length() + 1):
        at = (bucket >> power) << power
        if lowest < at < seen:
            seen = at
            yield at
    if bucket > lowest:
        yield lowest


_AT_ONCE: Final = 16
"""Buckets that are read in one request."""


def _bodies(records: Records, branch: str, first: int, last: int) -> Iterator[Body]:
    """The records of snapshots in a run of buckets, oldest first."""
    for begin in range(first, last + 1, _AT_ONCE):
        numbers = range(begin, min(begin + _AT_ONCE, last + 1))
        yield from (body for _, body in records.scan([bucket_prefix(branch, number) for number in numbers]))


def snapshots_down_from(records: Records, branch: str, newest: int, begun: int) -> Iterator[Snapshot]:
    """Snapshots from one down to where a branch begins, newest first; of more than a few, more and more are read in one request."""
    last, many = newest // BUCKET, 1
    while last >= begun // BUCKET:
        first = max(last - many + 1, begun // BUCKET)
        found = records.scan([bucket_prefix(branch, number) for number in range(first, last + 1)], descending=True)
        yield from (step for _, body in found if (step := snapshot_from_body(body)).id <= newest)
        last, many = first - 1, min(2 * many, _AT_ONCE)


def _heads(body: Body) -> Heads:
    return {item["id"]: head_from_body(item) for item in body["tables"]}


def follow(step: Snapshot, heads: Heads) -> None:
    """What one snapshot makes of the heads before it."""
    for change in step.changes:
        before = heads.get(change.table)
        if change.kind == "drop":
            heads.pop(change.table, None)
        elif before is None:
            heads[change.table] = new_head(change, step.branch, step.line, step.id)
        else:
            heads[change.table] = next_head(change, before, step.line, step.id)


# ---- a whole line of history -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BranchHistory:
    """A line of history as far as it is there.

    Attributes:
        branch: the lake's branch.
        identity: tells it from another one of that name, before or after it; empty for main.
        begin: the snapshot that it begins after; its cut is known.
        begun_at: when that one was committed, or the branch was made.
        begins_with: that cut.
        steps: all snapshots since, the oldest first.
        named: cuts below the floor that somebody named, by snapshot.
        strays: snapshots up to the beginning whose records are still there.
    """

    branch: str
    identity: str
    begin: int
    begun_at: datetime | None
    begins_with: Mapping[str, TableHead]
    steps: Sequence[Snapshot]
    named: Mapping[int, Mapping[str, TableHead]]
    strays: Sequence[int]

    @property
    def tip(self) -> int:
        return self.steps[-1].id if self.steps else self.begin

    def cuts(self) -> Iterator[tuple[int, Heads, Collection[str]]]:
        """Each snapshot from the beginning on, with all tables right after it and the ids of those that it changed.

        The tables are those of one dictionary that changes from step to step: whoever keeps it makes a copy.
        """
        heads = dict(self.begins_with)
        yield self.begin, heads, {*heads}
        for step in self.steps:
            follow(step, heads)
            yield step.id, heads, {change.table for change in step.changes}


def read_line(records: Records, branch: str) -> BranchHistory:
    """All that is there of a line of history.

    Raises:
        StorageError: it has gaps, and not because somebody is cleaning up.
    """
    for _ in range(TRIES):
        line = _read_line(records, branch)
        if [step.id for step in line.steps] == list(range(line.begin + 1, line.begin + 1 + len(line.steps))):
            return line
    raise StorageError(f"The history of branch {branch!r} at {records.url} has gaps.", advice=_GAPS, name=branch)


def _read_line(records: Records, branch: str) -> BranchHistory:
    found = dict(records.scan([BRANCHES + branch, cuts_prefix(branch), snapshots_prefix(branch)]))
    begun = int(found[BRANCHES + branch]["snapshot"]) if BRANCHES + branch in found else 0
    floor = floor_from(found, branch).lowest
    first = found.get(cut_key(branch, begun // BUCKET)) if begun else None
    begin, heads = (floor.snapshot, dict(floor.heads)) if floor.heads is not None else (begun, _heads(first) if first else {})
    known = [snapshot_from_body(body) for key, body in found.items() if key.startswith(snapshots_prefix(branch))]
    prefix = named_cuts_prefix(branch)
    named = {int(key.removeprefix(prefix)): _heads(body) for key, body in found.items() if key.startswith(prefix)}
    return BranchHistory(
        branch,
        str(found[BRANCHES + branch]["id"]) if BRANCHES + branch in found else "",
        begin,
        floor.at or (datetime.fromisoformat(found[BRANCHES + branch]["created"]) if BRANCHES + branch in found else None),
        heads,
        sorted((step for step in known if step.id > begin), key=lambda step: step.id),
        named,
        sorted(step.id for step in known if step.id <= begin),
    )


def body_of(heads: Iterable[TableHead]) -> Body:
    """A cut as a record."""
    return {"tables": [head_to_body(head) for head in heads]}

"""Brings a catalog that is behind its tables to where the tables are, in memory.

The catalog may be a backup, or an empty one. What its files tell is published in it as the lake itself would have done, transaction by
transaction, under the ids that they had. A snapshot keeps its number where that is certain. From the first on for which it is not they
get numbers above all that the lost catalog can have given away: what stood for something then stands for nothing else now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import compress
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.lake_values import Change, Kind, Publication, Snapshot, SnapshotMember, TableHead, VersionStep
from tiltyard.catalog.ledger import FOREIGN
from tiltyard.catalog.line_identity import owns, table_branch
from tiltyard.catalog.marks import TABLE_NAME, Owner, Says
from tiltyard.catalog.publishing import StaleError
from tiltyard.catalog.records import Body, Writes
from tiltyard.catalog.value_codec import head_from_body, place_key, snapshot_key, snapshot_to_body, table_key, tip_key
from tiltyard.errors import InvalidInput
from tiltyard.interfaces import Clock
from tiltyard.lakes.claim import TABLE_DIRECTORY
from tiltyard.lakes.recovery.found import FoundLine, FoundVersion, LineKey
from tiltyard.lakes.recovery.found_batches import asked_of, members_in, undecided
from tiltyard.lakes.recovery.journal_replay import Noted, NotedNames
from tiltyard.lakes.recovery.regroup import Evidence, FoundTransaction, certain, group
from tiltyard.lakes.table_names import full_name, resolved, shown
from tiltyard.verbs.table_refs import Branches

if TYPE_CHECKING:
    from tiltyard.lake import Lake

LOST: Final = "not known: the catalog that had it was lost"
FOUND_AGAIN: Final = "what was recovered after the catalog was lost"

Progress = Callable[[int, int], object]


class SetClock:
    """A clock that stands where it was set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.moment: datetime | None = None

    def now(self) -> datetime:
        return self.moment or self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)


@dataclass(frozen=True, slots=True)
class AdoptedSnapshot:
    """A commit that was found in the files.

    Attributes:
        snapshot, branch: what it is in the catalog now.
        transaction: its id, as it was before; a new one for versions of a foreign writer.
        tables: which it changed.
        foreign: whether a writer made it that does not know the lake.
    """

    snapshot: int
    branch: str
    transaction: str
    tables: tuple[str, ...]
    foreign: bool


@dataclass(slots=True)
class Reconstruction:
    """A catalog in memory, on its way to where the tables are.

    Attributes:
        lake: over records in memory, and the real tables.
        clock: of that lake.
        id: the lake's.
        noted: what the journal says.
        lines: what was read of each line of versions.
        own: for each branch of the lake the id of its line of history.
        forks: for each version that a branch of the lake has not forked yet, the branch of the table that it does.
        homes: for each of them the branch of the lake that goes on there.
        heads: for each branch the tables as they are by now, by id.
        new: directories of tables that the catalog does not know, and whose they are.
        not_taken: other directories, and why they are left alone.
        absent: locations of tables that the journal knows and nobody finds.
        adopted, in_doubt, missing, unknown: for the report.
    """

    lake: Lake
    clock: SetClock
    id: str
    noted: Noted
    absent: set[str] = field(default_factory=set)
    new: dict[str, Owner] = field(default_factory=dict)
    not_taken: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    forks: dict[tuple[str, str | None, int, str], str] = field(default_factory=dict)
    lines: dict[LineKey, FoundLine] = field(default_factory=dict)
    homes: dict[LineKey, str] = field(default_factory=dict)
    heads: dict[str, dict[str, TableHead]] = field(default_factory=dict)
    adopted: list[AdoptedSnapshot] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def put(self, records: Mapping[str, Body], delete: Sequence[str] = ()) -> None:
        self.lake.catalog.records.transact([*records, *delete], [], lambda found: Writes(None, records, delete))

    def is_ours(self, version: FoundVersion) -> bool:
        return version.marks is not None and version.marks.lake == self.id and bool(version.transaction)

    def names(self, branch: str) -> Sequence[NotedNames]:
        return self.noted.names.get(branch, ())


def home_of(work: Reconstruction, branch: str, head: TableHead) -> LineKey:
    """The line of versions that a branch of the lake writes to, for one table of it: its own, or the one it forks when it first writes."""
    line = _line_of(work, branch)
    if owns(head, branch, line):
        return head.location, head.branch
    key = (head.location, head.branch, head.version, branch)
    if key not in work.forks:
        work.forks[key] = _fork(work, head, branch, line)
    return head.location, work.forks[key]


def _line_of(work: Reconstruction, branch: str) -> str:
    return work.own[branch] if branch in work.own else work.own.setdefault(branch, work.lake.catalog.cut(branch).line)


def _fork(work: Reconstruction, head: TableHead, branch: str, line: str) -> str:
    """The branch of a table that a line of the lake has forked at a head, or would fork."""
    branches = Branches(work.lake.plain_access_of(head))
    there, number = set(branches), 1
    while (name := table_branch(branch, line, number)) in there:
        if (branches[name].parent_branch, branches[name].parent_version) == (head.branch, head.version):
            break
        number += 1
    return name


# ---- one branch of the lake ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unit:
    """One snapshot to be: what it did to tables, and to names."""

    group: FoundTransaction | None
    names: NotedNames | None
    is_followed: bool = False
    """Of a single version of a foreign writer: whether the lake wrote to the table after it, so that it adopted that version before."""

    @property
    def at(self) -> datetime:
        moments = [] if self.group is None else [self.group.at]
        return max(moments if self.names is None else [*moments, self.names.at])

    def evidence(self) -> Evidence:
        exact = self.names.snapshot if self.names is not None and self.names.as_of == self.names.snapshot else None
        lines = frozenset() if self.group is None else frozenset(self.group.parts)
        least = 0 if self.group is None or self.group.is_foreign else self.group.base + 1
        if self.names is not None:
            least = max(least, self.names.snapshot)
        return Evidence(lines, least, exact, self.group is None or not self.group.is_foreign or self.is_followed, exact is not None)


def catch_up(work: Reconstruction, branch: str) -> None:
    """Publishes, on one branch of the lake, all that was found beyond what its catalog has."""
    tip = work.lake.catalog.cut(branch).snapshot
    work.heads[branch] = {head.id: head for head in work.lake.catalog.cut(branch).tables.values()}
    lines = {key: found.versions for key, found in work.lines.items() if work.homes.get(key) == branch and found.versions}
    groups = _settle_contradictions(work, group(lines, work.is_ours))
    noted = [names for names in work.names(branch) if names.as_of > tip]
    units = _units(work, branch, groups, noted)
    evidence = [unit.evidence() for unit in _followed(units)]
    sure = certain(evidence, tip)
    told = [tag.snapshot for tag in work.noted.tags.values() if tag is not None and tag.branch == branch]
    told += [begun.snapshot for begun in work.noted.branches.values() if begun is not None and begun.origin == branch]
    highest = max([tip + len(units), *told, *(found.least for found in evidence), *(names.as_of for names in noted)])
    for access, unit in enumerate(units):
        if access == sure:
            _skip_to(work, branch, highest)
        _publish(work, branch, unit)
    _skip_to(work, branch, highest)
    _end_known(work, branch)


def _settle_contradictions(work: Reconstruction, batches: Sequence[Sequence[FoundTransaction]]) -> list[FoundTransaction]:
    """One group for each batch. Where marks contradict each other nobody knows what belonged together, so all of it comes at once."""
    settled = []
    for batch in batches:
        if len(batch) == 1:
            settled.append(batch[0])
            continue
        parts: dict[LineKey, list[FoundVersion]] = {}
        for found in batch:
            for key, versions in found.parts.items():
                parts.setdefault(key, []).extend(versions)
        whole = {key: sorted(versions, key=lambda version: version.version) for key, versions in parts.items()}
        settled.append(FoundTransaction(f"contradictory {batch[0].id}", whole, is_foreign=True))
        work.unknown.append(f"the order of {len(batch)} transactions, whose marks contradict each other: they are one snapshot now")
    return settled


def _units(work: Reconstruction, branch: str, groups: Sequence[FoundTransaction], noted: Sequence[NotedNames]) -> list[_Unit]:
    """Snapshots to be, in order. Whatever a note of names shows came before it, and all else after it."""
    units: list[_Unit] = []
    rest = list(groups)
    known = {head.location for head in work.heads[branch].values()}
    for number, names in enumerate(noted):
        again = _again(work, branch, noted[number + 1 :])
        within = [_is_within(found, names, known, again) for found in rest]
        before = [*compress(rest, within)]
        rest = [found for found, is_in in zip(rest, within, strict=True) if not is_in]
        known |= {head.location for head in names.tables.values()}
        mine = next((found for found in before if found.id == names.transaction), None)
        if mine is not None and names.as_of == names.snapshot:
            before = [found for found in before if found is not mine]
        units += [_Unit(found, None) for found in before]
        units.append(_Unit(mine if mine is not None and names.as_of == names.snapshot else None, names))
    return [*units, *(_Unit(found, None) for found in rest)]


def _again(work: Reconstruction, branch: str, notes: Sequence[NotedNames]) -> dict[LineKey, int]:
    """The least version that some notes have of each line of versions, or fork it at."""
    found: dict[LineKey, int] = {}
    for head in (head for note in notes for head in note.tables.values()):
        for key in {(head.location, head.branch), home_of(work, branch, head)}:
            found[key] = min(head.version, found.get(key, head.version))
    return found


def _followed(units: Sequence[_Unit]) -> list[_Unit]:
    """The same units, with it noted which foreign versions the lake has adopted for certain, in a snapshot of their own."""
    later: set[LineKey] = set()
    noted = []
    for unit in reversed(units):
        found = unit.group
        single = found is not None and found.is_foreign and len(found.versions) == 1
        noted.append(replace(unit, is_followed=single and found is not None and set(found.parts) <= later))
        if found is not None and not found.is_foreign:
            later |= set(found.parts)
    return noted[::-1]


def _is_within(found: FoundTransaction, names: NotedNames, known: Iterable[str], again: Mapping[LineKey, int]) -> bool:
    """Whether a commit is part of what a note of names shows: it is in a version that the note has, or in a table that is gone by then.

    Args:
        found: the commit.
        names: the note.
        known: where tables were by then.
        again: what later notes have, by the lines that are written to: a table that is gone may come back, and be written to above that.
    """
    shows = {(head.location, head.branch): head.version for head in names.tables.values()}
    locations = {head.location for head in names.tables.values()}
    for key, versions in found.parts.items():
        if key in shows:
            if versions[0].version <= shows[key]:
                return True
        elif key[0] not in locations and key[0] in known and again.get(key, versions[0].version) >= versions[0].version:
            return True
    return False


def _skip_to(work: Reconstruction, branch: str, number: int) -> None:
    """Leaves out numbers that the lost catalog may have given away, each with a record that nobody knows what it was."""
    tip = work.lake.catalog.records.get([tip_key(branch)])[tip_key(branch)]
    first, at = int(tip["snapshot"]) + 1, datetime.fromisoformat(tip["at"])
    gap = Snapshot(first, branch, at, "", (), message=LOST, base=first - 1, unknown=True, line=str(tip.get("line") or ""))
    records: dict[str, Body] = {snapshot_key(branch, lost): snapshot_to_body(replace(gap, id=lost)) for lost in range(first, number + 1)}
    if records:
        work.put({**records, tip_key(branch): {**tip, "snapshot": number}})
        what = f"snapshot {first}" if first == number else f"snapshots {first} to {number}"
        work.unknown.append(f"which commits were {what} of {branch}: those that were recovered have numbers above {number}")


def _end_known(work: Reconstruction, branch: str) -> None:
    """Ends a line with a snapshot of what was found: whoever looks at the lake now gets a number that shows the same ever after."""
    catalog = work.lake.catalog
    key = snapshot_key(branch, catalog.cut(branch).snapshot)
    if catalog.records.get([key]).get(key, {}).get("unknown"):
        catalog.publish(Publication(catalog.runtime.random.uuid(), (), branch, message=FOUND_AGAIN, noted=True))


# ---- one snapshot ----------------------------------------------------------------------------------------------------------------


def _publish(work: Reconstruction, branch: str, unit: _Unit) -> None:
    changes = _with_names(work, branch, unit.names, _table_changes(work, branch, unit))
    if changes:
        publication = _publication(work, branch, unit, tuple(changes))
        work.clock.moment = unit.at
        try:
            _store(work, publication)
        finally:
            work.clock.moment = None


def _publication(work: Reconstruction, branch: str, unit: _Unit, changes: tuple[Change, ...]) -> Publication:
    fresh = work.lake.catalog.runtime.random.uuid()
    if unit.group is not None and unit.group.is_foreign:
        writer = unit.group.versions[-1].writer
        return Publication(fresh, changes, branch, author=writer, message=f"adopted from {FOREIGN}", noted=True)
    says, author, base, transaction = Says(), "", 0, ""
    members: tuple[SnapshotMember, ...] = ()
    if unit.names is not None:
        says, author, transaction = unit.names.says, unit.names.author, unit.names.transaction
    if unit.group is not None:
        first = next(version for version in unit.group.versions if version.transaction == unit.group.id)
        assert first.marks is not None
        says, author, base, transaction = first.marks.says, first.marks.author, unit.group.base, unit.group.id
        if first.is_batch:
            keys = {home_of(work, branch, head): head.id for head in work.heads[branch].values()}
            members = members_in(unit.group, keys)
        if transaction == first.maker:  # a single verb, which says for itself what it is
            says, members = Says(first.message, first.properties), first.members
        members = undecided(members, work.lake.catalog.records.get(asked_of(members)) if members else {})
    return Publication(
        transaction or fresh, changes, branch, (), says.key, author, says.message, says.properties, base=base, noted=True,
        members=members,
    )  # fmt: skip


def _store(work: Reconstruction, publication: Publication) -> None:
    branch = publication.branch
    try:
        done = work.lake.catalog.publish(publication)
    except StaleError as stale:
        publication = _renamed(work, publication, {moved.name for moved in stale.moved})
        done = work.lake.catalog.publish(publication)
    if done.replayed:  # two branches say that they have the same transaction; only one of them can be right
        work.unknown.append(f"which branch transaction {publication.transaction} was committed on")
        publication = replace(publication, transaction=work.lake.catalog.runtime.random.uuid(), key=None)
        done = work.lake.catalog.publish(publication)
    records = work.lake.catalog.records.get([table_key(branch, change.table) for change in publication.changes])
    for change in publication.changes:
        body = records.get(table_key(branch, change.table))
        if body is None:
            work.heads[branch].pop(change.table, None)
        else:
            work.heads[branch][change.table] = head_from_body(body)
    _note_places(work, publication)
    tables = tuple(sorted(shown(change.name) for change in publication.changes))
    foreign = all(change.kind == "adopt" for change in publication.changes)
    work.adopted.append(AdoptedSnapshot(done.snapshot, branch, publication.transaction, tables, foreign))


def _note_places(work: Reconstruction, publication: Publication) -> None:
    """Notes where tables were registered, so that nobody registers them a second time."""
    places: dict[str, Body] = {}
    for change in publication.changes:
        if change.kind == "register" and not TABLE_DIRECTORY.fullmatch(change.location):
            location = resolved(work.lake.uri_of(change.location))
            body = {"table": change.table, "transaction": publication.transaction, "location": location}
            places[place_key(location)] = {**body, "at": work.lake.catalog.runtime.clock.now().isoformat()}
    work.put(places)


def _renamed(work: Reconstruction, publication: Publication, taken: set[str]) -> Publication:
    """The same with other names for tables whose names others have. Whether these were dropped or renamed before is not known, and a
    table that is still there must not be taken for one that is not.
    """
    changes = []
    for change in publication.changes:
        if change.name in taken and change.kind in ("create", "register", "rename"):
            name = f"{change.name[:80]}_{change.table.replace('-', '')[:8]}"
            work.unknown.append(f"what became of the table that had the name {shown(change.name)!r} before; the later one is {shown(name)}")
            changes.append(replace(change, name=name))
        else:
            changes.append(change)
    return replace(publication, changes=tuple(changes))


def _table_changes(work: Reconstruction, branch: str, unit: _Unit) -> list[Change]:
    changes = []
    parts = {} if unit.group is None else unit.group.parts
    for key, versions in sorted(parts.items(), key=lambda part: (part[0][0], part[0][1] or "")):
        head = next((head for head in work.heads[branch].values() if home_of(work, branch, head) == key), None)
        steps = tuple(
            VersionStep(version.version, version.path, version.staged, version.maker, version.operation, version.content)
            for version in versions
        )
        if head is None:
            changes.append(_creation(work, key, versions, steps))
            continue
        if versions[0].version > head.version + 1:
            gone = f"versions {head.version + 1} to {versions[0].version - 1} of {shown(head.name)}"
            work.unknown.append(f"who made {gone}: they were cleaned up since")
        kind: Kind = "write" if unit.group is not None and not unit.group.is_foreign else "adopt"
        changes.append(Change(head.id, kind, head.name, head.version, 0, steps, branch=key[1]))
    return changes


def _creation(work: Reconstruction, key: LineKey, versions: Sequence[FoundVersion], steps: tuple[VersionStep, ...]) -> Change:
    config = versions[0].config
    noted = next(
        (head for notes in work.noted.names.values() for names in notes for head in names.tables.values() if head.location == key[0]), None
    )
    owner = work.new[key[0]]
    identity = noted.id if noted is not None else owner.table
    name = noted.name if noted is not None else _checked(config.get(TABLE_NAME, owner.name), identity)
    if noted is None:
        work.unknown.append(f"whether {shown(name)} was renamed or dropped after it was made: the journal does not have it")
    return Change(identity, "create", name, 0, 0, steps, key[0], versions[-1].naming)


def _checked(name: str, identity: str) -> str:
    """A table's name as its marks have it, if it is one."""
    try:
        return full_name(shown(name))
    except InvalidInput:
        return f"table_{identity.replace('-', '')[:12]}"


def _with_names(work: Reconstruction, branch: str, names: NotedNames | None, changes: Sequence[Change]) -> list[Change]:
    """What was done to tables, and what has to be done to names so that they are as noted."""
    if names is None:
        return list(changes)
    done = {change.table: change for change in changes}
    heads = work.heads[branch]
    for table, head in heads.items():
        noted = names.tables.get(table)
        before = done.get(table)
        if noted is None:
            done[table] = Change(table, "drop", head.name, head.version, 0)
        elif noted.name != head.name:
            steps = before.steps if before is not None else ()
            kept = before.branch if before is not None else None
            done[table] = Change(table, "rename", noted.name, head.version, 0, steps, branch=kept, former=head.name)
    for table, noted in names.tables.items():
        if table not in heads and table not in done:
            if noted.location in work.absent or noted.location in work.not_taken:
                continue
            done[table] = Change(
                table, "register", noted.name, noted.version, noted.version, (), noted.location, noted.naming, noted.branch,
                base_transaction=noted.transaction, owner=_line_of(work, work.homes.get((noted.location, noted.branch), branch)),
            )  # fmt: skip
    return list(done.values())

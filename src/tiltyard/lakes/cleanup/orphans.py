"""Orphans: directories below the root that no snapshot shows, and what this lake can prove about them.

A directory is this lake's to delete only if its own mark says so **and** a record of the catalog says that nobody needs it: the transaction
that made it was aborted, or a cleanup gave it up (``gone/``). That there is no record proves nothing: a catalog that was restored from a
copy has no record of what came later. What is not proved is an orphan. It is reported with its size and its owner, and left alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.expiry import expired_among
from tiltyard.catalog.lake_values import MAIN, TableHead
from tiltyard.catalog.ledger import group_members
from tiltyard.catalog.line_identity import LINE_DIGITS, place_of
from tiltyard.catalog.marks import OWNER_FILE, Owner, VersionMarks, owner_of
from tiltyard.catalog.publishing import COMMITTED
from tiltyard.catalog.snapshot_index import read_line
from tiltyard.catalog.value_codec import ENDED, gone_key, pin_key, transaction_key
from tiltyard.errors import NotFound, OwnershipError, TiltyardError
from tiltyard.format.names import parse_manifest_name
from tiltyard.interfaces import ObjectInfo
from tiltyard.lakes.claim import TABLE_DIRECTORY
from tiltyard.lakes.recovery.journal import entries
from tiltyard.lakes.table_names import below, resolved, shown
from tiltyard.transaction.log import VERSIONS, VersionLog
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.table_refs import Branches, Tags

if TYPE_CHECKING:
    from tiltyard.lake import Lake

UNMARKED: Final = "nothing in it names an owner"
FOREIGN_LAKE: Final = "it belongs to another lake"
COPIED: Final = "its mark is that of another directory: it was copied"
UNRECORDED: Final = (
    "it is a table of this lake that the catalog has no record of: was the catalog restored from a backup, or created again?"
)
FORGOTTEN: Final = "its transaction was committed, but no snapshot shows the table"
PINNED: Final = "a tag or branch of the lake that the catalog has no record of needs it"
LOST_LINE: Final = "a branch of a table for a branch of the lake that the catalog has no record of"
LOST_COMMITS: Final = (
    "a branch of a table for a branch of the lake that ended, with commits that the catalog has no record of: is it an older copy?"
)

_PIN: Final = re.compile(r"tiltyard-(?:tag|branch)-.+-[0-9a-f]{8}", re.ASCII)
"""A tag in a table for something in the lake; see ``lakes/cleanup/pins.py``."""
_OWN_LINE: Final = re.compile(r"lake-.+-[0-9a-f]{8}", re.ASCII)
"""A branch of a table that a branch of the lake made."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A directory, or a table's own branch, that nothing proves to be this lake's to delete.

    Attributes:
        path: the directory below the root; for a branch of a table ``<directory>/tree/<branch>``.
        bytes: size of its files.
        reason: why it is left alone.
        lake, table, name: whose it is, by its mark; empty where nothing says so.
        is_table: whether it has committed versions.
    """

    path: str
    bytes: int
    reason: str
    lake: str = ""
    table: str = ""
    name: str = ""
    is_table: bool = False

    @property
    def owner(self) -> str:
        """Lake, table and name in one text; ``unknown`` where nothing says whose it is."""
        return f"lake {self.lake} table {self.table} {shown(self.name)}".strip() if self.lake else "unknown"

    def to_dict(self) -> dict[str, object]:
        """All of it as plain JSON values."""
        return {
            "path": self.path,
            "bytes": self.bytes,
            "owner": self.owner,
            "lake": self.lake,
            "table": self.table,
            "name": shown(self.name),
            "reason": self.reason,
            "is_table": self.is_table,
        }


# ---- what there is -------------------------------------------------------------------------------------------------------------------


def directories(root: TableAccess) -> dict[str, list[ObjectInfo]]:
    """Directories below the root that are called as a lake calls its tables', with their files."""
    found: dict[str, list[ObjectInfo]] = {}
    for info in root.store.list(""):
        directory = info.path.partition("/")[0]
        if TABLE_DIRECTORY.fullmatch(directory):
            found.setdefault(directory, []).append(info)
    return found


def known_locations(lake: Lake) -> set[str]:
    """Locations of all tables that any snapshot shows, and the directories below the root that these are."""
    found = table_locations(lake)
    return found | as_directories(lake, found)


def table_locations(lake: Lake) -> set[str]:
    """Locations of all tables that any snapshot shows, as the catalog has them."""
    return {head.location for branch in (MAIN, *lake.branches) for head in _all_heads(lake, branch)}


def _all_heads(lake: Lake, branch: str) -> Iterator[TableHead]:
    """Every head that any snapshot of a branch of the lake shows."""
    line = read_line(lake.catalog.records, branch)
    for heads in line.named.values():
        yield from heads.values()
    for _, heads_now, changed in line.cuts():
        yield from (heads_now[table] for table in changed if table in heads_now)


def as_directories(lake: Lake, locations: Iterable[str]) -> set[str]:
    """The directories right below the root that locations lie in, however these are spelled."""
    root = resolved(lake.root_uri)
    inside = (below(resolved(lake.uri_of(location)), root) for location in locations)
    return {path.partition("/")[0] for path in inside if path}


# ---- whose it is -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A directory of this lake that no snapshot shows, and that may go once its transaction is certain to have failed."""

    directory: str
    owner: Owner
    condemned: bool = False
    ended: bool = False
    """Whether it was committed, to a branch of the lake that has ended since."""


class Judge:
    """Tells what may be deleted from what is only reported. Reads each directory's mark, and the catalog once for all of them."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._committed: frozenset[str] | None = None
        self._lines: Lines | None = None

    def judge(self, found: Mapping[str, Sequence[ObjectInfo]]) -> tuple[dict[str, Candidate], list[Orphan]]:
        """What is known of directories that no snapshot shows."""
        owners = {directory: self.owner(directory) for directory in found}
        asked = [gone_key(directory) for directory in found]
        asked += [transaction_key(owner.transaction) for owner in owners.values() if owner is not None and owner.transaction]
        records = self._lake.catalog.records.get(asked) if asked else {}
        unknown = {
            owner.transaction for owner in owners.values() if owner is not None and transaction_key(owner.transaction) not in records
        }
        expired = expired_among(self._lake.catalog, unknown - {""})
        candidates: dict[str, Candidate] = {}
        orphans: list[Orphan] = []
        for directory, files in found.items():
            owner = owners[directory]
            condemned = gone_key(directory) in records
            known = {} if owner is None else records.get(transaction_key(owner.transaction), {})
            if owner is not None and owner.transaction in expired:
                known = {"state": COMMITTED, "line": owner.line}
            ended = bool(known.get("line")) and str(known["line"]) in self.lines().ended and not self.pinned_by_others(directory)
            reason = self._reason(directory, owner, files, condemned or ended, known.get("state"))
            if reason or owner is None:
                orphans.append(orphan_of(directory, files, owner, reason))
            else:
                candidates[directory] = Candidate(directory, owner, condemned, ended)
        return candidates, orphans

    def _reason(self, directory: str, owner: Owner | None, files: Sequence[ObjectInfo], dead: bool, state: str | None) -> str:
        """Why a directory is left alone; empty where it need not be. ``dead``: a record says that nobody needs it."""
        reason = self.not_ours(directory, owner)
        if reason or dead or owner is None:
            return reason
        if state == COMMITTED:
            return FORGOTTEN
        # Versions have their final names only after the catalog has decided, and the journal is written only then.
        return UNRECORDED if has_versions(directory, files) or owner.transaction in self.committed() else ""

    def not_ours(self, directory: str, owner: Owner | None, table: str = "") -> str:
        """Why a directory's mark does not prove that it is this lake's, and the given table's; empty where it does."""
        if owner is None:
            return UNMARKED
        if owner.lake != self._lake.id:
            return FOREIGN_LAKE
        matches = bool(owner.table) and directory.startswith(owner.table.replace("-", "")[:12] + "_")
        return "" if matches and table in ("", owner.table) else COPIED

    def pinned_by_others(self, directory: str) -> str:
        """Why a dropped table stays though its mark is ours: somebody pinned it whom a restored catalog does not know; empty if not."""
        tags = [name for name in Tags(self._lake.plain_access_of(TableHead("", "", directory, 0, 0))) if _PIN.fullmatch(name)]
        known = self._lake.catalog.records.get([pin_key(name.rpartition("-")[2]) for name in tags]) if tags else {}
        return PINNED if any(pin_key(name.rpartition("-")[2]) not in known for name in tags) else ""

    def owner(self, directory: str) -> Owner | None:
        return owner_of(self._lake.plain_access_of(TableHead("", "", directory, 0, 0)).store)

    def lines(self) -> Lines:
        """Lines of the lake's history."""
        if self._lines is None:
            self._lines = Lines.of(self._lake)
        return self._lines

    def committed(self) -> frozenset[str]:
        """Transactions that the journal beside the tables knows to be committed, whatever the catalog says."""
        if self._committed is None:
            self._committed = frozenset(entry.transaction for entry in entries(self._lake.root_access().store))
        return self._committed


def orphan_of(path: str, files: Iterable[ObjectInfo], owner: Owner | None, reason: str) -> Orphan:
    files = list(files)
    known = owner or Owner("")
    return Orphan(path, sum(info.size for info in files), reason, known.lake, known.table, known.name, is_table=has_versions(path, files))


def has_versions(directory: str, files: Iterable[ObjectInfo]) -> bool:
    """Whether a directory has versions under their final names; detached ones are an open transaction's own."""
    prefix = f"{directory}/{VERSIONS}"
    parsed = (parse_manifest_name(info.path[len(prefix) :]) for info in files if info.path.startswith(prefix))
    return any(name is not None and not name.detached for name in parsed)


# ---- transactions that the catalog has lost --------------------------------------------------------------------------------------


def committed_beyond(places: Iterable[tuple[TableAccess, int]], lake_id: str) -> set[str]:
    """Lake transactions whose versions stand in tables above the version that the catalog has: it has no record of them.

    Args:
        places: tables, each with the version that the catalog has.
        lake_id: of this lake.
    """
    found: set[str] = set()
    for access, head in places:
        log = VersionLog(access.store)
        for name in log.versions():
            if name.version <= head:
                continue
            try:
                made = log.transaction_of(log.peek(name.version, name.scheme))
            except TiltyardError:
                continue  # a foreign writer's, or cleaned up meanwhile: it proves nothing
            marks = VersionMarks.of(made)
            if marks is not None and marks.lake == lake_id:
                # What a member of a batch staged of its other tables may still wait for its name.
                found |= {marks.transaction, *(member.transaction for member in group_members(made))}
    return found


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of the lake's history that there are, and those that ended for certain, by their ids."""

    alive: frozenset[str]
    ended: frozenset[str]
    known: Mapping[str, int]
    """Up to which versions the catalog knew the tables' branches of those that ended."""

    @classmethod
    def of(cls, lake: Lake) -> Lines:
        alive = {branch.id for branch in lake.branches.list()} | {lake.catalog.cut(MAIN).line}
        ended = dict(lake.catalog.records.scan([ENDED]))
        known = {place: int(version) for body in ended.values() for place, version in body.get("known", {}).items()}
        return cls(frozenset(alive), frozenset(key[-LINE_DIGITS:] for key in ended), known)

    def is_alive(self, name: str) -> bool:
        return name[-LINE_DIGITS:] in self.alive

    def is_ended(self, name: str) -> bool:
        return name[-LINE_DIGITS:] in self.ended


def own_lines(branches: Iterable[str]) -> list[str]:
    """Those among a table's own branches that a branch of the lake made."""
    return [name for name in branches if _OWN_LINE.fullmatch(name)]


def lost_line(lake: Lake, head: TableHead, name: str, lines: Lines) -> Orphan | None:
    """A table's branch that no snapshot shows and nothing proves to be dead; None for one of a line that ended with all it had."""
    main, path = lake.plain_access_of(head), place_of(head.location, name)
    reason = _unproved(lake, main, name, lines.known.get(path, 0)) if lines.is_ended(name) else LOST_LINE
    if not reason:
        return None
    return Orphan(path, sum(info.size for info in main.on_branch(name).store.list("")), reason, lake.id, head.id, head.name, is_table=True)


def _unproved(lake: Lake, main: TableAccess, name: str, known: int) -> str:
    """Why a table's branch is left alone though its line of the lake ended; empty where the catalog knew every commit there.

    One that was restored from a copy may end a line without having heard of what was committed there since.
    """
    try:
        begun = Branches(main)[name].parent_version
    except NotFound:
        return ""  # another cleanup was faster
    # Of a table that the line had dropped by then no version was noted; then what is committed there must have a record.
    made = committed_beyond([(main.on_branch(name), max(begun, known))], lake.id)
    records = lake.catalog.records.get([transaction_key(transaction) for transaction in made]) if made else {}
    unknown = {transaction for transaction in made if records.get(transaction_key(transaction), {}).get("state") != COMMITTED}
    return LOST_COMMITS if unknown - expired_among(lake.catalog, unknown) else ""


def _lost_lines(lake: Lake) -> list[Orphan]:
    heads = {head.location: head for branch in (MAIN, *lake.branches) for head in lake.catalog.cut(branch).tables.values()}
    there = {location: own_lines(Branches(lake.plain_access_of(head))) for location, head in heads.items()}
    needed = {(head.location, head.branch) for branch in (MAIN, *lake.branches) for head in _all_heads(lake, branch)}
    lines = Lines.of(lake)
    dead = [
        (heads[location], name)
        for location, names in there.items()
        for name in names
        if not lines.is_alive(name) and (location, name) not in needed
    ]
    return [orphan for head, name in dead if (orphan := lost_line(lake, head, name, lines)) is not None]


def find_orphans(lake: Lake) -> list[Orphan]:
    """What a check reports: what no snapshot shows and nothing proves to be rubbish of this lake."""
    found = directories(lake.root_access())  # before the catalog is read: whatever is committed by then is known to it
    known = known_locations(lake)
    strange = {directory: files for directory, files in found.items() if directory not in known}
    orphans = Judge(lake).judge(strange)[1] if strange else []
    return sorted([*orphans, *_lost_lines(lake)], key=lambda orphan: orphan.path)


def find_again(lake: Lake, *, needed: bool = False) -> None:
    """Looks whether a lake whose catalog was lost is whole again: every table below its root is in the catalog.

    Args:
        lake: one whose catalog was made anew beside tables that it does not know.
        needed: whether the caller cannot go on otherwise.

    Raises:
        OwnershipError: with ``needed``, where there are such tables still.
    """
    facts = lake.catalog.describe() or {}
    left = [orphan for orphan in find_orphans(lake) if orphan.is_table] if facts.get("lost") else []
    if left and needed:
        raise OwnershipError(
            f"{lake.root_uri} holds {len(left)} tables that its new catalog does not know, such as {left[0].path}.",
            root=lake.root_uri,
            lake=lake.id,
            catalog=lake.url,
            advice="Run `tiltyard lake rebuild`, or restore the catalog from a backup.",
        )
    if not left:
        if facts.get("lost"):
            lake.catalog.amend({"lost": None})
        lake.where = replace(lake.where, lost="")


def removable(paths: Collection[str], directory: str) -> list[list[str]]:
    """Files of a directory in the order in which they go: versions, so that nobody opens the rest; the owner file last."""
    owner = f"{directory}/{OWNER_FILE}"
    versions = [path for path in paths if path.endswith(".manifest")]
    rest = [path for path in paths if not path.endswith(".manifest") and path != owner]
    return [versions, rest, [owner] if owner in paths else []]

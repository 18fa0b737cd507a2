"""What a cleanup would delete, and why; nothing is changed here.

Versions go from the oldest on, without gaps but for those that somebody keeps. Files go for one of a few reasons, each of which says that
no version names the file and no writer at work will.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Final, TypeVar

from tiltyard.errors import CorruptTable, InvalidInput, NotFound
from tiltyard.format.flags import check_writable
from tiltyard.format.fragments import files_named
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file
from tiltyard.format.names import VersionName, parse_manifest_name, parse_transaction_name
from tiltyard.interfaces import ObjectInfo
from tiltyard.transaction.group import last_read, made_by
from tiltyard.transaction.log import TRANSACTIONS, VERSIONS
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.operations import Restore
from tiltyard.transaction.transaction import Heading, Transaction
from tiltyard.transaction.verify import PARENT
from tiltyard.verbs.cleanup.foreign_writers import ForeignWriters
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.table_history import moment
from tiltyard.verbs.table_refs import Branches, Tags

Ref = TypeVar("Ref")

GRACE: Final = timedelta(days=7)
"""How long a file that no version names is left alone: stock writers count on it."""

OURS: Final = "_tiltyard/"
SET_ASIDE: Final = "_tiltyard/set_aside/"
"""Where versions lie that lost their number to others."""
STAGED: Final = "_tiltyard/staged/"
"""Where versions wait that a lake has not published, or not finished yet."""

KINDS: Final = (
    ("data", re.compile(r"(data/[^/]+)\.lance")),
    ("blobs", re.compile(r"(data/[^/]+)/[^/]+\.blob")),
    ("deletions", re.compile(r"(_deletions/[^/]+\.(?:arrow|bin))")),
    ("indices", re.compile(r"(_indices/[^/]+/).+")),
    ("transactions", re.compile(r"(_transactions/[^/]+\.txn)")),
)
"""Files that a cleanup may touch, and what they come and go with. All others belong to somebody else."""

OF_REMOVED: Final = "only versions that are removed name it"
BEGUN: Final = "an earlier cleanup had begun to delete it"
REPLACED: Final = "its transaction was committed without it"
REFUSED: Final = "its transaction read a version that is long gone and would be refused"
DEAD: Final = "its transaction was aborted"
OLD: Final = "no version names it, and it is older than the time of grace"
YOUNG: Final = "no version names it yet, and it is younger than the time of grace"
AWAITED: Final = "a transaction that may still be committed names it"


@dataclass(frozen=True, slots=True)
class Policy:
    """What may go.

    Attributes:
        older_than: versions that were committed longer ago than this; None for any.
        keep_versions: how many of the newest stay in any case.
        keep: versions that stay.
        grace: the age from which a file may go that no version names.
        before: versions below this one; for a lake, which knows what its snapshots need.
        dead: transactions that will never be committed, for certain.
        ignored: staged versions that belong to these.
        named: files, by the names that groups of them go by, that versions of another branch of the table name.
    """

    older_than: timedelta | None = None
    keep_versions: int | None = None
    keep: frozenset[int] = frozenset()
    grace: timedelta = GRACE
    before: int | None = None
    dead: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.older_than is not None and (not isinstance(self.older_than, timedelta) or self.older_than < timedelta(0)):
            raise InvalidInput("older_than must be a timedelta of zero or more, or None.", argument="older_than")
        if self.keep_versions is not None and (
            isinstance(self.keep_versions, bool) or not isinstance(self.keep_versions, int) or self.keep_versions < 1
        ):
            raise InvalidInput("keep_versions must be at least 1, or None: the latest version always stays.", argument="keep_versions")
        if not all(isinstance(version, int) for version in self.keep):
            raise InvalidInput("keep names versions by their numbers.", argument="keep", advice="A tag keeps its version by itself.")
        if not isinstance(self.grace, timedelta) or self.grace < timedelta(0):
            raise InvalidInput("grace must be a timedelta of zero or more.", argument="grace")


@dataclass(slots=True)
class Group:
    """Files that come and go together: a data file and its blobs, the files of an index, or one alone."""

    kind: str
    files: list[tuple[str, str, int]] = field(default_factory=list)
    """Kind, path and size of each."""
    modified: datetime | None = None

    def add(self, kind: str, path: str, size: int, modified: datetime) -> None:
        self.files.append((kind, path, size))
        self.modified = modified if self.modified is None else max(self.modified, modified)


@dataclass(frozen=True, slots=True)
class Survey:
    """What is there. Files were listed before versions, so that one committed meanwhile is not taken for an orphan."""

    groups: dict[str, Group]
    versions: list[VersionName]
    manifests: dict[str, ObjectInfo]
    """Files of versions, by path."""
    now: datetime

    @property
    def head(self) -> int:
        return self.versions[-1].version


@dataclass(slots=True)
class Claims:
    """Who names which files, by the name that a group of files goes by."""

    named: set[str] = field(default_factory=set)
    """By versions that stay."""
    left: set[str] = field(default_factory=set)
    """By versions that go."""
    awaited: set[str] = field(default_factory=set)
    """By transactions that may still be committed."""
    replaced: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    restoring: set[int] = field(default_factory=set)
    """Versions that a transaction under way goes back to."""
    owners: dict[int, str] = field(default_factory=dict)
    """Of versions that go, the transaction that made each."""
    inline_only: set[int] = field(default_factory=set)
    """Versions that go and that alone hold the transaction that made them."""
    loaded: set[int] = field(default_factory=set)
    """Versions that were read; others went while we looked."""
    committed: set[str] = field(default_factory=set)
    """Ids of all transactions that made a version."""
    foreign: ForeignWriters = field(default_factory=lambda: ForeignWriters(datetime.min, timedelta(0)))


def take_survey(access: TableAccess) -> Survey:
    groups = _listed(access)
    access.head()
    manifests = {info.path: info for info in access.store.list(VERSIONS)}
    return Survey(groups, access.log.versions(), manifests, access.runtime.clock.now())


def add_late_files(access: TableAccess, survey: Survey, names: Collection[str]) -> None:
    """Lists once more where a version that goes names files that came after the first listing: busy writers make it old at once."""
    late = set(names).difference(survey.groups)
    if late:
        survey.groups.update((key, group) for key, group in _listed(access).items() if key in late)


def _listed(access: TableAccess) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for prefix in ("data/", "_deletions/", "_indices/", TRANSACTIONS):
        for info in access.store.list(prefix):
            found = _kind_of(info.path)
            if found is not None:
                groups.setdefault(found[1], Group(found[0])).add(found[0], info.path, info.size, info.modified)
    return groups


def _kind_of(path: str) -> tuple[str, str] | None:
    for kind, shape in KINDS:
        match = shape.fullmatch(path)
        if match is not None:
            return kind, match[1]
    return None


# ---- versions --------------------------------------------------------------------------------------------------------------


def line_begins(access: TableAccess, survey: Survey, policy: Policy, recorded: int) -> int:
    """The first version that the policy leaves; older ones stay only where somebody keeps them.

    What an earlier cleanup had given up remains so: it may have got no further.
    """
    others = survey.versions[:-1]
    if policy.before is not None:
        others = [name for name in others if name.version < policy.before]
    elif policy.older_than is None and policy.keep_versions is None:
        others = []
    if policy.keep_versions is not None:
        others = survey.versions[: max(len(survey.versions) - policy.keep_versions, 0)]
    if policy.older_than is not None:
        limit = survey.now - policy.older_than
        others = list(takewhile(lambda name: _committed_at(access, name) < limit, others))
    begin = survey.versions[len(others)].version
    return max(begin, recorded) if recorded <= survey.head else begin


def _committed_at(access: TableAccess, name: VersionName) -> datetime:
    try:
        return moment(access.log.peek(name.version, name.scheme).manifest.timestamp_ns)
    except NotFound:
        return datetime.min.replace(tzinfo=UTC)  # another cleanup was faster


def kept_versions(access: TableAccess, main: TableAccess, policy: Policy, own: int) -> dict[int, list[str]]:
    """Versions that somebody keeps, whatever the policy says, and who."""
    kept: dict[int, list[str]] = {own: ["this handle is at it"]}
    for version in policy.keep:
        kept.setdefault(version, []).append("asked to keep")
    for name, tag in _items(Tags(main)):
        if tag.branch == access.branch:
            kept.setdefault(tag.version, []).append(f"tag {name}")
    for name, branch in _items(Branches(main)):
        if branch.parent_branch == access.branch:
            kept.setdefault(branch.parent_version, []).append(f"branch {name}")
    return kept


def _items(refs: Mapping[str, Ref]) -> Iterator[tuple[str, Ref]]:
    for name in refs:
        with suppress(NotFound):  # dropped while we looked
            yield name, refs[name]


# ---- who names what --------------------------------------------------------------------------------------------------------


def load_version(access: TableAccess, name: VersionName) -> ManifestFile | None:
    """A version; None if another cleanup has removed it meanwhile."""
    try:
        return access.log.load(name.version, name.scheme)
    except NotFound:
        return None


def claims_of(access: TableAccess, main: TableAccess, survey: Survey, going: Collection[int], policy: Policy) -> Claims:
    claims = Claims(foreign=ForeignWriters.for_policy(policy, survey.now))
    stay, go = _Records(), _Records()
    made: dict[int, tuple[str, ...]] = {}
    for name in survey.versions:
        file = load_version(access, name)
        if file is None:
            continue
        heading = _heading(access, file)
        uuids = made_by(heading) if heading is not None else ("",)
        if name.version - 1 in going and _is_owner(made, name.version - 1, heading):
            claims.owners[name.version - 1] = " ".join(made[name.version - 1])
        made[name.version] = uuids
        claims.foreign.note_version(file.manifest)
        claims.loaded.add(name.version)
        claims.committed.update(uuids)
        if name.version in going:
            if file.transaction is not None and TRANSACTIONS + file.manifest.transaction_file not in survey.groups:
                claims.inline_only.add(name.version)
            claims.left.update(_other_names(file.manifest, own=True))
            go.add(file.manifest)
        else:
            claims.named.update(_other_names(understood(file.manifest)))
            stay.add(file.manifest)
    claims.named.update(_fragment_names(stay.found))
    claims.left.update(_fragment_names(go.found - stay.found, own=True))  # what stays is not asked who else names it
    claims.named.update(_detached(access))
    claims.named.update(named_by_staged(access, policy.ignored))
    claims.named.update(_lost_forks(access, main, {name.version for name in survey.versions}))
    return claims


class _Records:
    """Fragments of several versions as wire bytes, each once: most of them stand in many versions."""

    def __init__(self) -> None:
        self.found: set[bytes] = set()

    def add(self, manifest: Manifest) -> None:
        self.found.update(manifest.fragments.records())


def _is_owner(made: Mapping[int, tuple[str, ...]], version: int, after: Heading | None) -> bool:
    """Whether who has a number had it in time, for certain: a late writer's version has no part in the one after it.

    Where that one does not say on what it stands, a version between two others is believed.
    """
    if not made.get(version, ("",))[0] or after is None:
        return False
    parent = after.properties.get(PARENT)
    return parent == made[version][0] if parent is not None else version == 1 or version - 1 in made


def _heading(access: TableAccess, file: ManifestFile) -> Heading | None:
    try:
        return access.log.heading_of(file)
    except NotFound:
        return None


def understood(manifest: Manifest) -> Manifest:
    """Refuses a version that stays and may name files in ways that we do not know: we would not miss them."""
    check_writable(manifest.reader_flags, manifest.writer_flags)
    return manifest


def names_in(manifest: Manifest) -> Iterator[str]:
    """Groups of files that a version names."""
    yield from _other_names(manifest)
    yield from _fragment_names(manifest.fragments.records())


def _other_names(manifest: Manifest, *, own: bool = False) -> Iterator[str]:
    """Groups of files that a version names, but for those of its fragments."""
    if manifest.transaction_file:
        yield TRANSACTIONS + manifest.transaction_file
    for index in decode_indices(manifest, f"version {manifest.version}"):
        if index.base_id is None or not own:
            yield f"_indices/{index.uuid}/"


def _fragment_names(records: Iterable[bytes], *, own: bool = False) -> Iterator[str]:
    """Groups of files that fragments name; with ``own`` only those that lie in the table's own directory for certain.

    Others count, too, where it is about keeping files: their base may be this very directory under another name.
    """
    for record in records:
        for path, base in files_named(record, "manifest"):
            if base is None or not own:
                yield path.removesuffix(".lance")


def _detached(access: TableAccess) -> Iterator[str]:
    """Versions beside the line of history are nobody's to remove."""
    for name in access.store.names(VERSIONS):
        parsed = parse_manifest_name(name)
        if parsed is not None and parsed.detached:
            path = VERSIONS + name
            yield from names_in(decode_manifest_file(access.store.get(path), source=path, version=parsed.version).manifest)


def named_by_staged(access: TableAccess, ignored: Collection[str]) -> Iterator[str]:
    """What versions name that a transaction over several tables has not published yet, or that were set aside for somebody to look at."""
    for info in access.store.list(OURS):
        if info.path.startswith((STAGED, SET_ASIDE)) and info.path not in ignored:
            with suppress(NotFound):  # published or given up meanwhile
                yield from names_in(decode_manifest_file(access.store.get(info.path), source=info.path).manifest)


def _lost_forks(access: TableAccess, main: TableAccess, present: set[int]) -> Iterator[str]:
    """Files of branches whose fork point is gone, which would otherwise keep them."""
    for name, branch in _items(Branches(main)):
        if branch.parent_branch == access.branch and branch.parent_version not in present:
            there = main.on_branch(name)
            for version in there.log.versions():
                yield from names_in(there.log.load(version.version, version.scheme).manifest)


# ---- transactions that made no version ---------------------------------------------------------------------------------------


def add_announced(access: TableAccess, survey: Survey, claims: Claims, policy: Policy, refused: int, begun: Collection[str]) -> None:
    """Looks at transaction files that no version names: what they tell of was given up, is still to come, or came about otherwise.

    Args:
        access: the table.
        survey: what is there.
        claims: who names what; added to.
        policy: says how long a transaction is waited for.
        refused: transactions of ours that read a version below this one will not be committed any more.
        begun: what an earlier cleanup had decided upon.
    """
    for key, group in survey.groups.items():
        if group.kind != "transactions" or key in claims.named or key in claims.left or key in begun:
            continue
        transaction = announced(access, key)
        if transaction is None:
            continue
        # It names the files of all who were to be committed with it: each of them may still be, whatever became of the leader.
        files, makers, read = files_of(transaction), {*made_by(transaction)}, last_read(transaction)
        if makers <= claims.committed:
            claims.replaced.update(files, {key})
        elif makers <= claims.committed | policy.dead:
            claims.dead.update(files, {key})
        elif PARENT in transaction.properties and read < refused:
            claims.refused.update(files, {key})
        elif group.modified is None or survey.now - group.modified < policy.grace:
            claims.awaited.update(files, {key})
            claims.foreign.note_transaction(transaction, group.modified)
            if isinstance(transaction.operation, Restore):
                claims.restoring.add(transaction.operation.version)


def announced(access: TableAccess, path: str) -> Transaction | None:
    """The transaction in a file. None if that is no longer there, or holds something else: then only its age counts."""
    named = parse_transaction_name(path.removeprefix(TRANSACTIONS))
    try:
        transaction = Transaction.from_bytes(access.store.get(path), path)
    except (NotFound, CorruptTable):
        return None
    return transaction if named == (transaction.read_version, transaction.uuid) else None


def _key_of(path: str) -> str:
    """The group that a file, or the directory of an index, belongs to."""
    if path.endswith("/"):
        return path
    found = _kind_of(path)
    return found[1] if found is not None else path


# ---- files -----------------------------------------------------------------------------------------------------------------


def verdict(key: str, group: Group, survey: Survey, claims: Claims, begun: Collection[str], policy: Policy) -> tuple[bool, str]:
    """Whether a group of files goes, and why; an empty reason where a version names it."""
    if key in claims.named:
        return False, ""
    if key in claims.awaited:
        return False, AWAITED
    if key in claims.left:
        return True, OF_REMOVED
    if key in begun:
        return True, BEGUN
    if key in claims.replaced:
        return True, REPLACED
    if key in claims.refused:
        return True, REFUSED
    if key in claims.dead:
        return True, DEAD
    if group.modified is not None and survey.now - group.modified < policy.grace:
        return False, YOUNG
    return True, OLD


def groups_of(paths: Iterable[str]) -> set[str]:
    return {_key_of(path) for path in paths}


def files_of(transaction: Transaction) -> set[str]:
    """Groups of files that a transaction names."""
    return groups_of(new_files(transaction.operation, None))

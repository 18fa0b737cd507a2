"""What the files of a lake say, read without its catalog: tables by their owner, versions by their marks, and versions that still wait
for their final name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from tiltyard.catalog.lake_values import SnapshotMember
from tiltyard.catalog.ledger import group_members, is_batch
from tiltyard.catalog.marks import VersionMarks, without_marks
from tiltyard.errors import CorruptTable, NotFound, TiltyardError
from tiltyard.format.manifest_file import MAGIC, ManifestFile, decode_manifest_file
from tiltyard.format.names import Scheme, manifest_path, parse_manifest_name
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.staged import STAGED
from tiltyard.transaction.log import VERSIONS, VersionLog
from tiltyard.transaction.operations import MAINTENANCE
from tiltyard.transaction.transaction import Transaction

_TREE: Final = "/tree/"
_COUNTED: Final = re.compile(r"([0-9]{1,18})-(.+)", re.ASCII)
"""The staged file of a transaction over any number of tables: the how manyth it staged, and its final name."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

LineKey = tuple[str, str | None]
"""A table's directory, and the table's own branch."""


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """One version of one table, as its manifest tells.

    Attributes:
        version: its number.
        path: its final name.
        staged: where its bytes wait for that name; None where they have it.
        count: among the staged files of its transaction, the how manyth; 0 for others.
        maker: id of the table's own transaction; empty where it cannot be read.
        operation, content: its kind, and whether it changed rows or schema.
        read: the version it was built on.
        at: when it was made.
        writer: who wrote it, for a foreign one.
        marks: the lake commit it belongs to; None for the version of a foreign writer.
        message, properties: what its author said of it.
        config: of the table at that version.
        naming: how its manifest is named.
        members: other commits that are in it.
        is_batch: whether these are transactions over any number of tables, whose other versions belong to the same snapshot.
    """

    version: int
    path: str
    staged: str | None
    count: int
    maker: str
    operation: str
    content: bool
    read: int
    at: datetime
    writer: str
    marks: VersionMarks | None
    message: str
    properties: Mapping[str, str]
    config: Mapping[str, str]
    naming: str
    members: tuple[SnapshotMember, ...] = ()
    is_batch: bool = False

    @property
    def transaction(self) -> str:
        """The lake transaction it belongs to; empty for the version of a foreign writer."""
        return "" if self.marks is None else self.marks.transaction


@dataclass(frozen=True, slots=True)
class FoundLine:
    """One line of versions of one table.

    Attributes:
        key: the table's directory and its own branch.
        present: the numbers of all versions that have their final name.
        versions: those above what was known before, lowest first, without a gap at the end.
        staged: versions that wait for their name, or never get it.
        problems: what could not be read.
        torn: paths of the latest versions, where all of them are what a power loss leaves of bytes that were not flushed.
    """

    key: LineKey
    present: frozenset[int] = frozenset()
    versions: tuple[FoundVersion, ...] = ()
    staged: tuple[FoundVersion, ...] = ()
    problems: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()


@dataclass(slots=True)
class Directory:
    """What lies in a directory below the root that looks like a table's.

    Attributes:
        name: its path below the root.
        branches: the table's own branches that have versions.
        has_versions: whether there is a version on its main line.
        size: bytes of all its files.
    """

    name: str
    branches: set[str] = field(default_factory=set)
    has_versions: bool = False
    size: int = 0


def directories(root: ObjectStore) -> dict[str, Directory]:
    """Directories below the root with versions, staged versions or an owner file, by name; those of catalogs are not among them."""
    found: dict[str, Directory] = {}
    sizes: dict[str, int] = defaultdict(int)
    for info in root.list(""):
        sizes[info.path.partition("/")[0]] += info.size
        table, branch, inner = _parts(info.path)
        if not table or table.startswith("__manifest"):
            continue
        here = found.setdefault(table, Directory(table))
        if inner.startswith(VERSIONS):
            if branch is None:
                here.has_versions = True
            else:
                here.branches.add(branch)
    for name, directory in found.items():
        directory.size = sizes[name.partition("/")[0]]
    return found


_MARKERS: Final = (VERSIONS, STAGED, "_tiltyard/owner.json")


def _parts(path: str) -> tuple[str, str | None, str]:
    """A table's directory, its branch and the path inside, for a file that tells of a table; nothing for others."""
    for marker in _MARKERS:
        before, found, after = f"/{path}".partition(f"/{marker}")
        if found and before:
            table, in_tree, branch = before[1:].partition(_TREE)
            return table, branch if in_tree else None, marker + after
    return "", None, ""


def read_versions(store: ObjectStore, key: LineKey, above: int) -> FoundLine:
    """A line of versions, of which those above a number are read.

    Args:
        store: of the table's branch, as those see it who know nothing of the catalog.
        key: what the line is called.
        above: the latest version that is known.
    """
    log = VersionLog(store)
    names = log.versions()
    found: list[FoundVersion] = []
    problems: list[str] = []
    torn: tuple[str, ...] = ()
    for name in names:
        if name.version <= above:
            continue
        try:
            path = manifest_path(name.version, name.scheme)
            file = log.peek(name.version, name.scheme)
            found.append(_version(file, _transaction(log, file), path, None, 0, name.scheme))
        except TiltyardError as error:
            problems.append(f"version {name.version} cannot be read: {error}")
            torn = _torn(store, [manifest_path(each.version, each.scheme) for each in names if each.version >= name.version])
            break  # whatever is above it builds on it
    staged = _staged(store, problems)
    return FoundLine(key, frozenset(name.version for name in names), tuple(found), tuple(staged), tuple(problems), torn)


def _torn(store: ObjectStore, paths: Sequence[str]) -> tuple[str, ...]:
    """The paths, if all of them are versions without their end: nobody ever read one of them, nor can."""
    try:
        return () if any(store.get(path).endswith(MAGIC) for path in paths) else tuple(paths)
    except NotFound:
        return ()  # a foreign cleanup is at work there


def _transaction(log: VersionLog, file: ManifestFile) -> Transaction | None:
    try:
        return log.transaction_of(file)
    except NotFound:
        return None  # a foreign cleanup may have removed its file


def _staged(store: ObjectStore, problems: list[str]) -> Iterable[FoundVersion]:
    for info in store.list(STAGED):
        name = info.path.rpartition("/")[2]
        match = _COUNTED.fullmatch(name)
        count, final = (int(match[1]), match[2]) if match else (0, name)
        parsed = parse_manifest_name(final)
        if parsed is None or parsed.detached:
            continue
        try:
            file = decode_manifest_file(store.get(info.path), source=info.path, check=False)
            if file.transaction is None:
                raise CorruptTable(info.path, "it does not say which transaction made it")
            made = Transaction.from_bytes(file.transaction, info.path)
        except NotFound:
            continue  # it got its final name meanwhile
        except CorruptTable as error:
            problems.append(str(error))
            continue
        yield _version(file, made, VERSIONS + final, info.path, count, parsed.scheme)


def _version(file: ManifestFile, made: Transaction | None, path: str, staged: str | None, count: int, scheme: Scheme) -> FoundVersion:
    manifest = file.manifest
    said = {} if made is None else without_marks(made.properties)
    return FoundVersion(
        manifest.version,
        path,
        staged,
        count,
        "" if made is None else made.uuid,
        "" if made is None else made.operation.name,
        made is None or not isinstance(made.operation, MAINTENANCE),
        0 if made is None else made.read_version,
        _EPOCH + timedelta(microseconds=manifest.timestamp_ns // 1000),
        str(manifest.writer or ""),
        None if made is None else VersionMarks.of(made),
        "" if made is None else made.message,
        said,
        manifest.config,
        scheme.value,
        () if made is None or VersionMarks.of(made) is None else group_members(made),
        made is not None and is_batch(made),
    )

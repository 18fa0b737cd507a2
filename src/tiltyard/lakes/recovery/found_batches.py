"""Batches found in the files: which transactions were committed together, as the version tells that has the rows of several.

A batch has an id of its own, and so have its members. The version with the rows of several names them all; what one of them wrote to other
tables carries its own id. All of it was one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from tiltyard.catalog.lake_values import SnapshotMember
from tiltyard.catalog.records import Found
from tiltyard.catalog.value_codec import idempotency_key, transaction_key
from tiltyard.lakes.recovery.found import FoundLine, FoundVersion, LineKey

if TYPE_CHECKING:
    from tiltyard.lakes.recovery.regroup import FoundTransaction


def batches_of(versions: Iterable[FoundVersion]) -> dict[str, str]:
    """The batch that each transaction is a member of, as its versions tell; of two that tell of one member, the first."""
    found: dict[str, str] = {}
    for version in versions:
        if version.is_batch:
            for member in version.members:
                found.setdefault(member.transaction, version.transaction)
    return found


def named_by_members(lines: Iterable[FoundLine], committed: Set[str], is_ours: Callable[[FoundVersion], bool]) -> set[str]:
    """Batches of which no version has its name, but one of a member's has, with their other members.

    Args:
        lines: all that was found.
        committed: transactions of which a version has its name.
        is_ours: whether a version was committed through this lake.
    """
    found: set[str] = set()
    for line in lines:
        top = max(line.present, default=0)
        for version in line.staged:
            members = {member.transaction for member in version.members}
            if version.is_batch and is_ours(version) and version.version == top + 1 and members & committed:
                found |= {version.transaction, *members}
    return found


def in_line(line: FoundLine, committed: Set[str]) -> set[str]:
    """Transactions whose writes are in the versions of a line, or in a staged one that is certain to be one of them."""
    there = [*line.versions, *(version for version in line.staged if version.is_batch and version.transaction in committed)]
    named = {version.transaction for version in line.versions}
    return named | {member.transaction for version in there for member in version.members}


def members_in(found: FoundTransaction, tables: Mapping[LineKey, str]) -> tuple[SnapshotMember, ...]:
    """The members of a batch, with the tables that each wrote to.

    Args:
        found: the batch, with the versions of its members.
        tables: ids of tables by their lines of versions.
    """
    members: dict[str, SnapshotMember] = {}
    wrote: dict[str, list[str]] = {}
    # First the table that most of them wrote to: it has them in the order of the batch.
    most = {key: max(len(version.members) for version in versions) for key, versions in found.parts.items()}
    for key, versions in sorted(found.parts.items(), key=lambda part: (-most[part[0]], part[0][0], part[0][1] or "")):
        for version in versions:
            names = [member.transaction for member in version.members] if version.is_batch else [version.transaction]
            members.update({member.transaction: member for member in version.members if version.is_batch})
            for name in names:
                wrote.setdefault(name, []).append(tables.get(key, ""))
    return tuple(replace(member, tables=tuple(dict.fromkeys(wrote[name]))) for name, member in members.items())


def asked_of(members: Iterable[SnapshotMember]) -> list[str]:
    """Keys of the records that tell whether members were committed before."""
    return [
        key
        for member in members
        for key in (transaction_key(member.transaction), *([] if member.key is None else [idempotency_key(member.key)]))
    ]


def undecided(members: Iterable[SnapshotMember], known: Found) -> tuple[SnapshotMember, ...]:
    """Those that no record tells of: two branches may say that they have the same commit, and the first of them has it."""
    left, keys = [], set[str]()
    for member in members:
        if transaction_key(member.transaction) in known:
            continue
        taken = member.key is not None and (member.key in keys or idempotency_key(member.key) in known)
        keys |= set() if member.key is None else {member.key}
        left.append(replace(member, key=None) if taken else member)
    return tuple(left)

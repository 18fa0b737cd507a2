"""Values of the catalog as records, and back; and the keys they have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

from tiltyard.catalog.lake_values import Change, Snapshot, SnapshotMember, TableHead, VersionStep
from tiltyard.errors import CorruptTable

BUCKET: Final = 64
"""How many snapshots share the beginning of a key, and after how many of them a whole cut is written down."""

LAKE: Final = "lake"
TABLES: Final = "table/"
PENDING: Final = "pending/"
TRANSACTIONS: Final = "transaction/"
TAGS: Final = "tag/"
BRANCHES: Final = "branch/"
GONE: Final = "gone/"
ENDED: Final = "ended/"
PLACES: Final = "place/"
PINS: Final = "pin/"
EXPIRED: Final = "expired/"
FREED: Final = "freed/"
SNAPSHOTS: Final = "snapshot/"
CUTS: Final = "cut/"

TABLE_COUNT: Final = "tables"
"""In the record of a tip: how many tables there are. Missing in records of earlier releases."""
PROTECTED: Final = "protected"
"""In the record of a tip: the rule of the branch, see ``catalog/protection.py``. Missing where there is none."""
BEFORE: Final = "before"
"""In the record of a snapshot: the heads that it replaced, by table. Missing in records of earlier releases, and of repaired ones."""


def tip_key(branch: str) -> str:
    return f"tip/{branch}"


def table_key(branch: str, table: str) -> str:
    return f"{TABLES}{branch}/{table}"


def name_key(branch: str, name: str) -> str:
    return f"name/{branch}/{name}"


def freed_key(branch: str, name: str) -> str:
    """Notes which snapshot last took a name from a table, so that nobody who looked before that takes the name for untouched."""
    return f"{FREED}{branch}/{name}"


def pending_key(table: str, branch: str | None, version: int) -> str:
    return f"{pending_prefix(table, branch)}{version:020d}"


def pending_prefix(table: str, branch: str | None) -> str:
    return f"{PENDING}{table}/{branch or ''}@"


def snapshot_key(branch: str, snapshot: int) -> str:
    return f"{bucket_prefix(branch, snapshot // BUCKET)}{snapshot:020d}"


def bucket_prefix(branch: str, bucket: int) -> str:
    return f"{SNAPSHOTS}{branch}/{bucket:016d}/"


def snapshots_prefix(branch: str) -> str:
    return f"{SNAPSHOTS}{branch}/"


def cut_key(branch: str, bucket: int) -> str:
    """The cut before the first snapshot of a bucket."""
    return f"{cuts_prefix(branch)}{bucket:016d}"


def cuts_prefix(branch: str) -> str:
    return f"{CUTS}{branch}/"


def gone_key(location: str) -> str:
    """Notes that the directory of a table was given up, so that nobody makes the table there any more."""
    return GONE + location


def ended_key(branch: str, identity: str) -> str:
    """Notes that a branch of the lake was deleted or began anew, so that nobody needs the tables' own branches of it any more."""
    return f"{ENDED}{branch}-{identity}"


def place_key(location: str) -> str:
    """Says which table is registered at a location, of which only the digest fits into every database."""
    return PLACES + hashlib.sha256(location.encode()).hexdigest()


def pin_key(identity: str) -> str:
    """Notes that tables have tags for something in the lake, or are about to get them."""
    return PINS + identity


def transaction_key(transaction: str) -> str:
    return TRANSACTIONS + transaction


def idempotency_key(key: str) -> str:
    return f"key/{key}"


_HEAD: Final = tuple(field.name for field in fields(TableHead))
_CHANGE: Final = tuple(field.name for field in fields(Change))
_STEP: Final = tuple(field.name for field in fields(VersionStep))
_SNAPSHOT: Final = tuple(field.name for field in fields(Snapshot) if field.name != "members")


def head_to_body(head: TableHead) -> dict[str, Any]:
    return {name: getattr(head, name) for name in _HEAD}  # ``asdict`` costs ten times as much: it copies all that is inside


def head_from_body(body: Mapping[str, Any]) -> TableHead:
    try:
        return TableHead(**body)
    except TypeError as error:
        raise CorruptTable("the catalog", f"a table's record has missing or unknown fields ({error})") from error


def snapshot_to_body(snapshot: Snapshot) -> dict[str, Any]:
    changes = []
    for change in snapshot.changes:
        steps, lost = ([{name: getattr(step, name) for name in _STEP} for step in some] for some in (change.steps, change.lost))
        changes.append({**{name: getattr(change, name) for name in _CHANGE}, "steps": steps, "lost": lost})
    facts = {name: getattr(snapshot, name) for name in _SNAPSHOT}
    # Left out where there are none: earlier releases read most snapshots then.
    group = {"members": [_member_to_body(member) for member in snapshot.members]} if snapshot.members else {}
    return {**facts, "at": snapshot.at.isoformat(), "properties": dict(snapshot.properties), "changes": changes, **group}


def _member_to_body(member: SnapshotMember) -> dict[str, Any]:
    said = {"message": member.message, "properties": dict(member.properties)}
    # Of a batch alone: what earlier releases wrote of single verbs they read as before.
    batch = {"tables": list(member.tables), "isolation": member.isolation, "base": member.base} if member.tables else {}
    return {"transaction": member.transaction, "author": member.author, **said, **batch}


def _member_from_body(body: Mapping[str, Any]) -> SnapshotMember:
    return SnapshotMember(**{**body, "tables": tuple(body.get("tables", ()))})


def snapshot_from_body(body: Mapping[str, Any]) -> Snapshot:
    try:
        changes = tuple(change_from_body(item) for item in body["changes"])
        facts = {name: value for name, value in body.items() if name != BEFORE}
        members = tuple(_member_from_body(member) for member in body.get("members", ()))
        return Snapshot(**{**facts, "at": datetime.fromisoformat(body["at"]), "changes": changes, "members": members})
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptTable("the catalog", f"a snapshot's record has missing or unknown fields ({error})") from error


def change_from_body(body: Mapping[str, Any]) -> Change:
    return Change(**{**body, "steps": _steps(body["steps"]), "lost": _steps(body.get("lost", ()))})


def _steps(bodies: Iterable[Mapping[str, Any]]) -> tuple[VersionStep, ...]:
    return tuple(VersionStep(**body) for body in bodies)

"""Names of manifests and transactions, finding the latest version among them, and the way from old names to new.

V2 counts down from the highest 64-bit number, so that the newest version comes first in a listing; V1 is the plain number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tiltyard.errors import CorruptTable, InvalidInput

VERSIONS_DIR: Final = "_versions"

_MAX: Final = (1 << 64) - 1
_DETACHED_BIT: Final = 1 << 63
_V2_LENGTH: Final = len("18446744073709551614.manifest")
_MANIFEST: Final = re.compile(r"(d?)([0-9]{1,20})\.manifest", re.ASCII)
_TRANSACTION: Final = re.compile(r"([0-9]{1,20})-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.txn", re.ASCII)


class Scheme(Enum):
    """How versions are turned into names."""

    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class VersionName:
    """What the name of a manifest says."""

    version: int
    scheme: Scheme
    detached: bool = False


def manifest_name(version: int, scheme: Scheme = Scheme.V2) -> str:
    """Name, inside ``_versions``, of a version on the line of history."""
    if not 0 <= version < _DETACHED_BIT:
        raise InvalidInput(f"{version} is not a version number.", argument="version")
    return f"{_MAX - version:020d}.manifest" if scheme is Scheme.V2 else f"{version}.manifest"


def manifest_path(version: int, scheme: Scheme = Scheme.V2) -> str:
    """Where a version on the line of history lies, below the table's root."""
    return f"{VERSIONS_DIR}/{manifest_name(version, scheme)}"


def detached_name(version: int) -> str:
    """Name of a version beside the line of history; its number has the top bit set."""
    if not _DETACHED_BIT <= version <= _MAX:
        raise InvalidInput(f"{version} is not the number of a detached version.", argument="version")
    return f"d{version}.manifest"


def parse_manifest_name(name: str) -> VersionName | None:
    """None for anything but a name a writer would give: temporary files, other files, numbers out of bounds or oddly spelled."""
    match = _MANIFEST.fullmatch(name)
    if match is None:
        return None
    number = int(match[2])
    if match[1]:
        return VersionName(number, Scheme.V2, detached=True) if _DETACHED_BIT <= number <= _MAX and _plain(match[2]) else None
    if len(match[2]) == 20:
        return VersionName(_MAX - number, Scheme.V2) if _DETACHED_BIT <= number <= _MAX else None
    return VersionName(number, Scheme.V1) if number < _DETACHED_BIT and _plain(match[2]) else None


def _plain(digits: str) -> bool:
    return digits == "0" or not digits.startswith("0")


def latest_version(names: Iterable[str], *, ordered: bool) -> tuple[int, Scheme] | None:
    """The highest version on the line of history, or None when there is none.

    With ``ordered`` (names come in lexical order) the first V2 name is the answer and the rest is not looked at; a V1 name that
    sorts after it then goes unnoticed. Otherwise a directory with both kinds is ``CorruptTable``, as it is for stock readers.
    """
    if not ordered:
        return _highest(list(names))
    best: VersionName | None = None
    for name in names:
        parsed = parse_manifest_name(name)
        if parsed is None or parsed.detached:
            continue
        if best is not None and best.scheme is not parsed.scheme:
            raise _mixed()
        if best is None or parsed.version > best.version:
            best = parsed
        if parsed.scheme is Scheme.V2:
            break
    return None if best is None else (best.version, best.scheme)


def _highest(names: list[str]) -> tuple[int, Scheme] | None:
    """Every commit asks this: V2 names are compared but not parsed, only names of another length are."""
    others: list[str] = []
    if set(map(len, names)) != {_V2_LENGTH}:
        others = [name for name in names if len(name) != _V2_LENGTH]
        names = [name for name in names if len(name) == _V2_LENGTH]
    likely = parse_manifest_name(min(names, default=""))
    if likely is None or likely.detached:  # none at all, or something odd sorts first
        found = all_versions([*names, *others])
        return (found[-1].version, found[-1].scheme) if found else None
    if any(other.scheme is Scheme.V1 for other in all_versions(others)):
        raise _mixed()
    return likely.version, likely.scheme


def all_versions(names: Iterable[str]) -> list[VersionName]:
    """All versions on the line of history, ascending. Both kinds of names in one directory are ``CorruptTable``."""
    found = [parsed for parsed in map(parse_manifest_name, names) if parsed is not None and not parsed.detached]
    if len({parsed.scheme for parsed in found}) > 1:
        raise _mixed()
    return sorted(found, key=lambda parsed: parsed.version)


def _mixed() -> CorruptTable:
    return CorruptTable(
        VERSIONS_DIR,
        "it holds manifests with names of both kinds, V1 and V2",
        advice="If a migration of names was interrupted, stop all writers and call ty.resume_migration.",
    )


def migration_plan(names: Iterable[str]) -> list[tuple[str, str]]:
    """Renames that turn V1 names into V2 names, newest version first. Empty when there is nothing to do.

    No order keeps stock readers happy half way: until the last rename they cannot find the latest version, though a version opened
    by its number works throughout. Newest first is the order in which nobody is misled: from the first step on the first V2 name
    is the true head, so that a reader of an ordered listing never takes an old version for the latest and writes over what follows.

    Every step can be repeated: a plan made after an interruption holds what is left. A rename that is a link and an unlink may
    have left both names of a version behind; the caller meets ``AlreadyExists`` then, compares the bytes and removes the V1 name.
    No writer may be at work meanwhile: one that opened the table before would go on with V1 names.
    """
    parsed = ((name, parse_manifest_name(name)) for name in names)
    old = [(found.version, name) for name, found in parsed if found is not None and found.scheme is Scheme.V1]
    return [(name, manifest_name(version, Scheme.V2)) for version, name in sorted(old, reverse=True)]


def parse_transaction_name(name: str) -> tuple[int, str] | None:
    """Read version and uuid, or None for any other name."""
    match = _TRANSACTION.fullmatch(name)
    if match is None or not _plain(match[1]) or int(match[1]) > _MAX:
        return None
    return int(match[1]), match[2]


HINT_PATH: Final = "_versions/latest_version_hint.json"

_LARGEST: Final = 256
"""A true hint has at most 32 bytes; parsing stops short of anything that could be deep or long."""


def encode_hint(version: int) -> bytes:
    return b'{"version":%d}' % version


def decode_hint(data: bytes) -> int | None:
    """The version the hint names, or None when it cannot be made out."""
    if len(data) > _LARGEST:
        return None
    try:
        content = json.loads(data.decode("utf-8"))
    except ValueError:
        return None
    version = content.get("version") if isinstance(content, dict) else None
    # A bool is an int to Python; the top bit belongs to detached versions, which are never the latest.
    return version if isinstance(version, int) and not isinstance(version, bool) and 0 < version < 1 << 63 else None

"""The floor: versions below it may be gone, for a cleanup recorded it before it deleted the first of them.

A record is a file whose name says all that a commit asks for, so that a listing of one small directory is enough. Whoever wants to know
who had a number reads on inside. Records are created, merged and dropped, never changed to say less: the floor is the highest of them, so
two cleanups at a time cannot lower it. Stock writers neither look at that directory nor clean it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tiltyard.errors import NotFound
from tiltyard.interfaces import ObjectStore

FLOORS: Final = "_tiltyard/floor/"
_NAME: Final = re.compile(r"([0-9]{1,20})-([0-9]{1,20})-[0-9a-f-]{36}\.json", re.ASCII)

Moments = tuple[tuple[int, datetime], ...]
"""Numbers, and since when they hold."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What names of records say.

    Attributes:
        version: versions below this one may be gone.
        refused: a transaction that read a version below this one is not committed any more; never above ``version``.
    """

    version: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class FloorRecord:
    """One record in full.

    Attributes:
        floor: what its name says.
        removed: versions that went, and the transaction that had made each.
        versions, refusals: earlier values of both numbers, with the time from which they held.
        files: what that cleanup wanted to delete, as long as it is not done.
    """

    floor: Floor
    removed: Mapping[int, str] = field(default_factory=dict)
    versions: Moments = ()
    refusals: Moments = ()
    files: tuple[str, ...] = ()

    def path(self, unique: str) -> str:
        return f"{FLOORS}{self.floor.version:020d}-{self.floor.refused:020d}-{unique}.json"

    def to_bytes(self) -> bytes:
        known = {
            "removed": {str(version): uuid for version, uuid in self.removed.items()},
            "versions": [[number, when.isoformat()] for number, when in self.versions],
            "refusals": [[number, when.isoformat()] for number, when in self.refusals],
            "files": list(self.files),
        }
        return json.dumps(known, separators=(",", ":")).encode()


def read_floor(store: ObjectStore) -> Floor:
    """The floor as it is now; zero where nothing was cleaned up."""
    found = [named for named in map(_parse_name, store.names(FLOORS)) if named is not None]
    return Floor(max((one.version for one in found), default=0), max((one.refused for one in found), default=0))


def read_records(store: ObjectStore) -> dict[str, FloorRecord]:
    """All records by path. Of one that cannot be read, a half-written one, the name still counts."""
    records: dict[str, FloorRecord] = {}
    for name in store.names(FLOORS):
        floor = _parse_name(name)
        if floor is not None:
            with suppress(NotFound):  # another cleanup merged it into its own meanwhile
                records[FLOORS + name] = _decode(store.get(FLOORS + name), floor)
    return records


def owner_of(store: ObjectStore, version: int) -> str | None:
    """The transaction that had made a version which a cleanup removed; None where nobody wrote that down."""
    owners = {record.removed[version] for record in read_records(store).values() if version in record.removed}
    return owners.pop() if len(owners) == 1 else None


def _parse_name(name: str) -> Floor | None:
    match = _NAME.fullmatch(name)
    return None if match is None else Floor(int(match[1]), int(match[2]))


def _decode(data: bytes, floor: Floor) -> FloorRecord:
    try:
        told = json.loads(data)
        return FloorRecord(
            floor,
            {int(version): str(uuid) for version, uuid in told["removed"].items()},
            _moments(told["versions"]),
            _moments(told["refusals"]),
            tuple(str(path) for path in told["files"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return FloorRecord(floor)


def _moments(told: Any) -> Moments:
    return tuple((int(number), datetime.fromisoformat(when)) for number, when in told)

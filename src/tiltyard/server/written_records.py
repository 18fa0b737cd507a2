"""What clients may write among the records of a lake that they opened by the address of its server.

Publications are looked at one by one. A step that writes records by itself - a merge, a branch, a tag - comes with bodies as its sender
wants them, and the server acts on some of these with its own rights: it finishes versions where a record says that they wait, and opens
tables where a head says that they lie. So places are looked at in every body, whoever sends it and whatever its key is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lance_namespace import InvalidInputError, PermissionDeniedError

from tiltyard.catalog.records import Body, Records
from tiltyard.catalog.value_codec import BRANCHES, CUTS, LAKE, PENDING, PINS, SNAPSHOTS, TABLES
from tiltyard.lakes.claim import TABLE_DIRECTORY
from tiltyard.server.principals import Principal
from tiltyard.server.routes import Role
from tiltyard.server.upkeep_runs import UPKEEP
from tiltyard.storage.staged import STAGED

_VERSION: Final = re.compile(r"_versions/[0-9]+\.manifest", re.ASCII)
_FREE: Final = ("properties", "config")
"""Members with names that users choose."""


def role_for(key: str, before: Body | None, after: Body | None) -> Role:
    """What it takes to write a record."""
    if key == LAKE:
        return Role.ADMIN
    if key.startswith(UPKEEP):
        return Role.MAINTAINER  # who writes it decides that upkeep was done
    if before is None or key.startswith(PINS):
        return Role.WRITER
    counted = key.startswith(BRANCHES) and after is not None and {**before, "refs": 0} == {**after, "refs": 0}
    return Role.WRITER if counted else Role.MAINTAINER  # a snapshot of the branch got a name


def is_step(path: object, staged: object) -> bool:
    """Whether a version lies where versions lie, and waits where they wait."""
    if not isinstance(path, str) or _VERSION.fullmatch(path) is None:
        return False
    if staged is None:
        return True
    return isinstance(staged, str) and staged.startswith(STAGED) and ".." not in staged.split("/") and staged.endswith(".manifest")


def check_bodies(principal: Principal, records: Records, put: Mapping[str, Body]) -> None:
    """Looks at the places that records to be written tell of.

    Raises:
        InvalidInputError: a version would get bytes from the record, or lie elsewhere than versions do.
        PermissionDeniedError: a table would lie outside the lake, where none of the lake lies yet, and the sender is no admin.
    """
    places = set[str]()
    for key, body in put.items():
        if key.startswith(PENDING) and body.get("data"):
            raise InvalidInputError("Clients cannot put the bytes of a version into the catalog.")
        for part in _parts(body):
            if "staged" in part and not is_step(part.get("path"), part["staged"]):
                raise InvalidInputError("A version must be below _versions, and its staged file below _tiltyard/staged.")
            if part.get("location"):
                places.add(str(part["location"]))
    outside = {place for place in places if TABLE_DIRECTORY.fullmatch(place) is None}
    if outside and not principal.may(Role.ADMIN, ()) and not _are_known(records, outside):
        raise PermissionDeniedError("A record with a table outside the lake needs the role admin for all tables.")


def _parts(body: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a record, but those whose members users name."""
    if isinstance(body, Mapping):
        yield body
        for name, item in body.items():
            if name not in _FREE:
                yield from _parts(item)
    elif isinstance(body, list):
        for item in body:
            yield from _parts(item)


def _are_known(records: Records, places: set[str]) -> bool:
    """Whether tables of the lake lie there, or did: looks at the heads first, and at old snapshots only for what is left."""
    left = set(places)
    for prefixes in ([TABLES], [CUTS, SNAPSHOTS]):
        for _, body in records.scan(prefixes):
            left.difference_update(str(part["location"]) for part in _parts(body) if part.get("location"))
            if not left:
                return True
    return False

"""The claim of a lake on its root: one file, created by exactly one of all lakes that want the root.

``_tiltyard/lake/lake.json`` below the root::

    {"format": 1, "lake": ID, "catalog": {"kind": "sqlite" | "postgresql" | "manifest", "at": WHERE}, "created": TIME}

``at`` is relative to the root where the catalog lies below it, so that the lake can be moved as a whole; it holds no credentials. The
claim comes first and the catalog's record of the lake after it, with the id that the claim names. A process that dies between the two
leaves a claim of an empty root, which the next one with the same catalog goes on from.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tiltyard.errors import AlreadyExists, CorruptTable, NotFound, OwnershipError, StorageError, UnsafeStore
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.storage.probe import ensure_safe

LAKE_DIRECTORY: Final = "_tiltyard/lake/"
CLAIM: Final = LAKE_DIRECTORY + "lake.json"
CLAIM_FORMAT: Final = 1
LARGEST_CLAIM: Final = 64 * 1024

TABLE_DIRECTORY: Final = re.compile(r"[0-9a-f]{12}_[A-Za-z0-9_-]+\.lance", re.ASCII)
"""What the directory of a table is called that a lake made."""

_log = logging.getLogger("tiltyard.lake")


@dataclass(frozen=True, slots=True)
class CatalogId:
    """Which catalog a lake has.

    Attributes:
        kind: ``sqlite``, ``postgresql`` or ``manifest``.
        at: where, without credentials; relative to the root for one below it.
    """

    kind: str
    at: str

    def __str__(self) -> str:
        return f"{self.kind} catalog {self.at}"


UNKNOWN_CATALOG: Final = CatalogId("", "")


@dataclass(frozen=True, slots=True)
class RootClaim:
    """What the root says of its owner."""

    lake: str
    catalog: CatalogId
    created: str = ""

    def to_bytes(self) -> bytes:
        members = {
            "format": CLAIM_FORMAT,
            "lake": self.lake,
            "catalog": {"kind": self.catalog.kind, "at": self.catalog.at},
            "created": self.created,
        }
        return json.dumps(members, indent=2).encode()


def read_claim(store: ObjectStore) -> RootClaim | None:
    """The claim on a root; None where nobody has made one.

    Raises:
        CorruptTable: the file is not what it must be.
    """
    try:
        data = store.get(CLAIM)
    except NotFound:
        return None
    try:
        members: Any = json.loads(data[:LARGEST_CLAIM])
        claim = RootClaim(members["lake"], CatalogId(members["catalog"]["kind"], members["catalog"]["at"]), members.get("created", ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(store) from error
    if not all(isinstance(value, str) for value in (claim.lake, claim.catalog.kind, claim.catalog.at)) or not claim.lake:
        raise _broken(store)
    return claim


def _broken(store: ObjectStore) -> CorruptTable:
    advice = "Restore the file from a backup, or run `tiltyard lake rebuild`."
    return CorruptTable(f"{store.uri}/{CLAIM}", "it does not say which lake the root belongs to", advice=advice)


def make_claim(store: ObjectStore, claim: RootClaim, runtime: Runtime) -> RootClaim:
    """Claims a root; the claim that stands, which is somebody else's where he was faster.

    Raises:
        StorageError: nobody can say whether it was made; opening the lake again tells.
    """
    try:
        ensure_safe(store, runtime)
        store.put_if_absent(CLAIM, claim.to_bytes())
    except AlreadyExists:
        pass
    except UnsafeStore:
        if read_claim(store) is None:  # the store cannot decide between two; the catalogs' own check is all there is
            store.put(CLAIM, claim.to_bytes())
    return read_claim(store) or claim


def replace_claim(store: ObjectStore, claim: RootClaim) -> None:
    """Puts another claim in the place of one, for a lake whose catalog was moved, restored or rebuilt."""
    store.put(CLAIM, claim.to_bytes())


def claim_existing(store: ObjectStore, claim: RootClaim, runtime: Runtime) -> RootClaim:
    """Claims the root of a lake that an earlier release made. One who may only read goes on without."""
    try:
        return make_claim(store, claim, runtime)
    except StorageError as error:
        _log.warning("the root %s has no claim, and none could be made: %s", store.uri, error)
        return claim


def table_directories(names: Iterable[str]) -> list[str]:
    """Those among the names below a root that are directories of a lake's tables."""
    found = dict.fromkeys(name.partition("/")[0] for name in names)
    return [name for name in found if TABLE_DIRECTORY.fullmatch(name)]


def is_same_catalog(claimed: CatalogId, mine: CatalogId, root: str) -> bool:
    """Whether two catalogs are one. A SQLite file that is no longer where it was claimed to be has been moved."""
    if claimed.kind != mine.kind:
        return False
    if claimed == mine or claimed.kind == "postgresql":  # one database has many addresses
        return True
    return claimed.kind == "sqlite" and "://" not in root and not os.path.exists(os.path.join(root, claimed.at))  # noqa: PTH110, PTH118


def refuse_other_catalog(claim: RootClaim, mine: CatalogId, root: str) -> None:
    """For whoever opens a root with a catalog.

    Raises:
        OwnershipError: the root's lake has another one.
    """
    if not is_same_catalog(claim.catalog, mine, root):
        raise OwnershipError(
            f"{root} belongs to lake {claim.lake[:8]}, whose catalog is {claim.catalog}, not {mine}.",
            root=root,
            lake=claim.lake,
            catalog=str(claim.catalog),
            advice="Open it with that catalog, or use another root.",
        )


def refuse_other_lake(claim: RootClaim, lake: str, root: str) -> None:
    """For whoever opens a root with the catalog of a lake.

    Raises:
        OwnershipError: the root is another lake's.
    """
    if claim.lake != lake:
        raise OwnershipError(
            f"{root} belongs to lake {claim.lake[:8]} ({claim.catalog}); this catalog is that of lake {lake[:8]}.",
            root=root,
            lake=claim.lake,
            catalog=str(claim.catalog),
            advice="Use another root, or open that lake with its own catalog.",
        )

"""A commit store: a database that decides who has a version of a table whose store cannot, or should not.

Every version has a record: the path of its manifest, staged until it was given its final name. The record is made if there is none, which
is all that a commit rests on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.records import Found, Records, Writes
from tiltyard.errors import AlreadyExists, InvalidInput
from tiltyard.interfaces import CommitHandler, ObjectStore, Runtime
from tiltyard.storage import Durability, lance_uri
from tiltyard.storage.external import ExternalHandler, ExternalStore, UnfinishedError, VersionClaim
from tiltyard.verbs.engine.access import TableAccess

PREFIX: Final = "manifest/"


@dataclass(frozen=True, slots=True)
class RecordLedger:
    """The account of one table in a database of records.

    Attributes:
        records: the database.
        table: what the table is called there.
    """

    records: Records
    table: str

    def unfinished(self) -> Sequence[VersionClaim]:
        # A version is claimed only after the one below it was finished, so there is never more than one.
        found = self.records.scan([self._prefix], limit=1, descending=True)
        return [
            VersionClaim(int(key.rpartition("/")[2]), str(body["path"]), str(body["staged"]))
            for key, body in found
            if body["staged"] is not None
        ]

    def claim(self, claim: VersionClaim, data: bytes) -> None:
        mine, below = self._key(claim.version), self._key(claim.version - 1)

        def decide(found: Found) -> Writes[None]:
            if mine in found:
                raise AlreadyExists(f"Version {claim.version} of {self.table} is taken.", name=claim.path)
            if below in found and found[below]["staged"] is not None:
                raise UnfinishedError
            return Writes(None, {mine: {"path": claim.path, "staged": claim.staged}})

        self.records.transact([mine], [below], decide)

    def settle(self, claim: VersionClaim, *, foreign: bool) -> None:
        key = self._key(claim.version)

        def decide(found: Found) -> Writes[None]:
            if found.get(key, {}).get("staged") != claim.staged:
                return Writes(None)
            # A writer that knows nothing of this database has the name, and with it the number: nobody ever saw the staged bytes.
            return Writes(None, {key: {"path": claim.path, "staged": None, **({"foreign": True} if foreign else {})}})

        self.records.transact([key], [], decide)

    @property
    def _prefix(self) -> str:
        return f"{PREFIX}{quote(self.table, safe='')}/"

    def _key(self, version: int) -> str:
        return f"{self._prefix}{version:020d}"


def decided_in(records: Records, runtime: Runtime) -> Callable[[str, ObjectStore], tuple[ObjectStore, CommitHandler]]:
    """For ``TableAccess.decided_by``: versions of a table are decided in this database."""

    def outside(uri: str, store: ObjectStore) -> tuple[ObjectStore, CommitHandler]:
        ledger = RecordLedger(records, lance_uri(uri).rstrip("/"))  # one account, however the place is spelled
        return ExternalStore(store, ledger, runtime), ExternalHandler(ledger, lambda path: f"{path}-{runtime.random.uuid()}")

    return outside


def decided_outside(access: TableAccess, url: str | None, handler: object = None) -> TableAccess:
    """The same place with versions decided in the database at a URL; as it is without one.

    Raises:
        InvalidInput: a handler was given as well.
    """
    if url is None:
        return access
    if handler is not None:
        raise InvalidInput("handler and commit_store exclude each other: one of them decides about versions.", argument="commit_store")
    return access.decided_by(decided_in(_opened(url, access.durability), access.runtime))


_open: dict[tuple[str, Durability], Records] = {}
_opening = threading.Lock()


def _opened(url: str, durability: Durability) -> Records:
    """One connection pool for each database, however many handles there are."""
    with _opening:
        found = _open.get((url, durability))
        if found is None:
            try:
                found = _open[url, durability] = open_records(url, durability=durability)
            except InvalidInput as error:
                raise error.advised("A commit store is sqlite:///file or postgresql://...") from error
        return found

"""Taking a table into a lake that is there already, where it is: at most once, however its location is spelled and whoever comes first.

Who registers a directory is decided by a record that is keyed by the directory's location, before the catalog publishes the table. A
process that dies between the two leaves a record whose transaction was never decided; whoever comes next aborts that one first.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.expiry import expired_among
from tiltyard.catalog.lake_values import Change, Publication, TableHead
from tiltyard.catalog.marks import owner_of
from tiltyard.catalog.publishing import COMMITTED, AbortedError, StaleError
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.value_codec import TABLES, head_from_body, place_key
from tiltyard.errors import AlreadyExists, InvalidInput, OwnershipError
from tiltyard.interfaces import ObjectStore
from tiltyard.lakes.cleanup.orphans import find_again, known_locations
from tiltyard.lakes.conflict_report import mismatch
from tiltyard.lakes.recovery.journal import note_names
from tiltyard.lakes.table_names import full_name, is_within, resolved, shown
from tiltyard.transaction.verify import transaction_id
from tiltyard.verbs.engine.access import open_access

if TYPE_CHECKING:
    from tiltyard.lake import Lake

PATIENCE: Final = timedelta(minutes=1)
"""How long somebody who is registering a directory is left to it. Whether it is safe to go on does not depend on it."""


def register(lake: Lake, name: str, uri: str | os.PathLike[str]) -> None:
    """See ``Lake.register_table``."""
    full = full_name(name)
    location = resolved(uri)
    access = open_access(location, lake.where.storage)
    version, scheme = access.head()
    made_by = transaction_id(access.load(version, scheme))
    _refuse_owned(lake, location, access.store)
    _refuse_overlap(lake, location)
    cut = lake.catalog.cut(lake.branch)
    table, transaction = lake.catalog.runtime.random.uuid(), lake.catalog.runtime.random.uuid()
    _take(lake, location, table, transaction)
    change = Change(table, "register", full, version, version, location=location, naming=scheme.value, base_transaction=made_by)
    publication = Publication(transaction, (change,), lake.branch, author=lake.author, base=cut.snapshot, line=cut.line, blind=True)
    try:
        done = lake.catalog.publish(publication)
    except StaleError as stale:
        _release(lake, location, transaction)
        if stale.moved[0].kind == "line":
            raise mismatch(lake.catalog, lake.branch, cut.snapshot, transaction, stale.moved[0]) from None
        raise AlreadyExists(f"There is a table {name!r} in the lake already.", name=name) from None
    except AbortedError:
        raise AlreadyExists(f"The directory {location} was registered by another process at the same time.", name=location) from None
    note_names(lake, lake.branch, done.snapshot, transaction)
    if lake.where.lost:
        find_again(lake)


def _refuse_owned(lake: Lake, location: str, store: ObjectStore) -> None:
    """Refuses the table of another lake, which may be lost for now and come back: its cleanup knows nothing of our snapshots.

    A clone has the config of what it was made of, but lies in a directory of its own, so it belongs to nobody.

    Raises:
        OwnershipError: naming that lake.
    """
    owner = owner_of(store)
    if owner is None or owner.lake == lake.where.lake:
        return
    made_there = f"{owner.table.replace('-', '')[:12]}_"
    if owner.transaction or location.rstrip("/").rpartition("/")[2].startswith(made_there):
        raise OwnershipError(
            f"{location} is a table of lake {owner.lake[:8]}.",
            root=location,
            lake=owner.lake,
            advice="Open it there (`tiltyard lake rebuild` brings a lost catalog back), or register a clone of it.",
        )


def _heads(lake: Lake) -> list[tuple[str, TableHead]]:
    """Tables of all branches, each with its branch."""
    found = lake.catalog.records.scan([TABLES])
    return [(key.removeprefix(TABLES).partition("/")[0], head_from_body(body)) for key, body in found]


def _refuse_overlap(lake: Lake, location: str) -> None:
    """Refuses what is a table of this lake, part of one, or holds one.

    Raises:
        AlreadyExists: the directory is a table of this lake.
        InvalidInput: it overlaps with one, or with the lake itself.
    """
    if is_within(resolved(lake.root_uri), location):
        raise InvalidInput(f"{location} holds the lake's own tables.", argument="uri", advice="Name the directory of one table.")
    for branch, head in _heads(lake):
        there = resolved(lake.uri_of(head.location))
        if there == location:
            what = f"{shown(head.name)!r}" + ("" if branch == lake.branch else f" on branch {branch!r}")
            raise AlreadyExists(f"The table at {location} is in the lake already, as {what}.", name=shown(head.name))
        if is_within(location, there) or is_within(there, location):
            raise InvalidInput(
                f"{location} and table {shown(head.name)!r} at {there} overlap: one directory is inside the other.", argument="uri"
            )
    dropped = {resolved(lake.uri_of(location)) for location in known_locations(lake)}
    if is_within(location, resolved(lake.root_uri)) and location in dropped:
        raise AlreadyExists(
            f"{location} is a dropped table of this lake, which its snapshots still show.",
            name=location,
            advice="Copy it, or begin a branch at a snapshot that has it.",
        )


def _take(lake: Lake, location: str, table: str, transaction: str) -> None:
    """Makes the record that says who registers a directory.

    Raises:
        AlreadyExists: somebody has, or is about to.
    """
    key = place_key(location)
    before = lake.catalog.records.get([key]).get(key)
    if before is not None:
        _refuse_alive(lake, location, before)
    body = {"table": table, "transaction": transaction, "location": location, "at": lake.catalog.runtime.clock.now().isoformat()}

    def decide(found: Found) -> Writes[None]:
        if found.get(key) != before:
            raise AlreadyExists(f"The directory {location} was registered by another process at the same time.", name=location)
        return Writes(None, {key: body})

    lake.catalog.records.transact([key], [], decide)


def _refuse_alive(lake: Lake, location: str, before: Body) -> None:
    """Leaves a directory to whoever registered it, unless he dropped it again or died over it."""
    transaction = str(before["transaction"])
    known = lake.catalog.transaction(transaction)
    if known is None and expired_among(lake.catalog, [transaction]):
        known = {"state": COMMITTED}
    if known is None:
        now = lake.catalog.runtime.clock.now()
        if now - datetime.fromisoformat(str(before["at"])) < PATIENCE or not lake.catalog.abort(transaction):
            raise AlreadyExists(f"The directory {location} is being registered by another process.", name=location, advice="Try again.")
    elif known["state"] == COMMITTED and any(head.id == before["table"] for _, head in _heads(lake)):
        raise AlreadyExists(f"The table at {location} is in the lake already.", name=location)


def _release(lake: Lake, location: str, transaction: str) -> None:
    """Gives a directory back that was not registered after all."""
    key = place_key(location)

    def decide(found: Found) -> Writes[None]:
        return Writes(None, delete=[key] if found.get(key, {}).get("transaction") == transaction else [])

    lake.catalog.records.transact([key], [], decide)

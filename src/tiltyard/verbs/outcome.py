"""What became of a transaction whose commit ended without an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tiltyard.errors import CorruptTable, NotFound, StorageError
from tiltyard.format.names import parse_transaction_name
from tiltyard.transaction.log import TRANSACTIONS
from tiltyard.verbs.place import Place


@dataclass(frozen=True, slots=True)
class Committed:
    """The transaction made this version."""

    version: int


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """No version is or will be made by this transaction."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It cannot be said yet."""

    reason: str


Outcome: TypeAlias = Committed | NotCommitted | Unknown


def outcome_of(place: Place, transaction_id: str, tried: int | None) -> Outcome:
    """Looks for the transaction in history.

    A version holds one transaction, so the matter is settled as soon as the version that was tried can be read. Where that version is
    not known (the question comes from another process and its number was not passed on), absence settles it only if the transaction
    file is gone, which its writer removes on certain failure, and no part of history is missing.

    Args:
        place: the table.
        transaction_id: whom to look for.
        tried: the version its writer tried to create, if known.
    """
    try:
        return _look(place, transaction_id, tried)
    except (StorageError, CorruptTable) as error:
        return Unknown(f"history cannot be read: {error}")


def _look(place: Place, transaction_id: str, tried: int | None) -> Outcome:
    announced = _announced(place, transaction_id)
    versions = place.log.versions()
    first = 1 + announced if announced is not None else 0
    for name in reversed(versions):
        if name.version < first:
            break
        file = place.log.load(name.version, name.scheme)
        try:
            uuid = place.log.transaction_of(file).uuid
        except NotFound:
            continue
        if uuid == transaction_id:
            return Committed(name.version)
    known = {name.version for name in versions}
    if tried is not None:
        if tried in known:
            return NotCommitted(f"version {tried} was made by another transaction")
        if known and tried < max(known):
            return Unknown(f"version {tried} has been cleaned up")
        return Unknown(f"version {tried} does not exist yet; a request for it may still be under way")
    if announced is not None:
        return Unknown("its transaction file is there but no version names it: its writer may still be at work, or died")
    if known and min(known) > 1:
        return Unknown(f"versions before {min(known)} have been cleaned up")
    return NotCommitted("no version was made by it, and its writer withdrew it")


def _announced(place: Place, transaction_id: str) -> int | None:
    """The read version in the name of its transaction file, if there is one."""
    for name in place.store.names(TRANSACTIONS):
        parsed = parse_transaction_name(name)
        if parsed is not None and parsed[1] == transaction_id:
            return parsed[0]
    return None

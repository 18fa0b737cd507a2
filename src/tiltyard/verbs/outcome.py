"""What became of a transaction whose commit ended without an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tiltyard.errors import CorruptTable, InvalidInput, NotFound, StorageError, UnsupportedFeature
from tiltyard.format.flags import Feature
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme, parse_transaction_name
from tiltyard.transaction.group import made_by
from tiltyard.transaction.head import read_records
from tiltyard.transaction.log import TRANSACTIONS
from tiltyard.transaction.turns import NOBODY_KNOWS
from tiltyard.transaction.verify import follows
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.arguments import version_number


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


def outcome_of(access: TableAccess, transaction_id: str, tried: int | None) -> Outcome:
    """Looks for the transaction in history. To be asked when its writer has given up or died; one still at work may yet commit.

    A version holds one transaction, so the matter is settled as soon as the version that was tried can be read. Where that version is
    not known (the question comes from another process and its number was not passed on), absence settles it only if the transaction
    file is gone, which its writer removes on certain failure, and no part of history is missing.

    Args:
        access: the table.
        transaction_id: whom to look for.
        tried: the version its writer tried to create, if known.
    """
    if not isinstance(transaction_id, str) or not transaction_id:
        raise InvalidInput(f"A transaction id is text, not {transaction_id!r}.", argument="transaction_id")
    if tried is not None:
        version_number(tried)
    try:
        return _look(access, transaction_id, tried)
    except (StorageError, CorruptTable, UnsupportedFeature, NotFound) as error:
        return Unknown(f"history cannot be read: {error}")


def _look(access: TableAccess, transaction_id: str, tried: int | None) -> Outcome:
    # The file is looked for before the versions: a commit that lands in between is then found.
    announced = _announced(access, transaction_id)
    versions = access.log.versions()
    inline_only = False
    for name in reversed(versions):
        if announced is not None and name.version <= announced:
            break
        file = access.log.peek(name.version, name.scheme)
        inline_only |= bool(file.manifest.writer_flags & Feature.NO_TRANSACTION_FILE)
        if transaction_id in _ids_of(access, file):
            return _made(access, file, name.scheme)
    known = [name.version for name in versions]
    cleaned = _cleaned_up(access, transaction_id, tried, known)
    if cleaned is not None:
        return cleaned
    if tried is not None:
        return _at(tried, known)
    if announced is not None:
        return Unknown("its transaction file is there but no version names it: its writer may still be at work, or died")
    if not known:
        return Unknown("there is no table: its creation may still be under way, or it was dropped")
    if known != list(range(1, len(known) + 1)):
        return Unknown("part of the history has been cleaned up")
    if inline_only:
        return Unknown("this table keeps no transaction files that would tell of a commit under way; pass the version that was tried")
    return NotCommitted("no version was made by it and no transaction file is left: its writer withdrew it, or the id is not of this table")


def _made(access: TableAccess, file: ManifestFile, scheme: Scheme) -> Outcome:
    """The answer for a transaction whose version is there: unless it came too late, after a cleanup had set that number free."""
    version = file.manifest.version
    try:
        after = access.log.committed(version + 1, scheme)
    except NotFound:
        return Committed(version)
    if follows(after, file.manifest, access.log.transaction_of(file).uuid) is False:
        return NotCommitted(
            f"it reused the number {version} after that version had been cleaned up; version {version + 1} does not build on it"
        )
    return Committed(version)


def _cleaned_up(access: TableAccess, transaction_id: str, tried: int | None, known: list[int]) -> Outcome | None:
    """The answer for a version that is gone, if a cleanup wrote down who had made it."""
    records = [record for record in read_records(access.store).values() if known and record.floor.version <= known[-1]]
    owners = {version: uuids for record in records for version, uuids in record.removed.items()}
    for version, uuids in owners.items():
        if transaction_id in uuids.split():
            return Committed(version)
    if tried is not None and tried in owners and tried not in known:
        return NotCommitted(f"version {tried}, since cleaned up, was made by another transaction")
    return None


def _ids_of(access: TableAccess, file: ManifestFile) -> tuple[str, ...]:
    try:
        return made_by(access.log.transaction_of(file))
    except NotFound:
        return ()  # some writers keep no transaction; ours always does


def _at(tried: int, known: list[int]) -> Outcome:
    """The answer for a transaction that is nowhere to be seen, by the one version it can have made."""
    if tried in known:
        return NotCommitted(f"version {tried} was made by another transaction")
    if known and tried < known[-1]:
        return Unknown(f"version {tried} has been cleaned up")
    if tried == NOBODY_KNOWS:
        return Unknown("another writer or a server took it over, does not answer, and may still commit it")
    return Unknown(f"version {tried} does not exist yet and a request for it may still be under way; any commit will settle it")


def _announced(access: TableAccess, transaction_id: str) -> int | None:
    """The read version in the name of its transaction file, if there is one."""
    for name in access.store.names(TRANSACTIONS):
        parsed = parse_transaction_name(name)
        if parsed is not None and parsed[1] == transaction_id:
            return parsed[0]
    return None

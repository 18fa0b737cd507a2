"""What happened to a table, version by version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from tiltyard.errors import InvalidInput, NotFound
from tiltyard.format.digests import DIGESTS, SEAL
from tiltyard.format.names import Scheme
from tiltyard.transaction.group import GROUP, GroupMember, members_of
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.transaction import LAKE_MARKS
from tiltyard.transaction.verify import PARENT
from tiltyard.verbs.engine.access import TableAccess

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One version: what was done, by whom, when, and what the table held then.

    ``operation`` and ``transaction_id`` are empty where a foreign writer kept no transaction. ``members`` are transactions of other writers
    that were committed along with this one.
    """

    version: int
    timestamp: datetime
    operation: str
    transaction_id: str
    read_version: int | None
    writer: str
    message: str
    properties: Mapping[str, str]
    rows: int
    fragments: int
    members: tuple[GroupMember, ...] = ()

    def of(self, transaction_id: str) -> HistoryEntry:
        """The entry as that of one of its members; as it is for any other id."""
        member = next((member for member in self.members if member.transaction_id == transaction_id), None)
        if member is None:
            return self
        said = {key: value for key, value in member.properties.items() if _is_authors(key)}
        return replace(
            self, transaction_id=transaction_id, read_version=member.read_version, message=member.message, properties=said, members=()
        )


def _is_authors(key: str) -> bool:
    """Whether a property of a transaction is what its author said, and not what an engine notes for itself."""
    return key not in (PARENT, SEAL, DIGESTS, GROUP) and not key.startswith(LAKE_MARKS)


def moment(timestamp_ns: int) -> datetime:
    return EPOCH + timedelta(microseconds=timestamp_ns // 1000)


def describe(log: VersionLog, version: int, scheme: Scheme) -> HistoryEntry:
    """One entry of the history."""
    file = log.peek(version, scheme)
    manifest = file.manifest
    try:
        transaction = log.transaction_of(file)
    except NotFound:
        transaction = None
    return HistoryEntry(
        version=version,
        timestamp=moment(manifest.timestamp_ns),
        operation=transaction.operation.name if transaction else "",
        transaction_id=transaction.uuid if transaction else "",
        read_version=transaction.read_version if transaction else None,
        writer=str(manifest.writer or ""),
        message=transaction.message if transaction else "",
        properties={key: value for key, value in transaction.properties.items() if _is_authors(key)} if transaction else {},
        rows=manifest.fragments.live_rows(),
        fragments=len(manifest.fragments),
        members=members_of(transaction) if transaction else (),
    )


def history(access: TableAccess, limit: int | None = None) -> Iterator[HistoryEntry]:
    """Entries, latest first."""
    found = sorted(access.log.versions(), key=lambda name: -name.version)
    for name in found if limit is None else found[: max(limit, 0)]:
        yield describe(access.log, name.version, name.scheme)


def version_at(access: TableAccess, when: datetime) -> tuple[int, Scheme]:
    """The newest version that was committed at ``when`` or before.

    Raises:
        NotFound: the table is younger, or what it was then has been cleaned up.
    """
    for name in reversed(access.log.versions()):
        # Looked through from the newest on, not halved: clocks of writers differ, so time stamps need not ascend.
        if moment(access.log.peek(name.version, name.scheme).manifest.timestamp_ns) <= when:
            return name.version, name.scheme
    raise NotFound(f"{access.store.uri} has no version from {when.isoformat()} or before.", name=when.isoformat())


def parse_moment(value: str | datetime) -> datetime:
    """A moment, or ISO 8601 text; without a zone it is local time."""
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.astimezone()
    if not isinstance(value, str):
        raise InvalidInput(f"A point in time is a datetime or text, not {value!r}.", argument="timestamp")
    try:
        return parse_moment(datetime.fromisoformat(value))
    except ValueError as error:
        raise InvalidInput(
            f"{value[:40]!r} is not a point in time.", argument="timestamp", advice="Write it like 2026-11-15T08:00:00+00:00."
        ) from error

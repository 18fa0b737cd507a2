"""Whether a version is the latest, and whether one we made came in time.

A writer that stalls before its create may find its number free again because the version that had it was cleaned up. What it creates then
lies below the head, where nobody sees it. No store tells the two apart, so a second look does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tiltyard.errors import CorruptTable, HistoryUnavailable, NotFound, OutcomeUnknown, StorageError, TiltyardError
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import HINT_PATH, Scheme, decode_hint, encode_hint, manifest_path
from tiltyard.interfaces import ObjectStore, Runtime, ask_at_once
from tiltyard.transaction.backoff import wait_before
from tiltyard.transaction.log import CreatedVersion, VersionLog
from tiltyard.transaction.new_files import is_missing, new_files
from tiltyard.transaction.operations import Restore
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import follows

REFS: Final = ("_refs/tags/", "_refs/branches/")
"""What may keep a version from being cleaned up."""

SECTION_LENGTH_BYTES: Final = 4
LOOKS: Final = 6
"""How often the second look is tried before its outcome is called unknown."""
FIRST_WAIT: Final = 0.01
"""Seconds; what the wait between two looks grows from."""


@dataclass(frozen=True, slots=True)
class HeadCheck:
    """Looks at the versions of one table, before a commit and after it."""

    log: VersionLog
    runtime: Runtime

    # ---- before ----------------------------------------------------------------------------------------------------------------

    def is_newest(self, version: int, scheme: Scheme, *, just_made: bool = False) -> bool:
        """Whether a version that is there is the latest for certain, by a few small questions; if not, a listing has to tell.

        The next one may be missing below the head where a cleanup took it and left this one, or where somebody lost it. A tag or a branch
        can bring that about, or a clock that went backwards; then the hint, which every writer renews, names a later version; or a
        cleanup of ours, which says so. Where names come in order a listing costs no more than this. Of one that was ``just_made``, by
        somebody who beat us to it, the hint may not tell yet.
        """
        try:
            if self.log.store.ordered or not version - just_made <= self._hinted() <= version:
                return False
            if self._has_refs() or read_floor(self.log.store).version > version:
                return False
            return is_missing(self.log.store, manifest_path(version + 1, scheme))
        except StorageError:
            return False

    def look(self, file: ManifestFile, scheme: Scheme) -> tuple[tuple[int, Scheme] | None, bool, Floor]:
        """The latest version, whether the one we go on from is there, and the floor: asked at once."""
        path = manifest_path(file.manifest.version, scheme)

        def is_there() -> bool:
            try:
                return self._is_there(file, path)
            except NotFound:
                return False

        found, there, floor = ask_at_once(self.log.store, (self.log.head, is_there, lambda: read_floor(self.log.store)))
        return found, there, floor

    def confirm(self, file: ManifestFile, scheme: Scheme, head: int, read_version: int) -> None:
        """Makes sure that the version we go on from is the one that is there.

        A table that was dropped and made again counts from 1 as well, and building on what we read would undo all of it. A listing
        that merely lags behind is told apart from that here.

        Raises:
            HistoryUnavailable: it is gone, or another one has its number.
        """
        version = file.manifest.version
        try:
            same = self._is_there(file, manifest_path(version, scheme))
        except NotFound:
            same = None
        if not same:
            what = "is gone" if same is None else "is another one now"
            raise HistoryUnavailable(
                f"Version {version} of {self.log.store.uri} {what} (head {head}): the table was replaced, rolled back or cleaned up.",
                read_version=read_version,
                missing=[version],
                head=head or None,
            )

    def _is_there(self, file: ManifestFile, path: str) -> bool:
        """Whether a version's file is the one we know: its transaction, which no other version has, stands where it stood."""
        if file.transaction is None or file.transaction_at is None:
            return file.message.joined() in self.log.store.get(path)
        start = file.transaction_at + SECTION_LENGTH_BYTES
        return self.log.store.get_range(path, start, len(file.transaction)) == file.transaction

    def check_ground(self, transaction: Transaction, scheme: Scheme, *, oldest: int | None = None, floor: Floor | None = None) -> None:
        """Makes sure, right before the create, that no cleanup has counted on this transaction not to be committed.

        A cleanup that finds the transaction file holds what it needs; one that came before has left its mark. So this has to come after
        the file was written, unless a look a moment ago told the ``floor``. ``oldest`` is the version that the first of its members was
        built on.

        Raises:
            HistoryUnavailable: what it was built on has long been cleaned up, or the version it restores is gone.
        """
        refused = (read_floor(self.log.store) if floor is None else floor).refused
        read_version = transaction.read_version if oldest is None else min(transaction.read_version, oldest)
        if refused > read_version:
            head = self.log.head()
            # A table made anew where another one was counts from 1 again; records of the other one mean nothing to it.
            if head is not None and head[0] >= refused:
                raise self._gone(read_version, transaction, head[0])
        operation = transaction.operation
        if isinstance(operation, Restore) and self._is_gone(operation.version, scheme):
            raise self._gone(operation.version, transaction, None)

    def _gone(self, version: int, transaction: Transaction, head: int | None) -> HistoryUnavailable:
        return HistoryUnavailable(
            f"Version {version} of {self.log.store.uri} was cleaned up; {transaction.operation.name} needs it.",
            read_version=transaction.read_version,
            missing=[version],
            head=head,
        )

    # ---- after -----------------------------------------------------------------------------------------------------------------

    def check_in_time(self, transaction: Transaction, base: Manifest, made: Manifest, scheme: Scheme, *, again: bool = False) -> None:
        """Makes sure that the version we created is the next one, not an old number that a cleanup had set free.

        A cleanup that took that number's version took the one below it, too, unless somebody keeps that one by a tag or a branch; so in
        nearly every commit this costs a look at a few names.

        Args:
            transaction: ours.
            base: the version it was put on.
            made: the version it made.
            scheme: how versions are named.
            again: whether this may be the second time that we created it: then a number that was free says nothing about the first.

        Raises:
            HistoryUnavailable: we were late; what we created is gone again.
            OutcomeUnknown: nobody can say whether we were.
        """
        doubt: TiltyardError | None = None
        for look in range(LOOKS):
            if look:
                self.runtime.clock.sleep(wait_before(look, FIRST_WAIT, self.runtime))
            try:
                in_time, head = self._look(transaction, base, made, scheme, again)
            except (StorageError, CorruptTable) as error:
                doubt = error
                continue
            if in_time:
                return
            if in_time is None:
                break
            with suppress(StorageError, CorruptTable):
                if self._is_ours(made.version, transaction, scheme):
                    self.log.store.delete(manifest_path(made.version, scheme))
            raise HistoryUnavailable(
                f"Version {made.version} existed and was cleaned up before this commit tried to create it; the head is {head}.",
                read_version=transaction.read_version,
                missing=[made.version],
                head=head,
            )
        why = (
            f"later versions cannot be read: {doubt}"
            if doubt
            else "later versions do not show whether they build on it; perhaps a cleanup had freed its number"
        )
        raise OutcomeUnknown(
            f"Version {made.version} was created, but {why}.",
            transaction_id=transaction.uuid,
            version=made.version,
            uri=self.log.store.uri,
        ) from doubt

    def _look(self, transaction: Transaction, base: Manifest, made: Manifest, scheme: Scheme, again: bool) -> tuple[bool | None, int]:
        """Whether what we made is part of the history, None if nobody can say; and the head."""
        version = made.version
        head = self.log.head() if self._may_be_late(version, scheme) else None
        if head is None or head[0] <= version:
            return True, version
        after = self._committed(version + 1, scheme)
        told = None if after is None else follows(after, made, transaction.uuid)
        if told is None and (owner := owner_of(self.log.store, version)) is not None:
            told = owner == transaction.uuid
        if told is not None:
            return told, head[0]
        newest = self._committed(head[0], scheme)
        if newest is not None and _shows(newest, transaction, base):
            return True, head[0]
        if after is not None or again or not self._is_ours(version, transaction, scheme):
            return None, head[0]
        return False, head[0]  # the next one was cleaned up, and a cleanup does not leave the older of two

    def _committed(self, version: int, scheme: Scheme) -> CreatedVersion | None:
        try:
            return self.log.committed(version, scheme)
        except NotFound:
            return None

    def _is_ours(self, version: int, transaction: Transaction, scheme: Scheme) -> bool:
        """Whether what is under a number is our work: after a cleanup it may be that of a writer who was later still."""
        there = self._committed(version, scheme)
        return there is not None and there.transaction.uuid == transaction.uuid

    def _is_gone(self, version: int, scheme: Scheme) -> bool:
        try:
            self.log.store.head(manifest_path(version, scheme))
        except NotFound:
            return True
        return False

    def _may_be_late(self, version: int, scheme: Scheme) -> bool:
        if self.log.store.ordered:
            return True  # a listing gives its first name at once, so there is no cheaper question
        if self._has_refs() or self._hinted() >= version or self._is_gone(version - 1, scheme):
            return True
        return read_floor(self.log.store).version > version

    def _has_refs(self) -> bool:
        return any(True for prefix in REFS for _ in self.log.store.names(prefix))

    def _hinted(self) -> int:
        """A version that is there, or was; 0 where nobody left a hint."""
        try:
            return decode_hint(self.log.store.get(HINT_PATH)) or 0
        except NotFound:
            return 0

    def leave_hint(self, version: int) -> None:
        """Says which version is the latest, where a store does not list in order. Advice: if it cannot be written, nothing is lost."""
        if not self.log.store.ordered:
            with suppress(StorageError):
                self.log.store.put(HINT_PATH, encode_hint(version))


def _shows(newest: CreatedVersion, transaction: Transaction, base: Manifest) -> bool:
    """Whether a version names a file that our operation brought along."""
    names = (path.rpartition("/")[2] for path in new_files(transaction.operation, base))
    return any(name and name.encode() in newest.file.message.body for name in names)


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
        removed: versions that went, and the transaction that had made each; of a group all, the leader's first, with spaces between.
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
    return Floor(max((floor.version for floor in found), default=0), max((floor.refused for floor in found), default=0))


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
    """The transaction that had made a version which a cleanup removed, of a group its leader's; None where nobody wrote that down."""
    owners = {record.removed[version].partition(" ")[0] for record in read_records(store).values() if version in record.removed}
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

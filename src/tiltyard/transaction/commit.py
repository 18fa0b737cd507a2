"""The commit loop: from an operation at a read version to a new version, or to a typed reason why not.

One step decides, the creation of the next version's file; all before it can be thrown away. The loop therefore ends in exactly one of
three ways: the version is ours; it is certainly not (and our transaction file is removed); or the store left it open, and then
``OutcomeUnknown`` says so and nothing is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tiltyard.errors import (
    AlreadyExists,
    ContentionError,
    CorruptTable,
    HistoryUnavailable,
    IncompatibleConflict,
    NotFound,
    OutcomeUnknown,
    RetryableConflict,
    StorageError,
    TiltyardError,
    Winner,
)
from tiltyard.format.flags import Feature, check_writable
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile, encode_manifest_file
from tiltyard.format.names import Scheme
from tiltyard.format.values import DataFragment, WriterVersion
from tiltyard.interfaces import CommitHandler, Runtime
from tiltyard.transaction.apply import Creation, Stamp, apply, create
from tiltyard.transaction.backoff import RetryPolicy, wait_before
from tiltyard.transaction.log import TRANSACTIONS, Committed, VersionLog
from tiltyard.transaction.operations import Append, Operation, Overwrite
from tiltyard.transaction.rules import Outcome, decide
from tiltyard.transaction.transaction import Transaction

logger = logging.getLogger("tiltyard.commit")

READ_BACKS: Final = 3
"""How often we look again after an answer that leaves the outcome open."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of a commit.

    Attributes:
        version: the version it made.
        operation: its kind, for example ``Append``.
        transaction_id: its uuid.
        read_version: the version it was built on.
        attempts: how many times the creation of a version was tried.
        rebased_over: commits that came in between, oldest first.
        seconds: from the start of the commit loop; data files were written before.
    """

    version: int
    operation: str
    transaction_id: str
    read_version: int
    attempts: int
    rebased_over: tuple[Winner, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class _Race:
    """Where a commit stands: what it has been checked against, and what it lost to."""

    transaction: Transaction
    head: ManifestFile
    scheme: Scheme
    started: float
    attempts: int = 0
    announced: bool = False
    rebased_over: list[Winner] = field(default_factory=list)
    lost_to: list[Winner] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Committer:
    """Everything a commit needs beside the transaction itself."""

    log: VersionLog
    handler: CommitHandler
    runtime: Runtime
    writer: WriterVersion

    def commit(
        self, transaction: Transaction, read: ManifestFile, scheme: Scheme, policy: RetryPolicy
    ) -> tuple[CommitResult, ManifestFile]:
        """Commits an operation that was built on the version ``read``.

        Raises:
            ConflictError: a commit in between does not go together with this one.
            ContentionError: the race for a version was lost too often.
            HistoryUnavailable: a version in between cannot be read.
            OutcomeUnknown: the store left open whether the commit was applied.
            StorageError: the store failed before anything was committed.
        """
        race = _Race(transaction, read, scheme, self.runtime.clock.monotonic())
        try:
            return self._run(race, policy)
        except TiltyardError as error:
            if not isinstance(error, OutcomeUnknown):
                self._withdraw(race)
            logger.info("not committed", extra=_facts(race, outcome=error.kind))
            raise

    def _run(self, race: _Race, policy: RetryPolicy) -> tuple[CommitResult, ManifestFile]:
        clock = self.runtime.clock
        self.log.store.sync(new_files(race.transaction.operation))
        attempt_seconds: float | None = None
        while True:
            begun = clock.monotonic()
            failure: StorageError | None = None
            try:
                done = self._attempt(race)
                if done is not None:
                    return self._result(race, done)
            except StorageError as error:
                if not error.transient:
                    raise
                failure = error
            attempt_seconds = attempt_seconds or clock.monotonic() - begun
            elapsed = clock.monotonic() - race.started
            if race.attempts > policy.max_retries or (policy.deadline is not None and elapsed >= policy.deadline):
                raise failure or self._contention(race, elapsed)
            clock.sleep(wait_before(race.attempts - 1, attempt_seconds, self.runtime))

    def _attempt(self, race: _Race) -> ManifestFile | None:
        """One try: catch up with the head, build on it, create. None when somebody else took the version."""
        race.attempts += 1
        mine = self._catch_up(race)
        if mine is not None:
            return mine
        base = race.head.manifest
        check_writable(base.reader_flags, base.writer_flags)
        inline = race.transaction.to_bytes()
        manifest = apply(race.transaction.operation, base, self._stamp(race.transaction, base))
        self._announce(race, manifest, inline)
        data, made = encode_manifest_file(manifest, inline, race.head)
        winner = self._create(race.transaction, manifest.version, race.scheme, data)
        if winner is None:
            return made
        race.lost_to.append(winner.as_winner())
        logger.info("lost a race", extra=_facts(race, version=manifest.version, winner=winner.transaction.uuid))
        return None

    def _catch_up(self, race: _Race) -> ManifestFile | None:
        """Checks all versions since the one last checked. Gives our own where it turns out to be among them already."""
        checked = race.head.manifest.version
        found = self.log.head()
        if found is None or found[0] < checked:
            raise HistoryUnavailable(
                f"The table was at version {checked} and is now at {found[0] if found else 'none'}: it was replaced or cut back.",
                read_version=race.transaction.read_version,
                head=found[0] if found else None,
            )
        for version in range(checked + 1, found[0] + 1):
            theirs = self._in_window(version, found[0], race)
            if theirs.transaction.uuid == race.transaction.uuid:
                return theirs.file
            _meet(race, theirs)
            race.head = theirs.file
            race.rebased_over.append(theirs.as_winner())
        return None

    def _in_window(self, version: int, head: int, race: _Race) -> Committed:
        try:
            return self.log.committed(version, race.scheme)
        except (NotFound, CorruptTable) as error:
            raise _unreadable(version, head, race, str(error)) from error
        except StorageError as error:
            if error.transient:
                raise
            raise _unreadable(version, head, race, str(error)) from error

    def _stamp(self, transaction: Transaction, base: Manifest | None) -> Stamp:
        now = self.runtime.clock.now()
        nanos = int(now.timestamp()) * 1_000_000_000 + now.microsecond * 1_000
        inline_only = base is not None and base.writer_flags & Feature.NO_TRANSACTION_FILE
        return Stamp(nanos, self.writer, "" if inline_only else transaction.file_name)

    def _announce(self, race: _Race, manifest: Manifest, inline: bytes) -> None:
        """Writes the transaction file, once however often the race is run."""
        if manifest.transaction_file and not race.announced:
            race.announced = True
            self.log.store.put(TRANSACTIONS + manifest.transaction_file, inline)

    def _withdraw(self, race: _Race) -> None:
        """Removes our transaction file after a certain failure. If that fails too, cleanup finds it."""
        if race.announced:
            with suppress(StorageError):
                self.log.store.delete(TRANSACTIONS + race.transaction.file_name)

    def _create(self, transaction: Transaction, version: int, scheme: Scheme, data: bytes) -> Committed | None:
        """Creates the version's file. None when it is ours, otherwise who has it.

        A request that failed without saying whether it was applied is sent again as it was: under one name, the same bytes or
        somebody else's can land, never both.
        """
        path = self.log.path(version, scheme)
        last: Exception | None = None
        for _ in range(READ_BACKS):
            try:
                self.handler.create(self.log.store, path, data)
                return None
            except AlreadyExists as error:
                last = error
            except StorageError as error:
                if not error.maybe_applied:
                    if last is None:
                        raise
                    break  # an earlier request may still be under way
                last = error
            try:
                winner = self.log.committed(version, scheme)
            except NotFound as error:
                last = error
                continue
            except CorruptTable as error:
                if self._complete(path, data, transaction):
                    return None
                last = error
                break
            except StorageError as error:
                last = error
                continue
            return None if winner.transaction.uuid == transaction.uuid else winner
        raise OutcomeUnknown(
            f"The store left open whether version {version} of {self.log.store.uri} is ours ({last}).",
            transaction_id=transaction.uuid,
            version=version,
            uri=self.log.store.uri,
        ) from last

    def _complete(self, path: str, data: bytes, transaction: Transaction) -> bool:
        """Writes the rest of a file that the store tore off, if what is there can only be the beginning of ours."""
        try:
            torn = self.log.store.get(path)
            if not data.startswith(torn) or transaction.uuid.encode() not in torn:
                return False
            self.log.store.put(path, data)
        except (StorageError, NotFound):
            return False
        return True

    def _contention(self, race: _Race, seconds: float) -> ContentionError:
        last = f", last to {race.lost_to[-1]}" if race.lost_to else ""
        return ContentionError(
            f"{race.transaction.operation.name} on {self.log.store.uri} lost the race for a version {race.attempts} times{last}.",
            operation=race.transaction.operation.name,
            attempts=race.attempts,
            winners=race.lost_to,
            seconds=seconds,
        )

    def _result(self, race: _Race, made: ManifestFile) -> tuple[CommitResult, ManifestFile]:
        self.log.remember(made)
        result = CommitResult(
            version=made.manifest.version,
            operation=race.transaction.operation.name,
            transaction_id=race.transaction.uuid,
            read_version=race.transaction.read_version,
            attempts=race.attempts,
            rebased_over=tuple(race.rebased_over),
            seconds=self.runtime.clock.monotonic() - race.started,
        )
        logger.debug("committed", extra=_facts(race, version=result.version, seconds=result.seconds))
        return result, made

    def create_table(self, transaction: Transaction, creation: Creation, scheme: Scheme) -> tuple[CommitResult, ManifestFile]:
        """Commits the first version of a table.

        Raises:
            AlreadyExists: there is a table, or somebody was faster.
            OutcomeUnknown: the store left open whether the table was made.
        """
        operation = transaction.operation
        assert isinstance(operation, Overwrite)
        manifest = create(operation, creation, self._stamp(transaction, None))
        inline = transaction.to_bytes()
        data, made = encode_manifest_file(manifest, inline)
        race = _Race(transaction, made, scheme, self.runtime.clock.monotonic(), attempts=1)
        try:
            if self.log.head() is not None:
                raise _taken(self.log.store.uri)
            self.log.store.sync(new_files(operation))
            self._announce(race, manifest, inline)
            if self._create(transaction, manifest.version, scheme, data) is not None:
                raise _taken(self.log.store.uri)
        except (AlreadyExists, StorageError):
            self._withdraw(race)
            raise
        return self._result(race, made)


def _meet(race: _Race, theirs: Committed) -> None:
    """Raises the conflict between our operation and one that was committed, if there is one."""
    mine = race.transaction
    verdict = decide(mine.operation, theirs.transaction.operation)
    if verdict.outcome is Outcome.COMPATIBLE:
        return
    winner = theirs.as_winner()
    kind = RetryableConflict if verdict.outcome is Outcome.RETRY else IncompatibleConflict
    shared = f" ({', '.join(verdict.overlap[:3])})" if verdict.overlap else ""
    raise kind(
        f"{mine.operation.name} read version {mine.read_version}, then came {winner}: {verdict.reason}{shared}.",
        operation=mine.operation.name,
        read_version=mine.read_version,
        winners=[winner],
        sample=verdict.overlap,
    )


def _unreadable(version: int, head: int, race: _Race, why: str) -> HistoryUnavailable:
    return HistoryUnavailable(
        f"Version {version}, between read version {race.transaction.read_version} and head {head}, cannot be read: {why}",
        read_version=race.transaction.read_version,
        missing=[version],
        head=head,
    )


def _taken(uri: str) -> AlreadyExists:
    return AlreadyExists(f"There is a table at {uri} already.", name=uri, advice="Open it, or use overwrite to replace its rows.")


def new_files(operation: Operation) -> list[str]:
    """Files a commit brings along, below the table's root. What lies in another base is the business of whoever wrote it there."""
    if isinstance(operation, Append | Overwrite):
        return list(_data_files(operation.fragments))
    return []


def _data_files(fragments: Iterable[DataFragment]) -> Iterable[str]:
    return (f"data/{file.path}" for fragment in fragments for file in fragment.files if file.base_id is None)


def _facts(race: _Race, **more: object) -> dict[str, object]:
    facts = {
        "operation": race.transaction.operation.name,
        "transaction_id": race.transaction.uuid,
        "read_version": race.transaction.read_version,
        "attempts": race.attempts,
        **more,
    }
    return {"tiltyard": facts}

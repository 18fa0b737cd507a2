"""The commit loop: from an operation at a read version to a new version, or to a typed reason why not.

One step decides, the creation of the next version's file; all before it can be thrown away. The loop therefore ends in exactly one of
three ways: the version is ours; it is certainly not (and our transaction file is removed); or the store left it open, and then
``OutcomeUnknown`` says so and nothing is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tiltyard.errors import (
    AlreadyExists,
    ContentionError,
    CorruptTable,
    HistoryUnavailable,
    NotFound,
    OutcomeUnknown,
    StorageError,
    TiltyardError,
    UnsupportedFeature,
    Winner,
)
from tiltyard.format.flags import Feature, check_writable
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile, encode_manifest_file
from tiltyard.format.names import Scheme, parse_transaction_name
from tiltyard.format.values import WriterVersion
from tiltyard.interfaces import CommitHandler, Runtime
from tiltyard.transaction.apply import Creation, Stamp, apply, create
from tiltyard.transaction.backoff import RetryPolicy, wait_before
from tiltyard.transaction.log import TRANSACTIONS, Committed, VersionLog
from tiltyard.transaction.meeting import check_field_ids, meet, meet_schema
from tiltyard.transaction.operations import Append, Operation, Overwrite
from tiltyard.transaction.transaction import Transaction

logger = logging.getLogger("tiltyard.commit")

SECTION_LENGTH_BYTES: Final = 4
READ_BACKS: Final = 3
"""How often we look again after an answer that leaves the outcome open."""

REFS: Final = ("_refs/tags/", "_refs/branches/")
"""What may keep a version from being cleaned up."""


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
    confirmed: bool = False
    """Whether the version we read was found to be the one that is there."""
    newest: int = 0
    """The highest version we know of, whatever a listing says."""
    synced: bool = False
    announced: bool = False
    """Whether a transaction file of ours may be there, so that it must be withdrawn."""
    written: bool = False
    """Whether it is there as a whole."""
    dropped_fields: frozenset[int] = frozenset()
    rebased_over: list[Winner] = field(default_factory=list)
    lost_to: list[Winner] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Committer:
    """Everything a commit needs beside the transaction itself."""

    log: VersionLog
    handler: CommitHandler
    runtime: Runtime
    writer: WriterVersion
    vet: Callable[[ManifestFile], object] = lambda _: None
    """Raises for a version that must not be built upon, before anything is committed."""

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
        if not isinstance(transaction.operation, Append | Overwrite):
            # The others also bring deletion vectors and indices along, which the loop does not carry over other commits yet.
            name = transaction.operation.name
            raise UnsupportedFeature(f"This release cannot commit {name}.", feature=name, writing=True)
        race = _Race(transaction, read, scheme, self.runtime.clock.monotonic())
        with self._withdrawing(race):
            return self._run(race, policy, self._attempt)

    @contextmanager
    def _withdrawing(self, race: _Race) -> Iterator[None]:
        """After a failure that leaves no doubt, removes our transaction file. If that fails too, cleanup finds it."""
        try:
            yield
        except TiltyardError as error:
            if race.announced and not isinstance(error, OutcomeUnknown):
                with suppress(StorageError):
                    self.log.store.delete(TRANSACTIONS + race.transaction.file_name)
            logger.info("not committed", extra=_facts(race, outcome=error.kind))
            raise

    def _run(self, race: _Race, policy: RetryPolicy, attempt: Callable[[_Race], ManifestFile | None]) -> tuple[CommitResult, ManifestFile]:
        clock = self.runtime.clock
        attempt_seconds: float | None = None
        while True:
            begun = clock.monotonic()
            failure: StorageError | None = None
            race.attempts += 1
            try:
                done = attempt(race)
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
        self._sync(race)
        mine = self._catch_up(race)
        if mine is not None:
            return mine
        base = race.head.manifest
        check_writable(base.reader_flags, base.writer_flags)
        check_field_ids(race.transaction, base, race.rebased_over)
        inline = race.transaction.to_bytes()
        manifest = apply(race.transaction.operation, base, self._stamp(race.transaction, base))
        self._announce(race, manifest, inline)
        data, made = encode_manifest_file(manifest, inline, race.head)
        created = self._create(race.transaction, manifest.version, race.scheme, data)
        if not isinstance(created, Winner):
            self._check_in_time(race, manifest.version)
            return created or made
        race.newest = manifest.version
        race.lost_to.append(created)
        logger.info("lost a race", extra=_facts(race, version=manifest.version, winner=created.transaction_id))
        return None

    def _check_in_time(self, race: _Race, version: int) -> None:
        """Makes sure that the version we created is the next one, not an old number that a cleanup had set free.

        A writer that stalls before its create may find its number free again because the version that had it was cleaned up; what it
        creates then lies below the head, where nobody sees it. A cleanup that took that version took the one below it, too, unless
        somebody keeps that one by a tag or a branch; so in nearly every commit this costs a look at one name.
        """
        try:
            if not self._may_be_late(version, race.scheme):
                return
            head = self.log.head()
            if head is None or head[0] <= version:
                return
            try:
                after = self.log.load(version + 1, race.scheme)
            except NotFound:
                after = None
        except (StorageError, CorruptTable):
            return  # it is there; only this second look failed
        if after is not None:
            if any(path.encode() in after.message.body for path in new_files(race.transaction.operation, prefix="")):
                return
            raise OutcomeUnknown(
                f"Version {version} was created, but {version + 1} does not build on it; perhaps a cleanup had set its number free.",
                transaction_id=race.transaction.uuid,
                version=version,
                uri=self.log.store.uri,
            )
        with suppress(StorageError):
            self.log.store.delete(self.log.path(version, race.scheme))
        raise HistoryUnavailable(
            f"Version {version} had been there and was cleaned up while we were about to create it; the head is {head[0]}.",
            read_version=race.transaction.read_version,
            missing=[version],
            head=head[0],
        )

    def _may_be_late(self, version: int, scheme: Scheme) -> bool:
        store = self.log.store
        if store.ordered:
            return True  # a listing gives its first name at once, so there is no cheaper question
        if any(True for prefix in REFS for _ in store.names(prefix)):
            return True
        try:
            store.head(self.log.path(version - 1, scheme))
        except NotFound:
            return True
        return False

    def _sync(self, race: _Race) -> None:
        """The data files reach the disk before anything names them, once however often the race is run."""
        if not race.synced:
            self.log.store.sync(new_files(race.transaction.operation))
            race.synced = True

    def _catch_up(self, race: _Race) -> ManifestFile | None:
        """Checks all versions since the one last checked. Gives our own where it turns out to be among them already."""
        found = self.log.head()
        if found is not None:
            race.scheme = found[1]  # names may have been migrated since we opened the table
        head = max(found[0] if found else 0, race.newest)
        checked = race.head.manifest.version
        if not race.confirmed or head < checked:
            self._confirm(race, head)
        for version in range(checked + 1, head + 1):
            theirs = self._in_window(version, head, race)
            if theirs.transaction.uuid == race.transaction.uuid:
                return theirs.file
            meet(race.transaction, theirs)
            race.dropped_fields |= meet_schema(race.transaction, race.head.manifest.fields, theirs, race.dropped_fields)
            race.head = theirs.file
            race.rebased_over.append(theirs.as_winner())
        return None

    def _confirm(self, race: _Race, head: int) -> None:
        """Makes sure that the version we go on from is the one that is there.

        A table that was dropped and made again counts from 1 as well, and building on what we read would undo all of it. A listing
        that merely lags behind is told apart from that here.
        """
        version = race.head.manifest.version
        try:
            same = self._is_there(race.head, self.log.path(version, race.scheme))
        except NotFound:
            same = None
        if not same:
            what = "is gone" if same is None else "is another one now"
            raise HistoryUnavailable(
                f"Version {version} of {self.log.store.uri} {what} (head {head}): the table was replaced, cut back or cleaned up.",
                read_version=race.transaction.read_version,
                missing=[version],
                head=head or None,
            )
        race.confirmed = True

    def _is_there(self, file: ManifestFile, path: str) -> bool:
        """Whether a version's file is the one we know: its transaction, which no other version has, stands where it stood."""
        if file.transaction is None or file.transaction_at is None:
            return file.message.joined() in self.log.store.get(path)
        start = file.transaction_at + SECTION_LENGTH_BYTES
        return self.log.store.get_range(path, start, len(file.transaction)) == file.transaction

    def _in_window(self, version: int, head: int, race: _Race) -> Committed:
        try:
            theirs = self.log.committed(version, race.scheme)
        except (NotFound, CorruptTable) as error:
            raise _unreadable(version, head, race, str(error)) from error
        except StorageError as error:
            if error.transient:
                raise
            raise _unreadable(version, head, race, str(error)) from error
        self.vet(theirs.file)
        return theirs

    def _stamp(self, transaction: Transaction, base: Manifest | None) -> Stamp:
        now = self.runtime.clock.now()
        nanos = int(now.timestamp()) * 1_000_000_000 + now.microsecond * 1_000
        inline_only = base is not None and base.writer_flags & Feature.NO_TRANSACTION_FILE
        return Stamp(nanos, self.writer, "" if inline_only else transaction.file_name)

    def _announce(self, race: _Race, manifest: Manifest, inline: bytes) -> None:
        """Writes the transaction file, once however often the race is run."""
        if manifest.transaction_file and not race.written:
            race.announced = True
            self.log.store.put(TRANSACTIONS + manifest.transaction_file, inline)
            race.written = True

    def _create(self, transaction: Transaction, version: int, scheme: Scheme, data: bytes) -> Winner | ManifestFile | None:
        """Creates the version's file. None when that is done, the file if it proved to be ours already, otherwise who has it.

        A request that failed without saying whether it was applied is sent again as it was: under one name, the same bytes or
        somebody else's can land, never both.
        """
        path = self.log.path(version, scheme)
        doubt: TiltyardError | None = None
        unsynced = False
        for _ in range(READ_BACKS):
            try:
                self.handler.create(self.log.store, path, data)
                return None
            except AlreadyExists as error:
                doubt = error
            except StorageError as error:
                if not error.maybe_applied and doubt is None:
                    raise
                doubt = error  # even if this one failed for certain, one before it may still be under way
                unsynced |= error.unsynced
            try:
                holder = self._holder(transaction, version, scheme)
            except (NotFound, StorageError) as error:
                doubt = error
                continue
            except CorruptTable as error:
                if self._complete(path, data, transaction):
                    return None
                doubt = error
                break
            if not unsynced or isinstance(holder, Winner):
                return holder
            try:
                self.log.store.sync([path])  # ours, but not yet safe from a power loss
            except StorageError as error:
                doubt = error  # a flush that failed once cannot be believed later
                break
            return holder
        raise OutcomeUnknown(
            f"The store left open whether version {version} of {self.log.store.uri} is ours ({doubt}).",
            transaction_id=transaction.uuid,
            version=version,
            uri=self.log.store.uri,
        ) from doubt

    def _holder(self, transaction: Transaction, version: int, scheme: Scheme) -> Winner | ManifestFile:
        """Who made a version that is there; its file if that was us."""
        file = self.log.load(version, scheme)
        if file.transaction is None:
            # Not ours, which always has its transaction inside; what it was, catching up will tell.
            named = parse_transaction_name(file.manifest.transaction_file)
            return Winner(version, named[1] if named else "", "", str(file.manifest.writer or ""))
        theirs = Committed(file, self.log.transaction_of(file))
        return file if theirs.transaction.uuid == transaction.uuid else theirs.as_winner()

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
        race = _Race(transaction, made, scheme, self.runtime.clock.monotonic())

        def attempt(race: _Race) -> ManifestFile:
            if self.log.head() is not None:
                raise AlreadyExists.table(self.log.store.uri)
            self._sync(race)
            self._announce(race, manifest, inline)
            created = self._create(transaction, manifest.version, scheme, data)
            if isinstance(created, Winner):
                raise AlreadyExists.table(self.log.store.uri)
            self._check_alone(manifest.version, scheme)
            return created or made

        with self._withdrawing(race):
            return self._run(race, RetryPolicy(), attempt)

    def _check_alone(self, version: int, scheme: Scheme) -> None:
        """Two creators that name their manifests differently do not meet at one name; the one who sees both gives way."""
        try:
            self.log.head()
        except StorageError:
            return  # the table is there; only this second look failed
        except CorruptTable:
            self.log.store.delete(self.log.path(version, scheme))
            raise AlreadyExists.table(self.log.store.uri) from None


def _unreadable(version: int, head: int, race: _Race, why: str) -> HistoryUnavailable:
    return HistoryUnavailable(
        f"Version {version}, between read version {race.transaction.read_version} and head {head}, cannot be read: {why}",
        read_version=race.transaction.read_version,
        missing=[version],
        head=head,
    )


def new_files(operation: Operation, prefix: str = "data/") -> list[str]:
    """Files a commit brings along, below the table's root. What lies in another base is the business of whoever wrote it there."""
    if isinstance(operation, Append | Overwrite):
        return [f"{prefix}{file.path}" for fragment in operation.fragments for file in fragment.files if file.base_id is None]
    return []


def _facts(race: _Race, **more: object) -> dict[str, object]:
    facts = {
        "operation": race.transaction.operation.name,
        "transaction_id": race.transaction.uuid,
        "read_version": race.transaction.read_version,
        "attempts": race.attempts,
        **more,
    }
    return {"tiltyard": facts}

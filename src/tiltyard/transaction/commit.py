"""The commit loop: from an operation at a read version to a new version, or to a typed reason why not.

One step decides, the creation of the next version's file; all before it can be thrown away. The loop therefore ends in exactly one of
three ways: the version is ours; it is certainly not (and what we wrote for it is removed); or the store left it open, and then
``OutcomeUnknown`` says so and nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pyroaring import BitMap

from tiltyard.errors import CorruptTable, NotFound, OutcomeUnknown, RetryableConflict, StorageError, TiltyardError, complete
from tiltyard.format.flags import Feature
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile, encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.values import BasePath, IndexMetadata, WriterVersion
from tiltyard.interfaces import CommitHandler, CommitQueue, ObjectStore, Runtime
from tiltyard.transaction import observers
from tiltyard.transaction.apply.next_manifest import Stamp, apply
from tiltyard.transaction.backoff import LONGEST_WAIT, RetryPolicy, wait_before
from tiltyard.transaction.deletion_vectors import DeletionVectors, base_out_of_reach
from tiltyard.transaction.first_version import create_first
from tiltyard.transaction.group import MOST_MEMBERS, made_by
from tiltyard.transaction.head import HeadCheck
from tiltyard.transaction.joint_delete import for_all
from tiltyard.transaction.key_filter import WrittenKeys
from tiltyard.transaction.log import TRANSACTIONS, CreatedVersion, Landing, VersionLog, to_restore
from tiltyard.transaction.looks import Look, Looks
from tiltyard.transaction.new_files import LOOK_AFTER, NO_DIGESTS, Digests, Taken, check_there, new_files
from tiltyard.transaction.operations import Append, Delete, KeyExistenceFilter
from tiltyard.transaction.pending_rows import PendingRows, remove_written, write_rows
from tiltyard.transaction.race import CommitResult, NextVersion, Race, RecordedCommit
from tiltyard.transaction.rebaser import Rebaser
from tiltyard.transaction.recent import RecentVersions
from tiltyard.transaction.resolve import Window
from tiltyard.transaction.system_indices import stamped_reuse
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.turns import Turns, answer, in_doubt, remove_left_over, settle
from tiltyard.transaction.verify import check_base, fits, marks_in, meet_schema, to_be_sealed

TICK_NS: Final = 1_000
"""What a Python datetime can tell apart."""
NO_LOOKS: Final = Looks(0.0)
NONE_RECENT: Final = RecentVersions()  # of a table without a queue: nobody notes or asks for any
LOOKS: Final = 10
"""How often an attempt looks for versions that came while it went over those before."""


@dataclass(frozen=True, slots=True)
class Committer:
    """Everything a commit needs beside the transaction itself."""

    log: VersionLog
    handler: CommitHandler
    runtime: Runtime
    writer: WriterVersion
    vet: Callable[[ManifestFile], object] = lambda _: None
    """Raises for a version that must not be built upon, before anything is committed."""
    open_base: Callable[[BasePath], ObjectStore] = base_out_of_reach
    """Opens the store of a base, for deletion files that lie there."""
    stamp: Callable[[Transaction], Transaction] | None = None
    """Adds what every commit of this committer says of itself."""
    digests: Digests = NO_DIGESTS
    """Takes the digests of new files, which the transaction keeps."""
    queue: CommitQueue | None = None
    """Where writers of this table wait for their turn."""
    look_seconds: float = 0.0
    """For so long a look at the table is good; 0 for a look in each commit."""
    recorded: list[RecordedCommit] | None = None
    """Takes down each commit, for a transaction that may have to make it again; None where nobody needs that."""
    recent: RecentVersions = field(init=False)
    looks: Looks = field(init=False)

    def __post_init__(self) -> None:
        shared: dict[str, Any] = getattr(self.queue, "shared", {})  # by all who are in a queue of this process
        fresh = RecentVersions(keeps=hasattr(self.queue, "shared")) if self.queue is not None else NONE_RECENT
        object.__setattr__(self, "recent", shared.get("recent") or fresh)
        object.__setattr__(self, "looks", shared.get("looks") or (Looks(self.look_seconds) if self.look_seconds else NO_LOOKS))
        shared.update(recent=self.recent, looks=self.looks)

    @property
    def landing(self) -> Landing:
        return Landing(self.log, self.handler)

    @property
    def head_check(self) -> HeadCheck:
        return HeadCheck(self.log, self.runtime)

    def commit(
        self,
        transaction: Transaction,
        read: ManifestFile,
        scheme: Scheme,
        policy: RetryPolicy,
        *,
        keys: WrittenKeys | KeyExistenceFilter | None = None,
        reuse: IndexMetadata | None = None,
        rows: Mapping[int, BitMap] | None = None,
        counts: Mapping[str, int] | None = None,
        unverified: bool = False,
        unchanged: bool = False,
        pending: PendingRows | None = None,
    ) -> tuple[CommitResult, ManifestFile]:
        """Commits an operation that was built on the version ``read``.

        Args:
            transaction: who, what and when.
            read: the version it was built on.
            scheme: how versions are named.
            policy: how often and how long to try.
            keys: keys it writes that were not there, to be compared with those of rows that came since; a filter does for an Append.
            reuse: for a Rewrite, the entry that lets other indices follow later. It has no place in a transaction.
            rows: for a Delete or Update, the rows it takes from each fragment, where the caller knows them.
            counts: for the result, how many rows the verb changed.
            unverified: whether others made the files: their deletion files are read before they are believed, and no digests are taken.
            unchanged: whether rows and columns must be those of ``read`` still, whatever the rules would let pass.
            pending: for an Append, its rows, which are in no file yet.

        Raises:
            ConflictError: a commit in between does not go together with this one.
            ContentionError: the race for a version was lost too often.
            HistoryUnavailable: a version in between cannot be read.
            OutcomeUnknown: the store left open whether the commit was applied.
            StorageError: the store failed before anything was committed.
        """
        if self.stamp is not None:
            transaction = self.stamp(transaction)
        started = self.runtime.clock.monotonic()
        race = Race(transaction, read, scheme, started, counts=counts or {}, begun=started if policy.begun is None else policy.begun)
        race.look, race.pending = self.looks.at(read) if self.look_seconds else None, pending
        with self.withdrawing(race):
            vectors = DeletionVectors(self.log.store, self.runtime.random, self.open_base, self.digests.note)
            race.taken = None if unverified else Taken(self.digests)
            race.rebaser = Rebaser(transaction, read.manifest, vectors, keys, reuse, unchanged, _rows=dict(rows or {}))
            if unverified:
                race.rebaser.check_rows()
            try:
                if self.queue is None:
                    return self.run_race(race, policy)
                alone = unverified or unchanged or keys is not None or policy.max_retries is not None
                return Turns(self, self.queue).run(race, policy, alone=alone)
            except RetryableConflict as conflict:
                # What comes later in the window may forbid to re-execute what this one commit would allow.
                met = [winner.version for winner in conflict.winners]
                conflict.window = Window(transaction, race.head).judge(self.log, race.seen, race.scheme, met)
                raise

    @contextmanager
    def withdrawing(self, race: Race) -> Iterator[None]:
        """After a failure that leaves no doubt, removes what we wrote. If that fails too, cleanup finds it."""
        try:
            yield
        except TiltyardError as raised:
            error = in_doubt(race, raised, self.log.store.uri)
            if not isinstance(error, OutcomeUnknown):
                self.remove((TRANSACTIONS + name for name in race.announced), race.rebaser.garbage(None) if race.rebaser else ())
                remove_written(self, race)
            mine = race.transaction
            complete(
                error,
                operation=mine.operation.name,
                read_version=mine.read_version,
                winners=race.rebased_over,
                transaction_id=mine.uuid,
                attempts=race.attempts,
            )
            seconds = self.runtime.clock.monotonic() - race.started
            observers.failed(mine, attempts=race.attempts, seconds=seconds, error=error)
            if error is not raised:
                raise error from raised
            raise

    def remove_announced(self, race: Race, kept: str = "") -> None:
        """Removes transaction files of ours that no version names."""
        self.remove(TRANSACTIONS + name for name in race.announced if name != kept)

    def remove(self, *several: Iterable[str]) -> None:
        """Removes files that no version names; what cannot be removed, cleanup finds."""
        for paths in several:
            for path in paths:
                with suppress(StorageError):
                    self.log.store.delete(path)

    def run_race(
        self, race: Race, policy: RetryPolicy, attempt: Callable[[Race], ManifestFile | None] | None = None
    ) -> tuple[CommitResult, ManifestFile]:
        """Tries until the version is ours, or it is certain that it will not be."""
        clock, attempt = self.runtime.clock, attempt or self._attempt
        attempt_seconds = LONGEST_WAIT
        failures = 0
        while True:
            race.looked = clock.monotonic()
            failure: StorageError | None = None
            race.attempts += 1
            try:
                done = attempt(race)
                if done is not None:
                    return self.result(race, done)
            except StorageError as error:
                if not error.transient:
                    raise
                failure = error
                failures += 1
            # The shortest so far: one that was slow for reasons of its own must not make this writer wait while others go by.
            attempt_seconds = min(attempt_seconds, clock.monotonic() - race.looked)
            elapsed = clock.monotonic() - race.started
            if policy.gives_up(race.attempts, failures) or (policy.deadline is not None and elapsed >= policy.deadline):
                raise failure or race.contention(self.log.store.uri, elapsed)
            pace = elapsed / (len(race.rebased_over) or 1)  # of the others: whoever is slower than they are must not wait for longer, too
            # Who is beaten at the pace of round trips, or leads others, only falls behind by waiting.
            if failure is not None or not (self.look_seconds or race.place):
                clock.sleep(wait_before(race.attempts - 1, min(attempt_seconds, pace), self.runtime))

    def _attempt(self, race: Race) -> ManifestFile | None:
        """One try: catch up with the head, build on it, create. None when somebody else took the version."""
        rebaser = race.rebaser
        assert rebaser is not None
        waited = race.waited or race.head.partial or self.recent.keeps
        if race.place is not None and waited and self.queue is not None and rebaser.keys is None:
            Turns(self, self.queue).skip_ahead(race, race.place)
        if race.head.partial:
            race.head = self._in_window(race.head.manifest.version, self._newest(race), race).file
        if self.look_seconds and not self._relies_on_look(race):
            self._send_ahead(race, rebaser)
        mine = self._catch_up(race, rebaser)
        if mine is not None:
            settle(self, race, mine)
            self.remove_announced(race, kept=mine.manifest.transaction_file)
            remove_left_over(self, race, mine)
            return mine
        race.offered &= race.place is None  # who leads has gone over all versions that somebody can have committed it with
        base = race.head.manifest
        check_base(race.transaction, base, race.rebased_over)
        restored = to_restore(self.log, race.transaction, race.scheme, self.vet)
        members = self._members(race, rebaser.transaction)
        next_version: NextVersion | None = None
        if members:
            try:
                if race.pending is not None:
                    write_rows(self, race, members)
                next_version = self._prepared(race, for_all(rebaser, members, base, race.taken), restored, members)
            except TiltyardError:
                answer(race, self.recent, members)
                members = []
        if next_version is None:
            if race.pending is not None:
                write_rows(self, race, ())
            settled = rebaser.settled(base)
            alone = race.taken.added_to(settled, base) if race.taken is not None else settled
            next_version = self._prepared(race, alone, restored)
        return self._create(race, next_version, members)

    def _create(self, race: Race, next_version: NextVersion, members: Sequence[Transaction]) -> ManifestFile | None:
        """The step that decides, and what follows from it."""
        transaction, manifest = next_version.transaction, next_version.manifest
        data, made = encode_manifest_file(manifest, next_version.inline, race.head)
        self.sync_files(race, announced=True)
        if self.recorded is None:  # else nobody sees it before it is published, which looks for the files of all tables
            self.look_for_files(race)
        created = self.landing.create(transaction, manifest.version, race.scheme, data, ahead=min(len(race.lost_to), 2))
        if created.winner is not None:
            race.newest = max(manifest.version, self.log.newest_ahead)
            race.lost_to.append(created.winner)
            observers.lost_race(race.transaction, attempts=race.attempts, version=manifest.version, theirs=created.winner)
            return None
        if self.recorded is None and (created.doubtful or not self._relies_on_look(race)):  # a private version has nobody's number
            self.head_check.check_in_time(transaction, race.head.manifest, manifest, race.scheme, again=created.doubtful)
        self.head_check.leave_hint(manifest.version)
        if self.queue is not None:
            self.recent.note(CreatedVersion(created.file or made, next_version.as_told), race.head)
        if members or self.recent.keeps:
            answer(race, self.recent, members, manifest.version, (manifest_path(manifest.version, race.scheme), data))
        self.remove_announced(race, kept=manifest.transaction_file)
        self.remove(race.rebaser.garbage(transaction) if race.rebaser else ())
        return created.file or made

    def _prepared(
        self, race: Race, transaction: Transaction, restored: Manifest | None, members: Sequence[Transaction] = ()
    ) -> NextVersion:
        """The next version, announced: all that can be done before its name is created."""
        base, reuse = race.head.manifest, race.rebaser.reuse if race.rebaser is not None else None
        reuse = stamped_reuse(reuse, base.version) if reuse is not None else None
        manifest = apply(transaction.operation, base, self.stamped(transaction, base), restored=restored, reuse=reuse)
        as_told = to_be_sealed(transaction, race.head)
        inline = as_told.to_bytes()
        self.announce(race, manifest.transaction_file, transaction, inline)
        floor = race.look.floor if race.look is not None and self._relies_on_look(race) else None
        oldest = min((member.read_version for member in members), default=None)
        self.head_check.check_ground(transaction, race.scheme, oldest=oldest, floor=floor)
        if members:  # They announce nothing by themselves. What no cleanup has taken until now is spared by all that look from here on.
            check_there(self.log.store, new_files(transaction.operation, base), transaction.operation.name, ask=False)
        return NextVersion(transaction, manifest, as_told, inline)

    def _members(self, race: Race, mine: Transaction) -> list[Transaction]:
        if race.place is None or self.queue is None or not isinstance(mine.operation, Append | Delete):
            return []
        if self.look_seconds and (newest := self.recent.newest()) is not None and len(newest.made_by) > 1:
            self.sync_files(race)  # there were others a moment ago: they come while our file is on its way
        offers = race.place.offers(MOST_MEMBERS)
        return Turns(self, self.queue).members(race, race.place, mine, offers) if offers else []

    def sync_files(self, race: Race, *, announced: bool = False) -> None:
        """The files reach the disk before a version names them, once however often the race is run; the transaction file with them."""
        files, beside = race.files, [TRANSACTIONS + race.unsynced] if announced and race.unsynced else []
        if files is None:
            files = new_files(race.transaction.operation, race.rebaser.read if race.rebaser else None)
            listed = [name for path in files if path.endswith("/") for name in (path + name for name in self.log.store.names(path))]
            files = [*(path for path in files if not path.endswith("/")), *listed]
            beside = [*files, *beside]
        if beside or race.files is None:
            self.log.store.sync(beside)
        race.files, race.unsynced = files, "" if announced else race.unsynced

    def look_for_files(self, race: Race) -> None:
        """Makes sure that our new files are there, right before a version names them."""
        since, name = self.runtime.clock.monotonic() - race.begun, race.transaction.operation.name
        check_there(self.log.store, race.files or [], name, ask=since >= LOOK_AFTER)

    def _catch_up(self, race: Race, rebaser: Rebaser) -> ManifestFile | None:
        """Goes over all versions since the one last checked. Gives our own where it turns out to be among them already.

        Others go on meanwhile. So it looks again: else whoever has more to go over would lose to those who have less, again and again.
        """
        for _ in range(LOOKS):
            checked = race.head.manifest.version
            head = self._newest(race)
            for version in range(checked + 1, head + 1):
                theirs = self._in_window(version, head, race)
                if race.transaction.uuid in made_by(theirs.transaction):
                    return theirs.file
                self._go_over(theirs, head, race, rebaser)
            if head <= checked + 1 and not self._compare_keys(race, rebaser):
                return None
        self._compare_keys(race, rebaser)
        return None

    def _compare_keys(self, race: Race, rebaser: Rebaser) -> bool:
        if rebaser.keys is None:
            return False
        version = race.head.manifest.version
        try:
            return rebaser.compare_keys(race.head.manifest)
        except (NotFound, CorruptTable) as error:
            raise race.unreadable(version, version, str(error)) from error

    def _newest(self, race: Race) -> int:
        """The newest version there is; the one we go on from is still there, for certain."""
        checked = race.head.manifest.version
        if self._relies_on_look(race):
            race.seen = max(checked, race.newest)
            return race.seen
        race.looked = self.runtime.clock.monotonic()
        if self.look_seconds:
            found = self._look(race)
        elif self.head_check.is_newest(max(checked, race.newest), race.scheme, just_made=race.newest > checked):
            found = (max(checked, race.newest), race.scheme)
        else:
            found = self.log.head()
        if found is not None:
            race.scheme = found[1]  # names may have been migrated since we opened the table
        head = race.seen = max(found[0] if found else 0, race.newest)
        if not race.confirmed or head < checked:
            self.head_check.confirm(race.head, race.scheme, head, race.transaction.read_version)
            race.confirmed = True
        return head

    def _relies_on_look(self, race: Race) -> bool:
        """Whether the last look is good enough to go without another."""
        return race.look is not None and self.looks.is_good(race.look, race.head.manifest.config)

    def _look(self, race: Race) -> tuple[int, Scheme] | None:
        """Looks at the table, by several questions at once; the latest version, if there is a table."""
        clock = self.runtime.clock
        ticks, when = clock.monotonic(), clock.now()
        found, there, floor = self.head_check.look(race.head, race.scheme)
        race.look = Look(race.head, floor, clock, ticks, when)
        race.confirmed = there and found is not None and found[1] is race.scheme
        race.newest = max(race.newest, found[0] if found else 0)  # who relies on the look goes over all that it saw
        return found

    def _send_ahead(self, race: Race, rebaser: Rebaser) -> None:
        """Sends the transaction file together with the look that is due, which finds nothing new as a rule."""
        if isinstance(race.transaction.operation, Append) and race.taken is not None and not race.announced:
            base = race.head.manifest
            transaction = race.taken.added_to(rebaser.settled(base), base)
            name = self.stamped(transaction, base).transaction_file
            self.announce(race, name, transaction, to_be_sealed(transaction, race.head).to_bytes())

    def _go_over(self, theirs: CreatedVersion, head: int, race: Race, rebaser: Rebaser) -> None:
        before = race.head.manifest
        if not fits(theirs, race.head):
            # A late writer put another version under that number: what was there is not to be known any more.
            raise race.unreadable(before.version, head, f"version {theirs.manifest.version} was made from another one")
        with race.reading(theirs.manifest.version, head):
            verdict = rebaser.meet(theirs, before)
        race.dropped_fields |= meet_schema(race.transaction, before.fields, theirs, race.dropped_fields)
        if self.queue is not None:
            self.recent.note(theirs, race.head)
        race.head = theirs.file
        winner = theirs.as_winner()
        race.rebased_over.append(winner)
        observers.rebased(race.transaction, attempts=race.attempts, theirs=winner, verdict=verdict.outcome)

    def _in_window(self, version: int, head: int, race: Race) -> CreatedVersion:
        try:
            read = self.log.last_read(version) if race.lost_to else None  # who beat us to a version was asked for it just now
            theirs = self.log.committed(version, race.scheme, last=head) if read is None else self.log.with_transaction(read)
        except (NotFound, CorruptTable, StorageError) as error:
            if isinstance(error, StorageError) and error.transient:
                raise
            raise race.unreadable(version, head, str(error)) from error
        self.vet(theirs.file)
        return theirs

    def stamped(self, transaction: Transaction, base: Manifest | None) -> Stamp:
        now = self.runtime.clock.now()
        nanos = int(now.timestamp()) * 1_000_000_000 + now.microsecond * 1_000
        if base is not None:
            # Clocks of several machines differ. A version stamped earlier than the one before it would be cleaned up before that one.
            nanos = max(nanos, base.timestamp_ns + TICK_NS)
        inline_only = base is not None and base.writer_flags & Feature.NO_TRANSACTION_FILE
        return Stamp(nanos, self.writer, "" if inline_only else transaction.file_name, marks_in(transaction.properties))

    def announce(self, race: Race, name: str, transaction: Transaction, inline: bytes) -> None:
        """Writes the transaction file, once however often the race is run, unless a rebase changed what is in it."""
        if name and race.announced.get(name) != transaction:
            race.announced[name] = None
            store = self.log.store
            later = getattr(store, "put_later", None) or getattr(store, "put_unsynced", None)  # ``SendsAtOnce``, ``FlushesTogether``
            (later or store.put)(TRANSACTIONS + name, inline)
            race.announced[name], race.unsynced = transaction, name if later else ""

    def result(self, race: Race, made: ManifestFile) -> tuple[CommitResult, ManifestFile]:
        self.log.remember(made)
        if race.look is not None:
            self.looks.keep(race.look, made)
        if self.recorded is not None:
            told = race.announced.get(made.manifest.transaction_file) or self.log.transaction_of(made)
            self.recorded.append(race.recorded(told))
        result = race.result(made.manifest.version, self.runtime.clock.monotonic() - race.started)
        observers.committed(race.transaction, attempts=race.attempts, version=result.version, seconds=result.seconds)
        return result, made

    create_table = create_first

"""Whose turn it is: a commit leads, or waits in the queue of its table until it leads or somebody has committed it.

The queue only orders. Whoever waits too long goes on without it, and that is safe: a leader that took a transaction along wants the
number after the version it had gone over. By then the writer, on its own, either holds that number, or finds itself in the version that
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeGuard

from tiltyard.errors import AlreadyCommitted, ConflictError, CorruptTable, HistoryUnavailable, NotFound, OutcomeUnknown, TiltyardError
from tiltyard.format.flags import Feature
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import manifest_path
from tiltyard.interfaces import NOT_TAKEN, CarriesVersions, CommitQueue, Offer, QueuePlace
from tiltyard.transaction import observers
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.group import adds_rows, can_be_taken_along, is_made_by, made_by
from tiltyard.transaction.joint_delete import JointDelete, with_rows
from tiltyard.transaction.log import CreatedVersion
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.operations import Delete
from tiltyard.transaction.pending_rows import announced_form, decode_offer, encode_offer, remove_written
from tiltyard.transaction.race import CommitResult, Race
from tiltyard.transaction.recent import AlreadyThereError, RecentVersions, Seen, judge
from tiltyard.transaction.rules import Outcome
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT, marks_in, transaction_id, with_parent

if TYPE_CHECKING:
    from tiltyard.transaction.commit import Committer

PATIENCE: Final = 2.0
"""Seconds to wait for a turn before going on without."""
NO_PATIENCE: Final = 0.2
"""The same, where somebody waited in vain of late; longer than a turn takes in a crowded queue, so that who gave up once gets one again."""
NOBODY_KNOWS: Final = 2**62
"""Stands for the version that a leader may try to create, where no listing tells which that can be."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The queue before one table, for one committer."""

    committer: Committer
    queue: CommitQueue

    def run(self, race: Race, policy: RetryPolicy, *, alone: bool) -> tuple[CommitResult, ManifestFile]:
        """Commits when the turn comes, ``alone`` where nobody else may do it for us."""
        place = self.queue.place(race.transaction.uuid, race.begun)
        try:
            if not place.lead():
                race.waited = True
                done = self._wait(race, policy, place, alone)
                if done is not None:
                    return done
            race.place = place if place.leads else None
            if place.leads and not alone:
                place.gather(partial(self._newest_there, race))
            return self.committer.run_race(race, policy)
        finally:
            if place.leads and race.rebased_over and (share := self._share_of_strangers(race)):
                place.meet_strangers(share)
            race.place = None
            place.leave()

    def _share_of_strangers(self, race: Race) -> float:
        """How many of the versions since the one we went on from, ours with them, were made by other software."""
        ours = self.committer.writer.library
        strangers = sum(bool(winner.writer) and not winner.writer.startswith(ours) for winner in race.rebased_over)
        return strangers / (len(race.rebased_over) + 1)

    def _newest_there(self, race: Race) -> int:
        """The last version in a row from the one we stand on: by asking for one name after the other, since few are new."""
        log, version = self.committer.log, race.head.manifest.version
        with suppress(TiltyardError):
            while True:
                log.store.head(manifest_path(version + 1, race.scheme))
                version += 1
        return version

    # ---- waiting ---------------------------------------------------------------------------------------------------------------

    def _wait(self, race: Race, policy: RetryPolicy, place: QueuePlace, alone: bool) -> tuple[CommitResult, ManifestFile] | None:
        """What became of our transaction if somebody committed it; None if we are to commit it."""
        offered = b"" if alone else self._offered(race)
        if not place.join(offered):
            return None
        race.offered = bool(offered)
        clock = self.committer.runtime.clock
        slowness: float = getattr(self.queue, "slowness", 1.0)
        until = clock.monotonic() + slowness * (NO_PATIENCE if place.hangs else PATIENCE)
        if policy.deadline is not None:
            until = min(until, race.started + policy.deadline)
        while True:
            answer = place.wait(max(until - clock.monotonic(), 0.0))
            if answer == NOT_TAKEN:
                offered = b""
                race.offered &= not getattr(place, "refuses_for_certain", False)
                place.leave()
                if place.lead() or not place.join(b""):
                    return None
                continue
            if answer is None:
                if not place.leads:
                    place.leave()
                    if offered:
                        self._go_on_alone(race, place, offered)
                return None
            done = self._committed_with(race, place, answer)
            if done is not None:
                return done

    def _go_on_alone(self, race: Race, place: QueuePlace, offered: bytes) -> None:
        """Leaves word of a transaction that somebody who hangs may yet commit, for whoever asks what became of it."""
        # Who leaves a queue is in no later version than one that was begun before; but not every queue gives back what it has.
        race.tried_by_others = NOBODY_KNOWS if getattr(place, "keeps", False) else self._next_version()
        with suppress(TiltyardError):  # our own commit will meet the same
            self.committer.announce(race, race.transaction.file_name, race.transaction, announced_form(offered))
            race.announced[race.transaction.file_name] = None  # what we commit has other words

    def _offered(self, race: Race) -> bytes:
        """Our transaction as others can commit it, its files safe; nothing where that cannot be."""
        transaction = race.transaction
        if not can_be_taken_along(transaction) or race.head.manifest.writer_flags & Feature.NO_TRANSACTION_FILE:
            return b""
        assert race.taken is not None  # who brings files of others commits alone
        assert race.rebaser is not None
        if race.pending is not None:
            return encode_offer(transaction, transaction_id(race.head), race.pending.offered())
        try:
            self.committer.sync_files(race)
            offered = race.taken.added_to(transaction, race.head.manifest)
            if isinstance(offered.operation, Delete):
                offered = with_rows(offered, race.rebaser.all_rows())
        except TiltyardError:
            return b""  # met again, and told of, when we commit it ourselves
        return with_parent(offered, race.head).to_bytes()

    def _next_version(self) -> int:
        try:
            head = self.committer.log.head()
        except TiltyardError:
            head = None
        return head[0] + 1 if head is not None else NOBODY_KNOWS

    def _committed_with(self, race: Race, place: QueuePlace, version: int) -> tuple[CommitResult, ManifestFile] | None:
        """The result of a commit that somebody else made for us; None if the version is not that one."""
        committer = self.committer
        try:
            file, maker = self._found_in(version, race, place)
        except TiltyardError:
            return None  # our own commit will find it, or say what is wrong
        if file is None:
            return None
        if not getattr(place, "safe", True):  # whoever made it gives less to a power loss than we promised
            settle(committer, race, file)
        race.attempts, race.look = 1, None  # whoever made the version has a later one
        below = race.head.manifest.version
        if version > below + 1 or _carries(place):  # on a local disk nobody asks before it leads, and then learns by itself
            committer.recent.learn(place.told())
            window = committer.recent.since(below, transaction_id(race.head), version, maker)
            _rebased_over(race, window[:-1] if window else ())
        committer.remove_announced(race)
        remove_left_over(committer, race, file)
        return committer.result(race, file)

    def _found_in(self, version: int, race: Race, place: QueuePlace) -> tuple[ManifestFile | None, str]:
        """A version that has our transaction, and whose it is; None if it has not."""
        log, mine = self.committer.log, race.transaction.uuid
        created = self.committer.recent.kept(version)
        if created is None and not _carries(place) and adds_rows(race.transaction):
            with suppress(CorruptTable):  # a new index has the transaction lie elsewhere
                file, heading = log.after_append(version, race.scheme, race.head)
                if is_made_by(heading, mine):
                    return file, heading.uuid
        if created is None:
            created = self._read(race, place, version, lazily=True)
        self.committer.vet(created.file)
        return created.file if mine in made_by(created.transaction) else None, created.transaction.uuid

    def _read(self, race: Race, place: QueuePlace, version: int, *, lazily: bool = False) -> CreatedVersion:
        """A version, if it can be from what its maker left on this machine."""
        log = self.committer.log
        if _carries(place) and (data := place.carried(manifest_path(version, race.scheme))):
            log.take(version, race.scheme, data)
        return log.committed(version, race.scheme, lazily=lazily)

    def skip_ahead(self, race: Race, place: QueuePlace) -> None:
        """Goes over versions by what the last leader left of them, where new rows can go over all. The loop does the rest, if any."""
        committer, below = self.committer, race.head
        if not adds_rows(race.transaction) or race.rebased_over:
            return
        recent = committer.recent
        recent.learn(place.told())
        head = recent.newest()
        if head is None:
            return
        if race.look is None and head.version == below.manifest.version and not below.partial:
            race.look = committer.looks.along(recent, below)
        kept = recent.kept(head.version)
        at_hand = kept is not None or _carries(place)
        if head.version < below.manifest.version + (0 if below.partial else 2 - at_hand):
            return
        window = recent.since(below.manifest.version, transaction_id(below), head.version, head.made_by[0])
        with suppress(TiltyardError, AlreadyThereError):
            if window is None or not judge(race.transaction, window, {}, {}):
                return
            there = self._read(race, place, head.version) if kept is None else kept
            if there.transaction.uuid == head.made_by[0] and there.manifest.fields == below.manifest.fields:
                committer.vet(there.file)
                race.head, race.confirmed, race.look = there.file, True, committer.looks.along(recent, there.file)
                _rebased_over(race, window)

    # ---- leading ---------------------------------------------------------------------------------------------------------------

    def members(self, race: Race, place: QueuePlace, mine: Transaction, offers: Sequence[Offer]) -> list[Transaction]:
        """Transactions that wait and can be put on the same version as ours.

        The others learn that they cannot, but for those of another kind, or with rows that do not go into our file: they wait for a
        leader of theirs.
        """
        taken: list[Transaction] = []
        if not can_be_taken_along(mine):
            return taken
        marks = dict(marks_in(mine.properties))
        assert race.rebaser is not None
        try:
            joint = JointDelete(race.rebaser, race.head.manifest) if isinstance(mine.operation, Delete) else None
        except TiltyardError:
            return taken  # what our own rows are cannot be read; whoever waits is not to blame
        self.committer.recent.learn(place.told())
        for offer in offers:
            try:
                member, rows = decode_offer(offer.data)
                if can_be_taken_along(member) and type(member.operation) is not type(mine.operation):
                    continue
                if member.uuid == offer.transaction_id and self._fits(member, race, marks) and (joint is None or joint.take(member)):
                    if not rows or self._writes_along(race, member, rows):
                        taken.append(member)
                        marks.update(marks_in(member.properties))
                    continue
            except AlreadyThereError as there:
                self._answer_for_another(place, race, offer, there.version)
                continue
            except TiltyardError:
                pass  # its writer will meet the same, and tell of it
            place.answer(offer.transaction_id)
        return taken

    def _writes_along(self, race: Race, member: Transaction, rows: bytes) -> bool:
        """Whether the rows of another go into one file with our own."""
        found = race.pending.read(rows) if race.pending is not None else None
        if found is not None:
            race.their_rows[member.uuid] = found
        return found is not None

    def _answer_for_another(self, place: QueuePlace, race: Race, offer: Offer, version: int) -> None:
        """Tells one who was committed by a leader that died; what that one may not have flushed, we do."""
        try:
            settle(self.committer, race, self.committer.log.peek(version, race.scheme))
        except TiltyardError:
            place.answer(offer.transaction_id)  # it looks for its version by itself, and tells of what it meets
        else:
            place.answer(offer.transaction_id, version)

    def _fits(self, member: Transaction, race: Race, marks: dict[str, str]) -> bool:
        head, parent = race.head.manifest, member.properties.get(PARENT, "")
        window = self.committer.recent.since(member.read_version, parent, head.version, transaction_id(race.head))
        if window is None or not can_be_taken_along(member) or not judge(member, window, head.config, marks):
            return False
        missing = getattr(self.committer.log.store, "missing", None)  # of a ``SeesFiles``
        return missing is None or not missing(new_files(member.operation, None))


def _carries(place: QueuePlace) -> TypeGuard[CarriesVersions]:
    """What ``isinstance`` says as well, in a hundredth of the time."""
    return hasattr(place, "carry")


def _rebased_over(race: Race, window: Sequence[Seen]) -> None:
    for seen in window:
        race.rebased_over.append(seen.winner)
        observers.rebased(race.transaction, attempts=race.attempts, theirs=seen.winner, verdict=Outcome.COMPATIBLE)


def answer(
    race: Race, recent: RecentVersions, members: Sequence[Transaction], version: int = NOT_TAKEN, made: tuple[str, bytes] | None = None
) -> None:
    """Tells members what became of them, and whoever leads next where things stand; ``made`` is the version as a path and its bytes."""
    place = race.place
    if place is None:
        return  # went on alone
    if made is not None:
        _carry(place, made)
    place.tell(recent.encoded())
    for member in members:
        place.answer(member.uuid, version)


def _carry(place: QueuePlace, made: tuple[str, bytes]) -> None:
    if _carries(place):
        place.carry(*made)


def settle(committer: Committer, race: Race, file: ManifestFile) -> None:
    """Makes a version that somebody else made for us survive a power loss, as if we had made it.

    Whoever did may have died before it was flushed, or have promised less. Its transaction names what else it wrote for all.

    Raises:
        OutcomeUnknown: that failed; the version is there, for the time being.
    """
    version, store = file.manifest.version, committer.log.store
    try:
        store.sync([manifest_path(version, race.scheme)])
        store.sync(path for path in new_files(committer.log.transaction_of(file).operation, None) if not path.endswith("/"))
    except NotFound:
        return  # cleaned up since: later versions stand on it
    except TiltyardError as error:
        raise OutcomeUnknown(
            f"Version {version} of {store.uri} was committed, but may be lost in a power failure ({error}).",
            transaction_id=race.transaction.uuid,
            version=version,
            uri=store.uri,
        ) from error


def remove_left_over(committer: Committer, race: Race, file: ManifestFile) -> None:
    """Removes files of ours that the version does not name which somebody made for us: no other can, by now."""
    if race.written_for is not None:
        remove_written(committer, race, committer.log.transaction_of(file))
    if race.rebaser is not None and isinstance(race.transaction.operation, Delete):
        race.rebaser.leave_files_to_others()
        committer.remove(race.rebaser.garbage(committer.log.transaction_of(file)))


def in_doubt(race: Race, error: TiltyardError, uri: str) -> TiltyardError:
    """The error as it is; or, while somebody may have committed our transaction, or one who hangs may yet, that nobody knows.

    Where others were in the way, it is known: whoever took our transaction either went over the same version, or finds its number taken.
    """
    if not (race.offered or race.tried_by_others) or isinstance(error, OutcomeUnknown | ConflictError | AlreadyCommitted):
        return error
    # Of versions that are gone nobody can tell whether one of them had it, whichever may be tried next.
    tried = 0 if isinstance(error, HistoryUnavailable) else race.tried_by_others
    return OutcomeUnknown(
        f"Another writer was asked to commit this, and may have; to find out, or to commit it here, failed ({error}).",
        transaction_id=race.transaction.uuid,
        version=tried or NOBODY_KNOWS,
        uri=uri,
    )

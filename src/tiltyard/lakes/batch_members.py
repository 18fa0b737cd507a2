"""A member of a batch: a transaction that waits for its turn at a table, and may be committed by whoever has it.

Where it stands: it offers itself once somebody is ahead; then it is committed by itself or by others, and only its record tells which. So
the record is looked at whenever somebody says so, when the turn comes, and by the decision about the transaction itself. An
offer is never taken back in any other way than that the catalog aborts the transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.batch_offers import BatchOffer, OfferedRows, can_be_folded, can_be_offered, columns_of, decode_offer, encode_offer
from tiltyard.catalog.lake_values import Publication, Snapshot
from tiltyard.catalog.publishing import COMMITTED, LEADER, Published
from tiltyard.errors import ContentionError, NotFound, StorageError, TiltyardError
from tiltyard.lakes.finishing import finish, is_certain
from tiltyard.lakes.hot_tables import Turn
from tiltyard.lakes.lake_batches import BatchLeader
from tiltyard.lakes.lake_tables import StagedTable
from tiltyard.lakes.table_names import shown
from tiltyard.transaction.race import RecordedCommit

if TYPE_CHECKING:
    from tiltyard.lake import Lake

NOBODY: Final = ""

_log = logging.getLogger("tiltyard.lake")


class BatchMember:
    """One transaction, as others may commit it while it waits.

    Attributes:
        id: of the transaction.
        offered: whether somebody may have its offer, or had it.
        batch: the batch that committed it, once that is certain; empty where none did.
    """

    def __init__(
        self,
        lake: Lake,
        transaction: str,
        branch: str,
        publication: Callable[[], Publication],
        written: Callable[[], Sequence[StagedTable]],
    ) -> None:
        self._lake, self._branch = lake, branch
        self._publication, self._written = publication, written
        self.id = transaction
        self.offered = False
        self.batch = NOBODY
        self._made: Snapshot | None = None
        """The snapshot of that batch."""
        self._seen: Published | None = None
        """What we were found to be committed as while we waited."""
        self._folded: list[StagedTable] = []
        """Tables whose rows are in a version with those of others, once it is committed."""

    # ---- while it waits --------------------------------------------------------------------------------------------------------

    def join(self, turn: Turn) -> tuple[bool, Published | None]:
        """Waits for our turn, and leads those who wait behind; whether we took it, and what we are committed as, if that is so."""
        if not turn.take(self):
            return False, None
        done = (self._seen or self._found()) if self.offered else None
        if done is None and self._led(turn):
            done = self._found()
        if done is not None:
            turn.leave()
        return True, done

    def offer(self) -> bytes:
        """What those ahead may commit; see ``Offering``."""
        own = self._own()
        data = b"" if own is None else encode_offer(own)
        self.offered |= bool(data)
        return data

    def is_done(self) -> bool:
        """Whether somebody has committed it; see ``Offering``."""
        self._seen = self._found()
        return self._seen is not None

    def _own(self) -> BatchOffer | None:
        """What we want to commit; None where that is nobody else's to do."""
        if not self._lake.catalog.decides_here:
            return None
        publication = self._publication()
        if not can_be_offered(publication):
            return None
        rows: dict[str, OfferedRows] = {}
        files: dict[str, tuple[str, ...]] = {}
        begun = []
        try:
            for table in self._written():
                assert table.access is not None
                table.access.check_files()
                files[table.id] = tuple(path for path in table.access.new_files() if not path.endswith("/"))
                recorded = table.access.recorded
                begun += [commit.begun for commit in recorded]
                if recorded and all(map(_is_folded, recorded)):
                    several = tuple(commit.transaction for commit in recorded)
                    rows[table.id] = OfferedRows(columns_of(recorded[0].read.manifest), several)
        except TiltyardError:
            return None  # our own commit meets it, and says so
        durability = str(self._lake.where.storage.durability)
        return BatchOffer(publication, rows, files, min(begun, default=0.0), durability)

    def _led(self, turn: Turn) -> bool:
        """Commits what others offer together with ours; whether that was tried."""
        ticket = turn.shown()
        if ticket is None or not (there := ticket.offers()):
            return False
        waiting = [(name, offer) for name, data in there if (offer := decode_offer(data)) is not None]
        own = self._own() if waiting else None
        if own is None:
            return False
        self.offered = True  # our own record may be a batch's from here on
        BatchLeader(self._lake, own, ticket).lead(waiting)
        return True

    # ---- what became of it -----------------------------------------------------------------------------------------------------

    def find(self) -> Published | None:
        """Looks at the record: what we are committed as for certain; None where nothing is decided, or it was given up again.

        Raises:
            StorageError: nobody can say.
        """
        known = self._lake.catalog.transaction(self.id)
        if known is None or known["state"] != COMMITTED:
            return None
        if LEADER in known:
            made = self._snapshot(int(known["snapshot"]))
            # Only what is alone in its snapshot can be given up to a foreign writer.
            if len(made.changes) == 1 and not is_certain(self._lake, self.id):
                return None
            self.batch, self._made = str(known[LEADER]), made
        return Published(int(known["snapshot"]), self.id)

    def _snapshot(self, number: int) -> Snapshot:
        with suppress(NotFound):
            made = self._lake.catalog.snapshot(number, self._branch)
            if self.id in made.transactions:  # else the branch was made anew, and that is the number of another line
                return made
        raise StorageError(f"snapshot {number}, which had transaction {self.id}, does not exist any more", name=self._branch)

    def _found(self) -> Published | None:
        with suppress(StorageError, ContentionError):  # whoever decides about us looks again
            return self.find()
        return None

    def confirm(self, done: Published) -> Published | None:
        """What a publication of ours came to, if it stays so."""
        if done.transaction != self.id:
            return done if is_certain(self._lake, done.transaction) else None
        return self.find() if done.replayed and self.offered else done

    def withdraw(self) -> Published | None:
        """Takes the offer back after a failure, so that what was staged can be removed: nobody commits us any more.

        Returns:
            What we are committed as, where somebody was faster.

        Raises:
            StorageError, ContentionError: nobody can say.
        """
        if not self.offered or self._lake.catalog.abort(self.id):
            return None
        done = self.find()
        if done is None:
            raise StorageError("it was committed with others, and given up again", transient=True)
        return done

    # ---- when it was committed -------------------------------------------------------------------------------------------------

    def adopt(self, done: Published) -> dict[str, tuple[int, ...]]:
        """Takes over the versions that the batch made of our tables; by table what our rows were rebased over.

        Raises:
            StorageError: the snapshot cannot be read.
        """
        made = self._made or self._snapshot(done.snapshot)
        steps = {change.table: change.steps for change in made.changes}
        rebased = {}
        for table in self._written():
            assert table.access is not None
            assert table.head is not None
            staged = {own.staged for own in table.access.store.own()}
            table.steps = steps[table.id]
            if any(step.staged not in staged for step in table.steps):
                self._folded.append(table)
                if over := tuple(range(table.head.version + 1, table.steps[0].version)):
                    rebased[shown(table.name)] = over
        return rebased

    def finish(self) -> None:
        """Sees that all our versions have their names, and removes what we staged of tables whose rows are in somebody else's.

        Raises:
            CorruptTable: a writer that does not know the catalog has the number of one.
        """
        folded = self._folded
        mine = [table for table in self._written() if table not in folded]
        named = False
        try:
            finish(self._lake.catalog, [(table.pending(self.batch, self._branch), table.store) for table in (*folded, *mine)])
            named = True
        except (StorageError, ContentionError) as error:
            _log.warning("transaction %s is committed, but not finished yet: %s", self.id, error)
        for table in mine:
            assert table.access is not None
            table.access.store.clear(published=True)
            if named and table.opened is not None and table.head is not None:
                table.opened.keep(table.head.branch, table.access.log.last_read(table.steps[-1].version))
        for table in folded:
            assert table.access is not None
            table.access.drop_versions()


def _is_folded(commit: RecordedCommit) -> bool:
    """Whether its rows may go into one version with those of others: what only keys could tell has none here."""
    return commit.keys is None and commit.reuse is None and not commit.unchanged and can_be_folded(commit.transaction)

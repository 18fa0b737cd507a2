"""Publishes a transaction over several tables: what it staged of each, in one step of the catalog, then under final names.

``TransactionScope`` says where it stands, and draws the states.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.base_view import BaseView
from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import Isolation, LakeCommit, Moved, Publication
from tiltyard.catalog.marks import Says
from tiltyard.catalog.publishing import COMMITTED, AbortedError, ExpiredError, Published, StaleError, is_alone
from tiltyard.catalog.read_set import TransactionScope
from tiltyard.errors import (
    ConflictError,
    ContentionError,
    ExpectedVersionMismatch,
    InvalidInput,
    OutcomeUnknown,
    StorageError,
    TiltyardError,
)
from tiltyard.lakes.batch_members import BatchMember
from tiltyard.lakes.conflict_report import expired, mismatch, name_table
from tiltyard.lakes.finishing import adopt_foreign, finish, is_certain
from tiltyard.lakes.hot_tables import Turn
from tiltyard.lakes.lake_tables import StagedTable
from tiltyard.lakes.recovery.journal import note_names
from tiltyard.lakes.refusals import LakeRefusal, RefusedTable, keep_refusal, refusal_of
from tiltyard.lakes.table_names import TransactionNames, check_idempotency_key, logical_name, shown
from tiltyard.transaction.backoff import wait_before
from tiltyard.transaction.new_files import is_missing
from tiltyard.transaction.transaction import MESSAGE_PROPERTY
from tiltyard.verbs.engine.data_files import properties_with_message
from tiltyard.verbs.explain import LOST, Lost

if TYPE_CHECKING:
    from tiltyard.lake import Lake
    from tiltyard.lakes.lake_tables import TransactionTable

TRIES: Final = 16
LONGEST_RACE: Final = 60.0
"""How often a publication is tried at least, and for how many seconds, before the lake is said to be too busy."""
WAIT_UNIT: Final = 0.025
"""Seconds; the first wait between two tries is at most twice as long, the next four times, and so on."""
LOOKS: Final = 5
"""How often the catalog is asked what became of a publication whose answer was lost."""

_log = logging.getLogger("tiltyard.lake")


class StagedTransaction:
    """What a transaction has staged, and how all of it is published or thrown away."""

    batch = False
    """Whether those who wait for the same table may commit it with theirs, in one snapshot."""

    def __init__(
        self,
        lake: Lake,
        isolation: Isolation,
        message: str | None,
        key: str | None,
        properties: Mapping[str, str] | None,
        branch: str,
    ) -> None:
        if isolation not in ("snapshot", "serializable"):
            raise InvalidInput(f"isolation is 'snapshot' or 'serializable', not {isolation!r}.", argument="isolation")
        self._lake = lake
        self._catalog: Catalog = lake.catalog
        self._isolation: Isolation = isolation
        self._key = check_idempotency_key(key)
        self._properties = properties_with_message(properties, message)
        self._message = self._properties.pop(MESSAGE_PROPERTY, "") if message is not None else ""
        self._says = Says(self._message, self._properties, self._key).to_text()
        """The three of them, as each of its versions tells it."""
        self._branch = branch
        self._view = BaseView(lake.catalog, branch, lake.used)
        self.id = lake.catalog.runtime.random.uuid()
        self._scope = TransactionScope(self.id, self._view.names)
        self._names = TransactionNames(self._view, self._scope.reads)
        self._lock = threading.RLock()
        self._by_name: dict[str, StagedTable] = {}
        self._sharded: dict[str, TransactionTable] = {}
        """Handles on sharded tables, by the ids of their anchors."""
        self._written: list[StagedTable] = []
        """Those that it writes to, once it commits."""
        self._rebased: dict[str, tuple[int, ...]] = {}
        self._attempts = 0
        self._member: BatchMember | None = None
        """As others may commit it, once it waits for them."""
        self._doubted = False
        self._alone = False
        self._blind = False
        """Whether its caller was told nothing before the commit: what a name was used for since the base does not matter then."""
        self._publish_by: Callable[[Publication], Published] | None = None
        self._at_end: Callable[[], None] | None = None
        """What is left to do once it is committed."""
        self.result: LakeCommit | None = None
        self.keeps_refusal = True
        self._refused = False
        self._contested = ""
        """The id of the table that others moved and ours cannot follow."""

    @property
    def base(self) -> int:
        """The snapshot that the transaction sees."""
        return self._view.snapshot

    @property
    def in_doubt(self) -> bool:
        """Whether it is not known what became of it; ``commit`` finds out."""
        return self._scope.state == "in doubt"

    def _throw_away(self) -> None:
        for touched in self._by_name.values():
            touched.withdraw()

    def commit(self) -> LakeCommit:
        """Publishes all writes in one step.

        After ``OutcomeUnknown`` it may be called again, and finds out what happened.

        Raises:
            ExpectedVersionMismatch: other writers changed a table, and the rules do not allow a rebase.
            ConflictError: the rules for one table do not allow it.
            ContentionError: others committed first, too often.
            OutcomeUnknown: not known yet; call ``Lake.outcome``.
        """
        if self._scope.state != "in doubt":
            self._scope.check_open()
        self._doubted |= self._scope.state == "in doubt"
        self._scope.state = "committing"
        started = self._catalog.runtime.clock.monotonic()
        self._written = [table for table in self._by_name.values() if table.wrote and not table.dropped]
        turn = Turn(self._catalog, self._lake.hot, self._branch, [table.id for table in self._written if table.head is not None])
        try:
            done = self._publish(turn, started)
            return self._finished(done, started, turn)
        except OutcomeUnknown:
            self._scope.state = "in doubt"
            raise
        except TiltyardError as error:
            if self._scope.state == "committing":
                if (joined := self._withdrawn()) is not None:
                    return self._finished(joined, started, turn)
                self._scope.state = "rolled back"
                self._throw_away()
            if isinstance(error, LOST) and self._publish_by is None:  # merges tell of their conflicts themselves, and plan anew
                self._refused = True
                if self.keeps_refusal:
                    self._keep_refusal(error)
            raise
        except BaseException:
            self._scope.state = "in doubt"  # interrupted: perhaps after the catalog had it
            raise
        finally:
            turn.leave()

    def _withdrawn(self) -> Published | None:
        """After a failure, sees to it that nobody else commits us either; what we are committed as, if somebody was faster."""
        self._scope.state = "in doubt"
        try:
            return None if self._member is None else self._member.withdraw()
        except (StorageError, ContentionError) as error:
            raise self._unknown(error) from error

    def _join(self, turn: Turn, lost: Collection[str] = ()) -> tuple[list[Moved] | None, Published | None]:
        """Waits for our turn: tables that others moved by then, None where that does not count; what others committed us as meanwhile."""
        if not turn.is_wanted(lost):
            return None, None
        # By ourselves: also a step of its own, or versions that stock clients go on from.
        if not self.batch or self._publish_by is not None or self._at_end is not None:
            return (self._moved_by_now() if turn.take() and self._isolation == "snapshot" else None), None
        self._member = self._member or BatchMember(self._lake, self.id, self._branch, self._publication, lambda: self._written)
        taken, joined = self._member.join(turn)
        if not taken or joined is not None:
            return None, joined
        moved = self._moved_by_now() if self._isolation == "snapshot" else None
        # After the heads: where they have a version with our own rows, our record is there by now. That is not carried over itself.
        return moved, self._ask(StorageError("its record cannot be read")) if self._member.offered else None

    def _publish(self, turn: Turn, started: float) -> Published:
        if self._isolation == "snapshot" and self._publish_by is None and not self._doubted and turn.is_wanted():
            moved, joined = self._join(turn)
            if joined is not None:
                return joined
            self._carry_over(moved or ())
        while True:
            publication = self._publication()
            self._alone = is_alone(publication)
            if not publication.changes and not publication.reads and publication.key is None and self._publish_by is None:
                return Published(self.base, self.id)
            self._attempts += 1
            try:
                if (done := self._send(publication)) is not None:
                    return done
            except StaleError as stale:
                # The record of this very transaction was looked at before its tables: an earlier try, of which no answer came, failed too.
                self._doubted = False
                if (done := self._lost_to(stale, turn)) is not None:
                    return done
            except AbortedError:
                raise ConflictError(
                    f"Transaction {self.id} was aborted by a cleanup, which took it for dead and deleted its files.",
                    operation="transaction", retryable=True,
                    advice="Run it again from the beginning.",
                ) from None  # fmt: skip
            except ExpiredError:
                doubted = self._doubted or (self._member is not None and self._member.offered)
                raise expired(self.id, self.base, self._lake.url, doubted=doubted) from None
            except (StorageError, ContentionError) as error:
                self._doubted |= isinstance(error, StorageError) and error.maybe_applied
                if not self._doubted:
                    raise
                if (known := self._ask(error)) is not None:
                    return known
                if self._attempts >= TRIES:
                    raise self._unknown(error) from error
            self._pause(turn, started)

    def _pause(self, turn: Turn, started: float) -> None:
        """Waits before another try. Whoever has the turn need not."""
        runtime = self._catalog.runtime
        if self._attempts >= TRIES and runtime.clock.monotonic() - started >= LONGEST_RACE:
            raise ContentionError(
                f"Transaction {self.id} lost the race {self._attempts} times: other transactions committed to its tables first.",
                operation="transaction", attempts=self._attempts,
            )  # fmt: skip
        if not turn.taken:
            runtime.clock.sleep(wait_before(self._attempts - 1, WAIT_UNIT, runtime))

    def _ask(self, error: TiltyardError) -> Published | None:
        """What became of a publication whose answer was lost; None where the catalog does not know of it, so that trying again tells."""
        for look in range(LOOKS):
            try:
                return self._known()
            except (StorageError, ContentionError):
                self._catalog.runtime.clock.sleep(wait_before(look, WAIT_UNIT, self._catalog.runtime))
        raise self._unknown(error) from error

    def _unknown(self, error: TiltyardError) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"Whether transaction {self.id} was committed is not known yet ({error}).",
            transaction_id=self.id,
            version=0,
            uri=self._lake.url,
            advice="Nothing was deleted. Call commit() again, or lake.outcome(id).",
        )

    def _known(self) -> Published | None:
        if self._member is not None:
            return self._member.find()
        known = self._catalog.transaction(self.id)
        return Published(int(known["snapshot"]), self.id) if known is not None and known["state"] == COMMITTED else None

    def _publication(self) -> Publication:
        changes = tuple(change for touched in self._by_name.values() if (change := touched.change()) is not None)
        publication = Publication(
            self.id, changes, self._branch, (), self._key, self._lake.author, self._message, self._properties,
            self._isolation, self.base, self._view.line, blind=self._blind,
        )  # fmt: skip
        if self._isolation != "serializable" or not changes:
            return publication  # a cut is consistent by itself: a transaction that only reads has its place right after its base
        reads = self._scope.reads
        return replace(publication, reads=reads.expectations(), absent=reads.absent, names=reads.names)

    def _send(self, publication: Publication) -> Published | None:
        """Has the catalog decide; None where it was given up to a writer that does not know the catalog."""
        for touched in self._written if not self._doubted else ():
            if touched.head is not None and not is_missing(touched.store.inner, touched.steps[0].path):
                head = replace(touched.head, version=touched.base)
                adopt_foreign(self._lake, touched.store, head, self._branch, self._view.line)
        for touched in self._written if not self._doubted else ():
            try:
                if touched.access is not None:
                    touched.access.check_files()
            except StorageError:
                # A cleanup whose clock is days ahead may have taken what we wrote for orphans.
                known = self._catalog.transaction(self.id)
                if known is not None and known["state"] != COMMITTED:
                    raise AbortedError from None  # a cleanup of this very lake gave the transaction up first
                raise
        done = (self._publish_by or self._catalog.publish)(publication)
        if self._member is not None:
            return self._member.confirm(done)
        return done if done.transaction == self.id or is_certain(self._lake, done.transaction) else None

    # ---- when others were faster -----------------------------------------------------------------------------------------------

    def _lost_to(self, stale: StaleError, turn: Turn) -> Published | None:
        """Makes our writes again on tables that others moved, when it is our turn; what we are committed as, if others did that meanwhile.

        Raises:
            ConflictError: the rules do not allow it.
        """
        for moved in stale.moved:
            _log.warning(
                "conflict in the catalog: %s is at %s, expected %s (try %s)",
                shown(moved.name), moved.actual, moved.expected, self._attempts,
                extra={"table": shown(moved.name), "expected": moved.expected, "actual": moved.actual, "transaction": self.id},
            )  # fmt: skip
            self._followable(moved)
        # What was read is compared before what is written: only the decision may say which tables to look at again.
        now, joined = self._join(turn, [moved.table for moved in stale.moved])
        if joined is None:
            self._carry_over(stale.moved if now is None else now)
        return joined

    def _moved_by_now(self) -> list[Moved]:
        """The tables that we write and others moved, as far as that can be followed; whatever else happened to one, the decision tells."""
        written = {table.id: table for table in self._written if table.head is not None}
        heads = self._catalog.heads(written, self._branch)
        return [
            moved
            for head in heads
            if head.version > written[head.id].base
            if self._can_follow(written[head.id], moved := Moved(head.id, head.name, "write", written[head.id].base, head.version, head))
        ]

    def _followable(self, moved: Moved) -> StagedTable:
        touched = next((table for table in self._by_name.values() if table.id == moved.table), None)
        if moved.kind != "write" or touched is None or moved.head is None or not self._can_follow(touched, moved):
            raise self._mismatch(moved)
        return touched

    def _carry_over(self, several: Iterable[Moved]) -> None:
        """Makes our writes again on tables that others moved, where the rules allow it; only on those."""
        for moved in several:
            touched = self._followable(moved)
            assert touched.access is not None
            assert moved.head is not None
            try:
                touched.access.replay(moved.head.version, only_appended=moved.head.only_appended)
            except ConflictError as error:
                self._contested = moved.table
                raise name_table(error, self._catalog, self._branch, self.base, moved) from None
            first = touched.head.version if touched.head is not None else 0
            self._rebased[shown(moved.name)] = tuple(range(first + 1, moved.head.version + 1))
            touched.base, touched.ground = moved.head.version, moved.head

    def _can_follow(self, touched: StagedTable, moved: Moved) -> bool:
        if touched.access is None or touched.handle is None or touched.head is None or moved.head is None:
            return False
        if touched.dropped or touched.former or not touched.wrote:
            return False
        if self._publish_by is not None or moved.head.branch != touched.head.branch:
            return False
        # What was read of it is compared in the catalog, before anything is carried over.
        changed = moved.head.data_version != touched.head.data_version
        strict = self._isolation == "serializable" and changed
        return touched.access.can_replay(blind_only=strict)

    def _mismatch(self, moved: Moved) -> ExpectedVersionMismatch:
        self._contested = moved.table
        return mismatch(self._catalog, self._branch, self.base, self.id, moved)

    def _keep_refusal(self, error: Lost, executions: int = 1) -> None:
        """Leaves a record of a refusal, if it was this transaction's."""
        if self._refused:
            about = [table for table in self._by_name.values() if table.operations or table.id == self._contested]
            tables = [RefusedTable(table.id, _logical(table.former or table.name), table.operations) for table in about]
            self._note_refusal(error, self._contested, tables, executions)

    def _note_refusal(self, error: Lost, contested: str, tables: Iterable[RefusedTable], executions: int = 1) -> None:
        """Leaves a record of a refusal that came up before the commit, or in it.

        Args:
            error: what it was refused with.
            contested: the id of the table with the conflict.
            tables: what was to be changed.
            executions: how often it was run.
        """
        known = LakeRefusal(
            self.id, self._catalog.runtime.clock.now(), self._lake.author, self._message, self._branch, self._view.line, self.base,
            attempts=self._attempts, executions=executions, table=contested, tables=tuple(tables),
        )  # fmt: skip
        keep_refusal(self._lake, refusal_of(known, error))

    # ---- when it is done -------------------------------------------------------------------------------------------------------

    def _finished(self, done: Published, started: float, turn: Turn) -> LakeCommit:
        ours = done.transaction == self.id
        written = self._written
        member = self._member
        if member is not None and member.batch:
            try:
                self._rebased.update(member.adopt(done))
            except (StorageError, ContentionError) as error:
                raise self._unknown(error) from error
        result = LakeCommit(
            done.snapshot,
            done.transaction,
            {shown(table.name): table.steps[-1].version for table in written} if ours else {},
            max(self._attempts, 1),
            dict(self._rebased),
            replayed=not ours,
            seconds=self._catalog.runtime.clock.monotonic() - started,
        )
        self._scope.state = "committed"
        for table in written:
            if table.head is None:
                self._lake.used.note(self._branch, table.name, table.id)
        if ours and any(table.defines for table in self._by_name.values()):
            note_names(self._lake, self._branch, done.snapshot, self.id, self._says)
        if member is not None and member.batch:
            member.finish()
        elif ours:
            self._give_names(written, turn)
        else:
            self._throw_away()
        self.result = result
        if self._at_end is not None:
            self._at_end()
        return result

    def _give_names(self, written: list[StagedTable], turn: Turn) -> None:
        """Brings what was committed to its final place. If the store fails, whoever reads next does it."""
        hot = turn.awaited()
        first = [table for table in written if table.id in hot]  # others wait for these
        written = [*first, *(table for table in written if table not in first)]
        items = [(table.pending(self.id, self._branch), table.store) for table in written]
        try:
            voided = finish(self._catalog, items, alone=self._alone, named=turn.leave, awaited=len(first))
            named = not voided
        except (StorageError, ContentionError) as error:
            if self._alone:  # somebody who does not know the catalog may still take the number, and then it is not committed
                raise self._unknown(error) from error
            _log.warning("transaction %s is committed, but not finished yet: %s", self.id, error)
            voided, named = [], False
        for touched in written:
            assert touched.access is not None
            touched.access.store.clear(published=True)
            if named and touched.opened is not None and touched.head is not None:
                touched.opened.keep(touched.head.branch, touched.access.log.last_read(touched.steps[-1].version))
        if voided:
            self._scope.state = "rolled back"
            self._throw_away()
            raise self._mismatch(Moved(voided[0].table, written[0].name, "foreign", voided[0].version - 1, voided[0].version))


def _logical(full: str) -> str:
    """A table as people know it: a shard goes by the name of the table it is a part of."""
    return shown(logical_name(full) or full)

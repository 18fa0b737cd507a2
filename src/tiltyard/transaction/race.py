"""A commit on its way: where it stands, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tiltyard.errors import ContentionError, CorruptTable, HistoryUnavailable, NotFound, Winner
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.values import IndexMetadata
from tiltyard.interfaces import QueuePlace
from tiltyard.transaction.key_filter import WrittenKeys
from tiltyard.transaction.log import TRANSACTIONS
from tiltyard.transaction.looks import Look
from tiltyard.transaction.new_files import Taken, new_files
from tiltyard.transaction.operations import KeyExistenceFilter, Operation
from tiltyard.transaction.pending_rows import PendingRows
from tiltyard.transaction.rebaser import Rebaser
from tiltyard.transaction.resolve import unreadable
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import without_marks


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
        rows: how many rows a verb ``inserted``, ``updated`` and ``deleted``, where it counts them.
        executions: how often the verb was executed, each time on a later version; 1 without a conflict.
    """

    version: int
    operation: str
    transaction_id: str
    read_version: int
    attempts: int
    rebased_over: tuple[Winner, ...] = ()
    seconds: float = 0.0
    rows: Mapping[str, int] = field(default_factory=dict)
    executions: int = 1


@dataclass(frozen=True, slots=True)
class NextVersion:
    """A version that is about to be created.

    Attributes:
        transaction: who makes it.
        manifest: what it says.
        as_told: the transaction as the version tells of it: with the one below it, and room for a digest.
        inline: the same in bytes.
    """

    transaction: Transaction
    manifest: Manifest
    as_told: Transaction
    inline: bytes


@dataclass(frozen=True, slots=True)
class RecordedCommit:
    """A commit inside a transaction over several tables, with all that is needed to make it again on another version.

    Attributes:
        transaction: as it was committed, rebased over whatever came in between.
        read: the version it stands on.
        scheme: how versions are named.
        begun: when the work began that its files come from, on the monotonic clock.
        keys, reuse, unchanged: as for ``Committer.commit``.
    """

    transaction: Transaction
    read: ManifestFile
    scheme: Scheme
    begun: float
    keys: WrittenKeys | KeyExistenceFilter | None = None
    reuse: IndexMetadata | None = None
    unchanged: bool = False

    @property
    def operation(self) -> Operation:
        return self.transaction.operation

    def files(self) -> Sequence[str]:
        """All that it wrote into the table's directory, apart from its version."""
        base: Manifest | None = self.read.manifest if self.transaction.read_version else None
        return [*new_files(self.operation, base), TRANSACTIONS + self.transaction.file_name]


@dataclass(slots=True)
class Race:
    """Where a commit stands: what it has been checked against, and what it lost to."""

    transaction: Transaction
    head: ManifestFile
    scheme: Scheme
    started: float
    taken: Taken | None = None
    """Digests of the files it brings; None where others made them."""
    rebaser: Rebaser | None = None
    """Takes the operation over other commits; the creation of a table has none to go over."""
    pending: PendingRows | None = None
    """New rows that are in no file until somebody commits them."""
    their_rows: dict[str, Any] = field(default_factory=dict)
    """By transaction id what was offered to be written to one file with our own."""
    written_for: tuple[str, ...] | None = None
    """Those whose rows are in the file that was written; None as long as there is none."""
    attempts: int = 0
    confirmed: bool = False
    """Whether the version we read was found to be the one that is there."""
    look: Look | None = None
    """The last look that our version goes on from, where a look is good for a while."""
    seen: int = 0
    """The head when we last looked."""
    newest: int = 0
    """The highest version we know of, whatever a listing says."""
    looked: float = 0.0
    """When we last looked which version is the newest."""
    begun: float = 0.0
    """When the work began that our new files come from."""
    files: list[str] | None = None
    """Our new files, once they have reached the disk."""
    announced: dict[str, Transaction | None] = field(default_factory=dict)
    """Transaction files of ours that may be there, so that they must be withdrawn, and what they tell of for certain."""
    unsynced: str = ""
    """The transaction file that was announced last, as long as it has not reached the disk."""
    place: QueuePlace | None = None
    """The lead, as long as it is ours."""
    waited: bool = False
    """Whether somebody else had the lead when we came."""
    offered: bool = False
    """Whether somebody may have committed our transaction for us, since it was offered and all versions were not gone over after that."""
    tried_by_others: int = 0
    """The highest version that somebody who hangs may yet create with our transaction in it; 0 for nobody."""
    dropped_fields: frozenset[int] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)
    rebased_over: list[Winner] = field(default_factory=list)
    lost_to: list[Winner] = field(default_factory=list)

    def result(self, version: int, seconds: float) -> CommitResult:
        """What the caller gets to know when the version is there."""
        return CommitResult(
            version=version,
            operation=self.transaction.operation.name,
            transaction_id=self.transaction.uuid,
            read_version=self.transaction.read_version,
            attempts=self.attempts,
            rebased_over=tuple(self.rebased_over),
            seconds=seconds,
            rows=self.counts,
        )

    def recorded(self, transaction: Transaction) -> RecordedCommit:
        """The commit, to be made again elsewhere. What it was rebased over is in it by now, and is not to be taken for its own."""
        by = self.rebaser
        beside = (by.keys, by.reuse, by.unchanged) if by is not None else (None, None, False)
        return RecordedCommit(without_marks(transaction), self.head, self.scheme, self.begun, *beside)

    @contextmanager
    def reading(self, version: int, head: int) -> Iterator[None]:
        """What a version in between names must be there and sound as well."""
        try:
            yield
        except (NotFound, CorruptTable) as error:
            raise self.unreadable(version, head, str(error)) from error

    def unreadable(self, version: int, head: int, why: str) -> HistoryUnavailable:
        return unreadable(version, head, self.transaction.read_version, why)

    def contention(self, uri: str, seconds: float) -> ContentionError:
        """The error after the last attempt that the caller allowed."""
        operation = self.transaction.operation.name
        last = f", last to {self.lost_to[-1]}" if self.lost_to else ""
        return ContentionError(
            f"{operation} on {uri} lost the race for a version {self.attempts} times{last}.",
            operation=operation,
            attempts=self.attempts,
            winners=self.lost_to,
            seconds=seconds,
        )

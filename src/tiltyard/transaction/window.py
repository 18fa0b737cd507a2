"""The window since the version a transaction was built on, judged as a whole before its verb is re-executed.

The commit loop stops at the first commit that it cannot be rebased over. If that conflict is retryable, later commits decide whether a
re-execution still means what the caller meant: over an overwrite or a restore it does not, whatever came before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tiltyard.errors import CorruptTable, HistoryUnavailable, IncompatibleConflict, NotFound, StorageError
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.transaction.context import Context
from tiltyard.transaction.log import Committed, VersionLog
from tiltyard.transaction.resolve import Incompatible, forbidden
from tiltyard.transaction.succession import fits
from tiltyard.transaction.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Window:
    """A transaction that met a retryable conflict, and how far its window is judged.

    Attributes:
        transaction: what was to be committed.
        judged: the last version of which it is certain that it does not rule out a re-execution.
    """

    transaction: Transaction
    judged: ManifestFile

    def judge(self, log: VersionLog, head: int, scheme: Scheme, met: Collection[int] = ()) -> Window:
        """Judges the versions up to ``head``, one after the other; those it has ``met`` allowed a re-execution already.

        Returns:
            The window that ends there.

        Raises:
            IncompatibleConflict: one of them does not go together with the transaction, so that it must not be re-executed.
            HistoryUnavailable: one of them cannot be read, so that nobody knows.
        """
        below = self.judged
        for version in range(below.manifest.version + 1, head + 1):
            theirs = self._committed(log, version, head, scheme)
            if not fits(theirs, below):
                raise self._unreadable(below.manifest.version, head, f"version {version} was made from another one")
            context = Context(winner=theirs.as_winner())
            verdict = forbidden(self.transaction, theirs.transaction, context=context) if version not in met else None
            if verdict is not None:
                raise self._refusal(verdict, theirs)
            below = theirs.file
        return Window(self.transaction, below)

    def _committed(self, log: VersionLog, version: int, head: int, scheme: Scheme) -> Committed:
        try:
            file = log.peek(version, scheme)
            return Committed(file, log.transaction_of(file))
        except (NotFound, CorruptTable) as error:
            raise self._unreadable(version, head, str(error)) from error
        except StorageError as error:
            if error.transient:
                raise
            raise self._unreadable(version, head, str(error)) from error

    def _unreadable(self, version: int, head: int, why: str) -> HistoryUnavailable:
        return unreadable(version, head, self.transaction.read_version, why)

    def _refusal(self, verdict: Incompatible, theirs: Committed) -> IncompatibleConflict:
        return IncompatibleConflict(
            verdict.reason,
            operation=self.transaction.operation.name,
            read_version=self.transaction.read_version,
            winners=[theirs.as_winner()],
            fragments=verdict.fragments,
            sample=verdict.sample,
        )


def unreadable(version: int, head: int, read_version: int, why: str) -> HistoryUnavailable:
    """The error for a version between the one that was read and the head that nobody can judge."""
    return HistoryUnavailable(
        f"Version {version}, between read version {read_version} and head {head}, cannot be read: {why}",
        read_version=read_version,
        missing=[version],
        head=head,
    )

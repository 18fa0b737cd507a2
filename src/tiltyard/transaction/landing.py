"""The one step that decides: creating the next version's file, and finding out whether that was us where the store does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiltyard.errors import AlreadyExists, CorruptTable, NotFound, OutcomeUnknown, StorageError, TiltyardError, Winner
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme, parse_transaction_name
from tiltyard.interfaces import CommitHandler
from tiltyard.transaction.log import Committed, VersionLog
from tiltyard.transaction.transaction import Transaction

READ_BACKS: Final = 3
"""How often we look again after an answer that leaves the outcome open."""


@dataclass(frozen=True, slots=True)
class Landed:
    """What came of a create.

    Attributes:
        winner: who has the version; None if it is ours.
        file: the version, if it proved to be ours by being read.
        doubtful: whether an earlier request, of which the store did not say what became of it, may have made the version before, too.
    """

    winner: Winner | None = None
    file: ManifestFile | None = None
    doubtful: bool = False


def _landed(holder: Winner | ManifestFile) -> Landed:
    return Landed(winner=holder) if isinstance(holder, Winner) else Landed(file=holder)


@dataclass(frozen=True, slots=True)
class Landing:
    """Creates versions of one table."""

    log: VersionLog
    handler: CommitHandler

    def create(self, transaction: Transaction, version: int, scheme: Scheme, data: bytes) -> Landed:
        """Creates the version's file, or finds out who has it.

        A request that failed without saying whether it was applied is sent again as it was: under one name, the same bytes or
        somebody else's can land, never both.
        """
        path = self.log.path(version, scheme)
        doubt: TiltyardError | None = None
        unsynced = False
        for _ in range(READ_BACKS):
            try:
                self.handler.create(self.log.store, path, data)
                return Landed(doubtful=doubt is not None)
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
                    return Landed()
                doubt = error
                break
            if not unsynced or isinstance(holder, Winner):
                return _landed(holder)
            try:
                self.log.store.sync([path])  # ours, but not yet safe from a power loss
            except StorageError as error:
                doubt = error  # a flush that failed once cannot be believed later
                break
            return _landed(holder)
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

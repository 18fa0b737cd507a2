"""The one step that decides: creating the next version's file, and finding out whether that was us where the store does not say."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tiltyard.errors import AlreadyExists, CorruptTable, HistoryUnavailable, NotFound, OutcomeUnknown, StorageError, TiltyardError, Winner
from tiltyard.format.hint import HINT_PATH, decode_hint, encode_hint
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme, parse_transaction_name
from tiltyard.interfaces import CommitHandler
from tiltyard.transaction.log import Committed, VersionLog
from tiltyard.transaction.succession import follows
from tiltyard.transaction.transaction import Transaction

READ_BACKS: Final = 3
"""How often we look again after an answer that leaves the outcome open."""

REFS: Final = ("_refs/tags/", "_refs/branches/")
"""What may keep a version from being cleaned up."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Creates versions of one table."""

    log: VersionLog
    handler: CommitHandler

    # ---- creating --------------------------------------------------------------------------------------------------------------

    def create(self, transaction: Transaction, version: int, scheme: Scheme, data: bytes) -> Winner | ManifestFile | None:
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

    # ---- in time, or late ------------------------------------------------------------------------------------------------------

    def is_newest(self, version: int, scheme: Scheme) -> bool:
        """Whether a version that is there is the latest for certain, by a few small questions; if not, a listing has to tell.

        The next one may be missing below the head where a cleanup took it and left this one, or where somebody lost it. A tag or a branch
        can bring that about, or a clock that went backwards; then the hint, which every writer renews, names a later version. Where
        names come in order a listing costs no more than this.
        """
        try:
            if self.log.store.ordered or self._hinted() != version or self._has_refs():
                return False
            self.log.store.head(self.log.path(version + 1, scheme))
        except NotFound:
            return True
        except StorageError:
            return False
        return False

    def check_in_time(self, transaction: Transaction, made: Manifest, scheme: Scheme) -> None:
        """Makes sure that the version we created is the next one, not an old number that a cleanup had set free.

        A writer that stalls before its create may find its number free again because the version that had it was cleaned up; what it
        creates then lies below the head, where nobody sees it. A cleanup that took that version took the one below it, too, unless
        somebody keeps that one by a tag or a branch; so in nearly every commit this costs a look at a few names.

        Raises:
            HistoryUnavailable: we were late; what we created is gone again.
            OutcomeUnknown: there is a later version that does not build on ours.
        """
        version = made.version
        try:
            head = self.log.head() if self._may_be_late(version, scheme) else None
            if head is None or head[0] <= version:
                return
            try:
                after = self.log.committed(version + 1, scheme)
            except NotFound:
                after = None
        except (StorageError, CorruptTable):
            return  # it is there; only this second look failed
        if after is not None:
            if follows(after, made):
                return
            raise OutcomeUnknown(
                f"Version {version} was created, but {version + 1} does not build on it; perhaps a cleanup had set its number free.",
                transaction_id=transaction.uuid,
                version=version,
                uri=self.log.store.uri,
            )
        with suppress(StorageError):
            self.log.store.delete(self.log.path(version, scheme))
        raise HistoryUnavailable(
            f"Version {version} had been there and was cleaned up while we were about to create it; the head is {head[0]}.",
            read_version=transaction.read_version,
            missing=[version],
            head=head[0],
        )

    def _may_be_late(self, version: int, scheme: Scheme) -> bool:
        store = self.log.store
        if store.ordered:
            return True  # a listing gives its first name at once, so there is no cheaper question
        if self._has_refs() or self._hinted() >= version:
            return True
        try:
            store.head(self.log.path(version - 1, scheme))
        except NotFound:
            return True
        return False

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

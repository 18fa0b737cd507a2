"""The versions of one table as they lie in a store: which is the latest, what one says, which transaction made it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tiltyard.errors import AlreadyExists, CorruptTable, NotFound, OutcomeUnknown, StorageError, TiltyardError, Winner
from tiltyard.format.flags import check_consistent
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import LENGTH, MAX_SECTION, ManifestFile, decode_manifest_file, is_intact, known_by_transaction
from tiltyard.format.names import Scheme, VersionName, all_versions, latest_version, manifest_path, parse_transaction_name
from tiltyard.interfaces import CommitHandler, ObjectStore, SendsAtOnce, ask_at_once
from tiltyard.transaction.operations import Restore
from tiltyard.transaction.transaction import Heading, Transaction

VERSIONS = "_versions/"
TRANSACTIONS = "_transactions/"
_FIRST_READ: Final = 8192
"""Bytes; most transactions are shorter."""
MOST_AHEAD: Final = 15
"""Versions that are read at once beside the first."""


@dataclass(frozen=True, slots=True)
class CreatedVersion:
    """A version together with the transaction that made it."""

    file: ManifestFile
    transaction: Transaction

    @property
    def manifest(self) -> Manifest:
        return self.file.manifest

    def as_winner(self) -> Winner:
        """The facts of this commit that an error tells of it."""
        return Winner(
            version=self.manifest.version,
            transaction_id=self.transaction.uuid,
            operation=self.transaction.operation.name,
            writer=str(self.manifest.writer or ""),
            message=self.transaction.message,
        )


class VersionLog:
    """Reads versions. Holds no state but the last manifest it read, so that the next one need not be checked from scratch.

    With ``verify`` each is compared with the digest inside it, where it has one.
    """

    def __init__(self, store: ObjectStore, *, verify: bool = False) -> None:
        self.store = store
        self._verify = verify
        self._last: ManifestFile | None = None
        self._ahead: dict[str, bytes] = {}
        self.newest_ahead = 0
        """The highest version that was read ahead."""

    def head(self) -> tuple[int, Scheme] | None:
        """The latest version and how its manifests are named, or None where there is no table."""
        try:
            return latest_version(self.store.names(VERSIONS), ordered=self.store.ordered)
        except NotFound:
            return None

    def versions(self) -> list[VersionName]:
        """All versions, ascending."""
        try:
            return all_versions(self.store.names(VERSIONS))
        except NotFound:
            return []

    def load(self, version: int, scheme: Scheme, *, lazily: bool = False) -> ManifestFile:
        """Reads one version; with ``lazily`` its fragments are checked only when somebody asks for one.

        Raises:
            NotFound: there is no such version.
            CorruptTable: its file is not what it must be.
            UnsupportedFeature: a reader of the table must know something that we do not.
        """
        file = self._read(version, scheme, check=True, lazily=lazily)
        self.remember(file)
        return file

    def peek(self, version: int, scheme: Scheme) -> ManifestFile:
        """What ``load`` gives, its fragments and indices not looked at: for facts about a version, not to read its rows or build on it.

        Costs far less where a long history is walked. Raises what ``load`` raises.
        """
        return self._read(version, scheme, check=False)

    def read_ahead(self, first: int, last: int, scheme: Scheme) -> None:
        """Reads several versions at once, as far as they are there, for those who will ask for them one after the other."""
        paths = {manifest_path(version, scheme): version for version in range(first, min(last, first + MOST_AHEAD) + 1)}
        if next(iter(paths)) in self._ahead:
            return
        self._ahead.clear()
        self.newest_ahead = 0
        if len(paths) == 1 or not isinstance(self.store, SendsAtOnce):
            return
        for path, data in zip(paths, ask_at_once(self.store, list(map(self._asking, paths))), strict=True):
            if data is None:
                return
            self._ahead[path] = data
            self.newest_ahead = paths[path]

    def take(self, version: int, scheme: Scheme, data: bytes) -> None:
        """Takes over what somebody else has read or written, for who asks for it next; checked as if it came from the store."""
        self._ahead[manifest_path(version, scheme)] = data

    def _asking(self, path: str) -> Callable[[], bytes | None]:
        def ask() -> bytes | None:
            try:
                return self.store.get(path)
            except (NotFound, StorageError):
                return None

        return ask

    def _read(self, version: int, scheme: Scheme, *, check: bool, lazily: bool = False) -> ManifestFile:
        path = manifest_path(version, scheme)
        data = self._ahead.pop(path, None) or self.store.get(path)
        file = decode_manifest_file(data, source=path, version=version, known=self._last, check=check, lazily=lazily)
        if self._verify:
            is_intact(data, file, path)
        manifest = file.manifest
        check_consistent(manifest.reader_flags, manifest.writer_flags, max_allocated_field_id=manifest.max_allocated_field_id, source=path)
        return file

    def last_read(self, version: int) -> ManifestFile | None:
        """A version, if it is the one that was read or written last: files of versions never change. It may be gone by now."""
        return self._last if self._last is not None and self._last.manifest.version == version else None

    def remember(self, file: ManifestFile) -> None:
        """Tells of a version that was just written or read, so that the next need not be checked from scratch."""
        # One whose fragments nobody looked at takes the place of nothing better.
        if not file.partial and (file.manifest.fragments.checked or self._last is None or not self._last.manifest.fragments.checked):
            self._last = file

    def transaction_of(self, file: ManifestFile) -> Transaction:
        """The transaction that made a version: the copy inside the manifest, or else the file it names.

        Raises:
            NotFound: there is neither.
            CorruptTable: it cannot be decoded.
        """
        manifest = file.manifest
        if file.transaction is not None:
            return Transaction.from_bytes(file.transaction, f"the transaction inside version {manifest.version}")
        name = manifest.transaction_file
        if not name:
            raise NotFound(f"Version {manifest.version} names no transaction.", name=str(manifest.version))
        if name.startswith(".") or any(mark in name for mark in "/\\\0"):
            raise CorruptTable(f"version {manifest.version}", f"its transaction file is called {name[:60]!r}")
        return Transaction.from_bytes(self.store.get(TRANSACTIONS + name), TRANSACTIONS + name)

    def after_append(self, version: int, scheme: Scheme, below: ManifestFile) -> tuple[ManifestFile, Heading]:
        """A version made by new rows on top of ``below``, of which no more is read than its transaction.

        That stands where it stood in ``below``, as new rows leave what comes before it alone. Where it does not, what is read is no
        transaction or not the one that the caller looks for.

        Raises:
            NotFound: there is no such version.
            CorruptTable: there is no transaction in that place.
        """
        path, start = manifest_path(version, scheme), below.transaction_at or 0
        data = self.store.get_range(path, start, _FIRST_READ)
        end = LENGTH.size + int.from_bytes(data[: LENGTH.size], "little")
        if end > _FIRST_READ:
            data = self.store.get_range(path, start, min(end, MAX_SECTION))
        transaction = data[LENGTH.size : end]
        heading = Heading.from_bytes(transaction, f"the transaction inside version {version}")
        return known_by_transaction(below, version, transaction, start), heading

    def heading_of(self, file: ManifestFile) -> Heading:
        """The heading of the transaction that made a version. Raises what ``transaction_of`` raises."""
        if file.transaction is not None:
            return Heading.from_bytes(file.transaction, f"the transaction inside version {file.manifest.version}")
        transaction = self.transaction_of(file)
        return Heading(transaction.uuid, transaction.properties)

    def committed(self, version: int, scheme: Scheme, *, lazily: bool = False, last: int = 0) -> CreatedVersion:
        """A version and its transaction; with ``last``, those up to that one will be asked for as well."""
        if last > version:
            self.read_ahead(version, last, scheme)
        return self.with_transaction(self.load(version, scheme, lazily=lazily))

    def with_transaction(self, file: ManifestFile) -> CreatedVersion:
        return CreatedVersion(file, self.transaction_of(file))

    def transactions(self, first: int, last: int, scheme: Scheme) -> Iterator[CreatedVersion]:
        for version in range(first, last + 1):
            yield self.committed(version, scheme)


def to_restore(log: VersionLog, transaction: Transaction, scheme: Scheme, vet: Callable[[ManifestFile], object]) -> Manifest | None:
    """The version that a Restore goes back to, once it was vetted; None for any other operation."""
    if not isinstance(transaction.operation, Restore):
        return None
    file = log.load(transaction.operation.version, scheme)
    vet(file)
    return file.manifest


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

    def create(self, transaction: Transaction, version: int, scheme: Scheme, data: bytes, *, ahead: int = 0) -> Landed:
        """Creates the version's file, or finds out who has it.

        A request that failed without saying whether it was applied is sent again as it was: under one name, the same bytes or
        somebody else's can land, never both. Who was late before reads so many versions ``ahead`` of the one that somebody has.
        """
        path = manifest_path(version, scheme)
        doubt: TiltyardError | None = None
        unsynced = False
        for _ in range(READ_BACKS):
            try:
                self.handler.create(self.log.store, path, data)
                return Landed(doubtful=doubt is not None)
            except AlreadyExists as error:
                doubt = error
                self.log.read_ahead(version, version + ahead, scheme)
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
            f"It is not known yet whether version {version} of {self.log.store.uri} was committed ({doubt}).",
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
        theirs = CreatedVersion(file, self.log.transaction_of(file))
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

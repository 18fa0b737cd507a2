"""Whether files hold the bytes that were written (I14): each is read and compared with its digest."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tiltyard.errors import CorruptTable, NotFound, StorageError, TiltyardError
from tiltyard.format.digests import SEAL, Digest
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.transaction.log import TRANSACTIONS
from tiltyard.transaction.new_files import at_once
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import without_marks
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.digest_history import digests_in
from tiltyard.verbs.engine.verify_files import FileAt, Progress, damage, files_of, known_digests


@dataclass(slots=True)
class DataCheck:
    """The files of several versions, gathered first, then compared.

    Attributes:
        verified: how many files had a digest.
        unverified: how many had none: others wrote them, or a foreign cleanup removed what was kept of them.
        damaged: what is wrong with which file, and a version that names it.
    """

    access: TableAccess
    verified: int = 0
    unverified: int = 0
    damaged: list[tuple[str, int]] = field(default_factory=list)
    _files: dict[str, tuple[FileAt, int]] = field(default_factory=dict)
    _known: dict[str, Digest] = field(default_factory=dict)
    _manifests: dict[int, Manifest] = field(default_factory=dict)

    def add(self, file: ManifestFile, transaction: Transaction | None) -> None:
        """Takes in a version, and the digests that its transaction keeps."""
        manifest = file.manifest
        try:
            new = [found for found in files_of(self.access, manifest) if found.key not in self._files]
            if transaction is not None:
                self._known.update(digests_in(transaction, f"the transaction inside version {manifest.version}"))
                self._compare_copies(file, transaction)
        except TiltyardError as error:
            self.damaged.append((str(error), manifest.version))
            return
        self._files.update({found.key: (found, manifest.version) for found in new})
        self._manifests[manifest.version] = manifest

    def _compare_copies(self, file: ManifestFile, transaction: Transaction) -> None:
        """A version of ours and the transaction file it names tell the same."""
        name = file.manifest.transaction_file
        if not name or file.transaction is None or SEAL not in transaction.properties:
            return
        path = TRANSACTIONS + name
        try:
            other = Transaction.from_bytes(self.access.store.get(path), path)
        except NotFound:
            return  # asked elsewhere
        if without_marks(other) != without_marks(transaction):
            raise CorruptTable(path, f"it is not the transaction inside version {file.manifest.version}")

    def run(self, progress: Progress | None) -> None:
        """Reads and compares every file once."""
        self._look_up()
        wanted = [(file, version) for key, (file, version) in self._files.items() if key in self._known]
        self.unverified = len(self._files) - len(wanted)
        counter = _Counter(progress, sum(self._known[file.key].size for file, _ in wanted))

        def compare(one: tuple[FileAt, int]) -> tuple[str, int] | None:
            file, version = one
            expected = self._known[file.key]
            try:
                wrong = damage(file, expected)
            except NotFound:
                return None  # that it is missing is another invariant
            except StorageError as error:
                return f"{file.shown} cannot be read: {error}", version
            finally:
                counter.add(expected.size)
            return None if wrong is None else (f"{file.shown} is damaged: {wrong}", version)

        for found in at_once(compare, wanted):
            self.verified += 1
            if found is not None:
                self.damaged.append(found)

    def _look_up(self) -> None:
        """The digests of files whose transactions are not among the versions: of versions that are gone, and of bases."""
        missing: dict[int, list[FileAt]] = {}
        for key, (file, version) in self._files.items():
            if key not in self._known:
                missing.setdefault(version, []).append(file)
        for version, files in missing.items():
            try:
                self._known.update(known_digests(self.access, files, self._manifests[version]))
            except TiltyardError as error:
                self.damaged.append((str(error), version))


class _Counter:
    """Tells how far it is, from several threads."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._done, self._total)

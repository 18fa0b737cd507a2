"""Makes a new table of a version of this one: by reference to its files, or with copies of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, OutcomeUnknown, StorageError, TiltyardError, complete
from tiltyard.format.digests import DIGESTS, encode_digests
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile, encode_manifest_file
from tiltyard.format.names import Scheme
from tiltyard.format.values import BasePath
from tiltyard.interfaces import ObjectStore
from tiltyard.storage import refuse_file
from tiltyard.storage.transfer import transfer
from tiltyard.transaction.apply.coverage import indices_of
from tiltyard.transaction.apply.next_manifest import Stamp, clone
from tiltyard.transaction.log import TRANSACTIONS
from tiltyard.transaction.operations import Clone
from tiltyard.transaction.race import CommitResult
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import to_be_sealed
from tiltyard.verbs.engine.access import WRITER, TableAccess
from tiltyard.verbs.engine.verify_files import files_of, known_digests

Progress = Callable[[int, int], object]
"""Is told how many of how many bytes are there."""

_TICK_NS: Final = 1000
_WORKERS: Final = 8


@dataclass(frozen=True, slots=True)
class Cloning:
    """How a table is cloned.

    Attributes:
        shallow: whether the new table refers to the files of this one, instead of having its own.
        workers: how many files are copied at a time.
        progress: is told how far it is.
        config: for the new table, beside what it has of this one.
    """

    shallow: bool = True
    workers: int = _WORKERS
    progress: Progress | None = None
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.workers, int) or self.workers < 1:
            raise InvalidInput("workers must be a number of at least 1.", argument="workers")


def clone_table(source: TableAccess, file: ManifestFile, target: TableAccess, how: Cloning, properties: Mapping[str, str]) -> CommitResult:
    """Makes the first version of the table at ``target``, under the number of the version it is made of.

    That version is created last, so nobody sees half a clone. Copies of one that did not come to its end stay, and the next try goes on
    from there: another clone of the same version, under way to the same place, has files of the same names.

    Raises:
        AlreadyExists: there is a table at the target.
        OutcomeUnknown: the store left open whether it was made.
    """
    if target.log.head() is not None:
        raise AlreadyExists.table(target.store.uri)
    refuse_file(target.uri)
    target.ensure_safe()
    begun = target.runtime.clock.monotonic()
    version = file.manifest.version
    operation = Clone(how.shallow, source.branch, version, source.lance_uri)
    transaction = Transaction(version, target.runtime.random.uuid(), operation, properties)
    now = int(target.runtime.clock.now().timestamp() * 1_000_000) * 1000
    stamp = Stamp(max(now, file.manifest.timestamp_ns + _TICK_NS), WRITER, transaction.file_name, how.config)
    manifest = clone(operation, file.manifest, stamp)  # refuses what cannot be cloned, before anything is copied
    if not how.shallow:
        _copy_files(source, file.manifest, target.store, how)
        _check_still_there(source, file)
        transaction = _with_digests(source, file.manifest, transaction)
    inline = to_be_sealed(transaction).to_bytes()
    data, _ = encode_manifest_file(manifest, inline)
    announced = TRANSACTIONS + transaction.file_name
    try:
        target.store.put(announced, inline)
        if target.committer.landing.create(transaction, version, Scheme.V2, data).winner is not None:
            raise AlreadyExists.table(target.store.uri)
    except OutcomeUnknown as error:
        complete(error, operation=Clone.name, read_version=version, winners=(), transaction_id=transaction.uuid, attempts=1)
        # There is no handle on the new table that could be asked.
        call = f"outcome_at(uri, {transaction.uuid!r}, version={version})"
        raise error.advised(f"Nothing was deleted. Call ty.outcomes.{call} of the new table once the store answers again.") from error
    except TiltyardError:
        with suppress(StorageError):
            target.store.delete(announced)
        raise
    target.committer.head_check.leave_hint(version)
    seconds = target.runtime.clock.monotonic() - begun
    return CommitResult(version, Clone.name, transaction.uuid, version, attempts=1, seconds=seconds)


def _with_digests(source: TableAccess, manifest: Manifest, transaction: Transaction) -> Transaction:
    """The digests go with the copies: nobody could take them from these later and know that they were copied right."""
    files = list(files_of(source, manifest))
    known = known_digests(source, files, manifest)
    found = {file.inside: known[file.key] for file in files if file.key in known}
    return replace(transaction, properties={**transaction.properties, DIGESTS: encode_digests(found)}) if found else transaction


def _check_still_there(source: TableAccess, file: ManifestFile) -> None:
    """A version that was removed while its files were copied may have lost some of them before they were."""
    version = file.manifest.version
    if not any(name.version == version for name in source.log.versions()):
        raise NotFound(f"Version {version} of {source.store.uri} was removed while it was copied.", name=str(version))


# ---- copies ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """A file that a version needs: where it is, and what it is called in the new table."""

    store: ObjectStore
    path: str
    target: str
    size: int


def _copy_files(source: TableAccess, manifest: Manifest, target: ObjectStore, how: Cloning) -> None:
    files = list(_files(source, manifest))
    total, done = sum(file.size for file in files), 0
    there = {info.path: info.size for top in ("data/", "_deletions/", "_indices/") for info in target.list(top)}
    # Whatever has a name is complete, and names are never given twice.
    wanted = [file for file in files if there.get(file.target) != file.size]
    done = total - sum(file.size for file in wanted)
    if how.progress is not None:
        how.progress(done, total)
    with ThreadPoolExecutor(how.workers, thread_name_prefix="clone") as pool:
        under_way = {pool.submit(transfer, file.store, file.path, target, file.target): file for file in wanted}
        try:
            for future in as_completed(under_way):
                future.result()
                done += under_way[future].size
                if how.progress is not None:
                    how.progress(done, total)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _files(source: TableAccess, manifest: Manifest) -> Iterator[_File]:
    """All files of a version, each once; those that lie beside others included."""
    where = _Whereabouts(source, {path.id: path for path in manifest.base_paths})
    seen: set[str] = set()
    for fragment in manifest.fragments:
        for file in fragment.files:
            if file.path not in seen:
                seen.add(file.path)
                yield where.file(file.base_id, f"data/{file.path}", file.size)
                yield from where.below(file.base_id, f"data/{file.path.removesuffix('.lance')}/")
        if fragment.deletion_file is not None:
            yield where.file(fragment.deletion_file.base_id, fragment.deletion_file.path(fragment.id))
    for index in indices_of(manifest):
        if index.fields:
            yield from where.below(index.base_id, f"_indices/{index.uuid}/")


class _Whereabouts:
    """Finds files in the table and in its bases."""

    def __init__(self, source: TableAccess, bases: Mapping[int, BasePath]) -> None:
        self._source = source
        self._bases = bases
        self._opened: dict[int | None, ObjectStore] = {None: source.store}

    def file(self, base: int | None, path: str, size: int = 0) -> _File:
        store, there = self._at(base, path)
        return _File(store, there, path, size or store.head(there).size)

    def below(self, base: int | None, directory: str) -> Iterator[_File]:
        store, there = self._at(base, directory)
        for info in store.list(there):
            yield _File(store, info.path, directory + info.path[len(there) :], info.size)

    def _at(self, base: int | None, path: str) -> tuple[ObjectStore, str]:
        if base not in self._opened:
            assert base is not None
            self._opened[base] = self._source.open_base(self._bases[base])
        inside = base is None or self._bases[base].is_dataset_root
        return self._opened[base], path if inside else path.partition("/")[2]

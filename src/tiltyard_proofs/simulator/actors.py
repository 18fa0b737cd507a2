"""Who takes part in a run: writers, a compactor, a cleaner and a reader, each a plain function over the store it was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tiltyard.errors import (
    ConflictError,
    ContentionError,
    CorruptTable,
    HistoryUnavailable,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    StorageError,
)
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme, all_versions, manifest_path
from tiltyard.interfaces import CommitHandler, CommitQueue, Runtime
from tiltyard.testing.faults import Fault
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.footprint import SINGLETONS
from tiltyard.transaction.log import TRANSACTIONS, VERSIONS, VersionLog
from tiltyard.transaction.looks import LONGER
from tiltyard.transaction.operations import ReserveFragments
from tiltyard.transaction.transaction import Transaction
from tiltyard_proofs.simulator.index_intentions import build, index_path
from tiltyard_proofs.simulator.intentions import Built, Intention, View, built
from tiltyard_proofs.simulator.model import Violation
from tiltyard_proofs.simulator.stepping import Actor, SteppedStore
from tiltyard_proofs.simulator.template import SCHEME, TAGGED, WRITER
from tiltyard_proofs.simulator.world import Attempt, World

RETRIES: Final = 4
CLEANUPS: Final = 2
"""How often a cleaner cleans up."""

MakeCommitter = Callable[[VersionLog, CommitHandler, Runtime], Committer]


def real_committer(log: VersionLog, handler: CommitHandler, runtime: Runtime) -> Committer:
    """The commit loop as it is; a test with a planted bug gives another one."""
    return Committer(log, handler, runtime, WRITER)


class _SharedLog(VersionLog):
    """Reads as ever, but decodes the same bytes once for all actors: decoding depends on nothing else, and took a third of the time."""

    def __init__(self, store: SteppedStore, world: World) -> None:
        super().__init__(store)
        self._world = world

    def _read(self, version: int, scheme: Scheme, *, check: bool, lazily: bool = False) -> ManifestFile:
        path = manifest_path(version, scheme)
        return self._world.manifest(path, self.store.get(path))


@dataclass(slots=True)
class Means:
    """What an actor has at hand."""

    base: ManifestFile
    """The newest version when the run began."""
    world: World
    actor: Actor
    store: SteppedStore
    runtime: Runtime
    handler: CommitHandler
    make_committer: MakeCommitter = real_committer
    retries: int | None = RETRIES
    executions: int = 3
    """How often an intention is worked out anew after a conflict that allows it."""
    made: ManifestFile | None = None
    """The version committed last."""
    look_seconds: float = 0.0
    queue: CommitQueue | None = None
    offers_rows: bool = False
    """Whether he leaves it to whoever commits them to write his new rows."""
    _warm: Committer | None = field(default=None, repr=False)

    def committer(self) -> Committer:
        """A new one; where looks are good for a while or there is a queue, the same as before, which remembers things."""
        if self._warm is None:
            made = self.make_committer(_SharedLog(self.store, self.world), self.handler, self.runtime)
            if not self.look_seconds and self.queue is None:
                return made
            self._warm = replace(made, look_seconds=self.look_seconds, queue=self.queue)
        return self._warm


# ---- writers ---------------------------------------------------------------------------------------------------------------


def write(means: Means, intentions: Sequence[Intention]) -> None:
    """Carries out one intention after the other, each on the newest version it can see, or first on the one it made."""
    for wanted in intentions:
        for execution in range(means.executions):
            if not _carry_out(means, wanted, _known(means, wanted) if not execution else None):
                break


def _known(means: Means, wanted: Intention) -> ManifestFile | None:
    """The version a writer made last, if he goes on from it without another look; for new rows he need not have read it."""
    made = means.made
    if made is None or means.look_seconds:
        return made
    fit = means.offers_rows and wanted.kind == "append" and not any(field.primary_key for field in made.manifest.fields)
    return made if fit else None


def _carry_out(means: Means, wanted: Intention, known: ManifestFile | None) -> bool:
    """Whether to try again on a newer version."""
    committer = means.committer()
    try:
        read = open_latest(means) if known is None else (known, SCHEME)
    except (StorageError, NotFound):
        return True
    if wanted.kind == "compact":
        return compact(means, committer, read, wanted)
    made = build(_view(means, read[0]), wanted)
    return made is not None and commit(means, committer, wanted, made, *read) == "again"


def write_pinned(means: Means, wanted: Intention) -> None:
    """Carries out one intention, once, on the version there was when the run began."""
    made = build(_view(means, means.base), wanted)
    if made is None:
        means.world.problems.append(f"{wanted} has nothing to do")
    else:
        commit(means, means.committer(), wanted, made, means.base, SCHEME)


def _view(means: Means, file: ManifestFile) -> View:
    return View(means.world, file.manifest, means.actor.name, means.store if means.offers_rows else None)


def open_latest(means: Means) -> tuple[ManifestFile, Scheme]:
    log = VersionLog(means.store)
    found = log.head()
    if found is None:
        raise Violation("P1: there is no table any more")
    return _manifest(means, manifest_path(*found)), found[1]


def commit(means: Means, committer: Committer, wanted: Intention, made: Built, read: ManifestFile, scheme: Scheme) -> str:
    """Commits through the real loop and notes down what it said: ``done``, ``again`` (it may be tried anew) or ``over``."""
    transaction = Transaction(read.manifest.version, means.runtime.random.uuid(), made.operation, made.properties)
    attempt = Attempt(transaction.uuid, means.actor.number, str(wanted), made.operation, made.effect, transaction.read_version)
    attempt.troubled = bool(means.actor.faults)
    means.world.attempts[transaction.uuid] = attempt
    try:
        result, made_file = committer.commit(transaction, read, scheme, RetryPolicy(means.retries), keys=made.keys, pending=made.pending)
    except OutcomeUnknown as error:
        attempt.outcome, attempt.version, attempt.error = "unknown", error.version, error.kind
        return "over"
    except (ConflictError, ContentionError, HistoryUnavailable, StorageError, NotFound, CorruptTable) as error:
        attempt.outcome, attempt.error = "refused", error.kind
        if isinstance(error, CorruptTable):
            means.world.problems.append(f"I2: {means.actor.name} met {error}")
        return "again" if isinstance(error, HistoryUnavailable) or getattr(error, "retryable", False) else "over"
    except InvalidInput as error:
        if Fault.STALE_LISTING not in means.actor.faults.values():
            raise
        # On a version that an old listing takes for the newest, fragments may be missing that were reserved since.
        attempt.outcome, attempt.error = "refused", error.kind
        return "over"
    attempt.outcome, attempt.version = "committed", result.version
    means.made = made_file
    means.world.acknowledged = max(means.world.acknowledged, result.version)
    return "done"


def compact(means: Means, committer: Committer, read: tuple[ManifestFile, Scheme], wanted: Intention) -> bool:
    """Reserves a fragment id, then rewrites; both are built on the version read first, as stock compaction does it."""
    view = View(means.world, read[0].manifest, means.actor.name)
    if not view.targets(wanted.keys):
        return False
    reserved = built(ReserveFragments(1))
    said = commit(means, committer, Intention("reserve"), reserved, *read)
    if said != "done":
        return said == "again"
    number = means.made.manifest.max_fragment_id if means.made is not None else None
    assert number is not None
    made = build(view, replace(wanted, number=number))
    return made is not None and commit(means, means.committer(), wanted, made, *read) == "again"


# ---- a cleaner -------------------------------------------------------------------------------------------------------------


def clean(means: Means, older_than: float) -> None:
    """Removes versions that are neither the latest, nor tagged, nor younger than so many seconds, and files only these name.

    Files that no version names are left alone: in the time of a run they are all too young to tell them from work under way.
    """
    for _ in range(CLEANUPS):
        try:
            _clean_once(means, VersionLog(means.store), older_than)
        except (StorageError, NotFound):
            continue


def _clean_once(means: Means, log: VersionLog, older_than: float) -> None:
    names = all_versions(means.store.names(VERSIONS))
    seen = means.runtime.clock.monotonic()
    files = {name.version: _manifest(means, manifest_path(name.version, name.scheme)) for name in names}
    now, latest = means.runtime.clock.now().timestamp(), names[-1].version
    old = [name for name in names if name.version not in (latest, TAGGED) and now - _written(files[name.version].manifest) > older_than]
    gone = {name.version for name in old}
    kept = {path for version, file in files.items() if version not in gone for path in files_of(file.manifest)}
    outlast_looks(means, seen)
    for name in old:
        means.store.delete(manifest_path(name.version, name.scheme))
    for path in sorted({path for version in gone for path in files_of(files[version].manifest)} - kept):
        means.store.delete(path)


def outlast_looks(means: Means, seen: float) -> None:
    """As a cleanup does: waits until nobody relies on a look from before the versions were seen."""
    clock = means.runtime.clock
    while clock.monotonic() < seen + LONGER * means.look_seconds:
        clock.sleep(means.look_seconds / 4)


def _manifest(means: Means, path: str) -> ManifestFile:
    return means.world.manifest(path, means.store.get(path))


def _written(manifest: Manifest) -> float:
    return manifest.timestamp_ns / 1e9


def files_of(manifest: Manifest) -> list[str]:
    """Every file a version names, below the table's root."""
    found = [f"data/{file.path}" for fragment in manifest.fragments for file in fragment.files]
    found += [piece.deletion_file.path(piece.id) for piece in manifest.fragments if piece.deletion_file is not None]
    if manifest.index_section:
        found += [index_path(index.uuid) for index in decode_indices(manifest, "simulated") if index.name not in SINGLETONS]
    if manifest.transaction_file:
        found.append(TRANSACTIONS + manifest.transaction_file)
    return found


# ---- a reader --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Reading:
    """What a reader saw of a version."""

    version: int
    rows: dict[str, object]
    acknowledged: int
    """The highest version that had been acknowledged when it began to look."""


def read_twice(means: Means, readings: list[Reading]) -> None:
    """Opens the latest version and reads it; later reads it again, at the version it is pinned to."""
    for _ in range(2):
        acknowledged = means.world.acknowledged
        try:
            file, scheme = open_latest(means)
            version = file.manifest.version
            readings.append(Reading(version, _rows(means, file), acknowledged))
            again = _manifest(means, manifest_path(version, scheme))
            readings.append(Reading(version, _rows(means, again), acknowledged))
        except (NotFound, StorageError):
            continue  # cleaned up under the reader


def _rows(means: Means, file: ManifestFile) -> dict[str, object]:
    for fragment in file.manifest.fragments:
        if fragment.deletion_file is not None:
            means.store.get(fragment.deletion_file.path(fragment.id))
    return dict(means.world.rows_of(file.manifest))

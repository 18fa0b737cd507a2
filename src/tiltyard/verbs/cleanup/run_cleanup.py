"""Removes old versions and uncommitted files, while others go on writing.

The order of work makes it safe to be interrupted anywhere, and to run twice at once: what is to go is recorded; then versions go, the
oldest first; then the files that only they named. Between these steps it looks again at who has come meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tiltyard.errors import ContentionError, NotFound
from tiltyard.format.names import VersionName, manifest_path
from tiltyard.interfaces import HasDirectories, ObjectStore
from tiltyard.transaction.log import TRANSACTIONS
from tiltyard.transaction.looks import LONGER, look_seconds
from tiltyard.transaction.operations import Restore
from tiltyard.transaction.transaction import Heading
from tiltyard.verbs.cleanup.abandoned_files import TREE, Leftover, leftovers
from tiltyard.verbs.cleanup.cleanup_plan import (
    Claims,
    Policy,
    Survey,
    add_announced,
    add_late_files,
    announced,
    claims_of,
    files_of,
    groups_of,
    kept_versions,
    line_begins,
    load_version,
    named_by_staged,
    names_in,
    take_survey,
    understood,
    verdict,
)
from tiltyard.verbs.cleanup.cleanup_records import DRAIN, CleanupRecords, Journal
from tiltyard.verbs.cleanup.foreign_writers import LEFT_TO_FOREIGN
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.digest_history import keep_digests
from tiltyard.verbs.explain import OLD_RECORD, old_attempts
from tiltyard.verbs.statistics.statistics_records import Remaining, clean_records

LOOKS: Final = 100
"""How often the newest version is looked for while others remove it again."""

AT_ONCE: Final = 16
"""Files that are deleted at a time: on an object store each takes a while."""

YOUNG: Final = timedelta(minutes=1)
"""Versions that the store made at least so long before the latest were seen by every writer who relies on a look."""
CLOCKS_DIFFER: Final = timedelta(hours=1)
"""No clock of a cleaner is further ahead of its store's."""

EMPTIED: Final = ("_indices/", "_deletions/", "_refs/", "_tiltyard/", TREE)
"""Where directories come and go. Others every commit needs."""

Progress = Callable[[int, int], object]
"""Is told how many of how many files are deleted."""


@dataclass(frozen=True, slots=True)
class CleanedFile:
    """A file that a cleanup removes, or that it keeps although no version names it; and why."""

    path: str
    kind: str
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What a cleanup did, or would do.

    Attributes:
        uri: the table.
        dry_run: whether nothing was changed.
        floor: versions below this one are removed, except those in ``kept``.
        versions: versions that were removed.
        kept: versions that stay, each with the reasons.
        removed: files that were removed, those of versions first.
        held: files that no version names and that stay for now.
    """

    uri: str
    dry_run: bool
    floor: int
    versions: tuple[int, ...]
    kept: Mapping[int, tuple[str, ...]]
    removed: tuple[CleanedFile, ...]
    held: tuple[CleanedFile, ...]

    @property
    def files(self) -> dict[str, int]:
        """How many files were removed, by kind."""
        return dict(Counter(file.kind for file in self.removed))

    @property
    def bytes(self) -> int:
        """How many bytes the removed files had."""
        return sum(file.bytes for file in self.removed)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        kept = {str(version): list(reasons) for version, reasons in self.kept.items()}
        return {**asdict(self), "kept": kept, "files": self.files, "bytes": self.bytes}


def deletions(store: ObjectStore, paths: Sequence[str]) -> Iterator[None]:
    """Deletes files, in any order, and says so after each; many of them several at a time."""
    if len(paths) < AT_ONCE:
        for path in paths:
            store.delete(path)
            yield
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(store.delete, paths)


def cleanup_table(
    access: TableAccess,
    main: TableAccess,
    own: int,
    policy: Policy,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    patient: bool = True,
) -> CleanupReport:
    """Cleans up one line of history.

    Args:
        access: where it lies.
        main: the table's main line, which has the tags and branches.
        own: the caller's version, which stays.
        policy: what may go.
        dry_run: only reports what would be removed.
        progress: is told how far it is.
        patient: whether to wait, on stores where writers rely on looks for a while, until nobody takes a number that goes for free; else
            versions that are too young for that stay.
    """
    work = _Work(access, main, own, policy, patient)
    if not dry_run:
        work.carry_out(progress or (lambda done, total: None))
    return work.report(dry_run)


@dataclass(slots=True)
class _Work:
    access: TableAccess
    main: TableAccess
    own: int
    policy: Policy
    patient: bool
    survey: Survey = field(init=False)
    seen: float = field(init=False)
    """When all versions of the survey were there, by the clock that nobody sets."""
    records: CleanupRecords = field(init=False)
    begin: int = field(init=False)
    kept: dict[int, list[str]] = field(init=False)
    going: dict[int, VersionName] = field(init=False)
    claims: Claims = field(init=False)
    attempts: list[tuple[str, int]] = field(init=False)
    """Records of failed attempts that go."""
    leftovers: list[Leftover] = field(init=False)
    deleted: bool = False
    """Whether the versions are gone already."""

    def __post_init__(self) -> None:
        access, policy = self.access, self.policy
        self.survey = take_survey(access)
        self.seen = access.runtime.clock.monotonic()
        self.attempts = list(old_attempts(access, self.survey.now, policy.grace if policy.older_than is None else policy.older_than))
        self.leftovers = list(leftovers(access, self.main, self.survey.now, policy.grace))
        self.records = CleanupRecords.of(access, self.survey.head)
        self.begin = line_begins(access, self.survey, policy, self.records.floor)
        if not self.patient and self._look_seconds:
            self.begin = min([self.begin, *(name.version for name in self.survey.versions if self._is_young(name))])
        self.kept = kept_versions(access, self.main, policy, self.own)
        self.going = {
            version.version: version
            for version in self.survey.versions
            if version.version < self.begin and version.version not in self.kept
        }
        self.claims = claims_of(access, self.main, self.survey, self.going, policy)
        self.claims.named.update(policy.named)
        self.claims.committed.update(self.records.committed)
        add_late_files(access, self.survey, self.claims.left)
        refused = self.records.refused_for_long(self.survey.now, self._drain)
        add_announced(access, self.survey, self.claims, policy, refused, groups_of(self.records.files))
        for version in self.claims.restoring:
            self._keep(version, "being restored")
        self._leave_to_foreign()

    # ---- looks of writers ----------------------------------------------------------------------------------------------------

    @property
    def _look_seconds(self) -> float:
        """For so long a writer may go on without seeing what we do."""
        return LONGER * look_seconds(self.access.store)

    @property
    def _drain(self) -> timedelta:
        return max(min(DRAIN, self.policy.grace), timedelta(seconds=self._look_seconds))

    def _is_young(self, name: VersionName) -> bool:
        """Whether a writer may not have seen a version yet, for all that the store's clock and ours say."""
        pair = (name, self.survey.versions[-1])
        mine, head = (self.survey.manifests.get(manifest_path(version.version, version.scheme)) for version in pair)
        if mine is None or head is None:
            return True
        return head.modified - mine.modified < YOUNG and self.survey.now - mine.modified < CLOCKS_DIFFER

    def _outlast_looks(self) -> None:
        """Waits until each writer who goes on has seen the versions that go: till then it would take one's number for free."""
        left = self.seen + self._look_seconds - self.access.runtime.clock.monotonic()
        if self._look_seconds and left > 0 and any(map(self._is_young, self.going.values())):
            self.access.runtime.clock.sleep(left)

    # ---- deciding ------------------------------------------------------------------------------------------------------------

    def _keep(self, version: int, reason: str) -> None:
        """Takes back the decision about a version that is still there."""
        name = self.going.pop(version, None)
        self.kept.setdefault(version, []).append(reason)
        if name is not None and (file := load_version(self.access, name)) is not None:
            self.claims.named.update(names_in(file.manifest))
            self.claims.owners.pop(version, None)

    def _leave_to_foreign(self) -> None:
        """Takes back the decision about versions whose numbers a foreign writer that stalled may be about to take."""
        for version in self.claims.foreign.needed:
            if version in self.going:
                self.begin = min(self.begin, version)
                self._keep(version, LEFT_TO_FOREIGN)

    def _judged(self) -> tuple[list[CleanedFile], list[CleanedFile]]:
        begun = groups_of(self.records.files)
        removed: list[CleanedFile] = []
        held: list[CleanedFile] = []
        for key, group in self.survey.groups.items():
            goes, why = verdict(key, group, self.survey, self.claims, begun, self.policy)
            if why:
                (removed if goes else held).extend(CleanedFile(path, kind, size, why) for kind, path, size in group.files)
        removed.extend(CleanedFile(path, "attempts", size, OLD_RECORD) for path, size in self.attempts)
        for leftover in self.leftovers:
            (removed if leftover.goes else held).append(CleanedFile(leftover.path, leftover.kind, leftover.size, leftover.reason))
        return removed, held

    def report(self, dry_run: bool) -> CleanupReport:
        removed, held = self._judged()
        manifests = []
        for version, name in sorted(self.going.items()):
            path = manifest_path(version, name.scheme)
            size = self.survey.manifests[path].size if path in self.survey.manifests else 0
            manifests.append(CleanedFile(path, "versions", size, "cleaned up by the policy"))
        kept: dict[int, tuple[str, ...]] = {}
        for name in self.survey.versions:
            if name.version not in self.going:
                reasons = list(self.kept.get(name.version, ()))
                reasons += ["the latest"] if name.version == self.survey.head else ["the policy"] if name.version >= self.begin else []
                kept[name.version] = tuple(reasons)
        return CleanupReport(
            self.access.store.uri, dry_run, self.begin, tuple(sorted(self.going)), kept, (*manifests, *removed), tuple(held)
        )

    # ---- doing ---------------------------------------------------------------------------------------------------------------

    def carry_out(self, progress: Progress) -> None:
        removed, held = self._judged()
        planned = [file.path for file in removed]
        # What is waited for now can go later; by then nobody could tell any more that it belonged to a version that went.
        recorded = [*planned, *(file.path for file in held if groups_of([file.path]) <= self.claims.left)]
        now, drain = self.survey.now, self._drain
        floor = self.begin if self.going else self.records.floor
        record = self.records.merged(floor, self.claims.owners, recorded if self.going else (), now, drain)
        journal = None if self.records.says(record) else Journal(self.access, record, self.records)
        if journal is not None:
            journal.begin()
        self._outlast_looks()
        self._keep_referred()
        self._meet_newcomers()
        self._keep_digests()
        done, total = 0, len(self.going) + len(planned)
        for version, name in sorted(self.going.items()):
            # The oldest first: a writer who finds a version that has no next one can then rely on being late.
            self.access.store.delete(manifest_path(version, name.scheme))
            done += 1
            progress(done, total)
        self.deleted = True
        self._meet_newcomers()
        removed, held = self._judged()
        for _ in deletions(self.access.store, [file.path for file in removed]):
            done += 1
            progress(done, total)
        self._clean_statistics({file.path for file in removed})
        if journal is not None:
            journal.end({file.path for file in held})
        self._remove_directories([file.path for file in removed])

    def _remove_directories(self, removed: Sequence[str]) -> None:
        """Directories that nothing is left in: those whose files went just now, and others that nobody used during the time of grace."""
        store = self.access.store
        if not isinstance(store, HasDirectories):
            return
        for directory in sorted({"/".join(path.split("/")[:2]) + "/" for path in removed if path.count("/") > 1}):
            store.remove_empty(directory, datetime.max.replace(tzinfo=UTC))
        for directory in EMPTIED:
            store.remove_empty(directory, self.access.runtime.clock.now() - self.policy.grace)

    def _keep_digests(self) -> None:
        """Files outlive the transactions that brought them, and that hold their digests."""
        gone = {file.path for file in self._judged()[0]}
        if self.going or any(path.startswith(TRANSACTIONS) for path in gone):
            keep_digests(self.access.store, self.access.runtime.random.uuid(), gone, self._inline_only())

    def _clean_statistics(self, gone: set[str]) -> None:
        """What is told of columns goes with the files that it is told of."""
        left = groups_of(gone)
        there = self.claims.named.union(self.survey.groups.keys() - left)
        before = self.survey.now - min(DRAIN, self.policy.grace)
        clean_records(self.access.store, self.access.runtime.random.uuid(), Remaining(there, left, before))

    def _inline_only(self) -> Iterator[Heading]:
        """Headings of transactions of versions that go and that are written down nowhere else."""
        for version in sorted(self.claims.inline_only.intersection(self.going)):
            with suppress(NotFound):  # another cleanup was faster
                yield self.access.log.heading_of(self.access.log.peek(version, self.going[version].scheme))

    def _keep_referred(self) -> None:
        """Tags and branches that came since we looked. Later ones will see the record, which is there by now."""
        for version, reasons in kept_versions(self.access, self.main, self.policy, self.own).items():
            if version in self.going:
                self._keep(version, reasons[-1])

    def _meet_newcomers(self) -> None:
        """Transactions and versions that came since we looked: what they name stays."""
        for name in self.access.store.names(TRANSACTIONS):
            key = TRANSACTIONS + name
            if key in self.survey.groups or (transaction := announced(self.access, key)) is None:
                continue
            self.claims.awaited.update(files_of(transaction), {key})
            self.claims.foreign.note_transaction(transaction, None)
            operation = transaction.operation
            if isinstance(operation, Restore) and operation.version in self.going:
                if self.deleted:
                    self.claims.awaited.update(self.claims.left)  # which of these it needs is no longer to be known
                else:
                    self._keep(operation.version, "being restored")
        if not self.deleted:
            self._leave_to_foreign()
        self.claims.named.update(named_by_staged(self.access, self.policy.ignored))
        self._name_newer()

    def _name_newer(self) -> None:
        """What newer versions name. The newest of all has to be among them: it is what all later ones go on from."""
        for _ in range(LOOKS):
            versions = self.access.log.versions()
            for version in versions:
                if version.version > self.survey.head and version.version not in self.claims.loaded:
                    file = load_version(self.access, version)
                    if file is not None:
                        self.claims.loaded.add(version.version)
                        self.claims.named.update(names_in(understood(file.manifest)))
            if versions and versions[-1].version in self.claims.loaded:
                return
        raise ContentionError(
            f"Other cleanups of {self.access.store.uri} remove versions faster than the latest one can be read.",
            operation="cleanup",
            attempts=LOOKS,
        )

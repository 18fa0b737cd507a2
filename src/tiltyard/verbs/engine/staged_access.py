"""Access to a table inside a transaction over several tables: verbs commit as always, into versions that only the transaction sees.

Where a staged table stands:

    open -> staged      ``staged_access`` pins it at a version, and each commit stages one above it
    staged -> staged    ``replay`` makes the commits again on a newer version, after others were faster
    staged -> folded    somebody else committed the rows in a version with those of others; ``drop_versions``
    staged -> named     the versions are published and have their final names; ``store.clear(published=True)``
    any -> withdrawn    ``throw_away``, after it was certain that nothing is committed

For pylance to read one's own writes there are detached versions, which have numbers no table counts up to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from tiltyard.errors import StorageError, TiltyardError, UnsupportedFeature
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file, encode_manifest_file
from tiltyard.format.names import Scheme, detached_name, manifest_name
from tiltyard.storage.staged import StagedHandler, StagedStore, remove
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.group import fold
from tiltyard.transaction.log import TRANSACTIONS, VERSIONS
from tiltyard.transaction.new_files import LOOK_AFTER, check_there, new_files
from tiltyard.transaction.operations import Append
from tiltyard.transaction.race import RecordedCommit
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.engine.access import WRITER, TableAccess

_DETACHED_BIT: Final = 1 << 63


@dataclass(frozen=True)
class StagedAccess(TableAccess):
    """Where a table lives, for one transaction."""

    store: StagedStore

    @cached_property
    def recorded(self) -> list[RecordedCommit]:
        """The commits inside the transaction, in order."""
        return []

    @cached_property
    def committer(self) -> Committer:
        made = (self.log, self.handler, self.runtime, WRITER, self.trusted, self.open_base, self.stamp, self.digests)
        return Committer(*made, recorded=self.recorded)

    def on_branch(self, branch: str | None) -> TableAccess:
        if branch == self.branch:
            return self
        raise UnsupportedFeature(
            "A table's own branches cannot be used inside a lake's transaction.", feature="branches in a transaction", writing=True
        )

    def lance_version(self, version: int) -> int:
        """The number under which pylance can open a version: its own, or that of a detached one made for the purpose."""
        staging = self.store
        with staging.lock:
            own = next((staged for staged in staging.private.values() if staged.version == version), None)
            if own is None:
                return version
            number = detached_number(own.staged)
            if own.staged not in staging.detached:
                file = decode_manifest_file(own.data, source=own.path, version=version)
                data, _ = encode_manifest_file(replace(file.manifest, version=number), file.transaction)
                path = VERSIONS + detached_name(number)
                staging.inner.put(path, data)
                staging.detached[own.staged] = path
            return number

    def replay(self, head: int, *, only_appended: Callable[[int], bool] = lambda _: False) -> None:
        """Makes the transaction's commits again on a newer version, by the rules for one table. Data files are used as they are.

        Each goes on from the version that it stands on by now: what it was rebased over before is not looked at again.

        Args:
            head: that version.
            only_appended: whether all versions above a given one are known to have added rows, and no more.

        Raises:
            ConflictError: the rules do not allow it.
        """
        recorded = list(self.recorded)
        self.recorded.clear()
        first, there = recorded[0].read, None
        self.store.move_to(head, manifest_name(head, recorded[0].scheme))
        try:
            if only_appended(first.manifest.version) and all(_adds_rows(commit) for commit in recorded):
                latest = self.load(head, recorded[0].scheme)
                if latest.manifest.fields == first.manifest.fields:
                    first = there = latest  # as it was announced: what it was built on is what it read
            for commit in recorded:
                # Of several appends the first stands on a version of the table, the others on ours, which are no more.
                read = first if isinstance(commit.operation, Append) else commit.read
                again = commit.transaction if read is there else replace(commit.transaction, read_version=read.manifest.version)
                self.committer.commit(
                    again, read, commit.scheme, RetryPolicy(), keys=commit.keys, reuse=commit.reuse, unchanged=commit.unchanged
                )
        except TiltyardError:
            self.recorded[:] = recorded  # all of it is still to be thrown away
            raise
        kept = {commit.transaction.file_name for commit in self.recorded}
        for name in {commit.transaction.file_name for commit in recorded} - kept:
            with suppress(StorageError):
                self.store.delete(TRANSACTIONS + name)

    def stage_rows(self, head: ManifestFile, scheme: Scheme, maker: str, several: Sequence[Transaction]) -> None:
        """Stages one version with the new rows of several transactions, whose authors wrote and flushed the files.

        Args:
            head: the version that it is built on.
            scheme: how versions are named.
            maker: the id of the transaction that makes it, which names all of these.
            several: which bring rows and do nothing else.
        """
        folded = fold(Transaction(head.manifest.version, maker, Append(())), several)
        self.store.trust(new_files(folded.operation, None))
        self.committer.commit(folded, head, scheme, RetryPolicy(), unverified=True)

    def drop_versions(self) -> None:
        """Removes what was staged, but for rows: of a version of several that is not committed, or of rows that are in somebody else's."""
        for commit in self.recorded:
            with suppress(StorageError):
                self.store.delete(TRANSACTIONS + commit.transaction.file_name)
        self.store.clear(published=False)

    def can_replay(self, *, blind_only: bool) -> bool:
        """Whether the commits do not build on one another, so that the rules for one commit hold for each."""
        operations = [commit.operation for commit in self.recorded]
        if all(isinstance(operation, Append) for operation in operations):
            return True
        return len(operations) == 1 and not blind_only

    def new_files(self) -> Sequence[str]:
        """All that the transaction wrote into the table's directory, apart from versions."""
        return list(dict.fromkeys(path for commit in self.recorded for path in commit.files()))

    def check_files(self) -> None:
        """Makes sure that what the transaction wrote is there, before the catalog names it.

        Raises:
            StorageError: a file is gone.
        """
        recorded = self.recorded
        if recorded:
            ask = self.runtime.clock.monotonic() - min(commit.begun for commit in recorded) >= LOOK_AFTER
            check_there(self.store.files, [path for path in self.new_files() if not path.endswith("/")], "transaction", ask=ask)

    def throw_away(self) -> None:
        """Removes everything the transaction wrote, after it was certain that it is not committed."""
        remove(self.store.inner, self.new_files())
        self.store.clear(published=False)


def _adds_rows(commit: RecordedCommit) -> bool:
    """Whether it goes together with any commit that adds rows, by the table of rules: what only keys could tell has none here."""
    return isinstance(commit.operation, Append) and commit.keys is None


def detached_number(staged: str) -> int:
    """The number of the detached version made of a staged one, which can be told from its place alone."""
    return int.from_bytes(hashlib.sha256(staged.encode()).digest()[:8], "big") | _DETACHED_BIT


def staged_access(access: TableAccess, transaction: str, base: int, scheme: Scheme) -> StagedAccess:
    """The same table's place, for one transaction, pinned at a version; 0 for a table that is to be made."""
    facts: Mapping[str, Any] = {name: getattr(access, name) for name in TableAccess.__dataclass_fields__}
    store = StagedStore(access.store, transaction, base, manifest_name(base, scheme))
    return StagedAccess(**{**facts, "store": store, "handler": StagedHandler()})

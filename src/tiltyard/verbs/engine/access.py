"""Where one table lives and by what means it is read and committed: what all verbs share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version as installed_version
from typing import Any, Final, Literal, TypeAlias

from tiltyard.errors import NotFound
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.refs import branch_root
from tiltyard.format.safe_text import check_base
from tiltyard.format.values import BasePath, WriterVersion
from tiltyard.interfaces import CommitHandler, CommitQueue, ObjectStore, Runtime, system_runtime
from tiltyard.options import Storage
from tiltyard.storage import Durability, address_of, lance_uri, open_store, queue_of
from tiltyard.storage.handlers import ensure_usable, handler_for
from tiltyard.storage.renewed_options import RenewedOptions
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.looks import look_seconds
from tiltyard.transaction.new_files import FileDigests, is_remote
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.engine.digest_history import DigestHistory
from tiltyard.verbs.engine.isolated import ReadLimits, read_limits
from tiltyard.verbs.statistics.statistics_records import StatisticsRecords

ANYWHERE: Final = "*"
"""As an allowed base: wherever the manifest says."""

Verify: TypeAlias = Literal["read"]

WRITER: Final = WriterVersion("tiltyard", installed_version("tiltyard"))


@dataclass(frozen=True)
class TableAccess:
    """A table's store, and who may commit there. Credentials stay in ``storage_options``, which no text shows."""

    uri: str
    store: ObjectStore
    handler: CommitHandler
    runtime: Runtime
    durability: Durability = "fsync"
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    branch: str | None = None
    allowed_bases: tuple[str, ...] = ()
    outside: Callable[[str, ObjectStore], tuple[ObjectStore, CommitHandler]] | None = field(default=None, repr=False)
    """Where versions are decided outside the store: what to see a table's store through, and who creates its versions."""
    stamp: Callable[[Transaction], Transaction] | None = field(default=None, repr=False)
    """Adds what every commit made here says of itself."""
    verify: Verify | None = None
    """Whether files are compared with their digests before rows of them are handed out."""
    limits: ReadLimits | None = None
    """Bounds of the child process that reads rows; None for reading them in this one."""

    @cached_property
    def log(self) -> VersionLog:
        return VersionLog(self.store, verify=self.verify == "read")

    @cached_property
    def sound_deletions(self) -> set[object]:
        """Deletion files that were read and found to be what their manifest says."""
        return set()

    @cached_property
    def committer(self) -> Committer:
        made = (self.log, self.handler, self.runtime, WRITER, self.trusted, self.open_base, self.stamp, self.digests)
        if self.outside is not None:
            queue: CommitQueue | None = getattr(self.handler, "queue", None)  # versions are decided elsewhere, and so is who waits
            return Committer(*made, queue)
        return Committer(*made, queue_of(self.store), look_seconds(self.store))

    @cached_property
    def verified(self) -> set[str]:
        """Files that were compared with their digests."""
        return set()

    @cached_property
    def histories(self) -> dict[str, DigestHistory]:
        """What was read of the digests that are kept here (no path) and in bases, by their paths."""
        return {}

    @cached_property
    def statistics(self) -> dict[str, StatisticsRecords]:
        """What was read of statistics of columns, kept here (no path) and in bases, by their paths."""
        return {}

    @cached_property
    def digests(self) -> FileDigests:
        """Digests of files that were written here and are not committed yet."""
        return FileDigests(self.store)

    @cached_property
    def remote(self) -> bool:
        """Whether a read goes over the network."""
        return is_remote(self.store)

    def open_base(self, base: BasePath) -> ObjectStore:
        """The store of another place that holds files of this table."""
        return open_store(base.path, storage_options=self.storage_options, durability=self.durability)

    @cached_property
    def lance_uri(self) -> str:
        """What pylance calls this place."""
        return lance_uri(self.uri)

    def lance_version(self, version: int) -> int:
        """The number under which pylance finds a version of ours."""
        return version

    def lance_options(self) -> dict[str, str] | None:
        return {key: str(value) for key, value in self.storage_options.items()} if self.storage_options else None

    def ensure_safe(self) -> None:
        """Refuses a store that overwrites where it should create, unless the handler needs no such promise."""
        _ = self._found_usable

    @cached_property
    def _found_usable(self) -> None:
        ensure_usable(self.handler, self.store, self.runtime)

    def on_branch(self, branch: str | None) -> TableAccess:
        """The same table's branch, which has a directory of its own below the main one."""
        if branch is None:
            return self
        uri = f"{self.uri.rstrip('/')}/{branch_root(branch).strip('/')}"
        store = open_store(uri, storage_options=self.storage_options, durability=self.durability)
        there = replace(self, uri=uri, store=store, branch=branch)
        return there.decided_by(self.outside) if self.outside is not None else there

    def decided_by(self, outside: Callable[[str, ObjectStore], tuple[ObjectStore, CommitHandler]]) -> TableAccess:
        """The same place, given its plain store, with versions decided elsewhere."""
        store, handler = outside(self.uri, self.store)
        return replace(self, store=store, handler=handler, outside=outside)

    def head(self) -> tuple[int, Scheme]:
        """The latest version and its naming scheme.

        Raises:
            NotFound: there is no table.
        """
        found = self.log.head()
        if found is None:
            raise NotFound(f"There is no table at {self.store.uri}.", name=self.store.uri, advice="Check the path, or use Table.create.")
        return found

    def load(self, version: int, scheme: Scheme, *, lazily: bool = False) -> ManifestFile:
        """Reads one version; with ``lazily`` its fragments are checked only when somebody asks for one.

        Raises:
            NotFound: saying which versions there are.
        """
        try:
            return self.trusted(self.log.load(version, scheme, lazily=lazily))
        except NotFound as error:
            known = [name.version for name in self.log.versions()]
            there = f"it has versions {known[0]} to {known[-1]}" if known else "it has none"
            raise NotFound(
                f"{self.store.uri} has no version {version}; {there}.", name=str(version), advice="Choose one of those, or a tag."
            ) from error

    def trusted(self, file: ManifestFile) -> ManifestFile:
        """Refuses a manifest that would have us read outside the table, unless its owner allowed that place.

        Raises:
            CorruptTable: naming the base.
        """
        if file.manifest.base_paths and ANYWHERE not in self.allowed_bases:
            roots = [self.main_uri, *self.allowed_bases]
            for base in file.manifest.base_paths:
                check_base(base.path, roots, f"version {file.manifest.version}", own=self.main_uri)
        return file

    @property
    def main_uri(self) -> str:
        """The table's root; a branch lives below it."""
        return self.lance_uri[: -len(branch_root(self.branch)) - 1] if self.branch else self.lance_uri


def main_access(access: TableAccess) -> TableAccess:
    """The main line of a branch's table; tags and branches are kept there."""
    if access.branch is None:
        return access
    store = open_store(access.main_uri, storage_options=access.storage_options, durability=access.durability)
    return replace(access, uri=access.main_uri, store=store, branch=None, outside=None)


def open_access(
    uri: str | os.PathLike[str], storage: Storage | None = None, *, store: ObjectStore | None = None, runtime: Runtime | None = None
) -> TableAccess:
    """The place at a URI. A store or runtime given here replaces the usual one; the simulator and fault tests do that."""
    text, how = address_of(uri), storage or Storage()
    store = store or open_store(text, storage_options=how.options, durability=how.durability)
    return TableAccess(
        uri=text,
        store=store,
        handler=handler_for(store, how.handler),
        runtime=runtime or how.runtime or system_runtime(),
        durability=how.durability,
        storage_options=how.options if isinstance(how.options, RenewedOptions) else dict(how.options or {}) or None,
        allowed_bases=tuple(ANYWHERE if base == ANYWHERE else lance_uri(base) for base in how.allowed_bases),
        verify=how.verify,
        limits=read_limits(how.isolate),
    )

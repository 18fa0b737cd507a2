"""What all handles on a table share: where it is, at which version, and how a commit moves it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ClassVar, Concatenate, ParamSpec, Self, TypeVar

import pyarrow as pa

from tiltyard.catalog.lake_values import ReadLevel
from tiltyard.catalog.read_set import TableScope
from tiltyard.errors import HistoryUnavailable, NotFound, OutcomeUnknown, TiltyardError
from tiltyard.format.keys import primary_key
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.schema import arrow_from_fields
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.cleanup.auto_cleanup import clean_up_when_due
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.reexecution import Committed
from tiltyard.verbs.explain import LOST, keep_attempt
from tiltyard.verbs.write import AppendCache

if TYPE_CHECKING:
    from lance import LanceDataset

P = ParamSpec("P")
R = TypeVar("R")
Part = TypeVar("Part")
HandOut = Callable[[], tuple[TableAccess, ManifestFile]]
"""A method of a handle that hands the table out."""


class Handle:
    """One table at one version."""

    _cleans_up: ClassVar[bool] = False
    """Whether a commit does the cleanup that the table's config asks for. In a lake, snapshots may need what one table does not."""

    def __init__(
        self,
        access: TableAccess,
        file: ManifestFile,
        scheme: Scheme,
        main: TableAccess | None = None,
        scope: TableScope | None = None,
        appends: AppendCache | None = None,
    ) -> None:
        self._known = (access, file)
        self._known_main = main or access
        self._scope = scope
        self._scheme = scheme
        self._moving = threading.Lock()
        self._lance: tuple[ManifestFile, LanceDataset] | None = None
        self._appends = AppendCache() if appends is None else appends
        self._in_doubt: dict[str, int] = {}

    # Whoever uses the table gets at it through one of the six below, and inside a transaction that is noted. ``_data`` and ``_blind`` are
    # for those who need less than all of it.

    def _hand_out(self, level: ReadLevel, *, partial: bool = False) -> tuple[TableAccess, ManifestFile]:
        """The table; ``partial`` where one will do that this handle moved to and has not read."""
        if self._scope is not None:
            self._scope.use(level)
        known = self._known
        while known[1].partial and not partial:
            self._read_version(*known)
            known = self._known
        return known

    def _read_version(self, access: TableAccess, file: ManifestFile) -> None:
        """Reads the version this handle is at, where it came there by new rows alone.

        Raises:
            HistoryUnavailable: it is gone.
        """
        version = file.manifest.version
        whole: ManifestFile | None
        try:
            whole = access.load(version, self._scheme, lazily=True)
        except NotFound:
            whole = None
        if whole is None or whole.transaction != file.transaction:
            raise self._cleaned_up(file) or _gone(access, version, None)
        with self._moving:
            if self._known[1] is file:
                self._known = (access, whole)

    def _whole(self) -> tuple[TableAccess, ManifestFile]:
        """The table for a use that may depend on all of it, the order of its rows and its indices included."""
        return self._hand_out("table")

    @property
    def _access(self) -> TableAccess:
        return self._hand_out("table")[0]

    @property
    def _file(self) -> ManifestFile:
        return self._hand_out("table")[1]

    @property
    def _main(self) -> TableAccess:
        self._hand_out("table")
        return self._known_main

    def _data(self) -> tuple[TableAccess, ManifestFile]:
        """The table for a read of rows, schema and settings alone, which maintenance leaves as they are."""
        return self._hand_out("rows")

    def _blind(self) -> tuple[TableAccess, ManifestFile]:
        """The table for a write that neither depends on what is there nor tells the caller of it."""
        return self._hand_out("nothing")

    def _to_append(self) -> tuple[TableAccess, ManifestFile]:
        """The table for new rows, which do not ask what is there: it may be partial."""
        return self._hand_out("nothing", partial=True)

    @property
    def uri(self) -> str:
        """Where the table is."""
        self._to_append()  # it stays the same as long as the table has its id, and that is read with its name
        return self._known_main.uri

    @property
    def version(self) -> int:
        """The version this handle is at."""
        return self._hand_out("table", partial=True)[1].manifest.version

    @property
    def branch(self) -> str | None:
        """The branch this handle is on; None on main."""
        return self._hand_out("table", partial=True)[0].branch

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of this version."""
        manifest = self._data()[1].manifest
        return arrow_from_fields(manifest.fields, manifest.schema_metadata)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns of the primary key, in order; none without one."""
        return primary_key(self._data()[1].manifest.fields)

    def __repr__(self) -> str:
        branch = f", branch={self.branch!r}" if self.branch else ""
        return f"Table({self._known_main.store.uri!r}, version={self.version}{branch})"

    def refresh(self) -> Self:
        """Moves this handle to the latest version.

        If the table was dropped and created again, that is a version of the new one."""
        access, mine = self._hand_out("table", partial=True)
        version, scheme = access.head()
        newest = access.load(version, scheme)
        if version > mine.manifest.version:
            self._move(newest, scheme)
        elif not self._is_there(mine, scheme):
            self._replace(newest, scheme)
        return self

    def _is_there(self, file: ManifestFile, scheme: Scheme) -> bool:
        """Whether a version is still the one we know. Its number does not tell: a table that is made again counts from 1 as well."""
        try:
            there = self._known[0].log.load(file.manifest.version, scheme)
        except NotFound:
            return False
        if file.partial:
            return there.transaction == file.transaction
        return there.message.joined() == file.message.joined()

    def _move(self, file: ManifestFile, scheme: Scheme | None = None) -> None:
        """Forward only: of two commits at a time the earlier may come to its end last."""
        with self._moving:
            access, mine = self._known
            if file.manifest.version > mine.manifest.version:
                self._known = (access, file)
            self._scheme = scheme or self._scheme

    def _replace(self, file: ManifestFile, scheme: Scheme) -> None:
        with self._moving:
            self._known, self._scheme = (self._known[0], file), scheme
            self._lance = None
            self._appends.clear()

    def _commit(
        self,
        hand_out: HandOut,
        verb: Callable[Concatenate[TableAccess, ManifestFile, Scheme, P], Committed],
        *given: P.args,
        **named: P.kwargs,
    ) -> CommitResult:
        """Runs a verb on the table as ``hand_out`` hands it out, and moves this handle to the version it made."""
        try:
            access, read = hand_out()  # who is refused here has begun nothing
        except HistoryUnavailable as error:
            self._keep(error, *self._known)
            raise
        try:
            result, file = verb(access, read, self._scheme, *given, **named)
        except TiltyardError as error:
            if self._scope is not None:
                self._scope.note("table")  # that it failed says something of what is there
            self._keep(error, access, read)
            if isinstance(error, NotFound) and (cleaned_up := self._cleaned_up(read)) is not None:
                raise cleaned_up from error
            raise
        self._move(access.trusted(file))
        if result.version <= read.manifest.version:
            if self._scope is not None:
                self._scope.note("rows")  # nothing was written that would be compared with what others did
        elif self._cleans_up and file.manifest.config:
            clean_up_when_due(access, self._known_main, file.manifest.config, result.version)
        return result

    def _keep(self, error: TiltyardError, access: TableAccess, read: ManifestFile) -> None:
        """Remembers a commit that failed, or whose outcome is unknown, for ``t.transactions``."""
        if isinstance(error, OutcomeUnknown):
            self._in_doubt[error.transaction_id] = error.version
        elif isinstance(error, LOST):
            keep_attempt(access, read.manifest.config, error)

    def _cleaned_up(self, file: ManifestFile) -> HistoryUnavailable | None:
        """The error for a verb that needs rows of a version which is gone; None where it is still there, or no table is."""
        access = self._known[0]
        found = access.log.head()
        if found is None or self._is_there(file, found[1]):
            return None
        return _gone(access, file.manifest.version, found[0])


def _gone(access: TableAccess, version: int, head: int | None) -> HistoryUnavailable:
    what = f"Version {version} of {access.store.uri}, which this handle is at, was cleaned up."
    return HistoryUnavailable(what, read_version=version, missing=[version], head=head)


def shorthand(part: str, verb: Callable[Concatenate[Part, P], R]) -> Callable[Concatenate[Handle, P], R]:
    """A verb of one of the parts of a handle, such as ``t.maintenance``, as a verb of the handle itself."""

    @wraps(verb)
    def call(self: Handle, /, *given: P.args, **named: P.kwargs) -> R:
        found: Callable[P, R] = getattr(getattr(self, part), verb.__name__)
        return found(*given, **named)

    call.__doc__ = f"Shorthand for ``t.{part}.{verb.__name__}``."
    return call

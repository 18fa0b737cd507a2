"""Versions of one table for clients of a namespace: listed, described, published, and adopted where a writer went past the catalog.

A table's own branches are listed and committed to as well. The lake knows nothing of them: their versions are decided by the store.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

from lance_namespace import (
    BatchDeleteTableVersionsRequest,
    BatchDeleteTableVersionsResponse,
    ConcurrentModificationError,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    InvalidInputError,
    InvalidTableStateError,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableVersion,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.catalog.lake_values import MAIN
from tiltyard.catalog.ledger import ElsewhereError, LakeLedger, adopt, maker_in
from tiltyard.catalog.sql_records import SqlRecords
from tiltyard.errors import (
    AlreadyExists,
    ContentionError,
    CorruptTable,
    ExpectedVersionMismatch,
    HistoryUnavailable,
    InvalidInput,
    NotFound,
    StorageError,
)
from tiltyard.format.manifest_file import decode_manifest_file
from tiltyard.format.names import Scheme, manifest_path, parse_manifest_name
from tiltyard.format.refs import check_branch_name
from tiltyard.interfaces import ObjectInfo, ObjectStore
from tiltyard.lakes.cleanup.version_deletion import delete_versions
from tiltyard.lakes.namespaces.declared_tables import DeclaredTable, find_declared, make_declared
from tiltyard.lakes.namespaces.namespace_base import NamespaceBase, apart, typed
from tiltyard.lakes.namespaces.publish_staged import MOST_KEPT, publish_staged
from tiltyard.lakes.table_names import full_name, shown
from tiltyard.storage.external import ExternalStore
from tiltyard.storage.local import LocalStore
from tiltyard.transaction.log import VERSIONS

if TYPE_CHECKING:
    from tiltyard.catalog.base_view import BaseView
    from tiltyard.catalog.lake_values import Cut, TableHead
    from tiltyard.verbs.engine.access import TableAccess

_STAGED: Final = re.compile(r"_versions/[0-9]+\.manifest-[0-9A-Za-z-]+|_tiltyard/collected/[0-9a-f-]{36}/[0-9]+\.manifest", re.ASCII)
"""What a client calls a version that is to be published."""
LARGEST_MANIFEST: Final = 512 * 1024 * 1024
"""Bytes; a staged version larger than this is not read."""
OWN_BRANCHES: Final = "lake-"
"""What the branches that the lake makes in its tables begin with; clients do not see them."""


class NotAtOnceError(Exception):
    """Whoever publishes has to wait, or to look. Nothing was done."""


class VersionOperations(NamespaceBase):
    """A namespace, as far as versions go."""

    @apart
    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """Versions up to the one that the catalog has; what a writer committed past it is adopted first."""
        request = typed(ListTableVersionsRequest, request)
        if request.limit is not None and request.limit < 0:
            raise InvalidInputError(f"limit is a number of versions, not {request.limit}.")
        try:
            head = self._current(request.id)
        except TableNotFoundError:
            if find_declared(self._lake, full_name(self._name(request.id))) is None:
                raise
            return ListTableVersionsResponse(versions=[])
        if request.branch not in (None, MAIN):
            return _page_of_versions(self._on_branch(head, request.branch), None, request)
        access = self._access(head)
        if request.limit == 1 and request.descending and request.page_token is None:
            return ListTableVersionsResponse(versions=[self._version(access, head, head.version)])
        return _page_of_versions(access, head.version, request)

    @apart
    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        request = typed(DescribeTableVersionRequest, request)
        head = self._current(request.id)
        if request.branch not in (None, MAIN):
            there = self._on_branch(head, request.branch)
            version = there.head()[0] if request.version is None else request.version
            return DescribeTableVersionResponse(version=self._version(there, head, version))
        version = head.version if request.version is None else request.version
        if version > head.version:
            raise TableVersionNotFoundError(f"The catalog has no version {version} of {shown(head.name)}.")
        return DescribeTableVersionResponse(version=self._version(self._access(head), head, version))

    @apart
    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Publishes a version that a client has staged: a transaction of one table, decided in the catalog."""
        request = typed(CreateTableVersionRequest, request)
        lake = self._writable()
        staged = staged_path(request.manifest_path)
        if lake.branch != MAIN:
            raise UnsupportedOperationError("Only versions of main are published; use the lake for its branches.")
        full = full_name(self._name(request.id))
        known = self._known.before(full, request.version) if request.branch in (None, MAIN) else None
        if known is not None and is_within(request.manifest_path, known.location):
            with suppress(ElsewhereError):
                return self._next_version(known, request, staged, known_as=full)
        self._known.forget(full)
        try:
            head = self._head(request.id)
        except TableNotFoundError:
            declared = find_declared(lake, full)
            if declared is None:
                raise
            return self._first_version(declared, request, staged)
        if request.branch not in (None, MAIN):
            return self._create_on_branch(head, request, staged)
        refuse_elsewhere(request.manifest_path, head.location)
        return self._next_version(head, request, staged)

    def may_create_at_once(self, request: CreateTableVersionRequest) -> bool:
        """Whether ``create_at_once`` may do it, as far as that can be told without a look at anything."""
        lake = self._writable()
        if not isinstance(lake.catalog.records, SqlRecords) or not lake.catalog.records.is_file:
            return False
        if request.branch not in (None, MAIN) or lake.branch != MAIN:
            return False
        known = self._known.before(full_name(self._name(request.id)), request.version)
        return known is not None and is_within(request.manifest_path, known.location)

    def create_at_once(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """``create_table_version`` for a caller that may not wait: without a look at the catalog beforehand, and for nobody's lock.

        Raises:
            NotAtOnceError: it cannot be done that way. Nothing was done, and the version is where the client staged it.
        """
        full, records = full_name(self._name(request.id)), self._writable().catalog.records
        known, staged = self._known.before(full, request.version), staged_path(request.manifest_path)
        if known is None or not isinstance(records, SqlRecords) or not self.may_create_at_once(request):
            raise NotAtOnceError
        try:
            with records.hurried():
                return self._next_version(known, request, staged, known_as=full, most=MOST_KEPT)
        except (ElsewhereError, ContentionError):
            raise NotAtOnceError from None

    def _next_version(
        self, head: TableHead, request: CreateTableVersionRequest, staged: str, known_as: str = "", most: int | None = None
    ) -> CreateTableVersionResponse:
        """A version of a table that is there.

        Args:
            head: the table.
            request: of the client.
            staged: the version, below the table's directory.
            known_as: the table's name, where it was not looked up, but remembered.
            most: bytes of a version that there is time for.
        """
        taken = ConcurrentModificationError(f"Version {request.version} of {shown(head.name)} is taken.")
        if request.version <= head.version:
            raise taken
        access, scheme = self._access(head), Scheme(head.naming)
        ledger = cast(LakeLedger, cast(ExternalStore, access.store).ledger)
        ledger.known_as = known_as
        try:
            info = stat_staged(access.store, staged)
            if most is not None and info.size > most:
                raise NotAtOnceError
            data = access.store.get(staged)
            file = access.trusted(decode_manifest_file(data, source=staged, version=request.version, check=False))
            path, made = manifest_path(request.version, scheme), maker_in(file, staged)
            publish_staged(access, request.version, path, staged, data, made, self._later)
        except AlreadyExists:
            raise taken from None
        except ContentionError as error:
            if most is not None:
                raise
            raise ConcurrentModificationError(str(error)) from error  # stock clients know no other answer after which they come again
        except (CorruptTable, ExpectedVersionMismatch, HistoryUnavailable, NotFound) as error:
            raise InvalidTableStateError(str(error)) from error
        if ledger.catalog.decides_here and isinstance(cast(ExternalStore, access.store).inner, LocalStore):
            self._known.note(head.name, replace(head, version=request.version, transaction=made.uuid))
        return CreateTableVersionResponse(version=_shown_version(access, request.version, path, info))

    def batch_delete_table_versions(self, request: BatchDeleteTableVersionsRequest) -> BatchDeleteTableVersionsResponse:
        """Deletes versions that nothing in the lake needs, all that are asked for or none."""
        request = typed(BatchDeleteTableVersionsRequest, request)
        lake, branch = self._writable(), None if request.branch == MAIN else request.branch
        for span in request.ranges:
            if span.start_version < 0 or span.end_version < -1:
                raise InvalidInputError("A range begins at 0 or later; its end is not part of it, and -1 is the latest version.")
        head = self._current(request.id)
        if branch is not None:
            self._on_branch(head, branch)
        spans = [(span.start_version, inf if span.end_version == -1 else span.end_version) for span in request.ranges]
        try:
            gone = delete_versions(lake, head, lambda version: any(start <= version < end for start, end in spans), branch)
        except InvalidInput as error:
            raise InvalidTableStateError(str(error)) from error
        return BatchDeleteTableVersionsResponse(deleted_count=gone)

    def _first_version(self, declared: DeclaredTable, request: CreateTableVersionRequest, staged: str) -> CreateTableVersionResponse:
        refuse_elsewhere(request.manifest_path, declared.location)
        access = self._lake.plain_access_of(declared.head)
        try:
            data = read_staged(access.store, staged)
            access.trusted(decode_manifest_file(data, source=staged, version=request.version, check=False))
        except (CorruptTable, NotFound) as error:
            raise InvalidTableStateError(str(error)) from error
        head = make_declared(self._lake, declared, request.version, data, staged)
        with suppress(StorageError):
            access.store.delete(staged)
        return CreateTableVersionResponse(version=self._version(self._access(head), head, 1))

    def _create_on_branch(self, head: TableHead, request: CreateTableVersionRequest, staged: str) -> CreateTableVersionResponse:
        """A version of a branch of the table's own, which the store alone decides about."""
        access = self._on_branch(head, request.branch, make=True)
        try:
            data = read_staged(access.store, staged)
            decode_manifest_file(data, source=staged, version=request.version, check=False)
            access.handler.create(access.store, manifest_path(request.version, Scheme.V2), data)
        except AlreadyExists:
            raise ConcurrentModificationError(f"Version {request.version} of branch {request.branch} is taken.") from None
        except (CorruptTable, NotFound) as error:
            raise InvalidTableStateError(str(error)) from error
        with suppress(StorageError):
            access.store.delete(staged)
        return CreateTableVersionResponse(version=self._version(access, head, request.version))

    # ---- where versions are ----------------------------------------------------------------------------------------------------

    def _access(self, head: TableHead) -> TableAccess:
        return self._lake.access_of(head, self._lake.branch)

    def _current(self, given: Sequence[str] | None, view: BaseView | Cut | None = None) -> TableHead:
        """A table's head, after versions were adopted that a writer committed past the catalog."""
        view = view or self._view(given)
        head = self._head(given, view=view)
        if self._at is not None or self._lake.branch != MAIN or head.quarantine:
            return head
        access = self._access(head)
        try:
            cast(ExternalStore, access.store).inner.head(manifest_path(head.version + 1, Scheme(head.naming)))
        except NotFound:
            return head
        return adopt(self._lake.catalog, access.store, head, MAIN, view.line)

    def _on_branch(self, head: TableHead, branch: str | None, *, make: bool = False) -> TableAccess:
        """A branch of the table's own.

        Raises:
            TableBranchNotFoundError: there is none, or the lake made it for itself.
        """
        missing = TableBranchNotFoundError(f"There is no branch {str(branch)[:80]!r} of {shown(head.name)}.")
        try:
            name = check_branch_name(branch or "")
        except InvalidInput:
            raise missing from None
        if name.startswith(OWN_BRANCHES):
            raise missing
        there = self._lake.plain_access_of(head).on_branch(name)
        if not make and there.log.head() is None:
            raise missing
        return there

    def _version(self, access: TableAccess, head: TableHead, version: int) -> TableVersion:
        scheme = Scheme(head.naming) if access.branch is None else Scheme.V2
        path = manifest_path(version, scheme)
        try:
            info = access.store.head(path)
        except NotFound:
            raise TableVersionNotFoundError(f"Version {version} of {shown(head.name)} does not exist.") from None
        return _shown_version(access, version, path, info)


def _page_of_versions(access: TableAccess, newest: int | None, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
    """One page of the versions that a directory has, up to one."""
    found: dict[int, ObjectInfo] = {}
    for info in access.store.list(VERSIONS):
        name = parse_manifest_name(info.path.removeprefix(VERSIONS))
        if name is not None and not name.detached and (newest is None or name.version <= newest):
            found[name.version] = info
    order = sorted(found, reverse=bool(request.descending))
    if request.page_token is not None:
        last = _number(request.page_token)
        order = [version for version in order if (version < last if request.descending else version > last)]
    page = order if request.limit is None else order[: request.limit]
    token = str(page[-1]) if page and len(page) < len(order) else None
    versions = [_shown_version(access, version, found[version].path, found[version]) for version in page]
    return ListTableVersionsResponse(versions=versions, page_token=token)


def _number(token: str) -> int:
    if not (token.isascii() and token.isdecimal() and len(token) < 20):
        raise InvalidInputError("page_token is not one that the server returned.")
    return int(token)


def _shown_version(access: TableAccess, version: int, path: str, info: ObjectInfo) -> TableVersion:
    facts: dict[str, Any] = {"manifest_size": info.size, "timestamp_millis": int(info.modified.timestamp() * 1000)}
    return TableVersion(version=version, manifest_path=f"{within_store(access.lance_uri).rstrip('/')}/{path}", **facts)


def stat_staged(store: ObjectStore, path: str) -> ObjectInfo:
    """What is known of a version that a client staged, before its bytes are read.

    Raises:
        CorruptTable: it is larger than any manifest.
        NotFound: it is not there.
    """
    info = store.head(path)
    if info.size > LARGEST_MANIFEST:
        raise CorruptTable(path, "it is too large for a version")
    return info


def read_staged(store: ObjectStore, path: str) -> bytes:
    """The bytes of a version that a client staged."""
    stat_staged(store, path)
    return store.get(path)


def staged_path(manifest_path: str) -> str:
    """Where a version is staged below its table's directory, as far as a client may say.

    Raises:
        UnsupportedOperationError: it is no place for one.
    """
    parts = manifest_path.split("/")
    staged = "/".join(parts[-2:] if parts[-2:-1] == ["_versions"] else parts[-4:])
    if _STAGED.fullmatch(staged) is None:
        raise UnsupportedOperationError("A version is published from where it was staged: _versions/<number>.manifest-<id> of its table.")
    return staged


def is_within(manifest_path: str, location: str) -> bool:
    """Whether a version was staged in the directory of a table."""
    home = manifest_path.removesuffix(staged_path(manifest_path)).rstrip("/").rpartition("/")[2]
    return home == location.rstrip("/").rpartition("/")[2]


def refuse_elsewhere(manifest_path: str, location: str) -> None:
    """Refuses a version that lies in another directory than the table: one that was staged before the table was made anew.

    Raises:
        InvalidTableStateError: it does.
    """
    if not is_within(manifest_path, location):
        raise InvalidTableStateError("The version is in another directory than the table. Open the table again.")


def within_store(uri: str) -> str:
    """Where something is in its bucket, which is how pylance names it; on a local disk the path is all there is."""
    _, mark, rest = uri.partition("://")
    return rest.partition("/")[2] if mark else uri

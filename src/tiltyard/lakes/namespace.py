"""A lake as a Lance Namespace: other Lance clients list its tables and open them by name, at the version the catalog has.

Such a client asks for versions here instead of listing a directory, and has its own commits published here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lance_namespace import (
    ConcurrentModificationError,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    InvalidTableStateError,
    LanceNamespace,
    ListNamespacesRequest,
    ListNamespacesResponse,
    ListTablesRequest,
    ListTablesResponse,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    NamespaceExistsRequest,
    NamespaceExistsResponse,
    NamespaceNotFoundError,
    TableExistsRequest,
    TableExistsResponse,
    TableNotFoundError,
    TableVersion,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.catalog.lake_values import MAIN
from tiltyard.errors import AlreadyExists, CorruptTable, ExpectedVersionMismatch, HistoryUnavailable, NotFound, StorageError
from tiltyard.format.manifest_file import decode_manifest_file
from tiltyard.format.names import Scheme
from tiltyard.lakes.table_names import JOINT, shard_name, shown
from tiltyard.transaction.log import VERSIONS

if TYPE_CHECKING:
    from tiltyard.catalog.lake_values import Cut, TableHead
    from tiltyard.lake import Lake


A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")

_STAGED: Final = re.compile(r"_versions/[0-9]+\.manifest-[0-9A-Za-z-]+", re.ASCII)
"""What a client calls a version that is to be published."""


def _apart(method: Callable[[Any, A], B]) -> Callable[[Any, A], B]:
    """Runs a method in a thread of its own: pylance's core calls from inside its event loop, where pylance itself cannot be used, and a
    catalog that is a table needs it."""

    @wraps(method)
    def run(self: Any, request: A) -> B:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(method, self, request).result()

    return run


class LakeNamespace(LanceNamespace):
    """The tables of a lake for ``lance.dataset(namespace_client=..., table_id=[...])``. Made by ``Lake.namespace``, or from strings:
    ``lance_namespace.connect("tiltyard.lakes.namespace.LakeNamespace", {"lake": "s3://bucket/lake"})``.

    It always shows one line of history: as it is at each moment, or as it was at one snapshot.

    Args:
        lake: an open lake, or where one is, as for ``Lake.open``.
        at: a snapshot, tag or moment, to be read only; the latest state at each moment by default. Digits as text are a snapshot.
        branch: of the lake; by default the one that an open lake is on.

    Raises:
        NotFound: there is no such lake, branch, snapshot or tag.
    """

    def __init__(self, lake: Lake | str | os.PathLike[str], at: int | str | datetime | None = None, branch: str | None = None) -> None:
        from tiltyard.lake import Lake  # it makes these

        opened = lake if isinstance(lake, Lake) else Lake.open(lake, create=False)
        self._lake = opened if branch is None else opened.on_branch(branch)
        self._at = int(at) if isinstance(at, str) and at.isascii() and at.isdecimal() else at
        if self._at is not None:
            self._lake.snapshot(self._at)

    def namespace_id(self) -> str:
        return f"LakeNamespace {{ lake: {self._lake.url!r}, branch: {self._lake.branch!r}, at: {self._at!r} }}"

    def _cut(self) -> Cut:
        return self._lake.snapshot(self._at).cut

    # ---- namespaces ------------------------------------------------------------------------------------------------------------

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        request = _typed(ListNamespacesRequest, request)
        parts = self._parts(request.id)
        below = {name.split(JOINT)[len(parts)] for name in self._within(parts) if name.count(JOINT) > len(parts)}
        page, token = _page(sorted(below), request.page_token, request.limit)
        return ListNamespacesResponse(namespaces=page, page_token=token)

    def describe_namespace(self, request: DescribeNamespaceRequest) -> DescribeNamespaceResponse:
        request = _typed(DescribeNamespaceRequest, request)
        self._within(self._parts(request.id))
        return DescribeNamespaceResponse(properties={})

    def namespace_exists(self, request: NamespaceExistsRequest) -> NamespaceExistsResponse:
        request = _typed(NamespaceExistsRequest, request)
        self._within(self._parts(request.id))
        return NamespaceExistsResponse()

    def _parts(self, given: Sequence[str] | None) -> list[str]:
        return list(given or ())

    def _within(self, parts: Sequence[str]) -> list[str]:
        """Full names of all tables below a namespace; there is one wherever there is a table."""
        start = "".join(part + JOINT for part in parts)
        found = [name for name in self._cut().tables if name.startswith(start)]
        if not found and parts:
            raise NamespaceNotFoundError(f"There is no namespace {'.'.join(parts)!r} in the lake.")
        return found

    # ---- tables ----------------------------------------------------------------------------------------------------------------

    def list_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        request = _typed(ListTablesRequest, request)
        parts = self._parts(request.id)
        names = [name.split(JOINT)[-1] for name in self._within(parts) if name.count(JOINT) == len(parts)]
        page, token = _page(sorted(names), request.page_token, request.limit)
        return ListTablesResponse(tables=page, page_token=token)

    def list_all_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        request = _typed(ListTablesRequest, request)
        page, token = _page(sorted(self._cut().tables), request.page_token, request.limit)
        return ListTablesResponse(tables=page, page_token=token)

    def table_exists(self, request: TableExistsRequest) -> TableExistsResponse:
        request = _typed(TableExistsRequest, request)
        self._head(request.id, whole=False)
        return TableExistsResponse()

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        request = _typed(DescribeTableRequest, request)
        head = self._head(request.id)
        access = self._lake.access_of(head, self._cut().branch)
        return DescribeTableResponse(
            table=head.name.split(JOINT)[-1],
            namespace=head.name.split(JOINT)[:-1],
            version=head.version,
            location=access.lance_uri,
            table_uri=access.lance_uri,
            storage_options=access.lance_options(),
            managed_versioning=True,
        )

    @_apart
    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """Versions up to the one that the catalog has: what others committed beyond it is not seen."""
        request = _typed(ListTableVersionsRequest, request)
        head = self._head(request.id)
        access = self._lake.access_of(head, self._cut().branch)
        there = [name for name in access.log.versions() if name.version <= head.version]
        if request.descending:
            there.reverse()
        found = [self._version(head, name.version, name.scheme) for name in there[: request.limit]]
        return ListTableVersionsResponse(versions=found)

    @_apart
    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        request = _typed(DescribeTableVersionRequest, request)
        head = self._head(request.id)
        version = head.version if request.version is None else request.version
        if version > head.version:
            raise TableVersionNotFoundError(f"The catalog has no version {version} of {head.name}.")
        return DescribeTableVersionResponse(version=self._version(head, version, Scheme(head.naming)))

    @_apart
    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Publishes a version that a client has staged: a transaction of one table, decided in the catalog."""
        request = _typed(CreateTableVersionRequest, request)
        head = self._head(request.id)
        staged = VERSIONS + request.manifest_path.rpartition("/")[2]
        if self._at is not None or self._lake.branch != MAIN or _STAGED.fullmatch(staged) is None:
            raise UnsupportedOperationError("Only versions of main are published, and none of the past; use the lake for its branches.")
        access, scheme = self._lake.access_of(head, MAIN), Scheme(head.naming)
        try:
            data = access.store.get(staged)
            decode_manifest_file(data, source=staged, version=request.version, check=False)
            access.handler.create(access.store, access.log.path(request.version, scheme), data)
        except AlreadyExists:
            raise ConcurrentModificationError(f"Version {request.version} of {head.name} is taken.") from None
        except (CorruptTable, ExpectedVersionMismatch, HistoryUnavailable, NotFound) as error:
            raise InvalidTableStateError(str(error)) from error
        with suppress(StorageError):
            access.store.delete(staged)
        return CreateTableVersionResponse(version=self._version(head, request.version, scheme))

    def _head(self, given: Sequence[str] | None, *, whole: bool = True) -> TableHead:
        """A table; ``whole`` where it is to be opened, which one that is sharded cannot be as one dataset."""
        full = JOINT.join(given or ())
        there = self._cut().tables
        if full not in there:
            raise TableNotFoundError(f"There is no table {'.'.join(given or ())!r} in the lake.")
        if whole and shard_name(full, 0) in there:
            raise UnsupportedOperationError(f"{shown(full)} is sharded. Open its shards, from {shown(shard_name(full, 0))} on.")
        return there[full]

    def _version(self, head: TableHead, version: int, scheme: Scheme) -> TableVersion:
        access = self._lake.access_of(head, self._cut().branch)
        path = access.log.path(version, scheme)
        try:
            info = access.store.head(path)
        except NotFound:
            raise TableVersionNotFoundError(f"Version {version} of {head.name} is not there.") from None
        facts: dict[str, Any] = {"manifest_size": info.size, "timestamp_millis": int(info.modified.timestamp() * 1000)}
        return TableVersion(version=version, manifest_path=f"{_within_store(access.lance_uri).rstrip('/')}/{path}", **facts)


def _within_store(uri: str) -> str:
    """Where something is in its bucket, which is how pylance names it; on a local disk the path is all there is."""
    _, mark, rest = uri.partition("://")
    return rest.partition("/")[2] if mark else uri


def _typed(kind: type[R], request: R | Mapping[str, Any]) -> R:
    """Clients in Python hand over models; pylance's own core hands over what these are made of."""
    return kind(**request) if isinstance(request, Mapping) else request


def _page(names: list[str], token: str | None, limit: int | None) -> tuple[list[str], str | None]:
    """Names after one, at most so many; and the last of them if there are more."""
    rest = [name for name in names if token is None or name > token]
    page = rest[:limit] if limit is not None else rest
    return page, page[-1] if page and len(page) < len(rest) else None

"""What all operations of a lake as a namespace share: the lake, how an id becomes a name, and which error a client is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from lance_namespace import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespace,
    LanceNamespaceError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
    ThrottlingError,
    UnsupportedOperationError,
)

from tiltyard.catalog.lake_values import MAIN
from tiltyard.errors import (
    AlreadyExists,
    ConflictError,
    ContentionError,
    CorruptTable,
    ExpectedVersionMismatch,
    HistoryUnavailable,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    OwnershipError,
    ProtectedBranch,
    StorageError,
    TiltyardError,
    UnsupportedFeature,
)
from tiltyard.lakes.namespaces.known_heads import KnownHeads
from tiltyard.lakes.namespaces.publish_staged import Later, at_once
from tiltyard.lakes.table_names import JOINT, full_name, shard_name, shown

if TYPE_CHECKING:
    from tiltyard.catalog.base_view import BaseView
    from tiltyard.catalog.lake_values import Cut, TableHead
    from tiltyard.lake import Lake
    from tiltyard.lakes.lake_tables import LakeReader, LakeTable
    from tiltyard.verbs.engine.access import TableAccess

Vend = Callable[["TableAccess"], dict[str, str] | None]
"""From a table to the storage options that a client is told."""

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")

_KINDS: tuple[tuple[type[TiltyardError], type[LanceNamespaceError]], ...] = (
    (AlreadyExists, TableAlreadyExistsError),
    (NotFound, TableNotFoundError),
    (InvalidInput, InvalidInputError),
    (UnsupportedFeature, UnsupportedOperationError),
    (ExpectedVersionMismatch, ConcurrentModificationError),
    (HistoryUnavailable, TableVersionNotFoundError),
    (ConflictError, ConcurrentModificationError),
    (ContentionError, ConcurrentModificationError),
    (OwnershipError, PermissionDeniedError),
    (ProtectedBranch, PermissionDeniedError),
    (CorruptTable, InvalidTableStateError),
    (OutcomeUnknown, ServiceUnavailableError),
    (StorageError, ServiceUnavailableError),
)
"""What a client is told, by the kind of ours; the first that fits."""


class CatalogBusyError(ThrottlingError):
    """The catalog was locked by others for too long. Nothing was written, and nobody committed what conflicts with it."""


def told(error: TiltyardError) -> LanceNamespaceError:
    """An error of ours as a client of a namespace expects it."""
    if isinstance(error, ContentionError) and error.operation == "catalog":
        return CatalogBusyError(str(error))
    for ours, theirs in _KINDS:
        if isinstance(error, ours):
            return theirs(str(error))
    return InternalError(str(error))


def apart(method: Callable[[Any, A], B]) -> Callable[[Any, A], B]:
    """Runs a method in a thread of its own: pylance's core calls from inside its event loop, where pylance itself cannot be used, and a
    catalog that is a table needs it. A server, which calls from threads, takes what is wrapped."""

    @wraps(method)
    def run(self: Any, request: A) -> B:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(method, self, request).result()

    return run


def own_options(access: TableAccess) -> dict[str, str] | None:
    """The options with which the lake itself reaches a table."""
    return access.lance_options()


def typed(kind: type[R], request: R | Mapping[str, Any]) -> R:
    """Clients in Python hand over models; pylance's own core hands over what these are made of."""
    return kind(**request) if isinstance(request, Mapping) else request


def page_of(names: list[str], token: str | None, limit: int | None) -> tuple[list[str], str | None]:
    """Names after one, at most so many; and the last of them if there are more."""
    if limit is not None and limit < 0:
        raise InvalidInputError(f"limit is a number of entries, not {limit}.")
    rest = [name for name in names if token is None or name > token]
    page = rest[:limit] if limit is not None else rest
    return page, page[-1] if page and len(page) < len(rest) else None


class NamespaceBase(LanceNamespace):
    """A lake, or one snapshot of it, as the operations of a namespace see it."""

    def __init__(
        self,
        lake: Lake | str | os.PathLike[str] | None = None,
        at: int | str | datetime | None = None,
        branch: str | None = None,
        *,
        uri: str | None = None,
    ) -> None:
        from tiltyard.lake import Lake  # it makes these

        if (lake is None) == (uri is None):
            raise InvalidInputError("A lake is named by lake or by uri, one of them.")
        lake = uri if lake is None else lake
        assert lake is not None
        opened = lake if isinstance(lake, Lake) else Lake.open(lake, create=False)
        self._lake = opened if branch is None else opened.on_branch(branch)
        self._at = int(at) if isinstance(at, str) and at.isascii() and at.isdecimal() else at
        self._vend: Vend = own_options
        self._later: Later = at_once
        self._known = KnownHeads()
        self._sees: Callable[[str], bool] = lambda full: True
        if self._at is not None:
            self._lake.snapshot(self._at)

    def namespace_id(self) -> str:
        return f"LakeNamespace {{ lake: {self._lake.url!r}, branch: {self._lake.branch!r}, at: {self._at!r} }}"

    def vend_by(self, vend: Vend) -> None:
        """Says which storage options clients are told of a table; those of the lake by default, which may hold keys."""
        self._vend = vend

    def only(self, sees: Callable[[str], bool]) -> None:
        """Lists only tables for whose full names this holds."""
        self._sees = sees

    def settle_by(self, later: Later) -> None:
        """Has bookkeeping of published versions done by somebody else, after the answer."""
        self._later = later

    def remember_in(self, known: KnownHeads) -> None:
        """Shares what is remembered of tables with other namespaces of the lake."""
        self._known = known

    def _names(self) -> list[str]:
        """Full names of all tables that may be seen."""
        return [name for name in self._cut().tables if self._sees(name)]

    def _cut(self) -> Cut:
        return self._lake.snapshot(self._at).cut

    def _view(self, given: Sequence[str] | None = None) -> BaseView | Cut:
        """Tables by name; of the latest state only those are read that are asked for."""
        if self._at is not None:
            return self._cut()
        full = full_name(self._name(given)) if given else ""
        return self._lake.view([full, shard_name(full, 0)] if full else ())

    def _writable(self) -> Lake:
        if self._at is not None:
            raise UnsupportedOperationError("This is an earlier snapshot, which cannot be changed.")
        return self._lake

    def _parts(self, given: Sequence[str] | None) -> list[str]:
        """The parts of an id; empty ones say nothing."""
        parts = [part for part in given or () if part]
        for part in parts:
            if "." in part or JOINT in part:
                raise InvalidInputError(f"{part[:80]!r} is not a valid part of a name.")
        return parts

    def _name(self, given: Sequence[str] | None) -> str:
        """A table's name as people write it.

        Raises:
            InvalidInputError: no table can have it.
        """
        name = ".".join(self._parts(given))
        if not name:
            raise TableNotFoundError("The root of the lake is not a table.")
        try:
            full_name(name)
        except InvalidInput as error:
            raise InvalidInputError(str(error)) from None
        return name

    def _head(self, given: Sequence[str] | None, *, whole: bool = True, view: BaseView | Cut | None = None) -> TableHead:
        """A table; ``whole`` where it is to be opened, which one that is sharded cannot be as one dataset."""
        view = view or self._view(given)
        full = full_name(self._name(given))
        head = view.find(full)
        if head is None:
            raise TableNotFoundError(f"There is no table {shown(full)!r} in the lake.")
        if whole and view.find(shard_name(full, 0)) is not None:
            raise UnsupportedOperationError(
                f"{shown(full)} is sharded. Open its shards one by one, the first as {shown(shard_name(full, 0))}."
            )
        return head

    def _table(self, given: Sequence[str] | None, branch: str | None = None) -> LakeTable:
        """A table to read or write, at its latest version."""
        if branch not in (None, MAIN):
            raise UnsupportedOperationError("Rows of a table's own branch are read and written by clients that open the table themselves.")
        name = self._name(given)
        try:
            return self._writable().table(name)
        except NotFound:
            raise TableNotFoundError(f"There is no table {name!r} in the lake.") from None

    def _reader(self, given: Sequence[str] | None, version: int | None = None, branch: str | None = None) -> LakeTable | LakeReader:
        """A table to read: at a snapshot, at one of its versions, or at its latest one."""
        if self._at is not None and version is None:
            if branch not in (None, MAIN):
                raise TableBranchNotFoundError(f"There is no branch {branch!r} in a snapshot.")
            return self._lake.snapshot(self._at).table(self._name(given))
        table = self._table(given, branch)
        if version is None or version == table.version:
            return table
        return self._at_version(table, version)

    def _at_version(self, table: LakeTable, version: int) -> LakeReader:
        from tiltyard.format.names import Scheme
        from tiltyard.lakes.lake_tables import LakeReader

        scheme = Scheme(table._scheme)
        try:
            file = table._access.load(version, scheme, lazily=True)
        except NotFound:
            raise TableVersionNotFoundError(f"There is no version {version} of {table.name}.") from None
        reader = LakeReader(table._access, file, scheme)
        reader.name = table.name
        return reader

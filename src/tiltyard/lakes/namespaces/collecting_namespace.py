"""A namespace that collects what stock clients commit, instead of publishing it: several tables become one transaction.

A client writes its files and a staged version as ever, and asks for the version to be published. Here it is kept: copied to a place of the
transaction's own, where nobody else looks, and shown back to this client under that name. So the client reads its own writes, and others
see nothing. What was kept is handed on to whoever commits: a transaction of a lake in this process, or a batch to a server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from lance_namespace import (
    CreateTableVersionEntry,
    CreateTableVersionRequest,
    CreateTableVersionResponse,
    DeclareTableRequest,
    DeclareTableResponse,
    DeregisterTableRequest,
    DescribeTableRequest,
    DescribeTableResponse,
    DescribeTableVersionRequest,
    DescribeTableVersionResponse,
    InvalidTableStateError,
    LanceNamespace,
    LanceNamespaceError,
    ListTablesRequest,
    ListTablesResponse,
    ListTableVersionsRequest,
    ListTableVersionsResponse,
    TableVersion,
    UnsupportedOperationError,
)

from tiltyard.errors import StorageError
from tiltyard.interfaces import ObjectStore
from tiltyard.lakes.namespaces.declared_tables import DeclaredTable, forget_made
from tiltyard.lakes.namespaces.namespace_base import apart, typed
from tiltyard.lakes.namespaces.namespace_batches import commit_parts
from tiltyard.storage.local import ADVICE
from tiltyard.storage.staged import COLLECTED

if TYPE_CHECKING:
    from tiltyard.lakes.lake_transaction import LakeTransaction

_NAME: Final = re.compile(r"[0-9]+\.manifest-[0-9A-Za-z-]+", re.ASCII)
OpenStore = Callable[[str, dict[str, str] | None], ObjectStore]
Keep = Callable[[CreateTableVersionEntry], None]


@dataclass(slots=True)
class _Table:
    """One table of the transaction: where it is, the version it was first seen at, and what was written to it."""

    location: str
    store: ObjectStore
    base: TableVersion | None = None
    own: dict[int, TableVersion] = field(default_factory=dict)
    copies: list[str] = field(default_factory=list)
    declared: bool = False


class CollectingNamespace(LanceNamespace):
    """The tables of a lake for one transaction of stock clients.

    Args:
        inner: what is read, and where tables are declared.
        transaction: its id.
        open_store: opens the store of a table, by its location and the options that came with it.
        keep: is given each version once it is kept.
    """

    def __init__(self, inner: LanceNamespace, transaction: str, open_store: OpenStore, keep: Keep) -> None:
        self._inner, self._transaction, self._open_store, self._keep = inner, transaction, open_store, keep
        self._tables: dict[tuple[str, ...], _Table] = {}
        self.is_open = True

    def namespace_id(self) -> str:
        return f"CollectingNamespace {{ transaction: {self._transaction!r} }}"

    # ---- reading ---------------------------------------------------------------------------------------------------------------

    def list_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        return self._inner.list_tables(typed(ListTablesRequest, request))

    @apart
    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        request = typed(DescribeTableRequest, request)
        described = self._inner.describe_table(request)
        table = self._noted(request.id, described.location, described.storage_options)
        if table.own and request.version is None:
            described.version = max(table.own)
        return described

    @apart
    def list_table_versions(self, request: ListTableVersionsRequest) -> ListTableVersionsResponse:
        """The latest version as the transaction has it: its own, or the one it saw first."""
        request = typed(ListTableVersionsRequest, request)
        table = self._tables.get(tuple(request.id or ()))
        if table is not None and table.own:
            return ListTableVersionsResponse(versions=[table.own[max(table.own)]])
        if table is not None and table.base is not None:
            return ListTableVersionsResponse(versions=[table.base])
        found = self._inner.list_table_versions(request)
        if table is not None and request.limit == 1 and request.descending and found.versions:
            table.base = found.versions[0]
        return found

    @apart
    def describe_table_version(self, request: DescribeTableVersionRequest) -> DescribeTableVersionResponse:
        request = typed(DescribeTableVersionRequest, request)
        table = self._tables.get(tuple(request.id or ()))
        if table is not None and request.version in table.own:
            return DescribeTableVersionResponse(version=table.own[request.version])
        inner: Any = self._inner  # pylance's own takes a dictionary here, against what it says; ours takes both
        found: DescribeTableVersionResponse = typed(DescribeTableVersionResponse, inner.describe_table_version(request.to_dict()))
        return found

    # ---- writing ---------------------------------------------------------------------------------------------------------------

    @apart
    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        self._check_open()
        request = typed(DeclareTableRequest, request)
        declared = self._inner.declare_table(request)
        self._noted(request.id, declared.location, declared.storage_options).declared = True
        return declared

    @apart
    def create_table_version(self, request: CreateTableVersionRequest) -> CreateTableVersionResponse:
        """Keeps a version that a client staged."""
        self._check_open()
        request = typed(CreateTableVersionRequest, request)
        table = self._tables.get(tuple(request.id or ()))
        name = request.manifest_path.rpartition("/")[2]
        if table is None or _NAME.fullmatch(name) is None or request.branch not in (None, "main"):
            raise UnsupportedOperationError("A transaction only takes versions of the main branch, of tables that were opened through it.")
        kept = f"{COLLECTED}{self._transaction}/{request.version}.manifest"
        data = table.store.get(f"_versions/{name}")
        table.store.put(kept, data)
        table.copies.append(kept)
        path = request.manifest_path.rpartition("/_versions/")[0] + "/" + kept
        entry = CreateTableVersionEntry(
            id=list(request.id or ()), version=request.version, manifest_path=path, manifest_size=len(data), naming_scheme="V2"
        )
        self._keep(entry)
        version = TableVersion(version=request.version, manifest_path=path, manifest_size=len(data))
        table.own[request.version] = version
        with suppress(StorageError):
            table.store.delete(f"_versions/{name}")
        return CreateTableVersionResponse(version=version)

    # ---- the end ---------------------------------------------------------------------------------------------------------------

    def close(self, *, committed: bool) -> None:
        """Removes what only this transaction saw; tables that it declared go, unless it was committed."""
        self.is_open = False
        for name, table in self._tables.items():
            # pylance leaves a hint at the latest version, which may be one that was never published, or has another number.
            for path in (*table.copies, *([ADVICE] if table.own else ())):
                with suppress(StorageError):
                    table.store.delete(path)
            if table.declared and not committed:
                with suppress(LanceNamespaceError, RuntimeError, OSError):
                    self._inner.deregister_table(DeregisterTableRequest(id=list(name)))

    def _noted(self, given: Sequence[str] | None, location: str | None, options: dict[str, str] | None) -> _Table:
        name = tuple(given or ())
        if location is None:
            raise InvalidTableStateError("The server does not say where the table is.")
        if name not in self._tables:
            self._tables[name] = _Table(location, self._open_store(location, options))
        return self._tables[name]

    def _check_open(self) -> None:
        if not self.is_open:
            raise InvalidTableStateError("The transaction is over.")


def namespace_of(tx: LakeTransaction) -> CollectingNamespace:
    """The namespace of a transaction in this process: it shows the transaction's base, and commits into the transaction."""
    from tiltyard.lakes.namespace import LakeNamespace  # it is made of the modules beside this one

    lake = tx._lake
    latest = LakeNamespace(lake)
    based = LakeNamespace(lake, tx.base) if tx.base else latest
    based.declare_table, based.deregister_table = latest.declare_table, latest.deregister_table  # type: ignore[method-assign]
    begun: set[str] = set()
    made: list[DeclaredTable] = []

    def keep(entry: CreateTableVersionEntry) -> None:
        part = latest.part_of(entry)
        if part.name in begun:
            handle = tx.table(part.name)
            handle.commit(replace(part.transaction, read_version=handle.version))
        else:
            commit_parts(tx, [part])
        begun.add(part.name)
        if part.declared is not None:
            made.append(part.declared)

    collecting = CollectingNamespace(based, tx.id, lambda location, _: lake.where.store_at(location), keep)

    def at_end() -> None:
        for declared in made:
            forget_made(lake, declared)
        collecting.close(committed=True)

    tx._at_end = at_end
    return collecting

"""Namespaces and tables by name, for clients of a namespace: list, describe, declare, drop, rename, register."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from lance_namespace import (
    CreateNamespaceRequest,
    CreateNamespaceResponse,
    DeclareTableRequest,
    DeclareTableResponse,
    DeregisterTableRequest,
    DeregisterTableResponse,
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    DropNamespaceRequest,
    DropNamespaceResponse,
    DropTableRequest,
    DropTableResponse,
    InvalidInputError,
    ListNamespacesRequest,
    ListNamespacesResponse,
    ListTablesRequest,
    ListTablesResponse,
    NamespaceAlreadyExistsError,
    NamespaceExistsRequest,
    NamespaceExistsResponse,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    RegisterTableRequest,
    RegisterTableResponse,
    RenameTableRequest,
    RenameTableResponse,
    ServiceUnavailableError,
    TableExistsRequest,
    TableExistsResponse,
    TableNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from lance_namespace_urllib3_client.models.table_basic_stats import TableBasicStats

from tiltyard.catalog.lake_values import MAIN
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.errors import ContentionError, InvalidInput, NotFound
from tiltyard.format.names import Scheme
from tiltyard.format.schema import arrow_from_fields
from tiltyard.lakes.namespaces.arrow_json import schema_to_json
from tiltyard.lakes.namespaces.declared_tables import DeclaredTable, declare, find_declared, give_up, list_declared
from tiltyard.lakes.namespaces.namespace_base import page_of, typed
from tiltyard.lakes.namespaces.namespace_versions import VersionOperations
from tiltyard.lakes.table_names import JOINT, full_name, shown

if TYPE_CHECKING:
    from tiltyard.catalog.lake_values import TableHead
    from tiltyard.lakes.lake_transaction import LakeTransaction

NAMESPACES: Final = "namespace/"
"""Records of namespaces that were made by name. One that has a table needs none."""


class TableOperations(VersionOperations):
    """A namespace, as far as names go."""

    # ---- namespaces ------------------------------------------------------------------------------------------------------------

    def create_namespace(self, request: CreateNamespaceRequest) -> CreateNamespaceResponse:
        request = typed(CreateNamespaceRequest, request)
        parts, mode = self._parts(request.id), _word(request.mode, "create")
        if mode not in ("create", "existok", "overwrite"):
            raise InvalidInputError(f"mode is Create, ExistOk or Overwrite, not {request.mode!r}.")
        self._check_namespace(parts)
        there = self._is_namespace(parts)
        if there and mode == "create":
            raise NamespaceAlreadyExistsError(f"There is a namespace {'.'.join(parts)!r} in the lake already.")
        body = {"properties": dict(request.properties or {})}
        if not there or mode == "overwrite":
            self._put_namespace(parts, body)
        return CreateNamespaceResponse(properties=body["properties"])

    def drop_namespace(self, request: DropNamespaceRequest) -> DropNamespaceResponse:
        """Drops a namespace without tables; with the behavior Cascade all tables in it, in one transaction."""
        request = typed(DropNamespaceRequest, request)
        parts = self._parts(request.id)
        self._check_namespace(parts)
        if not self._is_namespace(parts):
            if _word(request.mode, "fail") == "skip":
                return DropNamespaceResponse()
            raise NamespaceNotFoundError(f"There is no namespace {'.'.join(parts)!r} in the lake.")
        lake, start = self._writable(), "".join(part + JOINT for part in parts)
        inside = [name for name in lake.tables() if full_name(name).startswith(start)]
        below = [key for key, _ in lake.catalog.records.scan([self._namespace_key(parts) + JOINT])]
        if (inside or below) and _word(request.behavior, "restrict") != "cascade":
            raise NamespaceNotEmptyError(f"The namespace {'.'.join(parts)!r} has tables or namespaces in it.")
        if inside:
            lake.run(lambda tx: _drop_all(tx, inside))
        gone = [self._namespace_key(parts), *below]
        try:
            lake.catalog.records.transact(gone, [], lambda found: Writes(None, delete=[key for key in gone if key in found]))
        except ContentionError as error:
            if not inside:
                raise
            raise ServiceUnavailableError(f"The tables were dropped, the namespace was not yet: {error} Drop it again.") from error
        return DropNamespaceResponse()

    def list_namespaces(self, request: ListNamespacesRequest) -> ListNamespacesResponse:
        request = typed(ListNamespacesRequest, request)
        parts = self._parts(request.id)
        names = {*self._within(parts), *(name + JOINT for name in self._made_below(parts))}
        below = {name.split(JOINT)[len(parts)] for name in names if name.count(JOINT) > len(parts)}
        page, token = page_of(sorted(below), request.page_token, request.limit)
        return ListNamespacesResponse(namespaces=page, page_token=token)

    def describe_namespace(self, request: DescribeNamespaceRequest) -> DescribeNamespaceResponse:
        request = typed(DescribeNamespaceRequest, request)
        parts = self._parts(request.id)
        self._within(parts)
        key = self._namespace_key(parts)
        made = self._lake.catalog.records.get([key]).get(key, {}) if parts else {}
        return DescribeNamespaceResponse(properties=dict(made.get("properties") or {}))

    def namespace_exists(self, request: NamespaceExistsRequest) -> NamespaceExistsResponse:
        request = typed(NamespaceExistsRequest, request)
        self._within(self._parts(request.id))
        return NamespaceExistsResponse()

    def _within(self, parts: Sequence[str]) -> list[str]:
        """Full names of all tables below a namespace; there is one wherever there is a table.

        Raises:
            NamespaceNotFoundError: there is neither a table nor a namespace of that name.
        """
        start = "".join(part + JOINT for part in parts)
        found = [name for name in self._names() if name.startswith(start)]
        if not found and parts and not self._made_below(parts) and not self._was_made(parts):
            raise NamespaceNotFoundError(f"There is no namespace {'.'.join(parts)!r} in the lake.")
        return found

    def _is_namespace(self, parts: Sequence[str]) -> bool:
        try:
            self._within(parts)
        except NamespaceNotFoundError:
            return False
        return True

    def _check_namespace(self, parts: Sequence[str]) -> None:
        self._writable()
        if not parts:
            raise InvalidInputError("The root namespace cannot be created or dropped.")
        self._name(parts)

    def _namespace_key(self, parts: Sequence[str]) -> str:
        return f"{NAMESPACES}{self._lake.branch}/{JOINT.join(parts)}"

    def _was_made(self, parts: Sequence[str]) -> bool:
        key = self._namespace_key(parts)
        return self._at is None and key in self._lake.catalog.records.get([key])

    def _made_below(self, parts: Sequence[str]) -> list[str]:
        """Full names of namespaces that were made by name below one."""
        if self._at is not None:
            return []
        root = self._namespace_key([])
        start = root + "".join(part + JOINT for part in parts)
        names = [key.removeprefix(root) for key, _ in self._lake.catalog.records.scan([start])]
        return [name for name in names if self._sees(name)]

    def _put_namespace(self, parts: Sequence[str], body: Body) -> None:
        key = self._namespace_key(parts)

        def decide(found: Found) -> Writes[None]:
            return Writes(None, {key: body})

        self._lake.catalog.records.transact([key], [], decide)

    # ---- tables ----------------------------------------------------------------------------------------------------------------

    def list_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        request = typed(ListTablesRequest, request)
        parts = self._parts(request.id)
        names = [name for name in self._within(parts) if name.count(JOINT) == len(parts)]
        if request.include_declared is not False and self._at is None:
            names += [name for name in list_declared(self._lake, parts) if name not in names and self._sees(name)]
        page, token = page_of(sorted(name.split(JOINT)[-1] for name in names), request.page_token, request.limit)
        return ListTablesResponse(tables=page, page_token=token)

    def list_all_tables(self, request: ListTablesRequest) -> ListTablesResponse:
        request = typed(ListTablesRequest, request)
        page, token = page_of(sorted(self._names()), request.page_token, request.limit)
        return ListTablesResponse(tables=page, page_token=token)

    def table_exists(self, request: TableExistsRequest) -> TableExistsResponse:
        request = typed(TableExistsRequest, request)
        try:
            self._head(request.id, whole=False)
        except TableNotFoundError:
            if self._declared(request.id) is None:
                raise
        return TableExistsResponse()

    def describe_table(self, request: DescribeTableRequest) -> DescribeTableResponse:
        request = typed(DescribeTableRequest, request)
        try:
            head = self._current(request.id)
        except TableNotFoundError:
            declared = self._declared(request.id)
            if declared is None:
                raise
            return self._described(declared.head, is_only_declared=True, properties=dict(declared.properties))
        more: dict[str, Any] = {"is_only_declared": False} if request.check_declared or request.load_detailed_metadata else {}
        version = self._asked_version(head, request)
        if request.load_detailed_metadata:
            more |= self._details(head, version)
        return self._described(head, version=version, **more)

    def _described(self, head: TableHead, **more: Any) -> DescribeTableResponse:
        access = self._lake.access_of(head, self._lake.branch)
        options = self._vend(access)
        facts: dict[str, Any] = {"table": head.name.split(JOINT)[-1], "namespace": head.name.split(JOINT)[:-1]}
        return DescribeTableResponse(
            **facts, location=access.lance_uri, table_uri=access.lance_uri, storage_options=options, managed_versioning=True, **more
        )

    def _asked_version(self, head: TableHead, request: DescribeTableRequest) -> int:
        if request.branch not in (None, MAIN):
            return self._on_branch(head, request.branch).head()[0]
        if request.tag is not None:
            try:
                return int(self._table(request.id).tags[request.tag].version)
            except (NotFound, InvalidInput):
                raise TableTagNotFoundError(f"There is no tag {request.tag[:80]!r} of {shown(head.name)}.") from None
        if request.version is not None and request.version > head.version:
            raise TableVersionNotFoundError(f"The catalog has no version {request.version} of {shown(head.name)}.")
        return head.version if request.version is None else request.version

    def _details(self, head: TableHead, version: int) -> dict[str, Any]:
        """What only the version itself tells: schema and statistics."""
        try:
            manifest = self._access(head).load(version, Scheme(head.naming)).manifest
        except NotFound:
            raise TableVersionNotFoundError(f"Version {version} of {shown(head.name)} does not exist.") from None
        deleted = sum(fragment.deletion_file.deleted_rows for fragment in manifest.fragments if fragment.deletion_file is not None)
        stats = TableBasicStats(num_deleted_rows=deleted, num_fragments=len(manifest.fragments))
        return {
            "schema": schema_to_json(arrow_from_fields(manifest.fields, manifest.schema_metadata)),
            "stats": stats,
            "metadata": dict(manifest.table_metadata),
        }

    def declare_table(self, request: DeclareTableRequest) -> DeclareTableResponse:
        """Reserves a name; the table appears with its first version.

        Raises:
            UnsupportedOperationError: a place was asked for; the lake gives one.
        """
        request = typed(DeclareTableRequest, request)
        lake = self._writable()
        if request.location is not None:
            raise UnsupportedOperationError("The lake chooses the location of a new table. Use register for a table that exists.")
        declared = declare(lake, self._name(request.id), request.properties)
        access = lake.plain_access_of(declared.head)
        options = self._vend(access)
        return DeclareTableResponse(
            location=access.lance_uri, storage_options=options, properties=dict(declared.properties), managed_versioning=True,
            transaction_id=declared.transaction,
        )  # fmt: skip

    def drop_table(self, request: DropTableRequest) -> DropTableResponse:
        """Drops a table. Earlier snapshots still show it; a cleanup of the lake removes its files."""
        request = typed(DropTableRequest, request)
        location = self._dropped(request.id)
        return DropTableResponse(id=self._parts(request.id), location=location)

    def deregister_table(self, request: DeregisterTableRequest) -> DeregisterTableResponse:
        """Takes a table out of the lake; its files stay until a cleanup, and for good where the table was registered."""
        request = typed(DeregisterTableRequest, request)
        location = self._dropped(request.id)
        return DeregisterTableResponse(id=self._parts(request.id), location=location)

    def _dropped(self, given: Sequence[str] | None) -> str:
        lake, name = self._writable(), self._name(given)
        head = lake.view().find(full_name(name))
        if head is None:
            declared = self._declared(given)
            if declared is None or not give_up(lake, declared):
                raise TableNotFoundError(f"There is no table {name!r} in the lake.")
            return str(lake.uri_of(declared.location))
        lake.drop_table(name)
        return str(lake.plain_access_of(head).lance_uri)

    def rename_table(self, request: RenameTableRequest) -> RenameTableResponse:
        request = typed(RenameTableRequest, request)
        lake, old = self._writable(), self._name(request.id)
        parts = self._parts(request.id)[:-1] if request.new_namespace_id is None else self._parts(request.new_namespace_id)
        self._head(request.id, whole=False)
        lake.rename_table(old, self._name([*parts, request.new_table_name]))
        return RenameTableResponse()

    def register_table(self, request: RegisterTableRequest) -> RegisterTableResponse:
        """Takes a table in that is there already."""
        request = typed(RegisterTableRequest, request)
        if _word(request.mode, "create") != "create":
            raise UnsupportedOperationError("A table is registered under a free name; drop the other one first.")
        lake = self._writable()
        lake.register_table(self._name(request.id), request.location)
        return RegisterTableResponse(location=request.location, properties=dict(request.properties or {}))

    def _declared(self, given: Sequence[str] | None) -> DeclaredTable | None:
        return find_declared(self._lake, full_name(self._name(given))) if self._at is None else None


def _drop_all(tx: LakeTransaction, names: Sequence[str]) -> None:
    for name in names:
        tx.drop_table(name)


def _word(given: str | None, default: str) -> str:
    """A word of the protocol, which may be written in several ways."""
    return (given or default).replace("_", "").lower()

"""Rows and columns of one table, for clients of a namespace that have no access to the store: Arrow in, Arrow out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from lance_namespace import (
    AlterTableAddColumnsRequest,
    AlterTableAddColumnsResponse,
    AlterTableAlterColumnsRequest,
    AlterTableAlterColumnsResponse,
    AlterTableDropColumnsRequest,
    AlterTableDropColumnsResponse,
    CreateTableRequest,
    CreateTableResponse,
    DeleteFromTableRequest,
    DeleteFromTableResponse,
    GetTableStatsRequest,
    GetTableStatsResponse,
    InsertIntoTableRequest,
    InsertIntoTableResponse,
    InvalidInputError,
    MergeInsertIntoTableRequest,
    MergeInsertIntoTableResponse,
    RestoreTableRequest,
    RestoreTableResponse,
    TableAlreadyExistsError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
    UpdateFieldMetadataRequest,
    UpdateFieldMetadataResponse,
    UpdateTableRequest,
    UpdateTableResponse,
    UpdateTableSchemaMetadataRequest,
    UpdateTableSchemaMetadataResponse,
)
from lance_namespace_urllib3_client.models.fragment_stats import FragmentStats
from lance_namespace_urllib3_client.models.fragment_summary import FragmentSummary

from tiltyard.catalog.lake_values import MAIN
from tiltyard.errors import AlreadyExists, NotFound
from tiltyard.lakes.namespaces.arrow_json import type_from_json
from tiltyard.lakes.namespaces.declared_tables import find_declared
from tiltyard.lakes.namespaces.namespace_base import typed
from tiltyard.lakes.namespaces.namespace_versions import VersionOperations
from tiltyard.lakes.table_names import full_name
from tiltyard.options import CommitOptions

SMALL_FRAGMENT = 100_000
"""Rows; a fragment with fewer is one that compaction would merge with others."""


class DataOperations(VersionOperations):
    """A namespace, as far as rows and columns go."""

    def create_table(self, request: CreateTableRequest, request_data: bytes) -> CreateTableResponse:
        """Makes a table of rows in one request."""
        request = typed(CreateTableRequest, request)
        lake, name = self._writable(), self._name(request.id)
        mode = (request.mode or "create").replace("_", "").lower()
        if mode not in ("create", "existok", "overwrite"):
            raise InvalidInputError(f"mode is Create, ExistOk or Overwrite, not {request.mode!r}.")
        rows = rows_of(request_data)
        there = lake.view().find(full_name(name)) is not None
        if there and mode == "create":
            raise TableAlreadyExistsError(f"There is a table {name!r} in the lake already.")
        if not there and find_declared(lake, full_name(name)) is not None:
            raise TableAlreadyExistsError(f"The table {name!r} is declared already.")
        try:
            table = self._table(request.id) if there else lake.create_table(name, rows)
            if there and mode == "overwrite":
                table.overwrite(rows)
        except AlreadyExists as error:
            raise TableAlreadyExistsError(str(error)) from None
        return CreateTableResponse(location=table._access.lance_uri, version=table.version)

    def insert_into_table(self, request: InsertIntoTableRequest, request_data: bytes) -> InsertIntoTableResponse:
        request = typed(InsertIntoTableRequest, request)
        mode, rows = (request.mode or "append").lower(), rows_of(request_data)
        if mode not in ("append", "overwrite"):
            raise InvalidInputError(f"mode is Append or Overwrite, not {request.mode!r}.")
        table = self._table(request.id, request.branch)
        done = table.append(rows) if mode == "append" else table.overwrite(rows)
        return InsertIntoTableResponse(num_inserted_rows=rows.num_rows, version=done.version, transaction_id=done.transaction_id)

    def merge_insert_into_table(self, request: MergeInsertIntoTableRequest, request_data: bytes) -> MergeInsertIntoTableResponse:
        request = typed(MergeInsertIntoTableRequest, request)
        if not request.on:
            raise InvalidInputError("on names the columns by which rows are matched.")
        merge = self._table(request.id, request.branch).merge(rows_of(request_data), on=list(request.on))
        if request.when_matched_update_all:
            merge = merge.when_matched_update_all(request.when_matched_update_all_filt)
        if request.when_not_matched_insert_all:
            merge = merge.when_not_matched_insert_all()
        if request.when_not_matched_by_source_delete:
            merge = merge.when_not_matched_by_source_delete(request.when_not_matched_by_source_delete_filt)
        done = merge.execute()
        return MergeInsertIntoTableResponse(
            num_updated_rows=done.rows.get("updated", 0),
            num_inserted_rows=done.rows.get("inserted", 0),
            num_deleted_rows=done.rows.get("deleted", 0),
            version=done.version,
            transaction_id=done.transaction_id,
        )

    def update_table(self, request: UpdateTableRequest) -> UpdateTableResponse:
        request = typed(UpdateTableRequest, request)
        if any(len(pair) != 2 for pair in request.updates):
            raise InvalidInputError("updates are pairs of a column and an expression.")
        values = {pair[0]: pair[1] for pair in request.updates}
        options = CommitOptions(properties=request.properties) if request.properties else None
        done = self._table(request.id, request.branch).update(values, request.predicate, commit=options)
        return UpdateTableResponse(updated_rows=done.rows.get("updated", 0), version=done.version, transaction_id=done.transaction_id)

    def delete_from_table(self, request: DeleteFromTableRequest) -> DeleteFromTableResponse:
        request = typed(DeleteFromTableRequest, request)
        done = self._table(request.id, request.branch).delete(request.predicate)
        return DeleteFromTableResponse(version=done.version, transaction_id=done.transaction_id)

    def restore_table(self, request: RestoreTableRequest) -> RestoreTableResponse:
        request = typed(RestoreTableRequest, request)
        try:
            done = self._table(request.id, request.branch).restore(request.version)
        except NotFound as error:
            raise TableVersionNotFoundError(str(error)) from None
        return RestoreTableResponse(transaction_id=done.transaction_id)

    # ---- columns ---------------------------------------------------------------------------------------------------------------

    def alter_table_add_columns(self, request: AlterTableAddColumnsRequest) -> AlterTableAddColumnsResponse:
        request = typed(AlterTableAddColumnsRequest, request)
        if any(column.expression is None for column in request.new_columns):
            raise UnsupportedOperationError("A new column is given by an expression; computed and virtual columns are not supported.")
        new = {column.name: column.expression for column in request.new_columns}
        return AlterTableAddColumnsResponse(version=self._table(request.id, request.branch).add_columns(new).version)

    def alter_table_alter_columns(self, request: AlterTableAlterColumnsRequest) -> AlterTableAlterColumnsResponse:
        request = typed(AlterTableAlterColumnsRequest, request)
        changes: list[dict[str, Any]] = []
        for entry in request.alterations:
            if entry.virtual_column is not None:
                raise UnsupportedOperationError("Virtual columns are not supported.")
            wanted = {"path": entry.path, "name": entry.rename, "nullable": entry.nullable}
            if entry.data_type is not None:
                wanted["data_type"] = type_from_json(entry.data_type)
            changes.append({key: value for key, value in wanted.items() if value is not None})
        return AlterTableAlterColumnsResponse(version=self._table(request.id, request.branch).alter_columns(*changes).version)

    def alter_table_drop_columns(self, request: AlterTableDropColumnsRequest) -> AlterTableDropColumnsResponse:
        request = typed(AlterTableDropColumnsRequest, request)
        return AlterTableDropColumnsResponse(version=self._table(request.id, request.branch).drop_columns(request.columns).version)

    def update_table_schema_metadata(self, request: UpdateTableSchemaMetadataRequest) -> UpdateTableSchemaMetadataResponse:
        request = typed(UpdateTableSchemaMetadataRequest, request)
        table = self._table(request.id, request.branch)
        done = table.settings.update_schema_metadata(dict(request.metadata or {}), replace=True)
        return UpdateTableSchemaMetadataResponse(metadata=request.metadata, transaction_id=done.transaction_id)

    def update_field_metadata(self, request: UpdateFieldMetadataRequest) -> UpdateFieldMetadataResponse:
        """Changes the metadata of columns, of several in one commit."""
        request = typed(UpdateFieldMetadataRequest, request)
        if request.branch not in (None, MAIN):
            raise UnsupportedOperationError("Columns of a table's own branch are changed by clients that open the table themselves.")
        if len({entry.path for entry in request.updates}) != len(request.updates) or not request.updates:
            raise InvalidInputError("updates names columns, each of them once.")
        self._table(request.id)
        with self._writable().transaction() as tx:
            table = tx.table(self._name(request.id))
            for entry in request.updates:
                table.settings.update_field_metadata(entry.path, entry.metadata, replace=bool(entry.replace))
        now = self._table(request.id)
        fields = {entry.path: _metadata(now.schema, entry.path) for entry in request.updates}
        return UpdateFieldMetadataResponse(version=now.version, fields=fields)

    # ---- statistics ------------------------------------------------------------------------------------------------------------

    def get_table_stats(self, request: GetTableStatsRequest) -> GetTableStatsResponse:
        request = typed(GetTableStatsRequest, request)
        table = self._reader(request.id)
        fragments = table.layout.fragments
        lengths = [fragment.physical_rows for fragment in fragments]
        size = sum(file.size or 0 for fragment in fragments for file in fragment.files)
        small = sum(length < SMALL_FRAGMENT for length in lengths)
        return GetTableStatsResponse(
            total_bytes=size,
            num_rows=table.count_rows(),
            num_indices=len(table.indices.list()),
            fragment_stats=FragmentStats(num_fragments=len(lengths), num_small_fragments=small, lengths=_summary(lengths)),
        )


def _metadata(schema: pa.Schema, path: str) -> dict[str, str]:
    """The metadata of a column, or of a member of a struct."""
    first, *rest = path.split(".")
    field = schema.field(first)
    for name in rest:
        field = field.type.field(name)
    return {key.decode(): value.decode(errors="replace") for key, value in (field.metadata or {}).items()}


def _summary(lengths: list[int]) -> FragmentSummary:
    if not lengths:
        return FragmentSummary(min=0, max=0, mean=0, p25=0, p50=0, p75=0, p99=0)
    parts = {f"p{part}": int(np.percentile(lengths, part)) for part in (25, 50, 75, 99)}
    return FragmentSummary(min=min(lengths), max=max(lengths), mean=int(np.mean(lengths)), **parts)


def rows_of(data: bytes) -> pa.Table:
    """The rows of an Arrow IPC stream.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidInputError(f"The body is not an Arrow IPC stream: {str(error)[:200]}") from None

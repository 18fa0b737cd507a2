"""The routes of the Lance REST namespace: each path with its operation, the request it takes and the role it needs. Data, no logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal

import lance_namespace as models

BodyKind = Literal["json", "arrow", "none", "metadata"]
AnswerKind = Literal["json", "empty", "number", "arrow", "text", "metadata", "plain"]
Scope = Literal["table", "namespace", "list", "batch", "transaction", "catalog"]


class Role(IntEnum):
    """What a principal may do with the tables below a name; each role has all that the ones before it have."""

    READER = 1
    WRITER = 2
    MAINTAINER = 3
    ADMIN = 4


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One operation over HTTP.

    Attributes:
        path: as Starlette writes it.
        operation: the method of ``LakeNamespace``.
        request: the model that the request is read into.
        role: what the principal has to be.
        scope: what the id names, which is what the role is asked for.
        body: what the client sends.
        answer: what it gets.
        method: of HTTP.
        commits: whether it changes the lake.
    """

    path: str
    operation: str
    request: Any
    role: Role = Role.READER
    scope: Scope = "table"
    body: BodyKind = "json"
    answer: AnswerKind = "json"
    method: str = "POST"

    @property
    def commits(self) -> bool:
        return self.role > Role.READER

    @property
    def takes_turns(self) -> bool:
        """Whether it makes versions of tables that others may write to as well."""
        return self.operation in _IN_TURN

    @property
    def is_prompt(self) -> bool:
        """Whether it is short, and whoever waits long for it loses a race meanwhile: it does not wait behind work that takes long."""
        return self.operation in _PROMPT


_IN_TURN: Final = frozenset(
    {
        "create_table_version", "batch_create_table_versions", "batch_commit_tables", "restore_table", "insert_into_table",
        "merge_insert_into_table", "update_table", "delete_from_table", "create_table_index", "create_table_scalar_index",
        "drop_table_index", "alter_table_add_columns", "alter_table_alter_columns", "alter_table_drop_columns",
        "update_table_schema_metadata", "update_field_metadata",
    }
)  # fmt: skip

_PROMPT: Final = frozenset({"create_table_version", "publish", "describe_table", "describe_table_version", "list_table_versions"})

_T, _N = "/v1/table/{id}", "/v1/namespace/{id}"

ROUTES: Final = (
    # ---- namespaces; those without an id come first: DuckDB asks that way for the root
    RouteSpec("/v1/namespace/table/list", "list_tables", models.ListTablesRequest, scope="list", body="none", method="GET"),
    RouteSpec("/v1/namespace/list", "list_namespaces", models.ListNamespacesRequest, scope="list", body="none", method="GET"),
    RouteSpec(f"{_N}/list", "list_namespaces", models.ListNamespacesRequest, scope="list", body="none", method="GET"),
    RouteSpec(f"{_N}/table/list", "list_tables", models.ListTablesRequest, scope="list", body="none", method="GET"),
    RouteSpec("/v1/table", "list_all_tables", models.ListTablesRequest, scope="list", body="none", method="GET"),
    RouteSpec(f"{_N}/create", "create_namespace", models.CreateNamespaceRequest, Role.WRITER, "namespace"),
    RouteSpec(f"{_N}/describe", "describe_namespace", models.DescribeNamespaceRequest, scope="list"),
    RouteSpec(f"{_N}/exists", "namespace_exists", models.NamespaceExistsRequest, scope="list", answer="empty"),
    RouteSpec(f"{_N}/drop", "drop_namespace", models.DropNamespaceRequest, Role.MAINTAINER, "namespace"),
    # ---- several tables
    RouteSpec(
        "/v1/table/version/batch-create", "batch_create_table_versions", models.BatchCreateTableVersionsRequest, Role.WRITER, "batch"
    ),
    RouteSpec("/v1/table/batch-commit", "batch_commit_tables", models.BatchCommitTablesRequest, Role.WRITER, "batch"),
    RouteSpec("/v1/transaction/{id}/describe", "describe_transaction", models.DescribeTransactionRequest, scope="transaction"),
    # ---- versions
    RouteSpec(f"{_T}/version/list", "list_table_versions", models.ListTableVersionsRequest),
    RouteSpec(f"{_T}/version/describe", "describe_table_version", models.DescribeTableVersionRequest),
    RouteSpec(f"{_T}/version/create", "create_table_version", models.CreateTableVersionRequest, Role.WRITER),
    RouteSpec(f"{_T}/version/delete", "batch_delete_table_versions", models.BatchDeleteTableVersionsRequest, Role.MAINTAINER),
    # ---- tables by name
    RouteSpec(f"{_T}/describe", "describe_table", models.DescribeTableRequest),
    RouteSpec(f"{_T}/exists", "table_exists", models.TableExistsRequest, answer="empty"),
    RouteSpec(f"{_T}/declare", "declare_table", models.DeclareTableRequest, Role.WRITER),
    RouteSpec(f"{_T}/drop", "drop_table", models.DropTableRequest, Role.MAINTAINER),
    RouteSpec(f"{_T}/deregister", "deregister_table", models.DeregisterTableRequest, Role.MAINTAINER),
    RouteSpec(f"{_T}/rename", "rename_table", models.RenameTableRequest, Role.MAINTAINER),
    RouteSpec(f"{_T}/register", "register_table", models.RegisterTableRequest, Role.ADMIN),
    RouteSpec(f"{_T}/restore", "restore_table", models.RestoreTableRequest, Role.MAINTAINER),
    RouteSpec(f"{_T}/stats", "get_table_stats", models.GetTableStatsRequest),
    # ---- tags, branches, indices
    RouteSpec(f"{_T}/tags/list", "list_table_tags", models.ListTableTagsRequest),
    RouteSpec(f"{_T}/tags/version", "get_table_tag_version", models.GetTableTagVersionRequest),
    RouteSpec(f"{_T}/tags/create", "create_table_tag", models.CreateTableTagRequest, Role.WRITER),
    RouteSpec(f"{_T}/tags/update", "update_table_tag", models.UpdateTableTagRequest, Role.MAINTAINER),
    RouteSpec(f"{_T}/tags/delete", "delete_table_tag", models.DeleteTableTagRequest, Role.MAINTAINER),
    RouteSpec(f"{_T}/branches/list", "list_table_branches", models.ListTableBranchesRequest),
    RouteSpec(f"{_T}/branches/create", "create_table_branch", models.CreateTableBranchRequest, Role.WRITER),
    RouteSpec(f"{_T}/branches/delete", "delete_table_branch", models.DeleteTableBranchRequest, Role.MAINTAINER),
    RouteSpec(f"{_T}/index/list", "list_table_indices", models.ListTableIndicesRequest),
    RouteSpec(f"{_T}/index/{{index_name}}/stats", "describe_table_index_stats", models.DescribeTableIndexStatsRequest),
    RouteSpec(f"{_T}/index/{{index_name}}/drop", "drop_table_index", models.DropTableIndexRequest, Role.WRITER),
    RouteSpec(f"{_T}/create_index", "create_table_index", models.CreateTableIndexRequest, Role.WRITER),
    RouteSpec(f"{_T}/create_scalar_index", "create_table_scalar_index", models.CreateTableIndexRequest, Role.WRITER),
    # ---- rows and columns
    RouteSpec(f"{_T}/create", "create_table", models.CreateTableRequest, Role.WRITER, body="arrow"),
    RouteSpec(f"{_T}/insert", "insert_into_table", models.InsertIntoTableRequest, Role.WRITER, body="arrow"),
    RouteSpec(f"{_T}/merge_insert", "merge_insert_into_table", models.MergeInsertIntoTableRequest, Role.WRITER, body="arrow"),
    RouteSpec(f"{_T}/update", "update_table", models.UpdateTableRequest, Role.WRITER),
    RouteSpec(f"{_T}/delete", "delete_from_table", models.DeleteFromTableRequest, Role.WRITER),
    RouteSpec(f"{_T}/query", "query_table", models.QueryTableRequest, answer="arrow"),
    RouteSpec(f"{_T}/explain_plan", "explain_table_query_plan", models.ExplainTableQueryPlanRequest, answer="text"),
    RouteSpec(f"{_T}/analyze_plan", "analyze_table_query_plan", models.AnalyzeTableQueryPlanRequest, answer="text"),
    RouteSpec(f"{_T}/count_rows", "count_table_rows", models.CountTableRowsRequest, answer="number"),
    RouteSpec(f"{_T}/add_columns", "alter_table_add_columns", models.AlterTableAddColumnsRequest, Role.WRITER),
    RouteSpec(f"{_T}/alter_columns", "alter_table_alter_columns", models.AlterTableAlterColumnsRequest, Role.WRITER),
    RouteSpec(f"{_T}/drop_columns", "alter_table_drop_columns", models.AlterTableDropColumnsRequest, Role.MAINTAINER),
    RouteSpec(
        f"{_T}/schema_metadata/update",
        "update_table_schema_metadata",
        models.UpdateTableSchemaMetadataRequest,
        Role.WRITER,
        body="metadata",
        answer="metadata",
    ),
    RouteSpec(f"{_T}/update_field_metadata", "update_field_metadata", models.UpdateFieldMetadataRequest, Role.WRITER),
)

NOT_OFFERED: Final[Mapping[str, str]] = {
    "/v1/materialized_view/{id}/create": "Materialized views are not supported. Use a pipeline to keep a table up to date with others.",
    "/v1/materialized_view/{id}/refresh": "Materialized views are not supported. Use a pipeline to keep a table up to date with others.",
    f"{_T}/backfill_column": "Computed columns are not supported. Add the column with an expression.",
    "/v1/transaction/{id}/alter": "A transaction is ended by its client, or by a cleanup of the lake.",
}
"""What the protocol has and a lake does not, each with what to do: answered with 406, so that a client can tell it from a wrong path."""

"""Tags, branches and indices of one table, for clients of a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lance_namespace import (
    CreateTableBranchRequest,
    CreateTableBranchResponse,
    CreateTableIndexRequest,
    CreateTableIndexResponse,
    CreateTableScalarIndexResponse,
    CreateTableTagRequest,
    CreateTableTagResponse,
    DeleteTableBranchRequest,
    DeleteTableBranchResponse,
    DeleteTableTagRequest,
    DeleteTableTagResponse,
    DescribeTableIndexStatsRequest,
    DescribeTableIndexStatsResponse,
    DropTableIndexRequest,
    DropTableIndexResponse,
    GetTableTagVersionRequest,
    GetTableTagVersionResponse,
    ListTableBranchesRequest,
    ListTableBranchesResponse,
    ListTableIndicesRequest,
    ListTableIndicesResponse,
    ListTableTagsRequest,
    ListTableTagsResponse,
    PermissionDeniedError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UpdateTableTagRequest,
    UpdateTableTagResponse,
)
from lance_namespace_urllib3_client.models.branch_contents import BranchContents
from lance_namespace_urllib3_client.models.index_content import IndexContent
from lance_namespace_urllib3_client.models.tag_contents import TagContents

from tiltyard.catalog.lake_values import MAIN
from tiltyard.errors import AlreadyExists, InvalidInput, NotFound
from tiltyard.format.refs import Tag
from tiltyard.lakes.cleanup.pins import PREFIX as PIN_PREFIX
from tiltyard.lakes.namespaces.namespace_base import page_of, typed
from tiltyard.lakes.namespaces.namespace_versions import OWN_BRANCHES, VersionOperations
from tiltyard.options import IndexSpec
from tiltyard.transaction.race import CommitResult
from tiltyard.verbs.indices.index_list import IndexInfo

_INDEX_OPTIONS: Final = {
    "distance_type": "metric",
    "num_partitions": "num_partitions",
    "num_sub_vectors": "num_sub_vectors",
    "num_bits": "num_bits",
    "sample_rate": "sample_rate",
    "max_iterations": "max_iters",
    "target_partition_size": "target_partition_size",
    "m": "m",
    "ef_construction": "ef_construction",
    "with_position": "with_position",
    "base_tokenizer": "base_tokenizer",
    "language": "language",
    "max_token_length": "max_token_length",
    "lower_case": "lower_case",
    "stem": "stem",
    "remove_stop_words": "remove_stop_words",
    "ascii_folding": "ascii_folding",
}
"""Options of an index in a request, and what pylance calls them."""


class RefOperations(VersionOperations):
    """A namespace, as far as tags, branches and indices go."""

    # ---- tags ------------------------------------------------------------------------------------------------------------------

    def list_table_tags(self, request: ListTableTagsRequest) -> ListTableTagsResponse:
        request = typed(ListTableTagsRequest, request)
        tags = self._table(request.id).tags
        page, token = page_of(sorted(tags), request.page_token, request.limit)
        return ListTableTagsResponse(tags={name: _contents(tags[name]) for name in page}, page_token=token)

    def get_table_tag_version(self, request: GetTableTagVersionRequest) -> GetTableTagVersionResponse:
        request = typed(GetTableTagVersionRequest, request)
        tag = self._tag(request.id, request.tag)
        return GetTableTagVersionResponse(version=tag.version, branch=tag.branch)

    def create_table_tag(self, request: CreateTableTagRequest) -> CreateTableTagResponse:
        request = typed(CreateTableTagRequest, request)
        _refuse_pin(request.tag)
        tags = self._table(request.id).tags
        try:
            tags.create(request.tag, request.version, branch=_own(request.branch))
        except AlreadyExists:
            raise TableTagAlreadyExistsError(f"There is a tag {request.tag[:80]!r} already.") from None
        except NotFound as error:
            raise TableVersionNotFoundError(str(error)) from None
        return CreateTableTagResponse()

    def update_table_tag(self, request: UpdateTableTagRequest) -> UpdateTableTagResponse:
        request = typed(UpdateTableTagRequest, request)
        _refuse_pin(request.tag)
        self._tag(request.id, request.tag)
        try:
            self._table(request.id).tags.update(request.tag, request.version, branch=_own(request.branch))
        except NotFound as error:
            raise TableVersionNotFoundError(str(error)) from None
        return UpdateTableTagResponse()

    def delete_table_tag(self, request: DeleteTableTagRequest) -> DeleteTableTagResponse:
        request = typed(DeleteTableTagRequest, request)
        _refuse_pin(request.tag)
        self._tag(request.id, request.tag)
        self._table(request.id).tags.delete(request.tag)
        return DeleteTableTagResponse()

    def _tag(self, given: Sequence[str] | None, name: str) -> Tag:
        try:
            return self._table(given).tags[name]
        except (NotFound, InvalidInput):
            raise TableTagNotFoundError(f"There is no tag {name[:80]!r} of this table.") from None

    # ---- branches --------------------------------------------------------------------------------------------------------------

    def list_table_branches(self, request: ListTableBranchesRequest) -> ListTableBranchesResponse:
        """The table's own branches, without those that the lake made for lines of its history."""
        request = typed(ListTableBranchesRequest, request)
        branches = self._table(request.id).branches
        names = sorted(name for name in branches if not name.startswith(OWN_BRANCHES))
        page, token = page_of(names, request.page_token, request.limit)
        shown = {name: branches[name] for name in page}
        found = {
            name: BranchContents(
                parentBranch=branch.parent_branch,
                parentVersion=branch.parent_version,
                createAt=branch.created_at,
                manifestSize=branch.manifest_size,
                metadata=dict(branch.metadata) or None,
            )
            for name, branch in shown.items()
        }
        return ListTableBranchesResponse(branches=found, page_token=token)

    def create_table_branch(self, request: CreateTableBranchRequest) -> CreateTableBranchResponse:
        request = typed(CreateTableBranchRequest, request)
        _refuse_lake_branch(request.name)
        table = self._table(request.id)
        parent = _own(request.from_branch)
        version = table.version if request.from_version is None and parent is None else request.from_version
        try:
            table.branches.create(request.name, (parent, version))
        except AlreadyExists:
            raise TableBranchAlreadyExistsError(f"There is a branch {request.name[:80]!r} already.") from None
        except NotFound as error:
            raise TableVersionNotFoundError(str(error)) from None
        return CreateTableBranchResponse()

    def delete_table_branch(self, request: DeleteTableBranchRequest) -> DeleteTableBranchResponse:
        request = typed(DeleteTableBranchRequest, request)
        _refuse_lake_branch(request.name)
        try:
            self._table(request.id).branches.delete(request.name)
        except NotFound:
            raise TableBranchNotFoundError(f"There is no branch {request.name[:80]!r} of this table.") from None
        return DeleteTableBranchResponse()

    # ---- indices ---------------------------------------------------------------------------------------------------------------

    def list_table_indices(self, request: ListTableIndicesRequest) -> ListTableIndicesResponse:
        request = typed(ListTableIndicesRequest, request)
        by_name = {index.name: index for index in self._reader(request.id, request.version, request.branch).indices.list()}
        page, token = page_of(sorted(by_name), request.page_token, request.limit)
        return ListTableIndicesResponse(indexes=[_index(by_name[name]) for name in page], page_token=token)

    def describe_table_index_stats(self, request: DescribeTableIndexStatsRequest) -> DescribeTableIndexStatsResponse:
        request = typed(DescribeTableIndexStatsRequest, request)
        indices = self._reader(request.id, request.version, request.branch).indices.list()
        index = next((index for index in indices if index.name == request.index_name), None)
        if index is None:
            raise TableIndexNotFoundError(f"There is no index {str(request.index_name)[:80]!r} of this table.")
        return DescribeTableIndexStatsResponse(
            index_type=index.type, num_indexed_rows=index.rows, num_unindexed_rows=index.missing_rows, num_indices=len(index.segments)
        )

    def create_table_index(self, request: CreateTableIndexRequest) -> CreateTableIndexResponse:
        done = self._index_made(typed(CreateTableIndexRequest, request))
        return CreateTableIndexResponse(transaction_id=done.transaction_id)

    def create_table_scalar_index(self, request: CreateTableIndexRequest) -> CreateTableScalarIndexResponse:
        done = self._index_made(typed(CreateTableIndexRequest, request))
        return CreateTableScalarIndexResponse(transaction_id=done.transaction_id)

    def _index_made(self, request: CreateTableIndexRequest) -> CommitResult:
        given = {name: getattr(request, key) for key, name in _INDEX_OPTIONS.items() if getattr(request, key) is not None}
        kind = "INVERTED" if request.index_type.upper() == "FTS" else request.index_type
        try:
            return self._table(request.id, request.branch).indices.create(request.column, IndexSpec(kind, given), request.name)
        except AlreadyExists as error:
            raise TableIndexAlreadyExistsError(str(error)) from None

    def drop_table_index(self, request: DropTableIndexRequest) -> DropTableIndexResponse:
        request = typed(DropTableIndexRequest, request)
        try:
            done = self._table(request.id, request.branch).indices.drop(str(request.index_name))
        except NotFound as error:
            raise TableIndexNotFoundError(str(error)) from None
        return DropTableIndexResponse(transaction_id=done.transaction_id)


def _contents(tag: Tag) -> TagContents:
    return TagContents(version=tag.version, manifestSize=tag.manifest_size, branch=tag.branch)


def _own(branch: str | None) -> str | None:
    if branch is not None and branch.startswith(OWN_BRANCHES):
        raise TableBranchNotFoundError(f"There is no branch {branch[:80]!r} of this table.")
    return None if branch in (None, MAIN) else branch


def _refuse_pin(tag: str) -> None:
    """A pin keeps a version that a snapshot of the lake needs; only the lake makes and releases one."""
    if tag.startswith(PIN_PREFIX):
        raise PermissionDeniedError(f"Tags that begin with {PIN_PREFIX!r} belong to the lake.")


def _refuse_lake_branch(name: str) -> None:
    if name.startswith(OWN_BRANCHES):
        raise PermissionDeniedError(f"Branches that begin with {OWN_BRANCHES!r} belong to the lake.")


def _index(index: IndexInfo) -> IndexContent:
    facts: dict[str, Any] = {"columns": list(index.columns), "created_at": index.created, "size_bytes": index.bytes}
    return IndexContent(
        index_name=index.name,
        index_uuid=index.segments[-1] if index.segments else "",
        status="SUCCEEDED",
        index_type=index.type,
        num_indexed_rows=index.rows,
        num_unindexed_rows=index.missing_rows,
        num_segments=len(index.segments),
        index_version=index.version,
        **facts,
    )

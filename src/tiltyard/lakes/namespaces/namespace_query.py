"""Reading rows through a namespace: counts, filters, vector and full-text search, and how a query would be run."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from lance_namespace import (
    AnalyzeTableQueryPlanRequest,
    CountTableRowsRequest,
    CountTableRowsResponse,
    ExplainTableQueryPlanRequest,
    InvalidInputError,
    QueryTableRequest,
    QueryTableResponse,
    UnsupportedOperationError,
)

from tiltyard.lakes.namespaces.namespace_base import typed
from tiltyard.lakes.namespaces.namespace_versions import VersionOperations
from tiltyard.verbs.engine.pylance import lance_errors

_NEAREST: Final = {
    "k": "k",
    "nprobes": "nprobes",
    "minimum_nprobes": "minimum_nprobes",
    "maximum_nprobes": "maximum_nprobes",
    "refine_factor": "refine_factor",
    "ef": "ef",
    "distance_type": "metric",
}
"""Options of a vector search in a request, and what pylance calls them."""
VECTOR: Final = "vector"


class QueryOperations(VersionOperations):
    """A namespace, as far as queries go."""

    def count_table_rows(self, request: CountTableRowsRequest) -> CountTableRowsResponse:
        request = typed(CountTableRowsRequest, request)
        count = self._reader(request.id, request.version, request.branch).count_rows(request.predicate)
        return CountTableRowsResponse(count=count)

    def query_table(self, request: QueryTableRequest) -> QueryTableResponse:
        """Rows as an Arrow IPC file."""
        request = typed(QueryTableRequest, request)
        table = self._reader(request.id, request.version, request.branch)
        with lance_errors(table._access, "query", table.version):
            rows = _scanner(table.lance, request).to_table()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        return QueryTableResponse(data=sink.getvalue().to_pybytes())

    def explain_table_query_plan(self, request: ExplainTableQueryPlanRequest) -> str:
        request = typed(ExplainTableQueryPlanRequest, request)
        table = self._reader(request.id, request.query.version, request.branch)
        with lance_errors(table._access, "explain a query", table.version):
            return str(_scanner(table.lance, request.query).explain_plan(bool(request.verbose)))

    def analyze_table_query_plan(self, request: AnalyzeTableQueryPlanRequest) -> str:
        query = QueryTableRequest(**typed(AnalyzeTableQueryPlanRequest, request).to_dict())
        table = self._reader(query.id, query.version, query.branch)
        with lance_errors(table._access, "analyze a query", table.version):
            return str(_scanner(table.lance, query).analyze_plan())


def _scanner(dataset: Any, request: QueryTableRequest) -> Any:
    options: dict[str, Any] = {"columns": _columns(request), "filter": request.filter, "prefilter": bool(request.prefilter)}
    vector = _vector(request)
    if vector is not None:
        column = request.vector_column or VECTOR
        nearest = {name: getattr(request, key) for key, name in _NEAREST.items() if getattr(request, key) is not None}
        nearest |= {"column": column, "q": vector, "use_index": not request.bypass_vector_index}
        if request.lower_bound is not None or request.upper_bound is not None:
            nearest["distance_range"] = (request.lower_bound, request.upper_bound)
        options["nearest"] = nearest
    options["limit"], options["offset"] = request.k, request.offset
    if request.fast_search:
        options["fast_search"] = True
    if request.full_text_query is not None:
        options["full_text_query"] = _full_text(request)
    return dataset.scanner(with_row_id=bool(request.with_row_id), **options)


def _columns(request: QueryTableRequest) -> Any:
    if request.columns is None:
        return None
    if request.columns.column_aliases:
        return dict(request.columns.column_aliases)
    return list(request.columns.column_names or []) or None


def _vector(request: QueryTableRequest) -> list[float] | None:
    if request.vector.multi_vector:
        raise UnsupportedOperationError("One vector is searched for at a time.")
    return [float(value) for value in request.vector.single_vector] if request.vector.single_vector else None


def _full_text(request: QueryTableRequest) -> Any:
    query = request.full_text_query
    if query is None or query.string_query is None:
        raise UnsupportedOperationError("A full-text query is given as a string; structured queries are not supported.")
    if not query.string_query.query:
        raise InvalidInputError("The full-text query is empty.")
    return {"query": query.string_query.query, "columns": list(query.string_query.columns or [])}

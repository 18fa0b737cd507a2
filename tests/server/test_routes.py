"""Every route over HTTP as it is on the wire: what it answers, and which code it fails with."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

from tests.support.served import Answer, Served
from tiltyard.server.routes import ROUTES

ROWS = pa.table({"id": [1, 2], "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))})


def read(answer: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.ipc.open_file(io.BytesIO(answer.body)).read_all().to_pylist()
    return found


def test_rows_over_the_wire(server: Served) -> None:
    at = "/v1/table/wire"
    assert server.rows(f"{at}/create", ROWS).json["version"] == 1
    assert server.rows(f"{at}/create", ROWS).code == 5
    assert server.rows(f"{at}/create?mode=exist_ok", ROWS).json["version"] == 1
    assert server.rows(f"{at}/insert?mode=append", ROWS).json["num_inserted_rows"] == 2
    merged = server.rows(f"{at}/merge_insert?on=id&when_matched_update_all=true&when_not_matched_insert_all=true", ROWS.slice(0, 1))
    assert (merged.json["num_updated_rows"], merged.json["num_inserted_rows"]) == (2, 0)
    assert server.post(f"{at}/update", {"updates": [["id", "id + 10"]], "predicate": "id = 1"}).json["updated_rows"] == 2
    assert server.post(f"{at}/count_rows", {"predicate": "id > 10"}).body == b"2"
    nearest = server.post(f"{at}/query", {"k": 1, "vector": {"single_vector": [3.0, 4.0]}, "columns": {"column_names": ["id"]}})
    assert [row["id"] for row in read(nearest)] == [2]
    assert nearest.headers["content-type"] == "application/vnd.apache.arrow.file"
    filtered = server.post(f"{at}/query", {"k": 9, "vector": {}, "filter": "id > 10", "columns": {"column_names": ["id"]}})
    assert [row["id"] for row in read(filtered)] == [11, 11]
    assert "KNN" in server.post(f"{at}/explain_plan", {"query": {"k": 1, "vector": {"single_vector": [3.0, 4.0]}}}).json
    assert server.post(f"{at}/delete", {"predicate": "id > 10"}).json["version"] == 5
    assert server.post(f"{at}/stats", {}).json["num_rows"] == 2
    assert server.post(f"{at}/restore", {"version": 1}).status == 200
    assert server.post(f"{at}/count_rows", {}).body == b"2"


def test_columns_tags_branches_and_indices(server: Served) -> None:
    at = "/v1/table/parts"
    server.rows(f"{at}/create", ROWS)
    assert server.post(f"{at}/add_columns", {"new_columns": [{"name": "more", "expression": "id * 2"}]}).json["version"] == 2
    assert server.post(f"{at}/alter_columns", {"alterations": [{"path": "more", "rename": "less"}]}).json["version"] == 3
    assert server.post(f"{at}/drop_columns", {"columns": ["less"]}).json["version"] == 4
    described = server.post(f"{at}/describe?load_detailed_metadata=true", None).json
    assert [field["name"] for field in described["schema"]["fields"]] == ["id", "vector"]
    assert (
        described["schema"]["fields"][1]["type"]
        == {
            "fields": [{"name": "item", "nullable": True, "type": {"type": "float"}}],
            "length": 2,
            "type": "fixed_size_list",
        }
        or described["schema"]["fields"][1]["type"]["length"] == 2
    )
    assert server.post(f"{at}/tags/create", {"tag": "v", "version": 1}).status == 200
    assert server.post(f"{at}/tags/create", {"tag": "v", "version": 1}).code == 9
    assert server.post(f"{at}/tags/create", {"tag": "w", "version": 99}).code == 11
    assert server.post(f"{at}/tags/create", {"tag": "tiltyard-kept-x", "version": 1}).code == 15
    assert server.post(f"{at}/tags/update", {"tag": "v", "version": 2}).status == 200
    assert server.post(f"{at}/tags/version", {"tag": "v"}).json["version"] == 2
    assert server.post(f"{at}/tags/list", None).json["tags"]["v"]["version"] == 2
    assert server.post(f"{at}/tags/delete", {"tag": "v"}).status == 200
    assert server.post(f"{at}/tags/version", {"tag": "v"}).code == 8
    assert server.post(f"{at}/branches/create", {"name": "b", "from_version": 2}).status == 200
    assert server.post(f"{at}/branches/create", {"name": "b"}).code == 23
    assert server.post(f"{at}/branches/create", {"name": "lake-x"}).code == 15
    assert server.post(f"{at}/branches/list", None).json["branches"]["b"]["parentVersion"] == 2
    assert server.post(f"{at}/version/list?branch=b", None).json["versions"][0]["version"] == 2
    assert server.post(f"{at}/version/list?branch=c", None).code == 22
    assert server.post(f"{at}/branches/delete", {"name": "b"}).status == 200
    assert server.post(f"{at}/branches/delete", {"name": "b"}).code == 22
    assert server.post(f"{at}/create_scalar_index", {"column": "id", "index_type": "BTREE"}).status == 200
    assert server.post(f"{at}/index/list", {}).json["indexes"][0]["index_name"] == "id_idx"
    assert server.post(f"{at}/index/id_idx/stats", {}).json["num_indexed_rows"] == 2
    assert server.post(f"{at}/index/id_idx/drop", {}).status == 200
    assert server.post(f"{at}/index/id_idx/drop", {}).code == 6
    assert server.post(f"{at}/schema_metadata/update", {"k": "v"}).json == {"k": "v"}


def test_names_and_namespaces(server: Served) -> None:
    assert server.post("/v1/namespace/n/create", {"properties": {"a": "b"}}).json["properties"] == {"a": "b"}
    assert server.post("/v1/namespace/n/create", {}).code == 2
    assert server.post("/v1/namespace/n/create", {"mode": "exist_ok"}).status == 200
    assert server.post("/v1/namespace/n/describe", {}).json["properties"] == {"a": "b"}
    assert server.post("/v1/namespace/n/exists", {}).body == b""
    assert server.post("/v1/namespace/m/exists", {}).code == 1
    assert server.rows("/v1/table/n$t/create", ROWS).status == 200
    assert server.get("/v1/namespace/n/table/list").json["tables"] == ["t"]
    assert server.get("/v1/namespace/n%2Et/table/list?delimiter=.").json.get("code") == 1
    assert "n" in server.get("/v1/namespace/$/list").json["namespaces"]
    assert "n$t" in server.get("/v1/table").json["tables"]
    # As DuckDB asks: empty parts say nothing.
    assert server.post("/v1/table/$$n$t/describe", None).json["namespace"] == ["n"]
    assert server.get("/v1/namespace/table/list").status == 200
    assert server.post("/v1/namespace/n/drop", {}).code == 3
    assert server.post("/v1/table/n$t/rename", {"new_table_name": "u"}).status == 200
    assert server.post("/v1/table/n$t/exists", {}).code == 4
    assert server.post("/v1/table/n$u/exists", {}).status == 200
    assert server.post("/v1/namespace/n/drop", {"behavior": "Cascade"}).status == 200
    assert server.post("/v1/namespace/n/drop", {}).code == 1
    assert server.post("/v1/table/n$u/describe", None).code == 4


def test_long_lists_come_in_pages(server: Served) -> None:
    for name in ("a", "b", "c"):
        server.rows(f"/v1/table/pages${name}/create", ROWS)
    first = server.get("/v1/namespace/pages/table/list?limit=2").json
    assert first == {"tables": ["a", "b"], "page_token": "b"}
    assert server.get("/v1/namespace/pages/table/list?limit=2&page_token=b").json == {"tables": ["c"]}
    server.rows("/v1/table/pages$a/insert", ROWS)
    versions = server.post("/v1/table/pages$a/version/list?limit=1", None).json
    assert (versions["versions"][0]["version"], versions["page_token"]) == (1, "1")
    rest = server.post("/v1/table/pages$a/version/list?page_token=1", None).json
    assert [entry["version"] for entry in rest["versions"]] == [2]
    assert "page_token" not in rest


@pytest.mark.parametrize("spec", ROUTES, ids=lambda spec: f"{spec.method} {spec.path}")
def test_every_route_answers_in_json_and_none_breaks(server: Served, spec: Any) -> None:
    path = spec.path.replace("{id}", "nowhere").replace("{index_name}", "i")
    for body in (b"", b"null", b"{}", b"[]", b"{", b'{"id": ["other"]}', b'{"id": 7}', b"\xff\xfe", b"[" * 5000):
        answer = server.ask(spec.method, path, None if spec.method == "GET" else body, None)
        assert answer.status != 500, (body, answer.body)
        if answer.status >= 400:
            assert {"error", "code", "instance"} <= answer.json.keys()


def test_what_is_no_route_says_so_in_json(server: Served) -> None:
    assert server.get("/v1/nope").status == 404
    assert server.get("/v1/nope").code == 0
    assert server.get("/v1/table/x/describe").status == 405

"""Every route over HTTP as it is on the wire: what it answers, and which code it fails with."""

from __future__ import annotations

import importlib
import inspect
import io
import pkgutil
import re
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace_urllib3_client import api

from tests.support.served import Answer, Served
from tiltyard.server.routes import NOT_OFFERED, ROUTES

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


def protocol() -> dict[tuple[str, str], str]:
    """Every operation of the protocol, as the client of ``lance_namespace`` that is generated from it sends it."""
    found: dict[tuple[str, str], str] = {}
    for module in pkgutil.iter_modules(api.__path__):
        text = inspect.getsource(importlib.import_module(f"{api.__name__}.{module.name}"))
        for match in re.finditer(r"def _(\w+)_serialize.*?method='(\w+)',\s*resource_path='([^']+)'", text, re.DOTALL):
            found[match[2], match[3]] = match[1]
    return found


def test_every_operation_of_the_protocol_is_served_or_named_as_left_out(server: Served) -> None:
    wanted = protocol()
    assert len(wanted) >= 54
    ours = {(spec.method, spec.path): spec.operation for spec in ROUTES}
    assert {key: name for key, name in wanted.items() if key[1] not in NOT_OFFERED} == {key: ours.get(key) for key in wanted if key in ours}
    assert {path for _, path in wanted} >= set(NOT_OFFERED)
    for path, why in NOT_OFFERED.items():
        answer = server.post(path.replace("{id}", "x"), {})
        assert (answer.status, answer.code, answer.json["error"]) == (406, 0, why)


def test_versions_are_deleted_where_nothing_needs_them(server: Served) -> None:
    at = "/v1/table/thinned"
    with server.lake() as lake:
        table = lake.create_table("thinned", pa.table({"id": [0]}))
        for number in range(1, 4):
            table.append(pa.table({"id": [number]}))
    held = server.post(f"{at}/version/delete", {"ranges": [{"start_version": 1, "end_version": 3}]})
    assert (held.status, held.code) == (409, 19)
    assert "Version 1 is needed by snapshots" in held.json["error"]
    assert server.post(f"{at}/version/delete", {"ranges": [{"start_version": 0, "end_version": -1}]}).code == 19
    assert server.post(f"{at}/version/delete", {"ranges": [{"start_version": 90, "end_version": 99}]}).json["deleted_count"] == 0
    assert server.post(f"{at}/version/delete", {"ranges": [{"start_version": -2, "end_version": 1}]}).code == 13
    assert server.post(f"{at}/version/delete", {"ranges": [{"start_version": 1, "end_version": 2}], "branch": "none"}).code == 22
    assert server.post("/v1/table/nowhere/version/delete", {"ranges": []}).code == 4
    # A branch of the table's own: what the lake does not show goes by its number, but for what somebody holds.
    server.post(f"{at}/branches/create", {"name": "b"})
    with server.lake() as lake:
        own = lance.dataset(lake.table("thinned").uri).checkout_version(("b", None))
        for number in range(3):
            lance.write_dataset(pa.table({"id": [number]}), own, mode="append")
            own.checkout_latest()  # type: ignore[no-untyped-call]
    numbers = [entry["version"] for entry in server.post(f"{at}/version/list?branch=b", None).json["versions"]]
    server.post(f"{at}/tags/create", {"tag": "kept", "version": numbers[1], "branch": "b"})
    spans = [{"start_version": number, "end_version": number + 1} for number in (numbers[0], numbers[2])]
    assert server.post(f"{at}/version/delete", {"ranges": [{"start_version": 0, "end_version": numbers[-1]}], "branch": "b"}).code == 19
    assert server.post(f"{at}/version/delete", {"ranges": spans, "branch": "b"}).json["deleted_count"] == 2
    assert server.post(f"{at}/version/delete", {"ranges": spans, "branch": "b"}).json["deleted_count"] == 0
    left = [entry["version"] for entry in server.post(f"{at}/version/list?branch=b", None).json["versions"]]
    assert left == [numbers[1], numbers[3]]
    assert own.count_rows() == 7
    with server.lake() as lake:
        assert lake.table("thinned").count_rows() == 4
        assert lake.check().ok


def test_metadata_of_columns_in_one_commit(server: Served) -> None:
    at = "/v1/table/described"
    rows = pa.table({"id": [1], "s": [{"x": 1}]})
    server.rows(f"{at}/create", rows)
    updates = [{"path": "id", "metadata": {"unit": "m"}}, {"path": "s.x", "metadata": {"a": "b", "c": "d"}}]
    told = server.post(f"{at}/update_field_metadata", {"updates": updates}).json
    assert told["fields"] == {"id": {"unit": "m"}, "s.x": {"a": "b", "c": "d"}}
    told = server.post(f"{at}/update_field_metadata", {"updates": [{"path": "s.x", "metadata": {"a": None, "e": "f"}}]}).json
    assert told["fields"] == {"s.x": {"c": "d", "e": "f"}}
    with server.lake() as lake:
        assert lake.table("described").schema.field("id").metadata == {b"unit": b"m"}
    for wrong in ([], [updates[0], updates[0]], [{"path": "none", "metadata": {}}]):
        assert server.post(f"{at}/update_field_metadata", {"updates": wrong}).code == 13
    assert server.post("/v1/table/nowhere/update_field_metadata", {"updates": updates}).code == 4


def test_what_is_no_route_says_so_in_json(server: Served) -> None:
    assert server.get("/v1/nope").status == 404
    assert server.get("/v1/nope").code == 0
    assert server.get("/v1/table/x/describe").status == 405


def test_metrics_tell_of_conflicts_by_pair(server: Served) -> None:
    """The commits that the server makes: what they met, under names of ours."""
    assert server.rows("/v1/table/metered/create", pa.table({"id": [1, 2]})).status == 200
    assert server.rows("/v1/table/metered/insert", pa.table({"id": [3]})).status == 200
    figures = server.get("/metrics").body.decode()
    for name in ("attempts", "lost_races", "reruns", "unknown"):
        assert f'tiltyard_commit_{name}_total{{kind="Append"}}' in figures
    for name in ("conflicts", "rebases"):
        assert f"# TYPE tiltyard_commit_{name}_total counter" in figures

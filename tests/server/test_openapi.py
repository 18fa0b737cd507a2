"""Requests made from the OpenAPI document that the server publishes, good ones and spoilt ones: no 500, no hang, every error in JSON."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from tests.support.environments import environment, plain
from tests.support.proving import pick
from tests.support.served import ARROW, Served, ipc
from tiltyard.server.openapi import document
from tiltyard.server.routes import ROUTES

SEED = 17
ODD: tuple[Any, ...] = (
    None, "", "$", "..", "../../etc/passwd", "a" * 3000, "\ud800", "\0", "<script>", -1, 2**63, 2**70, 1e308, True, [], {}, [[]],
    {"id": 1}, ["people"], "people", "1.manifest", "_versions/1.manifest-x", "id = 1", "id = ; drop",
)  # fmt: skip


class Requests:
    """Makes requests from the schemas of the document."""

    def __init__(self, whole: Mapping[str, Any], seed: int) -> None:
        self._schemas, self._random = whole["components"]["schemas"], random.Random(seed)

    def value(self, schema: Mapping[str, Any], depth: int = 0) -> Any:
        """A value that fits, mostly; something odd now and then."""
        choice = self._random
        if choice.random() < 0.12 or depth > 5:
            return choice.choice(ODD)
        if "$ref" in schema:
            return self.value(self._schemas[schema["$ref"].rpartition("/")[2]], depth + 1)
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.value(choice.choice(schema[several]), depth + 1)
        if "enum" in schema:
            return choice.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object":
            members = schema.get("properties", {})
            needed = set(schema.get("required", ()))
            return {name: self.value(part, depth + 1) for name, part in members.items() if name in needed or choice.random() < 0.4}
        if kind == "array":
            return [self.value(schema.get("items", {}), depth + 1) for _ in range(choice.randrange(3))]
        if kind in ("integer", "number"):
            return choice.choice([0, 1, 2, 3, -1, 1000])
        if kind == "boolean":
            return choice.random() < 0.5
        return choice.choice(["people", "id", "name", "x", "1", "create", "id > 0"])

    def path(self, template: str) -> str:
        names = {"id": ["people", "sales$orders", "nothing", "$", "%2e%2e", quote("<b>")], "index_name": ["id_idx", "none", "%00"]}
        for name, values in names.items():
            template = template.replace(f"{{{name}}}", self._random.choice(values))
        return template

    def body(self, operation: Mapping[str, Any]) -> tuple[bytes, str]:
        content = operation.get("requestBody", {}).get("content", {})
        if ARROW in content:
            rows = pa.table({"id": [1], "name": ["x"]})
            return self._random.choice([ipc(rows), ipc(rows)[:40], b"", b"not arrow"]), ARROW
        schema = content.get("application/json", {}).get("schema", {})
        data = json.dumps(self.value(schema)).encode()
        return self._random.choice([data, data, data, data, data, data[: len(data) // 2], b"null", b"[1]"]), "application/json"


def test_the_document_is_complete_and_the_same_for_everybody(server: Served) -> None:
    told = server.get("/openapi.json")
    assert (told.status, told.json) == (200, json.loads(json.dumps(document())))
    assert {spec.path for spec in ROUTES} <= set(told.json["paths"])
    for path, operations in told.json["paths"].items():
        for operation in operations.values():
            given = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert all(f"{{{name}}}" in path for name in given)
    texts = json.dumps(told.json)
    named = {reference.partition(chr(34))[0] for reference in texts.split("#/components/schemas/")[1:]}
    assert named <= set(told.json["components"]["schemas"])


def test_no_request_breaks_the_server(server: Served) -> None:
    with server.lake() as lake:
        for name in ("people", "sales.orders"):
            if name not in lake.tables():
                lake.create_table(name, pa.table({"id": [1], "name": ["Ada"]}))
        whole = document()
        made, seen = Requests(whole, SEED), set()
        for number in range(pick(2, 60)):
            for template, operations in whole["paths"].items():
                for method, operation in operations.items():
                    data, kind = made.body(operation)
                    asked = None if method == "get" else data
                    answer = server.ask(method.upper(), made.path(template), asked, {"content-type": kind})
                    assert answer.status < 500 or answer.status == 503, (SEED, number, method, template, data[:500], answer.body[:300])
                    if answer.status != 200:
                        assert set(answer.json) == {"error", "code", "detail", "instance"}
                    seen.add(answer.status)
        assert {200, 400, 404} <= seen
        assert server.get("/healthz").status == 200
        assert lake.check().ok


def test_schemathesis_finds_nothing_that_breaks_the_server(server: Served, tmp_path: Path) -> None:
    """Requests that another program makes of the document. Rows in Arrow it cannot write: those are made above."""
    program = environment(("schemathesis==4.32.5",)) / "bin/schemathesis"
    arrow = [f"{spec.operation}_{len(spec.path.split('/'))}" for spec in ROUTES if spec.body == "arrow"]
    left_out = [word for name in arrow for word in ("--exclude-operation-id", name)]
    options = ["--checks", "not_a_server_error", "--phases", "fuzzing", "--seed", str(SEED), "--request-timeout", "60", "--no-color"]
    command = [str(program), "run", f"{server.url}/openapi.json", *options, "--max-examples", str(pick(1, 40)), *left_out]
    done = subprocess.run(command, cwd=tmp_path, env=plain(), capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    made = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert made is not None
    assert made[1] == made[2]
    assert int(made[1]) >= len(ROUTES) - len(arrow)
    assert server.get("/healthz").status == 200

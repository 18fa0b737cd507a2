"""The OpenAPI document of the server, made from the routing table: what is in the one is in the other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from pydantic import BaseModel

from tiltyard.server.catalog_door import CATALOG_ROUTES
from tiltyard.server.routes import ROUTES, RouteSpec
from tiltyard.server.wire import ARROW_FILE, JSON

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
_PARTS: Final = "#/components/schemas/"
_ANSWERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "json": (JSON, {"type": "object"}),
    "plain": (JSON, {"type": "object"}),
    "metadata": (JSON, {"type": "object", "additionalProperties": {"type": "string"}}),
    "number": (JSON, {"type": "integer"}),
    "text": (JSON, {"type": "string"}),
    "arrow": (ARROW_FILE, {"type": "string", "format": "binary"}),
}
_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {name: {"type": "integer" if name == "code" else "string"} for name in ("error", "code", "detail", "instance")},
}


@cache
def document() -> dict[str, Any]:
    """The document, for all routes that take a request."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    for spec in (*ROUTES, *CATALOG_ROUTES):
        paths.setdefault(spec.path, {})[spec.method.lower()] = _operation(spec, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tiltyard: a lake behind the Lance REST namespace", "version": version("tiltyard")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"key": []}, {}],
    }


def _operation(spec: RouteSpec, schemas: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": f"{spec.operation}_{len(spec.path.split('/'))}",
        "x-tiltyard-role": spec.role.name.lower(),
        "parameters": [*_parameters(spec)],
        "responses": {
            "200": {"description": "done", **_content(spec)},
            "default": {"description": "refused", "content": {JSON: {"schema": {"$ref": f"{_PARTS}Error"}}}},
        },
    }
    if spec.body == "arrow":
        made["requestBody"] = {"content": {ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}}}}
    elif spec.body != "none":
        made["requestBody"] = {"content": {JSON: {"schema": _body(spec, schemas)}}}
    return made


def _parameters(spec: RouteSpec) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", spec.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    if "{id}" in spec.path:
        yield {"name": "delimiter", "in": "query", "schema": {"type": "string", "default": "$", "minLength": 1, "maxLength": 8}}
    if spec.body == "none":
        yield {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 0}}
        yield {"name": "page_token", "in": "query", "schema": {"type": "string"}}


def _content(spec: RouteSpec) -> dict[str, Any]:
    if spec.answer == "empty":
        return {}
    kind, schema = _ANSWERS[spec.answer]
    return {"content": {kind: {"schema": schema}}}


def _body(spec: RouteSpec, schemas: dict[str, Any]) -> dict[str, Any]:
    model = spec.request
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or spec.body == "metadata":
        return {"type": "object"}
    if model.__name__ not in schemas:
        whole = model.model_json_schema(ref_template=f"{_PARTS}{{model}}", by_alias=True)
        schemas.update(whole.pop("$defs", {}))
        schemas[model.__name__] = whole
    return {"$ref": f"{_PARTS}{model.__name__}"}

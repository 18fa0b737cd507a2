"""Requests of the REST namespace as models, and models and errors as answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from lance_namespace import InvalidInputError, LanceNamespaceError
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from tiltyard.lakes.table_names import JOINT
from tiltyard.redact import redact
from tiltyard.server.routes import Role, RouteSpec
from tiltyard.server.table_turns import branched

DELIMITER: Final = "$"
JSON: Final = "application/json"
ARROW_FILE: Final = "application/vnd.apache.arrow.file"
MOST_SAID: Final = 1000
"""Characters of an error that a client is told."""
_DEEPEST: Final = 64
"""How deep a JSON body may nest."""

STATUS: Final[Mapping[int, int]] = {
    0: 406, 1: 404, 2: 409, 3: 409, 4: 404, 5: 409, 6: 404, 7: 409, 8: 404, 9: 409, 10: 404, 11: 404, 12: 404, 13: 400, 14: 409,
    15: 403, 16: 401, 17: 503, 18: 500, 19: 409, 20: 400, 21: 429, 22: 404, 23: 409,
}  # fmt: skip
"""The status of HTTP by the code of the error, as the protocol has it."""

_NUMBERS: Final = frozenset({"limit"})
_FLAGS: Final = frozenset(
    {
        "descending", "include_declared", "with_table_uri", "load_detailed_metadata", "check_declared", "when_matched_update_all",
        "when_not_matched_insert_all", "when_not_matched_by_source_delete", "use_index",
    }
)  # fmt: skip
_LISTS: Final = frozenset({"on"})
_MAPPINGS: Final = frozenset({"properties", "storage_options"})
_HEADERS: Final = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as it came in.

    Attributes:
        spec: its route.
        path: parameters in the path.
        query: the text after the question mark.
        body: all of it.
    """

    spec: RouteSpec
    path: Mapping[str, str]
    query: str
    body: bytes


def read_request(given: WireRequest) -> tuple[Any, list[str]]:
    """The model that an operation takes, and the parts of the id in the path.

    Raises:
        InvalidInputError: it is malformed, or path and body name different things.
    """
    members = _query(given.query)
    delimiter = members.pop("delimiter", DELIMITER)
    if not isinstance(delimiter, str) or not 0 < len(delimiter) <= 8:
        raise InvalidInputError("delimiter must be a string of 1 to 8 characters.")
    told = [part for part in given.path.get("id", "").split(delimiter) if part]
    body = _body(given)
    named = body.pop("id", None)
    if named is not None and given.spec.scope != "batch" and _parts(named) != told:
        raise InvalidInputError("The id in the body is not the one in the path.")
    body |= members
    body |= {key: value for key, value in given.path.items() if key != "id"}
    for hidden in ("identity", "context") if given.spec.scope != "batch" else ("identity",):
        body.pop(hidden, None)
    if given.spec.scope != "batch":
        body["id"] = told
    try:
        return given.spec.request(**body), told
    except ValidationError as error:
        raise InvalidInputError(_said(error)) from None
    except TypeError:
        raise InvalidInputError("The request has an unknown member.") from None


def _query(text: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=64, errors="strict")
    except ValueError:
        raise InvalidInputError("The query string is malformed.") from None
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in _LISTS:
            found.setdefault(key, []).append(value)
        elif key in found:
            raise InvalidInputError(f"{key[:40]!r} is given twice.")
        else:
            found[key] = _converted(key, value)
    return {key: value for key, value in found.items() if value != ""}


def _converted(key: str, value: str) -> Any:
    if key in _NUMBERS:
        if not (value.isascii() and value.removeprefix("-").isdecimal() and len(value) < 12):
            raise InvalidInputError(f"{key} must be a number.")
        return int(value)
    if key in _FLAGS:
        if value.lower() not in ("true", "false"):
            raise InvalidInputError(f"{key} must be true or false.")
        return value.lower() == "true"
    return _mapping(value, key) if key in _MAPPINGS else value


def _mapping(text: str, key: str) -> dict[str, Any]:
    found = parsed(text.encode())
    if not isinstance(found, dict):
        raise InvalidInputError(f"{key} must be a JSON object.")
    return found


def _body(given: WireRequest) -> dict[str, Any]:
    if given.spec.body in ("arrow", "none") or not given.body.strip():
        return {}
    found = parsed(given.body)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidInputError("The body must be a JSON object.")
    return {"metadata": found} if given.spec.body == "metadata" else found


def parsed(data: bytes) -> Any:
    """A JSON text.

    Raises:
        InvalidInputError: it is none, or nests too deep.
    """
    try:
        return _bounded(json.loads(data))
    except RecursionError:
        raise InvalidInputError("The JSON body is nested too deeply.") from None
    except ValueError:
        raise InvalidInputError("The body is not valid JSON.") from None


def _bounded(value: Any) -> Any:
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise InvalidInputError("The JSON body is nested too deeply.")


def _inside(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()


def _parts(named: Any) -> list[str]:
    if not isinstance(named, list) or not all(isinstance(part, str) for part in named):
        raise InvalidInputError("id must be a list of strings.")
    return [part for part in named if part]


def _said(error: ValidationError) -> str:
    """Which members are wrong, without their values."""
    wrong = [".".join(str(part)[:40] for part in entry["loc"]) + ": " + entry["msg"] for entry in error.errors(include_input=False)[:4]]
    return "The request is malformed: " + "; ".join(wrong)


# ---- which tables a request is about -------------------------------------------------------------------------------------------------


def batched(model: Any, spec: RouteSpec) -> list[tuple[Role, list[str]]]:
    """What the parts of a batch need, each for its own table."""
    if spec.operation == "batch_create_table_versions":
        return [(Role.WRITER, [part for part in entry.id if part]) for entry in model.entries]
    needed: list[tuple[Role, list[str]]] = []
    for entry in model.operations:
        for name, role in (
            ("declare_table", Role.WRITER),
            ("create_table_version", Role.WRITER),
            ("delete_table_versions", Role.MAINTAINER),
            ("deregister_table", Role.MAINTAINER),
        ):
            part = getattr(entry, name)
            if part is not None:
                needed.append((role, [piece for piece in part.id or () if piece]))
    return needed


def tables_of(model: Any, spec: RouteSpec, parts: Sequence[str]) -> tuple[str, ...]:
    """The tables at which a request takes turns, each once."""
    if not spec.takes_turns:
        return ()
    if spec.scope != "batch":
        return (branched(getattr(model, "branch", None), JOINT.join(parts)),)
    return tuple({JOINT.join(names) for _, names in batched(model, spec)})


# ---- answers -----------------------------------------------------------------------------------------------------------------------


def answer(spec: RouteSpec, result: Any, headers: Mapping[str, str]) -> Response:
    """What a client gets for what an operation returned."""
    told = {**_HEADERS, **headers}
    if spec.answer == "empty":
        return Response(status_code=200, headers=told)
    if spec.answer == "arrow":
        return Response(result.data, media_type=ARROW_FILE, headers=told)
    if spec.answer == "number":
        return Response(str(result.count), media_type=JSON, headers=told)
    if spec.answer == "text":
        return Response(json.dumps(str(result)), media_type=JSON, headers=told)
    if spec.answer == "plain":
        return Response(json.dumps(result, separators=(",", ":")), media_type=JSON, headers=told)
    if spec.answer == "metadata":
        return Response(json.dumps(result.metadata or {}), media_type=JSON, headers=told)
    assert isinstance(result, BaseModel)
    return Response(result.model_dump_json(by_alias=True, exclude_none=True), media_type=JSON, headers=told)


def failure(code: int, said: str, instance: str, *, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """An error as clients of the protocol read it."""
    text = redact(said)[:MOST_SAID]
    body = {"error": text, "code": int(code), "detail": "", "instance": instance}
    return Response(json.dumps(body), status or STATUS.get(int(code), 500), {**_HEADERS, **(headers or {})}, JSON)


def failed(error: LanceNamespaceError, instance: str) -> Response:
    """The answer to a request that failed."""
    return failure(int(error.code), str(error), instance)

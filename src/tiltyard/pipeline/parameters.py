"""Parameters of a pipeline: values that a run is given. Queries take them as ``:name``, all other texts of the file as ``${name}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from tiltyard.pipeline.spec import NAME, must

Parameter: TypeAlias = "str | int | float | bool"
_PLACE: Final = re.compile(r"\$\{([^}]*)\}")
_QUERIES: Final = frozenset({"sql"})
"""Keys whose texts are queries: values are bound there, never put into the text."""


def parameters_of(document: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, Parameter]:
    """The parameters that a file declares, with the values that a caller gave.

    Raises:
        InvalidInput: a value is given that the file does not declare, or is of another type than its default.
    """
    declared = document.get("parameters", {})
    must(isinstance(declared, dict), "parameters", "must be a table [parameters] of names and defaults")
    found: dict[str, Parameter] = {}
    for name, default in declared.items():
        key = f"parameters.{name}"
        must(NAME.fullmatch(name) is not None, key, "is not a valid name: use letters, digits and _")
        must(isinstance(default, str | int | float | bool), key, f"is {default!r}, and must be text, a number, true or false")
        found[name] = _typed(given[name], default, key) if name in given else default
    for name in given:
        must(name in declared, f"parameters.{name}", f"is not declared; there are {', '.join(declared) or 'none'}")
    return found


def _typed(value: object, default: Parameter, key: str) -> Parameter:
    kind = type(default)
    if isinstance(value, kind) and not (kind is not bool and isinstance(value, bool)):
        return value
    text = str(value)
    if kind is bool:
        must(text.lower() in ("true", "false"), key, f"is {text!r}, and must be true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        must(False, key, f"is {text!r}, and must be {'a whole number' if kind is int else 'a number'}")
        raise


def filled_in(value: Any, parameters: Mapping[str, Parameter], key: str = "") -> Any:
    """A part of a file with the values of parameters in its texts, queries left as they are.

    Raises:
        InvalidInput: a text names a parameter that is not declared.
    """
    if isinstance(value, dict):
        return {
            name: part if name in _QUERIES and isinstance(part, str) else filled_in(part, parameters, f"{key}.{name}" if key else name)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [filled_in(part, parameters, key) for part in value]
    if not isinstance(value, str):
        return value

    def put(found: re.Match[str]) -> str:
        name = found[1]
        must(name in parameters, key, f"names the parameter {name!r}, which [parameters] does not declare")
        put_in = parameters[name]
        return str(put_in).lower() if isinstance(put_in, bool) else str(put_in)

    return _PLACE.sub(put, value)


def bound(sql: str, parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters that a query may name."""
    return {name: value for name, value in parameters.items() if re.search(rf":{name}\b", sql)}

"""Docstrings of public names agree with the code: arguments, attributes and errors that they name exist, and none is left out."""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import tiltyard as ty
from tests.docs.test_words import NOT_EXPORTED, is_ours
from tiltyard import errors, testing

MODULES: Final[tuple[ModuleType, ...]] = (
    *(ty, ty.conflicts, ty.distributed, errors, ty.locks, ty.merges, ty.metrics, ty.ops, ty.outcomes, ty.telemetry),
    *(ty.spark, ty.pipeline, testing),
)
_SECTION: Final = re.compile(r"^(Args|Attributes|Raises):$")
_ENTRY: Final = re.compile(r"^    (\w[\w, ]*):( |$)")


def public() -> Iterator[tuple[str, Any]]:
    """Public names and their public members, each once."""
    seen: set[int] = set()
    things = [(name, getattr(module, name)) for module in MODULES for name in getattr(module, "__all__", vars(module))]
    for name, thing in (*things, *((group.__name__, group) for group in NOT_EXPORTED)):
        if name.startswith("_") or not is_ours(thing) or id(thing) in seen:
            continue
        seen.add(id(thing))
        yield name, thing
        for member, value in inspect.getmembers(thing) if inspect.isclass(thing) else ():
            value = value.fget if isinstance(value, property) else value
            if not member.startswith("_") and is_ours(value):
                yield f"{name}.{member}", value


def named(doc: str, section: str) -> list[str]:
    """The names that a section of a docstring explains; several may share a line."""
    found: list[str] = []
    inside = False
    for line in doc.splitlines():
        if heading := _SECTION.match(line):
            inside = heading[1] == section
        elif line and not line.startswith(" "):
            inside = False
        elif inside and (entry := _ENTRY.match(line)):
            found += [name.strip() for name in entry[1].split(",")]
    return found


def test_arguments_are_those_of_the_signature() -> None:
    wrong = {}
    for name, thing in public():
        told = named(inspect.getdoc(thing) or "", "Args")
        if told and set(told) ^ set(taken := parameters(thing)):
            wrong[name] = sorted(set(told) ^ set(taken))
    assert wrong == {}


def parameters(thing: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(thing).parameters if name not in ("self", "cls") and not name.startswith("_")]


def test_errors_that_are_said_to_be_raised_exist() -> None:
    known = {*vars(errors), *vars(builtins), *vars(ty.pipeline)}
    assert {name: unknown for name, thing in public() if (unknown := {*named(inspect.getdoc(thing) or "", "Raises")} - known)} == {}


def test_no_docstring_is_only_that_of_python() -> None:
    """A dataclass, an enumeration and a protocol without a docstring show one that says nothing of them."""
    own = {name: vars(thing).get("__doc__") for name, thing in public() if inspect.isclass(thing)}
    assert [name for name, doc in own.items() if doc is None or doc.startswith(f"{name}(")] == []


def test_these_tests_look_at_something() -> None:
    assert len(list(public())) > 600
    assert sum(bool(named(inspect.getdoc(thing) or "", "Args")) for _, thing in public()) > 150
    doc = "Does it.\n\nArgs:\n    a, b: two.\n        more: of them.\n    c: one.\n\nRaises:\n    Error: if.\n"
    assert (named(doc, "Args"), named(doc, "Raises")) == (["a", "b", "c"], ["Error"])

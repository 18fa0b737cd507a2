"""The changelog's table of signatures, before and after, says what the code says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import tiltyard as ty
import tiltyard.spark
from tiltyard.lakes.namespace import LakeNamespace

CHANGELOG: Final = Path(__file__).parents[2] / "CHANGELOG.md"
SECTIONS: Final = {"Table": ty.Table, "Lake": ty.Lake, "LakeTransaction": ty.LakeTransaction, "MergeBuilder": ty.MergeBuilder}
_CALL: Final = re.compile(r"`([\w.]+)\(([^`()]*)\)`")


def _told() -> Iterator[tuple[str, str, list[str]]]:
    """Section, name and parameters of each signature in a column *after*."""
    section = ""
    for line in CHANGELOG.read_text().partition("### Changed: the public API")[2].splitlines():
        if line.startswith("#"):
            section = line.strip("# `").rpartition(".")[2]
        if line.startswith("|") and line.count("|") >= 3:
            for name, given in _CALL.findall(line.split("|")[-2]):
                words = (word.partition("=")[0].strip().lstrip("*") for word in given.split(","))
                yield section, name, [word for word in words if word]


def _found(section: str, name: str) -> Any:
    first, *rest = name.split(".")
    if first == "t":
        found: Any = ty.Table
        for group in rest[:-1]:
            getter = inspect.getattr_static(found, group)
            found = inspect.get_annotations(getattr(getter, "fget", None) or getter.func, eval_str=True)["return"]
        return getattr(found, rest[-1])
    if first == "ty":
        found = ty
    elif first == "LakeNamespace":
        return LakeNamespace
    else:
        found = SECTIONS.get(section, tiltyard.spark)
        rest = [first, *rest]
    for part in rest:
        found = getattr(found, part)
    return found


TOLD: Final = list(_told())


def test_there_are_some() -> None:
    assert len(TOLD) > 80


@pytest.mark.parametrize(("section", "name", "told"), TOLD, ids=[f"{section}-{name}" for section, name, _ in TOLD])
def test_a_signature_in_the_changelog_is_the_one_in_the_code(section: str, name: str, told: list[str]) -> None:
    parameters = [parameter for parameter in inspect.signature(_found(section, name)).parameters if parameter != "self"]
    assert told == parameters

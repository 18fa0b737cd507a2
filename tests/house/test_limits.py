"""The limits of the house: how long a file and a function may be, what a module may be called, how far a call may travel."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

MOST_LINES = 450
MOST_LINES_OF_A_FUNCTION = 50
LEAST_LINES_OF_AN_ONLY_CHILD = 60

GENERATED = {"tiltyard.format.lance_pb2"}

LONG_FILES: dict[str, str] = {}
"""Files over the limit, with the reason."""

SAME_NAME: dict[str, str] = {"metrics": "the public door, ty.metrics, and what it opens to"}
"""Names that several modules have, with the reason."""

_DOOR = "a public door: the names under ty.<name>, defined elsewhere"
_VERB = "one file for each verb"
SMALL_FILES: dict[str, str] = {
    "tiltyard.server.console.console_pages": "the table of pages, as data",
    "tiltyard.lakes.short_name": "a hook into imports is read by itself, not between the public names",
    "tiltyard.locks": _DOOR,
    "tiltyard.server.at_once": "its rule is shown by itself, without a server",
    "tiltyard.verbs.commit_operation": _VERB,
    "tiltyard.verbs.restore": _VERB,
}
"""Small files with one importer, with the reason."""

SAME_CLASS: dict[str, str] = {}
"""Public names of classes that occur twice, with the reason."""


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((SOURCE / "tiltyard").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: path for name, path in found.items() if name not in GENERATED}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def lines_of(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def test_no_file_is_longer_than_an_idea() -> None:
    long = {name: lines_of(path) for name, path in modules().items() if lines_of(path) > MOST_LINES}
    assert {name: count for name, count in long.items() if name not in LONG_FILES} == {}
    assert set(LONG_FILES) <= set(long), "an exception that is not needed any more"


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{name}.{node.name}": size
        for name, path in modules().items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (size := _lines_of_code(node)) > MOST_LINES_OF_A_FUNCTION
    }
    assert long == {}


def _lines_of_code(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body, without the docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def test_a_stack_trace_tells_modules_apart() -> None:
    by_name = defaultdict(list)
    for name, path in modules().items():
        if path.stem not in ("__init__", "__main__"):
            by_name[path.stem].append(name)
    twice = {stem: names for stem, names in by_name.items() if len(names) > 1}
    assert {stem: names for stem, names in twice.items() if stem not in SAME_NAME} == {}
    assert set(SAME_NAME) <= set(twice), "an exception that is not needed any more"


def test_no_public_class_name_occurs_twice() -> None:
    by_name = defaultdict(list)
    for name, path in modules().items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                by_name[node.name].append(name)
    twice = {name: where for name, where in by_name.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in SAME_CLASS} == {}
    assert set(SAME_CLASS) <= set(twice), "an exception that is not needed any more"


def test_small_files_have_more_than_one_user() -> None:
    users = defaultdict(set)
    for name, path in modules().items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for imported in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if imported in modules() and imported != name:
                        users[imported].add(name)
    small = {
        name: lines_of(path)
        for name, path in modules().items()
        if path.name not in ("__init__.py", "__main__.py") and lines_of(path) < LEAST_LINES_OF_AN_ONLY_CHILD and len(users[name]) == 1
    }
    assert {name: count for name, count in small.items() if name not in SMALL_FILES} == {}
    assert set(SMALL_FILES) <= set(small), "an exception that is not needed any more"


def test_no_call_travels_further_than_its_bound() -> None:
    assert_no_path_is_too_long()


@pytest.mark.spark
def test_no_write_from_spark_travels_further_than_its_bound() -> None:
    assert_no_path_is_too_long("--spark")


def assert_no_path_is_too_long(*options: str) -> None:
    """In a process of its own: what other tests left in this one would be on the way."""
    done = subprocess.run([sys.executable, ROOT / "tools" / "walk.py", "--check", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_loop_variable_says_what_it_is() -> None:
    """``fragment``, ``field``, ``index``: what a loop or a comprehension goes over has a name."""
    loops = (ast.For, ast.comprehension)
    nameless = [
        f"{name}:{target.lineno}"
        for name, path in modules().items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, loops)
        for target in ast.walk(node.target)
        if isinstance(target, ast.Name) and target.id == "one"
    ]
    assert nameless == []

"""The worst old words stay out of what users read: pages, messages, help texts and docstrings of public names.

The words and what to say instead are in the glossary's word table. Patterns are chosen to have few false hits; a word that is fine in one
place and wrong in another is left to the reader.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import typer

import tiltyard as ty
from tiltyard import errors, testing
from tiltyard.cli.app import app
from tiltyard.handles.history import TableTransactions
from tiltyard.handles.indices import MemWal, TableIndices
from tiltyard.handles.parts import DistributedVerbs
from tiltyard.handles.settings import TableLayout, TableSettings
from tiltyard.handles.upkeep import TableMaintenance

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src" / "tiltyard"

SAY: Final = {
    r"strangers?": "foreign writer",
    r"who(m)?ever|some(body|one)|nobody": "the role: a writer, a reader, the caller",
    r"(work|works|worked|working) (\w+ ){0,4}out again|worked out": "re-execute, compute",
    r"(comes?|came|coming) twice|double keys?|double a (primary )?key": "duplicate key",
    r"lamps?": "Bloom filter",
    r"left ?overs?(?!:)": "uncommitted files",
    r"newest(?! first)": "latest",
    r"by now": "now",
    r"told already|is told|are told": "idempotency key; is notified",
    r"carr(y|ies|ied|ying) (\w+ ){0,2}over": "rebase, keep",
    r"doubted|in the way|stood in": "in doubt; conflicts with",
    r"struck( out)?|strik(e|es|ing) out": "delete",
    r"consistent cut": "snapshot",
    r"left open|leaves open": "unknown",
    r"touch(es|ed|ing)?": "change, read",
    r"anew": "again, re-",
    r"mend(s|ed|ing)?": "correct, fix",
    r"dearer": "slower",
    r"low door": "commit",
}
PATTERNS: Final = {re.compile(rf"(?<![\w`/_-])({pattern})(?![\w`/_-])", re.IGNORECASE): say for pattern, say in SAY.items()}

_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INLINE: Final = re.compile(r"``[^`\n]+``|`[^`\n]+`|https?://\S+|\]\([^)]*\)")
_WORD_TABLE: Final = re.compile(r"^## The word table$.*", re.MULTILINE | re.DOTALL)


def hits(text: str, where: str) -> list[str]:
    """Each old word in a text, with its surroundings and what to say instead. Code does not count."""
    plain = re.sub(r"\s+", " ", _INLINE.sub("`x`", text))
    return [
        f"{where}: ...{plain[max(hit.start() - 40, 0) : hit.end() + 30]}... say {say!r}"
        for pattern, say in PATTERNS.items()
        for hit in pattern.finditer(plain)
    ]


def pages() -> list[Path]:
    return [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "design")]


def examples() -> list[Path]:
    return [path for path in sorted((ROOT / "examples").rglob("*")) if path.suffix in (".py", ".md", ".toml", ".sql", ".yml")]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    if page.name == "glossary.md":
        text = _WORD_TABLE.sub("", text)
    assert hits(text, page.name) == []


@pytest.mark.parametrize("example", examples(), ids=lambda example: str(example.relative_to(ROOT)))
def test_examples(example: Path) -> None:
    """They are read, comments and all, and what they print is read first of everything."""
    assert hits(example.read_text(), example.name) == []


def test_messages() -> None:
    found = [hit for where, text in messages() for hit in hits(text, where)]
    assert found == []


def messages() -> Iterator[tuple[str, str]]:
    """Every literal text with a space in it that is no docstring: messages of errors and logs, advice, output of the commands."""
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE).as_posix()
        tree = ast.parse(path.read_text())
        silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                silent |= {id(part) for part in node.values}
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in silent and " " in (text := _literal(node)):
                yield f"{relative}:{node.lineno}", text


def _literal(node: ast.expr) -> str:
    """What is fixed in a string; ``{}`` for the rest."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(value) for value in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "{}"


def test_help() -> None:
    found = [hit for where, text in help_texts(typer.main.get_command(app), "tiltyard") for hit in hits(text, where)]
    assert found == []


def help_texts(command: Any, name: str) -> Iterator[tuple[str, str]]:
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""
    for inner, below in getattr(command, "commands", {}).items():
        yield from help_texts(below, f"{name} {inner}")


def test_docstrings() -> None:
    assert sorted({hit for where, text in all_docstrings() for hit in hits(text, where)}) == []


def test_docstrings_begin_with_a_short_line() -> None:
    """It says what the thing is or does. A long one is two sentences, of which the second belongs below."""
    lines = {where: text.partition("\n")[0] for where, text in all_docstrings()}
    assert {where: line for where, line in lines.items() if len(line) >= 100} == {}


def test_every_public_name_says_what_it_is() -> None:
    assert [where for where, text in all_docstrings() if not text and where.partition(".")[0] not in vars(testing)] == []


def all_docstrings() -> Iterator[tuple[str, str]]:
    modules: list[ModuleType] = [
        ty,
        ty.conflicts,
        ty.distributed,
        errors,
        ty.locks,
        ty.metrics,
        ty.ops,
        ty.outcomes,
        ty.telemetry,
        ty.spark,
        ty.pipeline,
        testing,
    ]
    for module in modules:
        yield from docstrings(module)
    for group in (TableLayout, TableSettings, TableIndices, MemWal, TableMaintenance, DistributedVerbs, TableTransactions):
        yield from _of_class(group.__name__, group)


def docstrings(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Docstrings of a module's public names and of their public members."""
    yield module.__name__, module.__doc__ or ""
    public = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in public:
        thing = getattr(module, name)
        if not _ours(thing):
            continue
        yield f"{module.__name__}.{name}", inspect.getdoc(thing) or ""
        if inspect.isclass(thing):
            yield from _of_class(name, thing)


def _of_class(name: str, thing: type) -> Iterator[tuple[str, str]]:
    yield name, inspect.getdoc(thing) or ""
    for member, value in inspect.getmembers(thing):
        value = value.fget if isinstance(value, property) else value
        if not member.startswith("_") and _ours(value):
            yield f"{name}.{member}", inspect.getdoc(value) or ""


def _ours(thing: Any) -> bool:
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return False
    return (getattr(thing, "__module__", None) or "").startswith("tiltyard.")


def test_the_patterns_find_what_they_should() -> None:
    """Guards the tests above: they would pass in silence if nothing was looked at, or if no pattern matched."""
    assert len(hits("Somebody carried it over the newest version.", "x")) == 3
    assert hits("`newest_by` and ``whoever`` in code, foreign writers, latest, a rescan", "x") == []
    assert len(examples()) > 10
    assert len(list(messages())) > 1000
    assert len(list(help_texts(typer.main.get_command(app), "tiltyard"))) > 200
    assert len(list(all_docstrings())) > 400

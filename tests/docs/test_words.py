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
from tiltyard.catalog.lake_values import Snapshot
from tiltyard.cli.app import app
from tiltyard.handles.history import TableTransactions
from tiltyard.handles.indices import MemWal, TableIndices
from tiltyard.handles.parts import DistributedVerbs
from tiltyard.handles.settings import TableLayout, TableSettings
from tiltyard.handles.upkeep import TableMaintenance
from tiltyard.interfaces import CommitHandler, ObjectStore
from tiltyard.lakes.branches.lake_refs import LakeBranches, LakeTags
from tiltyard.lakes.sharded.shard_parts import ShardedIndices, ShardedSettings, ShardedUpkeep
from tiltyard.pipeline.branch_runner import BranchRunner
from tiltyard.pipeline.runner import Runner
from tiltyard.verbs.table_refs import Branches, Tags

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src" / "tiltyard"

SAY: Final = {
    r"strangers?": "foreign writer",
    r"who(m)?ever|some(body|one)|nobody": "the role: a writer, a reader, the caller",
    r"(work|works|worked|working) (\w+ ){0,4}out again|work(s|ed|ing)? out": "re-execute, compute",
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
    r"(?<!there )(is|are) no(?= )(?! (longer|conflict|more)\b)": "is not a",
    r"from (\d+|zero|\{\}|which) on": "of at least",
    r"stand(s|ing)? (twice|in more|here|beside)|work \w+ stands on": "occur, is listed; is based on",
    r"(go|goes|went|going) on(?! (the|a|to|its)\b)": "continue",
    r"(versions|files|snapshots|directories|records|fragments|which) (that |which )?(went|go)(?! (to|into|over|through|from)\b)": "remove",
    r"(tag|number|needs|is|of) (or )?(a|no) moment": "timestamp",
    r"what (it|they|all( of (its|their) sources)?|a \w+( of a \w+)?) (came|come|comes) to": "the result",
    r"(?<!gives )given out": "assign",
    r"unsound|(not|no) sound": "invalid",
    r"heed(s|ed)?": "follow",
    r"lets? you in": "accepts this user",
    r"deeds?|encounters?": "operation",
    r"(two operations|the two|they) meet|things that met": "conflict; change the same",
    r"(others|another) (was|were) faster": "committed first",
    r"set back": "restore",
    r"does no harm": "say what is affected",
    r"Tiltyard's own": "reserved for Tiltyard",
    r"(is|are) there (already|twice)|that (is|are) (not )?there|(is|are) not there": "exists, does not exist",
}
PATTERNS: Final = {re.compile(rf"(?<![\w`/_-])({pattern})(?![\w`/_-])", re.IGNORECASE): say for pattern, say in SAY.items()}

NOT_EXPORTED: Final = (
    *(TableLayout, TableSettings, TableIndices, MemWal, TableMaintenance, DistributedVerbs, TableTransactions, Tags, Branches),
    *(LakeBranches, LakeTags, Snapshot, ShardedIndices, ShardedSettings, ShardedUpkeep, Runner, BranchRunner),
    *(CommitHandler, ObjectStore),
)
"""Classes that users hold or write without a name in the package: what handles give (``t.tags``, ``lake.branches``), and interfaces."""

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


def test_messages_do_not_speak_of_us() -> None:
    """ "We" is the program, the reader's team or the project: say which writer, release or operation is meant."""
    assert [(where, text) for where, text in messages() if re.search(r"(?<![\w\[])(we|us)(?![\w\]])", text, re.IGNORECASE)] == []


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
        ty.merges,
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
    for group in NOT_EXPORTED:
        yield from _of_class(group.__name__, group)


def docstrings(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Docstrings of a module's public names and of their public members."""
    yield module.__name__, module.__doc__ or ""
    public = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in public:
        thing = getattr(module, name)
        if not is_ours(thing):
            continue
        yield f"{module.__name__}.{name}", inspect.getdoc(thing) or ""
        if inspect.isclass(thing):
            yield from _of_class(name, thing)


def _of_class(name: str, thing: type) -> Iterator[tuple[str, str]]:
    yield name, inspect.getdoc(thing) or ""
    for member, value in inspect.getmembers(thing):
        value = value.fget if isinstance(value, property) else value
        if not member.startswith("_") and is_ours(value):
            yield f"{name}.{member}", inspect.getdoc(value) or ""


def is_ours(thing: Any) -> bool:
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return False
    return (getattr(thing, "__module__", None) or "").startswith("tiltyard.")


OLD_TEXTS: Final = (
    "A stranger committed. Somebody worked it out again. A key that comes twice. A lamp. Leftovers. The newest version by now is told.",
    "Carried over. Doubted. Rows struck out. A consistent cut. Left open. Touched. Anew. Mended. Dearer. The low door.",
    "{} is no address of a server.",
    "max_delay is a number of seconds from 0 on, not {}.",
    "fragment {} stands twice in the manifest",
    "They go on: ask their receipts.",
    "automatic cleanup of %s after version %s: %s versions went",
    "at is a snapshot's number, a tag or a moment.",
    "Notes what a check of a branch came to.",
    "The table has given out all its fragment ids.",
    "Fragment {} has unsound row ids: {}.",
    "The table's config, which readers and writers heed.",
    "See that the server runs and lets you in, then try again.",
    "Two deeds that met, and what came of it.",
    "What happens when two operations meet over one table.",
    "Requests refused since another was faster.",
    "the table was set back to an older version",
    "upkeep of %s failed, which does no harm: %s",
    "The setting {} is Tiltyard's own.",
    "Version {} of {} is not there.",
)
"""Texts that were once in messages and docstrings: each pattern finds one of them."""


def test_each_pattern_finds_an_old_text() -> None:
    assert [say for pattern, say in PATTERNS.items() if not any(map(pattern.search, OLD_TEXTS))] == []
    assert [text for text in OLD_TEXTS if not hits(text, "x")] == []


def test_the_patterns_find_what_they_should() -> None:
    """Guards the tests above: they would pass in silence if nothing was looked at, or if no pattern matched."""
    assert len(hits("Somebody carried it over the newest version.", "x")) == 3
    assert hits("`newest_by` and ``whoever`` in code, foreign writers, latest, a rescan", "x") == []
    assert len(examples()) > 10
    assert len(list(messages())) > 1000
    assert len(list(help_texts(typer.main.get_command(app), "tiltyard"))) > 200
    assert len(list(all_docstrings())) > 400

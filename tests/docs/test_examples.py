"""What the documentation shows is run: each Python block, each command, and where output is shown, it is compared.

Blocks of one page share a directory and their names, in the order of the page:

- ``python`` blocks are executed; one with ``file=NAME`` is written to that file instead;
- a ``text`` block right after a ``python`` block is what that block prints;
- in ``console`` blocks the lines after ``$`` are commands, the others what they print. ``...`` stands for whatever varies.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tiltyard.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<kind>[a-z]*)[ ]*(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = {"python", "text", "console", "sh", ""}
"""``sh`` and bare blocks are only shown: for what needs a cloud or belongs to another program."""


@dataclass(frozen=True, slots=True)
class Block:
    kind: str
    info: str
    body: str
    line: int
    after_python: bool


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    before_kind, before_end = "", -1
    for hit in FENCE.finditer(text):
        adjacent = not text[before_end : hit.start()].strip() if before_end >= 0 else False
        yield Block(hit["kind"], hit["info"], hit["body"], text.count("\n", 0, hit.start()) + 1, adjacent and before_kind == "python")
        before_kind, before_end = hit["kind"], hit.end()


def compare(wanted: str, got: str, where: str) -> None:
    got = "\n".join(line.rstrip() for line in got.splitlines()) + "\n"
    fine = doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS)
    assert fine, f"{where} shows\n{wanted}\nbut this came:\n{got}"


def run_console(block: Block, where: str) -> None:
    for part in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]:
        command, _, wanted = part.partition("\n")
        name, *arguments = shlex.split(command)
        code, out = COMMANDS[name](arguments)
        assert code == 0, f"{where}: {command} ended with {code}: {out}"
        if wanted.strip():
            compare(wanted, out, where)


def _tiltyard(arguments: list[str]) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    return result.exit_code, result.stdout


def _pytest(arguments: list[str]) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "pytest", *arguments], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout


COMMANDS: dict[str, Callable[[list[str]], tuple[int, str]]] = {"tiltyard": _tiltyard, "pytest": _pytest}
"""What a page may run."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(tmp_path)
    if "SparkSession.builder.getOrCreate()" in page.read_text():
        request.getfixturevalue("spark")  # pages share the session of the other tests: starting one takes seconds
    names: dict[str, object] = {"__name__": "page"}
    printed = ""
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        assert block.kind in KINDS, f"{where}: nobody runs {block.kind!r} blocks"
        if block.kind == "python" and block.info.startswith("file="):
            (tmp_path / block.info.removeprefix("file=")).write_text(block.body)
        elif block.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                # Padded, so that a traceback names the line of the page.
                exec(compile("\n" * block.line + block.body, str(page), "exec"), names)  # noqa: S102
            printed = out.getvalue()
        elif block.kind == "text" and block.after_python:
            compare(block.body, printed, where)
        elif block.kind == "console":
            run_console(block, where)


def test_there_are_examples() -> None:
    """Guards the test above: a page whose fences are not recognised would pass in silence."""
    found = [block.kind for page in PAGES for block in blocks(page)]
    assert found.count("python") >= 10
    assert found.count("console") >= 2
    for page in PAGES:
        assert len(re.findall(r"^```", page.read_text(), re.MULTILINE)) == 2 * len(list(blocks(page))), (
            f"a fence of {page.name} is not closed"
        )


LINKING = [*PAGES, ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [target for target in _targets(page) if not target.exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting += _targets(page)
    assert [str(page.relative_to(ROOT)) for page in LINKING if page not in reached] == []


def _targets(page: Path) -> list[Path]:
    """The files that a page links to."""
    return [(page.parent / target).resolve() for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())]

"""Pages that list what the code defines must list all of it."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
import tomllib
from pathlib import Path

import pytest

import tiltyard as ty
from bench import plots
from tiltyard import errors
from tools import conflict_table

ROOT = Path(__file__).resolve().parents[2]


def test_the_conflict_table_is_in_step_with_the_rules() -> None:
    page = conflict_table.PAGE.read_text()
    assert page == conflict_table.page_with_table(page), "run `python tools/conflict_table.py`"


@pytest.mark.parametrize(("ratio", "aim"), [(0.93, None), (0.9, 0.95), (0.97, 1.0), (0.99, 1.05), (1.2, 1.0), (0.2, 0.5)])
def test_no_line_of_a_plot_goes_through_a_figure(ratio: float, aim: float | None) -> None:
    drawn = plots.draw([plots.Bar("one", ratio, aim)])
    figure = float(re.findall(r'<text x="([0-9.]+)" y="49"', drawn)[0])
    ticks = [float(place) for place in re.findall(r'<line x1="([0-9.]+)"', drawn)]
    assert [tick for tick in ticks if figure - 1 < tick < figure + 30] == []


def test_the_plots_are_in_step_with_the_benchmark_page() -> None:
    drawn = plots.plots()
    assert len(drawn) == 5
    assert [path.name for path, text in drawn.items() if path.read_text() != text] == [], "run `python -m bench.plots`"
    assert [path.name for path in drawn if f"](plots/{path.name})" not in plots.PAGE.read_text()] == []


def test_every_error_is_explained() -> None:
    page = (ROOT / "docs" / "reference" / "errors" / "index.md").read_text()
    classes = [found for found in vars(errors).values() if inspect.isclass(found) and issubclass(found, errors.TiltyardError)]
    assert len(classes) > 10
    assert [found.__name__ for found in classes if f"`{found.__name__}`" not in page or f"]({found.kind}.md)" not in page] == []


def _kinds(base: type[errors.TiltyardError]) -> set[str]:
    return {base.kind}.union(*(_kinds(below) for below in base.__subclasses__() if below.__module__.startswith("tiltyard.")))


def test_every_kind_of_error_has_a_page() -> None:
    import tiltyard.pipeline  # noqa: F401  (its errors, too)

    pages = {page.stem: page.read_text() for page in (ROOT / "docs" / "reference" / "errors").glob("*.md") if page.stem != "index"}
    assert set(pages) == _kinds(errors.TiltyardError)
    headings = ("## What happened", "## Was anything written?", "## What to do", "## Example", "## Attributes")
    assert [kind for kind, text in pages.items() if re.findall(r"^## .*", text, re.MULTILINE) != list(headings)] == []


def test_every_public_name_is_in_the_api_reference() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference" / "api").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    in_errors = set(vars(errors))
    wanted = {f"tiltyard.{name}" for name in ty.__all__ if name not in in_errors and name != "__version__"}
    wanted |= {f"tiltyard.spark.{name}" for name in ty.spark.__all__} | {"tiltyard.pipeline", "tiltyard.testing"}
    assert wanted - shown == set()


def test_the_api_reference_names_what_is_there() -> None:
    """A class that moved breaks `make docs`; say so in the quick tests already."""
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)) | set(re.findall(r"\(#(tiltyard\.[\w.]+)\)", pages))
    assert len(named) > 30
    assert [name for name in sorted(named) if pydoc.locate(name) is None] == []


def test_every_design_note_says_how_it_stands() -> None:
    notes = sorted((ROOT / "docs" / "design").glob("0*.md"))
    index = (ROOT / "docs" / "design" / "index.md").read_text()
    assert len(notes) >= 15
    assert [note.name[:3] for note in notes] == [f"{number:03}" for number in range(1, len(notes) + 1)], "a number that two notes have"
    for note in notes:
        assert re.match(r"# \d{3} - .+\n\nStatus: .+<br>\nDate: \d{4}-\d\d-\d\d<br>\nSupersedes: .+\n", note.read_text()), note.name
        assert f"({note.name})" in index


def test_no_page_has_two_sides_of_a_merge() -> None:
    pages = [*ROOT.glob("*.*"), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 60
    halves = [page.name for page in pages if page.is_file() and re.search(rb"^(<{7}|>{7}) ", page.read_bytes(), re.MULTILINE)]
    assert halves == []


@pytest.mark.parametrize("name", ["AGENTS.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_files_that_contributors_are_sent_to_exist(name: str) -> None:
    paths = re.findall(r"`((?:src|tests|tools|docs|bench|examples)/[\w./-]+)`", (ROOT / name).read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    for group in (*project["dependency-groups"].values(), *project["project"]["optional-dependencies"].values()):
        wanted += group
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text()
    names = [re.match(r"[\w-]+", text) for text in wanted]
    assert [name[0] for name in names if name and f"`{name[0]}`" not in page] == []


def test_pages_name_no_machine() -> None:
    pages = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        text = page.read_text()
        assert "/tmp/" not in text
        assert "/home/" not in text
        assert "/work/" not in text


ROOMS = sorted(path.parent for path in (ROOT / "src" / "tiltyard").rglob("*/__init__.py") if path.parent.name != "testing")


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT / "src" / "tiltyard")))
def test_every_room_opens_with_a_catalogue(room: Path) -> None:
    """Its docstring names each of its modules and folders, and no module that is not there."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    modules = {path.stem for path in room.glob("*.py")} - {"__init__", "__main__"}
    assert modules
    assert {name for name in modules if f"``{name}``" not in text} == set()
    assert {path.parent.name for path in room.glob("*/__init__.py") if f"``{path.parent.name}/``" not in text} == set()
    entries = re.findall(r"^ {4}``([a-z_0-9]+)`` ", text, re.MULTILINE)
    assert [name for name in entries if name not in modules] == []


def test_every_page_is_in_the_navigation() -> None:
    """The site is built strictly: a page that it does not lead to fails it."""
    root = Path(__file__).parents[2]
    listed = (root / "mkdocs.yml").read_text()
    pages = {path.relative_to(root / "docs").as_posix() for path in (root / "docs").rglob("*.md")}
    assert {page for page in pages if page not in listed} == set()

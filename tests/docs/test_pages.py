"""Pages that list what the code defines must list all of it."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

from tiltyard import errors
from tools import conflict_table

ROOT = Path(__file__).resolve().parents[2]


def test_the_conflict_table_is_in_step_with_the_rules() -> None:
    page = conflict_table.PAGE.read_text()
    assert page == conflict_table.page_with_table(page), "run `python tools/conflict_table.py`"


def test_every_error_is_explained() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    classes = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.TiltyardError)]
    assert len(classes) > 10
    assert [one.__name__ for one in classes if f"`{one.__name__}`" not in page or f"`{one.kind}`" not in page] == []


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted += [one for extra in project["project"]["optional-dependencies"].values() for one in extra]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    names = [one.partition(">")[0].partition("[")[0].partition("=")[0].partition("<")[0].strip() for one in wanted]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_pages_name_no_machine() -> None:
    pages = [ROOT / "README.md", ROOT / "AGENTS.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        text = page.read_text()
        assert "/tmp/" not in text
        assert "/home/" not in text
        assert "/work/" not in text

"""The commands that keep a catalog and bring a lost one back: their documents, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiltyard as ty
from tests.cli.conftest import Run
from tests.support.lakes import add_to_both, both, two_tables


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "lake"
    with two_tables(ty.Lake.open(path, author="ada")) as lake, lake.transaction() as tx:
        add_to_both(tx, 2)
    return path


def told(run: Run, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    done = run("lake", *arguments, "--json")
    assert (done.code, done.err) == (code, ""), done.out
    found: dict[str, Any] = json.loads(done.out)
    return found


def lose(home: Path) -> None:
    for file in home.glob("catalog.db*"):
        file.unlink()


def test_backup_and_restore(run: Run, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    made = told(run, "backup", home, file)
    assert (made["written"], made["snapshots"], made["catalog"]) == (True, {"main": 2}, "sqlite")
    with ty.Lake.open(home) as lake, lake.transaction() as tx:
        add_to_both(tx, 3)
    assert told(run, "restore", home, file, code=2)["kind"] == "already-exists"
    lose(home)
    found = told(run, "restore", home, file)
    assert (found["restored"], found["complete"], found["tables"]) == (True, True, {"a": 3, "b": 3})
    assert [snapshot["tables"] for snapshot in found["adopted"]] == [["a", "b"]]
    with ty.Lake.open(home) as lake:
        assert both(lake) == ([1, 2, 3], [1, 2, 3])


def test_rebuild(run: Run, home: Path) -> None:
    lose(home)
    assert told(run, "tables", home, code=2)["kind"] == "ownership"
    found = told(run, "rebuild", home)
    assert (found["rebuilt"], found["complete"], found["snapshots"]) == (True, True, {"main": 2})
    assert [table["name"] for table in told(run, "tables", home)["tables"]] == ["a", "b"]


def test_a_damaged_backup(run: Run, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    told(run, "backup", home, file)
    file.write_bytes(file.read_bytes()[:-20])
    lose(home)
    assert told(run, "restore", home, file, code=2)["kind"] == "corrupt-table"
    assert not list(home.glob("catalog.db*"))


def test_upgrade(run: Run, home: Path) -> None:
    found = told(run, "upgrade", home, "--dry-run")
    assert (found["dry_run"], found["changed"], found["after"]) == (True, False, 2)
    assert run("lake", "upgrade", home).out.startswith("nothing to do")


def test_what_was_not_known_is_told(run: Run, home: Path) -> None:
    with ty.Lake.open(home) as lake:
        tx = lake.transaction()
        add_to_both(tx, 9)
    lose(home)
    said = run("lake", "rebuild", home)
    assert said.code == 0
    assert f"transaction {tx.id}" in said.out

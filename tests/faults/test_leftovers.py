"""What only its age tells from work under way: files under temporary names, and branches of which a part is missing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tiltyard as ty
from tests.support.commits import rows
from tests.support.kill_walk import unreachable
from tests.support.tables import open_stock
from tiltyard.interfaces import KeepsTemporaries
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import CountingStore
from tiltyard.verbs.cleanup.abandoned_files import BEING_WRITTEN, NAMELESS, UNFINISHED, UNMADE, YOUNG_BRANCH

NOW = timedelta(0)
TEMPORARY = (
    "data/.tmpAb12Cd",
    "data/.tmp.0011223344556677",
    "data/abc/.tmp.8899",
    "data/abc.lance#1",
    "_deletions/.tmp.00",
    "_indices/1234/.tmpxy",
    "_transactions/.tmp.01",
    "_versions/.tmp.02",
    "_refs/tags/.tmp.03",
    "_tiltyard/floor/.tmp.04",
)
OTHERS = (".tmp.readme", "notes/.tmp.05", "notes/plan#3")


def _table(root: Path) -> ty.Table:
    return ty.Table.create(root, rows(0, 1), durability="os")


def _write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"half of it")


def _told(files: tuple[Any, ...]) -> dict[str, tuple[str, str]]:
    return {one.path: (one.kind, one.reason) for one in files}


def test_a_file_that_is_being_written_stays_and_an_old_one_goes(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    _write(tmp_path / "t", *TEMPORARY, *OTHERS)
    report = table.cleanup()
    assert _told(report.held) == dict.fromkeys(TEMPORARY, ("temporary", BEING_WRITTEN))
    assert report.removed == ()
    assert all((tmp_path / "t" / name).exists() for name in TEMPORARY)
    plan = table.cleanup(grace=NOW, dry_run=True)
    assert all((tmp_path / "t" / name).exists() for name in TEMPORARY)
    report = table.cleanup(grace=NOW)
    assert _told(report.removed) == _told(plan.removed) == dict.fromkeys(TEMPORARY, ("temporary", UNFINISHED))
    assert unreachable(tmp_path / "t") == set(OTHERS), "what lies beside a table is none of its files, whatever it is called"


def test_each_line_of_history_has_its_own(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _table(root)
    table.branches.create("side")
    _write(root, "data/.tmp.1", "tree/side/data/.tmp.2")
    assert [one.path for one in table.cleanup(grace=NOW).removed] == ["data/.tmp.1"]
    side = ty.Table.open(root, branch="side", durability="os")
    assert [one.path for one in side.cleanup(grace=NOW).removed] == ["data/.tmp.2"]
    assert unreachable(root) == set()


def test_a_store_that_shows_only_whole_files_has_none() -> None:
    assert not isinstance(MemoryStore(), KeepsTemporaries)
    assert list(CountingStore(MemoryStore()).temporary("data/")) == []


def test_a_name_without_a_branch(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _table(root)
    table.branches.create("side")
    (manifest,) = (root / "tree/side/_versions").glob("*.manifest")
    manifest.unlink()
    held = table.cleanup().held
    assert _told(held)["_refs/branches/side.json"] == ("branches", YOUNG_BRANCH)
    assert "side" in table.branches
    removed = _told(table.cleanup(grace=NOW).removed)
    assert removed["_refs/branches/side.json"] == ("branches", UNMADE)
    assert {path.split("/")[0] for path in removed} == {"_refs", "tree"}, "what is left of the branch goes with its name"
    assert unreachable(root) == set()
    table.branches.create("side")
    assert ty.Table.open(root, branch="side").count_rows() == 2


def test_a_branch_without_a_name(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _table(root)
    table.branches.create("side")
    ty.Table.open(root, branch="side", durability="os").append(rows(2))
    table.branches.create("side/deeper")
    (root / "_refs/branches/side.json").unlink()
    left = {path.relative_to(root).as_posix() for path in (root / "tree/side").rglob("*") if path.is_file()}
    mine = {path for path in left if "deeper" not in path}
    assert _told(table.cleanup().held) == dict.fromkeys(mine, ("branches", YOUNG_BRANCH))
    report = table.cleanup(grace=NOW)
    assert _told(report.removed) == dict.fromkeys(mine, ("branches", NAMELESS))
    assert report.removed[0].path.endswith(".manifest"), "so that nobody opens the rest"
    assert unreachable(root) == set()
    assert ty.Table.open(root, branch="side/deeper").count_rows() == 2


@pytest.mark.parametrize("by", ["tag", "branch"])
def test_what_something_else_is_based_on_stays(tmp_path: Path, by: str) -> None:
    root = tmp_path / "t"
    table = _table(root)
    table.branches.create("side")
    if by == "tag":
        table.tags.create("kept", branch="side")
    else:
        table.branches.create("child", ("side", None))
    (root / "_refs/branches/side.json").unlink()
    assert table.cleanup(grace=NOW).removed == ()
    assert list((root / "tree/side/_versions").glob("*.manifest"))


def test_a_name_that_something_else_is_based_on_stays(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _table(root)
    table.branches.create("side")
    table.tags.create("kept", branch="side")
    (manifest,) = (root / "tree/side/_versions").glob("*.manifest")
    manifest.unlink()
    assert table.cleanup(grace=NOW).removed == ()
    assert "side" in table.branches


def test_a_name_that_cannot_be_read_may_be_that_of_any_branch(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _table(root)
    table.branches.create("side")
    (root / "_refs/branches/side.json").rename(root / "_refs/branches/side.later")
    assert table.cleanup(grace=NOW).removed == ()


def test_a_branch_of_stock_pylance_is_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _table(root)
    open_stock(str(root)).create_branch("theirs")
    assert table.cleanup(grace=NOW).removed == ()
    assert ty.Table.open(root, branch="theirs").count_rows() == 2


def _empty(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir() and not any(path.iterdir()))


def test_empty_directories_go_with_what_was_in_them(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    for _ in range(3):
        table.create_index("id", "BTREE", "i", replace=True)
    table.branches.create("a/b")
    table.branches.create("a/kept")
    table.branches.delete("a/b")
    (tmp_path / "t" / "notes").mkdir()  # somebody else's
    table.cleanup(keep_versions=1, grace=NOW)
    assert _empty(tmp_path / "t") == ["notes"]
    assert ty.Table.open(tmp_path / "t", branch="a/kept").count_rows() == table.count_rows()


def test_a_directory_somebody_is_about_to_use_stays(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    (tmp_path / "t" / "_indices" / "new").mkdir(parents=True)
    table.cleanup(keep_versions=1)
    assert _empty(tmp_path / "t") == ["_indices/new"]
    table.cleanup(keep_versions=1, grace=NOW)
    assert _empty(tmp_path / "t") == []

"""Tags and branches made, moved and deleted; pylance lists and opens them, and writes on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, handle
from tests.support.evolving import LIVE, STABLE, make, more
from tests.support.tables import open_stock
from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, OutcomeUnknown, StorageError
from tiltyard.storage.local import LocalStore
from tiltyard.testing import Fault, FaultStore


def _files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def _keys(root: Path, path: str) -> list[str]:
    return list(json.loads((root / path).read_text()))


def _at(root: Path, match: str, act: Any) -> ty.Table:
    """A handle whose first write of such a path is preceded by something else."""

    def matches(method: str, path: str) -> bool:
        return method in ("put", "put_if_absent", "delete") and match in path

    return handle(root, InterruptedStore(LocalStore(root, durability="os"), matches, act))


# ---- tags ------------------------------------------------------------------------------------------------------------------


def test_tags(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    tag = table.tags.create("v1.0", 1, metadata={"by": "me"})
    assert table.tags["v1.0"] == tag
    assert table.tags.create("now").version == 2
    stock = open_stock(str(root))
    listed = stock.tags.list()
    assert {name: one["version"] for name, one in listed.items()} == {"v1.0": 1, "now": 2}
    assert listed["v1.0"]["manifest_size"] == tag.manifest_size == next((root / "_versions").glob("*4.manifest")).stat().st_size
    assert stock.checkout_version("v1.0").count_rows() == ty.Table.open(root, version="v1.0").count_rows() == 12
    moved = table.tags.update("v1.0", 2)
    assert (moved.version, moved.created_at, dict(moved.metadata)) == (2, tag.created_at, {"by": "me"})
    assert stock.tags.list()["v1.0"]["version"] == 2
    stock.tags.create("theirs", 1)
    assert _keys(root, "_refs/tags/theirs.json") == _keys(root, "_refs/tags/now.json"), "as pylance writes them"
    assert sorted(table.tags) == ["now", "theirs", "v1.0"]
    table.tags.update("theirs")
    table.tags.delete("theirs")
    assert sorted(open_stock(str(root)).tags.list()) == ["now", "v1.0"]


def test_tags_that_cannot_be(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    table.tags.create("v", 1)
    before = _files(tmp_path / "t")
    for name in ("", "a/b", "..", ".a", "a.lock", "ä", "a b", "../../x", 7, None):
        with pytest.raises(InvalidInput):
            table.tags.create(name)  # type: ignore[arg-type]
    for version in (0, -1, True, "1", 1.0):
        with pytest.raises(InvalidInput):
            table.tags.create("w", version)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        table.tags.create("w", metadata={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(AlreadyExists):
        table.tags.create("v", 2)
    with pytest.raises(NotFound):
        table.tags.create("w", 9)
    with pytest.raises(NotFound):
        table.tags.create("w", branch="none")
    for verb in (table.tags.update, table.tags.delete):
        with pytest.raises(NotFound):
            verb("w")
    with pytest.raises(NotFound):
        table.tags.update("v", 9)
    assert table.tags["v"].version == 1
    assert _files(tmp_path / "t") == before


def test_two_who_make_a_tag(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    with pytest.raises(AlreadyExists):
        _at(root, "_refs/tags", lambda: open_stock(str(root)).tags.create("v", 1)).tags.create("v", 2)
    assert ty.Table.open(root).tags["v"].version == 1


def test_a_version_that_goes_while_it_is_tagged(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    first = next((root / "_versions").glob("*4.manifest"))
    with pytest.raises(NotFound):
        _at(root, "_refs/tags", first.unlink).tags.create("v", 1)
    assert list(ty.Table.open(root).tags) == []
    table = ty.Table.open(root)
    table.append(more(20))
    table.tags.create("v", 3)
    with pytest.raises(NotFound):
        _at(root, "_refs/tags", next((root / "_versions").glob("*3.manifest")).unlink).tags.update("v", 2)
    assert table.tags["v"].version == 3


# ---- branches --------------------------------------------------------------------------------------------------------------


@STABLE
def test_branches(tmp_path: Path, stable: bool) -> None:
    root = tmp_path / "t"
    table = make(root, stable=stable)
    table.tags.create("first", 1)
    made = table.branches.create("dev/x", metadata={"for": "x"})
    table.branches.create("old", "first")
    table.branches.create("older", 1)
    assert table.branches["dev/x"] == made
    branch = ty.Table.open(root, branch="dev/x")
    assert (branch.version, branch.branch, branch.count_rows()) == (2, "dev/x", 10)
    branch.append(more(20))
    branch.delete("id = 1")
    branch.update({"x": "-1"}, "id = 2")
    branch.add_columns({"y": "id"})
    branch.update_config({"a": "1"})
    assert branch.version == 7
    sub = table.branches.create("sub", ("dev/x", 4))
    assert sub.identifier is not None
    assert made.identifier is not None
    assert sub.identifier[:1] == made.identifier
    assert table.layout.latest_version() == 2
    assert ty.Table.open(root).count_rows() == 10
    stock = open_stock(str(root))
    assert sorted(stock.branches.list()) == ["dev/x", "old", "older", "sub"]
    theirs = stock.checkout_version(("dev/x", None))
    theirs.validate()
    assert theirs.to_table().equals(branch.to_arrow())
    assert branch.to_arrow(["id"])["id"].to_pylist().count(1) == 0
    lance.write_dataset(more(30), stock.checkout_version(("sub", None)), mode="append")
    opened = ty.Table.open(root, branch="sub")
    assert sorted(opened.to_arrow(["id"])["id"].to_pylist()) == sorted([*(set(LIVE) - {1}), 20, 30])
    for one in (branch, opened):
        report = one.check()
        assert (report.problems, report.orphans) == ((), ())
    assert ty.Table.open(root, branch="old").count_rows() == ty.Table.open(root, branch="older").count_rows() == 12


def test_as_pylance_makes_them(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    table.branches.create("ours", 2)
    open_stock(str(root)).create_branch("theirs", 2)
    assert _keys(root, "_refs/branches/ours.json") == _keys(root, "_refs/branches/theirs.json")
    ours, theirs = (ty.Table.open(root, branch=name)._file.manifest for name in ("ours", "theirs"))
    assert (ours.base_paths, ours.fragments, ours.fields) == (theirs.base_paths, theirs.fragments, theirs.fields)
    assert (ours.reader_flags, ours.writer_flags) == (theirs.reader_flags, theirs.writer_flags)
    read = [table._access.on_branch(name).log.committed(2, table._scheme).transaction for name in ("ours", "theirs")]
    assert [one.read_version for one in read] == [2, 2]
    assert [(one.operation.ref_path, one.operation.ref_name, one.operation.ref_version) for one in read] == [(str(root), None, 2)] * 2  # type: ignore[union-attr]


def test_branches_that_cannot_be(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    table.branches.create("b")
    before = _files(root)
    for name in ("", "main", "/a", "a/", "a//b", "a/../b", "..", "a b", "a.lock", "a/data", "a/_versions", 7):
        with pytest.raises(InvalidInput):
            table.branches.create(name)  # type: ignore[arg-type]
    starts: list[tuple[Any, type[Exception]]] = [(one, InvalidInput) for one in (0, True, 1.0, ("b",), (1, 2), {"b": 1})]
    starts += [(one, NotFound) for one in (9, "no tag", ("nobody", 1), ("b", 1))]
    for start, kind in starts:
        with pytest.raises(kind):
            table.branches.create("c", start)
    with pytest.raises(AlreadyExists):
        table.branches.create("b", 1)
    with pytest.raises(InvalidInput):
        table.branches.create("c", metadata={"a": 1})  # type: ignore[dict-item]
    assert _files(root) == before


def test_delete_a_branch(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    before = _files(root)
    table.branches.create("a")
    table.branches.create("a/b")
    ty.Table.open(root, branch="a").append(more(20))
    ty.Table.open(root, branch="a/b").append(more(30))
    table.branches.create("child", ("a", None))
    table.tags.create("t", branch="a")
    with pytest.raises(InvalidInput, match="branch 'child', tag 't'"):
        table.branches.delete("a")
    table.tags.delete("t")
    with pytest.raises(InvalidInput, match="child"):
        table.branches.delete("a")
    table.branches.delete("child")
    table.branches.delete("a")
    with pytest.raises(NotFound):
        ty.Table.open(root, branch="a")
    for force in (False, True):
        with pytest.raises(NotFound):
            table.branches.delete("a", force=force)
    assert ty.Table.open(root, branch="a/b").count_rows() == 11, "a branch below another one is its own"
    table.branches.create("a", 1)
    assert ty.Table.open(root, branch="a").count_rows() == 12
    table.branches.delete("a")
    table.branches.delete("a/b")
    assert _files(root) == before
    assert open_stock(str(root)).branches.list() == {}


def test_what_an_interrupted_creation_or_removal_left(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = make(root)
    before = _files(root)
    table.branches.create("b")
    (root / "_refs/branches/b.json").unlink()
    with pytest.raises(AlreadyExists, match="force"):
        table.branches.create("b")
    assert list(table.branches) == []
    table.branches.delete("b", force=True)
    assert _files(root) == before
    table.branches.create("b")
    for path in sorted((root / "tree").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(NotFound):
        ty.Table.open(root, branch="b")
    table.branches.delete("b")
    assert _files(root) == before


def test_two_who_make_a_branch(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root)
    with pytest.raises(AlreadyExists):
        _at(root, "_refs/branches", lambda: ty.Table.open(root).branches.create("b", 1)).branches.create("b", 2)
    table = ty.Table.open(root, branch="b")
    assert (table.version, table.layout.versions(), table.count_rows()) == (1, [1], 12)


def test_a_branch_whose_start_goes_while_it_is_made(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root).branches.create("a")
    before = _files(root)
    with pytest.raises(NotFound):
        _at(root, "_refs/branches", lambda: ty.Table.open(root).branches.delete("a")).branches.create("b", ("a", None))
    assert _files(root) == {path for path in before if not path.startswith(("tree/", "_refs/"))}


def test_a_branch_that_gets_a_child_while_it_is_deleted_stays(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make(root).branches.create("a")
    with pytest.raises(InvalidInput, match="child"):
        _at(root, "_refs/branches/a", lambda: ty.Table.open(root).branches.create("child", ("a", None))).branches.delete("a")
    assert ty.Table.open(root, branch="a").count_rows() == ty.Table.open(root, branch="child").count_rows() == 10


def test_names_by_v1_stay_v1_on_a_branch(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, pa.table({"id": [1]}), options=ty.TableOptions(manifest_naming="v1"))
    table.branches.create("b")
    branch = ty.Table.open(root, branch="b")
    branch.append(pa.table({"id": [2]}))
    assert open_stock(str(root)).checkout_version(("b", None)).count_rows() == 2


@pytest.mark.parametrize("verb", ["tag", "branch"])
def test_every_fault_leaves_the_table_sound(tmp_path: Path, verb: str) -> None:
    for kind in (Fault.ERROR_BEFORE, Fault.ERROR_AFTER):
        for number in range(1, 30):
            root = tmp_path / f"{kind.name} {number}"
            make(root)
            faulty = FaultStore(LocalStore(root), kind, at=number)
            table = handle(root, faulty)
            try:
                table.tags.create("v", 1) if verb == "tag" else table.branches.create("b")
            except (StorageError, OutcomeUnknown):
                pass
            clean = ty.Table.open(root)
            assert [one.version for one in clean.tags.values()] in ([], [1])
            assert all(ty.Table.open(root, branch=name).count_rows() == 10 for name in clean.branches)
            if not faulty.fired:
                break
        else:
            pytest.fail("the verb never passed")

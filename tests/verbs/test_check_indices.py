"""``check`` and indices: their files wherever they lie, their columns, and whether they answer what a scan answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

import tiltyard as ty
from tests.support.rot import NOW, ids
from tiltyard.format.manifest import encode_indices
from tiltyard.format.manifest_file import decode_manifest_file, encode_manifest_file
from tiltyard.format.roaring import encode_roaring


def _covering(table: ty.Table, *fragments: int) -> None:
    """Has the index claim fragments, whatever it was built from: what lance 13 leaves when it compacts a table with stable row ids."""
    (index,) = table.indices.segments
    claimed = replace(index, fragment_bitmap=encode_roaring(BitMap(fragments)))
    table.commit(ty.ops.CreateIndex((claimed,), (index,)))


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize(("column", "kind"), [("id", "BTREE"), ("name", "BTREE"), ("name", "BITMAP")])
@pytest.mark.parametrize("data", [True, False])
def test_rows_that_an_index_lost(tmp_path: Path, stable: bool, column: str, kind: str, data: bool) -> None:
    table = ty.Table.create(tmp_path / "t", ids(*range(100)), stable_row_ids=stable, durability="os")
    table.create_index(column, kind)
    table.append(ids(*range(100, 150)))
    assert table.check(data=data).ok
    _covering(table, 0, 1)
    assert table.count_rows("id = 120" if column == "id" else "name = 'n120'") == 0, "pylance looks for no lost rows itself"
    (problem,) = table.check(data=data).problems
    assert (problem.invariant, problem.version) == ("I13", table.version)
    assert column in problem.text
    assert "misses" in problem.text
    table.drop_index(table.indices.segments[0].name)
    assert table.check(data=data).ok


@pytest.mark.parametrize("data", [True, False])
def test_what_is_compared(tmp_path: Path, data: bool) -> None:
    """Nulls, deleted rows and values that need quoting are no differences; columns that are not compared are named."""
    rows = {
        "flag": [True, None, False, True], "day": pa.array([1, None, -5, 7], pa.date32()), "real": [1.0, None, float("nan"), -0.0],
        "text": ["it's", "", None, "ä"], "number": [1, -(2**63), 2**63 - 1, None],
    }  # fmt: skip
    table = ty.Table.create(tmp_path / "t", pa.table(rows), durability="os")
    for column in rows:
        table.create_index(column, "BITMAP" if column == "flag" else "BTREE")
    table.append(pa.table(rows))
    table.delete("flag = false")
    report = table.check(data=data)
    assert report.ok, report.problems
    assert [text for text in report.not_checked if "real_idx" in text]


def test_index_files_in_a_base(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ids(*range(100)), durability="os")
    table.create_index("id", "BTREE")
    table.clone(tmp_path / "clone", True)
    clone = ty.Table.open(tmp_path / "clone", allowed_bases=["*"])
    assert clone.check(data=True).ok
    table.drop_index("id_idx")
    table.cleanup(keep_versions=1, grace=NOW)
    for data in (False, True):
        assert {problem.invariant for problem in clone.check(data=data).problems} >= {"I2"}


def test_an_index_on_a_column_that_is_gone(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ids(1, 2), durability="os")
    table.create_index("id", "BTREE")
    (index,) = table.indices.segments
    table.drop_columns(["id"])
    assert table.check(data=True).ok, "the index went with its column"
    _rewrite(min((tmp_path / "t" / "_versions").glob("*.manifest")), index_section=encode_indices((index,)))
    texts = [problem.text for problem in ty.Table.open(tmp_path / "t").check().problems]
    assert any("id_idx is on column id 0" in text for text in texts)


def test_pylance_drops_an_index_with_its_column(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ids(1, 2), durability="os")
    table.create_index("id", "BTREE")
    lance.dataset(tmp_path / "t").drop_columns(["id"])
    assert table.refresh().check().ok


def test_what_a_foreign_cleanup_leaves_is_no_problem(tmp_path: Path) -> None:
    """The origin of a branch without its transaction file, and versions alone that a tag keeps, on branches as on main."""
    table = ty.Table.create(tmp_path / "t", ids(1), durability="os")
    for number in range(6):
        table.append(ids(number + 10))
    table.tags.create("a", 3)
    table.branches.create("b", 4)
    branch = ty.Table.open(tmp_path / "t", branch="b", durability="os")
    for number in range(6):
        branch.append(ids(number + 20))
    table.tags.create("inner", branch="b", version=branch.version - 3)
    old = timedelta(0)
    lance.dataset(tmp_path / "t").cleanup_old_versions(old, error_if_tagged_old_versions=False)
    lance.dataset(tmp_path / "t").checkout_version(("b", None)).cleanup_old_versions(old, error_if_tagged_old_versions=False)
    assert table.layout.versions() == [3, 4, 7]
    assert branch.layout.versions() == [branch.version - 3, branch.version]
    for line in (table, branch):
        report = line.check(data=True)
        assert report.ok, report.problems
        assert report.unverified, "the digests went with the transactions of the other versions"
    (tmp_path / "t" / "_refs" / "tags" / "inner.json").unlink()
    assert [problem.invariant for problem in branch.check().problems] == ["I1"]


def test_gaps_where_clocks_differed_prove_nothing(tmp_path: Path) -> None:
    """A foreign cleanup goes by age; a version stamped by a clock that was behind goes before the one below it."""
    table = ty.Table.create(tmp_path / "t", ids(1), durability="os")
    for number in range(4):
        table.append(ids(number + 10))
    paths = sorted((tmp_path / "t" / "_versions").glob("*.manifest"), reverse=True)  # of versions 1 to 5
    paths[2].unlink()
    assert [problem.invariant for problem in table.check().problems] == ["I1"]
    _rewrite(paths[3], timestamp_ns=10**9)
    report = table.check()
    assert not [problem for problem in report.problems if problem.invariant == "I1"]
    assert any("clocks" in text for text in report.not_checked)


def _rewrite(path: Path, **changes: Any) -> None:
    """The version as another writer would have left it, without a digest of itself."""
    file = decode_manifest_file(path.read_bytes(), source=path.name)
    path.write_bytes(encode_manifest_file(replace(file.manifest, **changes), None)[0])

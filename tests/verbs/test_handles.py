"""One handle: shared by threads, over a table that was made again, and at a branch that is none."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.errors import NotFound
from tiltyard.format.schema import match_schema
from tiltyard.verbs.write import Appending


def test_threads_that_share_a_handle_lose_nothing(tmp_path: Path) -> None:
    threads, commits = 4, 5
    table = ty.Table.create(tmp_path / "t", pa.schema({"n": pa.int64(), "s": pa.string()}), durability="os")
    start = threading.Barrier(threads + 1)

    def write(thread: int) -> list[int]:
        made = []
        start.wait(60)
        for number in range(commits):
            # Every other batch leaves a column out, so that what one thread matched does not fit the other.
            rows = {"n": [thread * commits + number]} | ({"s": ["x"]} if number % 2 else {})
            made.append(table.append(rows, commit=ty.CommitOptions(race_retries=200)).version)
            assert table.version >= made[-1]
        return made

    def read() -> None:
        start.wait(60)
        seen = 0
        while seen < threads * commits:
            before = table.version
            rows = table.to_arrow().num_rows
            assert rows >= max(seen, before - 1)
            seen = rows

    with ThreadPoolExecutor(threads + 1) as pool:
        reader = pool.submit(read)
        versions = [version for made in pool.map(write, range(threads)) for version in made]
        reader.result(120)
    assert sorted(versions) == list(range(2, threads * commits + 2))
    assert table.version == threads * commits + 1
    assert sorted(table.to_arrow()["n"].to_pylist()) == list(range(threads * commits))
    assert ty.Table.open(tmp_path / "t").check().ok


def test_a_handle_never_goes_back(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", {"n": [1]})
    older = table._file
    table.append({"n": [2]})
    table._move(older)
    assert (table.version, table.count_rows(), table.to_arrow().num_rows) == (2, 2, 2)


def test_what_one_thread_matched_is_not_taken_for_another(tmp_path: Path) -> None:
    """While one thread matches its schema, another puts its own match in the place where both keep theirs."""
    fields = ty.Table.create(tmp_path / "t", {"a": [1], "b": [2]})._file.manifest.fields
    appending = Appending(fields, "2.1")
    narrow, wide = pa.schema({"a": pa.int64()}), pa.schema({"a": pa.int64(), "b": pa.int64()})

    class Overtaken(Appending):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "matched" and value is not None:
                vars(self)["matched"] = (wide, match_schema(fields, wide))

    assert Overtaken(fields, "2.1").match(narrow).schema.names == ["a"]
    assert appending.match(wide).schema.names == ["a", "b"]


def test_refresh_after_the_table_was_made_again(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, {"n": [1, 2, 3]})
    table.append({"n": [4]})
    for versions in (2, 1, 3):
        shutil.rmtree(root)
        again = ty.Table.create(root, {"n": [7]}, options=ty.TableOptions(data_format="2.1"))
        for _ in range(versions - 1):
            again.append({"n": [8]})
        table.refresh()
        assert (table.version, table.count_rows()) == (versions, versions)
        assert table.to_arrow().num_rows == versions
        assert table.layout.data_format == "2.1"
        table.append({"n": [9]})
        assert table.check().ok
    shutil.rmtree(root)
    with pytest.raises(NotFound):
        table.refresh()


def test_refresh_without_news_changes_nothing(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", {"n": [1]})
    file, dataset = table._file, table.lance
    assert table.refresh()._file is file
    assert table.lance is dataset


def test_main_is_no_branch(tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", {"n": [1]}).append({"n": [2]})
    table = ty.Table.open(tmp_path / "t", branch="main", version=1)
    assert (table.branch, table.version) == (None, 1)

"""Which files are new."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiltyard as ty
from tiltyard.pipeline import FileSource
from tiltyard.pipeline.source_files import FileScan, check_unchanged, scan

NOW = 2_000_000_000 * 10**9


def look(directory: Path, pattern: str = "*.json", known: Any = None, runner: str = "me", **more: Any) -> FileScan:
    source = FileSource("s", (pattern,), more.pop("format", "json"), **more)
    return scan(source, directory, known or {}, NOW, runner)


def put(directory: Path, *names: str, text: str = "{}") -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def items(found: FileScan) -> list[str]:
    return [one.item for one in found.new]


def marks(found: FileScan) -> dict[str, Any]:
    return {one.item: one.mark("s").value for one in found.new}


def test_a_file_is_new_once(tmp_path: Path) -> None:
    put(tmp_path, "b.json", "a.json", "c.csv")
    first = look(tmp_path)
    assert items(first) == ["a.json", "b.json"]
    put(tmp_path, "later.json")
    assert items(look(tmp_path, known=marks(first))) == ["later.json"]


def test_patterns_reach_into_directories_and_overlap(tmp_path: Path) -> None:
    put(tmp_path, "in/2026/a.json", "in/b.json")
    source = FileSource("s", ("in/**/*.json", "in/*.json"), "json")
    assert items(scan(source, tmp_path, {}, NOW, "me")) == ["in/2026/a.json", "in/b.json"]


def test_files_elsewhere_keep_their_whole_path(tmp_path: Path) -> None:
    put(tmp_path, "in/a.json")
    (tmp_path / "pipeline").mkdir()
    assert items(look(tmp_path / "pipeline", "../in/*.json")) == [(tmp_path / "in/a.json").as_posix()]


@pytest.mark.parametrize("name", ["a.json.tmp", "a.json.part", "a.json~", "A.JSON.INPROGRESS"])
def test_names_of_unfinished_files(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    found = look(tmp_path, "*")
    assert (found.new, found.partial) == ((), (name,))


def test_hidden_files_are_no_files(tmp_path: Path) -> None:
    put(tmp_path, ".a.json", "_SUCCESS", "_a.json")
    assert look(tmp_path, "*") == FileScan()


def test_empty_and_young_files_wait(tmp_path: Path) -> None:
    put(tmp_path, "empty.json", text="")
    put(tmp_path, "young.json", "old.json")
    os.utime(tmp_path / "young.json", ns=(NOW, NOW - 10**9))
    found = look(tmp_path, min_age=timedelta(seconds=5))
    assert items(found) == ["old.json"]
    assert sorted(found.partial) == ["empty.json", "young.json"]


def test_parquet_without_its_end_waits(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "whole.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-1])
    (tmp_path / "short.parquet").write_bytes(b"PAR1")
    found = look(tmp_path, "*.parquet", format="parquet")
    assert items(found) == ["whole.parquet"]
    assert sorted(found.partial) == ["cut.parquet", "short.parquet"]


def test_only_so_many_at_once(tmp_path: Path) -> None:
    put(tmp_path, *(f"{number}.json" for number in range(5)))
    found = look(tmp_path, max_files=2)
    assert (items(found), found.waiting) == (["0.json", "1.json"], 3)


def test_runners_begin_at_different_files_if_order_does_not_matter(tmp_path: Path) -> None:
    put(tmp_path, *(f"{number}.json" for number in range(20)))
    one, other = (items(look(tmp_path, order="any", max_files=3, runner=name)) for name in ("one", "other"))
    assert one == items(look(tmp_path, order="any", max_files=3, runner="one"))
    assert one != other


def test_a_file_that_changed_after_it_was_consumed(tmp_path: Path) -> None:
    put(tmp_path, "a.json")
    known = marks(look(tmp_path))
    put(tmp_path, "a.json", text="{} {}")
    assert items(look(tmp_path, known=known, changed="ignore")) == []
    assert items(look(tmp_path, known=known, changed="again")) == ["a.json"]
    with pytest.raises(ty.InvalidInput, match=r"sources.s: a.json changed after it was consumed") as caught:
        look(tmp_path, known=known)
    assert caught.value.argument == "sources.s.changed"
    same = (tmp_path / "a.json").stat()
    put(tmp_path, "a.json", text="[] []")
    os.utime(tmp_path / "a.json", ns=(same.st_atime_ns, same.st_mtime_ns + 1))
    assert items(look(tmp_path, known=known, changed="again")) == ["a.json"], "the time of change alone tells, too"


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    put(tmp_path, "a.json", "b.json")
    found = look(tmp_path)
    check_unchanged(FileSource("s", ("*",), "json"), found.new)
    put(tmp_path, "b.json", text="{} {}")
    with pytest.raises(ty.RetryableConflict, match=r"b.json was changed or removed"):
        check_unchanged(FileSource("s", ("*",), "json"), found.new)
    (tmp_path / "b.json").unlink()
    with pytest.raises(ty.RetryableConflict, match=r"b.json was changed or removed"):
        check_unchanged(FileSource("s", ("*",), "json"), found.new)

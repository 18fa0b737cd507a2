"""Blobs too large for their data file lie in files beside it: these are made durable, accounted for and removed with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.errors import AlreadyExists, IncompatibleConflict, StorageError
from tiltyard.storage.local import LocalStore
from tiltyard.testing import WrapperStore
from tiltyard.verbs.engine.access import open_access

SCHEMA = pa.schema([pa.field("id", pa.int64()), lance.blob_field("b")])


def _rows(*sizes: int) -> pa.Table:
    blobs = lance.blob_array([b"x" * size if size else None for size in sizes])
    return pa.table([pa.array(range(len(sizes)), pa.int64()), blobs], schema=SCHEMA)


def _beside(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*.blob"))


class Watched(WrapperStore):
    """Notes what is flushed, and can fail at it."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalStore(root))
        self.flushed: list[str] = []
        self.fails = False

    def sync(self, paths: Iterable[str]) -> None:
        wanted = list(paths)
        if self.fails and any(path.endswith(".blob") for path in wanted):
            raise StorageError("the disk is full")
        self.flushed += wanted
        super().sync(wanted)


@pytest.fixture
def watched(tmp_path: Path) -> tuple[ty.Table, Watched]:
    store = Watched(tmp_path / "t")
    place = open_access(tmp_path / "t", store=store)
    return ty.Table._create(place, _rows(10, 100_000, 5_000_000, 0)), store


def test_they_are_flushed_before_the_commit(watched: tuple[ty.Table, Watched], tmp_path: Path) -> None:
    table, store = watched
    assert len(_beside(tmp_path / "t")) == 2
    assert set(_beside(tmp_path / "t")) <= set(store.flushed)
    table.append(_rows(0, 200_000).to_reader(), files=ty.FileLimits(rows=1))
    table.overwrite(_rows(300_000))
    assert len(_beside(tmp_path / "t")) == 4
    assert set(_beside(tmp_path / "t")) <= set(store.flushed)
    flushed = len(store.flushed)
    table.append(_rows(10))
    assert len(store.flushed) == flushed + 1  # the data file alone


def test_they_are_no_orphans_and_a_missing_one_is_noticed(watched: tuple[ty.Table, Watched], tmp_path: Path) -> None:
    table, _ = watched
    table.append(_rows(100_000))
    assert (table.check().problems, table.check().orphans) == ((), ())
    for path in _beside(tmp_path / "t"):
        kept = (tmp_path / "t" / path).read_bytes()
        (tmp_path / "t" / path).unlink()
        report = ty.Table.open(tmp_path / "t").check()
        assert [problem.invariant for problem in report.problems] == ["I2"]
        assert path in report.problems[0].text
        (tmp_path / "t" / path).write_bytes(kept)
    stray = tmp_path / "t" / "data" / "stray" / "1.blob"
    stray.parent.mkdir()
    stray.write_bytes(b"x")
    assert table.check().orphans == ("data/stray/1.blob",)


def test_they_are_removed_when_the_commit_fails(watched: tuple[ty.Table, Watched], tmp_path: Path) -> None:
    table, store = watched
    before = _beside(tmp_path / "t")
    lance.dataset(str(tmp_path / "t"), version=1).restore()  # type: ignore[no-untyped-call]
    with pytest.raises(IncompatibleConflict):
        table.append(_rows(100_000, 5_000_000))
    assert _beside(tmp_path / "t") == before
    table.refresh()
    store.fails = True
    with pytest.raises(StorageError, match="full"):
        table.append(_rows(100_000))
    assert _beside(tmp_path / "t") == before
    assert len(list((tmp_path / "t" / "data").glob("*.lance"))) == 1
    with pytest.raises(AlreadyExists):
        ty.Table.create(tmp_path / "t", _rows(100_000))
    assert _beside(tmp_path / "t") == before

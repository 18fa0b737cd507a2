"""Clones: the rows of a version in a table of its own, whole or not at all, and nobody's files touched."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, has_table, is_version, place_at
from tests.support.tables import open_stock
from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, OutcomeUnknown, StorageError
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.local import LocalStore
from tiltyard.testing import WrapperStore
from tiltyard.testing.stores import Request, T
from tiltyard.transaction.log import VersionLog
from tiltyard.verbs.clone import Cloning, clone_table

SHALLOW = pytest.mark.parametrize("shallow", [True, False], ids=["shallow", "deep"])
COUNT = 40


def _make(root: Path, **options: Any) -> ty.Table:
    rows = pa.table({"id": pa.array(range(COUNT), pa.int64()), "x": pa.array([n % 7 for n in range(COUNT)], pa.int64())})
    table = ty.Table.create(root, rows, durability="os", **options, options=ty.TableOptions(files=ty.FileLimits(rows=10)))
    table.create_index("x", "BTREE")
    table.delete("id in (3, 17)")
    return table


def _sound(root: Path, wanted: list[int], source: Path | None = None) -> ty.Table:
    table = ty.Table.open(root, allowed_bases=[source] if source else ())
    assert sorted(table.to_arrow(["id"])["id"].to_pylist()) == wanted
    stock = open_stock(str(root))
    stock.validate()
    assert sorted(stock.to_table()["id"].to_pylist()) == wanted
    plan = stock.scanner(filter="x = 3").explain_plan()
    assert "ScalarIndexQuery" in plan
    scanned = stock.scanner(columns=["id"], filter="x = 3", use_scalar_index=False).to_table()["id"].to_pylist()
    assert sorted(stock.to_table(columns=["id"], filter="x = 3")["id"].to_pylist()) == sorted(scanned)
    return table


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


LIVE = [one for one in range(COUNT) if one not in (3, 17)]


@SHALLOW
@pytest.mark.parametrize("stable", [False, True])
def test_a_clone_is_what_pylance_makes(tmp_path: Path, shallow: bool, stable: bool) -> None:
    table = _make(tmp_path / "t", stable_row_ids=stable)
    before = _files(tmp_path / "t")
    result = table.clone(tmp_path / "ours", shallow, message="a copy")
    assert (result.operation, result.version, table.version) == ("Clone", 3, 3)
    stock = open_stock(str(tmp_path / "t"))
    (stock.shallow_clone if shallow else stock.deep_clone)(str(tmp_path / "theirs"), 3)
    ours = _sound(tmp_path / "ours", LIVE, tmp_path / "t" if shallow else None)
    theirs = ty.Table.open(tmp_path / "theirs", allowed_bases=["*"])
    for part in ("fields", "base_paths", "branch", "config", "reader_flags", "writer_flags", "max_fragment_id", "next_row_id", "version"):
        assert getattr(ours._file.manifest, part) == getattr(theirs._file.manifest, part), part
    assert list(ours.layout.fragments) == list(theirs.layout.fragments)
    assert ours.indices.segments == theirs.indices.segments
    mine, others = (VersionLog(LocalStore(tmp_path / name)).committed(3, ours._scheme).transaction for name in ("ours", "theirs"))
    assert mine.operation == others.operation
    assert {name for name in _files(tmp_path / "ours") if not name.startswith("_transactions")} == {
        name for name in _files(tmp_path / "theirs") if not name.startswith("_transactions")
    }
    assert ours.history()[0].message == "a copy"
    assert _files(tmp_path / "t") == before


@SHALLOW
def test_both_go_their_own_way(tmp_path: Path, shallow: bool) -> None:
    table = _make(tmp_path / "t")
    table.clone(tmp_path / "c", shallow)
    allowed = tmp_path / "t" if shallow else None
    clone = ty.Table.open(tmp_path / "c", allowed_bases=[allowed] if allowed else ())
    clone.append(pa.table({"id": pa.array([100], pa.int64()), "x": pa.array([3], pa.int64())}))
    clone.delete("id < 10")
    table.delete("id >= 30")
    assert clone.layout.versions() == [3, 4, 5]
    _sound(tmp_path / "c", [one for one in LIVE if one >= 10] + [100], allowed)
    _sound(tmp_path / "t", [one for one in LIVE if one < 30])
    clone.indices.optimize(merge=True)
    _sound(tmp_path / "c", [one for one in LIVE if one >= 10] + [100], allowed)


@SHALLOW
def test_a_clone_of_a_clone(tmp_path: Path, shallow: bool) -> None:
    _make(tmp_path / "t").clone(tmp_path / "first")
    first = ty.Table.open(tmp_path / "first", allowed_bases=[tmp_path / "t"])
    first.append(pa.table({"id": pa.array([100], pa.int64()), "x": pa.array([3], pa.int64())}))
    first.clone(tmp_path / "second", shallow)
    allowed = [tmp_path / "t", tmp_path / "first"] if shallow else []
    second = ty.Table.open(tmp_path / "second", allowed_bases=allowed)
    assert sorted(second.to_arrow(["id"])["id"].to_pylist()) == [*LIVE, 100]
    assert second.check().problems == ()
    open_stock(str(tmp_path / "second")).validate()


@SHALLOW
def test_an_older_version_a_tag_and_a_branch(tmp_path: Path, shallow: bool) -> None:
    table = _make(tmp_path / "t")
    table.tags.create("whole", 2)
    table.clone(tmp_path / "one", shallow, version=2)
    table.clone(tmp_path / "two", shallow, version="whole")
    for name in ("one", "two"):
        clone = _sound(tmp_path / name, list(range(COUNT)), tmp_path / "t" if shallow else None)
        assert clone.version == 2
    table.branches.create("side")
    side = ty.Table.open(tmp_path / "t", branch="side")
    side.delete("id > 5")
    side.clone(tmp_path / "three", shallow)
    _sound(tmp_path / "three", [0, 1, 2, 4, 5], tmp_path / "t" if shallow else None)
    with pytest.raises(NotFound):
        table.clone(tmp_path / "four", shallow, version=99)
    with pytest.raises(NotFound):
        table.clone(tmp_path / "four", shallow, version="nope")
    with pytest.raises(InvalidInput):
        table.clone(tmp_path / "four", shallow, version=2.0)  # type: ignore[arg-type]
    assert not (tmp_path / "four").exists()


@SHALLOW
def test_no_table_is_cloned_over(tmp_path: Path, shallow: bool) -> None:
    table, other = _make(tmp_path / "t"), _make(tmp_path / "other")
    before = _files(tmp_path / "other")
    with pytest.raises(AlreadyExists):
        table.clone(other.uri, shallow)
    assert _files(tmp_path / "other") == before


@SHALLOW
def test_of_two_clones_into_one_place_one_is_made(tmp_path: Path, shallow: bool) -> None:
    table = _make(tmp_path / "t")
    store = InterruptedStore(LocalStore(tmp_path / "c", durability="os"), is_version, lambda: table.clone(tmp_path / "c", shallow))
    with pytest.raises(AlreadyExists):
        clone_table(table._access, table._file, place_at(tmp_path / "c", store), Cloning(shallow), {})
    assert len(list((tmp_path / "c" / "_transactions").iterdir())) == 1
    _sound(tmp_path / "c", LIVE, tmp_path / "t" if shallow else None)


class FullStore(WrapperStore):
    """Takes so many new files, then no more."""

    def __init__(self, inner: ObjectStore, room: int) -> None:
        super().__init__(inner)
        self._room = room
        self._counting = threading.Lock()

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if method in ("put", "put_if_absent"):
            with self._counting:
                if self._room == 0:
                    raise StorageError(f"No space for {path}.", name=path)
                self._room -= 1
        return request(self.inner)


@pytest.mark.parametrize("room", [0, 1, 3, 6])
def test_half_a_clone_is_not_seen_and_the_next_one_goes_on(tmp_path: Path, room: int) -> None:
    table = _make(tmp_path / "t")
    target = LocalStore(tmp_path / "c", durability="os")
    with pytest.raises(StorageError, match="No space"):
        clone_table(table._access, table._file, place_at(tmp_path / "c", FullStore(target, room)), Cloning(False, workers=2), {})
    assert not has_table(tmp_path / "c")
    kept = {name: (tmp_path / "c" / name).stat().st_ino for name in _files(tmp_path / "c")} if room else {}
    assert len(kept) == room
    seen: list[tuple[int, int]] = []
    table.clone(tmp_path / "c", shallow=False, options=ty.CloneOptions(progress=lambda done, of: seen.append((done, of))))
    _sound(tmp_path / "c", LIVE)
    assert all((tmp_path / "c" / name).stat().st_ino == number for name, number in kept.items())
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0
    assert ty.Table.open(tmp_path / "c").check().orphans == ()


def test_blobs_come_along(tmp_path: Path) -> None:
    from lance.blob import blob_array, blob_field

    large = bytes(range(256)) * 1024
    rows = pa.table([pa.array([1], pa.int64()), blob_array([large])], schema=pa.schema([pa.field("id", pa.int64()), blob_field("b")]))
    table = ty.Table.create(tmp_path / "t", rows, durability="os")
    table.clone(tmp_path / "c", shallow=False)
    stock = open_stock(str(tmp_path / "c"))
    assert stock.take_blobs("b", indices=[0])[0].readall() == large
    assert ty.Table.open(tmp_path / "c").check().problems == ()


def test_a_branch_whose_first_version_somebody_else_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch begins as a clone does; files of another one in its directory are not taken for its own."""
    table = _make(tmp_path / "t")
    home = tmp_path / "t" / "tree" / "side"

    def interrupted(uri: str, **options: Any) -> ObjectStore:
        return InterruptedStore(LocalStore(uri, durability="os"), is_version, other)

    def other() -> None:
        clone_table(table._access, table._file, place_at(home), Cloning(), {})

    with monkeypatch.context() as patch:
        patch.setattr("tiltyard.verbs.engine.access.open_store", interrupted)
        with pytest.raises(AlreadyExists):
            table.branches.create("side")
    assert list(table.branches) == []


def test_a_clone_in_doubt_says_whom_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no handle on a table that may not be there, and its first version need not be number 1."""
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1]}), durability="os")
    table.append(pa.table({"id": [2]}))

    def silence(self: LocalStore, path: str, data: bytes) -> None:
        raise StorageError("no answer", maybe_applied=True, transient=True)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put_if_absent", silence)
        with pytest.raises(OutcomeUnknown) as caught:
            table.clone(tmp_path / "copy", shallow=False, storage=ty.Storage(handler="conditional-put"))
    error = caught.value
    assert (error.operation, error.read_version, error.version) == ("Clone", 2, 2)
    assert f"ty.outcomes.outcome_at(uri, {error.transaction_id!r}, version=2)" in str(error)
    assert isinstance(ty.outcomes.outcome_at(tmp_path / "copy", error.transaction_id, version=2), ty.outcomes.Unknown)
    table.clone(tmp_path / "copy", shallow=False)
    assert isinstance(ty.outcomes.outcome_at(tmp_path / "copy", error.transaction_id, version=2), ty.outcomes.NotCommitted)

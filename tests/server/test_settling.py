"""Bookkeeping of published versions that waits: nothing depends on when it is done."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.catalog.lake_values import Publication
from tiltyard.catalog.server_records import publication_from_body, publication_to_body
from tiltyard.lakes.finishing import claim_of
from tiltyard.lakes.namespace import LakeNamespace
from tiltyard.lakes.namespaces import publish_staged
from tiltyard.server.settling import SettleQueue
from tiltyard.storage import files
from tiltyard.storage.external import finalize, is_torn


@pytest.fixture
def lake(tmp_path: Path) -> ty.Lake:
    lake = ty.Lake.open(tmp_path / "lake")
    lake.create_table("t", pa.table({"id": [0]}))
    return lake


def publish(lake: ty.Lake, queue: SettleQueue, *numbers: int) -> None:
    """Appends of a stock client, each a version of its own."""
    namespace = LakeNamespace(lake)
    namespace.settle_by(queue.add)
    for number in numbers:
        lance.write_dataset(pa.table({"id": [number]}), namespace_client=namespace, table_id=["t"], mode="append")


def staged_files(lake: ty.Lake) -> list[Path]:
    return [path for path in Path(lake.root_uri).rglob("_tiltyard/staged/**/*") if path.is_file()]


def test_what_waits_is_settled_in_one_step_at_the_end(lake: ty.Lake) -> None:
    queue = SettleQueue(wait=3600.0)
    publish(lake, queue, 1, 2, 3)
    assert len(lake.catalog.pending()) == len(staged_files(lake)) == 3
    queue.close()
    assert not lake.catalog.pending()
    assert not staged_files(lake)
    assert lake.check().ok


def test_after_the_end_it_is_done_at_once(lake: ty.Lake) -> None:
    queue = SettleQueue(wait=3600.0)
    queue.close()
    queue.close()
    publish(lake, queue, 1)
    assert not lake.catalog.pending()


def test_a_reader_does_it_first_and_the_rest_does_no_harm(lake: ty.Lake) -> None:
    queue = SettleQueue(wait=3600.0)
    publish(lake, queue, 1, 2)
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]
    assert not lake.catalog.pending()
    publish(lake, queue, 3)
    queue.close()
    assert not lake.catalog.pending()
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]
    assert lake.check().ok


def test_a_server_that_dies_leaves_it_to_the_next(lake: ty.Lake) -> None:
    publish(lake, SettleQueue(wait=3600.0), 1, 2)  # a thread that ends with the process
    with ty.Lake.open(lake.root_uri, create=False) as other:
        assert not other.catalog.pending()
        assert sorted(other.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2]
        assert other.check().ok


# ---- what is flushed, and when ---------------------------------------------------------------------------------------------------


def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files and directories in the order in which they reach the disk."""
    paths: list[str] = []
    real = files.flush

    def flush(descriptor: int) -> None:
        real(descriptor)
        paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(files, "flush", flush)
    return paths


def final_names(lake: ty.Lake) -> list[Path]:
    """Where versions are that wait for their bookkeeping."""
    table = Path(lake.plain_access_of(lake.snapshot().cut.tables["t"]).lance_uri)
    return [table / pending.path for pending in lake.catalog.pending()]


def test_nothing_is_flushed_before_the_answer_but_the_catalog(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = SettleQueue(wait=3600.0)
    publish(lake, queue, 1)
    paths = flushed(monkeypatch)
    publish(lake, queue, 2, 3, 4)
    assert paths == []
    names = final_names(lake)
    assert [pending.bytes for pending in lake.catalog.pending()] == [name.read_bytes() for name in names]
    queue.close()
    below = [path for path in paths if "/_versions" in path]
    assert sorted(below) == sorted(map(str, {*names, names[0].parent}))  # each once
    assert not lake.catalog.pending()


def test_a_large_version_is_flushed_before_it_is_decided(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_staged, "MOST_KEPT", 0)
    queue = SettleQueue(wait=3600.0)
    paths = flushed(monkeypatch)
    publish(lake, queue, 1)
    (pending,) = lake.catalog.pending()
    assert [path.rpartition("/_tiltyard/")[2] for path in paths if path.endswith(".manifest")] == [pending.staged.partition("/")[2]]
    assert not pending.data
    queue.close()


@pytest.mark.parametrize("left", [None, 0, 0.5, "zeros", "holes"])
def test_a_power_loss_takes_no_version_whose_bytes_the_catalog_has(lake: ty.Lake, left: float | str | None) -> None:
    """Whatever it left of files that were not flushed: nothing, no name, a part, zeros."""
    publish(lake, SettleQueue(wait=3600.0), 1, 2, 3)
    for name, staged in zip(final_names(lake), staged_files(lake), strict=True):
        data = name.read_bytes()
        staged.unlink()
        name.unlink()  # a second name of the file that the client wrote
        if isinstance(left, float | int):
            name.write_bytes(data[: int(left * len(data))])
        elif left is not None:
            name.write_bytes(bytes(len(data)) if left == "zeros" else data[:512] + bytes(len(data) - 512))
    with ty.Lake.open(lake.root_uri, create=False) as other:
        assert not other.catalog.pending()
        assert sorted(other.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]
        assert other.check().ok
    assert sorted(lake.table("t").to_arrow()["id"].to_pylist()) == [0, 1, 2, 3]


def test_a_reader_that_settles_first_flushes_first(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(lake, SettleQueue(wait=3600.0), 1, 2)
    names, paths = final_names(lake), flushed(monkeypatch)
    assert lake.table("t").to_arrow().num_rows == 3
    assert not lake.catalog.pending()
    assert {*map(str, names), str(names[0].parent)} <= {*paths}


def test_a_flush_that_failed_is_no_flush_when_asked_again(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have dropped the bytes, so they are written anew."""
    queue = SettleQueue(wait=3600.0)
    publish(lake, queue, 1)
    (name,) = final_names(lake)
    before = name.stat().st_ino
    real = os.fsync

    def fails_once(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", real)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails_once)
    queue.close()
    assert name.stat().st_ino != before
    assert not lake.catalog.pending()
    assert lake.check().ok


def test_nor_is_it_for_a_reader_that_settles_first(lake: ty.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is the only sure copy until the bytes are on the disk, whoever had them flushed in vain."""
    publish(lake, SettleQueue(wait=3600.0), 1)
    (name,) = final_names(lake)
    before, real, asked = name.stat().st_ino, files.flush, list[str]()

    def fails_once(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if path == str(name):
            asked.append(path)
            if len(asked) == 1:
                raise files.FlushFailed(errno.EIO, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(files, "flush", fails_once)
    for _ in range(2):
        with ty.Lake.open(lake.root_uri, create=False) as other:
            assert sorted(other.table("t").to_arrow()["id"].to_pylist()) == [0, 1]
    assert asked
    assert not lake.catalog.pending()
    assert name.stat().st_ino != before, "the bytes that were not flushed are still the only ones"


@pytest.mark.parametrize("how", ["restore", "rebuild"])
@pytest.mark.parametrize("staged", [True, False], ids=["staged there", "staged gone"])
@pytest.mark.parametrize("left", [None, 0, 0.5, "zeros"])
def test_a_power_loss_that_takes_the_catalog_as_well(
    lake: ty.Lake, tmp_path: Path, left: float | str | None, staged: bool, how: str
) -> None:
    """A backup has the bytes; without one the version is gone, and the table goes on."""
    publish(lake, SettleQueue(wait=3600.0), 1)
    (name,), (waiting,) = final_names(lake), staged_files(lake)
    lake.backup(tmp_path / "backup")
    data = name.read_bytes()
    rest = b"" if left is None else bytes(len(data)) if left == "zeros" else data[: int(float(left) * len(data))]
    for path, there in ((name, left is not None), (waiting, staged)):
        path.unlink()
        if there:
            path.write_bytes(rest)
    lake.close()
    for path in Path(lake.root_uri).glob("catalog.db*"):
        path.unlink()
    done = ty.Lake.restore(lake.root_uri, tmp_path / "backup") if how == "restore" else ty.Lake.rebuild(lake.root_uri)
    with ty.Lake.open(lake.root_uri, create=False) as other:
        found = sorted(other.table("t").to_arrow()["id"].to_pylist())
        assert found == ([0, 1] if how == "restore" else [0])
        assert bool(done.unknown) is (how == "rebuild" and left is not None)
        other.table("t").append(pa.table({"id": [2]}))
        assert sorted(other.table("t").to_arrow()["id"].to_pylist()) == [*found, 2]
        assert other.check().ok


def test_whoever_comes_late_makes_no_removed_version_again(lake: ty.Lake) -> None:
    queue = SettleQueue(wait=3600.0)
    publish(lake, queue, 1)
    (pending,), (name,) = lake.catalog.pending(), final_names(lake)
    store = lake.plain_access_of(lake.snapshot().cut.tables["t"]).store
    queue.close()
    name.unlink()  # a cleanup
    assert finalize(store, claim_of(pending), True, lambda: bool(lake.catalog.pending())) is None
    assert not name.exists()


def test_a_foreign_version_under_the_name_is_not_taken_for_a_torn_one(lake: ty.Lake) -> None:
    publish(lake, SettleQueue(wait=3600.0), 1)
    (name,) = final_names(lake)
    ours = name.read_bytes()
    name.unlink()
    stock = lance.dataset(str(name.parent.parent))
    lance.write_dataset(pa.table({"id": [7]}), stock, mode="append")
    theirs = name.read_bytes()
    assert not is_torn(theirs, ours)
    with ty.Lake.open(lake.root_uri, create=False) as other:
        assert sorted(other.table("t").to_arrow()["id"].to_pylist()) == [0, 7]
    assert name.read_bytes() == theirs


def test_bytes_come_from_nobody_who_is_far_away() -> None:
    publication = Publication("a", (), data="YWJj")
    assert publication_from_body(publication_to_body(publication)).data == ""

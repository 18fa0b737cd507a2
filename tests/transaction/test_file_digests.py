"""Digests of new files: noted by whoever has the bytes, read back in parts otherwise; and what a committer adds to each transaction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tiltyard as ty
from tests.support.commits import place_at, rows
from tiltyard.errors import StorageError
from tiltyard.format.digests import Digest, digest
from tiltyard.storage.memory import MemoryStore
from tiltyard.transaction import new_files
from tiltyard.transaction.new_files import FileDigests, at_once, digest_of
from tiltyard.transaction.transaction import Transaction

BYTES = b"the bytes of a file that is read in parts"


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for path in ("data/a.lance", "data/a/1.blob", "_indices/x/one", "_indices/x/two"):
        store.put(path, path.encode())
    return store


@pytest.mark.parametrize("part", [1, 7, len(BYTES), len(BYTES) + 1])
def test_parts_come_to_the_digest_of_the_whole(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_files, "_REMOTE_PART", part)
    monkeypatch.setattr(new_files, "_LOCAL_PART", part)
    store = MemoryStore()
    store.put("data/file", BYTES)
    assert digest_of(store, "data/file") == digest(BYTES)


@pytest.mark.parametrize("count", [0, 2, 3, 20])
def test_work_at_once_keeps_the_order(count: int) -> None:
    assert list(at_once(lambda number: number * 2, range(count))) == [number * 2 for number in range(count)]


def test_a_failure_ends_the_work() -> None:
    def fail(number: int) -> int:
        if number == 3:
            raise StorageError("the store failed")
        return number

    with pytest.raises(StorageError):
        list(at_once(fail, range(8)))


def test_directories_and_blobs_are_looked_into(store: MemoryStore) -> None:
    digests = FileDigests(store)
    found = digests.of(["data/a.lance", "_indices/x/", "_transactions/t"], blobs=True)
    assert set(found) == {"data/a.lance", "data/a/1.blob", "_indices/x/one", "_indices/x/two"}, "what is not there is left out"
    assert found == {path: digest(path.encode()) for path in found}
    assert set(digests.of(["data/a.lance"], blobs=False)) == {"data/a.lance"}


def test_what_is_noted_is_not_read(store: MemoryStore) -> None:
    digests = FileDigests(store)
    digests.note("data/a.lance", b"other bytes")
    assert digests.of(["data/a.lance"], blobs=False) == {"data/a.lance": digest(b"other bytes")}


def test_only_so_many_are_kept(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_files, "_MOST_NOTED", 2)
    digests = FileDigests(store)
    digests.remember({name: Digest(1, name) for name in "abc"})
    assert set(digests.noted("abc")) == {"b", "c"}


def test_a_committer_stamps_every_transaction(tmp_path: Path) -> None:
    def stamp(mine: Transaction) -> Transaction:
        return replace(mine, properties={**mine.properties, "stamped": "yes"})

    access = replace(place_at(tmp_path / "t"), stamp=stamp)
    table = ty.Table._create(access, rows(1))
    table.append(rows(2))
    assert [entry.properties["stamped"] for entry in table.history()] == ["yes", "yes"]

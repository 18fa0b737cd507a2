"""Versions as they lie in a store: the latest, each one, and the transaction that made it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.commits import append, fragment, memory_table, plant
from tiltyard import ops
from tiltyard.errors import CorruptTable, NotFound, UnsupportedFeature
from tiltyard.format import lance_pb2, manifest_file
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import CountingStore
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.transaction import CommitMarks, Heading, Transaction

APPEND = ops.Append((fragment("more"),))


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    memory_table(made)
    plant(made, APPEND)
    plant(made, ops.ReserveFragments(2))
    return made


def test_head_and_versions(store: MemoryStore) -> None:
    log = VersionLog(store)
    assert log.head() == (3, Scheme.V2)
    assert [name.version for name in log.versions()] == [1, 2, 3]
    assert [one.transaction.operation.name for one in log.transactions(1, 3, Scheme.V2)] == ["Overwrite", "Append", "ReserveFragments"]


def test_where_there_is_no_table() -> None:
    log = VersionLog(MemoryStore())
    assert log.head() is None
    assert log.versions() == []


class Strict(MemoryStore):
    """A store that has no empty directories and says so."""

    def names(self, prefix: str) -> Iterator[str]:
        found = list(super().names(prefix))
        if not found:
            raise NotFound(f"no {prefix}")
        return iter(found)


def test_a_store_that_knows_no_empty_directory() -> None:
    log = VersionLog(Strict())
    assert log.head() is None
    assert log.versions() == []


def test_the_inline_copy_is_read_first(store: MemoryStore) -> None:
    """As stock writers do: with different copies, the one inside the manifest counts."""
    log = VersionLog(store)
    file = log.load(2, Scheme.V2)
    store.put("_transactions/" + file.manifest.transaction_file, log.committed(3, Scheme.V2).file.transaction or b"")
    assert log.committed(2, Scheme.V2).transaction.operation == APPEND


def _without_inline(store: MemoryStore, name: str) -> None:
    log = VersionLog(store)
    file = log.load(2, Scheme.V2)
    store.put(manifest_path(2, Scheme.V2), encode_manifest_file(replace(file.manifest, transaction_file=name), None)[0])


def test_the_file_is_read_where_there_is_no_inline_copy(store: MemoryStore) -> None:
    name = VersionLog(store).load(2, Scheme.V2).manifest.transaction_file
    _without_inline(store, name)
    assert VersionLog(store).committed(2, Scheme.V2).transaction.operation == APPEND
    store.delete("_transactions/" + name)
    with pytest.raises(NotFound):
        VersionLog(store).committed(2, Scheme.V2)
    _without_inline(store, "")
    with pytest.raises(NotFound, match="names no transaction"):
        VersionLog(store).committed(2, Scheme.V2)


@pytest.mark.parametrize("name", ["../1.txn", "a/b.txn", "..", ".hidden", "a\\b.txn", "a\0b.txn"])
def test_a_transaction_file_that_lies_elsewhere_is_not_read(store: MemoryStore, name: str) -> None:
    _without_inline(store, name)
    counting = CountingStore(store)
    with pytest.raises(CorruptTable):
        VersionLog(counting).committed(2, Scheme.V2)
    assert [path for method, path in counting.log if method == "get"] == [manifest_path(2, Scheme.V2)]


def test_what_cannot_be_read_is_said(store: MemoryStore) -> None:
    log = VersionLog(store)
    with pytest.raises(NotFound):
        log.load(9, Scheme.V2)
    with pytest.raises(NotFound):
        log.load(2, Scheme.V1)
    plant(store, APPEND, reader_flags=1 << 40)
    with pytest.raises(UnsupportedFeature):
        log.load(4, Scheme.V2)
    plant_as_4 = manifest_path(4, Scheme.V2)
    store.put(plant_as_4, store.get(manifest_path(3, Scheme.V2)))
    with pytest.raises(CorruptTable, match="content 3"):
        log.load(4, Scheme.V2)


def test_a_winner_is_told_with_what_it_said(store: MemoryStore) -> None:
    winner = VersionLog(store).committed(2, Scheme.V2).as_winner()
    assert (winner.version, winner.operation, winner.writer, winner.message) == (2, "Append", "stranger 9.9", "planted Append")
    assert str(winner) == "version 2 (Append by stranger 9.9)"


def test_a_writer_without_a_name(store: MemoryStore) -> None:
    plant(store, APPEND, writer=None)
    assert VersionLog(store).committed(4, Scheme.V2).as_winner().writer == ""


def test_a_damaged_inline_transaction_is_not_made_up_for_by_the_file(store: MemoryStore) -> None:
    plant(store, APPEND, raw=b"\xff\xff\xff")
    with pytest.raises(CorruptTable):
        VersionLog(store).committed(4, Scheme.V2)


def test_a_version_that_was_not_looked_at_takes_the_place_of_nothing_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_file, "decode_extension", lambda *_: None)  # which looks at what was added
    store = MemoryStore()
    table = memory_table(store)
    for number in range(3):
        table.commit(append(f"f{number}"))
    log = VersionLog(store)
    first = log.load(1, table._scheme)
    later = log.load(2, table._scheme, lazily=True)
    assert [first.manifest.fragments.checked, later.manifest.fragments.checked] == [True, False]
    assert log._last is first
    log.remember(later)
    assert log._last is first
    assert [fragment.files[0].path for fragment in later.manifest.fragments][-1] == "f0.lance"
    assert later.manifest.fragments.checked
    log.remember(later)
    assert log._last is later


def test_the_version_read_last() -> None:
    store = MemoryStore()
    table = memory_table(store)
    table.commit(append("f"))
    log = VersionLog(store)
    assert log.last_read(2) is None
    file = log.load(2, table._scheme)
    assert log.last_read(2) is file
    assert log.last_read(1) is None


def test_headings_of_transactions() -> None:
    store = MemoryStore()
    table = memory_table(store)
    table.commit(append("f"), message="said")
    log = VersionLog(store)
    file = log.load(2, table._scheme)
    transaction = log.transaction_of(file)
    for found in (log.heading_of(file), log.heading_of(replace(file, transaction=None))):
        assert (found.uuid, found.properties["__lance_commit_message"]) == (transaction.uuid, "said")
    with pytest.raises(CorruptTable, match="cannot be a transaction id"):
        Heading.from_bytes(lance_pb2.Transaction(uuid="../x").SerializeToString(), "here")
    with pytest.raises(CorruptTable):
        Heading.from_bytes(b"\xff", "here")


def test_marks_of_a_writer() -> None:
    marks = CommitMarks({"lake": "x"}, "own", {"made": "here"})
    made = marks(Transaction(0, "abc", ops.Overwrite()))
    assert dict(made.properties) == {"lake": "x", "own": "abc"}
    assert isinstance(made.operation, ops.Overwrite)
    assert made.operation.config_upsert_values == {"made": "here"}
    later = Transaction(1, "abc", ops.Overwrite(), {"lake": "another", "mine": "1"})
    assert dict(marks(later).properties) == {"lake": "x", "own": "abc", "mine": "1"}
    assert marks(later).operation == later.operation

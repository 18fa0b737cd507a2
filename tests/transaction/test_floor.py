"""The floor below which versions may be gone: who reads it, and what a commit makes of it. In memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from uuid import UUID

import pytest

import tiltyard as ty
from tests.support.commits import (
    InterruptedStore,
    append,
    is_version,
    last_id,
    memory_place,
    memory_table,
    noted_runtime,
    plant,
    reopened,
)
from tiltyard import ops
from tiltyard.errors import HistoryUnavailable
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import WrapperStore
from tiltyard.transaction.head import FLOORS, Floor, FloorRecord, HeadCheck, owner_of, read_floor, read_records
from tiltyard.transaction.log import VersionLog

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Directory(WrapperStore):
    """Lists in no order."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.ordered = False


def _record(store: ObjectStore, version: int, refused: int = 0, removed: Mapping[int, str] | None = None, number: int = 1) -> str:
    record = FloorRecord(Floor(version, refused), dict(removed or {}), ((version, WHEN),), ((refused, WHEN),), ("data/a.lance",))
    path = record.path(str(UUID(int=number)))
    store.put(path, record.to_bytes())
    return path


def _looks(store: ObjectStore) -> HeadCheck:
    return HeadCheck(VersionLog(store), noted_runtime())


def test_the_floor_is_the_highest_of_all_records() -> None:
    store = MemoryStore()
    assert read_floor(store) == Floor(0, 0)
    _record(store, 5, 4)
    _record(store, 9, 2, number=2)
    store.put(FLOORS + "else.json", b"")
    assert read_floor(store) == Floor(9, 4)


def test_a_record_is_read_as_it_was_written() -> None:
    store = MemoryStore()
    path = _record(store, 5, 4, {3: "a"})
    store.put(FLOORS + "else.json", b"")
    assert read_records(store) == {path: FloorRecord(Floor(5, 4), {3: "a"}, ((5, WHEN),), ((4, WHEN),), ("data/a.lance",))}


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"removed":{"x":"y"},"versions":[],"refusals":[],"files":[]}', b'{"removed":3}'])
def test_of_a_damaged_record_its_name_counts(damage: bytes) -> None:
    store = MemoryStore()
    path = _record(store, 5, 4)
    store.put(path, damage)
    assert read_floor(store) == Floor(5, 4)
    assert read_records(store) == {path: FloorRecord(Floor(5, 4))}


def test_a_record_that_goes_while_it_is_read_is_none() -> None:
    inner = MemoryStore()
    path = _record(inner, 5)
    store = InterruptedStore(inner, lambda method, _: method == "get", lambda: inner.delete(path))
    assert read_records(store) == {}


def test_who_had_a_number_is_known_if_records_agree() -> None:
    store = MemoryStore()
    _record(store, 5, removed={3: "a", 4: "b"})
    _record(store, 6, removed={3: "a", 4: "c"}, number=2)
    assert [owner_of(store, version) for version in (2, 3, 4)] == [None, "a", None]


# ---- before a create -----------------------------------------------------------------------------------------------------------


def _versions(store: ObjectStore, count: int) -> None:
    memory_table(store)
    for number in range(2, count + 1):
        plant(store, append(f"v{number}"))


def test_a_transaction_that_read_what_is_long_gone_is_refused() -> None:
    store = MemoryStore()
    _versions(store, 4)
    early = ty.Table._open(memory_place(store), version=2)
    _record(store, 3, 2)
    assert early.commit(append("fine")).version == 5, "only what read a version below 2 is refused"
    late = ty.Table._open(memory_place(store), version=1)
    with pytest.raises(HistoryUnavailable, match="cleaned up") as caught:
        late.commit(append("late"))
    assert (caught.value.missing, caught.value.head) == ((1,), 5)
    assert not any(last_id(late) in name for name in store.names("_transactions/"))


def test_a_record_of_a_table_that_is_no_more_refuses_nobody() -> None:
    store = MemoryStore()
    _versions(store, 2)
    _record(store, 9, 9)
    assert reopened(store).commit(append()).version == 3


def test_a_restore_of_a_version_that_goes_before_it_is_announced_is_refused() -> None:
    store = MemoryStore()
    _versions(store, 3)

    def announces(method: str, path: str) -> bool:
        return method == "put" and path.startswith("_transactions/")

    gone = manifest_path(1, Scheme.V2)
    table = ty.Table._open(memory_place(InterruptedStore(store, announces, lambda: store.delete(gone))))
    with pytest.raises(HistoryUnavailable, match="Restore needs it") as caught:
        table.commit(ops.Restore(1))
    assert caught.value.missing == (1,)
    assert reopened(store).commit(ops.Restore(2)).version == 4


# ---- after it ----------------------------------------------------------------------------------------------------------------


def test_below_the_floor_nobody_trusts_a_hint() -> None:
    inner = MemoryStore()
    store = Directory(inner)
    memory_table(store)
    assert _looks(store).is_newest(1, Scheme.V2)
    assert not _looks(store)._may_be_late(2, Scheme.V2)
    _record(store, 3)
    assert not _looks(store).is_newest(1, Scheme.V2)
    assert _looks(store)._may_be_late(2, Scheme.V2)
    assert not _looks(store)._may_be_late(3, Scheme.V2) or _looks(store)._is_gone(2, Scheme.V2)


@pytest.mark.parametrize("whose", ["theirs", "ours"])
def test_a_record_says_whether_a_number_was_taken_before(whose: str) -> None:
    """Version 3 is a stock writer's and does not say on what it stands; the record of the cleanup does."""
    store = MemoryStore()

    def others() -> None:
        theirs = plant(store, append("theirs"))
        plant(store, ops.Restore(1))
        store.delete(manifest_path(2, Scheme.V2))
        _record(store, 3, removed={2: theirs.uuid if whose == "theirs" else last_id(table)})

    memory_table(store)
    table = ty.Table._open(memory_place(InterruptedStore(store, is_version, others)))
    if whose == "ours":
        assert table.commit(append()).version == 2, "it was in time, and cleaned up since"
        return
    with pytest.raises(HistoryUnavailable):
        table.commit(append())
    assert [one.version for one in VersionLog(store).versions()] == [1, 3]

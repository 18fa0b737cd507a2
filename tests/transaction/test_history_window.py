"""The versions between a commit's read version and the head: all of them are read, or the commit is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

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
    overwrite,
    plant,
    reopened,
    version_count,
)
from tiltyard import ops
from tiltyard.errors import (
    HistoryUnavailable,
)
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.values import DataFormat
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.transaction.apply.next_manifest import Creation
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.explain import ATTEMPTS

# ---- history that cannot be read --------------------------------------------------------------------------------------------


def _delete(store: ObjectStore, version: int) -> None:
    store.delete(manifest_path(version, Scheme.V2))


def _flip(store: ObjectStore, version: int) -> None:
    path = manifest_path(version, Scheme.V2)
    data = bytearray(store.get(path))
    data[-20] ^= 0xFF
    data[-1] ^= 0xFF
    store.put(path, bytes(data))


def _empty(store: ObjectStore, version: int) -> None:
    store.put(manifest_path(version, Scheme.V2), b"")


def _strip(store: ObjectStore, version: int) -> None:
    log = VersionLog(store)
    file = log.load(version, Scheme.V2)
    data, _ = encode_manifest_file(replace(file.manifest, transaction_file=""), None)
    store.put(manifest_path(version, Scheme.V2), data)


def _strip_inline_and_lose_the_file(store: ObjectStore, version: int) -> None:
    log = VersionLog(store)
    file = log.load(version, Scheme.V2)
    data, _ = encode_manifest_file(file.manifest, None)
    store.put(manifest_path(version, Scheme.V2), data)
    store.delete("_transactions/" + file.manifest.transaction_file)


Damage = Callable[[ObjectStore, int], None]


def _files(store: MemoryStore) -> set[str]:
    """All that is there but for records of failed attempts, which are told of elsewhere."""
    return {info.path for info in store.list("") if not info.path.startswith(ATTEMPTS)}


@pytest.mark.parametrize("damage", [_delete, _flip, _empty, _strip, _strip_inline_and_lose_the_file])
@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("mine", [append(), overwrite()], ids=lambda one: one.name)
def test_any_version_in_the_window_that_cannot_be_read_refuses_the_commit(mine: ops.Operation, version: int, damage: Damage) -> None:
    store = MemoryStore()
    table = memory_table(store)
    for number in range(3 if damage is not _delete else 4):
        plant(store, append(f"theirs{number}"))
    damage(store, version)
    head = 4 if damage is not _delete else 5
    before = _files(store)
    with pytest.raises(HistoryUnavailable) as caught:
        table.commit(mine)
    error = caught.value
    assert (error.read_version, error.missing, error.head) == (1, (version,), head)
    assert error.retryable
    assert len(str(error)) < 300
    assert json.dumps(error.to_dict())
    assert _files(store) == before


def test_a_lost_race_against_a_commit_without_a_transaction_is_refused_not_unknown() -> None:
    store = MemoryStore()
    memory_table(store)
    table = reopened(InterruptedStore(store, is_version, lambda: plant(store, append("theirs"), inline=False, file=False)))
    with pytest.raises(HistoryUnavailable) as caught:
        table.commit(append())
    assert caught.value.missing == (2,)
    assert not any(last_id(table) in name for name in store.names("_transactions/"))


def test_a_commit_whose_transaction_is_only_in_its_file_is_met_all_the_same() -> None:
    store = MemoryStore()
    memory_table(store)
    table = reopened(InterruptedStore(store, is_version, lambda: plant(store, append("theirs"), inline=False)))
    assert table.commit(append()).version == 3


def _cut_back(store: ObjectStore) -> None:
    _delete(store, 2)
    _delete(store, 3)


def _made_again(versions: int) -> Callable[[MemoryStore], None]:
    def again(store: MemoryStore) -> None:
        for info in list(store.list("")):
            store.delete(info.path)
        memory_table(store, runtime=noted_runtime(99))
        for number in range(versions - 1):
            plant(store, append(f"new{number}"))

    return again


def _gone(store: MemoryStore) -> None:
    for info in list(store.list("")):
        store.delete(info.path)


@pytest.mark.parametrize("fate", [_cut_back, _made_again(1), _made_again(3), _made_again(5), _gone])
@pytest.mark.parametrize("mine", [append(), overwrite()], ids=lambda one: one.name)
def test_a_table_that_was_replaced_under_the_handle(mine: ops.Operation, fate: Callable[[MemoryStore], None]) -> None:
    """Whatever number the new table is at: building on the old one would undo the new one."""
    store = MemoryStore()
    memory_table(store)
    plant(store, append("two"))
    plant(store, append("three"))
    table = reopened(store)
    fate(store)
    before = _files(store)
    with pytest.raises(HistoryUnavailable) as caught:
        table.commit(mine)
    assert caught.value.read_version == 3
    assert _files(store) == before


def test_a_read_version_that_is_gone() -> None:
    store = MemoryStore()
    table = memory_table(store)
    with pytest.raises(HistoryUnavailable) as caught:
        table.commit(append(), read_version=7)
    assert caught.value.missing == (7,)


def test_names_that_were_migrated_under_the_handle() -> None:
    store = MemoryStore()
    place = memory_place(store)
    transaction = Transaction(0, place.runtime.random.uuid(), overwrite("first"))
    _, file = place.committer.create_table(transaction, Creation(DataFormat()), Scheme.V1)
    old = ty.Table(place, file, Scheme.V1)
    assert reopened(store).maintenance.migrate_manifest_names() == 1
    assert old.commit(append()).version == 2
    assert {name.scheme for name in VersionLog(store).versions()} == {Scheme.V2}


# ---- our own transaction, met again -----------------------------------------------------------------------------------------


def test_a_transaction_that_is_committed_already_is_not_committed_twice() -> None:
    store = MemoryStore()
    table = memory_table(store)
    late = reopened(store)
    transaction = Transaction(1, "11111111-2222-4333-8444-555555555555", append())
    first = table.commit(transaction)
    plant(store, append("theirs"))
    again = late.commit(transaction)
    assert (again.version, again.transaction_id) == (first.version, first.transaction_id)
    assert late.version == 2
    assert version_count(store) == 3


def test_the_same_transaction_from_two_writers_at_once() -> None:
    store = MemoryStore()
    memory_table(store)
    transaction = Transaction(1, "11111111-2222-4333-8444-555555555555", append())
    table = reopened(InterruptedStore(store, is_version, lambda: reopened(store).commit(transaction)))
    assert table.commit(transaction).version == 2
    assert version_count(store) == 2

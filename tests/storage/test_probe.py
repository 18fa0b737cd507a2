from __future__ import annotations

import json
import logging

import pytest

from tests.support.servers import S3Server
from tiltyard.errors import StorageError, UnsafeStore
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.storage import LocalStore, MemoryStore, ensure_safe, open_store
from tiltyard.storage.probe import NOTE, forget
from tiltyard.testing import CountingStore, Fault, FaultStore, ManualClock, SeededRandomness, WrapperStore, manual_runtime

pytestmark = pytest.mark.usefixtures("nothing_known_of_stores")


class Unproven(WrapperStore):
    """A good store of which nothing is known."""

    conditional_put_known = False


class Overwriting(Unproven):
    def put_if_absent(self, path: str, data: bytes) -> None:
        self.inner.put(path, data)


class Pretending(Unproven):
    """Says that the object exists, and has overwritten it all the same."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        try:
            self.inner.put_if_absent(path, data)
        finally:
            self.inner.put(path, data)


@pytest.mark.parametrize("kind", [Overwriting, Pretending])
def test_a_store_that_overwrites_is_refused_every_time(kind: type[Unproven]) -> None:
    store = kind(MemoryStore())
    for _ in range(2):
        with pytest.raises(UnsafeStore, match="overwrites") as caught:
            ensure_safe(store, manual_runtime())
        assert caught.value.store == store.uri
    assert list(store.list("")) == []


def test_a_server_that_ignores_the_precondition_is_refused(forgetful_server: S3Server, fresh_s3_uri: str) -> None:
    store = open_store(fresh_s3_uri, storage_options=forgetful_server.storage_options)
    store.put_if_absent("x", b"1")
    store.put_if_absent("x", b"2")
    assert store.get("x") == b"2", "the control is no control: this server honours preconditions"
    store.delete("x")
    with pytest.raises(UnsafeStore, match="overwrites"):
        ensure_safe(store)
    assert list(store.list("")) == []


def test_a_server_that_honours_it_passes_and_is_left_clean(seaweedfs_server: S3Server, fresh_s3_uri: str) -> None:
    store = open_store(fresh_s3_uri, storage_options=seaweedfs_server.storage_options)
    ensure_safe(store)
    assert [info.path for info in store.list("")] == [NOTE]


def test_two_servers_with_one_bucket_name_are_two_stores(seaweedfs_server: S3Server, forgetful_server: S3Server, fresh_s3_uri: str) -> None:
    ensure_safe(open_store(fresh_s3_uri, storage_options=seaweedfs_server.storage_options))
    with pytest.raises(UnsafeStore):
        ensure_safe(open_store(fresh_s3_uri, storage_options=forgetful_server.storage_options))


def test_stores_safe_by_construction_cost_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    for inner in (LocalStore(tmp_path_factory.mktemp("root")), MemoryStore()):
        store = CountingStore(inner)
        ensure_safe(store)
        assert store.total == 0


def test_a_store_is_tried_once_a_process() -> None:
    store = CountingStore(Unproven(MemoryStore()))
    ensure_safe(store)
    tried = store.total
    assert tried > 0
    ensure_safe(store)
    assert store.total == tried


class TestTheNote:
    def again(self, inner: ObjectStore, runtime: Runtime) -> int:
        """How many objects another process writes before it trusts the store."""
        forget()
        store = CountingStore(Unproven(inner))
        ensure_safe(store, runtime)
        return store.calls["put_if_absent"]

    def test_it_spares_the_next_process_the_trial(self) -> None:
        inner = MemoryStore("memory://noted")
        assert self.again(inner, manual_runtime()) == 2
        assert self.again(inner, manual_runtime()) == 0

    def test_it_is_not_believed_for_ever(self) -> None:
        inner, clock = MemoryStore("memory://noted"), ManualClock()
        runtime = Runtime(clock, SeededRandomness(1))
        assert self.again(inner, runtime) == 2
        clock.advance(29 * 86400)
        assert self.again(inner, runtime) == 0
        clock.advance(2 * 86400)
        assert self.again(inner, runtime) == 2

    def test_it_means_nothing_elsewhere(self) -> None:
        inner, elsewhere = MemoryStore("memory://noted"), MemoryStore("memory://copied-to")
        self.again(inner, manual_runtime())
        elsewhere.put(NOTE, inner.get(NOTE))
        assert self.again(elsewhere, manual_runtime()) == 2

    @pytest.mark.parametrize("note", [b"", b"\xff", b"[]", b"{}", b'{"location": 1, "at": 2}', b'{"location": "x", "at": "x"}'])
    def test_a_broken_one_is_replaced(self, note: bytes) -> None:
        inner = MemoryStore("memory://noted")
        inner.put(NOTE, note)
        assert self.again(inner, manual_runtime()) == 2
        assert json.loads(inner.get(NOTE))["safe"] is True

    def test_it_does_not_tell_where_the_table_is(self) -> None:
        inner = MemoryStore("memory://a-private-place")
        self.again(inner, manual_runtime())
        assert b"private" not in inner.get(NOTE)


def test_a_lost_answer_to_the_first_create_is_no_crime() -> None:
    store = FaultStore(Unproven(MemoryStore()), Fault.OWN_PRECONDITION, 1)
    ensure_safe(store, manual_runtime())
    assert store.fired


def test_an_error_is_passed_on_and_decides_nothing() -> None:
    inner = Unproven(MemoryStore())
    with pytest.raises(StorageError):
        ensure_safe(FaultStore(inner, Fault.TIMEOUT_AFTER, 1), manual_runtime())
    counted = CountingStore(inner)
    ensure_safe(counted, manual_runtime())
    assert counted.calls["put_if_absent"] == 2


def test_a_bucket_that_forbids_deletion_can_be_used(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultStore(Unproven(MemoryStore()), Fault.ERROR_BEFORE, 1, match=lambda method, path: method == "delete")
    with caplog.at_level(logging.WARNING):
        ensure_safe(store, manual_runtime())
    assert "could not be deleted" in caplog.text

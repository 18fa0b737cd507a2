"""How the answers of a cloud store become our errors, and that none of them gives a secret away."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from itertools import product

import obstore
import pytest
from obstore.store import MemoryStore as ObstoreMemory

from tests.storage.scripted_http import Answer, Scripted, scripted_http
from tests.support.servers import S3Server, free_ports
from tiltyard.errors import AlreadyExists, NotFound, StorageError, TiltyardError, UnsafeStore, UnsupportedFeature
from tiltyard.interfaces import ObjectStore
from tiltyard.storage import CloudStore, ensure_safe, open_store
from tiltyard.storage.cloud import BucketPath
from tiltyard.testing import ObjectStoreTests

SECRETS = ("AKIAPLANTEDKEY", "planted-secret-key", "planted-session-token", "planted-user", "planted-password")


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted_http() as scripted:
        yield scripted


def opened(endpoint: str, retries: int = 0, **more: str) -> ObjectStore:
    options = {
        "aws_endpoint": endpoint,
        "allow_http": "true",
        "aws_access_key_id": SECRETS[0],
        "aws_secret_access_key": SECRETS[1],
        "aws_session_token": SECRETS[2],
        "region": "us-east-1",
        "client_max_retries": str(retries),
        "client_retry_timeout": "5",
        **more,
    }
    return open_store("s3://bucket/t", storage_options=options)


def writes(store: ObjectStore) -> tuple[Callable[[], object], ...]:
    return (lambda: store.put("x", b"1"), lambda: store.put_if_absent("x", b"1"))


def unanswered(server: Scripted, number: int) -> StorageError:
    """What a write says whose request arrived and was not answered. On a busy machine the time may run out before it arrives."""
    for milliseconds in (200, 2_000, 20_000):
        server.answer_with("silence", "silence")  # one too many: a request of the round before may come late
        with pytest.raises(StorageError) as caught:
            writes(opened(server.endpoint, timeout=f"{milliseconds}ms"))[number]()
        if server.requests:
            return caught.value
    pytest.fail("no request ever arrived")


class TestWritesThatFail:
    @pytest.mark.parametrize(
        ("answers", "maybe_applied", "transient"),
        [
            ((500,), True, True),
            ((503,), True, True),
            (("drop",), True, True),
            ((400,), False, False),
            ((403,), False, False),
            ((401,), False, False),
            ((429,), False, True),
        ],
    )
    def test_what_is_known_afterwards(self, server: Scripted, answers: tuple[Answer, ...], maybe_applied: bool, transient: bool) -> None:
        store = opened(server.endpoint)
        for write in writes(store):
            server.answer_with(*answers)
            with pytest.raises(StorageError) as caught:
                write()
            assert (caught.value.maybe_applied, caught.value.transient) == (maybe_applied, transient)
            assert caught.value.name == "x"
            assert len(server.requests) == 1

    def test_silence_leaves_the_outcome_open(self, server: Scripted) -> None:
        for number in range(2):
            error = unanswered(server, number)
            assert error.maybe_applied
            assert error.transient

    def test_a_server_that_is_not_there_did_nothing(self) -> None:
        store = opened(f"http://127.0.0.1:{free_ports(1)[0]}")
        for write in writes(store):
            with pytest.raises(StorageError) as caught:
                write()
            assert not caught.value.maybe_applied
            assert caught.value.transient

    def test_a_refusal_after_a_retry_proves_nothing(self, server: Scripted) -> None:
        """The first try may have been carried out before it failed."""
        server.answer_with(500, 403)
        with pytest.raises(StorageError) as caught:
            opened(server.endpoint, retries=1).put_if_absent("x", b"1")
        assert caught.value.maybe_applied
        assert len(server.requests) == 2

    def test_a_retry_that_meets_its_own_object_is_told_that_it_exists(self, server: Scripted) -> None:
        server.answer_with(500, 412)
        with pytest.raises(AlreadyExists):
            opened(server.endpoint, retries=1).put_if_absent("x", b"1")

    @pytest.mark.parametrize("status", [409, 412])
    def test_a_conflict_means_that_the_name_is_taken(self, server: Scripted, status: int) -> None:
        server.answer_with(status)
        with pytest.raises(AlreadyExists):
            opened(server.endpoint).put_if_absent("x", b"1")

    def test_a_missing_bucket_is_not_found(self, server: Scripted) -> None:
        server.answer_with(404)
        with pytest.raises(NotFound, match="bucket"):
            opened(server.endpoint).put("x", b"1")

    def test_a_store_that_cannot_create_conditionally_is_unsafe(self, server: Scripted, nothing_known_of_stores: None) -> None:
        store = opened(server.endpoint)
        server.answer_with(501)
        with pytest.raises(UnsupportedFeature):
            store.put_if_absent("x", b"1")
        server.answer_with(404, 501, 204)
        with pytest.raises(UnsafeStore, match="only if it is absent"):
            ensure_safe(store)


class TestReadsThatFail:
    def test_a_failed_read_has_applied_nothing(self, server: Scripted) -> None:
        store = opened(server.endpoint)
        reads: tuple[Callable[[], object], ...] = (
            lambda: store.get("x"),
            lambda: store.head("x"),
            lambda: list(store.list("")),
            lambda: list(store.names("d/")),
        )
        for read in reads:
            server.answer_with(503)
            with pytest.raises(StorageError) as caught:
                read()
            assert (caught.value.maybe_applied, caught.value.transient) == (False, True)

    def test_a_failed_range_is_not_taken_for_an_empty_one(self, server: Scripted) -> None:
        server.answer_with(503, 503)
        with pytest.raises(StorageError):
            opened(server.endpoint).get_range("x", 5, 5)


def test_no_secret_is_ever_shown(server: Scripted, caplog: pytest.LogCaptureFixture, nothing_known_of_stores: None) -> None:
    """Planted in options, in the endpoint and in what the server says; looked for in everything a user or a file may see."""
    caplog.set_level(logging.DEBUG)
    endpoint = server.endpoint.replace("://", f"://{SECRETS[3]}:{SECRETS[4]}@")
    store = opened(endpoint)
    server.body = f"<Error><Message>{' '.join(SECRETS)} ?token={SECRETS[2]}</Message></Error>".encode()
    assert isinstance(store, CloudStore)
    shown = [repr(store), str(store), store.uri, store.location]
    calls: tuple[Callable[[], object], ...] = (
        *writes(store),
        lambda: store.get("x"),
        lambda: store.get_range("x", -5, 5),
        lambda: store.head("x"),
        lambda: store.delete("x"),
        lambda: list(store.list("")),
        lambda: list(store.names("")),
        lambda: store.rename_if_absent("x", "y"),
        lambda: ensure_safe(store),
    )
    statuses: tuple[Answer, ...] = (400, 403, 404, 412, 500, 501, "drop")
    attached: list[BaseException | None] = []
    for call, status in product(calls, statuses):
        server.answer_with(*[status] * 6)
        try:
            call()
        except TiltyardError as error:
            shown += [repr(error), str(error), repr(error.to_dict()), "".join(traceback.format_exception(error))]
            attached += [error.__cause__, error.__context__]
    assert all(error is None or isinstance(error, TiltyardError) for error in attached)
    shown += [record.getMessage() for record in caplog.records]
    assert len(shown) > 100
    leaked = {secret for secret in SECRETS for text in shown if secret in text}
    assert not leaked


class TestOverObstoreMemory(ObjectStoreTests):
    """A second client under the same adapter, whose errors come without any HTTP."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        return CloudStore(ObstoreMemory(), BucketPath("memory://obstore", "memory"))


class TestOffsets:
    def test_a_server_that_skips_too_much_is_not_asked_to(self, seaweedfs_server: S3Server, fresh_s3_uri: str) -> None:
        """SeaweedFS leaves out a directory whose name equals the offset; the adapter must not rely on it."""
        store = open_store(fresh_s3_uri, storage_options=seaweedfs_server.storage_options)
        for path in ("a", "b/c", "d"):
            store.put(path, b"")
        assert isinstance(store, CloudStore)
        by_server = [found["path"] for page in obstore.list(store._client, offset="b") for found in page]
        assert by_server == ["d"], "the server has learnt it: offsets could be passed on"
        assert [info.path for info in store.list("", offset="b")] == ["b/c", "d"]

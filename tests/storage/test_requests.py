"""How many requests the verbs send to an object store, and how many of them one after the other, counted on the wire."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from urllib.parse import urlsplit

import lance
import numpy as np
import pyarrow as pa
import pytest

import tiltyard as ty
from bench.delaying_proxy import DelayingProxy, SeenRequest, delaying_proxy
from tests.support.servers import S3Server
from tiltyard.storage.cloud import CloudStore
from tiltyard.transaction.looks import ALWAYS, LOOKS

BUCKET = "requests"
DELAY = 0.02
LONG_DELAY = 0.4
"""Longer than a busy machine takes to begin a second request: those that are sent together overlap then."""
_numbers = count(1)


@pytest.fixture(scope="module")
def proxy(seaweedfs_server: S3Server) -> Iterator[DelayingProxy]:
    seaweedfs_server.create_bucket(BUCKET)
    with delaying_proxy(seaweedfs_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def options(seaweedfs_server: S3Server, proxy: DelayingProxy) -> dict[str, str]:
    return {**seaweedfs_server.storage_options, "aws_endpoint": proxy.endpoint}


@pytest.fixture
def table(options: dict[str, str]) -> ty.Table:
    """A table with a few versions, and a handle that has just committed."""
    table = ty.Table.create(f"s3://{BUCKET}/table-{next(_numbers)}", ids(0), storage_options=options)
    for number in range(1, 4):
        table.append(ids(number))
    return table


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "v": pa.array(numbers, pa.int64())})


def requests_of(proxy: DelayingProxy, work: Callable[[], object], delay: float = DELAY) -> tuple[Counter[str], list[SeenRequest]]:
    proxy.seen.clear()
    proxy.delay = delay
    try:
        work()
    finally:
        proxy.delay = 0.0
    return proxy.kinds(), sorted(proxy.seen, key=lambda request: request.begun)


def rounds(seen: Sequence[SeenRequest]) -> int:
    """How many requests had to wait for the answer to another one, in a row."""
    found, ended = 0, float("-inf")
    for request in seen:
        if request.begun >= ended:
            found, ended = found + 1, request.ended
        ended = min(ended, request.ended)
    return found


def forget_looks(table: ty.Table) -> None:
    table._access.committer.looks._last = None


def test_a_warm_append_is_three_requests_in_two_rounds(proxy: DelayingProxy, table: ty.Table) -> None:
    for number in range(10, 14):
        kinds, seen = requests_of(proxy, lambda number=number: table.append(ids(number)), LONG_DELAY)  # type: ignore[misc]
        if kinds["LIST"] and number > 10:
            continue  # five seconds went by on a slow machine; the next test is about that
        assert kinds == {"PUT": 2, "CREATE": 1}
        assert rounds(seen) == 2
        assert [request.path.split("/")[3] for request in seen][2] == "_versions"
    assert table.count_rows() == 8


def test_after_a_while_a_look_goes_along(proxy: DelayingProxy, table: ty.Table) -> None:
    forget_looks(table)
    kinds, seen = requests_of(proxy, lambda: table.append(ids(10)), LONG_DELAY)
    assert kinds == {"PUT": 2, "CREATE": 1, "LIST": 2, "GET": 1}
    assert rounds(seen) == 2


def test_a_table_that_wants_it_is_looked_at_before_and_after(proxy: DelayingProxy, table: ty.Table) -> None:
    table.update_config({LOOKS: ALWAYS})
    kinds, _ = requests_of(proxy, lambda: table.append(ids(10)))
    assert kinds == {"PUT": 2, "CREATE": 1, "LIST": 4, "GET": 1}


def test_behind_by_one_of_a_foreign_writer(proxy: DelayingProxy, table: ty.Table, options: dict[str, str]) -> None:
    forget_looks(table)
    table.append(ids(10))
    lance.write_dataset(ids(11), table.uri, mode="append", storage_options=options)
    kinds, _ = requests_of(proxy, lambda: table.append(ids(12)))
    assert kinds == {"PUT": 2, "CREATE": 2, "GET": 1}
    assert sorted(table.to_arrow(["id"])["id"].to_pylist()) == [0, 1, 2, 3, 10, 11, 12]


def test_behind_by_one_of_another_handle_of_this_process(proxy: DelayingProxy, table: ty.Table, options: dict[str, str]) -> None:
    other = ty.Table.open(table.uri, storage_options=options)
    forget_looks(table)
    table.append(ids(10))
    kinds, _ = requests_of(proxy, lambda: other.append(ids(11)))
    assert kinds == {"PUT": 2, "CREATE": 1}


VERBS: dict[str, tuple[Callable[[ty.Table], object], dict[str, int]]] = {
    "open": (lambda table: ty.Table.open(table.uri, storage_options=dict(table._access.storage_options or {})), {"LIST": 1, "GET": 1}),
    "refresh": (lambda table: table.refresh(), {"LIST": 1, "GET": 2}),
    "overwrite": (lambda table: table.overwrite(ids(9)), {"PUT": 2, "CREATE": 1, "LIST": 1, "GET": 2}),
    "delete": (lambda table: table.delete("id = 1"), {"PUT": 1, "CREATE": 1, "HEAD": 1, "GET": 8}),
    "update": (lambda table: table.update({"v": "7"}, where="id = 1"), {"PUT": 2, "CREATE": 1, "HEAD": 1, "GET": 9}),
    "merge": (
        lambda table: table.merge(ids(1, 9), on="id").when_matched_update_all().when_not_matched_insert_all().execute(),
        {"PUT": 2, "CREATE": 1, "HEAD": 1, "GET": 20},
    ),
    "update_config": (lambda table: table.update_config({"a": "b"}), {"PUT": 1, "CREATE": 1}),
    "compact": (lambda table: table.compact(), {"PUT": 3, "CREATE": 2, "HEAD": 1, "GET": 10}),
    "create_index": (lambda table: table.create_index("id", "BTREE"), {"PUT": 3, "CREATE": 1, "HEAD": 1, "GET": 10}),
    "add_columns": (lambda table: table.add_columns({"w": "v + 1"}), {"PUT": 6, "CREATE": 1, "HEAD": 1, "GET": 35}),
    "drop_columns": (lambda table: table.drop_columns(["v"]), {"PUT": 1, "CREATE": 1}),
    "restore": (lambda table: table.restore(1), {"PUT": 1, "CREATE": 1, "HEAD": 1, "GET": 2}),
    "tag": (lambda table: table.tags.create("t", 1), {"CREATE": 1, "LIST": 2, "HEAD": 2, "GET": 1}),
}
"""For each verb on a table of five small fragments what it sends; of GETs the most, since to read rows is pylance's part."""


@pytest.mark.parametrize("verb", VERBS)
def test_what_each_verb_sends(proxy: DelayingProxy, table: ty.Table, verb: str) -> None:
    work, expected = VERBS[verb]
    forget_looks(table)
    table.append(ids(5))
    kinds, _ = requests_of(proxy, lambda: work(table))
    assert {kind: number for kind, number in kinds.items() if kind != "GET"} == {kind: n for kind, n in expected.items() if kind != "GET"}
    assert kinds["GET"] <= expected.get("GET", 0)


def test_writers_of_one_process_share_versions_and_requests(proxy: DelayingProxy, table: ty.Table, options: dict[str, str]) -> None:
    handles = [ty.Table.open(table.uri, storage_options=options) for _ in range(8)]
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for place in range(5):
                handles[number].append(ids(100 * (number + 1) + place))
        except ty.TiltyardError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]

    def together() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    kinds, _ = requests_of(proxy, together)
    assert failed == []
    table.refresh()
    found = table.to_arrow(["id"])["id"].to_pylist()
    assert sorted(found) == sorted([0, 1, 2, 3, *(100 * (number + 1) + place for number in range(8) for place in range(5))])
    assert table.version - 4 < 40, "some versions have the rows of several"
    assert kinds["CREATE"] < 40
    assert table.check().problems == ()


def test_a_large_append_is_sent_and_read_back_in_parts_at_the_same_time(proxy: DelayingProxy, table: ty.Table) -> None:
    """Too large to pass through us: pylance uploads it, and its digest is taken of what is there."""
    rows = pa.table({name: pa.array(np.random.default_rng(1).integers(0, 1 << 62, 2_600_000)) for name in ("id", "v")})
    kinds, seen = requests_of(proxy, lambda: table.append(rows))
    parts = [request for request in seen if "partNumber" in request.query]
    assert len(parts) > 3
    assert any(later.begun < earlier.ended for earlier, later in pairwise(parts))
    read = [request for request in seen if request.method == "GET" and "/data/" in request.path]
    assert len(read) == 3, "parts of 16 MB"
    assert read[2].begun < read[1].ended, "the first by itself: most files have no more"
    assert kinds["CREATE"] == 1
    assert table.count_rows() == 4 + rows.num_rows
    report = table.check(data=True)
    assert (report.problems, report.unverified) == ((), 0)


def test_a_large_object_is_sent_in_parts_at_the_same_time(proxy: DelayingProxy, table: ty.Table) -> None:
    store = table._access.store
    assert isinstance(store, CloudStore)
    data = bytes(range(256)) * (24 * 2**12)  # 24 MB
    kinds, seen = requests_of(proxy, lambda: store.put("data/large", data))
    parts = [request for request in seen if "partNumber" in request.query]
    assert kinds["PUT"] == len(parts) > 3
    assert any(later.begun < earlier.ended for earlier, later in pairwise(parts))
    assert store.get("data/large") == data


def test_a_client_that_asks_before_it_sends_is_answered_by_the_proxy(proxy: DelayingProxy) -> None:
    """Some clients of stores wait for ``100 Continue`` before the body; the store is not asked, or they would wait for two delays."""
    address = urlsplit(proxy.endpoint)
    proxy.seen.clear()
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        head = f"PUT /{BUCKET}/asked HTTP/1.1\r\nHost: {address.netloc}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        client.sendall(head.encode())
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert client.recv(1000).startswith(b"HTTP/1.1 200"), "an answer to the request as a whole"
    assert [(request.method, request.path) for request in proxy.seen] == [("PUT", f"/{BUCKET}/asked")]

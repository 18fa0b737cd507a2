"""Digests on an object store: what was written passes through us once, and is read back only where pylance uploaded it."""

from __future__ import annotations

import numpy
import pyarrow as pa

import tiltyard as ty
from tests.support.servers import S3Server
from tiltyard.testing import CountingStore
from tiltyard.verbs.engine.access import open_access


def _ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def test_small_appends_and_deletions_read_nothing_back(seaweedfs_server: S3Server) -> None:
    server = seaweedfs_server
    server.create_bucket("digests")
    uri, options = "s3://digests/table", server.storage_options
    ty.Table.create(uri, _ids(1, 2, 3), storage_options=options)
    store = CountingStore(open_access(uri, ty.Storage(options=options)).store)
    table = ty.Table._open(open_access(uri, ty.Storage(options=options), store=store))
    table.append(_ids(4))
    store.log.clear()
    table.append(_ids(5))
    table.delete("id = 1")
    of_files = [(method, path.partition("/")[0]) for method, path in store.log if path.startswith(("data/", "_deletions/"))]
    assert [one for one in of_files if one[0] != "sync"] == [("put", "data"), ("put", "_deletions")]
    store.log.clear()
    table.append(pa.table({"id": pa.array(numpy.random.default_rng(1).integers(0, 1 << 40, 4_500_000))}))  # too large to pass through us
    assert {method for method, path in store.log if path.startswith("data/")} == {"sync", "get_range"}
    report = ty.Table.open(uri, storage_options=options).check(data=True)
    assert (report.problems, report.unverified) == ((), 0)
    path = table.layout.fragments[0].files[0].path
    data = store.get(f"data/{path}")
    store.put(f"data/{path}", data[:20] + bytes([data[20] ^ 1]) + data[21:])
    assert any(path in problem.text for problem in ty.Table.open(uri, storage_options=options).check(data=True).problems)

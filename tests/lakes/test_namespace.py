"""The lake through the Lance Namespace interface, as stock pylance uses it: found by name, read at the catalog's version, written to."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateTableVersionRequest,
    DescribeNamespaceRequest,
    DescribeTableRequest,
    DescribeTableVersionRequest,
    ListNamespacesRequest,
    ListTablesRequest,
    NamespaceExistsRequest,
    NamespaceNotFoundError,
    TableExistsRequest,
    TableNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
    connect,
)

from tests.support.lakes import InterposedRecords, Site, add_to_both, both, foreign_append, ids, numbers, stock, through, uri_of
from tiltyard.errors import NotFound, TiltyardError
from tiltyard.lake import Lake
from tiltyard.lakes.namespace import LakeNamespace
from tiltyard.options import CommitOptions


def opened(namespace: LakeNamespace, *name: str, **more: Any) -> lance.LanceDataset:
    return lance.dataset(namespace_client=namespace, table_id=list(name), **more)


def test_tables_are_listed_by_namespace(lake: Lake) -> None:
    for name in ("sales.orders", "sales.eu.orders", "sales.eu.returns", "stock.left"):
        lake.create_table(name, numbers(1))
    there = lake.namespace()
    assert there.list_namespaces(ListNamespacesRequest()).namespaces == ["sales", "stock"]
    assert there.list_namespaces(ListNamespacesRequest(id=["sales"])).namespaces == ["eu"]
    assert there.list_tables(ListTablesRequest()).tables == ["a", "b"]
    assert there.list_tables(ListTablesRequest(id=["sales"])).tables == ["orders"]
    assert there.list_tables(ListTablesRequest(id=["sales", "eu"])).tables == ["orders", "returns"]
    assert there.list_all_tables(ListTablesRequest()).tables[-1] == "stock$left"
    there.namespace_exists(NamespaceExistsRequest(id=["sales", "eu"]))
    there.describe_namespace(DescribeNamespaceRequest(id=["sales"]))
    there.table_exists(TableExistsRequest(id=["sales", "orders"]))
    described = there.describe_table(DescribeTableRequest(id=["sales", "eu", "orders"]))
    assert (described.table, described.namespace, described.version) == ("orders", ["sales", "eu"], 1)
    with pytest.raises(NamespaceNotFoundError):
        there.namespace_exists(NamespaceExistsRequest(id=["sale"]))
    for wrong in (["sales"], ["c"], ["sales", "eu"], None):
        with pytest.raises(TableNotFoundError):
            there.table_exists(TableExistsRequest(id=wrong))


def test_long_lists_come_in_pages(lake: Lake) -> None:
    lake.create_table("c", numbers(1))
    there, seen, token = lake.namespace(), [], None
    while True:
        page = there.list_tables(ListTablesRequest(limit=2, page_token=token))
        seen.append(page.tables)
        token = page.page_token
        if token is None:
            break
    assert seen == [["a", "b"], ["c"]]


def test_pylance_opens_tables_at_the_catalogs_version(site: Site, lake: Lake) -> None:
    lake.create_table("sales.orders", numbers(5))
    with lake.transaction() as tx:
        add_to_both(tx, 2)
    lake.tags.create("then")
    there = site.open().namespace()
    assert (ids(opened(there, "a")), ids(opened(there, "sales", "orders"))) == ([1, 2], [5])
    assert ids(opened(there, "a", version=1)) == [1]
    # Renamed, dropped and made again: a name is what the catalog says it is.
    lake.rename_table("a", "c")
    lake.drop_table("sales.orders")
    lake.create_table("sales.orders", numbers(6))
    assert (ids(opened(there, "c")), ids(opened(there, "sales", "orders"))) == ([1, 2], [6])
    with pytest.raises(TableNotFoundError):
        opened(there, "a")
    past = site.open().namespace("then")
    lake.table("c").append(numbers(3))
    assert (ids(opened(past, "a")), ids(opened(past, "sales", "orders"))) == ([1, 2], [5])
    assert ids(opened(there, "c")) == [1, 2, 3]
    with pytest.raises(NotFound):
        lake.namespace("never")
    with pytest.raises(TableVersionNotFoundError):
        past.describe_table_version(DescribeTableVersionRequest(id=["a"], version=3))


def test_a_commit_past_the_catalog_is_adopted_when_a_client_looks(site: Site, lake: Lake) -> None:
    """So a client whose engine commits to the store by itself reads its own writes."""
    there = site.open().namespace()
    past = lake.namespace(lake.snapshot().id)
    foreign_append(uri_of(lake, "a"), 9)
    assert ids(opened(past, "a")) == [1]
    assert ids(opened(there, "a")) == [1, 9]
    assert lake.history()[0].message == "adopted from a writer that does not know the catalog"
    foreign_append(uri_of(lake, "a"), 10)
    assert there.describe_table(DescribeTableRequest(id=["a"])).version == 3
    assert ids(lake.table("a")) == [1, 9, 10]


def test_branches(lake: Lake) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.table("a").append(numbers(50))
    there = side.namespace()
    assert (ids(opened(there, "a")), ids(opened(there, "b"))) == ([1, 50], [1])
    assert ids(opened(lake.namespace(), "a")) == [1]


# ---- writing ---------------------------------------------------------------------------------------------------------------------


def test_what_pylance_commits_is_decided_in_the_catalog(site: Site, lake: Lake) -> None:
    there = site.open(author="a client").namespace()
    dataset = opened(there, "a")
    dataset.insert(numbers(2))
    assert (dataset.version, ids(dataset)) == (2, [1, 2])
    dataset.update({"id": "id + 10"}, where="id = 1")
    dataset.delete("id = 2")
    dataset.create_scalar_index("id", "BTREE")
    assert ids(lake.table("a")) == ids(stock(lake, "a")) == [11]
    entries = [(step.author, step.changes[0].operations) for step in lake.history(4)]
    assert entries == [("a client", (operation,)) for operation in ("CreateIndex", "Delete", "Update", "Append")]
    assert not [path for path in site.files("_versions/") if ".manifest-" in path], "nothing staged is left"
    assert lake.check().problems == ()


def test_a_stale_client_is_carried_over_what_the_lake_did(lake: Lake) -> None:
    dataset = opened(lake.namespace(), "a")
    with lake.transaction() as tx:
        add_to_both(tx, 2)
    dataset.insert(numbers(3))
    assert (dataset.version, both(lake)) == (3, ([1, 2, 3], [1, 2]))


def test_a_transaction_of_the_lake_sees_a_client_in_between(site: Site, lake: Lake) -> None:
    dataset = opened(site.open().namespace(), "a")
    through(lake, lambda inner: InterposedRecords(inner, lambda: dataset.insert(numbers(7))))
    done = add_to_both(lake.transaction(), 2).commit()
    assert done.rebased == {"a": (2,)}
    assert both(lake) == ([1, 2, 7], [1, 2])
    assert lake.check().problems == ()


def test_many_clients_at_once_lose_nothing(site: Site, lake: Lake) -> None:
    def work(first: int) -> None:
        dataset = opened(site.open().namespace(), "a")
        for value in range(first, first + 5):
            dataset.insert(numbers(value))

    workers = [threading.Thread(target=work, args=(first,)) for first in (100, 200)]
    for worker in workers:
        worker.start()
    for value in range(300, 305):
        lake.run(lambda tx: add_to_both(tx, value), commit=CommitOptions(reexecutions=50))  # noqa: B023
    for worker in workers:
        worker.join(120)
    assert ids(lake.table("a")) == sorted([1, *range(100, 105), *range(200, 205), *range(300, 305)])
    assert lake.check().problems == ()


def test_what_cannot_be_published(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake")
    lake.create_table("a", numbers(1))
    lake.branches.create("side")
    path = f"{uri_of(lake, 'a')}/_versions/18446744073709551613.manifest-0b0e"
    for namespace, name in ((lake.namespace(1), path), (lake.on_branch("side").namespace(), path), (lake.namespace(), "x/y.manifest")):
        with pytest.raises(UnsupportedOperationError):
            namespace.create_table_version(CreateTableVersionRequest(id=["a"], version=2, manifest_path=name))
    with pytest.raises(OSError):
        opened(lake.namespace(1), "a").insert(numbers(2))
    assert (lake.table("a").version, ids(lake.table("a"))) == (1, [1])


def test_it_is_made_from_strings(tmp_path: Path) -> None:
    with Lake.open(tmp_path / "lake", durability="os") as lake:
        lake.create_table("sales.orders", numbers(1))
        lake.table("sales.orders").append(numbers(2))
        lake.branches.create("trial")
        lake.on_branch("trial").table("sales.orders").append(numbers(3))
    name = "tiltyard.lakes.namespace.LakeNamespace"
    there = {"lake": str(tmp_path / "lake")}
    for more, rows in (({}, 2), ({"at": "1"}, 1), ({"branch": "trial"}, 3)):
        namespace = connect(name, {**there, **more})
        assert isinstance(namespace, LakeNamespace)
        assert opened(namespace, "sales", "orders").count_rows() == rows
    with pytest.raises(ValueError, match="no lake"):
        connect(name, {"lake": str(tmp_path / "nothing")})
    with pytest.raises(ValueError, match="one of them"):
        connect(name, {**there, "uri": str(tmp_path / "lake")})


@pytest.mark.parametrize("first", ["tiltyard", "lancedb"])
def test_a_stock_client_finds_it_by_its_short_name(tmp_path: Path, first: str) -> None:
    """Whichever of the two is imported first; and an import of ours alone does not import the registry."""
    with Lake.open(tmp_path / "lake", durability="os") as lake:
        lake.create_table("a", numbers(1))
    imports = (
        "import tiltyard, sys; assert 'lance_namespace' not in sys.modules; import lancedb"
        if first == "tiltyard"
        else "import lancedb, tiltyard"
    )
    program = f"""
{imports}
db = lancedb.connect_namespace("tiltyard", {{"uri": {str(tmp_path / "lake")!r}}})
db.open_table("a").add([{{"id": 2}}])
print(sorted(db.open_table("a").to_arrow()["id"].to_pylist()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[1, 2]", done.stderr
    with Lake.open(tmp_path / "lake", create=False) as lake:
        assert (ids(lake.table("a")), len(lake.history())) == ([1, 2], 2)


def test_what_a_dead_transaction_of_stock_clients_left_is_swept(site: Site, lake: Lake) -> None:
    tx = lake.transaction()
    lance.write_dataset(pa.table({"id": [2]}), namespace_client=tx.namespace, table_id=["a"], mode="append")
    assert len(site.files("_tiltyard/collected/")) == 1
    lake.cleanup()
    assert len(site.files("_tiltyard/collected/")) == 1, "it may still be at work"
    lake.cleanup(dry_run=True, grace=timedelta(0))
    assert len(site.files("_tiltyard/collected/")) == 1
    lake.cleanup(grace=timedelta(0))
    assert site.files("_tiltyard/collected/") == set()
    with pytest.raises(TiltyardError):
        tx.commit()
    assert lake.table("a").to_arrow()["id"].to_pylist() == [1]
    assert lake.check().ok

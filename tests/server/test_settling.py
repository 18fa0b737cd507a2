"""Bookkeeping of published versions that waits: nothing depends on when it is done."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.lakes.namespace import LakeNamespace
from tiltyard.server.settling import SettleQueue


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


def staged(lake: ty.Lake) -> list[Path]:
    return [path for path in Path(lake.root_uri).rglob("_tiltyard/staged/**/*") if path.is_file()]


def test_what_waits_is_settled_in_one_step_at_the_end(lake: ty.Lake) -> None:
    queue = SettleQueue(wait=3600.0)
    publish(lake, queue, 1, 2, 3)
    assert len(lake.catalog.pending()) == len(staged(lake)) == 3
    queue.close()
    assert not lake.catalog.pending()
    assert not staged(lake)
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

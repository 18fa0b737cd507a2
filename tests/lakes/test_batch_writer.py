"""The batching writer on tables of a lake: each batch is one lake transaction."""

from __future__ import annotations

import pytest

import tiltyard as ty
from tests.support.lakes import LosingRecords, Loss, Site, ids, numbers, prompt_runtime, stock, through, two_tables

SOON = 60


def test_a_batch_is_one_snapshot(site: Site) -> None:
    lake = two_tables(site.open())
    before = lake.snapshot().id
    with lake.table("a").writer(max_delay=1e6, commit=ty.CommitOptions({"job": "ingest"})) as writer:
        receipts = [writer.append(numbers(number)) for number in range(10, 15)]
        assert ids(lake.table("a")) == [1]
    assert {receipt.result(0).version for receipt in receipts} == {2}
    assert lake.snapshot().id == before + 1
    assert lake.history()[0].tables == ("a",)
    assert ids(site.open().table("a")) == ids(stock(lake, "a")) == [1, 10, 11, 12, 13, 14]
    assert ids(lake.snapshot(before).table("a")) == [1]


def test_it_goes_on_beside_transactions(site: Site) -> None:
    lake = two_tables(site.open())
    with lake.table("a").writer(max_delay=1e6) as writer:
        for number in range(10, 13):
            receipt = writer.append(numbers(number))
            with lake.transaction() as tx:
                tx.table("a").append(numbers(number + 100))
                tx.table("b").append(numbers(number + 100))
            writer.flush()
            receipt.result(0)
    assert ids(lake.table("a")) == [1, 10, 11, 12, 110, 111, 112]
    assert lake.check().ok


def test_on_a_branch_it_writes_to_the_branch(site: Site) -> None:
    lake = two_tables(site.open())
    lake.branches.create("dev")
    with lake.on_branch("dev").table("a").writer() as writer:
        writer.append(numbers(10))
    assert ids(lake.on_branch("dev").table("a")) == [1, 10]
    assert ids(lake.table("a")) == [1]


def test_a_new_table_of_that_name_gets_none_of_its_rows(site: Site) -> None:
    lake = two_tables(site.open())
    writer = lake.table("a").writer(max_delay=1e6)
    receipt = writer.append(numbers(10))
    lake.drop_table("a")
    lake.create_table("a", numbers(100))
    writer.flush()
    assert isinstance(receipt.exception(0), ty.TiltyardError)
    writer.close()
    assert ids(lake.table("a")) == [100]


def test_a_renamed_table_gets_its_rows(site: Site) -> None:
    lake = two_tables(site.open())
    with lake.table("a").writer(max_delay=1e6) as writer:
        writer.append(numbers(10))
        lake.rename_table("a", "c")
    assert ids(lake.table("c")) == [1, 10]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_of_the_catalog_doubles_nothing(site: Site, when: Loss) -> None:
    lake = two_tables(site.open(runtime=prompt_runtime()))
    records = through(lake, LosingRecords)
    with lake.table("a").writer(max_delay=1e6) as writer:
        first = writer.append(numbers(10))
        records.lose(1, when)
        records.then_down = True
        with pytest.raises(ty.WriterTimeout):
            writer.flush(timeout=0)
        with writer._changed:
            assert writer._changed.wait_for(lambda: writer._commits.in_doubt or first.done(), SOON)
        records.then_down = False
        records.down = False
        second = writer.append(numbers(11))
        writer.flush()
        assert first.done()
        assert second.result(0).version > 1
    assert first.exception(0) is None
    assert ids(site.open().table("a")) == [1, 10, 11]
    assert lake.check().ok

"""Names that were taken and freed again since a transaction began: whoever takes or frees one then is refused, and looks again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import lance
import pyarrow as pa
import pytest

from tests.support.lakes import InterposedRecords, Site, ids, numbers, through
from tests.support.proving import PROVING
from tiltyard.catalog.value_codec import FREED
from tiltyard.errors import ExpectedVersionMismatch, HistoryUnavailable, NotFound
from tiltyard.lake import Lake
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.options import LakeRetention

NOTHING_KEPT = timedelta(0)


def created_and_dropped(lake: Lake, name: str) -> None:
    with lake.transaction() as tx:
        tx.create_table(name, numbers(1))
        tx.table("a").append(numbers(len(name)))
    lake.drop_table(name)


def created_and_renamed(lake: Lake, name: str) -> None:
    with lake.transaction() as tx:
        tx.create_table(name, numbers(1))
        tx.table("a").append(numbers(len(name)))
    lake.rename_table(name, f"{name}_moved")


def renamed_to_and_back(lake: Lake, name: str) -> None:
    lake.rename_table("b", name)
    lake.rename_table(name, "b")


USES: tuple[Callable[[Lake, str], None], ...] = (created_and_dropped, created_and_renamed, renamed_to_and_back)


def create(tx: LakeTransaction, name: str) -> None:
    tx.create_table(name, numbers(*ids(tx.table("a"))))


def create_in_shards(tx: LakeTransaction, name: str) -> None:
    tx.create_table(name, pa.table({"id": [1]}), primary_key=["id"], shard_by="id", shards=2)


def rename(tx: LakeTransaction, name: str) -> None:
    tx.create_table(f"{name}_first", numbers(1))
    tx.rename_table("c", name)


def create_and_rename(tx: LakeTransaction, name: str) -> None:
    tx.create_table(f"{name}_first", numbers(1))
    tx.rename_table(f"{name}_first", name)


TAKES: tuple[Callable[[LakeTransaction, str], None], ...] = (create, create_in_shards, rename, create_and_rename)


def test_a_name_that_was_in_use_since_the_base_is_refused(site: Site, lake: Lake) -> None:
    """The transaction read rows from before the other table, and would be committed after it: no order of the two gives that."""
    lake.create_table("c", numbers(1))
    pairs = [(use, take) for use in USES for take in (TAKES if PROVING or use is USES[0] else TAKES[:1])]
    for number, (use, take) in enumerate(pairs):
        name = f"n{number}"
        tx = lake.transaction()
        with pytest.raises(NotFound):
            tx.table(name)
        seen = ids(tx.table("a"))
        use(site.open(author="other"), name)
        take(tx, name)
        before = lake.snapshot().id
        with pytest.raises(ExpectedVersionMismatch, match=f"The name {name} was in use") as caught:
            tx.commit()
        assert (caught.value.cause, caught.value.retryable, caught.value.table) == ("freed", True, name), (use, take)
        assert caught.value.by[-1]["author"] == "other"
        assert lake.snapshot().id == before
        assert name not in lake.tables()
        lake.run(lambda tx, name=name: create(tx, name))  # type: ignore[misc]
        assert ids(lake.table(name)) == ids(lake.table("a"))
        assert seen != ids(lake.table(name)) or use is renamed_to_and_back
    assert lake.check().ok


def test_run_looks_again(site: Site, lake: Lake) -> None:
    seen = []

    def work(tx: LakeTransaction) -> None:
        seen.append(ids(tx.table("a")))
        create(tx, "n")
        if len(seen) == 1:
            created_and_dropped(site.open(), "n")

    lake.run(work)
    assert (len(seen), ids(lake.table("n"))) == (2, seen[-1])


def test_a_name_that_stands_for_the_same_table_again_is_not_freed_by_an_earlier_look(site: Site, lake: Lake) -> None:
    for drop in (True, False):
        tx = lake.transaction()
        if drop:
            tx.drop_table("a")
        else:
            tx.rename_table("a", "z")
        other = site.open()
        other.rename_table("a", "x")
        other.rename_table("x", "a")
        with pytest.raises(ExpectedVersionMismatch) as caught:
            tx.commit()
        assert (caught.value.cause, caught.value.table) == ("freed", "a")
    lake.drop_table("a")
    assert lake.tables() == ["b"]


def test_a_name_that_is_taken_says_so_whatever_it_was_before(site: Site, lake: Lake) -> None:
    tx = lake.transaction()
    create(tx, "n")
    created_and_dropped(site.open(), "n")
    site.open().create_table("n", numbers(7))
    with pytest.raises(ExpectedVersionMismatch) as caught:
        tx.commit()
    assert (caught.value.cause, caught.value.retryable) == ("incompatible", False)
    assert "There is another table n now" in str(caught.value)


def test_other_names_do_not_matter(site: Site, lake: Lake) -> None:
    """Whoever makes tables beside others who make and drop theirs is not held up."""
    tx = lake.transaction()
    create(tx, "mine")
    tx.rename_table("b", "mine_too")
    other = site.open()
    created_and_dropped(other, "theirs")
    other.create_table("b_too", numbers(1))
    assert tx.commit().attempts == 1
    assert lake.tables() == ["a", "b_too", "mine", "mine_too"]


def test_a_single_verb_rests_on_no_earlier_look(site: Site, lake: Lake) -> None:
    """Nobody was told anything before it is committed, and its rows may come from a stream that can be read once."""
    other = site.open()
    through(lake, lambda records: InterposedRecords(records, lambda: created_and_dropped(other, "n")))
    lake.create_table("n", pa.RecordBatchReader.from_batches(numbers().schema, iter(numbers(5).to_batches())))
    assert ids(lake.table("n")) == [5]


def test_a_directory_is_registered_under_a_name_that_was_in_use(site: Site, lake: Lake) -> None:
    outside = str(site.directory.parent / "outside.lance")
    lance.write_dataset(numbers(6), outside)
    other = site.open()
    through(lake, lambda records: InterposedRecords(records, lambda: created_and_dropped(other, "n")))
    lake.register_table("n", outside)
    assert ids(lake.table("n")) == [6]


def test_a_merge_that_takes_a_name_is_planned_again(site: Site, lake: Lake) -> None:
    lake.branches.create("side")
    lake.on_branch("side").create_table("n", numbers(8))
    other = site.open()
    through(lake, lambda records: InterposedRecords(records, lambda: created_and_dropped(other, "n"), match="tip/main"))
    lake.branches.merge("side")
    assert (ids(lake.table("n")), ids(lake.table("a"))) == ([8], [1, 1])


@pytest.mark.parametrize("end", ["delete", "fast-forward"])
def test_what_is_known_of_names_ends_with_the_line(site: Site, lake: Lake, end: str) -> None:
    lake.branches.create("side")
    created_and_dropped(lake.on_branch("side"), "n")
    assert [key for key, _ in lake.catalog.records.scan([f"{FREED}side/"])] == [f"{FREED}side/n"]
    if end == "delete":
        lake.branches.delete("side")
        lake.branches.create("side")
    else:
        lake.branches.fast_forward("side")
    assert list(lake.catalog.records.scan([f"{FREED}side/"])) == []
    side = lake.on_branch("side")
    with side.transaction() as tx:
        create(tx, "n")
    assert ids(side.table("n")) == ids(side.table("a"))


def test_names_of_expired_transactions_are_forgotten_and_those_who_looked_before_are_refused(site: Site, lake: Lake) -> None:
    early = lake.transaction()
    created_and_dropped(site.open(), "n")
    retention = LakeRetention(outcomes=NOTHING_KEPT, keys=NOTHING_KEPT)
    lake.cleanup(dry_run=True, retention=retention)
    assert [key for key, _ in lake.catalog.records.scan([FREED])] == [f"{FREED}main/n"]
    late = lake.transaction()
    lake.cleanup(retention=retention)
    assert list(lake.catalog.records.scan([FREED])) == []
    create(early, "n")
    with pytest.raises(HistoryUnavailable):
        early.commit()
    create(late, "n")
    late.commit()
    assert ids(lake.table("n")) == ids(lake.table("a"))


def test_what_is_not_expired_is_kept(site: Site, lake: Lake) -> None:
    early = lake.transaction()
    created_and_dropped(site.open(), "n")
    lake.cleanup()
    create(early, "n")
    with pytest.raises(ExpectedVersionMismatch, match="was in use"):
        early.commit()

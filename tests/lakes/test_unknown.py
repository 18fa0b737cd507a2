"""Commits whose answer is lost: found out later, the same way by everybody, and nothing deleted in between."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.lakes import (
    LosingRecords,
    Loss,
    Site,
    add_to_both,
    both,
    foreign_append,
    ids,
    numbers,
    prompt_runtime,
    stores_through,
    through,
    two_tables,
    uri_of,
)
from tiltyard.errors import (
    ConflictError,
    ContentionError,
    InvalidInput,
    OutcomeUnknown,
    StorageError,
    TiltyardError,
)
from tiltyard.interfaces import ObjectStore
from tiltyard.lake import Lake
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.testing import WrapperStore
from tiltyard.verbs.outcome import Committed, NotCommitted, Unknown

BOTH: list[Loss] = ["before", "after"]


def losing_records(site: Site) -> tuple[Lake, LosingRecords]:
    lake = two_tables(site.open(runtime=prompt_runtime()))
    return lake, through(lake, LosingRecords)


@pytest.fixture
def losing(site: Site) -> tuple[Lake, LosingRecords]:
    return losing_records(site)


@pytest.mark.parametrize("when", BOTH)
@pytest.mark.parametrize("at", [1, 2], ids=["the decision", "the word that it is finished"])
def test_a_lost_answer_is_found_out_at_once_where_the_catalog_can_be_asked(site: Site, losing: Any, at: int, when: Loss) -> None:
    lake, records = losing
    tx = add_to_both(lake.transaction(), 2)
    records.lose(at, when)
    result = tx.commit()
    assert records.fired
    assert both(lake) == both(site.open()) == ([1, 2], [1, 2])
    assert lake.outcome(tx.id) == site.open().outcome(tx.id) == Committed(result.snapshot)
    assert lake.snapshot().id == 2, "it was committed once"
    assert all(lake.table(name).check().problems == () for name in "ab")


@pytest.mark.parametrize("when", BOTH)
def test_where_it_cannot_be_asked_the_outcome_is_unknown_and_commit_finds_out(site: Site, losing: Any, when: Loss) -> None:
    lake, records = losing
    tx = add_to_both(lake.transaction(), 2)
    files = site.files(".lance/")
    records.lose(1, when)
    records.then_down = True
    with pytest.raises(OutcomeUnknown) as caught:
        tx.commit()
    assert caught.value.transaction_id == tx.id
    assert not caught.value.retryable
    assert isinstance(lake.outcome(tx.id), Unknown)
    for _ in range(3):  # it is still down, and now it is certain that nothing more was sent: that says nothing of what was
        with pytest.raises(OutcomeUnknown):
            tx.commit()
        assert site.files(".lance/") >= files, "nothing is deleted while it is unknown"
    for use in (tx.rollback, tx.tables, lambda: tx.table("a")):
        with pytest.raises(InvalidInput):
            use()
    records.down = False
    other = site.open()
    if when == "after":
        assert lake.outcome(tx.id) == other.outcome(tx.id) == Committed(2)
        assert both(other) == ([1, 2], [1, 2])
    else:
        assert isinstance(other.outcome(tx.id), Unknown), "its writer may still do it"
        assert both(other) == ([1], [1])
    result = tx.commit()
    assert lake.outcome(tx.id) == other.outcome(tx.id) == Committed(result.snapshot)
    assert (result.tables, both(lake), lake.snapshot().id) == ({"a": 2, "b": 2}, ([1, 2], [1, 2]), 2)
    assert all(lake.table(name).check().problems == () for name in "ab")
    with pytest.raises(InvalidInput):
        tx.commit()


def test_others_finish_what_the_writer_never_learnt_of(site: Site, losing: Any) -> None:
    lake, records = losing
    tx = add_to_both(lake.transaction(), 2)
    records.lose(1, "after")
    records.then_down = True
    with pytest.raises(OutcomeUnknown):
        tx.commit()
    other = site.open()
    assert both(other) == ([1, 2], [1, 2])
    with other.transaction() as theirs:
        add_to_both(theirs, 3)
    records.down = False
    assert tx.commit().snapshot == 2
    assert both(lake) == ([1, 2, 3], [1, 2, 3])
    assert lake.snapshot().id == 3


def test_a_conflict_found_on_asking_again_is_an_answer(site: Site, losing: Any) -> None:
    lake, records = losing
    tx = lake.transaction()
    tx.table("a").update({"id": "id + 1"})
    before = site.files("/data/")
    records.lose(1, "before")
    records.then_down = True
    with pytest.raises(OutcomeUnknown):
        tx.commit()
    site.open().table("a").update({"id": "id + 10"})
    records.down = False
    with pytest.raises(ConflictError):
        tx.commit()
    assert ids(lake.table("a")) == [11]
    assert before - site.files("/data/"), "now its files are thrown away"


def test_giving_up_settles_it_for_everybody(site: Site, losing: Any) -> None:
    lake, records = losing
    tx = add_to_both(lake.transaction(), 2)
    records.lose(1, "before")
    records.then_down = True
    with pytest.raises(OutcomeUnknown):
        tx.commit()
    other = site.open()
    assert isinstance(other.outcome(tx.id), Unknown)
    assert isinstance(other.outcome(tx.id, give_up=True), NotCommitted)
    records.down = False
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    assert caught.value.retryable
    assert isinstance(lake.outcome(tx.id), NotCommitted)
    assert isinstance(site.open().outcome(tx.id, give_up=True), NotCommitted)
    assert both(lake) == ([1], [1])


def test_giving_up_what_is_committed_changes_nothing(site: Site, lake: Lake) -> None:
    with lake.transaction() as tx:
        add_to_both(tx, 2)
    assert lake.outcome(tx.id, give_up=True) == site.open().outcome(tx.id) == Committed(2)
    assert both(lake) == ([1, 2], [1, 2])


@pytest.mark.parametrize("when", BOTH)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_it_open(site: Site, losing: Any, error: type[BaseException], when: Loss) -> None:
    lake, records = losing
    records.raises = error
    files: set[str] = set()
    with pytest.raises(error), lake.transaction() as tx:  # noqa: PT012
        add_to_both(tx, 2)
        files = site.files(".lance/")
        records.lose(1, when)
    assert site.files(".lance/") >= files
    assert isinstance(lake.outcome(tx.id), Committed if when == "after" else Unknown)
    assert tx.commit().snapshot == 2
    assert both(lake) == both(site.open()) == ([1, 2], [1, 2])


def test_an_interruption_after_the_decision_is_no_rollback(site: Site, losing: Any) -> None:
    lake, records = losing
    records.raises = KeyboardInterrupt
    tx = add_to_both(lake.transaction(), 2)
    records.lose(2, "before")
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    assert both(site.open()) == ([1, 2], [1, 2])
    assert lake.outcome(tx.id) == Committed(2)
    assert tx.commit().snapshot == 2
    assert both(lake) == ([1, 2], [1, 2])


@pytest.mark.parametrize("trouble", [StorageError("no", transient=True), ContentionError("busy")], ids=["storage", "contention"])
def test_a_certain_failure_after_a_lost_answer_is_no_answer(site: Site, losing: Any, trouble: TiltyardError) -> None:
    """The first try was carried out. That a second one failed for certain must not have the files thrown away."""
    lake, records = losing
    tx = add_to_both(lake.transaction(), 2)
    records.lose(1, "after")
    records.then_down = True
    with pytest.raises(OutcomeUnknown):
        tx.commit()
    records.down = records.then_down = False
    records.raises = lambda: trouble
    for _ in range(2):
        records.lose(1, "before")
        try:
            tx.commit()
        except (OutcomeUnknown, InvalidInput):
            continue
    assert both(site.open()) == ([1, 2], [1, 2])
    assert all(lake.table(name).check().problems == () for name in "ab")


def test_without_an_earlier_try_a_certain_failure_is_one(site: Site, losing: Any) -> None:
    lake, records = losing
    tx = add_to_both(lake.transaction(), 2)
    before = site.files("/data/")
    records.raises = lambda: StorageError("No.", transient=True)
    records.lose(1, "before")
    with pytest.raises(StorageError):
        tx.commit()
    assert before - site.files("/data/")
    with pytest.raises(InvalidInput):
        tx.commit()
    assert both(lake) == ([1], [1])


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
@pytest.mark.parametrize("error", [StorageError("No."), ContentionError("busy")], ids=["storage", "contention"])
def test_what_only_helps_later_readers_never_fails_a_commit(site: Site, error: TiltyardError) -> None:
    """Every so many snapshots a whole cut is written down beside. The commit is done by then."""
    lake = two_tables(site.open(runtime=prompt_runtime()))
    table = lake.table("a")

    class Failing(LosingRecords):
        def transact(self, exclusive: Any, shared: Any, decide: Any) -> Any:
            if any(key.startswith("cut/") for key in exclusive):
                self.fired = True
                raise error
            return super().transact(exclusive, shared, decide)

    for number in range(lake.snapshot().id, 61):
        table.append(numbers(number))
    records = through(lake, Failing)
    for _ in range(3):
        with lake.transaction() as tx:
            add_to_both(tx, 1000)
        assert lake.outcome(tx.id) == Committed(lake.snapshot().id)
    assert records.fired
    assert ids(lake.table("b")) == [1, 1000, 1000, 1000]
    assert lake.table("b").check().problems == ()


# ---- verbs that commit at once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", BOTH)
@pytest.mark.parametrize("at", [1, 2])
def test_a_verb_finds_out_as_well(site: Site, losing: Any, at: int, when: Loss) -> None:
    lake, records = losing
    table = lake.table("a")
    records.lose(at, when)
    result = table.append(numbers(2))
    assert records.fired
    assert ids(lake.table("a")) == ids(site.open().table("a")) == [1, 2]
    assert lake.outcome(result.transaction_id) == Committed(2)
    assert lake.table("a").check().problems == ()


@pytest.mark.parametrize("when", BOTH)
def test_a_verb_that_cannot_find_out_says_so(site: Site, losing: Any, when: Loss) -> None:
    lake, records = losing
    table = lake.table("a")
    records.lose(1, when)
    records.then_down = True
    with pytest.raises((OutcomeUnknown, StorageError)) as caught:
        table.append(numbers(2))
    records.down = False
    if isinstance(caught.value, OutcomeUnknown):
        outcomes = [one.outcome(caught.value.transaction_id, give_up=True) for one in (lake, site.open())]
        assert outcomes[0] == outcomes[1] == (Committed(2) if when == "after" else outcomes[0])
        assert isinstance(outcomes[0], Committed if when == "after" else NotCommitted)
    assert ids(lake.table("a")) == ([1, 2] if when == "after" else [1])
    if when == "after":
        assert isinstance(caught.value, OutcomeUnknown)
    assert lake.table("a").check().problems == ()


# ---- one version of one table, which may have to be given up to a foreign writer ---------------------------------------------------


class Stubborn(WrapperStore):
    """Gives no version its final name until it is told to."""

    stubborn = True

    def put_if_absent(self, path: str, data: bytes) -> None:
        if self.stubborn and path.startswith("_versions/"):
            raise StorageError("Not now.", name=path, transient=True)
        super().put_if_absent(path, data)


def interrupted(lake: Lake, *, key: str | None = None) -> LakeTransaction:
    """A transaction over one table that was decided, and whose writer could not give its version a name."""
    stores: list[Stubborn] = []

    def stubborn(store: ObjectStore) -> ObjectStore:
        stores.append(Stubborn(store))
        return stores[-1]

    with stores_through(stubborn):
        tx = lake.transaction(idempotency_key=key)
        tx.table("a").append(numbers(2))
        with pytest.raises(OutcomeUnknown):
            tx.commit()
    for store in stores:
        store.stubborn = False
    return tx


def test_nobody_is_told_committed_before_it_is_certain(site: Site, lake: Lake) -> None:
    other = site.open()
    tx = interrupted(lake)
    foreign_append(uri_of(lake, "a"), 7)
    seen = [type(other.outcome(tx.id)), type(lake.outcome(tx.id)), type(lake.outcome(tx.id, give_up=True))]
    assert seen == [Unknown, Unknown, NotCommitted]
    assert ids(lake.table("a")) == [1, 7]
    with pytest.raises((ConflictError, StorageError)):
        tx.commit()
    assert ids(site.open().table("a")) == [1, 7]


def test_asking_makes_it_certain(site: Site, lake: Lake) -> None:
    other = site.open()
    tx = interrupted(lake)
    assert other.outcome(tx.id) == Committed(2)
    foreign_append(uri_of(lake, "a"), 7)
    assert lake.outcome(tx.id) == other.outcome(tx.id) == Committed(2)
    assert ids(lake.table("a")) == [1, 2, 7]


def test_a_key_whose_transaction_was_given_up_is_free_again(site: Site, lake: Lake) -> None:
    other = site.open()
    tx = interrupted(lake, key="k")
    foreign_append(uri_of(lake, "a"), 7)
    with other.transaction(idempotency_key="k") as again:
        again.table("a").append(numbers(2))
    assert again.result is not None
    assert not again.result.replayed
    assert ids(lake.table("a")) == [1, 2, 7]
    result = tx.commit()
    assert (result.replayed, result.transaction_id) == (True, again.id), "now it is the second one"
    assert ids(lake.table("a")) == [1, 2, 7]


def test_the_writer_itself_learns_that_it_was_given_up(site: Site, lake: Lake) -> None:
    """Somebody else found the number taken and gave it up before the writer came to look."""
    tx = interrupted(lake)
    foreign_append(uri_of(lake, "a"), 7)
    assert ids(site.open().table("a")) == [1, 7]
    result = tx.commit()
    assert ids(lake.table("a")) == [1, 2, 7], "it is undecided again, so it can be committed after all"
    assert lake.outcome(tx.id) == Committed(result.snapshot)
    assert lake.table("a").check().problems == ()

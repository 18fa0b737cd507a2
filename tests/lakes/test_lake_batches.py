"""Transactions that wait for one table are committed together, and each is what it would have been by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.batches import HeldTurn, held_turn
from tests.support.lakes import Site, add_to_both, both, foreign_append, ids, numbers, two_tables, uri_of
from tests.support.lost_catalogs import lose_catalog, rebuild
from tiltyard.catalog.lake_values import Publication
from tiltyard.catalog.publishing import LEADER, Published
from tiltyard.catalog.value_codec import transaction_key
from tiltyard.errors import ConflictError, ExpectedVersionMismatch, InvalidInput, StorageError
from tiltyard.lake import Lake
from tiltyard.lakes import lake_batches
from tiltyard.lakes.cleanup.orphans import committed_beyond
from tiltyard.lakes.lake_batches import BatchLeader
from tiltyard.storage.staged import STAGED
from tiltyard.verbs.outcome import Committed, NotCommitted

SITES = ["sqlite", "manifest"]


@pytest.fixture
def lake(site: Site) -> Lake:
    return two_tables(site.open(author="test"))


def sizes(lake: Lake) -> list[int]:
    """How many members each snapshot has, the latest first."""
    return [len(snapshot.members) for snapshot in lake.catalog.history()]


def line_up(lake: Lake, held: HeldTurn, *several: int) -> None:
    for number in several:
        held.line_up(add_to_both(lake.transaction(message=f"m{number}"), number))


# ---- what a batch is -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", SITES, indirect=True)
def test_those_who_wait_are_one_snapshot_and_each_is_found(lake: Lake, site: Site) -> None:
    before = lake.catalog.cut().snapshot
    with held_turn(lake, "a", "b") as held:
        for number in (2, 3, 4):
            tx = lake.transaction(message=f"m{number}", properties={"n": str(number)}, idempotency_key=f"k{number}")
            held.line_up(add_to_both(tx, number))
        done = held.give_back()
    assert {each.snapshot for each in done} == {before + 1}
    assert both(lake) == ([1, 2, 3, 4], [1, 2, 3, 4])
    assert {tuple(each.tables.items()) for each in done} == {(("a", 2), ("b", 2))}
    newest = next(iter(lake.catalog.history()))
    assert [(member.message, member.properties, member.author) for member in newest.members] == [
        (f"m{number}", {"n": str(number)}, "test") for number in (2, 3, 4)
    ]
    heads = lake.catalog.cut().tables
    assert {member.tables for member in newest.members} == {(heads["a"].id, heads["b"].id)}
    assert all(isinstance(lake.outcome(each.transaction_id), Committed) for each in done)
    assert isinstance(lake.outcome(newest.transaction), Committed), "the batch has a record of its own"
    again = lake.transaction(idempotency_key="k3")
    replayed = add_to_both(again, 99).commit()
    assert replayed.replayed
    assert replayed.transaction_id == done[1].transaction_id
    assert {member.properties["tiltyard.lake.transaction"] for member in lake.table("a").history()[0].members} == {
        each.transaction_id for each in done
    }
    assert not lake.check().problems
    assert not [path for path in site.files() if STAGED in path], "all that was staged is gone"
    assert len(site.files("_transactions/")) == 4, "the first of each table, and that of the batch"
    assert both(lake) == ([1, 2, 3, 4], [1, 2, 3, 4])


def test_who_does_not_allow_it_has_a_snapshot_of_its_own(lake: Lake) -> None:
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2)
        alone = held.line_up(add_to_both(lake.transaction(), 3), offers=False, batch=False)
        line_up(lake, held, 4)
        done = held.give_back()
    assert alone.commit is not None
    assert done[0].snapshot == done[2].snapshot != alone.commit.snapshot
    assert alone.tx._member is None
    assert both(lake) == ([1, 2, 3, 4],) * 2


def test_a_revert_takes_back_others_only_when_it_is_told_to(lake: Lake) -> None:
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2, 3)
        done = held.give_back()
    snapshot = done[0].snapshot
    newest = next(iter(lake.catalog.history()))
    assert set(newest.transactions) == {each.transaction_id for each in done}
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="2 transactions") as caught:
            lake.branches.revert(snapshot, dry_run=dry_run)
        assert all(each.transaction_id in str(caught.value) for each in done)
    assert both(lake) == ([1, 2, 3], [1, 2, 3])
    for wrong in (1.5, "2", None, True, 0):
        with pytest.raises(InvalidInput, match="at least 1"):
            lake.branches.revert(wrong)  # type: ignore[arg-type]
    lake.branches.revert(snapshot, all_writers=True)
    assert both(lake) == ([1], [1])
    alone = add_to_both(lake.transaction(), 5).commit()
    assert lake.snapshot().id == alone.snapshot
    lake.branches.revert(alone.snapshot)
    assert both(lake) == ([1], [1])


def test_whoever_does_not_wait_makes_no_offer(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[object] = []
    monkeypatch.setattr(lake_batches.BatchLeader, "lead", lambda *given: offered.append(given))
    lake.hot.note([head.id for head in lake.catalog.cut().tables.values()])
    tx = lake.transaction()
    tx.batch = True
    add_to_both(tx, 2).commit()
    assert tx._member is not None
    assert not tx._member.offered
    assert not offered


def test_tables_of_one_member_alone_get_its_own_versions(lake: Lake) -> None:
    lake.create_table("c", numbers(1))
    lake.create_table("d", numbers(1, 2))
    with held_turn(lake, "a") as held:
        for number, name in ((2, "c"), (3, "d")):
            tx = lake.transaction()
            tx.table("a").append(numbers(number))
            tx.table(name).append(numbers(number))
            if name == "d":
                tx.table("d").delete("id = 1")
            held.line_up(tx)
        first, second = held.give_back()
    assert first.snapshot == second.snapshot
    assert (ids(lake.table("a")), ids(lake.table("c")), ids(lake.table("d"))) == ([1, 2, 3], [1, 2], [2, 3])
    assert (first.tables, second.tables) == ({"a": 2, "c": 2}, {"a": 2, "d": 3})
    assert not lake.check().problems
    assert not lake.catalog.pending()


def test_rows_that_came_before_the_batch_are_gone_over(lake: Lake) -> None:
    with held_turn(lake, "a") as held:
        line_up(lake, held, 2, 3)
        with lake.transaction() as single:
            lake.hot._met.clear()
            single.table("b").append(numbers(7))
        first, second = held.give_back()
    assert first.snapshot == second.snapshot
    assert both(lake) == ([1, 2, 3], [1, 2, 3, 7])
    assert first.rebased == {"b": (2,)}


# ---- who is left out ---------------------------------------------------------------------------------------------------------------


def test_who_does_not_fit_goes_by_itself(lake: Lake) -> None:
    with held_turn(lake, "a") as held:
        line_up(lake, held, 2)
        deletes = lake.transaction()
        deletes.table("a").delete("id = 1")
        held.line_up(deletes)
        line_up(lake, held, 3)
        done = held.give_back()
    assert both(lake) == ([2, 3], [1, 2, 3])
    assert done[0].snapshot == done[2].snapshot != done[1].snapshot
    assert not lake.check().problems


def test_whoever_takes_or_frees_a_name_makes_no_offer(lake: Lake) -> None:
    with held_turn(lake, "a") as held:
        line_up(lake, held, 2)
        names = lake.transaction()
        names.table("a").append(numbers(5))
        names.create_table("new", numbers(1))
        held.line_up(names, offers=False)
        line_up(lake, held, 3)
        done = held.give_back()
    assert done[0].snapshot == done[2].snapshot != done[1].snapshot
    assert both(lake) == ([1, 2, 3, 5], [1, 2, 3])


def test_other_columns_are_not_folded(lake: Lake) -> None:
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2)
        lake.table("a").add_columns({"x": "id + 1"})
        line_up(lake, held, 3)
        done = held.give_back()
    assert len({each.snapshot for each in done}) == 2
    assert both(lake) == ([1, 2, 3], [1, 2, 3])


def test_of_two_with_one_key_one_is_committed(lake: Lake) -> None:
    with held_turn(lake, "a", "b") as held:
        for number in (2, 3):
            held.line_up(add_to_both(lake.transaction(idempotency_key="same"), number))
        first, second = held.give_back()
    assert second.replayed
    assert second.transaction_id == first.transaction_id
    assert both(lake) == ([1, 2], [1, 2])


def test_a_serializable_member_sees_nothing_that_one_before_it_wrote(lake: Lake) -> None:
    lake.create_table("c", numbers(1))
    with held_turn(lake, "a") as held:
        line_up(lake, held, 2)
        reads = lake.transaction(isolation="serializable")
        assert ids(reads.table("b")) == [1]
        reads.table("a").append(numbers(5))
        quiet = lake.transaction(isolation="serializable")
        assert ids(quiet.table("c")) == [1]
        quiet.table("a").append(numbers(6))
        lake.table("a").append(numbers(9))  # so that both find the table moved, and wait
        held.line_up(reads)
        held.line_up(quiet)
        held.ticket.give_back()
        assert isinstance(held.waiters[1].failed(), ConflictError)
        first, second = held.waiters[0].done(), held.waiters[2].done()
    assert first.snapshot == second.snapshot
    assert both(lake) == ([1, 2, 6, 9], [1, 2])
    assert isinstance(lake.outcome(reads.id), NotCommitted), "it was aborted before its files were removed"
    assert not lake.check().problems


def test_what_a_member_read_is_compared_under_the_lock(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create_table("c", numbers(1))
    publish, late = lake.catalog.publish, list[Publication]()

    def moves(publication: Publication, *more: Any) -> Published:
        if publication.members and not late:
            late.append(publication)
            lake.table("c").append(numbers(2))
        return publish(publication, *more)

    with held_turn(lake, "a") as held:
        line_up(lake, held, 2)
        reads = lake.transaction(isolation="serializable")
        assert ids(reads.table("c")) == [1]
        reads.table("a").append(numbers(5))
        lake.table("a").append(numbers(9))  # so that it finds the table moved, and waits
        held.line_up(reads)
        line_up(lake, held, 3)
        monkeypatch.setattr(lake.catalog, "publish", moves)
        held.ticket.give_back()
        assert isinstance(held.waiters[1].failed(), ConflictError)
        assert held.waiters[0].done().snapshot == held.waiters[2].done().snapshot
    assert [member.transaction for member in late[0].members][1] == reads.id
    assert both(lake) == ([1, 2, 3, 9], [1, 2, 3])


def test_columns_are_compared_with_those_of_the_version(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_batches, "columns_of", lambda _: "others")
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2, 3)
        first, second = held.give_back()
    assert first.snapshot != second.snapshot
    assert both(lake) == ([1, 2, 3], [1, 2, 3])


def test_who_has_lost_its_files_is_left_out(lake: Lake, site: Site) -> None:
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2)
        tx = add_to_both(lake.transaction(), 3)
        held.line_up(tx)
        line_up(lake, held, 4)
        for path in tx._by_name["a"].access.new_files():  # type: ignore[union-attr]
            if path.startswith("data/"):
                (site.directory / tx._by_name["a"].head.location / path).unlink()  # type: ignore[union-attr]
        held.ticket.give_back()
        assert isinstance(held.waiters[1].failed(), StorageError)
        assert held.waiters[0].done().snapshot == held.waiters[2].done().snapshot
    assert both(lake) == ([1, 2, 4], [1, 2, 4])


# ---- answers that are lost, leaders that hang --------------------------------------------------------------------------------------


def test_a_member_goes_on_without_a_leader_that_fails(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise StorageError("the store is away")

    monkeypatch.setattr(BatchLeader, "_staged", fails)
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2, 3, 4)
        done = held.give_back()
    assert len({each.snapshot for each in done}) == 3
    assert both(lake) == ([1, 2, 3, 4], [1, 2, 3, 4])


def test_a_lost_answer_is_found_out(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, lost = lake.catalog.publish, list[Published]()

    def loses(publication: Publication, *more: Any) -> Published:
        done = publish(publication, *more)
        if publication.members and not lost:
            lost.append(done)
            raise StorageError("the answer was lost", maybe_applied=True)
        return done

    monkeypatch.setattr(lake.catalog, "publish", loses)
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2, 3)
        first, second = held.give_back()
    assert lost
    assert first.snapshot == second.snapshot
    assert both(lake) == ([1, 2, 3], [1, 2, 3])
    assert not lake.check().problems


def test_a_leader_that_comes_back_late_commits_nobody_twice(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, late = lake.catalog.publish, list[Publication]()

    def stops(publication: Publication, *more: Any) -> Published:
        if publication.members and not late:
            late.append(publication)
            raise StorageError("it hangs", maybe_applied=True)
        return publish(publication, *more)

    monkeypatch.setattr(lake.catalog, "publish", stops)
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2, 3, 4)
        held.give_back()
    with pytest.raises(Exception, match="decided by themselves"):
        publish(late[0])
    assert both(lake) == ([1, 2, 3, 4], [1, 2, 3, 4])
    assert not lake.check().problems


def test_after_a_failure_nobody_else_commits_it(lake: Lake) -> None:
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2)
        deletes = lake.transaction()
        deletes.table("a").delete("id = 1")
        waiter = held.line_up(deletes)
        lake.table("a").delete("id = 1")
        held.ticket.give_back()
        error = waiter.failed()
    assert isinstance(error, ExpectedVersionMismatch | ConflictError)
    known = lake.catalog.records.get([transaction_key(deletes.id)])[transaction_key(deletes.id)]
    assert known["state"] == "aborted"


def test_a_batch_gives_way_to_a_foreign_version_as_a_whole(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, done = lake.catalog.publish, list[Publication]()

    def beside(publication: Publication, *more: Any) -> Published:
        if publication.members and not done:
            foreign_append(uri_of(lake, "a"), 50)
            done.append(publication)
        return publish(publication, *more)

    monkeypatch.setattr(lake.catalog, "publish", beside)
    with held_turn(lake, "a") as held:
        for number in (2, 3, 4):
            tx = lake.transaction(idempotency_key=f"k{number}")
            tx.table("a").append(numbers(number))
            held.line_up(tx)
        commits = held.give_back()
    assert done
    assert not any(each.replayed for each in commits), "nobody had the keys any more"
    told = [(lake.catalog.with_key(f"k{number}") or {}).get("transaction") for number in (2, 3, 4)]
    assert told == [each.transaction_id for each in commits]
    assert ids(lake.table("a")) == [1, 2, 3, 4, 50]
    assert all(isinstance(lake.outcome(each.transaction_id), Committed) for each in commits)
    assert any(snapshot.voided and len(snapshot.members) == 3 for snapshot in lake.catalog.history())
    assert not lake.check().problems


def test_a_member_is_certain_only_once_its_version_has_its_name(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = lake.catalog.publish

    def beside(publication: Publication, *more: Any) -> Published:
        done = publish(publication, *more)
        if publication.members:
            monkeypatch.setattr(lake.catalog, "publish", publish)
            foreign_append(uri_of(lake, "a"), 50)  # before ours has its name
        return done

    monkeypatch.setattr(lake.catalog, "publish", beside)
    monkeypatch.setattr(lake_batches, "finish", lambda *given, **more: [])  # the leader hangs
    with held_turn(lake, "a") as held:
        for number in (2, 3):
            tx = lake.transaction()
            tx.table("a").append(numbers(number))
            held.line_up(tx)
        commits = held.give_back()
    assert ids(lake.table("a")) == [1, 2, 3, 50]
    assert all(isinstance(lake.outcome(each.transaction_id), Committed) for each in commits)
    assert not lake.check().problems


def test_a_conflict_names_the_members_that_wrote_to_the_table(lake: Lake) -> None:
    late = lake.transaction()
    late.table("b").delete("id = 1")
    late.table("a").delete("id = 1")
    with held_turn(lake, "a") as held:
        line_up(lake, held, 2)
        only = lake.transaction(message="only a")
        only.table("a").append(numbers(3))
        held.line_up(only)
        held.give_back()
    lake.table("b").overwrite(numbers(8))
    with pytest.raises(ConflictError) as raised:
        late.commit()
    assert "m2" in str(vars(raised.value))
    assert "only a" not in str(vars(raised.value))


# ---- a lost catalog, and cleanups ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False])
def test_a_lost_catalog_has_the_batch_again(site: Site, lake: Lake, finished: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create_table("c", numbers(1))
    if not finished:
        monkeypatch.setattr("tiltyard.lakes.batch_members.finish", lambda *given, **more: [])  # its own table waits for its name
    with held_turn(lake, "a") as held:
        for number in (2, 3):
            tx = lake.transaction(message=f"m{number}", properties={"n": str(number)}, idempotency_key=f"k{number}")
            tx.table("a").append(numbers(number))
            if number == 3:
                tx.table("c").append(numbers(3))
            held.line_up(tx)
        done = held.give_back()
    assert sizes(lake)[0] == 2
    monkeypatch.undo()
    lake.close()
    lose_catalog(site)
    report = rebuild(site)
    found = site.open()
    assert not report.in_doubt
    assert ids(found.table("a")) == [1, 2, 3]
    assert ids(found.table("c")) == [1, 3]
    newest = next(snapshot for snapshot in found.catalog.history() if snapshot.members)
    assert [(member.message, member.properties) for member in newest.members] == [("m2", {"n": "2"}), ("m3", {"n": "3"})]
    assert {change.name for change in newest.changes} == {"a", "c"}
    heads = found.catalog.cut().tables
    assert [{*member.tables} for member in newest.members] == [{heads["a"].id}, {heads["a"].id, heads["c"].id}]
    assert all(isinstance(found.outcome(each.transaction_id), Committed) for each in done)
    with found.transaction(idempotency_key="k3") as again:
        again.table("a").append(numbers(9))
    assert again.result is not None
    assert again.result.replayed
    assert not found.check().problems


def test_of_a_batch_without_any_name_nobody_can_tell(site: Site, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("batch_members", "lake_batches"):
        monkeypatch.setattr(f"tiltyard.lakes.{module}.finish", lambda *given, **more: [])
    monkeypatch.setattr("tiltyard.verbs.engine.staged_access.StagedAccess.drop_versions", lambda _: None)
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2, 3)
        done = held.give_back()
    batch = lake.catalog.transaction(done[0].transaction_id)[LEADER]  # type: ignore[index]
    monkeypatch.undo()
    lake.close()
    lose_catalog(site)
    report = rebuild(site)
    assert set(report.in_doubt) == {batch, *(each.transaction_id for each in done)}
    assert both(site.open()) == ([1], [1])


def test_what_members_had_staged_is_not_committed_again(site: Site, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.verbs.engine.staged_access.StagedAccess.drop_versions", lambda _: None)  # they died before
    with held_turn(lake, "a") as held:
        for number in (2, 3):
            tx = lake.transaction()
            for more in (0, 10, 20):
                tx.table("a").append(numbers(number + more))
            held.line_up(tx)
        held.give_back()
    monkeypatch.undo()
    lose_catalog(site)
    report = rebuild(site)
    found = site.open()
    assert ids(found.table("a")) == [1, 2, 3, 12, 13, 22, 23]
    assert found.table("a").version == 2
    assert not report.in_doubt
    assert not found.check().problems


def test_what_a_dead_leader_staged_goes_and_the_rows_of_members_stay(lake: Lake, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = lake.catalog.publish

    def dies(publication: Publication, *more: Any) -> Published:
        if publication.members:
            raise StorageError("it dies", maybe_applied=True)
        return publish(publication, *more)

    monkeypatch.setattr(lake.catalog, "publish", dies)
    with held_turn(lake, "a", "b") as held:
        line_up(lake, held, 2, 3, 4)
        held.give_back()
    monkeypatch.undo()
    assert [path for path in site.files() if STAGED in path]
    report = lake.cleanup(grace=timedelta(0))
    assert not [path for path in site.files() if STAGED in path]
    assert report
    assert both(lake) == ([1, 2, 3, 4], [1, 2, 3, 4])
    assert not lake.check().problems


def test_an_older_catalog_leaves_what_a_member_staged(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create_table("c", numbers(1))
    monkeypatch.setattr("tiltyard.lakes.batch_members.finish", lambda *given, **more: [])  # its own table waits for its name
    with held_turn(lake, "a") as held:
        for number in (2, 3):
            tx = lake.transaction()
            tx.table("a").append(numbers(number))
            tx.table("c" if number == 3 else "b").append(numbers(number))
            held.line_up(tx)
        done = held.give_back()
    heads = lake.catalog.cut().tables
    before = [(lake.plain_access_of(heads[name]), 1) for name in ("a", "b", "c")]
    batch = lake.catalog.transaction(done[0].transaction_id)
    assert batch is not None
    assert committed_beyond(before, lake.id) == {batch[LEADER], *(each.transaction_id for each in done)}

"""Branches of a lake: a line of history has an identity, and nothing of one line shows up on another except by a fast-forward."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.lakes import InterposedRecords, Site, add_to_both, both, foreign_append, ids, numbers, stock, through, two_tables, uri_of
from tiltyard.catalog.lake_values import MAIN, Change, Publication, TableHead
from tiltyard.catalog.line_identity import root_key
from tiltyard.catalog.records import Body, Writes
from tiltyard.catalog.value_codec import BRANCHES, TABLES, tip_key
from tiltyard.errors import ConflictError, ExpectedVersionMismatch, HistoryUnavailable, InvalidInput, NotFound
from tiltyard.lake import Lake
from tiltyard.lakes.lake_transaction import LakeTransaction


def on(lake: Lake, branch: str) -> Lake:
    return lake if branch == MAIN else lake.on_branch(branch)


def rows(lake: Lake, branch: str = MAIN) -> dict[str, list[int]]:
    shot = on(lake, branch).snapshot()
    return {name: ids(shot.table(name)) for name in shot.tables()}


def sound(lake: Lake) -> None:
    assert lake.check().problems == ()


# ---- who is at work while a branch becomes another one ------------------------------------------------------------------------------


def fast_forwarded(lake: Lake) -> None:
    lake.branches.fast_forward("side")


def made_again(lake: Lake) -> None:
    lake.branches.delete("side")
    lake.branches.create("side")


REPLACED = [fast_forwarded, made_again]


@pytest.mark.parametrize("replace_it", REPLACED)
def test_a_transaction_open_on_a_branch_that_is_replaced_is_refused(lake: Lake, replace_it: Callable[[Lake], None]) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.create_table("new", numbers(1))
    side.table("a").append(numbers(2))
    tx = side.transaction()
    tx.table("new").append(numbers(88))
    add_to_both(tx, 88)
    replace_it(lake)
    before = rows(lake), rows(lake, "side")
    with pytest.raises(ExpectedVersionMismatch) as caught:
        tx.commit()
    assert (caught.value.retryable, caught.value.cause) == (True, "line")
    assert "side" in str(caught.value)
    assert (rows(lake), rows(lake, "side")) == before
    assert lake.history()[0].transaction != tx.id
    sound(lake)
    side.run(lambda again: add_to_both(again, 99))
    assert 99 in rows(lake, "side")["a"]
    assert 99 not in rows(lake)["a"]


@pytest.mark.parametrize("replace_it", REPLACED)
def test_a_handle_opened_on_a_branch_that_is_replaced_is_refused(lake: Lake, replace_it: Callable[[Lake], None]) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    new, a = side.create_table("new", numbers(1)), side.table("a")
    a.append(numbers(2))
    replace_it(lake)
    before = rows(lake), rows(lake, "side")
    for handle in (new, a):
        with pytest.raises(ExpectedVersionMismatch, match="side"):
            handle.append(numbers(88))
    assert (rows(lake), rows(lake, "side")) == before
    sound(lake)
    side.table("a").append(numbers(3))
    assert 3 not in rows(lake)["a"]


def test_a_branch_made_again_takes_no_commit_of_the_one_before_though_the_numbers_agree(lake: Lake) -> None:
    lake.branches.create("side")
    lake.on_branch("side").table("a").append(numbers(666))
    tx = lake.on_branch("side").transaction()
    tx.table("a").append(numbers(7))
    lake.table("a").append(numbers(2))
    made_again(lake)
    assert lake.on_branch("side").snapshot().versions() == {"a": 2, "b": 1}, "as the transaction read it"
    with pytest.raises(ExpectedVersionMismatch):
        tx.commit()
    assert rows(lake, "side") == {"a": [1, 2], "b": [1]}


def test_a_deleted_branch_takes_nothing(lake: Lake) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    handle, tx = side.table("a"), side.transaction()
    tx.table("a").append(numbers(2))
    lake.branches.delete("side")
    for commit in (tx.commit, lambda: handle.append(numbers(3))):
        with pytest.raises(NotFound, match="side"):
            commit()
    left = [key for key, _ in lake.catalog.records.scan([""]) if "/side" in key]
    assert [key for key in left if not key.startswith("ended/")] == [], "nothing of it is left in the catalog but that it ended"
    sound(lake)


def test_another_version_under_the_same_number_is_not_what_was_built_on(lake: Lake) -> None:
    """The head has the right number, and the wrong transaction or branch of the table."""
    for wrong in ({"transaction": "somebody-else"}, {"branch": "elsewhere"}):
        tx = lake.transaction()
        tx.table("a").append(numbers(5))
        key = f"{TABLES}main/{lake.catalog.cut().tables['a'].id}"
        right = lake.catalog.records.get([key])[key]
        _put(lake, key, {**right, **wrong})
        with pytest.raises(ExpectedVersionMismatch) as caught:
            tx.commit()
        assert (caught.value.cause, caught.value.table) == ("replaced", "a")
        _put(lake, key, right)
    assert rows(lake)["a"] == [1]


def _put(lake: Lake, key: str, body: Body | None) -> None:
    lake.catalog.records.transact([key], [], lambda found: Writes(None, {} if body is None else {key: body}, [key] if body is None else []))


# ---- a fast-forward is one step ------------------------------------------------------------------------------------------------------


def test_somebody_writes_to_the_branch_while_it_is_brought_home(site: Site, lake: Lake) -> None:
    lake.branches.create("side")
    lake.on_branch("side").create_table("new", numbers(1))
    other = site.open()
    records = through(lake, lambda inner: InterposedRecords(inner, lambda: other.on_branch("side").table("new").append(numbers(2))))
    with pytest.raises(ExpectedVersionMismatch, match="Fast-forward again"):
        lake.branches.fast_forward("side")
    assert rows(lake) == {"a": [1], "b": [1]}
    lake.catalog.records = records.inner
    lake.branches.fast_forward("side")
    assert rows(lake) == rows(lake, "side") == {"a": [1], "b": [1], "new": [1, 2]}
    sound(lake)


def test_commits_to_other_tables_of_main_do_not_stand_in_the_way(site: Site, lake: Lake) -> None:
    lake.branches.create("side")
    lake.on_branch("side").table("a").append(numbers(2))
    other = site.open()

    def busy() -> None:
        other.table("b").append(numbers(5))
        other.create_table(f"more{other.snapshot().id}", numbers(1))

    through(lake, lambda inner: InterposedRecords(inner, busy, times=2))
    lake.branches.fast_forward("side")
    assert rows(other, "side") == rows(other)
    assert rows(other)["a"] == [1, 2]
    assert rows(other)["b"] == [1, 5, 5]
    sound(other)


def test_after_a_fast_forward_every_line_writes_for_itself(lake: Lake) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.create_table("new", numbers(1))
    side.table("a").append(numbers(2))
    done = lake.branches.fast_forward("side")
    assert (done.snapshot, done.tables) == (lake.snapshot().id, {"a": 2})
    assert rows(lake) == rows(lake, "side") == {"a": [1, 2], "b": [1], "new": [1]}
    for name in ("a", "new"):
        side.table(name).append(numbers(10))
        lake.table(name).append(numbers(20))
    assert rows(lake) == {"a": [1, 2, 20], "b": [1], "new": [1, 20]}
    assert rows(lake, "side") == {"a": [1, 2, 10], "b": [1], "new": [1, 10]}
    assert ids(stock(lake, "new")) == [1, 20], "the directory alone is main's table"
    sound(lake)
    with pytest.raises(ExpectedVersionMismatch) as caught:
        lake.branches.fast_forward("side")
    assert (caught.value.expected, caught.value.actual, caught.value.retryable) == (2, 3, False)
    lake.cleanup(grace=timedelta(0), keep_snapshots=1)
    sound(lake)
    assert rows(lake, "side") == {"a": [1, 2, 10], "b": [1], "new": [1, 10]}


def test_a_branch_that_did_nothing_follows_main(lake: Lake) -> None:
    lake.branches.create("side")
    before = lake.branches["side"].id
    lake.table("a").append(numbers(2))
    done = lake.branches.fast_forward("side")
    assert (done.snapshot, done.tables) == (lake.snapshot().id, {})
    assert rows(lake, "side") == {"a": [1, 2], "b": [1]}
    assert lake.branches["side"].id != before
    with pytest.raises(NotFound):
        lake.branches.fast_forward("nowhere")


def test_it_can_be_done_over_and_over(lake: Lake) -> None:
    lake.branches.create("side")
    for number in range(2, 5):
        add_to_both(lake.on_branch("side").transaction(), number).commit()
        lake.branches.fast_forward("side")
        assert both(lake) == both(lake.on_branch("side")) == ([*range(1, number + 1)],) * 2
    sound(lake)


# ---- names come home as a set ----------------------------------------------------------------------------------------------------


def _again(side: Lake) -> None:
    side.drop_table("a")
    side.create_table("a", numbers(3))


def _swap(side: Lake) -> None:
    with side.transaction() as tx:
        tx.rename_table("a", "t")
        tx.rename_table("b", "a")
        tx.rename_table("t", "b")


def _onto(side: Lake) -> None:
    side.drop_table("b")
    side.rename_table("a", "b")


def _chain(side: Lake) -> None:
    side.create_table("c", numbers(3))
    side.rename_table("b", "d")
    side.rename_table("a", "b")
    side.rename_table("c", "a")
    side.table("b").append(numbers(4))


def _swapped_and_written(side: Lake) -> None:
    _swap(side)
    add_to_both(side.transaction(), 5).commit()
    side.table("a").delete("id = 1")


def _through_two_commits(side: Lake) -> None:
    side.rename_table("a", "t")
    side.create_table("a", numbers(9))
    side.drop_table("b")
    side.rename_table("t", "b")


@pytest.mark.parametrize("work", [_again, _swap, _onto, _chain, _swapped_and_written, _through_two_commits])
def test_names_come_home_as_a_set(lake: Lake, work: Callable[[Lake], None]) -> None:
    lake.table("b").append(numbers(2))
    lake.branches.create("side")
    work(lake.on_branch("side"))
    there = rows(lake, "side")
    made = {name: head.id for name, head in lake.catalog.cut("side").tables.items()}
    lake.branches.fast_forward("side")
    assert rows(lake) == there == rows(lake, "side")
    assert {name: head.id for name, head in lake.catalog.cut().tables.items()} == made, "each is the table that it was"
    assert {name: ids(lake.table(name)) for name in lake.tables()} == there
    sound(lake)


@pytest.mark.parametrize(
    "on_main",
    [
        lambda lake: lake.table("a").append(numbers(8)),
        lambda lake: lake.drop_table("a"),
        lambda lake: lake.rename_table("a", "z"),
        lambda lake: lake.create_table("c", numbers(8)),
    ],
)
def test_what_both_changed_is_refused_and_named(site: Site, lake: Lake, on_main: Callable[[Lake], Any]) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.table("a").append(numbers(2))
    side.rename_table("a", "c")
    ada = site.open(author="ada")
    on_main(ada)
    before = rows(lake), rows(lake, "side")
    with pytest.raises(ExpectedVersionMismatch) as caught:
        lake.branches.fast_forward("side")
    assert caught.value.table in ("a", "c")
    assert caught.value.by[-1]["author"] == "ada"
    assert "ada" in str(caught.value)
    assert not caught.value.retryable
    assert (rows(lake), rows(lake, "side")) == before
    sound(lake)


def test_names_that_main_has_already_are_no_reason_to_stay_away(lake: Lake) -> None:
    """Both renamed a table to the same name: there is nothing to publish, and the branch begins anew all the same."""
    lake.branches.create("side")
    lake.on_branch("side").rename_table("a", "c")
    lake.rename_table("a", "c")
    lake.table("c").append(numbers(2))
    lake.branches.fast_forward("side")
    assert rows(lake, "side") == rows(lake) == {"b": [1], "c": [1, 2]}


def test_a_table_that_both_dropped_is_no_reason_to_stay_away(lake: Lake) -> None:
    """Nothing of it is left to bring; what has its name on main since is another table, and stays. Found by walk 61."""
    lake.branches.create("side")
    lake.on_branch("side").drop_table("a")
    lake.on_branch("side").table("b").append(numbers(2))
    lake.drop_table("a")
    lake.create_table("a", numbers(9))
    lake.branches.fast_forward("side")
    assert rows(lake, "side") == rows(lake) == {"a": [9], "b": [1, 2]}
    sound(lake)


# ---- branches of branches --------------------------------------------------------------------------------------------------------


def _two_deep(lake: Lake) -> tuple[Lake, Lake]:
    lake.branches.create("one")
    one = lake.on_branch("one")
    one.table("a").append(numbers(2))
    one.create_table("made", numbers(1))
    one.branches.create("two")
    return one, lake.on_branch("two")


def test_a_branch_of_a_branch_brings_what_it_inherited(lake: Lake) -> None:
    one, two = _two_deep(lake)
    two.table("a").append(numbers(3))
    two.table("a").delete("id = 2")
    lake.branches.fast_forward("two")
    assert rows(lake) == rows(lake, "two") == {"a": [1, 3], "b": [1], "made": [1]}
    assert rows(lake, "one") == {"a": [1, 2], "b": [1], "made": [1]}
    sound(lake)
    # Three lines show the table that one of them made: each writes for itself.
    lake.table("made").append(numbers(10))
    one.table("made").append(numbers(20))
    two.table("made").append(numbers(30))
    assert [rows(lake, name)["made"] for name in (MAIN, "one", "two")] == [[1, 10], [1, 20], [1, 30]]
    sound(lake)
    with pytest.raises(ExpectedVersionMismatch, match="main"):
        lake.branches.fast_forward("one")
    lake.branches.delete("one")
    lake.cleanup(grace=timedelta(0), keep_snapshots=1)
    sound(lake)
    assert [rows(lake, name)["made"] for name in (MAIN, "two")] == [[1, 10], [1, 30]]
    two.table("b").append(numbers(5))
    with pytest.raises(ExpectedVersionMismatch, match="made"):
        lake.branches.fast_forward("two")


def test_a_branch_outlives_the_fast_forward_of_its_parent(lake: Lake) -> None:
    one, two = _two_deep(lake)
    two.table("b").append(numbers(5))
    lake.branches.fast_forward("one")
    assert rows(lake, "two") == {"a": [1, 2], "b": [1, 5], "made": [1]}
    sound(lake)
    one.table("a").append(numbers(6))
    two.table("a").append(numbers(7))
    two.table("made").append(numbers(7))
    lake.cleanup(grace=timedelta(0), keep_snapshots=1)
    assert rows(lake, "two") == {"a": [1, 2, 7], "b": [1, 5], "made": [1, 7]}
    assert (rows(lake)["a"], rows(lake, "one")["a"], rows(lake)["made"]) == ([1, 2], [1, 2, 6], [1])
    sound(lake)
    with pytest.raises(ExpectedVersionMismatch, match="main"):
        lake.branches.fast_forward("two")
    lake.branches.delete("one")  # what two was made from is another line


def test_a_table_made_on_main_while_the_branch_was_away_stays(lake: Lake) -> None:
    _, two = _two_deep(lake)
    lake.create_table("of-main", numbers(4))
    two.table("b").append(numbers(2))
    lake.branches.fast_forward("two")
    assert rows(lake) == rows(lake, "two") == {"a": [1, 2], "b": [1, 2], "made": [1], "of-main": [4]}


def test_columns_and_indices_come_home_through_two_branches(lake: Lake) -> None:
    one, two = _two_deep(lake)
    one.table("a").add_columns({"double": "id * 2"})
    lake.branches.delete("two")
    one.branches.create("two")
    two = lake.on_branch("two")
    two.table("a").append(numbers(9).append_column("double", [[18]]))
    two.table("a").compact()
    two.table("a").delete("id = 1")
    lake.branches.fast_forward("two")
    table = lake.table("a")
    assert sorted(zip(*(table.to_arrow()[name].to_pylist() for name in ("id", "double")), strict=True)) == [(2, 4), (9, 18)]
    assert stock(lake, "a").count_rows() == 2
    lake.branches.delete("two")
    lake.branches.delete("one")
    lake.cleanup(grace=timedelta(0), keep_snapshots=1)
    sound(lake)
    assert ids(lake.table("a")) == ids(stock(lake, "a")) == [2, 9]


def test_versions_that_were_cleaned_up_cannot_be_brought_home(lake: Lake) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    for number in (2, 3, 4):
        side.table("a").append(numbers(number))
    lake.cleanup(grace=timedelta(0), keep_snapshots=1)
    before = rows(lake), rows(lake, "side")
    with pytest.raises(HistoryUnavailable, match="cleaned up"):
        lake.branches.fast_forward("side")
    assert (rows(lake), rows(lake, "side")) == before
    sound(lake)


# ---- names for snapshots of a branch -----------------------------------------------------------------------------------------------


def test_a_tag_on_a_branch_is_not_lost(site: Site, lake: Lake) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.table("a").append(numbers(2))
    side.tags.create("kept")
    for end in (lake.branches.fast_forward, lake.branches.delete):
        with pytest.raises(InvalidInput, match="kept"):
            end("side")
    assert ids(lake.snapshot("kept").table("a")) == [1, 2]
    lake.tags.delete("kept")
    other = site.open()
    records = through(lake, lambda inner: InterposedRecords(inner, lambda: other.on_branch("side").tags.create("quick")))
    with pytest.raises(InvalidInput, match="quick"):
        lake.branches.fast_forward("side")
    other.tags.delete("quick")
    through(lake, lambda _: InterposedRecords(records.inner, lambda: other.on_branch("side").branches.create("child"), match="branch/"))
    with pytest.raises(InvalidInput, match="child"):
        lake.branches.delete("side")
    sound(other)


def test_a_commit_beside_the_deletion_of_its_branch_leaves_nothing_behind(site: Site, lake: Lake) -> None:
    lake.branches.create("side")
    other = site.open()
    names = iter(["new", "newer"])
    work = lambda: other.on_branch("side").create_table(next(names), numbers(1))  # noqa: E731
    through(lake, lambda inner: InterposedRecords(inner, work, times=2))
    lake.branches.delete("side")
    left = [key for key, _ in lake.catalog.records.scan([""]) if "/side" in key]
    assert [key for key in left if not key.startswith("ended/")] == []  # that it ended stays known: what only it had is dead
    lake.branches.create("side")
    assert rows(other, "side") == {"a": [1], "b": [1]}
    sound(other)


def test_the_key_of_work_on_a_deleted_branch_is_free_again(lake: Lake) -> None:
    def work(tx: LakeTransaction) -> str:
        tx.table("a").append(numbers(2))
        return "done"

    lake.branches.create("side")
    assert lake.on_branch("side").run(work, idempotency_key="k") == "done"
    lake.branches.delete("side")
    assert lake.run(work, idempotency_key="k") == "done", "it is on no line of history"
    lake.branches.create("side")
    lake.on_branch("side").run(work, idempotency_key="k2")
    lake.branches.fast_forward("side")
    lake.branches.delete("side")
    assert lake.run(work, idempotency_key="k2") is None, "main has it"
    assert rows(lake)["a"] == [1, 2, 2]


# ---- foreign writers, and lakes of earlier releases ----------------------------------------------------------------------------------


def test_a_foreign_writer_on_a_fork_is_adopted_there(lake: Lake) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    foreign_append(side.table("a").uri, 5)  # nothing was committed on the fork yet
    assert ids(side.table("a")) == [1, 5]
    assert rows(lake)["a"] == [1]
    side.table("a").append(numbers(6))
    foreign_append(uri_of(lake, "a"), 7)
    assert (ids(lake.table("a")), ids(side.table("a"))) == ([1, 7], [1, 5, 6])
    sound(lake)


def test_a_lake_of_an_earlier_release_is_taken_as_it_is(site: Site, lake: Lake) -> None:
    """Its records have none of the members that tell lines apart; they come with the next write."""
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.table("a").append(numbers(2))
    side.create_table("new", numbers(1))
    side.branches.create("deep")
    lake.on_branch("deep").table("a").append(numbers(3))
    for key, body in lake.catalog.records.scan([""]):
        _put(lake, key, _of_an_earlier_release(key, body))
    lake = site.open()
    sound(lake)
    tx = lake.on_branch("deep").transaction()
    tx.table("new").append(numbers(4))
    tx.commit()
    lake.table("b").append(numbers(9))
    assert lake.catalog.records.get([tip_key(MAIN)])[tip_key(MAIN)]["line"]
    assert rows(lake, "deep") == {"a": [1, 2, 3], "b": [1], "new": [1, 4]}
    assert rows(lake, "side") == {"a": [1, 2], "b": [1], "new": [1]}
    lake.branches.fast_forward("deep")
    assert rows(lake) == {"a": [1, 2, 3], "b": [1, 9], "new": [1, 4]}
    lake.on_branch("side").table("new").append(numbers(5))
    assert rows(lake)["new"] == [1, 4]
    sound(lake)


def _of_an_earlier_release(key: str, body: Any) -> Body | None:
    new = {"line", "owner", "transaction", "origin_line", "refs", "location", "base_branch", "base_transaction"}
    if key.startswith(root_key("")):
        return None
    if key.startswith((tip_key(""), BRANCHES)):
        return {name: value for name, value in body.items() if name not in new}
    if key.startswith(TABLES):
        return {name: value for name, value in body.items() if name not in ("owner", "transaction")}
    if key.startswith("cut/"):
        return {
            "tables": [{name: value for name, value in head.items() if name not in ("owner", "transaction")} for head in body["tables"]]
        }
    if key.startswith("snapshot/"):
        changes = [
            {name: value for name, value in change.items() if name not in ("base_branch", "base_transaction", "owner")}
            for change in body["changes"]
        ]
        return {**{name: value for name, value in body.items() if name != "line"}, "changes": changes}
    return dict(body)


# ---- what the check finds ------------------------------------------------------------------------------------------------------------


def test_the_check_finds_tables_that_two_lines_write_to(lake: Lake) -> None:
    lake.branches.create("side")
    side = lake.on_branch("side")
    side.create_table("new", numbers(1))
    sound(lake)
    head = lake.catalog.cut("side").tables["new"]
    lake.catalog.publish(
        Publication("t", (_registered(head),), line=lake.catalog.cut().line)
    )  # what a fast-forward in two steps left when it died between them
    (problem,) = lake.check().problems
    assert (problem.invariant, problem.table) == ("catalog", "new")
    assert "main" in problem.text
    assert "side" in problem.text


def _registered(head: TableHead) -> Change:
    return Change(head.id, "register", head.name, head.version, head.version, (), head.location, head.naming, head.branch)


def test_the_check_finds_heads_whose_version_somebody_else_made(lake: Lake) -> None:
    key = f"{TABLES}main/{lake.catalog.cut().tables['a'].id}"
    _put(lake, key, {**lake.catalog.records.get([key])[key], "transaction": "somebody-else"})
    (problem,) = lake.check().problems
    assert (problem.invariant, problem.table) == ("I10", "a")
    assert "somebody-else" in problem.text


def test_the_check_finds_a_tip_of_another_line(lake: Lake) -> None:
    lake.branches.create("side")
    body = lake.catalog.records.get([tip_key("side")])[tip_key("side")]
    _put(lake, tip_key("side"), {**body, "line": "01234567"})
    assert [problem for problem in lake.check().problems if "01234567" in problem.text]


def test_outcomes_of_a_line_that_is_gone_are_no_alarm(lake: Lake) -> None:
    for _ in range(2):
        lake.branches.create("side")
        lake.on_branch("side").table("a").append(numbers(2))
        sound(lake)
        lake.branches.delete("side")
    sound(lake)


# ---- conflicts name the table --------------------------------------------------------------------------------------------------------


def test_a_conflict_over_several_tables_says_which_one_and_who(site: Site) -> None:
    ada, bob = site.open(author="ada"), site.open(author="bob")
    two_tables(ada)
    ada.create_table("c", numbers(1))
    tx = ada.transaction()
    for name in ("a", "b", "c"):
        tx.table(name).update({"id": "id + 1"})
    with bob.transaction(message="bob was here") as other:
        other.table("b").update({"id": "7"})
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    error = caught.value
    assert (error.table, error.expected, error.actual) == ("b", 1, 2)
    assert [(winner.author, winner.message, winner.version) for winner in error.winners] == [("bob", "bob was here", 2)]
    assert [one["author"] for one in error.by] == ["bob"]
    assert "bob" in str(error)
    assert str(error).startswith("b ")
    assert len(str(error)) < 300
    assert error.to_dict()["table"] == "b"

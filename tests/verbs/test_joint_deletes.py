"""Deletes of several writers in one version: each with its own rows and result, or its own conflict.

A test holds the lead until all who are to wait do so. Then it lets go, and the first of them leads.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pytest
from pyroaring import BitMap

import tiltyard as ty
from tests.support.commits import ids_of, rows
from tests.support.in_line import LONG, Work, held, in_line
from tests.support.proving import pick
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFragment, DeletionFile
from tiltyard.storage.local_queue import LocalPlace, LocalQueue
from tiltyard.transaction import turns
from tiltyard.transaction.group import ROWS
from tiltyard.transaction.joint_delete import JointDelete, with_rows
from tiltyard.transaction.operations import Delete
from tiltyard.transaction.rebaser import Rebaser
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT, mark


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy with other things, too, those who wait are to wait for the test."""
    monkeypatch.setattr(turns, "PATIENCE", LONG)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Rows 0 to 5 in one fragment, 6 to 8 in the next."""
    uri = str(tmp_path / "t")
    table = ty.Table.create(uri, rows(*range(6)), stable_row_ids=True)
    table.append(rows(6, 7, 8))
    return uri


class Fragments(list[DataFragment]):
    """Those of a version, for what looks them up by number."""

    def ids(self) -> list[int]:
        return [fragment.id for fragment in self]


def deleting(where: str, **properties: str) -> Work:
    return lambda table: table.delete(where, commit=ty.CommitOptions(properties=properties))


def deletion_files(uri: str) -> int:
    return len(list((Path(uri) / "_deletions").glob("*")))


def sound(uri: str) -> None:
    assert ty.Table.open(uri).check(data=True).ok
    assert lance.dataset(uri).count_rows() == len(ids_of(ty.Table.open(uri)))


def test_deletes_of_other_rows_are_one_version(uri: str) -> None:
    futures = in_line(uri, [deleting(f"id = {number}", who=str(number)) for number in (0, 1, 2, 6)])
    results = [future.result() for future in futures]
    table = ty.Table.open(uri)
    assert ids_of(table) == [3, 4, 5, 7, 8]
    assert {result.version for result in results} == {3}
    assert all((result.rows, result.operation, result.executions) == ({"deleted": 1}, "Delete", 1) for result in results)
    entry = next(iter(table.history()))
    assert [(member.operation, member.fragments) for member in entry.members] == [("Delete", 1)] * 3
    assert {entry.properties["who"], *(member.properties["who"] for member in entry.members)} == {"0", "1", "2", "6"}
    assert all(set(member.properties) == {"who"} for member in entry.members), "what an engine notes for itself is not repeated"
    for result in results:
        assert table.transactions.outcome(result.transaction_id) == ty.outcomes.Committed(3)
    told: Any = lance.dataset(uri).read_transaction(3)
    assert set(told.operation.predicate.split(" OR ")) == {"(id = 0)", "(id = 1)", "(id = 2)", "(id = 6)"}
    assert deletion_files(uri) == 2, "one for each fragment; those that were merged are gone"
    assert len(list((Path(uri) / "_transactions").glob("*.txn"))) == 3
    sound(uri)


def test_who_finds_itself_committed_leaves_nothing_behind(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lead may be had before the answer is read: then it is by the versions that a writer learns what became of it."""
    read = LocalPlace._read

    def unread(self: LocalPlace) -> None:
        read(self)

    monkeypatch.setattr(LocalPlace, "_read", unread)
    results = [future.result() for future in in_line(uri, [deleting("id = 0"), deleting("id = 1"), deleting("id = 2")])]
    assert [(result.version, result.rows) for result in results] == [(3, {"deleted": 1})] * 3
    assert deletion_files(uri) == 1
    sound(uri)


def test_a_file_that_fits_is_used_as_it_is(uri: str) -> None:
    in_line(uri, [deleting("id = 0"), deleting("id = 6")])
    files = {fragment.id: fragment.deletion_file for fragment in ty.Table.open(uri).layout.fragments}
    assert all(file is not None and file.read_version == 2 for file in files.values()), "as their writers made them"
    assert deletion_files(uri) == 2
    sound(uri)


def test_on_top_of_deletes_that_came_meanwhile(uri: str) -> None:
    def others() -> None:
        lance.dataset(uri).delete("id = 3")
        lance.write_dataset(rows(20), uri, mode="append")

    futures = in_line(uri, [deleting("id = 0"), deleting("id = 1"), deleting("id = 7")], before=others)
    results = [future.result() for future in futures]
    assert {result.version for result in results} == {5}
    assert all([winner.version for winner in result.rebased_over] == [3, 4] for result in results)
    assert ids_of(ty.Table.open(uri)) == [2, 4, 5, 6, 8, 20]
    sound(uri)


def test_the_same_rows_are_a_conflict_of_whoever_comes_second(uri: str) -> None:
    """It executes again, as if it had come later, and counts what it deleted itself."""
    futures = in_line(uri, [deleting("id = 0"), deleting("id <= 1"), deleting("id = 2")])
    one, two, three = [future.result() for future in futures]
    deleted = one.rows["deleted"], two.rows["deleted"], three.rows["deleted"]
    assert deleted in ((1, 1, 1), (0, 2, 1)), "who leads first is whoever wakes first"
    assert sorted((one.executions, two.executions, three.executions)) == [1, 1, 2]
    assert three.version == 3
    assert ty.Table.open(uri).version == (4 if deleted == (1, 1, 1) else 3)
    assert ids_of(ty.Table.open(uri)) == [3, 4, 5, 6, 7, 8]
    sound(uri)


def test_a_fragment_may_go_by_the_work_of_several(uri: str) -> None:
    futures = in_line(uri, [deleting("id = 6"), deleting("id IN (7, 8)"), deleting("id = 0")])
    assert {future.result().version for future in futures} == {3}
    table = ty.Table.open(uri)
    assert ids_of(table) == [1, 2, 3, 4, 5]
    assert [fragment.id for fragment in table.layout.fragments] == [0]
    assert deletion_files(uri) == 1
    sound(uri)


def test_a_whole_fragment_and_a_row_of_it(uri: str) -> None:
    futures = in_line(uri, [deleting("id >= 6"), deleting("id = 7"), deleting("id = 0")])
    one, two, _ = [future.result() for future in futures]
    both = one.rows["deleted"], two.rows["deleted"]
    assert both in ((3, 0), (2, 1)), "whoever came second looked again"
    assert ids_of(ty.Table.open(uri)) == [1, 2, 3, 4, 5]
    sound(uri)


def test_who_cannot_read_its_own_rows_takes_nobody_along(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait are not to blame: they lead themselves."""
    failed: list[Rebaser] = []

    def once_unreadable(rebaser: Rebaser, head: Manifest) -> JointDelete:
        if not failed:
            failed.append(rebaser)
            raise ty.CorruptTable(uri, "a deletion file cannot be read")
        return JointDelete(rebaser, head)

    monkeypatch.setattr(turns, "JointDelete", once_unreadable)
    results = [future.result() for future in in_line(uri, [deleting("id = 0"), deleting("id = 1"), deleting("id = 6")])]
    assert failed
    assert {result.version for result in results} == {3, 4}, "one alone, then the others together"
    assert ids_of(ty.Table.open(uri)) == [2, 3, 4, 5, 7, 8]
    sound(uri)


def test_a_file_of_another_base_is_not_used_again(uri: str) -> None:
    """Its path is another table's: what is merged is written here."""
    fragment = ty.Table.open(uri).layout.fragments[0]
    here = DeletionFile(bitmap=True, read_version=2, id=7, deleted_rows=1)
    mine, theirs = (replace(fragment, deletion_file=file) for file in (here, replace(here, base_id=1)))
    offered: list[Any] = []

    def without(fragment: Any, rows: BitMap, head: Any, written: Any) -> Any:
        offered.extend(written)
        return fragment

    rebaser: Any = SimpleNamespace(all_rows=lambda: {fragment.id: BitMap([1])}, without=without)
    head: Any = SimpleNamespace(fragments=Fragments([fragment]))
    joint = JointDelete(rebaser, head)
    joint.operation([Delete((theirs,), (), "a"), Delete((mine,), (), "b")])
    assert offered == [here]


def test_kinds_wait_for_a_leader_of_their_own(uri: str) -> None:
    works = [
        lambda table: table.append(rows(30)),
        deleting("id = 0"),
        lambda table: table.append(rows(31)),
        deleting("id = 1"),
        deleting("id = 2"),
    ]
    results = [future.result() for future in in_line(uri, works)]
    assert results[0].version == results[2].version
    assert results[1].version == results[3].version == results[4].version != results[0].version
    assert ids_of(ty.Table.open(uri)) == [3, 4, 5, 6, 7, 8, 30, 31]
    sound(uri)


def test_numbered_deletes_are_committed_once(uri: str) -> None:
    futures = in_line(uri, [deleting("id = 0", **mark("q", 1)), deleting("id = 1", **mark("q", 1)), deleting("id = 2", **mark("r", 1))])
    failed = [future.exception() for future in futures if future.exception() is not None]
    assert [type(error) for error in failed] == [ty.errors.AlreadyCommitted]
    table = ty.Table.open(uri)
    assert (table.settings.config["tiltyard.once.q"], table.settings.config["tiltyard.once.r"]) == ("1", "1")
    assert ids_of(table) in ([1, 3, 4, 5, 6, 7, 8], [0, 3, 4, 5, 6, 7, 8])
    sound(uri)


@pytest.mark.parametrize("what", ["compaction", "update", "columns", "overwrite"])
def test_over_rows_that_moved_or_changed_each_judges_by_itself(uri: str, what: str) -> None:
    def others() -> None:
        dataset = lance.dataset(uri)
        if what == "compaction":
            dataset.optimize.compact_files()
        elif what == "update":
            dataset.update({"s": "'new'"}, where="id = 0")
        elif what == "columns":
            dataset.add_columns({"n": "id"})
        else:
            lance.write_dataset(rows(0, 1, 2), uri, mode="overwrite")

    futures = in_line(uri, [deleting("id = 0"), deleting("id = 1")], before=others)
    there = ids_of(ty.Table.open(uri))
    if what == "overwrite":
        assert all(isinstance(future.exception(), ty.errors.ConflictError) for future in futures)
        assert there == [0, 1, 2]
    else:
        assert [future.result().rows for future in futures] == [{"deleted": 1}] * 2
        assert there == [2, 3, 4, 5, 6, 7, 8]
    sound(uri)


def _offered(table: ty.Table, what: str) -> Transaction:
    fragments = {fragment.id: fragment for fragment in table.layout.fragments}
    parent = table.transactions.describe().transaction_id
    good = with_rows(Transaction(2, "offer", Delete((), (1,), "x"), {PARENT: parent}), {1: BitMap(range(3))})
    told = {
        "no rows": {PARENT: parent},
        "no list": {PARENT: parent, ROWS: "[3]"},
        "no bitmap": {PARENT: parent, ROWS: '{"1":"AAAA"}'},
        "other fragments": dict(with_rows(good, {0: BitMap([1])}).properties),
        "no such rows": dict(with_rows(good, {1: BitMap([99])}).properties),
        "none of them": dict(with_rows(good, {1: BitMap()}).properties),
        "no such fragment": dict(with_rows(good, {9: BitMap([0])}).properties),
    }[what]
    operation = Delete((), (9,), "x") if what == "no such fragment" else Delete((), (fragments[1].id,), "x")
    return Transaction(2, "offer", operation, told)


@pytest.mark.parametrize("what", ["no rows", "no list", "no bitmap", "other fragments", "no such rows", "none of them", "no such fragment"])
def test_an_offer_that_cannot_be_taken_harms_nobody(uri: str, what: str) -> None:
    table = ty.Table.open(uri)
    with held(uri):
        offer = LocalQueue(uri).place("offer", 0.0)
        assert not offer.lead()
        assert offer.join(_offered(table, what).to_bytes())
    assert table.delete("id = 0").version == 3
    assert ids_of(ty.Table.open(uri)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert offer.wait(LONG) == 0
    offer.leave()
    sound(uri)


def _delete_by_pylance(uri: str, ids: set[int]) -> None:
    if ids:
        lance.dataset(uri).delete(f"id IN {tuple(ids)}")


@pytest.mark.parametrize("seed", range(pick(6, 200)))
def test_any_deletes_beside_a_model(tmp_path: Path, seed: int) -> None:
    """Whatever rows, fragments and foreign commits: each row is counted by one delete alone, and all that were wanted are gone."""
    print(f"seed {seed}")
    choose = random.Random(f"joint deletes {seed}")
    uri = str(tmp_path / "t")
    table = ty.Table.create(uri, rows(*range(8)), stable_row_ids=choose.random() < 0.5)
    for first in range(8, 24, 8):
        table.append(rows(*range(first, first + 8)))
    there = set(range(24))
    for _ in range(3):
        wanted = [set(choose.sample(range(24), choose.choice((1, 2, 4, 9)))) for _ in range(choose.choice((2, 3, 5)))]
        foreign = set(choose.sample(range(24), 2)) if choose.random() < 0.5 else set[int]()
        works = [deleting(f"id IN ({', '.join(map(str, several))})") for several in wanted]
        futures = in_line(uri, works, before=partial(_delete_by_pylance, uri, foreign))
        deleted = [future.result().rows["deleted"] for future in futures]
        assert sum(deleted) == len((there - foreign) & set().union(*wanted))
        there -= set().union(foreign, *wanted)
        assert ids_of(ty.Table.open(uri)) == sorted(there)
        if not there:
            break
    assert ty.Table.open(uri).check(data=True).ok

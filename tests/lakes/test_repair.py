"""A writer who does not know the catalog took the number of a version that was committed together with others: somebody decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.lakes import (
    Site,
    add_to_both,
    both,
    directory_of,
    foreign_append,
    ids,
    numbers,
    stock,
    stores_through,
    two_tables,
    uri_of,
)
from tiltyard.catalog.records import Writes
from tiltyard.catalog.value_codec import name_key
from tiltyard.errors import CorruptTable, InvalidInput, NotFound
from tiltyard.interfaces import ObjectStore
from tiltyard.lake import Lake
from tiltyard.storage.wrapper import WrapperStore
from tiltyard.verbs.outcome import Committed


class DiedError(BaseException):
    pass


@contextmanager
def dying_before_names(after: int = 0) -> Iterator[None]:
    """The writer dies when it is about to give a version its final name, or some later one."""
    left = [after]

    class Dying(WrapperStore):
        def put_if_absent(self, path: str, data: bytes) -> None:
            if path.startswith("_versions/"):
                if left[0] == 0:
                    raise DiedError
                left[0] -= 1
            super().put_if_absent(path, data)

    def wrap(store: ObjectStore) -> ObjectStore:
        return Dying(store)

    with stores_through(wrap), pytest.raises(DiedError):
        yield


def taken(site: Site, lake: Lake, *values: int) -> str:
    """Version 2 of ``a`` belongs to two writers; the lake's transaction."""
    victim = site.open()
    with dying_before_names():
        tx = add_to_both(victim.transaction(message="ours"), 2)
        tx.commit()
    for value in values or (99,):
        foreign_append(uri_of(lake, "a"), value)
    with pytest.raises(CorruptTable):
        lake.table("a")
    return tx.id


def assert_sound(site: Site, lake: Lake) -> None:
    other = site.open()
    assert other.check().problems == ()
    for name in other.tables():
        assert ids(stock(lake, name)) == ids(other.table(name))
    with other.transaction() as tx:
        add_to_both(tx, 1000)
    assert 1000 in ids(lake.table("a"))
    assert other.check().problems == ()


@pytest.mark.parametrize("foreign", [(99,), (99, 98, 97)])
def test_ours_stays(site: Site, lake: Lake, foreign: tuple[int, ...]) -> None:
    transaction = taken(site, lake, *foreign)
    report = lake.repair("a", keep="ours")
    assert (report.table, report.kept, report.version, report.transaction) == ("a", "ours", 2, transaction)
    assert both(lake) == ([1, 2], [1, 2])
    assert both(lake.snapshot(2)) == ([1, 2], [1, 2])
    # Theirs can still be read: put back where it was, a copy of the table shows it.
    assert len(report.set_aside) == len(foreign)
    uri = directory_of(lake, "a")
    assert all((uri / path).is_file() for path in report.set_aside)
    assert len([one for one in report.files if one.startswith("data/")]) == len(foreign)
    assert_sound(site, lake)
    lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    assert all((uri / f"{one}.lance").is_file() for one in report.files if one.startswith("data/")), "as long as it is not deleted"
    for path in report.set_aside:
        (uri / path).unlink()
    lake.cleanup(grace=timedelta(0))
    assert not any((uri / f"{one}.lance").is_file() for one in report.files if one.startswith("data/"))


@pytest.mark.parametrize("foreign", [(99,), (99, 98, 97)])
def test_theirs_stays(site: Site, lake: Lake, foreign: tuple[int, ...]) -> None:
    transaction = taken(site, lake, *foreign)
    lake.table("b").append(numbers(3))
    lake.branches.create("side")
    report = lake.repair("a", keep="theirs")
    assert (report.kept, report.version, report.transaction) == ("theirs", 1 + len(foreign), transaction)
    assert both(lake) == (sorted([1, *foreign]), [1, 2, 3])
    # Nobody ever sees their rows as part of our commit, nor ours in this table.
    assert both(lake.snapshot(2)) == ([1], [1, 2])
    assert both(lake.snapshot(3)) == ([1], [1, 2, 3])
    assert both(lake.on_branch("side")) == ([1], [1, 2, 3])
    lost = next(change for step in lake.history() if step.id == 2 for change in step.changes if change.name == "a")
    assert (lost.steps, [(one.version, one.operation) for one in lost.lost]) == ((), [(2, "Append")])
    assert lake.history()[0].changes[0].kind == "adopt"
    assert isinstance(lake.outcome(transaction), Committed)
    (data,) = [one for one in report.files if one.startswith("data/")]
    uri = directory_of(lake, "a")
    lake.cleanup(grace=timedelta(0))
    assert (uri / f"{data}.lance").is_file(), "our rows are still there for somebody to bring back"
    assert (uri / report.set_aside[0]).is_file()
    assert_sound(site, lake)


def test_theirs_came_between_two_versions_of_one_transaction(tmp_path: Path) -> None:
    site = Site("sqlite", str(tmp_path / "lake"), tmp_path / "lake", {"catalog": "sqlite"})
    lake = two_tables(site.open())
    with dying_before_names(after=1):
        tx = site.open().transaction()
        tx.table("a").append(numbers(2))
        tx.table("a").append(numbers(3))
        tx.table("b").append(numbers(2))
        tx.commit()
    foreign_append(uri_of(lake, "a"), 99)
    with pytest.raises(CorruptTable):
        lake.table("a")
    report = lake.repair("a", keep="theirs")
    assert (report.version, ids(lake.table("a"))) == (3, [1, 2, 99])
    change = lake.history()[1].changes[0]
    assert ([one.version for one in change.steps], [one.version for one in change.lost]) == ([2], [3])
    assert lake.check().problems == ()
    site.close()


def test_somebody_has_to_decide(site: Site, lake: Lake) -> None:
    taken(site, lake)
    with pytest.raises(InvalidInput, match="ours or theirs"):
        lake.repair("a")
    with pytest.raises(InvalidInput, match="not 'mine'"):
        lake.repair("a", keep="mine")  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        lake.repair("zz", keep="ours")
    assert {one.invariant for one in lake.check().problems if one.table == "a"} == {"I10"}
    report = lake.cleanup(keep_snapshots=1, grace=timedelta(0))
    assert "a" in report.skipped
    lake.repair("a", keep="ours")
    assert both(lake) == ([1, 2], [1, 2]), "a cleanup before changes nothing"


@pytest.mark.parametrize("keep", ["ours", "theirs"])
def test_a_repair_that_died_is_done_again(tmp_path: Path, keep: str) -> None:
    """At every write and deletion that it makes in the store."""
    number = -1
    while True:
        number += 1
        site = Site("sqlite", str(tmp_path / f"lake{number}"), tmp_path / f"lake{number}", {"catalog": "sqlite"})
        lake = two_tables(site.open())
        taken(site, lake, 99, 98)
        left = [number]

        class Dying(WrapperStore):
            def _step(self) -> None:
                if left[0] == 0:  # noqa: B023
                    raise DiedError
                left[0] -= 1  # noqa: B023

            def put(self, path: str, data: bytes) -> None:
                self._step()
                super().put(path, data)

            def put_if_absent(self, path: str, data: bytes) -> None:
                self._step()
                super().put_if_absent(path, data)

            def delete(self, path: str) -> None:
                self._step()
                super().delete(path)

        died = False
        with stores_through(lambda store: Dying(store)):
            try:
                lake.repair("a", keep=keep)  # type: ignore[arg-type]
            except DiedError:
                died = True
        other = site.open()
        try:
            other.repair("a", keep=keep)  # type: ignore[arg-type]
        except InvalidInput:
            raise AssertionError(f"died at {number}") from None
        assert both(other) == (([1, 2] if keep == "ours" else [1, 98, 99]), [1, 2]), number
        assert_sound(site, other)
        site.close()
        if not died:
            break
    assert number >= 2


def test_small_repairs_need_no_decision(site: Site, lake: Lake) -> None:
    assert lake.repair("a").done == ()
    foreign_append(uri_of(lake, "a"), 9)
    foreign_append(uri_of(lake, "a"), 10)
    assert lake.repair("a").done == ("adopted versions 2 to 3",)
    key = name_key("main", "b")
    lake.catalog.records.transact([key], [], lambda found: Writes(None, delete=[key]))
    assert not lake.check().ok
    assert lake.repair("b").done == ("restored the name",)
    with dying_before_names():
        add_to_both(site.open().transaction(), 3).commit()
    assert lake.repair("a").done == ("finished 1 version",)
    assert both(lake) == ([1, 3, 9, 10], [1, 3])
    assert lake.check().problems == ()


def test_a_quarantine_whose_cause_is_gone(site: Site, lake: Lake) -> None:
    """Somebody removed the foreign version by hand."""
    taken(site, lake)
    newest = min((directory_of(lake, "a") / "_versions").glob("*.manifest"))
    newest.unlink()
    report = lake.repair("a")
    assert [one.split(":")[0] for one in report.done] == ["finished 1 version", "lifted the quarantine"]
    assert both(lake) == ([1, 2], [1, 2])
    assert_sound(site, lake)

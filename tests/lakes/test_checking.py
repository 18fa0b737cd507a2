"""The check of a lake: silent where all is well, and it finds every way in which catalog and tables can fall apart."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.lakes import Site, WrappedRecords, add_to_both, foreign_append, ids, numbers, through, two_tables, uri_of
from tiltyard.catalog.catalog import Pending
from tiltyard.catalog.records import Body, Found, Records, Writes
from tiltyard.catalog.value_codec import cut_key, gone_key, head_to_body, name_key, snapshot_key, table_key, tip_key, transaction_key
from tiltyard.lake import Lake
from tiltyard.options import CommitOptions


@pytest.fixture
def eventful(lake: Lake) -> Lake:
    """Something of everything that a sound lake can have."""
    with lake.transaction() as tx:
        add_to_both(tx, 2, 3)
        tx.table("a").delete("id = 2")
    lake.create_table("sales.c", numbers(1))
    lake.rename_table("sales.c", "sales.d")
    lake.drop_table("sales.d")
    lake.tags.create("now")
    lake.branches.create("side")
    side = lake.on_branch("side")
    with side.transaction() as tx:
        add_to_both(tx, 50)
    side.create_table("of-side", numbers(1))
    foreign_append(uri_of(lake, "b"), 77)
    assert ids(lake.table("b")) == [1, 2, 3, 77]
    lake.table("a").compact()
    return lake


def test_a_sound_lake(site: Site, eventful: Lake) -> None:
    seen: list[tuple[int, int]] = []
    report = eventful.check(progress=lambda done, total: seen.append((done, total)))
    assert (report.problems, report.ok) == ((), True)
    assert {*report.tables} == {"a", "b", "a@side", "b@side", "of-side@side"}
    assert report.snapshots > 8
    assert report.transactions >= report.snapshots
    assert seen[-1] == (5, 5)
    assert report.to_dict()["tables"]["a"]["ok"]
    eventful.cleanup(keep_snapshots=1)
    assert site.open().check().problems == ()
    eventful.branches.delete("side")
    assert eventful.check(tables=False).problems == ()


def test_a_lake_that_others_work_on_is_as_sound(site: Site, lake: Lake) -> None:
    stop = threading.Event()

    def work() -> None:
        value = 100
        while not stop.is_set():
            value += 1
            site_lake.run(lambda tx: add_to_both(tx, value), commit=CommitOptions(reexecutions=50))  # noqa: B023

    site_lake = site.open()
    writer = threading.Thread(target=work)
    writer.start()
    try:
        for _ in range(3):
            assert lake.check().problems == ()
    finally:
        stop.set()
        writer.join(60)


class Interrupted(WrappedRecords):
    """Lets somebody else act before one of the reads, and counts them."""

    def __init__(self, inner: Records, at: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._at, self._act, self.reads = at, act, 0

    def _read(self) -> None:
        self.reads += 1
        if self.reads == self._at:
            self._act()

    def get(self, keys: Collection[str]) -> Found:
        self._read()
        return super().get(keys)

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        self._read()
        return super().scan(prefixes, limit=limit, descending=descending)


@pytest.mark.parametrize("act", ["commit", "commit without names", "commit and cleanup"])
def test_a_check_that_somebody_commits_into(site: Site, lake: Lake, monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    """Between any two reads of it: a commit, one whose versions have not their names yet, or one and a cleanup of all that was before."""
    theirs = site.open()
    values = itertools.count(100)

    def commit() -> None:
        with monkeypatch.context() as patch:
            if act == "commit without names":
                patch.setattr("tiltyard.lakes.commit_transaction.finish", lambda *work, **how: [])
            theirs.run(lambda tx: add_to_both(tx, next(values)))
        if act == "commit and cleanup":
            theirs.cleanup(keep_snapshots=1, grace=timedelta(0))

    plain = lake.catalog.records
    at, reads = 1, 1
    while at <= reads:
        lake.catalog.records = plain
        between = through(lake, lambda records: Interrupted(records, at, commit))  # noqa: B023
        assert lake.check().problems == (), f"before read {at}"
        at, reads = at + (1 if site.kind == "sqlite" else 7), between.reads  # what is read is the same for all catalogs
    assert reads > 10


def test_what_others_committed_past_the_catalog_is_told(lake: Lake) -> None:
    foreign_append(uri_of(lake, "a"), 9)
    (problem,) = lake.check().problems
    assert (problem.invariant, problem.table) == ("I10", "a")
    assert "adopts" in problem.text
    lake.table("a")
    assert lake.check().ok


# ---- broken catalogs -------------------------------------------------------------------------------------------------------------


def put(lake: Lake, key: str, change: Callable[[Body], Body | None] | None) -> None:
    """Changes a record behind everybody's back; None deletes it."""

    def decide(found: Mapping[str, Body]) -> Writes[None]:
        body = None if change is None else change(found.get(key, {}))
        return Writes(None, delete=[key]) if body is None else Writes(None, {key: body})

    lake.catalog.records.transact([key], [], decide)


def _head(lake: Lake, **changes: Any) -> None:
    put(lake, table_key("main", lake.catalog.cut().tables["a"].id), lambda body: {**body, **changes})


def _rewrite_manifest(lake: Lake, name: str, like: str) -> None:
    """Puts another version's bytes where the newest one of a table is."""
    table, other = lake.table(name), lake.table(like)
    newest = min(Path(table.uri, "_versions").glob("*.manifest"))
    newest.write_bytes(min(Path(other.uri, "_versions").glob("*.manifest")).read_bytes())


BROKEN: dict[str, tuple[Callable[[Lake], Any], str, str]] = {
    "a gap": (lambda lake: put(lake, snapshot_key("main", 2), None), "catalog", "cannot be read"),
    "the newest snapshot is gone": (lambda lake: put(lake, snapshot_key("main", 3), None), "catalog", "is said to be at 3"),
    "the tip is behind": (lambda lake: put(lake, tip_key("main"), lambda body: {**body, "snapshot": 2}), "catalog", "is said to be at 2"),
    "a head is behind": (lambda lake: _head(lake, version=2), "catalog", "by its snapshots at 3"),
    "a head is ahead": (lambda lake: _head(lake, version=4, data_version=4), "I10", "which does not exist"),
    "a head elsewhere": (lambda lake: _head(lake, location="elsewhere"), "I10", "which does not exist"),
    "numbers that do not go together": (lambda lake: _head(lake, refused=9), "catalog", "contradict each other"),
    "a head is gone": (lambda lake: put(lake, table_key("main", lake.catalog.cut().tables["a"].id), None), "catalog", "has lost it"),
    "a head that nobody made": (
        lambda lake: put(lake, table_key("main", "x"), lambda _: {**head_to_body(lake.catalog.cut().tables["a"]), "id": "x", "name": "x"}),
        "catalog",
        "no snapshot of branch main made it",
    ),
    "a name for nobody": (
        lambda lake: put(lake, name_key("main", "zz"), lambda _: {"table": "?", "location": "?"}),
        "catalog",
        "does not exist or has another name",
    ),
    "a name is gone": (lambda lake: put(lake, name_key("main", "a"), None), "catalog", "has no record"),
    "a tag to nothing": (
        lambda lake: put(lake, "tag/t", lambda _: {"snapshot": 9, "branch": "main", "created": "2026-01-01T00:00:00+00:00"}),
        "catalog",
        "tag t leads to nothing",
    ),
    "a given up directory": (
        lambda lake: put(lake, gone_key(lake.catalog.cut().tables["a"].location), lambda _: {"at": "", "left": True}),
        "catalog",
        "marked for deletion by a cleanup",
    ),
    "an outcome is gone": (lambda lake: put(lake, transaction_key(lake.history()[0].transaction), None), "I12", "said to be undecided"),
    "an outcome was turned": (
        lambda lake: put(lake, transaction_key(lake.history()[0].transaction), lambda body: {**body, "state": "aborted"}),
        "I12",
        "said to be aborted",
    ),
    "an outcome of nothing": (
        lambda lake: put(lake, transaction_key("t"), lambda _: {"state": "committed", "snapshot": 1, "branch": "main"}),
        "I12",
        "its snapshot is of another transaction",
    ),
    "two snapshots": (
        lambda lake: put(lake, transaction_key(lake.history()[0].transaction), lambda body: {**body, "snapshot": 1}),
        "I12",
        "has two snapshots",
    ),
    "a state nobody knows": (lambda lake: put(lake, transaction_key("t"), lambda _: {"state": "odd", "at": ""}), "I12", "said to be odd"),
    "bytes that are gone": (
        lambda lake: put(
            lake,
            f"pending/{lake.catalog.cut().tables['a'].id}/@{9:020d}",
            lambda _: asdict(
                Pending(lake.catalog.cut().tables["a"].id, "main", None, 9, "_versions/x", "_tiltyard/staged/x/y", "t", False)
            ),
        ),
        "I10",
        "are gone",
    ),
    "a table went back": (
        lambda lake: min(Path(lake.table("a").uri, "_versions").glob("*.manifest")).unlink(),
        "I11",
        "b has its version of the transaction, a does not",
    ),
    "somebody else's version": (lambda lake: _rewrite_manifest(lake, "a", "b"), "I11", "b has its version of the transaction, a does not"),
    "a data file is gone": (lambda lake: next(Path(lake.table("a").uri, "data").iterdir()).unlink(), "I2", "is named but missing"),
    "a table is gone": (
        lambda lake: shutil.rmtree(lake.table("a").uri),
        "I10",
        "does not exist",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_it_finds_what_is_broken(tmp_path: Path, how: str) -> None:
    lake = two_tables(Lake.open(tmp_path / "lake"))
    for value in (2, 3):
        with lake.transaction() as tx:
            add_to_both(tx, value)
    assert lake.check().ok
    break_it, invariant, text = BROKEN[how]
    break_it(lake)
    problems = lake.check().problems
    assert [one for one in problems if one.invariant == invariant and text in one.text], (how, problems)


def test_a_wrong_cut_of_the_past_is_not_believed(tmp_path: Path) -> None:
    """Cuts are written down once in a while; from one that is wrong all later heads would seem to be so."""
    lake = two_tables(Lake.open(tmp_path / "lake"))
    put(lake, cut_key("main", 0), lambda _: {"tables": []})
    lake.table("a").append(numbers(2))
    assert lake.check().ok, "the whole history is read from its beginning, not from there"

"""Mistakes at a lake: each ends in an error of ours that names what the caller wrote, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.mistakes import Mistake, check_mistake
from tests.support.proving import pick
from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, StorageError

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "n": pa.array([1, 1, 2], pa.int64()), "s": ["a", "b", "7"]})

Lake: Any = ty.Lake
"""Not typed: what a type checker would find is tried, too."""


@dataclass
class Desk:
    """A lake, and a directory beside it."""

    lake: ty.Lake
    beside: Path


CATALOGS = pick(["sqlite"], ["sqlite", "manifest"])


@pytest.fixture(scope="module", params=CATALOGS)
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    home = tmp_path_factory.mktemp("mistakes")
    lake = Lake.open(home / "lake", catalog=request.param)
    lake.create_table("orders", ROWS)
    lake.create_table("stock", ROWS)
    lake.branches.create("side")
    lake.tags.create("kept")
    (home / "file").write_text("no lake")
    return Desk(lake, home)


def inside(work: Callable[[Any], object]) -> Callable[[Desk], object]:
    """Does something in a transaction."""

    def run(desk: Desk) -> None:
        with desk.lake.transaction() as tx:
            work(tx)

    return run


def ended(desk: Desk) -> Any:
    tx = desk.lake.transaction()
    tx.table("orders").append(ROWS)
    tx.rollback()
    return tx


MISTAKES = [
    Mistake("open a file", lambda d: Lake.open(d.beside / "file"), AlreadyExists, "file"),
    Mistake("open below a file", lambda d: Lake.open(d.beside / "file" / "x"), InvalidInput, "file"),
    Mistake("open None", lambda d: Lake.open(None), InvalidInput, "None"),
    Mistake("open the empty text", lambda d: Lake.open(""), InvalidInput, "empty"),
    Mistake("open an unknown scheme", lambda d: Lake.open("mysql://h/db"), InvalidInput, "mysql"),
    Mistake("open what is not there", lambda d: Lake.open(d.beside / "nope", create=False), NotFound, "nope"),
    Mistake("an unknown catalog", lambda d: Lake.open(d.beside / "x", catalog="mongo"), InvalidInput, "mongo"),
    Mistake("an unknown durability", lambda d: Lake.open(d.beside / "x", durability="fast"), InvalidInput, "fast"),
    Mistake("an author that is a number", lambda d: Lake.open(d.beside / "x", author=5), InvalidInput, "5"),
    Mistake("a server that is down", lambda d: Lake.open("postgresql://u:hush@127.0.0.1:9/db", root=d.beside), StorageError, "127.0.0.1:9"),
    Mistake("an unknown table", lambda d: d.lake.table("order"), NotFound, "'order'"),
    Mistake("a table that is a number", lambda d: d.lake.table(5), InvalidInput, "5"),
    Mistake("an unknown table inside", inside(lambda tx: tx.table("order")), NotFound, "'order'"),
    Mistake("a name with a space", lambda d: d.lake.create_table("a b", ROWS), InvalidInput, "'a b'"),
    Mistake("an empty name", lambda d: d.lake.create_table("", ROWS), InvalidInput, "''"),
    Mistake("a table that is there", lambda d: d.lake.create_table("orders", ROWS), AlreadyExists, "'orders'"),
    Mistake("a table of text", lambda d: d.lake.create_table("x", "rows"), InvalidInput, "str"),
    Mistake("a key that is no column", lambda d: d.lake.create_table("x", ROWS, primary_key=["idd"]), InvalidInput, "idd"),
    Mistake("a table to drop", lambda d: d.lake.drop_table("order"), NotFound, "'order'"),
    Mistake("dropped twice", inside(lambda tx: (tx.drop_table("stock"), tx.drop_table("stock"))), NotFound, "'stock'"),
    Mistake("made twice", inside(lambda tx: (tx.create_table("q", ROWS), tx.create_table("q", ROWS))), AlreadyExists, "'q'"),
    Mistake("a table to rename", lambda d: d.lake.rename_table("order", "x"), NotFound, "'order'"),
    Mistake("renamed onto another", lambda d: d.lake.rename_table("orders", "stock"), AlreadyExists, "'stock'"),
    Mistake("a new name with a slash", lambda d: d.lake.rename_table("orders", "a/b"), InvalidInput, "'a/b'"),
    Mistake("a directory without a table", lambda d: d.lake.register_table("x", d.beside / "nope"), NotFound, "nope"),
    Mistake("an unknown snapshot", lambda d: d.lake.snapshot(999), NotFound, "999"),
    Mistake("an unknown tag", lambda d: d.lake.snapshot("nope"), NotFound, "'nope'"),
    Mistake("a snapshot that is true", lambda d: d.lake.snapshot(True), InvalidInput, "snapshot"),
    Mistake("a table of the past", lambda d: d.lake.snapshot().table("order"), NotFound, "'order'"),
    Mistake("an unknown branch", lambda d: d.lake.on_branch("nope"), NotFound, "'nope'"),
    Mistake("a branch that is a number", lambda d: d.lake.on_branch(5), InvalidInput, "5"),
    Mistake("a branch that is there", lambda d: d.lake.branches.create("side"), AlreadyExists, "'side'"),
    Mistake("a branch with a space", lambda d: d.lake.branches.create("a b"), InvalidInput, "'a b'"),
    Mistake("a branch called main", lambda d: d.lake.branches.create("main"), InvalidInput, "main"),
    Mistake("a branch to delete", lambda d: d.lake.branches.delete("nope"), NotFound, "'nope'"),
    Mistake("main to delete", lambda d: d.lake.branches.delete("main"), InvalidInput, "main"),
    Mistake("a branch to fast-forward", lambda d: d.lake.branches.fast_forward("nope"), NotFound, "'nope'"),
    Mistake("a tag that is there", lambda d: d.lake.tags.create("kept"), AlreadyExists, "'kept'"),
    Mistake("a tag with a space", lambda d: d.lake.tags.create("a b"), InvalidInput, "'a b'"),
    Mistake("a tag to delete", lambda d: d.lake.tags.delete("nope"), NotFound, "'nope'"),
    Mistake("a tag on nothing", lambda d: d.lake.tags.create("z", 999), NotFound, "999"),
    Mistake("an unknown isolation", lambda d: d.lake.transaction(isolation="dirty"), InvalidInput, "dirty"),
    Mistake("a message that is a number", lambda d: d.lake.transaction(message=5), InvalidInput, "message"),
    Mistake("properties that are a number", lambda d: d.lake.transaction(properties=5), InvalidInput, "int"),
    Mistake("a transaction that is over", lambda d: ended(d).table("orders"), InvalidInput, "rolled back"),
    Mistake("committed after all", lambda d: ended(d).commit(), InvalidInput, "rolled back"),
    Mistake("text after a condition", lambda d: d.lake.table("orders").delete("n = 1 limit 1"), InvalidInput, "limit 1"),
    Mistake("text after a condition inside", inside(lambda tx: tx.table("orders").delete("n = 1; n = 2")), InvalidInput, "';'"),
    Mistake("a read with text after", inside(lambda tx: tx.table("orders").count_rows("n = 1 or")), InvalidInput, "'or'"),
    Mistake("an assignment to no column", inside(lambda tx: tx.table("orders").update({"nn": "1"})), InvalidInput, "'nn'"),
    Mistake("rows of another type", inside(lambda tx: tx.table("orders").append([{"id": "x"}])), InvalidInput, "id is string"),
    Mistake("no function to run", lambda d: d.lake.run(5), InvalidInput, "5"),
    Mistake("an age that is text", lambda d: d.lake.cleanup(older_than="1 week"), InvalidInput, "older_than"),
    Mistake("nothing to keep", lambda d: d.lake.cleanup(keep_snapshots=0), InvalidInput, "keep_snapshots"),
    Mistake("a limit that is text", lambda d: d.lake.history(limit="x"), InvalidInput, "'x'"),
    Mistake("a table to repair", lambda d: d.lake.repair("nope"), NotFound, "'nope'"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_mistakes(mistake: Mistake, desk: Desk) -> None:
    before = desk.lake.history()
    check_mistake(mistake, desk)
    assert desk.lake.history() == before
    assert sorted(desk.lake.tables()) == ["orders", "stock"]
    assert desk.lake.table("orders").count_rows() == 3
    assert [branch.name for branch in desk.lake.branches.list()] == ["side"]
    assert [tag.name for tag in desk.lake.tags.list()] == ["kept"]
    assert not (desk.beside / "x").exists()

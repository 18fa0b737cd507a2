"""Mistakes at a table: each ends in an error of ours that names what the caller wrote, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.mistakes import Mistake, check_mistake
from tiltyard.errors import AlreadyExists, InvalidInput, KeyConflict, NotFound

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "n": pa.array([1, 1, 2], pa.int64()), "s": ["a", "b", "7"]})

Table: Any = ty.Table
"""Not typed: what a type checker would find is tried, too."""


@dataclass
class Desk:
    """A table, and a directory beside it."""

    table: ty.Table
    beside: Path

    @property
    def uri(self) -> str:
        return self.table.uri


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    home = tmp_path_factory.mktemp("mistakes")
    table = Table.create(home / "t", ROWS, primary_key=["id"], durability="os")
    table.tags.create("kept")
    table.branches.create("side")
    (home / "file").write_text("no table")
    return Desk(table, home)


MISTAKES = [
    Mistake("create where a file is", lambda d: Table.create(d.beside / "file", ROWS), AlreadyExists, "file"),
    Mistake("create below a file", lambda d: Table.create(d.beside / "file" / "t", ROWS), InvalidInput, "file"),
    Mistake("create twice", lambda d: Table.create(d.uri, ROWS), AlreadyExists, "already"),
    Mistake("create of text", lambda d: Table.create(d.beside / "x", "rows"), InvalidInput, "str"),
    Mistake(
        "create with an unknown format",
        lambda d: Table.create(d.beside / "x", ROWS, options=ty.TableOptions(data_format="9.9")),
        InvalidInput,
        "9.9",
    ),
    Mistake(
        "create with unknown names",
        lambda d: Table.create(d.beside / "x", ROWS, options=ty.TableOptions(manifest_naming="v3")),  # type: ignore[arg-type]
        InvalidInput,
        "v3",
    ),
    Mistake("a key that is no column", lambda d: Table.create(d.beside / "x", ROWS, primary_key=["idd"]), InvalidInput, "idd"),
    Mistake("a key with a dot", lambda d: Table.create(d.beside / "x", pa.table({"a.b": [1]}), primary_key=["a.b"]), InvalidInput, "dot"),
    Mistake("a key twice", lambda d: Table.create(d.beside / "x", ROWS, primary_key=["id", "id"]), InvalidInput, "primary_key"),
    Mistake("duplicate keys", lambda d: Table.create(d.beside / "x", ROWS, primary_key=["n"]), KeyConflict, "n 1"),
    Mistake("open a file", lambda d: Table.open(d.beside / "file"), NotFound, "file"),
    Mistake("open nothing", lambda d: Table.open(d.beside / "nope"), NotFound, "nope"),
    Mistake("open None", lambda d: Table.open(None), InvalidInput, "None"),
    Mistake("open the empty text", lambda d: Table.open(""), InvalidInput, "empty"),
    Mistake("open an unknown scheme", lambda d: Table.open("ftp://x/y"), InvalidInput, "ftp"),
    Mistake("a version as text", lambda d: Table.open(d.uri, version="1"), NotFound, "'1'"),
    Mistake("a version that is true", lambda d: Table.open(d.uri, version=True), InvalidInput, "True"),
    Mistake("a version with a point", lambda d: Table.open(d.uri, version=1.0), InvalidInput, "1.0"),
    Mistake("a version below zero", lambda d: Table.open(d.uri, version=-1), InvalidInput, "-1"),
    Mistake("a version to come", lambda d: Table.open(d.uri, version=99), NotFound, "99"),
    Mistake("an unknown tag", lambda d: Table.open(d.uri, version="nope"), NotFound, "nope"),
    Mistake("a version that is no whole number", lambda d: Table.open(d.uri, 3.5), InvalidInput, "3.5"),
    Mistake("an unknown branch", lambda d: Table.open(d.uri, branch="nope"), NotFound, "nope"),
    Mistake("a branch that is a number", lambda d: Table.open(d.uri, branch=3), InvalidInput, "3"),
    Mistake("no moment", lambda d: Table.open(d.uri, timestamp="yesterday"), InvalidInput, "yesterday"),
    Mistake("a number as a moment", lambda d: Table.open(d.uri, timestamp=5), InvalidInput, "5"),
    Mistake("before the table", lambda d: Table.open(d.uri, timestamp="1999-01-01"), NotFound, "1999"),
    Mistake("an unknown handler", lambda d: Table.open(d.uri, storage=ty.Storage(handler="magic")), InvalidInput, "magic"),
    Mistake("an unknown commit store", lambda d: Table.open(d.uri, storage=ty.Storage(commit_store="mysql://x")), InvalidInput, "mysql"),
    Mistake("an unknown durability", lambda d: Table.open(d.uri, durability="fast"), InvalidInput, "fast"),
    Mistake("text after a condition", lambda d: d.table.delete("n = 1 limit 1"), InvalidInput, "limit 1"),
    Mistake("a second statement", lambda d: d.table.delete("n = 1; n = 2"), InvalidInput, "';'"),
    Mistake("an open bracket", lambda d: d.table.delete("(n = 1"), InvalidInput, "'('"),
    Mistake("a condition that is missing", lambda d: d.table.delete(None), InvalidInput, "where"),
    Mistake("a condition on no column", lambda d: d.table.delete("nn = 1"), InvalidInput, "'nn'"),
    Mistake("a condition that is none", lambda d: d.table.delete("n + 1"), InvalidInput, "n + 1"),
    Mistake("a condition of another type", lambda d: d.table.count_rows("n = 'a'"), InvalidInput, "n = 'a'"),
    Mistake("a cast that fails", lambda d: d.table.to_arrow(filter="cast(s as int) = 7"), InvalidInput, "'a'"),
    Mistake("an unknown column", lambda d: d.table.to_arrow(columns=["nn"]), InvalidInput, "'nn'"),
    Mistake("an unknown option", lambda d: d.table.to_arrow(options={"limitt": 3}), InvalidInput, "limitt"),
    Mistake("a limit that is text", lambda d: d.table.to_arrow(limit="x"), InvalidInput, "'x'"),
    Mistake("an assignment to no column", lambda d: d.table.update({"nn": "1"}), InvalidInput, "'nn'"),
    Mistake("an assignment to the key", lambda d: d.table.update({"id": "1"}), InvalidInput, "'id'"),
    Mistake("two expressions", lambda d: d.table.update({"n": "n + 1, id"}), InvalidInput, "comma"),
    Mistake("a value that does not fit", lambda d: d.table.update({"n": "'abc'"}), InvalidInput, "abc"),
    Mistake("a division by zero", lambda d: d.table.update({"n": "1 / (n - 1)"}), InvalidInput, "zero"),
    Mistake("a value that is no text", lambda d: d.table.update({"n": 5}), InvalidInput, "SQL expression"),
    Mistake("rows with another column", lambda d: d.table.append(ROWS.append_column("zz", ROWS["n"])), InvalidInput, "zz"),
    Mistake("rows of another type", lambda d: d.table.append(pa.table({"id": ["x"], "n": [1], "s": ["x"]})), InvalidInput, "id is string"),
    Mistake("keys that are there", lambda d: d.table.append(ROWS), KeyConflict, "id 1"),
    Mistake("a misspelt source column", lambda d: d.table.merge(ROWS).when_matched_delete("source.nn > 1").execute(), InvalidInput, "'nn'"),
    Mistake("a misspelt target column", lambda d: d.table.merge(ROWS).when_matched_delete("target.nn = 1").execute(), InvalidInput, "'nn'"),
    Mistake("a column of neither side", lambda d: d.table.merge(ROWS).when_matched_delete("n > 1").execute(), InvalidInput, "source.NAME"),
    Mistake(
        "text after a clause", lambda d: d.table.merge(ROWS).when_matched_delete("source.n > 1 limit 1").execute(), InvalidInput, "limit"
    ),
    Mistake("a merge on no column", lambda d: d.table.merge(ROWS, on="a.b").when_matched_update_all().execute(), InvalidInput, "a.b"),
    Mistake("a merge of nothing", lambda d: d.table.merge(ROWS).execute(), InvalidInput, "clause"),
    Mistake("a column that is there", lambda d: d.table.add_columns({"n": "1"}), InvalidInput, "'n'"),
    Mistake("a new column of no column", lambda d: d.table.add_columns({"z": "nn + 1"}), InvalidInput, "'nn'"),
    Mistake("text after a new column", lambda d: d.table.add_columns({"z": "n limit 1"}), InvalidInput, "limit 1"),
    Mistake("a column to drop", lambda d: d.table.drop_columns(["zz"]), InvalidInput, "'zz'"),
    Mistake("a new name with a dot", lambda d: d.table.alter_columns({"path": "s", "name": "a.b"}), InvalidInput, "a.b"),
    Mistake("a cast of a column", lambda d: d.table.alter_columns({"path": "s", "data_type": pa.int64()}), InvalidInput, "'s'"),
    Mistake("an index on no column", lambda d: d.table.create_index("zz", "BTREE"), InvalidInput, "'zz'"),
    Mistake("an unknown index", lambda d: d.table.create_index("n", "BTREEE"), InvalidInput, "BTREEE"),
    Mistake("a vector index on a number", lambda d: d.table.create_index("n", "IVF_PQ"), InvalidInput, "column n"),
    Mistake("an index to drop", lambda d: d.table.drop_index("zz"), NotFound, "'zz'"),
    Mistake("a version to restore", lambda d: d.table.restore(99), NotFound, "99"),
    Mistake("a tag that is there", lambda d: d.table.tags.create("kept"), AlreadyExists, "'kept'"),
    Mistake("a branch that is there", lambda d: d.table.branches.create("side"), AlreadyExists, "'side'"),
    Mistake("a setting that is no text", lambda d: d.table.update_config({"a": 1}), InvalidInput, "'a'"),
    Mistake("no transaction id", lambda d: d.table.transactions.outcome(5), InvalidInput, "5"),
    Mistake("a feed from the future", lambda d: list(d.table.changes(9)), InvalidInput, "9"),
    Mistake("a name with NUL", lambda d: d.table.alter_columns({"path": "s", "name": "a\0b"}), InvalidInput, "NUL"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_mistakes(mistake: Mistake, desk: Desk) -> None:
    check_mistake(mistake, desk)
    latest = Table.open(desk.uri)
    assert (latest.version, desk.table.version) == (1, 1)
    assert latest.to_arrow().to_pylist() == ROWS.to_pylist()
    assert not (desk.beside / "x" / "_versions").exists()
    assert list(latest.tags) == ["kept"]
    assert list(latest.branches) == ["side"]


def test_an_unknown_transaction_is_not_said_to_be_withdrawn(desk: Desk) -> None:
    """Nothing is known of an id that another table gave out; the answer must not claim more."""
    found = desk.table.transactions.outcome("00000000-0000-4000-8000-000000000000")
    assert isinstance(found, ty.outcomes.NotCommitted)
    assert "the id is not of this table" in found.reason

"""Options say which table: any contradiction or slip is refused with the option's name."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import tiltyard as ty
from tiltyard.spark.source import TiltyardSource
from tiltyard.spark.source_options import Options
from tiltyard.spark.target import Address, Target


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({}, "path"),
        ({"path": "a", "lake": "b"}, "path"),
        ({"path": "a", "lake": "b", "table": "c"}, "path"),
        ({"lake": "b"}, "table"),
        ({"table": "b"}, "lake"),
        ({"path": "a", "version": "1", "tag": "x"}, "tag"),
        ({"path": "a", "version": "1", "timestamp": "2020-01-01"}, "timestamp"),
        ({"path": "a", "tag": "x", "branch": "y"}, "branch"),
        ({"path": "a", "snapshot": "3"}, "snapshot"),
        ({"path": "a", "version": "one"}, "version"),
        ({"path": "a", "version": "0"}, "version"),
        ({"lake": "a", "table": "b", "commit_store": "sqlite:///x"}, "commit_store"),
        ({"path": "a", "durability": "maybe"}, "durability"),
        ({"address": "{}"}, "address"),
        ({"address": "no json"}, "address"),
        ({"path": "a", "allowed_bases": "x,,y"}, "allowed_bases"),
        ({"path": "a", "allowed_bases": "`x"}, "allowed_bases"),
    ],
)
def test_contradictions(given: dict[str, str], argument: str) -> None:
    with pytest.raises(ty.InvalidInput) as refused:
        Target.from_options(given)
    assert refused.value.argument == argument
    assert len(str(refused.value)) < 300


def test_case_does_not_matter_but_for_storage() -> None:
    target = Target.from_options({"PATH": "a", "Version": "3", "Storage.AWS_Region": "x"})
    assert (target.path, target.version, target.storage_options()) == ("a", 3, {"AWS_Region": "x"})


@pytest.mark.parametrize("doing", ["schema", "reader", "writer", "streamReader", "streamWriter"])
def test_unknown_options_are_named_whatever_else_is_wrong(tmp_path: Path, doing: str) -> None:
    source = TiltyardSource({"path": str(tmp_path / "nothing"), "no_such_option": "1"})
    columns = StructType([StructField("id", LongType())])
    given = {"schema": (), "reader": (columns,), "streamReader": (columns,)}.get(doing, (columns, False))
    with pytest.raises(ty.InvalidInput, match="There is no option 'no_such_option'"):
        getattr(source, doing)(*given)
    assert not (tmp_path / "nothing").exists()


def test_long_advice_does_not_push_out_what_happened() -> None:
    error = ty.InvalidInput("There is no option 'x'.", advice="Known: " + "some, " * 100)
    assert str(error).startswith("There is no option 'x'. Known: some")
    assert len(str(error)) <= 300
    assert str(error.advised("Look again.")) == "There is no option 'x'. Look again."


def test_unknown_options_are_refused_with_what_was_meant() -> None:
    with pytest.raises(ty.InvalidInput, match="Did you mean columns") as refused:
        Options({"path": "a", "colums": "b"}).require_known(["columns"], "read")
    assert refused.value.argument == "colums"
    Options({"path": "a", "storage.anything": "b"}).require_known([], "read")


@pytest.mark.parametrize(("text", "size"), [("5", 5), ("64mb", 64 << 20), ("1 G", 1 << 30), ("2KB", 2048)])
def test_sizes(text: str, size: int) -> None:
    assert Options({"s": text}).size("s") == size


@pytest.mark.parametrize("text", ["0", "-5", "mb", "1.5g", "5 apples"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ty.InvalidInput):
        Options({"s": text}).size("s")


def test_switches_and_names() -> None:
    options = Options({"a": "Yes", "b": "off", "c": "perhaps", "names": "x, `a,b`,y "})
    assert (options.boolean("a"), options.boolean("b"), options.boolean("missing", True)) == (True, False, True)
    with pytest.raises(ty.InvalidInput):
        options.boolean("c")
    assert options.names("names") == ("x", "a,b", "y")


def test_targets_pickle_and_go_back_to_options() -> None:
    for given in (
        {"path": "a", "version": "3", "storage.key": "secret"},
        {"lake": "a", "table": "b.c", "snapshot": "4"},
        {"path": "a", "branch": "x", "timestamp": "2020-01-01", "allowed_bases": "`p`,`q,r`", "durability": "os"},
    ):
        target = Target.from_options(given)
        assert Target.from_options(target.to_options()) == target
        assert pickle.loads(pickle.dumps(target)) == target  # our own bytes
        assert "secret" not in repr(target)


def test_who_changes_a_table_starts_from_the_newest() -> None:
    for name, value in (("version", "1"), ("tag", "x"), ("timestamp", "2020-01-01")):
        with pytest.raises(ty.InvalidInput) as refused:
            Target.from_options({"path": "a", name: value}).require_newest("append")
        assert refused.value.argument == name
    Target.from_options({"path": "a", "branch": "x"}).require_newest("append")


def test_every_way_to_say_when(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", pa.table({"id": [1]}))
    table.append(pa.table({"id": [2]}))
    table.tags.create("first", version=1)
    table.branches.create("trial", 1)
    path = str(tmp_path / "t")

    def rows(**more: str) -> int:
        return Target.from_options({"path": path, **more}).open().count_rows()

    assert (rows(), rows(version="1"), rows(tag="first"), rows(branch="trial"), rows(branch="main")) == (2, 1, 1, 1, 2)
    assert rows(timestamp="2999-01-01") == 2
    assert Target.from_options({"path": path}).pinned(1).open().version == 1
    assert Target.from_options({"path": path, "tag": "first"}).newest().open().version == 2
    with pytest.raises(ty.NotFound):
        rows(version="9")


def test_tables_of_a_lake(tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake")
    lake.create_table("sales.orders", pa.table({"id": [1]}))
    lake.tags.create("begin")
    lake.branches.create("trial")
    lake.table("sales.orders").append(pa.table({"id": [2]}))
    lake.on_branch("trial").table("sales.orders").append(pa.table({"id": [3, 4]}))
    where = {"lake": str(tmp_path / "lake"), "table": "sales.orders"}

    def rows(**more: str) -> int:
        return Target.from_options({**where, **more}).open().count_rows()

    assert (rows(), rows(tag="begin"), rows(snapshot="1"), rows(version="1"), rows(branch="trial")) == (2, 1, 1, 1, 3)
    address = Target.from_options({**where, "branch": "trial"}).locate()
    assert pickle.loads(pickle.dumps(address)) == address  # our own bytes
    assert Address.from_json(address.to_json()) == address
    with pytest.raises(ty.NotFound):
        Target.from_options({"lake": str(tmp_path / "none"), "table": "x"}).open()


MISTAKES: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "an option that is none": (lambda df, path: df.write.format("tiltyard").mode("append").option("mesage", "x").save(path), "message?"),
    "a column too many": (lambda df, path: df.selectExpr("*", "1 AS n").write.format("tiltyard").mode("append").save(path), "column n"),
    "no such table": (lambda df, path: df.sparkSession.read.format("tiltyard").load(path + "/nowhere"), "no table at"),
    "no such column": (lambda df, path: df.sparkSession.read.format("tiltyard").option("filter", "no > 1").load(path).collect(), "'no'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_the_first_line(spark: SparkSession, tmp_path: Path, mistake: str) -> None:
    """Not below the calls of ours that found it."""
    ty.spark.enable(spark)
    ty.Table.create(str(tmp_path / "t"), pa.table({"id": [1]}))
    make, words = MISTAKES[mistake]
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as raised:
        make(spark.range(1), str(tmp_path / "t"))
    assert words in str(raised.value).split("\n")[0]
    assert "Traceback" not in str(raised.value)

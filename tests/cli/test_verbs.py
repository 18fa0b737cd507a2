"""The commands that change a table: what they do to it, what they say, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

import tiltyard as ty
from tests.cli.conftest import Run

ROWS = {"id": [1, 2, 3, 4], "name": ["Ada", "Ben", "Cleo", "Dee"], "age": [30, 40, 50, None]}
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())])

Told = Callable[..., dict[str, Any]]


@pytest.fixture
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "people"  # a short path, of which messages show all
    ty.Table.create(path, pa.table(ROWS, schema=SCHEMA), primary_key=["id"], stable_row_ids=True)
    return path


@pytest.fixture
def told(run: Run) -> Told:
    """Runs a command that must succeed and gives its document."""

    def ask(*arguments: str | Path) -> dict[str, Any]:
        done = run(*arguments, "--json")
        assert (done.code, done.err) == (0, ""), done.out
        found: dict[str, Any] = json.loads(done.out)
        return found

    return ask


def person(number: int, age: int) -> pa.Table:
    return pa.table({"id": [number], "name": [f"number {number}"], "age": [age]}, schema=SCHEMA)


def ids(path: Path, **at: Any) -> list[int]:
    return sorted(ty.Table.open(path, **at).to_arrow()["id"].to_pylist())


# ---- rows --------------------------------------------------------------------------------------------------------------------


def test_delete(run: Run, told: Told, people: Path) -> None:
    dry = told("delete", people, "--where", "age > 35", "--dry-run")
    assert (dry["dry_run"], dry["committed"], dry["rows"], dry["version"]) == (True, False, {"deleted": 2}, 1)
    assert ids(people) == [1, 2, 3, 4]
    done = told("delete", people, "--where", "age > 35", "-m", "too old")
    assert (done["committed"], done["version"], done["operation"], done["rows"]) == (True, 2, "Delete", {"deleted": 2})
    assert (done["uri"], done["branch"], done["read_version"], done["rebased_over"]) == (str(people), None, 1, [])
    entry = ty.Table.open(people).transactions.describe()
    assert (entry.message, entry.transaction_id) == ("too old", done["transaction_id"])
    assert ids(people) == [1, 4]
    again = run("delete", people, "--where", "age > 35", width=200)
    assert (again.code, again.out) == (0, f"nothing to do  {people} stays at version 2\n")


def test_delete_needs_a_condition_that_means_something(run: Run, people: Path) -> None:
    assert run("delete", people).code == 2
    for wrong in ("nobody = 1", "id >", "1"):
        done = run("delete", people, "--where", wrong)
        assert (done.code, done.out) == (2, ""), wrong
        assert "[invalid-input]" in done.err
    assert ids(people) == [1, 2, 3, 4]


def test_update(told: Told, people: Path) -> None:
    assert told("update", people, "--set", "age=age + 1", "--where", "id < 3", "--dry-run")["rows"] == {"updated": 2}
    done = told("update", people, "--set", "age=age + 1", "--set", "name=name || '=x'", "--where", "id < 3", "--mode", "rows")
    assert (done["operation"], done["rows"]) == ("Update", {"updated": 2})
    rows = ty.Table.open(people).to_arrow().sort_by("id").to_pylist()
    assert [(row["name"], row["age"]) for row in rows] == [("Ada=x", 31), ("Ben=x", 41), ("Cleo", 50), ("Dee", None)]


@pytest.mark.parametrize("wrong", [["--set", "age"], ["--set", "age=1", "--set", "age=2"], ["--set", "id=1"], []])
def test_update_refuses(run: Run, people: Path, wrong: list[str]) -> None:
    assert run("update", people, *wrong).code == 2
    for mistake in ("nobody=1", "age=nobody + 1", "age=1 +"):
        assert run("update", people, "--set", mistake, "--dry-run").code == 2, mistake
    assert ty.Table.open(people).layout.latest_version() == 1


def _write(path: Path, rows: pa.Table) -> Path:
    match path.suffix:
        case ".parquet":
            pa.parquet.write_table(rows, path)
        case ".csv":
            pa.csv.write_csv(rows, path)
        case ".tsv":
            pa.csv.write_csv(rows, path, pa.csv.WriteOptions(delimiter="\t"))
        case ".feather":
            pa.feather.write_feather(rows, path)
        case ".arrows":
            with pa.ipc.new_stream(path, rows.schema) as stream:
                stream.write_table(rows)
        case ".json":
            path.write_text(json.dumps(rows.to_pylist()))
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv", "tsv", "feather", "arrows", "json", "jsonl"])
def test_append_from_a_file(told: Told, people: Path, tmp_path: Path, kind: str) -> None:
    """What is text in a file gets the types of the table: the age is an int32."""
    source = _write(tmp_path / f"new.{kind}", pa.table({"id": [5, 6], "name": ["Eve", "Fay"], "age": [1, None]}, schema=SCHEMA))
    done = told("append", people, source)
    assert (done["operation"], done["version"], done["rows"]) == ("Append", 2, {"inserted": 2})
    found = ty.Table.open(people).to_arrow(filter="id > 4").sort_by("id").to_pylist()
    assert found == [{"id": 5, "name": "Eve", "age": 1}, {"id": 6, "name": "Fay", "age": None}]


def test_a_column_the_file_lacks_is_left_alone_by_a_merge(told: Told, people: Path, tmp_path: Path) -> None:
    source = tmp_path / "ages"
    source.write_text('{"id": 1, "age": 31}\n')
    assert told("merge", people, source, "--format", "json", "--update")["rows"]["updated"] == 1
    assert ty.Table.open(people).to_arrow(filter="id = 1").to_pylist() == [{"id": 1, "name": "Ada", "age": 31}]


def test_lists_in_a_text_file_become_vectors(told: Told, tmp_path: Path) -> None:
    vectors = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), 2)), ("place", pa.struct([("x", pa.int16())]))])
    ty.Table.create(tmp_path / "t", vectors)
    (tmp_path / "new.jsonl").write_text('{"id": 1, "vector": [1, 2.5], "place": {"x": 3}}\n')
    assert told("append", tmp_path / "t", tmp_path / "new.jsonl")["rows"] == {"inserted": 1}
    assert ty.Table.open(tmp_path / "t").to_arrow().to_pylist() == [{"id": 1, "vector": [1.0, 2.5], "place": {"x": 3}}]


def test_append_refuses_files_it_cannot_read(run: Run, people: Path, tmp_path: Path) -> None:
    late = "".join(f"{number},name of {number},3\n" for number in range(100, 90_000))
    (tmp_path / "late.csv").write_text(f"id,name,age\n{late}oops,x,1\n")
    (tmp_path / "junk.parquet").write_bytes(b"junk")
    (tmp_path / "what.txt").write_text("id\n")
    for name, kind in (
        ("late.csv", "invalid-input"),
        ("junk.parquet", "invalid-input"),
        ("what.txt", "invalid-input"),
        ("no.csv", "not-found"),
    ):
        done = run("append", people, tmp_path / name)
        assert (done.code, done.out) == (2, ""), name
        assert f"[{kind}]" in done.err
        assert name in done.err
    assert ty.Table.open(people).layout.latest_version() == 1


def test_append_of_a_key_that_is_there_is_a_conflict(run: Run, people: Path, tmp_path: Path) -> None:
    source = _write(tmp_path / "new.csv", pa.table({"id": [4, 5], "name": ["x", "y"], "age": [1, 1]}))
    done = run("append", people, source, "--json")
    found = json.loads(done.out)
    assert (done.code, found["kind"]) == (3, "key-conflict")
    assert "4" in found["sample"][0]
    assert run("append", people, source, "--on-duplicate", "allow").code == 0
    assert ids(people) == [1, 2, 3, 4, 4, 5]


def test_merge(told: Told, people: Path, tmp_path: Path) -> None:
    source = _write(tmp_path / "new.csv", pa.table({"id": [1, 9], "name": ["Eda", "Ian"], "age": [31, 9]}, schema=SCHEMA))
    done = told("merge", people, source, "--update", "--insert", "-m", "upsert")
    assert done["rows"] == {"inserted": 1, "updated": 1, "deleted": 0}
    assert ids(people) == [1, 2, 3, 4, 9]
    assert told("merge", people, source, "--delete-matched-if", "target.age > 30", "--update-columns", "name")["rows"] == {
        "inserted": 0,
        "updated": 1,
        "deleted": 1,
    }
    assert told("merge", people, source, "--on", "id", "--delete-unmatched-if", "age > 45")["rows"]["deleted"] == 1
    assert ids(people) == [2, 4, 9]
    assert told("merge", people, source, "--delete-unmatched")["rows"]["deleted"] == 2


def test_merge_says_what_is_missing(run: Run, people: Path, tmp_path: Path) -> None:
    source = _write(tmp_path / "new.csv", pa.table({"id": [1, 1], "name": ["x", "y"], "age": [1, 1]}))
    nothing = run("merge", people, source)
    assert nothing.code == 2
    assert "--update --insert" in nothing.err
    twice = run("merge", people, source, "--update")
    assert (twice.code, "[key-conflict]" in twice.err) == (3, True)
    matched = run("merge", people, _write(tmp_path / "one.csv", pa.table({"id": [1]})), "--fail-matched", "--json")
    assert (matched.code, json.loads(matched.out)["kind"]) == (3, "key-conflict")


# ---- upkeep and the past -----------------------------------------------------------------------------------------------------


def test_compact(told: Told, people: Path) -> None:
    ty.Table.open(people).append(person(5, 5))
    done = told("compact", people)
    assert (done["operation"], done["fragments_before"], done["fragments_after"]) == ("Rewrite", 2, 1)
    assert told("compact", people)["committed"] is False
    assert ids(people) == [1, 2, 3, 4, 5]


def test_restore(run: Run, told: Told, people: Path) -> None:
    table = ty.Table.open(people)
    table.tags.create("first", 1)
    table.delete("id > 1")
    dry = told("restore", people, "first", "--dry-run")
    assert (dry["restored_version"], dry["rows"], dry["version"]) == (1, {"before": 1, "after": 4}, 2)
    assert table.layout.latest_version() == 2
    done = told("restore", people, "1")
    assert (done["operation"], done["version"], done["restored_version"]) == ("Restore", 3, 1)
    assert ids(people) == [1, 2, 3, 4]
    for wrong in ("77", "nobody"):
        assert (run("restore", people, wrong).code, run("restore", people, wrong, "--dry-run").code) == (2, 2)


def test_diff(run: Run, told: Told, people: Path) -> None:
    table = ty.Table.open(people)
    table.append(person(5, 5))
    table.update({"age": "6"}, "id = 5")
    table.delete("id = 1")
    found = told("diff", people, "1")
    assert (found["from"], found["to"], found["counts"]) == (1, 4, {"insert": 1, "update": 1, "delete": 1})
    assert [(row["_version"], row["_change"], row["id"]) for row in found["rows"]] == [(2, "insert", 5), (3, "update", 5), (4, "delete", 1)]
    old = told("diff", people, "2", "3", "--old")["rows"]
    assert [(row["age"], row["_old"]["age"]) for row in old] == [(6, 5)]
    text = run("diff", people, "1", "-n", "1").out
    assert "1 insert, 1 update, 1 delete" in text
    assert "and 2 more changes" in text
    assert "more" not in run("diff", people, "1", "--all").out
    assert "no row changed" in run("diff", people, "4").out
    assert run("diff", people, "4", "1").code == 2


def test_cleanup(run: Run, told: Told, people: Path) -> None:
    table = ty.Table.open(people)
    for number in range(5, 9):
        table.append(person(number, 1))
    table.tags.create("keep", 2)
    dry = told("cleanup", people, "--keep", "2", "--dry-run")
    assert (dry["dry_run"], dry["versions"], sorted(dry["kept"])) == (True, [1, 3], ["2", "4", "5"])
    assert ty.Table.open(people).layout.versions() == [1, 2, 3, 4, 5]
    text = run("cleanup", people, "--keep", "2", "--dry-run", width=200).out
    assert "2 versions" in text
    assert "tag keep" in text
    assert "Nothing was changed." in text
    assert told("cleanup", people, "--keep", "2")["versions"] == [1, 3]
    assert ty.Table.open(people).layout.versions() == [2, 4, 5]
    assert told("cleanup", people, "--older-than", "1d12h")["versions"] == []
    wrong = run("cleanup", people, "--older-than", "a week")
    assert (wrong.code, "Write 7d" in wrong.err) == (2, True)
    assert run("cleanup", people, "--keep", "0").code == 2


def test_clone(run: Run, told: Told, people: Path, tmp_path: Path) -> None:
    ty.Table.open(people).delete("id = 1")
    done = told("clone", people, tmp_path / "deep", "--deep", "--version", "1")
    assert (done["uri"], done["source"], done["deep"]) == (str(tmp_path / "deep"), str(people), True)
    assert ids(tmp_path / "deep") == [1, 2, 3, 4]
    assert told("clone", people, tmp_path / "shallow")["deep"] is False
    assert ids(tmp_path / "shallow", allowed_bases=[people]) == [2, 3, 4]
    taken = run("clone", people, tmp_path / "deep", "--deep", "--json")
    assert (taken.code, json.loads(taken.out)["kind"]) == (2, "already-exists")


# ---- indices, names, columns, settings ---------------------------------------------------------------------------------------


def test_indices(run: Run, told: Told, people: Path) -> None:
    assert "has no indices" in run("index", "list", people, width=200).out
    done = told("index", "create", people, "age", "btree", "--name", "by_age")
    assert (done["operation"], done["rows"]) == ("CreateIndex", {"indexed": 4})
    ty.Table.open(people).append(person(5, 5))
    (index,) = told("index", "list", people)["indices"]
    assert (index["name"], index["type"], index["columns"], index["rows"], index["missing_rows"]) == ("by_age", "BTREE", ["age"], 4, 1)
    assert "by_age" in run("index", "list", people).out
    optimized = told("index", "optimize", people)
    assert (optimized["rows"], optimized["missing_rows"]) == ({"indexed": 1}, 0)
    assert run("index", "create", people, "age", "BTREE", "--name", "by_age").code == 2
    assert told("index", "drop", people, "by_age")["committed"] is True
    assert told("index", "list", people)["indices"] == []
    assert run("index", "drop", people, "by_age").code == 2


def test_tags(run: Run, told: Told, people: Path) -> None:
    assert told("tag", "create", people, "first", "--version", "1", "--metadata", "who=me")["tag"]["version"] == 1
    ty.Table.open(people).delete("id = 1")
    (tag,) = told("tag", "list", people)["tags"]
    assert (tag["name"], tag["version"], tag["branch"], tag["metadata"]) == ("first", 1, None, {"who": "me"})
    moved = told("tag", "move", people, "first")
    assert (moved["tag"]["version"], moved["before"]["version"]) == (2, 1)
    assert lance.dataset(str(people)).tags.list()["first"]["version"] == 2
    assert told("tag", "delete", people, "first", "--dry-run")["dry_run"] is True
    assert "first" in run("tag", "list", people).out
    assert told("tag", "delete", people, "first")["deleted"] is True
    assert run("tag", "delete", people, "first").code == 2
    assert "has no tags" in run("tag", "list", people, width=200).out


def test_branches(run: Run, told: Told, people: Path) -> None:
    assert told("branch", "create", people, "side", "--version", "1")["branch"]["parent_version"] == 1
    done = told("delete", people, "--where", "id < 4", "--branch", "side")
    assert (done["branch"], done["version"]) == ("side", 2)
    assert (ids(people), ids(people, branch="side")) == ([1, 2, 3, 4], [4])
    assert told("branch", "create", people, "deeper", "--from", "side")["branch"]["parent_branch"] == "side"
    assert [one["name"] for one in told("branch", "list", people)["branches"]] == ["deeper", "side"]
    in_the_way = run("branch", "delete", people, "side", "--dry-run", width=200)
    assert (in_the_way.code, "branch deeper" in in_the_way.out) == (0, True)
    assert run("branch", "delete", people, "side").code == 2
    told("branch", "delete", people, "deeper")
    assert told("branch", "delete", people, "side", "--dry-run")["versions"] == [1, 2]
    assert told("branch", "delete", people, "side")["deleted"] is True
    assert told("branch", "list", people)["branches"] == []
    assert run("branch", "create", people, "x", "--tag", "t", "--version", "1").code == 2


def test_alter(run: Run, told: Told, people: Path, tmp_path: Path) -> None:
    told("alter", "rename", people, "age", "years")
    told("alter", "cast", people, "years", "decimal(12, 2)")
    told("alter", "nullable", people, "name", "no")
    told("alter", "add", people, "--set", "next=id + 1")
    told("alter", "add", people, "--null", "seen=timestamp[us]", "--null", "vector=fixed_size_list<float>[2]")
    source = _write(tmp_path / "towns.csv", pa.table({"id": [1, 2], "town": ["Bonn", "Jena"]}))
    told("alter", "add", people, "--from", source, "--on", "id")
    schema = ty.Table.open(people).schema
    assert [(one.name, str(one.type)) for one in schema] == [
        ("id", "int64"),
        ("name", "string"),
        ("years", "decimal128(12, 2)"),
        ("next", "int64"),
        ("seen", "timestamp[us]"),
        ("vector", "fixed_size_list<item: float>[2]"),
        ("town", "string"),
    ]
    assert schema.field("name").nullable is False
    assert ty.Table.open(people).to_arrow(filter="id = 2").to_pylist()[0]["town"] == "Jena"
    assert told("alter", "drop", people, "next", "seen", "--dry-run")["left"] == ["id", "name", "years", "vector", "town"]
    told("alter", "drop", people, "next", "seen", "vector")
    assert ty.Table.open(people).schema.names == ["id", "name", "years", "town"]


@pytest.mark.parametrize(
    "wrong",
    [
        ["cast", "age", "nonsense"],
        ["cast", "name", "int64"],
        ["nullable", "age", "no"],
        ["nullable", "age", "perhaps"],
        ["rename", "nobody", "x"],
        ["drop", "nobody"],
        ["drop", "nobody", "--dry-run"],
        ["drop", "id"],
        ["add"],
        ["add", "--set", "x=1", "--null", "y=int8"],
        ["add", "--set", "x=1", "--on", "id"],
    ],
    ids=" ".join,
)
def test_alter_refuses(run: Run, people: Path, wrong: list[str]) -> None:
    done = run("alter", wrong[0], people, *wrong[1:])
    assert (done.code, done.out) == (2, "")
    assert ty.Table.open(people).layout.latest_version() == 1


def test_config(run: Run, told: Told, people: Path) -> None:
    told("config", "set", people, "color=blue", "formula=a=b", "api_token=hunter2")
    assert dict(ty.Table.open(people).settings.config)["api_token"] == "hunter2"
    assert told("config", "list", people)["config"] == {"color": "blue", "formula": "a=b", "api_token": "***"}
    assert run("config", "get", people, "formula").out == "a=b\n"
    for arguments in (["config", "list", people], ["config", "get", people, "api_token"], ["show", people], ["show", people, "--json"]):
        assert "hunter2" not in run(*arguments).out
    told("config", "unset", people, "color", "api_token")
    assert dict(ty.Table.open(people).settings.config) == {"formula": "a=b"}
    told("config", "set", people, "owner=me", "--metadata")
    assert dict(ty.Table.open(people).settings.metadata) == {"owner": "me"}
    assert told("config", "list", people, "--metadata")["metadata"] == {"owner": "me"}
    assert run("config", "get", people, "color").code == 2
    pasted = run("config", "set", people, "hunter2")
    assert (pasted.code, "hunter2" in pasted.err) == (2, False)


# ---- why ---------------------------------------------------------------------------------------------------------------------


def test_why_tells_what_a_commit_was_rebased_over(run: Run, told: Told, people: Path) -> None:
    late, table = ty.Table.open(people), ty.Table.open(people)
    table.delete("id = 1", message="Ada left")
    table.append(person(5, 5))
    made = late.append(person(6, 6)).transaction_id
    found = told("why", people, made)
    assert (found["outcome"], found["version"], found["operation"], found["read_version"]) == ("committed", 4, "Append", 1)
    met = found["rebased_over"]
    assert [(one["version"], one["operation"], one["message"]) for one in met] == [(2, "Delete", "Ada left"), (3, "Append", "")]
    assert all(one["passed_as"] for one in met)
    assert told("why", people, made[:8].upper()) == found
    assert told("why", people, "--version", "4") == found
    assert (run("why", people).code, run("why", people, made, "--version", "4").code, run("why", people, "--version", "9").code) == (
        2,
        2,
        2,
    )
    text = run("why", people, made).out
    assert "2 versions: 2 to 3" in text
    first = table.transactions.describe(2).transaction_id
    assert "no commit came in between" in run("why", people, first).out


def test_why_looks_at_branches(told: Told, people: Path) -> None:
    ty.Table.open(people).branches.create("side")
    made = ty.Table.open(people, branch="side").delete("id = 1").transaction_id
    found = told("why", people, made)
    assert (found["outcome"], found["branch"], found["version"]) == ("committed", "side", 2)


def test_why_says_so_when_nothing_is_there(run: Run, told: Told, people: Path) -> None:
    nobody = "00000000-0000-4000-8000-000000000000"
    found = told("why", people, nobody)
    assert (found["outcome"], found["transaction_id"]) == ("not-committed", nobody)
    assert "its writer withdrew it" in found["reason"]
    part = run("why", people, nobody[:8])
    assert (part.code, "whole id" in part.err) == (2, True), "of a part of an id nothing can be said"
    assert run("why", people, "123").code == 2
    asked = run("why", people, nobody, "--tried", "2", "--json")
    assert (asked.code, json.loads(asked.out)["outcome"]) == (4, "unknown")


def test_why_tells_of_one_that_failed(run: Run, told: Told, people: Path) -> None:
    stale = ty.Table.open(people)
    ty.Table.open(people).update_config({"color": "red"}, message="mine")
    with pytest.raises(ty.IncompatibleConflict) as caught:
        stale.update_config({"color": "blue"})
    lost = caught.value.transaction_id
    found = told("why", people, lost)
    assert (found["outcome"], found["transaction_id"], found["attempt"]["kind"]) == ("not-committed", lost, "incompatible-conflict")
    assert [(one["version"], one["message"]) for one in found["attempt"]["winners"]] == [(2, "mine")]
    assert told("why", people, lost[:8].upper()) == found, "the beginning of its id is enough"
    text = run("why", people, lost[:8], width=400).out
    assert "not committed" in text
    assert str(caught.value) in text
    assert "mine" in text
    assert "running it again is safe" not in text
    listed = told("why", people, "--failed")
    assert [(one["transaction_id"], one["branch"]) for one in listed["attempts"]] == [(lost, None)]
    assert lost in run("why", people, "--failed", width=200).out
    assert run("why", people, lost, "--failed").code == 2


def test_why_finds_a_failed_one_on_a_branch(told: Told, people: Path) -> None:
    ty.Table.open(people).branches.create("side")
    stale = ty.Table.open(people, branch="side")
    ty.Table.open(people, branch="side").update_config({"color": "red"})
    with pytest.raises(ty.IncompatibleConflict) as caught:
        stale.update_config({"color": "blue"})
    found = told("why", people, caught.value.transaction_id[:10])
    assert (found["branch"], found["attempt"]["operation"]) == ("side", "UpdateConfig")
    assert [one["branch"] for one in told("why", people, "--failed")["attempts"]] == ["side"]


# ---- endings -----------------------------------------------------------------------------------------------------------------


def test_a_conflict_has_an_exit_code_of_its_own(run: Run, people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two settings of one key cannot be reconciled: the loser is told by whom it was beaten."""
    _opened_before(monkeypatch, lambda: ty.Table.open(people).update_config({"color": "red"}, message="mine"))
    done = run("config", "set", people, "color=blue", "--json")
    found = json.loads(done.out)
    assert (done.code, found["kind"]) == (3, "incompatible-conflict")
    assert [(one["version"], one["operation"], one["message"]) for one in found["winners"]] == [(2, "UpdateConfig", "mine")]
    assert dict(ty.Table.open(people).settings.config) == {"color": "red"}


def _opened_before(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Lets somebody else commit right after the command has opened the table."""
    opened = ty.Table.open.__func__  # type: ignore[attr-defined]

    def late(cls: type[ty.Table], *arguments: Any, **options: Any) -> ty.Table:
        monkeypatch.undo()
        table: ty.Table = opened(cls, *arguments, **options)
        other()
        return table

    monkeypatch.setattr(ty.Table, "open", classmethod(late))


def test_an_unknown_outcome_says_how_to_ask(run: Run, people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ty.OutcomeUnknown(
        "The store did not answer.", transaction_id="00000000-0000-4000-8000-000000000000", version=2, uri=str(people)
    )

    def lost(*arguments: Any, **options: Any) -> ty.CommitResult:
        raise error

    monkeypatch.setattr(ty.Table, "delete", lost)
    done = run("delete", people, "--where", "true", width=1000)
    assert done.code == 4
    assert f"tiltyard why {people} 00000000-0000-4000-8000-000000000000 --tried 2" in done.err
    assert "[outcome-unknown]" in done.err


def test_a_clone_in_doubt_is_asked_for_where_it_is(run: Run, people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = "00000000-0000-4000-8000-000000000000"

    def lost(self: ty.Table, *_: object, **__: object) -> None:
        raise ty.OutcomeUnknown("No answer.", transaction_id=nobody, version=7, uri="lake/copy", operation="Clone")

    monkeypatch.setattr(ty.Table, "clone", lost)
    done = run("clone", people, tmp_path / "copy", width=1000)
    assert (done.code, f"tiltyard why lake/copy {nobody} --tried 7" in done.err) == (4, True)


def test_text_names_version_transaction_and_rows(run: Run, people: Path) -> None:
    done = run("delete", people, "--where", "id = 1", width=200)
    first, second = done.out.splitlines()
    assert first == f"committed  version 2 of {people} (Delete); rows: 1 deleted"
    assert second == f"  transaction  {ty.Table.open(people).transactions.describe().transaction_id}"


# ---- bases -------------------------------------------------------------------------------------------------------------------


def test_bases(run: Run, told: Told, people: Path, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    allow = ("--allow-base", cold)
    assert told("base", "list", people)["bases"] == []
    assert run("base", "add", people, cold).code == 2, "it has to be allowed"
    done = told("base", "add", people, cold, "--name", "attic", "-m", "more room", *allow)
    assert (done["operation"], ty.Table.open(people, allowed_bases=[cold]).transactions.describe().message) == ("UpdateBases", "more room")
    listed = told("base", "list", people, *allow)["bases"]
    assert listed == [{"id": 1, "path": str(cold), "is_dataset_root": False, "name": "attic"}]
    assert "attic" in run("base", "list", people, *allow, width=200).out
    for number, base in enumerate(("attic", "1", cold), 5):
        source = _write(tmp_path / "one.parquet", person(number, 1))
        added = told("append", people, source, "--base", base, *allow)
        assert added["rows"] == {"inserted": 1}
    merged = told("merge", people, _write(tmp_path / "two.parquet", person(1, 99)), "--update", "--base", "attic", *allow)
    assert merged["rows"]["updated"] == 1
    assert len(list(cold.iterdir())) == 4
    assert ids(people, allowed_bases=[cold]) == [1, 2, 3, 4, 5, 6, 7]
    assert run("append", people, source, "--base", "nowhere", *allow).code == 2

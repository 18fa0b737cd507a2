"""The commands about lakes: what they do, what they say, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest

import tiltyard as ty
from tests.cli.conftest import Run
from tests.support.lakes import LosingRecords, add_to_both, foreign_append, ids, numbers, through, two_tables, uri_of

Told = Callable[..., dict[str, Any]]


@pytest.fixture
def told(run: Run) -> Told:
    """Runs a command that must succeed and gives its document."""

    def ask(*arguments: str | Path) -> dict[str, Any]:
        done = run("lake", *arguments, "--json")
        assert (done.code, done.err) == (0, ""), done.out
        found: dict[str, Any] = json.loads(done.out)
        return found

    return ask


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A lake with three snapshots."""
    path = tmp_path / "lake"
    with two_tables(ty.Lake.open(path, author="ada")) as lake:
        with lake.transaction(message="both", properties={"job": "7"}) as tx:
            add_to_both(tx, 2)
        lake.create_table("sales.c", numbers(1))
    return path


def test_init(run: Run, told: Told, tmp_path: Path) -> None:
    assert told("init", tmp_path / "new")["tables"] == []
    assert run("lake", "init", tmp_path / "new", width=300).out.startswith("ready  a lake at ")
    told("init", tmp_path / "table", "--catalog", "manifest")
    assert (tmp_path / "table" / "__manifest").is_dir()
    assert told("tables", tmp_path / "table", "--catalog", "manifest")["tables"] == []
    wrong = run("lake", "init", tmp_path / "new", "--catalog", "odd")
    assert (wrong.code, "[invalid-input]" in wrong.err) == (2, True)


def test_there_is_no_lake(run: Run, tmp_path: Path) -> None:
    for command in (["tables"], ["log"], ["check"], ["cleanup"], ["tag", "list"]):
        done = run("lake", *command, tmp_path / "nothing")
        assert (done.code, done.out) == (2, ""), command
        assert "[not-found]" in done.err
    assert not (tmp_path / "nothing").exists(), "and asking makes none"


def test_tables_and_log_and_show(run: Run, told: Told, home: Path) -> None:
    found = told("tables", home)
    assert [(one["name"], one["version"]) for one in found["tables"]] == [("a", 2), ("b", 2), ("sales.c", 1)]
    assert (found["snapshot"], found["branch"]) == (3, "main")
    assert told("tables", home, "--at", "1")["tables"] == [{"name": "a", "version": 1}, {"name": "b", "version": 1}]
    entries = told("log", home, "-n", "2")["snapshots"]
    assert [(one["snapshot"], one["author"], one["message"]) for one in entries] == [(3, "ada", ""), (2, "ada", "both")]
    assert [(one["table"], one["what"], one["operations"]) for one in entries[1]["changes"]] == [
        ("a", "write", ["Append"]),
        ("b", "write", ["Append"]),
    ]
    assert len(told("log", home, "--all")["snapshots"]) == 3
    shown = told("show", home, "2")
    assert (shown["tables"], shown["made_by"]["properties"]) == ({"a": 2, "b": 2}, {"job": "7"})
    text = run("lake", "show", home, "2", width=200).out
    assert all(part in text for part in ("snapshot  2 of", "both", "job=7", "1 -> 2", "Append"))
    assert "sales.c (create)" in run("lake", "log", home, width=200).out
    assert run("lake", "show", home, "9").code == 2


def test_tags(run: Run, told: Told, home: Path) -> None:
    assert told("tag", "create", home, "v1", "--at", "2")["tag"]["snapshot"] == 2
    assert [one["name"] for one in told("tag", "list", home)["tags"]] == ["v1"]
    assert told("tables", home, "--at", "v1")["snapshot"] == 2
    assert run("lake", "tag", "create", home, "v1").code == 2
    assert told("tag", "delete", home, "v1", "--dry-run")["deleted"] is False
    assert told("tag", "delete", home, "v1")["deleted"] is True
    assert "has no tags" in run("lake", "tag", "list", home, width=200).out


def test_diff(run: Run, told: Told, home: Path) -> None:
    told("branch", "create", home, "side")
    with ty.Lake.open(home) as lake:
        lake.on_branch("side").table("a").append(numbers(50, 51))
    found = told("diff", home, "main", "side")
    assert (found["before"], found["after"]) == ({"branch": "main", "snapshot": 3}, {"branch": "side", "snapshot": 4})
    assert [(one["table"], one["change"], one["rows"]["added"]) for one in found["tables"]] == [("a", "changed", 2)]
    page = told("diff", home, "main", "side", "--table", "a", "-n", "1")
    assert (page["rows"], page["next"]) == ([{"change": "added", "before": None, "after": {"id": 50}}], 1)
    assert told("diff", home, "main", "side", "--table", "a", "--after", "1")["next"] is None
    assert "changed" in run("lake", "diff", home, "main", "side", width=200).out
    assert "id=50" in run("lake", "diff", home, "main", "side", "--table", "a", width=200).out
    assert "do not differ" in run("lake", "diff", home, "1", "main@1", width=200).out
    assert run("lake", "diff", home, "main", "nope").code == 2


def test_merge_and_its_kin(run: Run, told: Told, home: Path) -> None:
    told("branch", "create", home, "side")
    with ty.Lake.open(home) as lake:
        lake.on_branch("side").table("a").append(numbers(50))
        lake.on_branch("side").table("b").append(numbers(51))
        lake.table("a").append(numbers(60))
    first, second = (one["snapshot"] for one in reversed(told("log", home, "--branch", "side", "-n", "2")["snapshots"]))
    assert told("rebase", home, "side", "--dry-run")["dry_run"] is True
    done = told("rebase", home, "side", "--onto", "main", "-m", "news")
    assert (done["source"], done["target"], [one["table"] for one in done["tables"]]) == ("main", "side", ["a"])
    assert "side has all of main" in run("lake", "rebase", home, "side", width=200).out
    assert told("cherry-pick", home, "side", str(second))["tables"][0]["table"] == "b"
    assert "main has snapshot" in run("lake", "cherry-pick", home, "side", str(second), width=200).out
    picked = told("log", home, "-n", "1")["snapshots"][0]["snapshot"]
    text = run("lake", "revert", home, str(picked), "-m", "not yet", width=200).out
    assert (f"with 1 table without snapshot {picked}" in text, "committed" in text) == (True, True)
    assert told("merge", home, "side", "--dry-run")["up_to_date"] is False
    with ty.Lake.open(home) as lake:
        assert (ids(lake.table("a")), ids(lake.table("b"))) == ([1, 2, 60], [1, 2])
        assert ids(lake.on_branch("side").table("a")) == [1, 2, 50, 60]
    assert told("restore-snapshot", home, str(first), "--on", "side")["tables"][0]["how"] == "restored"
    assert "side is as at snapshot" in run("lake", "restore-snapshot", home, str(first), "--on", "side", width=200).out
    with ty.Lake.open(home) as lake:
        assert (ids(lake.on_branch("side").table("a")), ids(lake.on_branch("side").table("b"))) == ([1, 2, 50], [1, 2])
        lake.on_branch("side").table("a").delete("id = 1")
        lake.table("a").delete("id = 1")
    trial = run("lake", "rebase", home, "side", "--dry-run", width=200)
    assert (trial.code, "conflict in a (rows)" in trial.out, "Nothing was changed." in trial.out) == (1, True, True)
    assert run("lake", "rebase", home, "side", "--json").code == 3
    assert told("rebase", home, "side", "--on-conflict", "a=ours")["up_to_date"] is False


@pytest.mark.parametrize(
    "arguments",
    [["rebase", "main"], ["rebase", "nope"], ["cherry-pick", "nope", "1"], ["cherry-pick", "main", "99"], ["revert", "99"],
     ["restore-snapshot", "99"], ["restore-snapshot", "1", "--on", "nope"], ["revert", "1", "--on-conflict", "mine"]],
)  # fmt: skip
def test_merge_commands_that_make_no_sense(run: Run, home: Path, arguments: list[str]) -> None:
    command, *rest = arguments
    done = run("lake", command, home, *rest)
    assert (done.code, done.out, "Traceback" in done.err) == (2, "", False)
    asked = run("lake", command, home, *rest, "--json")
    assert json.loads(asked.out)["kind"] in ("not-found", "invalid-input", "usage")


def test_sizes_and_a_clone(run: Run, told: Told, home: Path, tmp_path: Path) -> None:
    told("branch", "create", home, "side")
    told("tag", "create", home, "v1", "--at", "1")
    found = told("branch", "list", home, "--sizes")["sizes"]
    assert [(one["name"], one["tables"], one["own"], one["bytes"] > 0) for one in found] == [("main", 3, 0, True), ("side", 3, 0, True)]
    assert [one["name"] for one in told("tag", "list", home, "--sizes")["sizes"]] == ["v1"]
    assert "alone" in run("lake", "branch", "list", home, "--sizes", width=200).out
    done = told("clone", home, tmp_path / "clone", "--at", "v1")
    assert (done["tables"], done["source_snapshot"]) == (["a", "b"], 1)
    assert told("tables", tmp_path / "clone")["tables"][0]["name"] == "a"
    again = run("lake", "clone", home, tmp_path / "clone")
    assert (again.code, "[already-exists]" in again.err) == (2, True)
    assert "keeps the files here" in run("lake", "clone", home, tmp_path / "other", width=200).out


def test_protected_branches(run: Run, told: Told, home: Path) -> None:
    told("branch", "create", home, "side")
    rule = told("branch", "protect", home, "main", "--writer", "ada", "--writer", "bob", "--check", "rows", "--author", "ada")
    assert (rule["writers"], rule["checks"]) == (["ada", "bob"], ["rows"])
    with ty.Lake.open(home, author="ada") as lake:
        lake.on_branch("side").table("a").append(numbers(50))
    refused = run("lake", "merge", home, "side")
    assert (refused.code, "[protected-branch]" in refused.err, "may not write" in refused.err) == (2, True, True)
    assert run("lake", "branch", "unprotect", home, "main", "--author", "eve").code == 2
    assert told("branch", "check", home, "side")["checks"] == []
    done = told("branch", "check", home, "side", "rows", "--failed", "--detail", "3 bad", "--author", "bob")
    assert [(one["name"], one["passed"], one["detail"], one["author"]) for one in done["checks"]] == [("rows", False, "3 bad", "bob")]
    assert "failed" in run("lake", "branch", "check", home, "side", width=200).out
    assert run("lake", "branch", "check", home, "side", "rows").code == 2
    listed = run("lake", "branch", "list", home, width=200).out
    assert "main is protected: writers ada, bob; checks rows" in listed
    assert told("branch", "list", home)["protected"]["main"]["checks"] == ["rows"]
    assert told("branch", "unprotect", home, "main", "--author", "ada")["protected"] is False


def test_branches(run: Run, told: Told, home: Path) -> None:
    assert told("branch", "create", home, "side")["branch"]["snapshot"] == 3
    with ty.Lake.open(home) as lake:
        lake.on_branch("side").table("a").append(numbers(50))
    assert told("tables", home, "--branch", "side")["tables"][0] == {"name": "a", "version": 3}
    assert told("tables", home)["tables"][0] == {"name": "a", "version": 2}
    assert told("log", home, "--branch", "side")["snapshots"][0]["branch"] == "side"
    done = told("branch", "fast-forward", home, "side")
    assert done["tables"] == {"a": 3}
    with ty.Lake.open(home) as lake:
        assert ids(lake.table("a")) == [1, 2, 50]
        lake.on_branch("side").table("a").append(numbers(51))
        lake.table("a").append(numbers(52))
    late = run("lake", "branch", "fast-forward", home, "side")
    assert (late.code, "changed on main" in late.err) == (3, True)
    assert told("branch", "delete", home, "side", "--dry-run")["deleted"] is False
    assert told("branch", "delete", home, "side")["deleted"] is True
    assert told("branch", "list", home)["branches"] == []


def test_register(run: Run, told: Told, home: Path, tmp_path: Path) -> None:
    lance.write_dataset(numbers(7), tmp_path / "mine")
    assert told("register", home, "mine", tmp_path / "mine")["version"] == 1
    assert {"name": "mine", "version": 1} in told("tables", home)["tables"]
    assert run("lake", "register", home, "mine", tmp_path / "mine").code == 2
    assert run("lake", "register", home, "other", tmp_path / "nothing").code == 2


def test_check(run: Run, told: Told, home: Path) -> None:
    report = told("check", home)
    assert (report["ok"], report["problems"], {*report["tables"]}) == (True, [], {"a", "b", "sales.c"})
    assert told("check", home, "--shallow")["tables"] == {}
    assert run("lake", "check", home, width=200).out.startswith("sound  ")
    with ty.Lake.open(home) as lake:
        next(Path(uri_of(lake, "a"), "data").iterdir()).unlink()
    bad = run("lake", "check", home, "--json")
    assert (bad.code, json.loads(bad.out)["problems"][0]["table"]) == (1, "a")
    assert "unsound" in run("lake", "check", home, width=200).out


def test_repair(run: Run, told: Told, home: Path) -> None:
    assert run("lake", "repair", home, "a", width=200).out.startswith("nothing to do  a: at version 2")
    with ty.Lake.open(home) as lake:
        tx = add_to_both(lake.transaction(), 3)
        losing = through(lake, LosingRecords)
        losing.raises = KeyboardInterrupt
        losing.lose(1, "after")
        with pytest.raises(KeyboardInterrupt):
            tx.commit()
        foreign_append(uri_of(lake, "a"), 99)
    bad = run("lake", "check", home)
    assert (bad.code, "repair" in bad.out) == (1, True)
    undecided = run("lake", "repair", home, "a")
    assert (undecided.code, "ours or theirs" in undecided.err.replace("\n", " ")) == (2, True)
    done = told("repair", home, "a", "--keep", "ours")
    assert (done["kept"], done["version"], len(done["set_aside"])) == ("ours", 3, 1)
    assert told("check", home)["ok"]


def test_cleanup(run: Run, told: Told, home: Path) -> None:
    with ty.Lake.open(home) as lake:
        lake.tags.create("first", 1)
        lake.drop_table("sales.c")
        silent = add_to_both(lake.transaction(), 4)
    dry = told("cleanup", home, "--keep", "1", "--grace", "0s", "--dry-run")
    assert (dry["dry_run"], dry["snapshots"], dry["kept"]) == (True, {"main": [2, 3]}, {"main": {"1": ["tag first"]}})
    text = run("lake", "cleanup", home, "--keep", "1", "--dry-run", width=200).out
    assert all(part in text for part in ("dry run", "2 to 3 of main", "tag first", silent.id, "Nothing was changed."))
    done = told("cleanup", home, "--keep", "1", "--grace", "0s")
    assert ([one["transaction"] for one in done["transactions"]], len(done["dropped"])) == ([silent.id], 1)
    assert told("outcome", home, silent.id)["outcome"] == "not-committed"
    assert run("lake", "cleanup", home, "--keep", "1", width=200).out.startswith("nothing to do")
    for wrong in (["--keep", "0"], ["--older-than", "soon"], ["--grace", "never"]):
        assert run("lake", "cleanup", home, *wrong).code == 2


def test_outcome(run: Run, told: Told, home: Path) -> None:
    made = told("log", home)["snapshots"][0]
    assert told("outcome", home, made["transaction"])["snapshot"] == 3
    unknown = run("lake", "outcome", home, "nobody", "--json")
    assert (unknown.code, json.loads(unknown.out)["outcome"]) == (4, "unknown")
    assert told("outcome", home, "nobody", "--give-up")["outcome"] == "not-committed"


def test_secrets_stay_secret(run: Run, home: Path) -> None:
    for uri in ("postgresql://ada:hunter2@127.0.0.1:1/db", f"sqlite:///{home}/none/x.db?password=hunter2"):
        done = run("lake", "tables", uri, "--root", home, "--json")
        assert done.code == 2
        assert "hunter2" not in done.out + done.err

"""Mistakes on the command line: exit code 2, an error that names what was written, nothing on standard output, nothing changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.cli.conftest import Run
from tests.support.mistakes import check_message

FAILED = 2
ROWS = pa.table({"id": [1, 2, 3], "n": [1, 1, 2], "s": ["a", "b", "7"]})


@dataclass(frozen=True, slots=True)
class Desk:
    """A directory with a table ``t``, a lake ``lake`` and some files."""

    home: Path

    def filled(self, words: str) -> list[str]:
        """The arguments of a command, where ``@x`` stands for a path."""
        return [str(self.home / word[1:]) if word.startswith("@") else word for word in words.split("|")]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    home = tmp_path_factory.mktemp("mistakes")
    ty.Table.create(home / "t", ROWS, primary_key=["id"], durability="os").tags.create("kept")
    with ty.Lake.open(home / "lake") as lake:
        lake.create_table("orders", ROWS)
    (home / "file").write_text("x")
    (home / "bad.csv").write_text("id,n\n1,x\n")
    (home / "good.csv").write_text("id,n,s\n7,7,x\n")
    (home / "bad.parquet").write_text("nope")
    (home / "bad.toml").write_text("x = = 1")
    return Desk(home)


MISTAKES = [
    ("log|@nope", "not-found", "nope"),
    ("log|@file", "not-found", "file"),
    ("log|ftp://x/y", "invalid-input", "ftp"),
    ("show|@t|99", "not-found", "99"),
    ("show|@t|--tag|nope", "not-found", "'nope'"),
    ("cat|@t|--filter|n = 1 limit 1", "invalid-input", "limit 1"),
    ("cat|@t|--filter|nn = 1", "invalid-input", "'nn'"),
    ("cat|@t|--filter|n", "invalid-input", "'n'"),
    ("cat|@t|--columns|nn", "invalid-input", "'nn'"),
    ("cat|@t|--version|9", "not-found", "9"),
    ("cat|@t|--branch|nope", "not-found", "'nope'"),
    ("delete|@t|--where|n = 1; n = 2", "invalid-input", "';'"),
    ("delete|@t|--where|n = 1) or (true", "invalid-input", "')'"),
    ("delete|@t|--where|n = 1 limit 1|--dry-run", "invalid-input", "limit 1"),
    ("delete|@t|--where|", "invalid-input", "where"),
    ("delete|@t|--where|n = 1 -- or|--branch|nope", "not-found", "'nope'"),
    ("update|@t|--set|n", "invalid-input", "KEY=VALUE"),
    ("update|@t|--set|nn=1", "invalid-input", "'nn'"),
    ("update|@t|--set|n=n limit 1", "invalid-input", "limit 1"),
    ("update|@t|--set|n=n limit 1|--dry-run", "invalid-input", "limit 1"),
    ("update|@t|--set|id=5", "invalid-input", "'id'"),
    ("update|@t|--set|n=1|--where|nope = 1", "invalid-input", "'nope'"),
    ("append|@t|@nope.csv", "not-found", "nope.csv"),
    ("append|@t|@bad.parquet", "invalid-input", "bad.parquet"),
    ("append|@t|@bad.csv", "invalid-input", "bad.csv"),
    ("append|@t|@file", "invalid-input", "file"),
    ("append|@nope|@good.csv", "not-found", "nope"),
    ("merge|@t|@good.csv|--on|zz", "invalid-input", "zz"),
    ("restore|@t|99", "not-found", "99"),
    ("cleanup|@t|--older-than|soon", "invalid-input", "'soon'"),
    ("config|get|@t|nope", "not-found", "'nope'"),
    ("config|set|@t|a", "invalid-input", "KEY=VALUE"),
    ("why|@t|nope", "invalid-input", "6 characters"),
    ("why|@t|nope-nope-nope", "not-found", "nope-nope"),
    ("diff|@t|9|10", "not-found", "10"),
    ("clone|@t|@t", "already-exists", "already"),
    ("clone|@t|@file", "already-exists", "file"),
    ("alter|drop|@t|zz", "invalid-input", "'zz'"),
    ("alter|rename|@t|zz|y", "invalid-input", "'zz'"),
    ("alter|rename|@t|s|a.b", "invalid-input", "a.b"),
    ("index|drop|@t|zz", "not-found", "'zz'"),
    ("tag|create|@t|a b", "invalid-input", "a b"),
    ("tag|create|@t|kept", "already-exists", "'kept'"),
    ("tag|delete|@t|nope", "not-found", "'nope'"),
    ("branch|create|@t|main", "invalid-input", "main"),
    ("branch|delete|@t|nope", "not-found", "'nope'"),
    ("check|@file", "not-found", "file"),
    ("run|@nope.toml", "not-found", "nope.toml"),
    ("run|@bad.toml", "invalid-input", "bad.toml"),
    ("lake|tables|@nope", "not-found", "nope"),
    ("lake|init|@file", "already-exists", "file"),
    ("lake|log|@lake|--branch|nope", "not-found", "'nope'"),
    ("lake|show|@lake|999", "not-found", "999"),
    ("lake|tag|create|@lake|a b", "invalid-input", "a b"),
    ("lake|tag|delete|@lake|nope", "not-found", "'nope'"),
    ("lake|branch|create|@lake|main", "invalid-input", "main"),
    ("lake|branch|delete|@lake|nope", "not-found", "'nope'"),
    ("lake|branch|fast-forward|@lake|nope", "not-found", "'nope'"),
    ("lake|cleanup|@lake|--older-than|soon", "invalid-input", "'soon'"),
    ("lake|repair|@lake|nope", "not-found", "'nope'"),
]


@pytest.mark.parametrize(("words", "kind", "word"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_mistakes(words: str, kind: str, word: str, desk: Desk, run: Run) -> None:
    arguments = desk.filled(words)
    for width in (0, 80):
        done = run(*arguments, width=width)
        assert (done.code, done.out) == (FAILED, ""), done
        assert done.err.startswith("error: "), done.err
        assert f"[{kind}]" in done.err, done.err
    document = json.loads(run(*arguments, "--json").out)
    assert document["kind"] == kind, document
    check_message(document["message"], word)
    table = ty.Table.open(desk.home / "t")
    assert (table.version, list(table.tags), list(table.branches)) == (1, ["kept"], [])
    assert table.to_arrow().to_pylist() == ROWS.to_pylist()
    with ty.Lake.open(desk.home / "lake") as lake:
        assert ([*lake.tables()], lake.tags.list(), lake.branches.list()) == (["orders"], [], [])


@pytest.mark.parametrize("words", ["nope", "cat", "log|@t|--nope", "cat|@t|--limit|x", "cat|@t|--limit|-1", "delete|@t"])
def test_words_that_are_no_command(words: str, desk: Desk, run: Run) -> None:
    done = run(*desk.filled(words))
    assert (done.code, done.out) == (FAILED, "")
    assert "Traceback" not in done.err

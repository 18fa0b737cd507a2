"""Processes that are killed in the middle of every verb.

What was acknowledged is there, the rest wholly or not at all, and cleanup finds all that is left.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tiltyard as ty
from tests.support.commits import has_table
from tests.support.kill_verbs import TRIALS, Trial, clone_root, make, rows
from tests.support.kill_walk import unreachable
from tests.support.proving import pick
from tests.support.tables import open_stock, sorted_rows
from tiltyard.errors import NotFound
from tiltyard.testing.stores import WRITES

REPOSITORY = Path(__file__).resolve().parents[2]
KILLS = 300
KILLED = 2
"""In the short form, for each verb."""
NOW = timedelta(0)

Line = dict[int, Any]
"""What each version of a line of history holds."""


class Server:
    """Does verbs in processes of their own; see ``tests.faults.kill_server``."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.faults.kill_server"]
        self._process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, verb: str, root: Path, at: int | None = None) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"verb": verb, "root": str(root), "at": at, "names": f"{root}.names", "acknowledged": f"{root}.acknowledged"}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        with self._process as one:  # closes what we said and waits
            assert one.stdin is not None
            one.stdin.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


def _acknowledged(root: Path) -> int:
    return int(Path(f"{root}.acknowledged").read_text())


def _opened(root: Path, branch: str | None = None, version: int | None = None) -> ty.Table:
    return ty.Table.open(root, branch=branch, version=version, durability="os", allowed_bases=["*"])


def _line(root: Path, branch: str | None = None) -> Line:
    held = {}
    for version in _opened(root, branch).layout.versions():
        table = _opened(root, branch, version)
        indices = sorted((one.name, one.rows) for one in table.indices.list())
        held[version] = (
            sorted_rows(table.to_arrow()),
            str(table.schema),
            table.settings.config,
            indices,
            table.indices.mem_wal.generations,
        )
    return held


@dataclass(frozen=True)
class Picture:
    """All that somebody who opens a table finds."""

    main: Line
    side: Line | None
    tags: dict[str, int]
    branches: dict[str, int]

    @classmethod
    def of(cls, root: Path) -> Picture:
        table = _opened(root)
        branches = {name: one.parent_version for name, one in table.branches.items()}
        try:
            side = _line(root, "side") if branches else None
        except NotFound:
            side = None  # it has a name, and no version yet
        return cls(_line(root), side, {name: one.version for name, one in table.tags.items()}, branches)

    def refs(self) -> tuple[Any, ...]:
        return self.tags, self.branches, self.side is not None


def _is_write(name: str) -> bool:
    when, method, *_ = name.split()
    return when not in ("before", "after") or method in WRITES


def _spread(several: list[int], count: int) -> list[int]:
    return [several[place * len(several) // count] for place in range(min(count, len(several)))] if count else []


def _chosen(names: list[str], kills: int) -> list[int]:
    """Points by number, from 1 on: those around writes before all others, from the first to the last."""
    writes = [number for number, name in enumerate(names, 1) if _is_write(name)]
    reads = [number for number, name in enumerate(names, 1) if not _is_write(name)]
    return sorted([*_spread(writes, min(kills, len(writes))), *_spread(reads, max(kills - len(writes), 0))])


def _judge_line(there: Line, before: Line, done: Line, acknowledged: int, *, cleaning: bool) -> None:
    assert acknowledged in there
    for version, held in there.items():
        assert held == (before[version] if version in before else done[version]), version
    if cleaning:
        assert set(done) <= set(there)
    else:
        assert list(there) == list(range(min(before), max(there) + 1))


def _judge(root: Path, trial: Trial, before: Picture, done: Picture, *, cleaning: bool) -> None:
    there = Picture.of(root)
    acknowledged = _acknowledged(root)
    if trial.branch:
        assert there.main == before.main
        assert there.side is not None
        assert before.side is not None
        assert done.side is not None
        _judge_line(there.side, before.side, done.side, acknowledged, cleaning=False)
    else:
        _judge_line(there.main, before.main, done.main, acknowledged, cleaning=cleaning)
    stock = open_stock(str(root))
    assert sorted_rows(stock.to_table()) == there.main[max(there.main)][0]
    _judge_leftovers(root, there, before, done)


def _judge_leftovers(root: Path, there: Picture, before: Picture, done: Picture) -> None:
    for branch in (None, "side") if there.side is not None else (None,):
        table = _opened(root, branch)
        report = table.check()
        assert report.problems == ()
        table.cleanup(grace=NOW)
    assert unreachable(root) == set()
    after = Picture.of(root)
    assert after.main == {version: there.main[version] for version in after.main}
    assert after.refs() in (before.refs(), done.refs())
    table = _opened(root)
    assert table.check().problems == ()
    open_stock(str(root)).validate()
    if "s" in table.schema.names and "v" in table.schema.names and table.schema.field("v").type == "int64" and len(table.schema) == 3:
        assert table.append(rows(900, 1)).version == max(there.main) + 1  # the next writer goes on


def _judge_clone(root: Path, verb: str) -> None:
    """No half of a clone is seen; another try ends it."""
    target, table = clone_root(root), _opened(root)
    if not has_table(target):
        with pytest.raises(NotFound):
            ty.Table.open(target)
        table.clone(target, shallow="shallow" in verb, options=ty.CloneOptions(workers=1))
    cloned = _opened(target)
    assert sorted_rows(cloned.to_arrow()) == sorted_rows(table.to_arrow())
    assert sorted_rows(open_stock(str(target)).to_table()) == sorted_rows(table.to_arrow())
    assert cloned.check().problems == ()
    cloned.cleanup(grace=NOW)
    assert unreachable(target) == set()


def test_there_are_enough() -> None:
    assert sum(one.kills for one in TRIALS.values()) >= KILLS


@pytest.mark.parametrize("verb", TRIALS)
def test_killed_in_the_middle(verb: str, tmp_path: Path, server: Server) -> None:
    trial = TRIALS[verb]
    template, root = tmp_path / "template", tmp_path / "table"
    make(root, trial)
    before = Picture.of(root)
    shutil.copytree(root, template)
    assert server.run(verb, root) == 0
    done = Picture.of(root)
    names = json.loads(Path(f"{root}.names").read_text())
    kills = pick(KILLED, trial.kills)
    chosen = _chosen(names, kills)
    assert len(chosen) == kills, f"{verb} has {len(names)} points"
    for at in chosen:
        for used in (root, clone_root(root)):
            shutil.rmtree(used, ignore_errors=True)
        shutil.copytree(template, root)  # always to the same place: a branch names it
        told = f"{verb}: killed at {at}, {names[at - 1]}"
        assert server.run(verb, root, at) == -signal.SIGKILL, told
        try:
            if verb.startswith("clone"):
                _judge_clone(root, verb)
            _judge(root, trial, before, done, cleaning=verb == "clean up")
        except BaseException as error:
            error.add_note(told)
            raise

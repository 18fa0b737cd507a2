"""Eight processes do all kinds of work on one table at once, and each keeps a ledger of what it was told is committed.

Afterwards the table must be what the ledgers say, to the last amount; and nobody may have been left behind.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

import tiltyard as ty
from tests.faults.load_writer import HOT, INDEX, NOW, OWN, PATIENCE, ROUND, SHARED, WRITERS, kept, table_of, write, write_with_pylance
from tests.support.children import fork_server
from tests.support.kill_walk import unreachable
from tests.support.proving import pick
from tests.support.tables import open_stock
from tiltyard.storage.local import LocalStore
from tiltyard.transaction.head import read_floor

_server = fork_server()

DELETES = ("delete", "cool")
"""Verbs that a leader takes along: those of several writers are one version."""
FAIR, STARVED = 0.5, 0.25
"""Least to most commits of equal writers: what is promised; and what is asked beside a stranger who looks at no key."""

REFUSED = 0.02
"""Share of verbs that may end in a refusal: all are certain ones, and the ledgers say that nothing came of them."""


@dataclass(frozen=True)
class Books:
    """All ledgers, by process."""

    entries: dict[int, list[dict[str, Any]]]

    def acknowledged(self, *verbs: str) -> Iterator[dict[str, Any]]:
        for lines in self.entries.values():
            yield from (one for one in lines if (not verbs or one["verb"] in verbs) and one.get("version"))

    def commits(self, process: int) -> int:
        return sum(1 for one in self.entries[process] if one.get("version"))

    def refused(self) -> list[tuple[str, str, str]]:
        return [(one["verb"], one["refused"], one["why"]) for lines in self.entries.values() for one in lines if "refused" in one]


def _ours(number: int) -> Callable[..., None]:
    return write


def _one_by_pylance(number: int) -> Callable[..., None]:
    return write_with_pylance if number == WRITERS - 1 else write


def _run(root: Path, goal: int, work_of: Callable[[int], Callable[..., None]]) -> Books:
    """Lets all processes work together until they have made enough commits, and reads their ledgers."""
    done, start, turns = _server.Value("i", 0), _server.Barrier(WRITERS), _server.Semaphore(0)
    stranger = None if work_of is _ours else _server.Lock()
    ledgers = {number: root.parent / f"{number}.ledger" for number in range(WRITERS)}
    running = [
        _server.Process(target=work_of(number), args=(number, str(root), str(ledger), goal, done, start, turns, stranger))
        for number, ledger in ledgers.items()
    ]
    for one in running:
        one.start()
    try:
        left = list(running)
        while left:
            wait([one.sentinel for one in left])
            for one in left:
                one.join(0)
            assert not any(one.exitcode for one in left), [one.exitcode for one in left]
            left = [one for one in left if one.exitcode is None]
    finally:
        for one in running:
            one.kill()
            one.join(PATIENCE)
    return Books({number: [json.loads(line) for line in path.read_text().splitlines()] for number, path in ledgers.items()})


def _expected(books: Books) -> dict[int, int]:
    """The amount of every row, by key, as the ledgers have it."""
    rows = {int(key): amount for lines in books.entries.values() for key, amount in lines[-1]["rows"]}
    rows.update(dict.fromkeys(SHARED, 0))
    for one in books.acknowledged("add"):
        assert one["rows"] == {"updated": 1}
        rows[one["key"]] += one["part"]
    for key in HOT:
        history = sorted((one for one in books.acknowledged("merge", "cool") if one["key"] == key), key=lambda one: int(one["version"]))
        there = False
        for one in history:
            # Whoever found the row changed or deleted it, and whoever did not brought it in: in the order of versions, without exception.
            brought = one["rows"].get("inserted", 0)
            assert (brought, one["rows"].get("updated", 0), one["rows"].get("deleted", 0)) == (
                (0, 0, 1) if one["verb"] == "cool" else (0, 1, 0) if there else (1, 0, 0)
            )
            there = one["verb"] == "merge"
        if there:
            rows[key] = history[-1]["amount"]
    return rows


def _judge_rows(root: Path, books: Books) -> None:
    wanted = _expected(books)
    for one in books.acknowledged("move"):
        assert one["rows"] == {"updated": 2}
    ours = ty.Table.open(root).to_arrow(["id", "amount"])
    keys = ours["id"].to_pylist()
    assert len(keys) == len(set(keys)), [key for key, times in Counter(keys).items() if times > 1]
    assert dict(zip(keys, ours["amount"].to_pylist(), strict=True)) == wanted
    stock = open_stock(str(root))
    stock.validate()
    theirs = stock.to_table(columns=["id", "amount"])
    assert dict(zip(theirs["id"].to_pylist(), theirs["amount"].to_pylist(), strict=True)) == wanted
    assert theirs.num_rows == len(wanted)
    for condition in ("amount < 100", "amount >= 900", f"amount = {wanted[SHARED[0]]}", f"id >= {OWN} and amount = {wanted[max(wanted)]}"):
        found, plain = (sorted(stock.to_table(filter=condition, use_scalar_index=use)["id"].to_pylist()) for use in (True, False))
        assert found == plain, condition


def _judge_history(root: Path, books: Books, goal: int) -> None:
    versions = [one["version"] for one in books.acknowledged()]
    shared = {one["version"] for one in books.acknowledged(*DELETES)}
    alone = [version for version in versions if version not in shared]
    deletes = sum(1 for one in books.acknowledged(*DELETES))
    assert len(alone) == len(set(alone)) == len(versions) - deletes, "one version was promised to two; only deletes share one"
    assert len(versions) >= goal
    table = ty.Table.open(root)
    assert table.version >= max(versions) >= len(set(versions))
    report = table.check()
    assert report.problems == ()
    assert report.not_checked == ()
    # Cleanup kept up with all the others, and compaction with their fragments. When the last one ran is chance: each writer has its turn.
    assert len(table.layout.versions()) < table.version / 2
    cleanups = [line for lines in books.entries.values() for line in lines if line["verb"] == "cleanup" and "kept" in line]
    assert cleanups
    assert max(line["kept"] for line in cleanups) <= kept(goal), "each left what it was to keep, however busy the others were"
    assert len(table.layout.fragments) < goal / 4
    assert {one.name for one in table.indices.list()} == {INDEX}


def _judge_leftovers(root: Path) -> None:
    """All of it was somebody's; and what nobody needs goes."""
    table = ty.Table.open(root)
    table.cleanup(keep_versions=1, grace=NOW)
    assert table.layout.versions() == [table.version]
    assert unreachable(root) == set()


@contextmanager
def _told_in_full(root: Path, books: Books) -> Iterator[None]:
    """Adds to a failure all that tells how the table came to be so; it is kept as it was then."""
    try:
        yield
    except BaseException as error:
        shutil.copytree(root, kept_at := root.with_name("as it was"))
        table = ty.Table.open(root)
        error.add_note(f"kept in {kept_at}, ledgers beside it; versions {table.layout.versions()}, floor {read_floor(LocalStore(root))}")
        error.add_note("\n".join(map(str, (*table.check(data=True).problems, *table.indices.list(), *table.layout.fragments))))
        error.add_note("\n".join(sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())))
        error.add_note("\n".join(f"{number}: {line}" for number, lines in books.entries.items() for line in lines[-40:-1]))
        raise


@pytest.mark.parametrize(
    ("goal", "work_of", "fair"),
    [(pick(280, 2000), _ours, FAIR), (pick(240, 500), _one_by_pylance, STARVED)],
    ids=["ours", "one by pylance"],
)
def test_the_table_is_what_the_ledgers_say(tmp_path: Path, goal: int, work_of: Callable[[int], Callable[..., None]], fair: float) -> None:
    root = tmp_path / "table"
    table = ty.Table.create(root, table_of(list(SHARED), -1, [0] * len(SHARED)), primary_key=["id"], durability="os")
    table.create_index("amount", "BTREE", name=INDEX)
    books = _run(root, goal, work_of)
    with _told_in_full(root, books):
        _judge_history(root, books, goal)
        _judge_rows(root, books)
    verbs = sum(map(len, books.entries.values()))
    assert len(books.refused()) <= REFUSED * verbs, books.refused()
    equal = {number: books.commits(number) for number in range(WRITERS) if work_of(number) is write}
    print("commits of each writer:", equal)
    assert min(equal.values()) >= fair * max(equal.values()), equal
    for number in equal:  # nobody's upkeep was crowded out by the others' rows
        assert {one["verb"] for one in books.entries[number] if "refused" not in one} >= set(ROUND)
    _judge_leftovers(root)

"""A leader that dies or stops at any point of a commit for others: nothing acknowledged is lost, nothing comes twice, all go on."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import lance
import pytest

import tiltyard as ty
from tests.faults.leading_writer import LEADERS_ROW, POINTS
from tests.support.commits import ids_of, rows
from tests.support.in_line import in_company
from tests.support.proving import pick
from tiltyard.storage.local_queue import QUEUE
from tiltyard.transaction import turns

ROOT = Path(__file__).parents[2]
FOLLOWERS = 3
LONG = 120.0


VERBS = ("append", "rows", "delete")
"""``rows``: appends of writers in company, who leave it to the leader to write their rows."""
IN_TURN = [(point, VERBS[number % len(VERBS)]) for number, point in enumerate(POINTS)]


@pytest.fixture
def uri(tmp_path: Path, verb: str) -> str:
    uri = str(tmp_path / "t")
    ty.Table.create(uri, rows(*range(FOLLOWERS + 2), LEADERS_ROW) if verb == "delete" else rows(0))
    return uri


def _leader(uri: str, point: str, number: int, verb: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.faults.leading_writer", uri, str(FOLLOWERS), point, str(number), verb]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def _follow(uri: str, verb: str, pool: ThreadPoolExecutor) -> list[ty.CommitResult]:
    tables = [in_company(ty.Table.open(uri), FOLLOWERS if verb == "rows" else 0) for _ in range(FOLLOWERS)]
    work = [
        partial(table.delete, f"id = {number}") if verb == "delete" else partial(table.append, rows(number))
        for number, table in enumerate(tables, 1)
    ]
    return [future.result(LONG) for future in [pool.submit(one) for one in work]]


def _check(uri: str, results: list[ty.CommitResult], verb: str, leader_may_be_there: bool | None = None) -> None:
    table = ty.Table.open(uri)
    there = ids_of(table)
    own = there.count(LEADERS_ROW)
    kept = [0, FOLLOWERS + 1] if verb == "delete" else list(range(FOLLOWERS + 1))
    assert [number for number in there if number != LEADERS_ROW] == kept, "each acknowledged row, once"
    assert own in ((0, 1) if leader_may_be_there is None else (int(leader_may_be_there == (verb != "delete")),))
    if verb == "delete":
        assert [result.rows for result in results] == [{"deleted": 1}] * FOLLOWERS
    for result in results:
        assert table.transactions.outcome(result.transaction_id) == ty.outcomes.Committed(result.version)
    assert table.append(rows(2000)).version == table.version
    assert table.check(data=True).ok
    assert lance.dataset(uri).count_rows() == len(there) + 1
    assert list((Path(uri) / QUEUE).glob(".tmp.q*")) == []


@pytest.mark.parametrize("turn", range(pick(1, 17)))
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_leader_is_killed(uri: str, point: str, verb: str, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    del turn
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    with _leader(uri, point, signal.SIGKILL, verb) as leader, ThreadPoolExecutor(FOLLOWERS) as pool:
        assert _said(leader) == "leading"
        results = _follow(uri, verb, pool)
        assert leader.wait(LONG) == -signal.SIGKILL
    _check(uri, results, verb)


@pytest.mark.parametrize(("point", "verb"), pick(IN_TURN, list(product(POINTS, VERBS))))
def test_a_leader_is_stopped_and_goes_on_later(uri: str, point: str, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then those who waited have gone on without it; what it took from them must not come a second time."""
    monkeypatch.setattr(turns, "PATIENCE", 3.0)  # long enough for the leader to see them
    with _leader(uri, point, signal.SIGSTOP, verb) as leader, ThreadPoolExecutor(FOLLOWERS) as pool:
        try:
            assert _said(leader) == "leading"
            results = _follow(uri, verb, pool)
        finally:
            leader.send_signal(signal.SIGCONT)
        assert _said(leader) == "done"
        assert leader.wait(LONG) == 0
    _check(uri, results, verb, leader_may_be_there=True)

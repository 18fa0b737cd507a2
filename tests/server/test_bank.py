"""Bank transfers over two tables by stock lancedb, with clients and the server killed at named points: sums hold, outcomes are known."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.server.bank_killed import ACCOUNTS, CLIENT_POINTS, END, SERVER_POINTS, dying_client, keep_serving, transfer
from tests.support.children import fork_server
from tests.support.proving import pick

START = 1000
LONGEST = 240.0
"""Seconds after which something that should have happened is called a failure."""


class Bank:
    """A lake of two tables behind a server that is started again whenever it is killed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._orders, theirs = fork_server().Pipe()
        self._keeper = fork_server().Process(target=keep_serving, args=(home, self.port, theirs))
        self._keeper.start()
        theirs.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, point: str | None = None) -> None:
        """Starts the server anew; one that dies at a point is followed by one that does not."""
        self._orders.send(point)
        assert self.told() == "serving"

    def told(self) -> object:
        assert self._orders.poll(LONGEST), "the server did not start, or was not killed"
        return self._orders.recv()

    def stop(self) -> None:
        """Ends the server, and the process that starts it."""
        self._orders.send(END)
        self._keeper.join(LONGEST)
        self._orders.close()

    def killed_at(self, point: str, number: int) -> ty.outcomes.Outcome:
        """A transfer whose server is killed on the way; what became of it."""
        self.start(point)
        remote = ty.connect(self.url)
        tx = remote.transaction()
        try:
            transfer(tx, number)
            tx.commit()
        except (ty.TiltyardError, RuntimeError, OSError, ValueError):
            pass  # lancedb itself was told of it, or the answer was lost too often: the key tells
        assert (self.told(), self.told()) == ("serving", -signal.SIGKILL), f"the server was not killed at {point!r}"
        return remote.outcome(tx.key)


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    accounts = pa.table({"id": range(ACCOUNTS), "balance": [START] * ACCOUNTS})
    with ty.Lake.open(tmp_path / "lake") as lake:
        lake.create_table("left", accounts)
        lake.create_table("right", accounts)
    bank = Bank(tmp_path / "lake")
    bank.start()
    yield bank
    bank.stop()


def balances(lake: ty.Lake, name: str) -> dict[int, int]:
    return {row["id"]: row["balance"] for row in lake.table(name).to_arrow().to_pylist()}


@pytest.mark.timeout(3600)  # of the long form
def test_sums_hold_whatever_is_killed(bank: Bank) -> None:
    moved = dict.fromkeys(range(ACCOUNTS), 0)
    servers = pick(len(SERVER_POINTS), 75)
    clients = pick(2, 25)
    for number in range(servers):
        outcome = bank.killed_at(SERVER_POINTS[number % len(SERVER_POINTS)], number)
        if isinstance(outcome, ty.outcomes.Committed):
            moved[number % ACCOUNTS] += 1 + number % 7
    remote = ty.connect(bank.url)
    for number in range(clients):
        point, key = CLIENT_POINTS[::-1][number % len(CLIENT_POINTS)], f"client {number}"
        client = fork_server().Process(target=dying_client, args=(bank.url, key, number, point))
        client.start()
        client.join(LONGEST)
        assert client.exitcode == -9, f"the client was not killed at {point!r}"
        done = isinstance(remote.outcome(key), ty.outcomes.Committed)
        assert done == (point == "sent")
        moved[number % ACCOUNTS] += (1 + number % 7) * done
    with ty.Lake.open(bank.home, create=False) as lake:
        assert balances(lake, "left") == {account: START - amount for account, amount in moved.items()}
        assert balances(lake, "right") == {account: START + amount for account, amount in moved.items()}
        for name in ("left", "right"):  # a client that never heard left pylance's hint at a version that may not be there
            lake.table(name).update({"balance": "balance"}, where="id = 0")
        assert lake.check().ok

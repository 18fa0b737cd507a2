"""Several tables in one commit by unmodified pylance and lancedb: over a server, and in this process."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import LanceNamespace

import tiltyard as ty
from tests.server.stock_steps import rows_of
from tests.support.proving import pick
from tests.support.served import Served, served
from tiltyard.lakes import remote_lake
from tiltyard.lakes.refusals import refusals_of
from tiltyard.lakes.remote_lake import RemoteLake


def write(namespace: LanceNamespace, name: str, values: list[int], mode: str = "append") -> lance.LanceDataset:
    return lance.write_dataset(pa.table({"id": values}), namespace_client=namespace, table_id=[name], mode=mode)


def ids(table: Any) -> list[int]:
    return [row["id"] for row in rows_of(table)]


def two(lake: ty.Lake, *names: str) -> None:
    for name in names:
        lake.create_table(name, pa.table({"id": [1]}))


def test_over_a_server_all_of_it_or_nothing(server: Served) -> None:
    with server.lake() as lake:
        two(lake, "left", "right")
        remote = ty.connect(server.url)
        with remote.transaction(message="two at once") as tx:
            write(tx.namespace, "left", [2])
            write(tx.namespace, "left", [3])
            write(tx.namespace, "right", [4])
            own = lance.dataset(namespace_client=tx.namespace, table_id=["left"])
            assert ids(own) == [1, 2, 3]
            assert ids(lance.dataset(namespace_client=tx.namespace, table_id=["left"], version=1)) == [1]
            assert ids(lake.table("left")) == [1]
        assert (ids(lake.table("left")), ids(lake.table("right"))) == ([1, 2, 3], [1, 4])
        entry = lake.history()[0]
        assert (set(entry.tables), entry.message) == ({"left", "right"}, "two at once")
        assert tx.result is not None
        assert tx.result.snapshot == entry.id
        assert remote.outcome(tx.key) == ty.outcomes.Committed(entry.id)
        assert isinstance(remote.outcome("never heard of"), ty.outcomes.Unknown)
        with pytest.raises(RuntimeError, match="given up"), remote.transaction() as other:  # noqa: PT012
            write(other.namespace, "left", [9])
            raise RuntimeError("given up")
        assert ids(lake.table("left")) == [1, 2, 3]
        assert lake.check().ok


def test_others_appends_are_rebased_over_and_conflicts_refuse_all(server: Served) -> None:
    with server.lake() as lake:
        two(lake, "up", "down")
        remote = ty.connect(server.url)
        with remote.transaction() as tx:
            write(tx.namespace, "up", [2])
            write(tx.namespace, "down", [3])
            lake.table("up").append(pa.table({"id": [50]}))
        assert (ids(lake.table("up")), ids(lake.table("down"))) == ([1, 2, 50], [1, 3])
        with pytest.raises(ty.RetryableConflict), remote.transaction() as tx:  # noqa: PT012
            write(tx.namespace, "down", [4])
            lance.dataset(namespace_client=tx.namespace, table_id=["up"]).delete("id = 1")
            lake.table("up").delete("id = 1")
        assert (ids(lake.table("up")), ids(lake.table("down"))) == ([2, 50], [1, 3])
        told = next(refusals_of(lake))
        assert {table.name: table.operations for table in told.tables} == {"up": ("Delete",), "down": ("Append",)}
        assert told.contested is not None
        assert told.contested.name == "up"
        assert lake.check().ok


def test_a_new_table_comes_with_the_others(server: Served) -> None:
    with server.lake() as lake:
        two(lake, "old")
        remote = ty.connect(server.url)
        with remote.transaction() as tx:
            write(tx.namespace, "fresh", [7], "create")
            write(tx.namespace, "fresh", [8])
            write(tx.namespace, "old", [2])
            assert "fresh" not in lake.tables()
        assert (ids(lake.table("fresh")), ids(lake.table("old"))) == ([7, 8], [1, 2])
        with pytest.raises(RuntimeError, match="given up"), remote.transaction() as tx:  # noqa: PT012
            write(tx.namespace, "never", [1], "create")
            raise RuntimeError("given up")
        assert server.post("/v1/table/never/describe", None).code == 4
        assert lake.check().ok


def test_in_this_process(tmp_path: Path) -> None:
    with ty.Lake.open(tmp_path / "lake") as lake:
        two(lake, "a", "b")
        with lake.transaction(message="by pylance") as tx:
            write(tx.namespace, "a", [2])
            write(tx.namespace, "a", [3])
            write(tx.namespace, "c", [5], "create")
            tx.table("b").append(pa.table({"id": [4]}))
            lake.table("a").append(pa.table({"id": [90]}))
            assert ids(lance.dataset(namespace_client=tx.namespace, table_id=["a"])) == [1, 2, 3]
        assert (ids(lake.table("a")), ids(lake.table("b")), ids(lake.table("c"))) == ([1, 2, 3, 90], [1, 4], [5])
        assert set(lake.history()[0].tables) == {"a", "b", "c"}
        with lake.transaction(isolation="serializable") as strict, pytest.raises(ty.InvalidInput):
            _ = strict.namespace
        assert lake.check().ok


def test_a_batch_that_is_sent_twice_is_done_once(server: Served) -> None:
    with server.lake() as lake:
        two(lake, "once")
        tx = ty.connect(server.url).transaction(idempotency_key="the key of once")
        write(tx.namespace, "once", [2])
        body = {"entries": [entry.to_dict() for entry in tx._entries], "context": {"tiltyard.key": tx.key}}
        first = server.post("/v1/table/version/batch-create", body)
        again = server.post("/v1/table/version/batch-create", body)
        assert (first.status, again.status) == (200, 200)
        assert first.json["transaction_id"] == again.json["transaction_id"]
        assert ids(lake.table("once")) == [1, 2]
        assert server.post("/v1/table/batch-commit", {"operations": [{"deregister_table": {"id": ["once"]}}]}).status == 200
        assert "once" not in lake.tables()
        assert server.post("/v1/table/batch-commit", {"operations": [{"declare_table": {"id": ["x"]}}]}).code == 0


REFUSALS = [
    ty.InvalidInput("the token was revoked meanwhile", argument="request"),
    ty.ContentionError("too many requests", operation="transaction", attempts=1),
    ty.NotFound("somebody dropped a table meanwhile", name="fresh"),
    ty.StorageError("nobody is there", transient=True),
    KeyboardInterrupt(),
    ty.RetryableConflict("a table has moved on", operation="transaction"),
]


@pytest.mark.parametrize("then", [None, *REFUSALS], ids=lambda error: type(error).__name__)
def test_after_a_lost_answer_nothing_is_taken_back(server: Served, monkeypatch: pytest.MonkeyPatch, then: BaseException | None) -> None:
    """The server did it, but nobody heard; what comes after says nothing of that, so nothing may be dropped or deleted."""
    name = f"doubtful{REFUSALS.index(then) if then else ''}"
    remote, real, answers = ty.connect(server.url), RemoteLake.post, 0

    def post(lake: RemoteLake, path: str, body: Any) -> Any:
        nonlocal answers
        if not path.endswith("batch-create") or answers < 0:
            return real(lake, path, body)
        answers += 1
        if answers > 1 and then is not None:
            raise then
        real(lake, path, body)
        raise ty.StorageError("the answer was lost", maybe_applied=True, transient=True)

    monkeypatch.setattr(RemoteLake, "post", post)
    monkeypatch.setattr(remote_lake, "_pause", lambda attempt: None)
    with server.lake() as lake:
        with pytest.raises((ty.OutcomeUnknown, KeyboardInterrupt)), remote.transaction() as tx:  # noqa: PT012
            write(tx.namespace, name, [7], "create")
            tx.commit()
        assert ids(lake.table(name)) == [7]
        with pytest.raises(ty.OutcomeUnknown):
            tx.rollback()
        if then is None:
            with pytest.raises(OSError, match="unknown"):
                write(tx.namespace, name, [8])
        assert ids(lake.table(name)) == [7]
        answers = -1
        assert tx.commit().snapshot == lake.history()[0].id
        assert lake.check().ok


def test_a_server_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Rows move between two tables in pairs; whatever is killed when, the pairs stay together, and outcomes can be asked for."""
    home = tmp_path / "lake"
    with ty.Lake.open(home) as lake:
        two(lake, "debit", "credit")
        known: dict[int, bool] = {}
        for number in range(pick(3, 100)):
            with served(home) as server:
                tx = ty.connect(server.url).transaction()
                write(tx.namespace, "debit", [10 + number])
                write(tx.namespace, "credit", [10 + number])
                killer = threading.Timer(0.004 * (number % 8), server.process.send_signal, [signal.SIGKILL])
                killer.start()
                try:
                    tx.commit()
                    known[10 + number] = True
                except (ty.OutcomeUnknown, ty.StorageError):
                    pass
                killer.join()
            outcome = lake.catalog.with_key(tx.key)
            assert known.get(10 + number, outcome is not None) == (outcome is not None)
            known[10 + number] = outcome is not None
        expected = [1, *(number for number, done in known.items() if done)]
        assert ids(lake.table("debit")) == ids(lake.table("credit")) == sorted(expected)
        for name in ("debit", "credit"):  # a client that never heard left pylance's hint at a version that may not be there
            lake.table(name).append(pa.table({"id": [9999]}))
        assert lake.check().ok


@pytest.mark.parametrize("url", ["", "ftp://x", "https://user:secret@host", "http://host?token=x", "nothing"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ty.InvalidInput):
        ty.connect(url)


def test_a_token_does_not_travel_unencrypted() -> None:
    with pytest.raises(ty.InvalidInput, match="unencrypted"):
        ty.connect("http://elsewhere.example:2333", token="tyd_x")
    assert "tyd_x" not in repr(ty.connect("https://elsewhere.example", token="tyd_x"))

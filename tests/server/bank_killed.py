"""A bank whose server and clients are killed at named points. The functions here run in processes of their own."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.lake import Lake
from tiltyard.storage.external import ExternalStore

SERVER_POINTS: Final = ("asked", "described", "read", "deciding", "decided", "settling", "cleaning", "answering")
OFFER_POINTS: Final = ("offered", "deciding together", "decided together", "settling together", "committed", "answering offers")
"""Where a server dies that commits for clients who wait: before it looks at an offer, around the decision about several, at answers."""
CLIENT_POINTS: Final = ("one written", "both written", "sent")
ACCOUNTS: Final = 4
END: Final = "the end"


def keep_serving(home: Path, port: int, orders: Connection) -> None:
    """Starts a server for each point that it is told, and another one that does not die once it is dead; tells of both.

    The server is imported once: this process forks, and does nothing else that a fork could disturb.
    """
    import tiltyard.server.serving  # noqa: F401

    child = 0
    while True:
        point = orders.recv()
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if point == END:
            return
        child = _forked(home, port, point, orders)
        if point is not None:
            _, status = os.waitpid(child, 0)
            child = _forked(home, port, None, orders)
            orders.send(os.waitstatus_to_exitcode(status))


def _forked(home: Path, port: int, point: str | None, orders: Connection) -> int:
    """A server; returns once it listens."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it dies with the process that started it
        serve_bank(home, port, point, lambda url: os.close(write))
        os._exit(0)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    orders.send("serving")
    return child


def serve_bank(home: Path, port: int, point: str | None, ready: Callable[[str], None]) -> None:
    """Serves the lake, and dies where it is told to."""
    from tiltyard.lakes.namespace import LakeNamespace
    from tiltyard.server.commit_offers import CommitOffers
    from tiltyard.server.lake_server import LakeServer
    from tiltyard.server.server_options import ServerOptions
    from tiltyard.server.serving import serve

    places: dict[str, tuple[type, str, bool]] = {
        "asked": (LakeNamespace, "batch_create_table_versions", False),
        "described": (LakeNamespace, "describe_table", False),
        "read": (LakeNamespace, "part_of", True),
        "deciding": (Catalog, "publish", False),
        "decided": (Catalog, "publish", True),
        "settling": (Catalog, "settle", False),
        "cleaning": (LakeNamespace, "_clean", True),
        "answering": (LakeServer, "_done", False),
        "offered": (CommitOffers, "_committed", False),
        "deciding together": (Catalog, "publish", False),
        "decided together": (Catalog, "publish", True),
        "settling together": (ExternalStore, "finish_one", False),
        "committed": (CommitOffers, "_committed", True),
        "answering offers": (LakeServer, "_done", False),
    }
    if point is not None:
        owner, name, after = places[point]
        setattr(owner, name, _dying(getattr(owner, name), after, point))
    with Lake.open(home) as lake:
        serve(lake, ServerOptions(port=port, auth="off"), ready)


def _dying(method: Callable[..., Any], after: bool, point: str) -> Callable[..., Any]:
    def dying(*given: Any, **named: Any) -> Any:
        if _goes_on(point, given):
            return method(*given, **named)
        if after:
            method(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed")

    return dying


def _goes_on(point: str, given: tuple[Any, ...]) -> bool:
    """Whether a point is passed for something else than what is to be killed."""
    if point.startswith("answering"):
        return bool(given[1].spec.operation != ("offer" if point.endswith("offers") else "batch_create_table_versions"))
    if point.endswith("together"):
        if point.startswith("settling"):
            return not any(
                pending.version == given[1].version and _members(given[0], pending.transaction) for pending in _pending(given[0])
            )
        return not given[1].members
    return False


def _pending(store: Any) -> Any:
    return store.ledger.catalog.pending(store.ledger.table, store.ledger.branch)


def _members(store: Any, transaction: str) -> Any:
    return (store.ledger.catalog.transaction(transaction) or {}).get("members")


def transfer(tx: Any, number: int, at: Callable[[str], None] = lambda point: None) -> None:
    """Moves money from an account of one table to one of another, by stock lancedb: two updates, one commit."""
    from lancedb.namespace import LanceNamespaceDBConnection

    db = LanceNamespaceDBConnection(tx.namespace)
    account, amount = number % ACCOUNTS, 1 + number % 7
    db.open_table("left").update(where=f"id = {account}", values_sql={"balance": f"balance - {amount}"})
    at("one written")
    db.open_table("right").update(where=f"id = {account}", values_sql={"balance": f"balance + {amount}"})
    at("both written")


def dying_client(url: str, key: str, number: int, point: str) -> None:
    """A client that is killed in the middle of a transfer; ``sent`` is after its request was answered, before it could hear of it."""
    import tiltyard as ty

    def at(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    remote = ty.connect(url)
    if point == "sent":
        post = remote.post

        def posted(path: str, body: Mapping[str, Any]) -> None:
            post(path, body)
            at("sent")

        remote.post = posted  # type: ignore[method-assign]
    with remote.transaction(idempotency_key=key) as tx:
        transfer(tx, number, at)

"""One process of the benchmark of peers. It runs in the environment of its peer, so it needs no more than that and pyarrow.

It is told by a line of JSON what to do, says ``ready``, waits for a line, does it, and tells what came of it in a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from bench.peer_tables import PAIRS, PEERS, SCHEMA, Pair, Peer, Place


def rows(first: int, count: int = 1) -> pa.Table:
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "value": ids}, SCHEMA)


def _serial(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """Appends one after the other, for so many seconds at most: the seconds of each."""
    peer.create(rows(0))
    taken: list[float] = []
    end = time.perf_counter() + job.get("most_seconds", float("inf"))
    while len(taken) < job["commits"] and time.perf_counter() < end:
        taken.append(_timed(lambda: peer.append(rows(len(taken) + 1))))
    return {"seconds": taken}


def _loop(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    return _for_seconds(job["seconds"], lambda _: peer.append(rows(job["writer"])), peer.open)


def _own(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """The same on a table that nobody else writes to, and how many rows it has then."""
    told = _loop(peer, job)
    peer.open()
    return {**told, "rows": peer.count()}


def _delete(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """Deletes one row after the other, each writer those whose id leaves its number when divided by the number of writers."""
    return _for_seconds(job["seconds"], lambda count: peer.delete(job["writer"] + count * job["writers"]), peer.open)


def _for_seconds(seconds: float, work: Callable[[int], object], after_failure: Callable[[], object]) -> dict[str, Any]:
    """Does work for some seconds: those of each that was acknowledged, and how many were not. Whoever failed opens the table anew."""
    taken: list[float] = []
    failed, error = 0, ""
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        try:
            work(len(taken) + failed)
        except Exception as raised:  # noqa: BLE001 - every system has errors of its own
            failed, error = failed + 1, error or " ".join(f"{type(raised).__name__}: {raised}".split())[:200]
            after_failure()
        else:
            taken.append(time.perf_counter() - begun)
    return {"seconds": taken, "failed": failed, "error": error}


def _wide(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """One more file on very many: medians are the caller's."""
    peer.create(rows(0))
    peer.widen(job["files"])
    peer.append(rows(1))  # whatever is read once is read
    return {"seconds": [_timed(lambda: peer.append(rows(2))) for _ in range(job["times"])]}


def _pairs(pair: Pair, job: dict[str, Any]) -> dict[str, Any]:
    """Transactions over two tables, one after the other."""
    pair.create_pair()
    taken = [_timed(lambda number=number: pair.append_to_both(rows(number))) for number in range(job["commits"])]  # type: ignore[misc]
    assert pair.count_both() == (len(taken), len(taken)), "a row is missing in one of the tables"
    return {"seconds": taken}


def _open(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    return {"seconds": [_timed(peer.open) for _ in range(job["times"])]}


def _upsert(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    there, changed = job["rows"], job["changed"]
    peer.create(rows(0, there))
    taken = _timed(lambda: peer.upsert(rows(there - changed // 2, changed)))
    assert peer.count() == there + changed - changed // 2, "an upsert made too many rows, or too few"
    return {"seconds": [taken]}


def _count(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    return {"rows": peer.count()}


def _create(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    peer.create(rows(0, job.get("rows", 1)))
    return {}


JOBS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "serial": _serial,
    "loop": _loop,
    "own": _own,
    "open": _open,
    "upsert": _upsert,
    "delete": _delete,
    "wide": _wide,
    "pairs": _pairs,
    "count": _count,
    "create": _create,
}
OPENED = {"loop", "count", "open", "delete"}
"""Jobs on a table that is there."""


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    job = json.loads(sys.stdin.readline())
    place = Place(job["directory"], job["address"], job.get("store"))
    peer: Any = (PAIRS if job["work"] == "pairs" else PEERS)[job["peer"]](place)
    if job["work"] in OPENED:
        peer.open()
    elif job["work"] == "own":
        peer.create(rows(0))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(JOBS[job["work"]](peer, job)), flush=True)


if __name__ == "__main__":
    main()

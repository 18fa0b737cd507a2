"""Lakes for the tests and the pictures of the console: everything in them that a page shows, and texts that would be markup elsewhere."""

from __future__ import annotations

import contextlib
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa

import tiltyard as ty
from tests.support.lakes import Racing, through

RUNS: Final = "_tiltyard.pipeline_runs"
_ONCE: Final = ty.CommitOptions(reexecutions=0)


def orders(first: int, count: int, note: str = "new") -> pa.Table:
    """Rows of the table of orders."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "customer": [f"customer {number % 7}" for number in numbers],
            "amount": [round(12.5 + number * 1.25, 2) for number in numbers],
            "note": [note] * count,
        }
    )


def shop(home: Path) -> ty.Lake:
    """A lake of a shop in which all has happened that the console shows: rebases, refusals, a foreign writer, branches that conflict.

    Args:
        home: where it is made.
    """
    lake = ty.Lake.open(home, author="ada")
    bob, eve = lake.signed("bob"), lake.signed("eve")
    lake.create_table("sales.orders", orders(1, 60), primary_key=["id"], stable_row_ids=True)
    lake.create_table("sales.stock", pa.table({"item": ["a", "b", "c"], "left": [50, 40, 30]}), primary_key=["item"])
    lake.create_table("sales.customers", pa.table({"name": [f"customer {number}" for number in range(7)], "since": [2020] * 7}))
    lake.create_table("web.clicks", pa.table({"at": pa.array([0], pa.timestamp("us", "UTC")), "page": ["/"]}))
    lake.tags.create("opening")
    _races(lake, bob, eve)
    lake.table("sales.orders").indices.create("id", "BTREE", message="an index for lookups")
    bob.table("sales.orders").append(orders(200, 12), message="late orders")
    _foreign(lake)
    lake.branches.create("trial")
    _branch(lake)
    _runs(lake)
    lake.tags.create("end-of-day")
    return lake


def put_apart(lake: ty.Lake) -> None:
    """A foreign writer takes a version that a transaction over two tables had decided on: the table is put into quarantine."""
    later = datetime(2026, 11, 17, tzinfo=UTC)
    lake.create_table("web.sessions", pa.table({"began": pa.array([later]), "page": ["/"]}))
    taken = pa.table({"began": pa.array([later]), "page": ["/taken"]})
    uri = lake.table("web.sessions").uri
    records = lake.catalog.records
    through(lake, lambda inner: Racing(inner, lambda: lance.write_dataset(taken, uri, mode="append")))
    with contextlib.suppress(ty.CorruptTable), lake.signed("bob").transaction(message="sessions and stock") as tx:
        tx.table("web.sessions").append(taken)
        tx.table("sales.stock").update({"left": "left - 1"}, where="item = 'c'")
    lake.catalog.records = records
    here = Path(lake.table("sales.stock").uri)
    shutil.copytree(here, here.parent / f"{'0' * 12}_stock.lance")  # a copy, which no table of the lake owns


def _races(lake: ty.Lake, bob: ty.Lake, eve: ty.Lake) -> None:
    for number in range(3):
        stale = bob.table("sales.orders")
        lake.table("sales.orders").append(orders(70 + number * 10, 4), message=f"batch {number}")
        stale.append(orders(75 + number * 10, 4), message=f"batch {number} of the other shop")
        with eve.transaction(message="sold, and taken from stock", properties={"till": str(number)}) as tx:
            tx.table("sales.orders").update({"note": "'paid'"}, where=f"id = {number + 1}")
            tx.table("sales.stock").update({"left": "left - 1"}, where="item = 'a'")
            lake.table("web.clicks").append(
                pa.table({"at": pa.array([number], pa.timestamp("us", "UTC")), "page": [f"/item/{number}"]}), message="clicks"
            )
            if number == 1:
                bob.table("sales.orders").append(orders(120, 3), message="in between")
    stale = eve.table("sales.stock")
    late = eve.transaction(message="sold, and too late for the stock")
    late.table("sales.orders").append(orders(160, 1))
    late.table("sales.stock").update({"left": "left - 1"}, where="item = 'b'")
    both = lake.transaction(message="counted, and a click")
    both.table("web.clicks").append(pa.table({"at": pa.array([9], pa.timestamp("us", "UTC")), "page": ["/count"]}))
    both.table("sales.stock").update({"left": "40"}, where="item = 'b'")
    bob.table("sales.stock").update({"left": "left + 100"}, where="item = 'b'", message="delivery")
    with contextlib.suppress(ty.ConflictError):
        stale.update({"left": "left - 5"}, where="item = 'b'", commit=_ONCE)
    for refused in (late, both):
        with contextlib.suppress(ty.ConflictError):
            refused.commit()


def _foreign(lake: ty.Lake) -> None:
    """A writer that does not know the catalog."""
    table = lake.table("web.clicks")
    rows = pa.table({"at": pa.array([99], pa.timestamp("us", "UTC")), "page": ["/foreign"]})
    lance.write_dataset(rows, table.uri, mode="append")
    lake.table("web.clicks").append(
        pa.table({"at": pa.array([100], pa.timestamp("us", "UTC")), "page": ["/after"]}), message="after the foreign writer"
    )


def _branch(lake: ty.Lake) -> None:
    trial = lake.on_branch("trial").signed("carol")
    trial.table("sales.orders").update({"note": "'tried'"}, where="id in (3, 4)", message="try another note")
    trial.table("sales.customers").append(pa.table({"name": ["customer 8"], "since": [2026]}), message="a customer of the trial")
    lake.table("sales.orders").update({"note": "'sent'"}, where="id = 3", message="sent")
    lake.branches.create("ready")
    ready = lake.on_branch("ready").signed("carol")
    ready.table("sales.customers").append(pa.table({"name": ["customer 9"], "since": [2026]}), message="ready to go")


def _runs(lake: ty.Lake) -> None:
    began = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
    rows = [run_row(f"run-{number}", began + timedelta(minutes=7 * number), failed=number == 2) for number in range(5)]
    lake.create_table(RUNS, pa.Table.from_pylist(rows, schema=RUN_SCHEMA), primary_key=["run"], stable_row_ids=True)


RUN_SCHEMA: Final = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        *(pa.field(name, pa.string()) for name in ("pipeline", "status")),
        pa.field("started", pa.timestamp("us", tz="UTC")),
        pa.field("seconds", pa.float64()),
        *(pa.field(name, pa.int64()) for name in ("rows_in", "rows_out", "quarantined", "attempts", "snapshot")),
        *(pa.field(name, pa.string()) for name in ("transaction", "author", "error", "report")),
    ]
)


def run_row(run: str, started: datetime, *, failed: bool = False, text: str = "") -> dict[str, Any]:
    """A run as a pipeline writes it down.

    Args:
        run: its id.
        started: when.
        failed: whether it came to nothing.
        text: put into every text of it.
    """
    report = {
        "sources": [{"name": f"landing{text}", "kind": "files", "rows": 1200, "taken": f"6 files{text}", "seconds": 0.8}],
        "steps": [
            {
                "name": f"clean{text}", "rows": 1188, "seconds": 1.9, "dropped": 0,
                "broken": [{"name": f"amount is positive{text}", "rows": 12}],
            },
            {"name": "rollup", "rows": 40, "seconds": 0.6, "dropped": 0, "broken": []},
        ],
        "outputs": [
            {
                "table": "sales.orders", "mode": f"merge{text}", "rows": {"inserted": 1100, "updated": 88}, "seconds": 1.2,
                "over": [{"version": 4, "author": f"bob{text}"}],
            }
        ],
        "quarantine": {f"sales.rejected{text}": 12},
        "upkeep": [{"name": "compact", "kind": "compact", "did": f"8 fragments became 1{text}", "seconds": 0.4}],
        "conflicts": [f"Update read version 3, then came version 4{text}"],
        "notes": [f"a note{text}"],
        "plan": [
            {"kind": "source", "name": f"landing{text}", "inputs": []},
            {"kind": "step", "name": f"clean{text}", "inputs": [f"landing{text}"]},
            {"kind": "step", "name": "rollup", "inputs": [f"clean{text}"]},
            {"kind": "output", "name": "sales.orders", "inputs": [f"clean{text}"]},
            {"kind": "output", "name": "sales.totals", "inputs": ["rollup"]},
            {"kind": "quarantine", "name": f"sales.rejected{text}", "inputs": [f"clean{text}"]},
        ],
    }  # fmt: skip
    if failed:
        # As a run leaves it that failed at its first step: nothing was done, but what was to be done is known.
        report = {"plan": report["plan"], "failed_at": f"steps.clean{text}", "conflicts": report["conflicts"], "notes": report["notes"]}
    return {
        "run": run,
        "pipeline": f"ingest{text}",
        "status": "failed" if failed else "committed",
        "started": started,
        "seconds": 4.9,
        "rows_in": 1200,
        "rows_out": 0 if failed else 1188,
        "quarantined": 0 if failed else 12,
        "attempts": 2,
        "snapshot": None if failed else 5,
        "transaction": None,
        "author": f"runner{text}",
        "error": f"The source has no column amount.{text}" if failed else None,
        "report": json.dumps(report),
    }

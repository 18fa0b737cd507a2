"""Uses tables somebody tampered with, in a process of its own: pylance might take it down. One line of JSON for each table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import tiltyard as ty
from tiltyard.errors import TiltyardError

ONE_MORE = pa.table({"id": pa.array([1_000_000], pa.int64())})


def attempt(results: dict[str, Any], name: str, act: Callable[[], Any]) -> Any:
    """Notes what came of it. Everything is caught, panics included, so that the report says what it was."""
    try:
        value = act()
    except TiltyardError as error:
        results[name] = {"error": error.kind, "text": str(error)}
        return None
    except BaseException as error:  # noqa: BLE001
        results[name] = {"bare": f"{type(error).__module__}.{type(error).__name__}", "text": str(error)[:300]}
        return None
    results[name] = {"value": value if isinstance(value, int | str | list | None) else "done"}
    return value


def use(uri: str) -> dict[str, Any]:
    results: dict[str, Any] = {}
    table = attempt(results, "open", lambda: ty.Table.open(uri, durability="os"))
    if table is None:
        return results
    attempt(results, "history", lambda: [entry.version for entry in table.history()])
    attempt(results, "schema", lambda: str(table.schema))
    attempt(results, "count", table.count_rows)
    attempt(results, "rows", lambda: sorted(map(repr, table.to_arrow().to_pylist())))
    attempt(results, "scan", lambda: table.scan().read_all().num_rows)
    attempt(results, "filtered", lambda: table.count_rows("id >= 3"))
    attempt(results, "check", lambda: [problem.text for problem in table.check().problems])
    attempt(results, "outcome", lambda: type(table.transactions.outcome("0c0ffee0-0000-4000-8000-000000000000")).__name__)
    if attempt(results, "append", lambda: table.append(ONE_MORE, commit=ty.CommitOptions(race_retries=2))) is not None:
        attempt(results, "count after", table.count_rows)
        attempt(results, "rows after", lambda: ty.Table.open(uri).to_arrow().num_rows)
    return results


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(use(line.strip())), flush=True)


if __name__ == "__main__":
    main()

"""Writers of a lake that are killed at every step of a transaction, while somebody reads: all of it is there, or nothing is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.lakes.conftest import CATALOGS
from tests.support.kill_walk import unreachable
from tests.support.lake_killed import CARRIED, child, numbers_of
from tests.support.lakes import Site, stock, uri_of
from tests.support.proving import sample
from tiltyard.lake import Lake

LEAST_STEPS: dict[int | str, int] = {1: 15, 2: 23, 3: 31, CARRIED: 36}
"""At each of which one writer dies, on each of the catalogs."""
SOME = 4
LOOKS = 2
"""How often the reader looks at the lake while one writer is at work."""


def test_three_hundred_writers_die() -> None:
    assert sum(LEAST_STEPS.values()) * len(CATALOGS) >= 300


def whole(lake: Lake, tables: int | str) -> set[int]:
    """The transactions that are there, after proof that none is there in part."""
    first, others = numbers_of(lake)
    if tables != 1:
        # The second table remembers one number, the newest; the third kind all of them.
        assert others - {0} <= first, f"{others - first} left something, but not all"
        made = {number for number in first if number and tables == 3}
        assert made <= others, f"{made - others} left something, but not all"
        newest = max(first, default=0)
        assert newest == 0 or newest in others, f"{newest} is in the first table only"
    return first


@contextmanager
def reading(site: Site, tables: int | str, failures: list[BaseException]) -> Iterator[threading.Semaphore]:
    """Somebody who looks at the lake while others are at work, as often as he is told, from a handle of his own."""
    over, turns = threading.Event(), threading.Semaphore(0)

    def look() -> None:
        try:
            with Lake.open(site.uri, **{"durability": "os", **site.arguments}) as lake:
                while turns.acquire() and not over.is_set():
                    whole(lake, tables)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        yield turns
    finally:
        over.set()
        turns.release()
        reader.join()


def _deadly(steps: list[str], count: int) -> list[int]:
    """All steps, or in the short form those of the decision and some others from the first to the last."""
    some = sample(range(len(steps)), count)
    return [number for number, name in enumerate(steps) if number in some or name.startswith("publish")]


@pytest.mark.parametrize("tables", [1, 2, 3, CARRIED])
def test_killed_at_every_step(site: Site, tables: int | str, tmp_path: Path) -> None:
    lake = site.open()
    lake.create_table("first", pa.table({"number": pa.array([], pa.int64())}))
    lake.create_table("second", pa.table({"last": pa.array([0], pa.int64())}))
    names, told = tmp_path / "steps", tmp_path / "told"
    arguments = {"durability": "os", **site.arguments}
    assert child(site.uri, arguments, 1, tables, None, names, told) == 0
    steps = names.read_text().splitlines()
    print(f"{len(steps)} steps: {steps}")
    assert len(steps) >= LEAST_STEPS[tables]
    assert {"publish: before", "publish: decided, not stored", "publish: after", "mark final: before", "mark final: after"} <= set(steps)
    failures: list[BaseException] = []
    acknowledged = {1}
    with reading(site, tables, failures) as turns:
        for deadly in _deadly(steps, SOME if site.kind == "sqlite" else 0):
            name = steps[deadly]
            number = deadly + 2
            told.unlink(missing_ok=True)
            turns.release(LOOKS)
            code = child(site.uri, arguments, number, tables, deadly, names, told)
            assert code == -signal.SIGKILL, f"the writer did not die at {name!r}: {code}"
            if told.exists():
                acknowledged.add(number)
            _check_after(site, tables, acknowledged, number, name, decided="publish: after" in steps[: deadly + 1])
    assert not failures, failures
    _check_at_rest(site)


def _check_after(site: Site, tables: int | str, acknowledged: set[int], number: int, name: str, *, decided: bool) -> None:
    """What a death must not have changed, seen by somebody who comes along and goes on."""
    with Lake.open(site.uri, **{"durability": "os", **site.arguments}) as lake:
        there = whole(lake, tables)
        assert acknowledged <= there, f"after a death at {name!r}: {acknowledged - there} acknowledged, and gone"
        assert not decided or number in there, f"after a death at {name!r}: decided, and not there"
        assert lake.catalog.pending() == [], f"after a death at {name!r}: opening the lake did not finish it"
        for table in ("first",) if tables == 1 else ("first", "second"):
            assert stock(lake, table).version == lake.table(table).version


def _check_at_rest(site: Site) -> None:
    """Nobody is at work: the next writer is not kept waiting, all is sound, and a cleanup leaves nothing behind."""
    with Lake.open(site.uri, **{"durability": "os", **site.arguments}) as lake:
        with lake.transaction() as tx:
            tx.table("first").append(pa.table({"number": [100_000]}))
        assert not lake.check().problems
        lake.cleanup(grace=timedelta(0))
        assert not lake.check().problems
        for name in lake.tables() if site.root is not None else ():
            assert unreachable(Path(uri_of(lake, name))) == set()

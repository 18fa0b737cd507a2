"""Nobody is left behind: whoever has much to go over looks again before it tries, and waits for no longer than a try takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

import tiltyard as ty
from tests.support.commits import append, is_version, memory_table, noted_runtime, plant, reopened, version_count
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import ManualClock, WrapperStore
from tiltyard.testing.stores import Request, T
from tiltyard.transaction.backoff import DOUBLINGS
from tiltyard.transaction.commit import LOOKS


class WatchedStore(WrapperStore):
    """Tells a test of every call before it is carried out."""

    def __init__(self, inner: ObjectStore, seen: Callable[[str, str], object]) -> None:
        super().__init__(inner)
        self._seen = seen

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        self._seen(method, path)
        return request(self.inner)


def _behind(store: MemoryStore, count: int, seen: Callable[[str, str], object], runtime: Runtime | None = None) -> ty.Table:
    """A handle with so many versions to go over, and whose calls a test is told of."""
    memory_table(store)
    table = reopened(WatchedStore(store, seen), runtime=runtime)
    for number in range(count):
        plant(store, append(f"before{number}"))
    return table


def _reads_version(method: str, path: str) -> bool:
    return method == "get" and path.startswith("_versions/") and path.endswith(".manifest")


def _others(store: MemoryStore, limit: int) -> Callable[[str, str], None]:
    """Others who commit whenever we read one of the first so many versions that we go over."""
    reads = 0

    def seen(method: str, path: str) -> None:
        nonlocal reads
        if _reads_version(method, path) and version_count(store) > 1:
            reads += 1
            if reads <= limit:
                plant(store, append(f"meanwhile{reads}"))

    return seen


@pytest.mark.parametrize("behind", [2, 3, 10])
def test_versions_that_come_while_others_are_gone_over_cost_no_race(behind: int) -> None:
    store = MemoryStore()
    result = _behind(store, behind, _others(store, behind)).commit(append())
    assert result.attempts == 1
    assert result.version == 1 + 2 * behind + 1
    assert len(result.rebased_over) == 2 * behind


def test_one_version_alone_is_no_reason_to_look_again() -> None:
    store = MemoryStore()
    looks: list[str] = []
    table = _behind(store, 1, lambda method, path: looks.append(path) if (method, path) == ("names", "_versions/") else None)
    looks.clear()
    assert table.commit(append()).attempts == 1
    once = len(looks)
    looks.clear()
    plant(store, append("another"))
    plant(store, append("and another"))
    table.commit(append("ours again"))
    assert len(looks) == once + 1


def test_who_is_slower_than_all_others_together_tries_all_the_same() -> None:
    """Otherwise it would go on looking for ever, and nobody would be told that the table is too busy."""
    store = MemoryStore()
    created: list[str] = []
    others = _others(store, 1000)

    def seen(method: str, path: str) -> None:
        others(method, path)
        if is_version(method, path):
            created.append(path)

    table = _behind(store, 2, seen)
    with pytest.raises(ty.ContentionError) as caught:
        table.commit(append(), commit=ty.CommitOptions(race_retries=0))
    assert len(created) == 1
    # Each look finds as many as the one before, since one comes for each that is gone over.
    assert caught.value.winners[0].version == 1 + 2 * LOOKS + 1


def _contested(store: MemoryStore, seconds: list[float], runtime: Runtime, reads: Sequence[float] = ()) -> ty.Table:
    """A handle whose creates each come after somebody else's, and take so many seconds; reading what it is behind takes some, too."""
    clock = runtime.clock
    assert isinstance(clock, ManualClock)
    tries, costs = iter(seconds), iter(reads)

    def seen(method: str, path: str) -> None:
        if _reads_version(method, path) and version_count(store) > 1:
            clock.advance(next(costs, 0.0))
        elif is_version(method, path) and (took := next(tries, None)) is not None:
            clock.advance(took)
            plant(store, append(f"theirs{version_count(store)}"))

    return _behind(store, len(reads), seen, runtime)


def _waits(table: ty.Table) -> list[float]:
    clock = table._access.runtime.clock
    assert isinstance(clock, ManualClock)
    return clock.slept


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_attempt_does_not_make_the_later_waits_long(seed: int) -> None:
    store = MemoryStore()
    table = _contested(store, [3.0, *[0.01] * 9], noted_runtime(seed))
    table.commit(append())
    first, *later = _waits(table)
    assert first <= 5.0
    assert len(later) == 9
    assert max(later) <= 0.01 * 2 ** (DOUBLINGS + 1)


@pytest.mark.parametrize("reads", [[0.1] * 50, [5.0] * 3], ids=["many", "slow"])
@pytest.mark.parametrize("seed", range(5))
def test_versions_that_are_gone_over_do_not_make_the_wait_long(seed: int, reads: list[float]) -> None:
    store = MemoryStore()
    table = _contested(store, [0.01], noted_runtime(seed), reads)
    table.commit(append())
    (wait,) = _waits(table)
    assert wait <= 2 * 0.01
    assert table._access.runtime.clock.monotonic() >= sum(reads)

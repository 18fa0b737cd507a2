"""The simulation of scale in small: its figures hang together, are the same for the same seed, and a lost commit would be found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.scale.__main__ import PRICES, figure
from bench.scale.lake_runs import HOT, OWN, LakeRun
from bench.scale.table_runs import BOTH, DIRECT, GROUPED, MACHINES, QUEUED, SHARDED, Outcome, TableRun, Way
from bench.scale.virtual_stores import Conditions, VirtualStore
from bench.scale.virtual_time import VirtualEvent, VirtualLocks, VirtualTime

EXACT = Conditions(spread=0.0)


def outcome_of(way: Way, writers: int, commits: int, *, seed: int = 1, conditions: Conditions = EXACT, fragments: int = 1) -> Outcome:
    return TableRun(way, writers, seed=seed, conditions=conditions, fragments=fragments).run(commits, 600.0)


def test_a_lone_writer_takes_two_round_trips_and_three_requests() -> None:
    outcome = outcome_of(DIRECT, 1, 30)
    requests = {kind: count / outcome.commits for kind, count in outcome.requests.items()}
    assert (requests["PUT"], requests["create"]) == (2.0, 1.0)
    assert requests["LIST"] + requests["GET"] < 0.2, "a look every five seconds and no more"
    assert outcome.percentile(0.5) == pytest.approx(2 * EXACT.put, rel=0.01)
    assert figure("writers", outcome, 1).dollars == pytest.approx(15.0, rel=0.1)


def test_a_committer_beats_the_race_and_the_queue() -> None:
    found = {way.name: outcome_of(way, 12, 48) for way in (DIRECT, QUEUED, GROUPED)}
    direct, queued, grouped = found.values()
    assert grouped.rate > 2 * direct.rate
    assert grouped.rate > 2 * queued.rate
    assert grouped.percentile(0.99) < direct.percentile(0.99)
    assert grouped.versions < grouped.commits / 2 < queued.versions
    assert grouped.requests["create"] < grouped.commits / 2, "one create for a group"
    assert direct.requests["create"] > 2 * direct.commits, "most creates are lost races"


def test_shards_and_machines_divide_the_race() -> None:
    direct, sharded = outcome_of(DIRECT, 20, 60), outcome_of(SHARDED, 20, 60)
    assert sharded.rate > 1.5 * direct.rate
    assert sharded.requests["create"] < direct.requests["create"]
    assert outcome_of(BOTH, 20, 60).rate > direct.rate
    assert outcome_of(replace(MACHINES, queues=2), 20, 60).rate > direct.rate


def test_the_same_seed_gives_the_same_run() -> None:
    def figures(seed: int) -> object:
        return replace(figure("writers", outcome_of(MACHINES, 20, 40, seed=seed, conditions=Conditions()), 1), processor_ms=0.0)

    assert figures(3) == figures(3)
    assert figures(3) != figures(4)


def test_a_large_manifest_costs_its_bytes() -> None:
    small, large = outcome_of(GROUPED, 4, 8), outcome_of(GROUPED, 4, 8, fragments=20_000)
    assert large.bytes_written > 20_000 * 20 * large.versions
    slower = (large.bytes_written - small.bytes_written) / EXACT.bytes_per_second
    assert large.seconds == pytest.approx(small.seconds + slower, rel=0.2)


def test_writers_of_a_lake_wait_for_a_hot_table_and_not_for_their_own() -> None:
    hot = LakeRun(HOT, 8, seed=1, conditions=EXACT).run(24, 600.0)
    own = LakeRun(OWN, 8, seed=1, conditions=EXACT, others=100).run(24, 600.0)
    assert own.rate > 2 * hot.rate
    assert hot.versions >= hot.commits == 24
    assert own.requests["SQL"] >= 6 * own.commits, "a read, and a transaction of five statements"


def test_a_long_line_before_a_hot_table_fails_nobody() -> None:
    """With a wait of one minute and a line that is longer, everybody who left it would lose to those in it."""
    slow = replace(EXACT, put=0.5, get=0.2)
    run = LakeRun(HOT, 100, seed=1, conditions=slow)
    outcome = run.run(100, 3600.0)
    assert outcome.percentile(0.99) > 60.0
    assert outcome.failed == 0


def test_a_store_that_writes_over_versions_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VirtualStore, "put_if_absent", VirtualStore.put)
    with pytest.raises(AssertionError, match="acknowledged commits are not there once"):
        outcome_of(DIRECT, 8, 24)


def test_waits_that_did_not_end_count() -> None:
    starved = Outcome("direct", 3, commits=2, seconds=10.0, waits=[0.1, 0.2], unfinished=[9.0])
    assert starved.starved
    assert starved.percentile(0.99) == 9.0
    assert not Outcome("direct", 3, commits=2, seconds=10.0, waits=[0.1, 0.2], unfinished=[0.1]).starved
    assert set(PRICES) >= {"PUT", "create", "GET", "LIST", "DELETE", "SQL"}


def test_locks_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    time = VirtualTime()
    locks, order = VirtualLocks(time), list[tuple[str, float]]()

    def holder(name: str, longest: float | None) -> None:
        if locks.take("tip", longest):
            time.pause(1.0)
            order.append((name, time.seconds))
            locks.give_back("tip")
        else:
            order.append((f"{name} gave up", time.seconds))

    for number, (name, longest) in enumerate((("first", None), ("second", None), ("hasty", 0.5), ("third", None))):
        time.begin(lambda name=name, longest=longest: holder(name, longest), after=0.01 * number)  # type: ignore[misc]
    time.run()
    assert [name for name, _ in order] == ["hasty gave up", "first", "second", "third"]
    assert [at for _, at in order] == pytest.approx([0.52, 1.0, 2.0, 3.0])
    assert locks.is_free("tip")


def test_what_an_actor_raises_ends_the_run() -> None:
    time = VirtualTime()

    def body() -> None:
        time.pause(1.0)
        raise ValueError("planted")

    def waiting() -> None:
        VirtualEvent(time).wait()

    time.begin(waiting)
    time.begin(body)
    with pytest.raises(ValueError, match="planted"):
        time.run()

"""The reduced search sees all there is to see: compared with the search that leaves nothing out."""

import pytest

from tests.support.proving import sample
from tiltyard_proofs.simulator import Intention, Kind, Part, Scenario, equivalent_runs, explore
from tiltyard_proofs.simulator.stepping import Call, commute

PAIRS = {
    "append and overwrite": (Intention("append", (20,)), Intention("overwrite", (30,))),
    "two deletes in one fragment": (Intention("delete", (0,)), Intention("delete", (1,))),
    "update and compaction": (Intention("update", (0,)), Intention("compact", (0, 3), name="ordered", number=3)),
}


def scenario(one: Intention, two: Intention, retries: int) -> Scenario:
    parts = (Part("A", "pinned", (one,)), Part("B", "pinned", (two,)))
    return Scenario(Kind(), parts, shared_time=False, retries=retries)


@pytest.mark.parametrize("words", sample(list(PAIRS), 1))
def test_the_same_states_as_without_reduction(words: str) -> None:
    # Without retries there are few enough runs to make them all.
    case = scenario(*PAIRS[words], retries=0)
    reduced = list(explore(case))
    everything = list(explore(case, reduce=False))
    assert {one.state_digest() for one in reduced} == {one.state_digest() for one in everything}
    assert sum(map(equivalent_runs, reduced)) == len(everything)
    assert len(reduced) < len(everything) / 20


def test_each_class_is_visited_once() -> None:
    runs = list(explore(scenario(*PAIRS["append and overwrite"], retries=3)))
    assert len({tuple(one.schedule) for one in runs}) == len(runs)
    assert not any(one.violation for one in runs)


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        (Call("get", "a"), Call("get", "a"), True),
        (Call("put", "a"), Call("put", "b"), True),
        (Call("put", "a"), Call("put_if_absent", "a"), False),
        (Call("delete", "a"), Call("head", "a"), False),
        (Call("names", "d/"), Call("put_if_absent", "d/x"), False),
        (Call("list", "d/"), Call("delete", "e/x"), True),
        (Call("names", "d/"), Call("put", "d/.tmp.x"), True),
        (Call("sleep", ""), Call("put", "a"), True),
        (Call("sync", "a"), Call("delete", "a"), True),
    ],
)
def test_which_calls_commute(one: Call, two: Call, expected: bool) -> None:
    assert commute(one, two) is expected
    assert commute(two, one) is expected

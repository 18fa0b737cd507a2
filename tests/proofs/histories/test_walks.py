"""The graph algorithms against their plain definitions, on small random graphs."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiltyard_proofs.histories import walks

SIZE = 6
graphs = st.sets(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)).filter(lambda pair: pair[0] != pair[1]), max_size=14)
Pairs = set[tuple[int, int]]


def successors(pairs: Pairs) -> dict[int, list[int]]:
    return {node: sorted(target for source, target in pairs if source == node) for node in range(SIZE)}


def closure(pairs: Pairs) -> Pairs:
    reach = {(node, node) for node in range(SIZE)} | pairs
    while more := {(a, d) for a, b in reach for c, d in pairs if b == c} - reach:
        reach |= more
    return reach


@settings(max_examples=200, deadline=None, derandomize=True)
@given(graphs)
def test_components(pairs: Pairs) -> None:
    reach = closure(pairs)
    found = walks.components(range(SIZE), successors(pairs))
    expected = {frozenset(b for b in range(SIZE) if (a, b) in reach and (b, a) in reach) for a in range(SIZE)}
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected))
    place = {node: number for number, part in enumerate(found) for node in part}
    assert all(place[target] <= place[source] for source, target in pairs)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs)
def test_reachable_in_blocks(monkeypatch: pytest.MonkeyPatch, pairs: Pairs) -> None:
    monkeypatch.setattr(walks, "BLOCK", 2)
    reach = closure(pairs)
    queries = [(a, b) for a in range(SIZE) for b in range(SIZE)]
    assert walks.reachable(queries, range(SIZE), successors(pairs)) == [query in reach for query in queries]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(graphs, graphs)
def test_shortest_cycle(pairs: Pairs, marked: Pairs) -> None:
    starts = sorted(pairs & marked)
    found = walks.shortest_cycle(starts, successors(pairs))
    lengths = [
        size
        for size in range(2, SIZE + 1)
        for nodes in permutations(range(SIZE), size)
        if nodes[:2] in starts and all(step in pairs for step in zip(nodes, (*nodes[1:], nodes[0]), strict=True))
    ]
    assert (len(found) if found else None) == min(lengths, default=None)
    if found:
        assert (found[0], found[1]) in starts
        assert all(step in pairs for step in zip(found, [*found[1:], found[0]], strict=True))
        assert len(set(found)) == len(found)


def test_a_search_that_runs_out_of_effort_keeps_what_it_has() -> None:
    ring = {node: [(node + 1) % 50] for node in range(50)}
    ring[10] = [11, 9]
    assert walks.shortest_cycle([(9, 10)], ring) == [9, 10]
    long = walks.shortest_cycle([(0, 1), (9, 10)], ring, effort=1)
    assert long is not None
    assert len(long) == 50


def test_deep_graphs_need_no_recursion() -> None:
    line = {node: [node + 1] for node in range(20_000)}
    assert len(walks.components(range(20_001), line)) == 20_001
    line[20_000] = [0]
    assert len(walks.circular(range(20_001), line)) == 1

"""Looks for cycles, from the gravest kind to the mildest, first in what was read and written, then with the order in time added.

Snapshot isolation allows a cycle only if it has two anti-dependencies (rw) in a row, a serial order allows none. Whether there is
such a cycle is always decided exactly; of cycles that share their transactions with a graver one, only the graver is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tiltyard_proofs.histories.graph import Graph
from tiltyard_proofs.histories.report import Anomaly, Edge, EdgeKind, Finding
from tiltyard_proofs.histories.walks import Successors, circular, reachable, shortest_cycle, shortest_path, within

VALUES = (EdgeKind.WW, EdgeKind.WR)

# A search for each of thousands would take long, and nobody reads thousands.
CYCLES_IN_WORDS = 50

Pair = tuple[int, int]


@dataclass(slots=True)
class Search:
    """One history. ``settled`` are anti-dependencies told already (as lost updates), ``grave`` the transactions in what was found."""

    graph: Graph
    settled: set[Pair]
    grave: set[int]
    findings: list[Finding] = field(default_factory=list)
    untold: Counter[Anomaly] = field(default_factory=Counter)
    mild: set[int] = field(default_factory=set)
    _by_kind: dict[EdgeKind, Successors] = field(init=False)

    def __post_init__(self) -> None:
        self._by_kind = {kind: self.graph.successors(kind) for kind in EdgeKind}

    def run(self, orders: Iterable[EdgeKind]) -> list[Finding]:
        self._pass(VALUES, None)
        kinds: tuple[EdgeKind, ...] = VALUES
        for order in orders:
            kinds = (*kinds, order)
            self._pass(kinds, order)
        return self.findings

    def _pass(self, before: tuple[EdgeKind, ...], order: EdgeKind | None) -> None:
        """``before``: the kinds of edges by which the target saw or followed the source; ``order``: the kind new in this pass."""
        depends = self.graph.successors(*before)
        whole = self.graph.successors(*before, EdgeKind.RW)
        for nodes in circular(sorted(whole), whole):
            inner = within(nodes, depends)
            if order is None:
                self._write_cycles(nodes)
                self._circles(nodes, inner, EdgeKind.WR, before)
            else:
                self._circles(nodes, inner, order, before)
            self._single(nodes, inner, before, order)
            self._nonadjacent(nodes, inner, before, order)
            self._skews(nodes, within(nodes, whole), before, order)

    def _pairs(self, kind: EdgeKind, nodes: Iterable[int]) -> list[Pair]:
        inside = set(nodes)
        following = self._by_kind[kind]
        return [(source, target) for source in sorted(inside) for target in following.get(source, ()) if target in inside]

    def _write_cycles(self, nodes: list[int]) -> None:
        writes = within(nodes, self._by_kind[EdgeKind.WW])
        for part in circular(nodes, writes):
            cycle = shortest_cycle(self._pairs(EdgeKind.WW, part), within(part, writes))
            if cycle is not None:
                self._tell(Anomaly.DIRTY_WRITE, cycle, [EdgeKind.WW] * len(cycle))

    def _circles(self, nodes: list[int], inner: Successors, first: EdgeKind, before: tuple[EdgeKind, ...]) -> None:
        """Cycles without anti-dependencies that have an edge of the given kind."""
        for part in circular(nodes, inner):
            if first is not EdgeKind.WR and not self.grave.isdisjoint(part):
                continue
            cycle = shortest_cycle(self._pairs(first, part), within(part, inner))
            if cycle is None:
                continue
            kinds = [first, *(self._kind(pair, before) for pair in _pairs_of(cycle)[1:])]
            anomaly = Anomaly.CIRCULAR_INFORMATION
            if first is not EdgeKind.WR:
                anomaly = Anomaly.FUTURE_READ if EdgeKind.WR in kinds else Anomaly.WRITE_ORDER
            self._tell(anomaly, cycle, kinds)

    def _single(self, nodes: list[int], inner: Successors, before: tuple[EdgeKind, ...], order: EdgeKind | None) -> None:
        """Cycles with one anti-dependency: its target leads back to its source."""
        pairs = [pair for pair in self._pairs(EdgeKind.RW, nodes) if pair not in self.settled]
        answers = reachable([(target, source) for source, target in pairs], nodes, inner)
        hits = [pair for pair, answer in zip(pairs, answers, strict=True) if answer]
        anomaly = Anomaly.READ_SKEW if order is None else Anomaly.STALE_READ
        self.settled.update(hits)
        self.grave.update(number for pair in hits for number in pair)
        self.untold[anomaly] += max(0, len(hits) - CYCLES_IN_WORDS)
        for source, target in hits[:CYCLES_IN_WORDS]:
            path, _ = shortest_path(target, source, inner, len(nodes))
            if path is not None:
                cycle = [source, *path[:-1]]
                self._tell(anomaly, cycle, [EdgeKind.RW, *(self._kind(pair, before) for pair in _pairs_of(cycle)[1:])])

    def _nonadjacent(self, nodes: list[int], inner: Successors, before: tuple[EdgeKind, ...], order: EdgeKind | None) -> None:
        """Cycles in which no two anti-dependencies meet.

        Each transaction stands twice in the graph searched here: as itself, and, shifted, as reached by an anti-dependency, from where
        no other may follow.
        """
        shift = len(self.graph.transactions)
        double: dict[int, list[int]] = {}
        for node, targets in inner.items():
            double[node] = list(targets)
            double[node + shift] = list(targets)
        rw = self._pairs(EdgeKind.RW, nodes)
        for source, target in rw:
            double[source].append(target + shift)
        for part in circular(list(double), double):
            if not self.grave.isdisjoint(node % shift for node in part):
                continue
            inside = set(part)
            starts = [(source, target + shift) for source, target in rw if source in inside and target + shift in inside]
            cycle = shortest_cycle(starts, within(part, double))
            if cycle is not None:
                kinds = [
                    EdgeKind.RW if target >= shift else self._kind((source % shift, target), before) for source, target in _pairs_of(cycle)
                ]
                anomaly = Anomaly.NONADJACENT if order is None else Anomaly.STALE_READ
                self._tell(anomaly, [node % shift for node in cycle], kinds)

    def _skews(self, nodes: list[int], inner: Successors, before: tuple[EdgeKind, ...], order: EdgeKind | None) -> None:
        """What is left: every cycle here has two anti-dependencies in a row."""
        if not (self.grave | self.mild).isdisjoint(nodes):
            return
        cycle = shortest_cycle(self._pairs(EdgeKind.RW, nodes), inner)
        if cycle is not None:
            kinds = [EdgeKind.RW, *(self._kind(pair, (*before, EdgeKind.RW)) for pair in _pairs_of(cycle)[1:])]
            self._tell(Anomaly.WRITE_SKEW if order is None else Anomaly.STRICT_SKEW, cycle, kinds, grave=False)

    def _kind(self, pair: Pair, kinds: tuple[EdgeKind, ...]) -> EdgeKind:
        return next(kind for kind in kinds if pair in self.graph.edges[kind])

    def _tell(self, anomaly: Anomaly, cycle: list[int], kinds: list[EdgeKind], *, grave: bool = True) -> None:
        (self.grave if grave else self.mild).update(cycle)
        steps = _without_detours([(source, target, kind) for (source, target), kind in zip(_pairs_of(cycle), kinds, strict=True)])
        edges = tuple(self.graph.edge(kind, source, target) for source, target, kind in steps)
        names = tuple(edge.source for edge in edges)
        self.findings.append(Finding(anomaly, _message(anomaly, edges), names, edges[0].key, edges))


Step = tuple[int, int, EdgeKind]


def _pairs_of(cycle: list[int]) -> list[Pair]:
    return list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))


def _without_detours(steps: list[Step]) -> list[Step]:
    """Joins neighbouring steps in time to one: what ended before another began also ended before whatever followed that."""
    turn = next((place for place, step in enumerate(steps) if step[2] is not EdgeKind.REALTIME), 0)
    joined: list[Step] = []
    for step in steps[turn:] + steps[:turn]:
        if joined and step[2] is EdgeKind.REALTIME and joined[-1][2] is EdgeKind.REALTIME:
            joined[-1] = (joined[-1][0], step[1], EdgeKind.REALTIME)
        else:
            joined.append(step)
    return joined


def _message(anomaly: Anomaly, edges: tuple[Edge, ...]) -> str:
    circle = " -> ".join([*(edge.source for edge in edges), edges[0].source])
    return f"{_MEANING[anomaly]}: {circle}"


_MEANING = {
    Anomaly.DIRTY_WRITE: "appends lie in one order under one key and in another order elsewhere",
    Anomaly.CIRCULAR_INFORMATION: "each followed or saw the one before it, in a circle",
    Anomaly.READ_SKEW: "the first read an older state of something whose later state it followed or saw",
    Anomaly.NONADJACENT: "no snapshots explain these reads",
    Anomaly.WRITE_SKEW: "each read what the next one changed, so no serial order explains them",
    Anomaly.FUTURE_READ: "something was read before the transaction that appended it began",
    Anomaly.WRITE_ORDER: "an append lies before one that was done before it began",
    Anomaly.STALE_READ: "something was missing from a read that began after it was there",
    Anomaly.STRICT_SKEW: "no serial order that respects time explains them",
}

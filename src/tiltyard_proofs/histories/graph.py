"""Which transaction came before which, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tiltyard_proofs.histories.observed import Observed
from tiltyard_proofs.histories.records import Element, Transaction
from tiltyard_proofs.histories.report import Edge, EdgeKind
from tiltyard_proofs.histories.versions import Versions


class Why(NamedTuple):
    """The key and the elements an edge rests on: the source's, and the target's."""

    key: str
    source: Element | None
    target: Element | None


@dataclass(frozen=True, slots=True)
class Graph:
    """Edges by kind, then by the two transactions; those of time and process need no reason."""

    transactions: tuple[Transaction, ...]
    edges: dict[EdgeKind, dict[tuple[int, int], list[Why]]] = field(default_factory=lambda: {kind: {} for kind in EdgeKind})

    def add(self, kind: EdgeKind, source: int, target: int, why: Why | None = None) -> None:
        if source != target:
            reasons = self.edges[kind].setdefault((source, target), [])
            if why is not None:
                reasons.append(why)

    def successors(self, *kinds: EdgeKind) -> dict[int, list[int]]:
        result: dict[int, dict[int, None]] = {}
        for kind in kinds:
            for source, target in self.edges[kind]:
                result.setdefault(source, {})[target] = None
        return {source: list(targets) for source, targets in result.items()}

    def name(self, number: int) -> str:
        return self.transactions[number].name

    def edge(self, kind: EdgeKind, source: int, target: int, why: Why | None = None) -> Edge:
        """The edge in words."""
        if why is None:
            reasons = self.edges[kind].get((source, target))
            why = reasons[0] if reasons else None
        names = self.name(source), self.name(target)
        return Edge(*names, kind, _words(kind, *names, why), None if why is None else why.key)


def _words(kind: EdgeKind, source: str, target: str, why: Why | None) -> str:
    if why is None:
        return f"{source} ended before {target} began" + (", in one process" if kind is EdgeKind.PROCESS else "")
    if kind is EdgeKind.WW:
        return f"{source} appended {why.source!r} to {why.key!r}, and {target} appended {why.target!r} after it"
    if kind is EdgeKind.WR:
        return f"{source} appended {why.source!r} to {why.key!r}, and {target} read it"
    return f"{source} read {why.key!r} without {why.target!r}, which {target} appended"


def build(observed: Observed, versions: Iterable[Versions], *, sessions: bool, realtime: bool) -> Graph:
    graph = Graph(observed.committed)
    for each in versions:
        _add_versions(graph, each)
    if sessions:
        _add_sessions(graph)
    if realtime:
        _add_time(graph)
    return graph


def _add_versions(graph: Graph, versions: Versions) -> None:
    key, chain = versions.key, versions.chain
    for (before, source), (after, target) in pairwise(chain):
        graph.add(EdgeKind.WW, source, target, Why(key, before, after))
    if chain:
        before, source = chain[-1]
        for after, target in versions.unread:
            graph.add(EdgeKind.WW, source, target, Why(key, before, after))
    for reader, seen in versions.reads.items():
        last = chain[seen - 1] if seen else None
        if last is not None:
            graph.add(EdgeKind.WR, last[1], reader, Why(key, last[0], last[0]))
        for element, writer in chain[seen : seen + 1] or versions.unread:
            # Somebody who stopped in the middle of another's appends is told as an intermediate read; a cycle would say it again.
            if last is None or last[1] != writer:
                graph.add(EdgeKind.RW, reader, writer, Why(key, None if last is None else last[0], element))


def _add_sessions(graph: Graph) -> None:
    """Neighbours in one process. One of unknown outcome may have taken effect later, so nothing need come after it."""
    last: dict[str, int] = {}
    for number, transaction in enumerate(graph.transactions):
        if transaction.process in last:
            graph.add(EdgeKind.PROCESS, last[transaction.process], number)
        if transaction.outcome == "ok":
            last[transaction.process] = number


def _add_time(graph: Graph) -> None:
    """Whoever ended before another began, without what follows from other edges: only the newest to have ended are kept at hand."""
    events = [(transaction.began, 0, number) for number, transaction in enumerate(graph.transactions)]
    for number, transaction in enumerate(graph.transactions):
        if transaction.outcome == "ok" and transaction.ended is not None:
            events.append((transaction.ended, 1, number))
    newest: set[int] = set()
    before: dict[int, frozenset[int]] = {}
    for _, is_end, number in sorted(events):
        if is_end:
            newest -= before[number]
            newest.add(number)
        else:
            before[number] = frozenset(newest)
            for earlier in before[number]:
                graph.add(EdgeKind.REALTIME, earlier, number)

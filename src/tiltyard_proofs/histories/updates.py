"""Lost updates: a transaction read a key and appended to it, and another's append lies between the two."""

from __future__ import annotations

from tiltyard_proofs.histories.graph import Graph, Why
from tiltyard_proofs.histories.observed import Observed
from tiltyard_proofs.histories.records import Element
from tiltyard_proofs.histories.report import Anomaly, Edge, EdgeKind, Finding
from tiltyard_proofs.histories.versions import Versions


def lost_updates(graph: Graph, observed: Observed, versions: Versions) -> list[tuple[Finding, int, int]]:
    """Each with the two transactions: the one that came too late, and one that was there before it."""
    places = {element: place for place, (element, _) in enumerate(versions.chain)}
    unread = dict(versions.unread)
    found: list[tuple[Finding, int, int]] = []
    same_state: dict[int, list[int]] = {}
    for number, seen in versions.reads.items():
        own = observed.views[number][versions.key].own
        if not own:
            continue
        same_state.setdefault(seen, []).append(number)
        place = places.get(own[0], len(versions.chain) if own[0] in unread else seen)
        if place > seen and versions.chain[place - 1][1] != number:
            found.append(_passed_over(graph, versions, number, own[0], versions.chain[place - 1]))
    told = {number for _, late, early in found for number in (late, early)}
    for numbers in same_state.values():
        # Whoever is told above is left out; here are those whose appends nobody read, in which case no order shows.
        rest = [number for number in numbers if number not in told]
        if len(rest) > 1:
            found.append(_both(graph, observed, versions.key, rest))
    return found


def _passed_over(graph: Graph, versions: Versions, late: int, own: Element, before: tuple[Element, int]) -> tuple[Finding, int, int]:
    element, early = before
    key = versions.key
    cycle = (
        graph.edge(EdgeKind.RW, late, early, Why(key, None, element)),
        graph.edge(EdgeKind.WW, early, late, Why(key, element, own)),
    )
    names = graph.name(late), graph.name(early)
    message = f"{names[0]} read {key!r} and appended {own!r} to it, but {names[1]} had appended {element!r} in between"
    return Finding(Anomaly.LOST_UPDATE, message, names, key, cycle), late, early


def _both(graph: Graph, observed: Observed, key: str, numbers: list[int]) -> tuple[Finding, int, int]:
    one, other = numbers[:2]
    cycle: tuple[Edge, ...] = tuple(
        graph.edge(EdgeKind.RW, reader, writer, Why(key, None, observed.views[writer][key].own[0]))
        for reader, writer in ((one, other), (other, one))
    )
    names = tuple(graph.name(number) for number in numbers)
    message = f"{' and '.join(names[:3])} read the same state of {key!r} and all appended to it"
    return Finding(Anomaly.LOST_UPDATE, message, names, key, cycle), one, other

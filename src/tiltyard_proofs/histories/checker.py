"""``check``: from a history to a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from tiltyard.errors import InvalidInput
from tiltyard_proofs.histories.graph import build
from tiltyard_proofs.histories.names import resolve
from tiltyard_proofs.histories.observed import observe
from tiltyard_proofs.histories.records import History, NameStep
from tiltyard_proofs.histories.report import ALLOWED_UNDER_SNAPSHOT, Anomaly, EdgeKind, Finding, Isolation, Report
from tiltyard_proofs.histories.search import Search
from tiltyard_proofs.histories.updates import lost_updates
from tiltyard_proofs.histories.versions import versions_of

SHOWN_PER_ANOMALY = 10


def check(
    history: History,
    isolation: Isolation = "snapshot",
    *,
    realtime: bool = False,
    sessions: bool = False,
    names: Sequence[NameStep] | None = None,
) -> Report:
    """Judges a history.

    Args:
        isolation: "snapshot" or "serializable"; anomalies it allows become notes.
        realtime: whoever begins after another was acknowledged must see it. The times must come from one clock.
        sessions: the same, but only within each process.
        names: where the history has names, what each snapshot did to them, all snapshots.
    """
    if isolation not in get_args(Isolation):
        raise InvalidInput(f"There is no isolation {isolation!r}; it is one of {', '.join(get_args(Isolation))}.", argument="isolation")
    if history.has_names and names is None:
        raise InvalidInput("The history has names; say in which order they changed.", argument="names")
    told: list[Finding] = []
    given = len(history)
    if names is not None:
        history, told = resolve(history, names, isolation)
    observed = observe(history)
    versions, found = versions_of(observed, realtime=realtime)
    graph = build(observed, versions, sessions=sessions, realtime=realtime)
    everything = [*told, *observed.findings, *found]
    settled: set[tuple[int, int]] = set()
    grave: set[int] = set()
    late_under: set[tuple[int, str]] = set()
    for each in versions:
        for finding, late, early in lost_updates(graph, observed, each):
            everything.append(finding)
            grave |= {late, early}
            late_under.add((late, each.key))
    for pair, reasons in graph.edges[EdgeKind.RW].items():
        if all((pair[0], why.key) in late_under for why in reasons):
            settled.add(pair)
    orders = [kind for kind, wanted in ((EdgeKind.PROCESS, sessions), (EdgeKind.REALTIME, realtime)) if wanted]
    search = Search(graph, settled, grave)
    everything += search.run(orders)
    shown, omitted = _first_of_each(everything, search.untold)
    allowed = ALLOWED_UNDER_SNAPSHOT if isolation == "snapshot" else frozenset[Anomaly]()
    findings = tuple(finding for finding in shown if finding.anomaly not in allowed)
    notes = tuple(finding for finding in shown if finding.anomaly in allowed)
    return Report(isolation, realtime, given, len(observed.committed), findings, notes, omitted)


def _first_of_each(everything: list[Finding], untold: Counter[Anomaly]) -> tuple[list[Finding], tuple[tuple[Anomaly, int], ...]]:
    """A few of each anomaly, the shortest cycles first, and how many there are besides."""
    counts: Counter[Anomaly] = Counter()
    shown: list[Finding] = []
    for finding in sorted(everything, key=lambda each: (list(Anomaly).index(each.anomaly), len(each.cycle))):
        counts[finding.anomaly] += 1
        if counts[finding.anomaly] <= SHOWN_PER_ANOMALY:
            shown.append(finding)
    more = {anomaly: max(0, counts[anomaly] - SHOWN_PER_ANOMALY) + untold[anomaly] for anomaly in counts}
    return shown, tuple((anomaly, count) for anomaly, count in more.items() if count)

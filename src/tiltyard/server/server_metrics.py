"""Figures for Prometheus: requests, commits, conflicts, queues, and the health of the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tiltyard.metrics import MetricsSnapshot, OperationCounts, snapshot

_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_UPKEEP_BUCKETS: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class ServerMetrics:
    """The figures of one server. Labels are operations, statuses and codes, never names of tables, principals or anything a client sends.

    Args:
        queued: how many requests wait for tables, asked when the figures are read.
        healthy: whether the catalog answers, asked the same way.
    """

    def __init__(self, queued: Callable[[], int], healthy: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("tiltyard_requests", "Requests by operation and status.", ["operation", "status"], registry=self.registry)
        self.seconds = Histogram(
            "tiltyard_request_seconds", "Time from a request to its answer.", ["operation"], buckets=_BUCKETS, registry=self.registry
        )
        self.in_flight = Gauge("tiltyard_requests_in_flight", "Requests in progress or waiting.", registry=self.registry)
        self.commits = Counter("tiltyard_commits", "Commits by operation.", ["operation"], registry=self.registry)
        self.conflicts = Counter(
            "tiltyard_conflicts", "Requests refused because another commit came first.", ["operation"], registry=self.registry
        )
        self.denied = Counter("tiltyard_denied", "Requests refused by role or token.", ["code"], registry=self.registry)
        self.refused = Counter("tiltyard_refused", "Requests refused by a limit.", ["status"], registry=self.registry)
        self.upkeep = Counter("tiltyard_upkeep_steps", "Steps of upkeep by kind and result.", ["kind", "became"], registry=self.registry)
        self.upkeep_seconds = Histogram(
            "tiltyard_upkeep_seconds", "Time of a step of upkeep.", ["kind"], buckets=_UPKEEP_BUCKETS, registry=self.registry
        )
        self.upkeep_last = Gauge("tiltyard_upkeep_last_timestamp_seconds", "When a step of a kind ended.", ["kind"], registry=self.registry)
        self.registry.register(_Asked(queued, healthy))

    def text(self) -> bytes:
        """All figures in the text form of Prometheus."""
        return generate_latest(self.registry)


class _Asked(Collector):
    """Figures that are looked up when somebody reads them."""

    def __init__(self, queued: Callable[[], int], healthy: Callable[[], bool]) -> None:
        self._queued, self._healthy = queued, healthy

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("tiltyard_table_queue", "Requests that wait for a table.", value=self._queued())
        yield GaugeMetricFamily("tiltyard_catalog_up", "Whether the catalog answers.", value=float(self._healthy()))
        yield from _counted(snapshot())


def _counted(counts: MetricsSnapshot) -> Iterator[Metric]:
    """What the commit loop of this process counted: commits that the server makes for its clients. Names of operations are our own."""
    kinds: dict[str, tuple[str, Callable[[OperationCounts], int]]] = {
        "tiltyard_commit_attempts": ("Attempts of commits that the server makes itself.", lambda each: each.attempts),
        "tiltyard_commit_lost_races": ("Attempts that lost the race for their version.", lambda each: each.lost_races),
        "tiltyard_commit_reruns": ("Verbs that were re-executed after a conflict.", lambda each: each.reruns),
        "tiltyard_commit_unknown": ("Commits whose outcome is unknown.", lambda each: each.outcomes_unknown),
    }
    for name, (what, count) in kinds.items():
        family = CounterMetricFamily(name, what, labels=["kind"])
        for operation, each in counts.operations.items():
            family.add_metric([operation], count(each))
        yield family
    for name, what, met in (
        ("tiltyard_commit_conflicts", "Conflicts by pair: our operation, and the one that was committed first.", counts.conflicts),
        ("tiltyard_commit_rebases", "Commits that were rebased over another, by pair.", counts.rebases),
    ):
        family = CounterMetricFamily(name, what, labels=["mine", "theirs", "verdict"])
        for meeting, times in met.items():
            family.add_metric([meeting.mine, meeting.theirs, meeting.verdict], times)
        yield family

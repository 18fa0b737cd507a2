"""Spans and metrics of commits for OpenTelemetry. Needs the extra ``otel``, imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version as _installed_version
from typing import TYPE_CHECKING, Any

from tiltyard.errors import UnsupportedFeature
from tiltyard.transaction.metrics import BOUNDS, CommitEvent
from tiltyard.transaction.observers import observe

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

__all__ = ["export_to_opentelemetry"]

METER = "tiltyard"


def export_to_opentelemetry(meter_provider: MeterProvider | None = None) -> Callable[[], None]:
    """Exports the metrics of all commits of this process to OpenTelemetry.

    Instruments: ``tiltyard.commits`` (by ``operation`` and ``outcome``: ``committed`` or the kind of an error),
    ``tiltyard.commit.duration`` in seconds (the same), ``tiltyard.commit.attempts`` and ``tiltyard.commit.reruns`` (by ``operation``),
    ``tiltyard.commit.lost_races`` (and ``theirs``) and ``tiltyard.commit.meetings`` (and ``verdict``). No attribute holds data, names or
    addresses of tables.

    Args:
        meter_provider: where to; by default the one that is set for the process.

    Returns:
        A function that ends it.

    Raises:
        UnsupportedFeature: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter_provider
    except ImportError:
        raise UnsupportedFeature(
            "Exporting metrics needs OpenTelemetry.", feature="opentelemetry", advice="Install it: pip install 'tiltyard[otel]'."
        ) from None
    provider = get_meter_provider() if meter_provider is None else meter_provider
    return observe(_Exporter(provider.get_meter(METER, _installed_version("tiltyard"))))


class _Exporter:
    """An observer of commits that passes them on to instruments."""

    def __init__(self, meter: Meter) -> None:
        self._commits = meter.create_counter("tiltyard.commits", "{commit}", "Commits that ended, by operation and outcome.")
        self._attempts = meter.create_counter("tiltyard.commit.attempts", "{attempt}", "How often the creation of a version was tried.")
        self._lost = meter.create_counter("tiltyard.commit.lost_races", "{race}", "Versions that another writer created first.")
        self._met = meter.create_counter("tiltyard.commit.meetings", "{meeting}", "Commits that came in between, by pair and verdict.")
        self._reruns = meter.create_counter("tiltyard.commit.reruns", "{run}", "Verbs re-executed on the latest version after a conflict.")
        self._seconds = meter.create_histogram(
            "tiltyard.commit.duration", "s", "From the start of the commit loop.", explicit_bucket_boundaries_advisory=list(BOUNDS)
        )

    def committed(self, event: CommitEvent, /) -> None:
        self._ended(event)

    def failed(self, event: CommitEvent, /) -> None:
        self._ended(event)

    def _ended(self, event: CommitEvent) -> None:
        told: dict[str, Any] = {"operation": event.operation, "outcome": event.outcome}
        self._commits.add(1, told)
        self._seconds.record(event.seconds or 0.0, told)
        self._attempts.add(event.attempts, {"operation": event.operation})

    def lost_race(self, event: CommitEvent, /) -> None:
        self._lost.add(1, {"operation": event.operation, "theirs": event.theirs})

    def rebased(self, event: CommitEvent, /) -> None:
        self._meeting(event)

    def conflict(self, event: CommitEvent, /) -> None:
        self._meeting(event)

    def _meeting(self, event: CommitEvent) -> None:
        self._met.add(1, {"operation": event.operation, "theirs": event.theirs, "verdict": event.verdict})

    def rerun(self, event: CommitEvent, /) -> None:
        self._reruns.add(1, {"operation": event.operation})

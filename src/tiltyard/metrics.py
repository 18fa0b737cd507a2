"""Watching commits: counts of this process, and notification of each commit.

Examples:
    >>> import tiltyard as ty
    >>> ty.metrics.reset()
    >>> ty.metrics.snapshot().commits
    0
"""

from tiltyard.transaction.metrics import CommitEvent, CommitObserver, Latency, Meeting, MetricsSnapshot, OperationCounts
from tiltyard.transaction.observers import METRICS, observe

__all__ = ["CommitEvent", "CommitObserver", "Latency", "Meeting", "MetricsSnapshot", "OperationCounts", "observe", "reset", "snapshot"]

snapshot = METRICS.snapshot
reset = METRICS.reset

del METRICS

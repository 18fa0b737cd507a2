"""Counts of commits in this process: how many, how fast, which operations conflict with which."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, NamedTuple, Protocol

from tiltyard.errors import OutcomeUnknown

BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the latency buckets in seconds; one more bucket takes the rest."""

CONFLICTS: Final = frozenset({"retry", "incompatible"})


class Meeting(NamedTuple):
    """A pair of concurrent operations: ours, the one that was committed first, and the verdict."""

    mine: str
    theirs: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Latency:
    """How long successful commits took, in seconds.

    Attributes:
        count: how many.
        sum: all of them together.
        max: the longest.
        buckets: how many fell into each bucket of ``BOUNDS``; the last holds what is longer.
    """

    count: int = 0
    sum: float = 0.0
    max: float = 0.0
    buckets: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)

    @property
    def mean(self) -> float:
        """Seconds on average; 0 without any."""
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """About how long the given share of commits took at most; exact only to the width of a bucket.

        >>> Latency(count=2, sum=0.003, max=0.002, buckets=(1, 1, *[0] * 14)).quantile(0.5)
        0.001
        """
        wanted = share * self.count
        below = 0
        for number, inside in enumerate(self.buckets):
            if inside and below + inside >= wanted:
                lower = BOUNDS[number - 1] if number else 0.0
                upper = min(BOUNDS[number], self.max) if number < len(BOUNDS) else self.max
                return lower + (upper - lower) * max(wanted - below, 0.0) / inside
            below += inside
        return self.max


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """What became of the commits of one operation.

    Attributes:
        commits: versions made.
        attempts: how many times the creation of a version was tried, over all commits that ended.
        lost_races: how many of them another writer won.
        reruns: how often a verb was re-executed after a conflict.
        failures: commits that ended in an error, by its ``kind``; ``outcome-unknown`` among them.
        latency: how long the successful ones took.
    """

    commits: int = 0
    attempts: int = 0
    lost_races: int = 0
    reruns: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    latency: Latency = Latency()

    @property
    def outcomes_unknown(self) -> int:
        """Commits that ended without an answer."""
        return self.failures.get(OutcomeUnknown.kind, 0)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All counts at one moment.

    Attributes:
        operations: counts by the name of the operation.
        meetings: how often each pair of operations got each verdict, ``compatible`` included.
    """

    operations: Mapping[str, OperationCounts]
    meetings: Mapping[Meeting, int]

    @property
    def commits(self) -> int:
        """Commits that succeeded."""
        return sum(operation.commits for operation in self.operations.values())

    @property
    def attempts(self) -> int:
        """Attempts of all commits."""
        return sum(operation.attempts for operation in self.operations.values())

    @property
    def lost_races(self) -> int:
        """Races for a version that were lost."""
        return sum(operation.lost_races for operation in self.operations.values())

    @property
    def reruns(self) -> int:
        """Re-executions after a retryable conflict."""
        return sum(operation.reruns for operation in self.operations.values())

    @property
    def outcomes_unknown(self) -> int:
        """Commits that ended without an answer."""
        return sum(operation.outcomes_unknown for operation in self.operations.values())

    @property
    def conflicts(self) -> Mapping[Meeting, int]:
        """The pairs whose verdict ended a commit."""
        return {met: times for met, times in self.meetings.items() if met.verdict in CONFLICTS}

    @property
    def rebases(self) -> Mapping[Meeting, int]:
        """The pairs in which our operation was rebased over theirs."""
        return {met: times for met, times in self.meetings.items() if met.verdict == "rebase"}

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "commits": self.commits,
            "attempts": self.attempts,
            "lost_races": self.lost_races,
            "reruns": self.reruns,
            "outcomes_unknown": self.outcomes_unknown,
            "operations": {name: _plain(counts) for name, counts in sorted(self.operations.items())},
            "meetings": [{**met._asdict(), "count": times} for met, times in sorted(self.meetings.items())],
        }


def _plain(counts: OperationCounts) -> dict[str, Any]:
    latency = counts.latency
    quantiles = {f"p{percent}": latency.quantile(percent / 100) for percent in (50, 90, 99)}
    return {
        "commits": counts.commits,
        "attempts": counts.attempts,
        "lost_races": counts.lost_races,
        "reruns": counts.reruns,
        "failures": dict(sorted(counts.failures.items())),
        "latency": {**asdict(latency), "buckets": list(latency.buckets), "bounds": list(BOUNDS), "mean": latency.mean, **quantiles},
    }


class _Tally:
    """The counts of one operation while they grow."""

    __slots__ = ("attempts", "buckets", "commits", "failures", "longest", "lost_races", "reruns", "seconds")

    def __init__(self) -> None:
        self.commits = self.attempts = self.lost_races = self.reruns = 0
        self.seconds = self.longest = 0.0
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.failures: Counter[str] = Counter()

    def counts(self) -> OperationCounts:
        latency = Latency(self.commits, self.seconds, self.longest, tuple(self.buckets))
        failures = dict(self.failures)
        return OperationCounts(self.commits, self.attempts, self.lost_races, self.reruns, failures, latency)


class Metrics:
    """Counts what it is told of as an observer of commits. Threads may share it; what it costs is a lock nobody else wants."""

    def __init__(self) -> None:
        self.free_lock()
        self.reset()

    def free_lock(self) -> None:
        """For the child of a fork, where a lock that another thread held at that moment would stay taken for ever."""
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Begins to count from nothing."""
        with self._lock:
            self._tallies: dict[str, _Tally] = {}
            self._meetings: Counter[Meeting] = Counter()

    def snapshot(self) -> MetricsSnapshot:
        """All counts at this moment."""
        with self._lock:
            return MetricsSnapshot({name: tally.counts() for name, tally in self._tallies.items()}, dict(self._meetings))

    def _tally(self, operation: str) -> _Tally:
        found = self._tallies.get(operation)
        if found is None:
            found = self._tallies[operation] = _Tally()
        return found

    def committed(self, event: CommitEvent, /) -> None:
        seconds = event.seconds or 0.0
        with self._lock:
            tally = self._tally(event.operation)
            tally.commits += 1
            tally.attempts += event.attempts
            tally.seconds += seconds
            tally.longest = max(tally.longest, seconds)
            tally.buckets[bisect_left(BOUNDS, seconds)] += 1

    def rebased(self, event: CommitEvent, /) -> None:
        self._met(event)

    def conflict(self, event: CommitEvent, /) -> None:
        self._met(event)

    def _met(self, event: CommitEvent) -> None:
        with self._lock:
            self._meetings[Meeting(event.operation, event.theirs, event.verdict)] += 1

    def lost_race(self, event: CommitEvent, /) -> None:
        with self._lock:
            self._tally(event.operation).lost_races += 1

    def failed(self, event: CommitEvent, /) -> None:
        with self._lock:
            tally = self._tally(event.operation)
            tally.attempts += event.attempts
            tally.failures[event.outcome] += 1

    def rerun(self, event: CommitEvent, /) -> None:
        with self._lock:
            self._tally(event.operation).reruns += 1


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """Something that happened to a commit. What does not belong to the occasion keeps its default.

    Attributes:
        operation: what is to be committed, for example ``Append``.
        transaction_id: its uuid.
        read_version: the version it was built on.
        attempts: how many times the creation of a version was tried so far.
        version: the version it made or raced for.
        seconds: from the start of the commit loop.
        theirs: the operation of the other side.
        their_version: the version that other commit made.
        their_transaction_id: its uuid.
        verdict: ``compatible``, ``rebase``, ``retry`` or ``incompatible``.
        outcome: ``committed``, or the ``kind`` of the error it ended in.
        executions: how often the verb was executed so far.
        wait: seconds until it is re-executed.
    """

    operation: str
    transaction_id: str = ""
    read_version: int | None = None
    attempts: int = 0
    version: int | None = None
    seconds: float | None = None
    theirs: str = ""
    their_version: int | None = None
    their_transaction_id: str = ""
    verdict: str = ""
    outcome: str = ""
    executions: int = 0
    wait: float | None = None

    def to_dict(self) -> dict[str, object]:
        """What is known, as plain JSON values."""
        known = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in known if value is not None and value != "" and (value != 0 or name not in _COUNTS)}


_COUNTS: Final = frozenset({"attempts", "executions"})


class CommitObserver(Protocol):
    """Receives events of commits, on the committing thread; be quick. What it raises is only logged."""

    def committed(self, event: CommitEvent, /) -> None:
        """A version was made."""

    def rebased(self, event: CommitEvent, /) -> None:
        """The commit was rebased over one in between; the verdict says whether it had to change."""

    def lost_race(self, event: CommitEvent, /) -> None:
        """Another writer took the version; the commit tries the next one."""

    def conflict(self, event: CommitEvent, /) -> None:
        """The commit conflicts with one in between. ``failed`` follows."""

    def failed(self, event: CommitEvent, /) -> None:
        """The commit ended in an error, which ``outcome`` names; ``outcome-unknown`` if that is unknown."""

    def rerun(self, event: CommitEvent, /) -> None:
        """The verb will be re-executed on the latest version, after a conflict."""

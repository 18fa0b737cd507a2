"""What the checker says: anomalies by name, each with the transactions and, where there is one, the cycle that proves it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

Isolation = Literal["snapshot", "serializable"]


class Anomaly(StrEnum):
    """What can be wrong with a history."""

    DIRTY_WRITE = "G0"  # writes of two transactions lie in one order here and in the other order there
    ABORTED_READ = "G1a"  # an element of a failed transaction was read
    INTERMEDIATE_READ = "G1b"  # a transaction was read before its last append to the key
    CIRCULAR_INFORMATION = "G1c"  # transactions saw or followed each other in a circle
    LOST_UPDATE = "lost-update"  # read a key and appended to it, but somebody else appended in between
    READ_SKEW = "G-single"  # saw a part of what another did, or what followed from it: a circle with one read of an older state
    NONADJACENT = "G-nonadjacent"  # several reads of older states, no two in a row: no set of snapshots explains it
    WRITE_SKEW = "G2-item"  # each read what the next one changed: fine for snapshots, not in any serial order
    DUPLICATE = "duplicate-element"
    LOST_APPEND = "lost-append"  # a committed append that a read after it does not have, nor any other
    INTERNAL = "internal"  # a transaction contradicts its own earlier reads and appends
    INCOMPATIBLE_ORDER = "incompatible-order"  # two reads, or a read and the appends themselves, cannot come from one list
    FUTURE_READ = "future-read"  # read what was appended only later
    UNWRITTEN = "unwritten-element"  # read what nobody appended
    STALE_READ = "stale-read"  # did not see what was there before it began
    WRITE_ORDER = "write-order"  # appends lie in an order that contradicts the order in time
    STRICT_SKEW = "G2-item-order"  # a write skew that exists only because of the order in time


ALLOWED_UNDER_SNAPSHOT = frozenset({Anomaly.WRITE_SKEW, Anomaly.STRICT_SKEW})


class EdgeKind(StrEnum):
    """Why one transaction comes before another."""

    WW = "ww"
    WR = "wr"
    RW = "rw"
    PROCESS = "process"
    REALTIME = "realtime"


@dataclass(frozen=True, slots=True)
class Edge:
    """``source`` came before ``target``; ``words`` says why."""

    source: str
    target: str
    kind: EdgeKind
    words: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One anomaly. The cycle is empty where a single read is proof enough; otherwise its last edge ends where its first begins."""

    anomaly: Anomaly
    message: str
    transactions: tuple[str, ...]
    key: str | None = None
    cycle: tuple[Edge, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.anomaly}: {self.message}"]
        lines += [f"  {edge.kind}: {edge.words}" for edge in self.cycle]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        cycle = [{"source": e.source, "target": e.target, "kind": str(e.kind), "key": e.key, "words": e.words} for e in self.cycle]
        return {
            "anomaly": str(self.anomaly),
            "message": self.message,
            "transactions": list(self.transactions),
            "key": self.key,
            "cycle": cycle,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """``findings`` break the isolation asked for, ``notes`` are anomalies it allows. ``omitted`` counts what was left out of either."""

    isolation: Isolation
    realtime: bool
    transactions: int
    committed: int
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    omitted: tuple[tuple[Anomaly, int], ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def anomalies(self) -> frozenset[Anomaly]:
        """The kinds among the findings."""
        return frozenset(finding.anomaly for finding in self.findings)

    def __str__(self) -> str:
        level = f"strict {self.isolation}" if self.realtime else self.isolation
        verdict = "holds" if self.ok else f"is broken, {len(self.findings)} findings"
        lines = [f"{level} {verdict}: {self.transactions} transactions, {self.committed} committed"]
        lines += [str(finding) for finding in self.findings]
        lines += [f"and {count} more of {anomaly}" for anomaly, count in self.omitted]
        lines += [f"note (allowed here) {note}" for note in self.notes]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {
            "isolation": self.isolation,
            "realtime": self.realtime,
            "transactions": self.transactions,
            "committed": self.committed,
            "ok": self.ok,
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": [note.to_dict() for note in self.notes],
            "omitted": {str(anomaly): count for anomaly, count in self.omitted},
        }

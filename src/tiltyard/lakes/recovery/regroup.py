"""From versions found in the files back to the transactions that made them, in an order in which they can have been committed.

Pure: values in, values out. One lake transaction is one group, whatever tables it is in, and so is a batch with its members; versions of
foreign writers that follow each other are one group by themselves. Within one line of versions the order is known, and a group comes
after all that it builds on in any line. Where that leaves a choice, the base that a transaction had seen and then the time in its
manifests decide.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from tiltyard.lakes.recovery.found import FoundVersion, LineKey
from tiltyard.lakes.recovery.found_batches import batches_of


@dataclass(slots=True)
class FoundTransaction:
    """What one commit did to the tables.

    Attributes:
        id: the lake transaction; for versions of a foreign writer a name that no transaction has.
        parts: its versions in each line, lowest first.
        is_foreign: whether a foreign writer made them.
    """

    id: str
    parts: dict[LineKey, list[FoundVersion]] = field(default_factory=dict)
    is_foreign: bool = False

    @property
    def versions(self) -> list[FoundVersion]:
        return [version for part in self.parts.values() for version in part]

    @property
    def at(self) -> datetime:
        return max(version.at for version in self.versions)

    @property
    def base(self) -> int:
        """The snapshot that its author had seen; 0 where nobody noted it."""
        return max((version.marks.base for version in self.versions if version.marks is not None), default=0)

    def rank(self) -> tuple[datetime, int, str]:
        """Which of two comes first where their versions leave it open."""
        return self.at, self.base, self.id


def group(lines: Mapping[LineKey, Sequence[FoundVersion]], is_ours: Callable[[FoundVersion], bool]) -> list[list[FoundTransaction]]:
    """Groups in an order in which they can have been committed, each in a list of its own.

    Marks that contradict each other leave no order. Versions of all groups that this concerns come in one list, at the end: whoever
    shows them shows all of them at once.

    Args:
        lines: versions of each line, lowest first.
        is_ours: whether a version was committed through this lake.
    """
    groups: dict[str, FoundTransaction] = {}
    batches = batches_of(version for versions in lines.values() for version in versions if is_ours(version))
    chains: list[list[str]] = []
    for key, versions in lines.items():
        chain: list[str] = []
        for version in versions:
            name = _name(key, version, chain) if not is_ours(version) else batches.get(version.transaction, version.transaction)
            found = groups.setdefault(name, FoundTransaction(name, is_foreign=not is_ours(version)))
            found.parts.setdefault(key, []).append(version)
            if not chain or chain[-1] != name:
                chain.append(name)
        chains.append(chain)
    ordered, rest = _in_order(chains, {name: found.rank() for name, found in groups.items()})
    return [*([groups[name]] for name in ordered), *([[groups[name] for name in rest]] if rest else [])]


def _name(key: LineKey, version: FoundVersion, chain: Sequence[str]) -> str:
    """The group of a foreign version: that of the foreign version before it, or a new one."""
    prefix = f"foreign {key[0]} {key[1] or ''}@"
    return chain[-1] if chain and chain[-1].startswith(prefix) else f"{prefix}{version.version}"


def _in_order(chains: Iterable[Sequence[str]], ranks: Mapping[str, tuple[datetime, int, str]]) -> tuple[list[str], list[str]]:
    """Names so that none comes before one that precedes it in a chain, and those for which there is no such order."""
    after: dict[str, list[str]] = defaultdict(list)
    waits: dict[str, int] = dict.fromkeys(ranks, 0)
    for chain in chains:
        for before, name in pairwise(chain):
            after[before].append(name)
            waits[name] += 1
    ready = [(ranks[name], name) for name, number in waits.items() if not number]
    heapq.heapify(ready)
    ordered: list[str] = []
    while ready:
        _, name = heapq.heappop(ready)
        ordered.append(name)
        for other in after[name]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (ranks[other], other))
    done = set(ordered)
    return ordered, sorted((name for name in ranks if name not in done), key=lambda name: ranks[name])


def last_staged(staged: Iterable[FoundVersion], transaction: str, above: int) -> list[FoundVersion]:
    """What a transaction staged last in one line, lowest version first: what it staged before was built on versions that others took.

    Args:
        staged: all staged versions of the line.
        transaction: the lake transaction.
        above: the latest version that has its final name.
    """
    latest: dict[int, FoundVersion] = {}
    for version in staged:
        if version.transaction == transaction and version.version > above:
            known = latest.get(version.version)
            if known is None or known.count < version.count:
                latest[version.version] = version
    run = []
    while above + 1 in latest:
        above += 1
        run.append(latest[above])
    return run


def staged_transactions(staged: Iterable[FoundVersion], known: Collection[str]) -> dict[str, datetime]:
    """Transactions that have staged something and are not among those known, with the time of their last version."""
    found: dict[str, datetime] = {}
    for version in staged:
        for name in (version.transaction or version.maker, *(member.transaction for member in version.members)):
            if name and name not in known:
                found[name] = max(version.at, found.get(name, version.at))
    return found


def contested(line: Sequence[FoundVersion], staged: Iterable[FoundVersion], transaction: str, known: int) -> list[FoundVersion]:
    """What a committed transaction staged in a line whose numbers a foreign writer has taken since; empty where nobody has.

    Args:
        line: versions above the known one that have their final names, lowest first.
        staged: all staged versions of the line.
        transaction: the lake transaction, known to be committed from another table.
        known: the latest version that was known before.
    """
    there = {version.version: version for version in line}
    ours = max((version.version for version in line if version.transaction), default=known)
    waiting = [version for version in staged if version.transaction == transaction and version.version > ours]
    run: list[FoundVersion] = []
    for version in sorted(waiting, key=lambda found: (found.version, found.count), reverse=True):
        if run and run[-1].version == version.version:
            continue
        taken = there.get(version.version)
        if taken is not None and taken.maker == version.maker:
            return []  # it has its name; what is staged was only left behind
        run.append(version)
    run.reverse()
    return run if run and run[0].version in there else []


# ---- numbers ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the number that the snapshot of one commit had in the lost catalog.

    Attributes:
        lines: the lines of versions that it is in.
        least: its number was at least this.
        exact: its number, where somebody wrote it down; None where nobody did.
        is_counted: whether it was one snapshot for certain; versions of a foreign writer may have been adopted in several, or not at all.
        is_placed: whether it is known to have come right after all before it and before all after it.
    """

    lines: frozenset[LineKey]
    least: int
    exact: int | None = None
    is_counted: bool = True
    is_placed: bool = False


def certain(evidence: Sequence[Evidence], known: int) -> int:
    """How many commits, from the first on, had the numbers that follow the known one, as far as anybody can tell.

    A commit has its number for certain if its place is forced by what it shares with others, and if nothing tells of a snapshot that
    nobody has found: where that one was is not known, so all since the last number that was written down are in question.

    Args:
        evidence: of all commits of one branch, in order.
        known: the newest snapshot that was known before.
    """
    sure, limit = 0, len(evidence)
    for access, found in enumerate(evidence):
        number = known + access + 1
        if found.least > number or (found.exact is not None and found.exact != number):
            return min(sure, limit)
        first = access
        while first > 0 and not _is_after(found, evidence[first - 1], known + first):
            first -= 1
        if first < access:  # it may have come before some of those; which of their numbers is whose is not known
            limit = min(limit, first)
        if found.exact == number:
            sure = access + 1
    uncounted = next((access for access in range(sure, len(evidence)) if not evidence[access].is_counted), len(evidence))
    return min(limit, uncounted)


def _is_after(found: Evidence, before: Evidence, number: int) -> bool:
    return found.is_placed or before.is_placed or found.least > number or bool(found.lines & before.lines)

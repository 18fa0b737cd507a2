"""What the snapshots of a lake need: which snapshots stay, and which versions of which tables these show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import takewhile

from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.snapshot_index import BranchHistory
from tiltyard.errors import InvalidInput

Key = tuple[str, str | None]
"""A table's directory, and the table's own branch."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Which snapshots may go.

    Attributes:
        older_than: those committed longer ago than this; None for any.
        keep_snapshots: how many of the newest of each branch stay in any case.
    """

    older_than: timedelta | None = None
    keep_snapshots: int | None = None

    def __post_init__(self) -> None:
        if self.older_than is not None and (not isinstance(self.older_than, timedelta) or self.older_than < timedelta(0)):
            raise InvalidInput("older_than must be a timedelta of zero or more, or None.", argument="older_than")
        number = self.keep_snapshots
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise InvalidInput("keep_snapshots must be at least 1, or None: the latest snapshot always stays.", argument="keep_snapshots")

    def floor(self, line: BranchHistory, now: datetime) -> int:
        """The oldest snapshot of a line of history that stays by age and number. Later ones stay with it."""
        there = [(line.begin, line.begun_at)] if line.begin and line.begun_at is not None else []
        there += [(step.id, step.at) for step in line.steps]
        going = there[:-1] if self.older_than is not None or self.keep_snapshots is not None else []
        if self.keep_snapshots is not None:
            going = there[: max(len(there) - self.keep_snapshots, 0)]
        if self.older_than is not None:
            limit = now - self.older_than
            going = list(takewhile(lambda entry: entry[1] < limit, going))
        return there[len(going)][0] if going else line.begin


@dataclass(slots=True)
class Need:
    """What is needed of one line of history of one table.

    Attributes:
        head: the table as a cut has it.
        lake_branch: a branch of the lake that shows it.
        keep: versions that some snapshot shows.
        tips: the version that each branch of the lake is at.
        floors: the version at the floor of each branch of the lake.
    """

    head: TableHead
    lake_branch: str
    keep: set[int] = field(default_factory=set)
    tips: dict[str, int] = field(default_factory=dict)
    floors: dict[str, int] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        return max(self.keep)

    @property
    def before(self) -> int:
        """Versions below this one may go, but for those in ``keep``: who is at work at the end of the line needs all since its floor."""
        if not self.tips:
            return self.newest
        top = max(self.tips.values())
        return min(self.floors.get(branch, 0) for branch, version in self.tips.items() if version == top)


@dataclass(slots=True)
class Needs:
    """All that is needed, and what is seen no more.

    Attributes:
        tables: by directory and branch.
        seen: tables of snapshots that go, by directory.
        named: for each branch of the lake the cuts below its floor that somebody named.
    """

    tables: dict[Key, Need] = field(default_factory=dict)
    seen: dict[str, TableHead] = field(default_factory=dict)
    named: dict[str, dict[int, Mapping[str, TableHead]]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, branch: str, heads: Iterable[TableHead]) -> None:
        for head in heads:
            key = (head.location, head.branch)
            need = self.tables.get(key)
            if need is None:
                need = self.tables[key] = Need(head, branch)
            elif head.version > need.newest:
                need.head, need.lake_branch = head, branch
            need.keep.add(head.version)

    @property
    def vanished(self) -> dict[str, TableHead]:
        """Tables that no snapshot shows any more."""
        needed = {location for location, _ in self.tables}
        return {location: head for location, head in self.seen.items() if location not in needed}


def needs_of(lines: Sequence[BranchHistory], floors: Mapping[str, int], refs: Mapping[str, set[int]]) -> Needs:
    """What the snapshots need that stay.

    Args:
        lines: all lines of history.
        floors: the oldest snapshot that stays on each of them.
        refs: snapshots that somebody named, by branch.
    """
    needs = Needs()
    for line in lines:
        floor, named = floors[line.branch], refs.get(line.branch, set())
        for number, heads in line.named.items():
            needs.seen.update((head.location, head) for head in heads.values())
            if number in named:
                needs.add(line.branch, heads.values())
                needs.named[line.branch][number] = heads
        for number, all_heads, changed in line.cuts():
            touched = [all_heads[table] for table in changed if table in all_heads]
            needs.seen.update((head.location, head) for head in touched)
            if number < floor and number in named:
                needs.add(line.branch, all_heads.values())
                needs.named[line.branch][number] = dict(all_heads)
            elif number == floor:
                needs.add(line.branch, all_heads.values())
                _note(needs, line.branch, all_heads, "floors")
            elif number > floor:
                needs.add(line.branch, touched)
        _note(needs, line.branch, all_heads, "tips")
    return needs


def _note(needs: Needs, branch: str, heads: Mapping[str, TableHead], where: str) -> None:
    for head in heads.values():
        getattr(needs.tables[head.location, head.branch], where)[branch] = head.version

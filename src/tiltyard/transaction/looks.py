"""How long a look at a table is good, on stores where each costs requests.

A look asks at once which version is the latest, whether the one we go on from is there, and what cleanups have recorded. A commit that is
done within ``look_seconds`` of one needs no other, neither before its create nor after it: a cleanup lets longer than that go by between
the moment it sees a version and the moment it sets its number free. So a number that was free when we looked, and is free when we take it,
was free all the time. See docs/design/020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from tiltyard.format.manifest_file import ManifestFile
from tiltyard.interfaces import Clock, ObjectStore
from tiltyard.transaction.verify import transaction_id

if TYPE_CHECKING:
    from tiltyard.transaction.head import Floor
    from tiltyard.transaction.recent import RecentVersions

LOOKS: Final = "tiltyard.looks"
"""A setting of a table. ``always`` has every commit look: for tables that others clean up by the second."""
ALWAYS: Final = "always"
LONGER: Final = 1.2
"""By this factor a cleanup waits longer than a look is good: no two clocks go alike."""


def look_seconds(store: ObjectStore) -> float:
    """For how long a look at a table in this store is good; 0 where looking costs nothing."""
    return float(getattr(store, "look_seconds", 0.0))


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a table.

    Attributes:
        head: the version that was the latest, or one that was put on it since, as we know by having made or read each.
        floor: what cleanups had recorded.
        clock, ticks, when: the time right before it, by both of the runtime's clocks.
    """

    head: ManifestFile
    floor: Floor
    clock: Clock
    ticks: float
    when: datetime

    @property
    def age(self) -> float:
        """Seconds since, by the clock that says more: one of the two stands still while a machine sleeps, the other may be set back."""
        return max(self.clock.monotonic() - self.ticks, (self.clock.now() - self.when).total_seconds())


class Looks:
    """The last look of one committer. Threads may share it: a new one takes the place of the old."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last: Look | None = None

    def at(self, head: ManifestFile) -> Look | None:
        """The last look, if a version is the one where it, and what came since, has led."""
        look = self._last
        if look is None or look.head is head:
            return look
        if look.head.manifest.version != head.manifest.version or transaction_id(look.head) != transaction_id(head):
            return None
        return look

    def along(self, recent: RecentVersions, head: ManifestFile) -> Look | None:
        """The last look, if versions are known that lead from what it saw to this one without a gap."""
        look = self._last
        if look is None:
            return None
        seen, now = look.head.manifest.version, head.manifest.version
        known = recent.since(seen, transaction_id(look.head), now, transaction_id(head))
        return None if known is None else replace(look, head=head)

    def keep(self, look: Look, head: ManifestFile) -> None:
        """Remembers a look, and the version that was put on what it saw."""
        self._last = replace(look, head=head)

    def is_good(self, look: Look, config: Mapping[str, str]) -> bool:
        return look.age <= self.seconds and config.get(LOOKS) != ALWAYS

"""Whether writers of other software are at work on a table, and which versions a cleanup leaves to them.

Such a writer looks for the latest version, builds on it and creates the next name. If it stalls in between and a cleanup removes the
version that took that name, the name is free again: the writer is told that it succeeded, and its rows are nowhere (Lance 3718). It does
not know the floor, so nobody can refuse it. But the version that took its name came after it had looked. So a cleanup that goes by numbers
alone leaves every version of the last hour where one of these writers was seen within that hour. Whoever asks by age has said how long a
writer may stall, and a grace of zero says that there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from tiltyard.format.manifest import Manifest
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT
from tiltyard.verbs.engine.access import WRITER
from tiltyard.verbs.table_history import moment

if TYPE_CHECKING:
    from tiltyard.verbs.cleanup.cleanup_plan import Policy

STALL: Final = timedelta(hours=1)
"""No writer takes longer from its look to its create; what a transaction of ours left is deleted after as long."""
LEFT_TO_FOREIGN: Final = "a foreign writer was here within the hour and may have stalled"


@dataclass(slots=True)
class ForeignWriters:
    """What a cleanup saw of them.

    Attributes:
        now: when it looked.
        stall: how long such a writer may take; zero where none is to be reckoned with.
    """

    now: datetime
    stall: timedelta
    _seen: bool = False
    _recent: set[int] = field(default_factory=set)

    @classmethod
    def for_policy(cls, policy: Policy, now: datetime) -> ForeignWriters:
        """Whoever goes by ages has said how long a writer may stall, and tables of a lake have no such writers."""
        by_number = policy.keep_versions is not None and policy.older_than is None and policy.before is None
        return cls(now, min(STALL, policy.grace) if by_number else timedelta(0))

    @property
    def needed(self) -> list[int]:
        """Versions whose numbers one of them may be about to take."""
        return sorted(self._recent) if self._seen else []

    def note_version(self, manifest: Manifest) -> None:
        """A version that is there. Clocks of writers differ; one that is ahead only keeps its versions for longer."""
        if self.now - moment(manifest.timestamp_ns) < self.stall:
            self._recent.add(manifest.version)
            self._seen |= manifest.writer is None or manifest.writer.library != WRITER.library

    def note_transaction(self, transaction: Transaction, modified: datetime | None) -> None:
        """One that made no version yet. Ours name the version that they stand on."""
        if PARENT not in transaction.properties and (modified is None or self.now - modified < self.stall):
            self._seen = True

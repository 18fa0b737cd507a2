"""Records of a cleanup: what it gave up and what it has yet to delete, written before the first deletion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from tiltyard.transaction.head import Floor, FloorRecord, Moments, read_records
from tiltyard.verbs.engine.access import TableAccess

DRAIN: Final = timedelta(hours=1)
"""How long a commit may take from its last look at the floor to its create, before files it names are deleted."""

MOST_REMOVED: Final = 10_000
"""Of so many removed versions a record remembers who made them."""


@dataclass(frozen=True, slots=True)
class CleanupRecords:
    """All records of a table, as one."""

    by_path: Mapping[str, FloorRecord]

    @classmethod
    def of(cls, access: TableAccess, head: int) -> CleanupRecords:
        """Those that can be this table's: of a table that was here before, the floor may be above our head."""
        return cls({path: record for path, record in read_records(access.store).items() if record.floor.version <= head})

    @property
    def floor(self) -> int:
        return max((record.floor.version for record in self.by_path.values()), default=0)

    @property
    def refused(self) -> int:
        return max((record.floor.refused for record in self.by_path.values()), default=0)

    @property
    def files(self) -> tuple[str, ...]:
        """What was to be deleted and perhaps was not."""
        return tuple(dict.fromkeys(path for record in self.by_path.values() for path in record.files))

    @property
    def committed(self) -> set[str]:
        """Transactions whose versions are gone: they were committed all the same."""
        return {uuid for record in self.by_path.values() for uuids in record.removed.values() for uuid in uuids.split()}

    def refused_for_long(self, now: datetime, drain: timedelta) -> int:
        """Transactions that read a version below this one cannot be about to be committed."""
        return _since(self._refusals(), now - drain)

    def _versions(self) -> Moments:
        return tuple(sorted({version for record in self.by_path.values() for version in record.versions}))

    def _refusals(self) -> Moments:
        return tuple(sorted({refusal for record in self.by_path.values() for refusal in record.refusals}))

    def merged(self, floor: int, owners: Mapping[int, str], files: Iterable[str], now: datetime, drain: timedelta) -> FloorRecord:
        """One record that says all these do, and what is new."""
        versions = self._versions()
        if floor > self.floor:
            versions = (*versions, (floor, now))
        refused = max(self.refused, _since(versions, now - drain))
        refusals = self._refusals()
        if refused > self.refused:
            refusals = (*refusals, (refused, now))
        removed = dict(owners)
        for record in self.by_path.values():
            removed.update(record.removed)  # the first to have a number was in time; whoever took it later was not
        newest = dict(sorted(removed.items())[-MOST_REMOVED:])
        return FloorRecord(
            Floor(max(floor, self.floor), refused),
            newest,
            _pruned(versions, now - drain),
            _pruned(refusals, now - drain),
            tuple(dict.fromkeys((*self.files, *files))),
        )

    def says(self, record: FloorRecord) -> bool:
        """Whether a record that is there says all this already, and nothing is left to do."""
        known = list(self.by_path.values())
        if not known:
            return record == FloorRecord(Floor())
        return len(known) == 1 and known[0] == record and not record.files


def _since(moments: Moments, when: datetime) -> int:
    return max((number for number, since in moments if since <= when), default=0)


def _pruned(moments: Moments, when: datetime) -> Moments:
    """Those that can still matter: of all that have held for long enough the highest, and all others."""
    settled = max(((number, since) for number, since in moments if since <= when), default=None)
    return tuple(sorted({moment for moment in moments if moment[1] > when} | ({settled} if settled else set())))


class Journal:
    """The record of one cleanup, from before its first deletion to after its last."""

    def __init__(self, access: TableAccess, record: FloorRecord, merged: CleanupRecords) -> None:
        self._access = access
        self._record = record
        self._merged = merged
        self._path = record.path(access.runtime.random.uuid())

    def begin(self) -> None:
        """After this, nobody who looks commits what we count on not to be committed."""
        self._access.store.put(self._path, self._record.to_bytes())

    def end(self, held: Collection[str]) -> None:
        """All is deleted but what is held: the record says so, and those before it are no longer needed."""
        left = tuple(path for path in self._record.files if path in held)
        self._access.store.put(self._path, replace(self._record, files=left).to_bytes())
        for path, record in self._merged.by_path.items():
            if record.floor.version <= self._record.floor.version and record.floor.refused <= self._record.floor.refused:
                self._access.store.delete(path)

"""The lake at one snapshot, read table by table: what a transaction does not ask for, it does not read.

Beginning costs one look at the tip, together with the tables that this process used last. A table that is asked for later is read then. If
others have committed since, the snapshots in between say what the table was like at the base: each keeps the heads that it replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import Cut, TableHead
from tiltyard.catalog.line_identity import line_in
from tiltyard.catalog.publishing import names_of
from tiltyard.catalog.records import Body, Found
from tiltyard.catalog.value_codec import BEFORE, BUCKET, bucket_prefix, head_from_body, name_key, table_key, tip_key
from tiltyard.errors import HistoryUnavailable, NotFound, StorageError

_READ_WITH_TIP: Final = 8
"""Tables that are read with the tip, since the last transactions used them."""
_REMEMBERED: Final = 1024
"""Tables whose ids are remembered, so that one that is asked for by name is read in one look."""
_LOOKS: Final = 8
"""How often a name is looked up again because it was given to another table meanwhile."""
_FEW_BUCKETS: Final = 4
"""With more than so many buckets of snapshots since the base it is quicker to read all of its tables."""


class UsedTables:
    """The tables that a process used last, by branch and name. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, dict[str, str]] = {}

    def note(self, branch: str, name: str, table: str) -> None:
        with self._lock:
            ids = self._ids.setdefault(branch, {})
            ids.pop(name, None)
            ids[name] = table
            if len(ids) > _REMEMBERED:
                del ids[next(iter(ids))]

    def of(self, branch: str, names: Collection[str] = ()) -> dict[str, str]:
        """Ids by full name: of these names, or else of the tables that were used last."""
        with self._lock:
            ids = self._ids.get(branch, {})
            chosen = names or [*islice(reversed(ids), _READ_WITH_TIP)]
            return {name: ids[name] for name in chosen if name in ids}


class BaseView:
    """All tables of a branch right after the snapshot that was the latest when this was made.

    Attributes:
        branch, line: the branch of the lake, and which line of that name.
        snapshot: the base.
        names: the snapshot that last created, dropped, renamed or registered a table.

    Args:
        names: full names that will be asked for; those that no table has are known without another look.
    """

    def __init__(self, catalog: Catalog, branch: str, used: UsedTables, names: Iterable[str] = ()) -> None:
        self._catalog, self._used = catalog, used
        self._lock = threading.RLock()
        asked = {name: name_key(branch, name) for name in names}
        # Who says which tables it will ask for does not pay for those that others of the process use: a server has many.
        recent = used.of(branch, asked)
        known = [(name, table, name_key(branch, name), table_key(branch, table)) for name, table in recent.items()]
        keys = [tip_key(branch), *asked.values(), *(key for *_, of_name, of_table in known for key in (of_name, of_table))]
        found = catalog.records.get([*dict.fromkeys(keys)])
        self.branch = branch
        tip = self._tip(found)
        self.snapshot, self.names = int(tip["snapshot"]), names_of(tip)
        self.line = line_in(tip, catalog.records, branch)
        self._heads: dict[str, TableHead | None] = {}
        self._cut: Cut | None = None
        self._replaced: dict[str, TableHead | None] = {}
        self._followed = self.snapshot
        self._heads.update({name: None for name, key in asked.items() if key not in found})
        for name, table, of_name, of_table in known:
            if found.get(of_name, {}).get("table") == table and of_table in found:
                self._heads[name] = head_from_body(found[of_table])

    def find(self, name: str) -> TableHead | None:
        """The table of that full name; None where the base has none.

        Raises:
            HistoryUnavailable: a cleanup took away what says so, or the branch is another line by now.
        """
        with self._lock:
            if name not in self._heads:
                self._heads[name] = self.cut().tables.get(name) if self._cut is not None else self._read(name)
            head = self._heads[name]
        if head is not None:
            self._used.note(self.branch, name, head.id)
        return head

    def cut(self) -> Cut:
        """All tables."""
        with self._lock:
            if self._cut is None:
                now = self._catalog.cut(self.branch)
                self._cut = now if (now.snapshot, now.line) == (self.snapshot, self.line) else self._at_base()
            return self._cut

    def _at_base(self) -> Cut:
        try:
            cut = self._catalog.cut_at(self.snapshot, self.branch)
        except NotFound:
            raise self._gone() from None
        if cut.line != self.line:
            raise self._gone()
        return Cut(cut.branch, cut.snapshot, cut.tables, cut.unfinished, cut.line, self.names)

    def _gone(self) -> HistoryUnavailable:
        return HistoryUnavailable(
            f"Snapshot {self.snapshot} of branch {self.branch!r} was cleaned up, or the branch was replaced, after the transaction began.",
            read_version=self.snapshot,
            advice="Begin a new transaction, or use lake.run(fn), which does.",
        )

    # ---- one table -------------------------------------------------------------------------------------------------------------

    def _read(self, name: str) -> TableHead | None:
        """Looks a table up as it is now, and goes back to the base from there."""
        records, key, tip = self._catalog.records, name_key(self.branch, name), tip_key(self.branch)
        found = records.get([tip, key])
        for _ in range(_LOOKS):
            table = found.get(key, {}).get("table")
            if table is None:
                return self._as_of_base(name, None, found)
            found = records.get([tip, key, table_key(self.branch, table)])
            if found.get(key, {}).get("table") == table and table_key(self.branch, table) in found:
                return self._as_of_base(name, head_from_body(found[table_key(self.branch, table)]), found)
        raise StorageError(f"{name} is being renamed repeatedly and could not be looked up.", name=name, transient=True)

    def _as_of_base(self, name: str, head: TableHead | None, found: Found) -> TableHead | None:
        tip = self._tip(found)
        if tip.get("line") and str(tip["line"]) != self.line:
            raise self._gone()
        now = int(tip["snapshot"])
        unchanged = head is None or 0 < head.changed <= self.snapshot
        if now == self.snapshot or (unchanged and names_of(tip) <= self.snapshot):
            return head
        if not self._follow(now):
            return self.cut().tables.get(name)
        for before in self._replaced.values():
            if before is not None and before.name == name:
                return before
        return None if head is None or head.id in self._replaced else head

    def _follow(self, now: int) -> bool:
        """Learns what the snapshots since the base replaced; False where they do not say."""
        first, last = (self._followed + 1) // BUCKET, now // BUCKET
        if self._followed < now and last - first < _FEW_BUCKETS:
            found = self._catalog.records.scan([bucket_prefix(self.branch, number) for number in range(first, last + 1)])
            since = [body for _, body in found if self._followed < int(body["id"]) <= now]
            if [int(body["id"]) for body in since] == list(range(self._followed + 1, now + 1)) and self._note_replaced(since):
                self._followed = now
        return self._followed == now

    def _note_replaced(self, bodies: Iterable[Body]) -> bool:
        replaced = dict(self._replaced)
        for body in bodies:
            before: Mapping[str, Body] | None = body.get(BEFORE)
            if before is None or (body.get("line") and str(body["line"]) != self.line):
                return False
            for change in body["changes"]:
                table = str(change["table"])
                replaced.setdefault(table, head_from_body(before[table]) if table in before else None)
        self._replaced = replaced
        return True

    def _tip(self, found: Found) -> Body:
        tip = found.get(tip_key(self.branch))
        if tip is None:
            raise NotFound(f"There is no branch {self.branch!r} in the lake at {self._catalog.records.url}.", name=self.branch)
        return tip

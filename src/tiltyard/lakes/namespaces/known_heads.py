"""Tables that stock clients published versions of lately, so that the next version is decided without a look at the catalog beforehand.

What is remembered decides nothing and may be as old as it likes: the decision looks at the table again, while it is locked, and compares
its name as well (``LakeLedger.known_as``). Only which table a name stood for, and where its files are, is taken from here; where they are
never changes for a table's id, nor does whether it is sharded. Whatever does not fit is looked up anew.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tiltyard.catalog.lake_values import TableHead

_REMEMBERED: Final = 1024


class KnownHeads:
    """The heads that the last publications left behind, by full name. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heads: dict[str, TableHead] = {}

    def before(self, name: str, version: int) -> TableHead | None:
        """The table of a full name, if a version is the next one of it as far as is known here."""
        head = self._heads.get(name)
        return head if head is not None and head.version + 1 == version else None

    def note(self, name: str, head: TableHead) -> None:
        with self._lock:
            if len(self._heads) >= _REMEMBERED and name not in self._heads:
                self._heads.clear()
            self._heads[name] = head

    def forget(self, name: str) -> None:
        with self._lock:
            self._heads.pop(name, None)

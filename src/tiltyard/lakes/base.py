"""What a lake's transactions and upkeep need of it."""

from __future__ import annotations

from typing import Protocol

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import TableHead
from tiltyard.verbs.engine.access import TableAccess


class LakeBase(Protocol):
    """A lake, from within."""

    url: str
    author: str

    @property
    def catalog(self) -> Catalog: ...

    def access_of(
        self, head: TableHead, branch: str, origin: TableHead | None = None, base: int = 0, transaction: str = "", says: str = ""
    ) -> TableAccess:
        """Where a table lives, with its versions decided in the catalog."""

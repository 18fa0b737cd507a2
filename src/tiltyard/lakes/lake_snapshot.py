"""A snapshot of a lake, to be read: all tables at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.catalog.base_view import BaseView
from tiltyard.catalog.lake_values import Cut
from tiltyard.format.names import Scheme
from tiltyard.lakes.finishing import load_head
from tiltyard.lakes.lake_tables import LakeReader
from tiltyard.lakes.sharded.sharded_reader import reader_of
from tiltyard.lakes.table_names import refuse_shard, shown, without_shards

if TYPE_CHECKING:
    from tiltyard.lake import Lake


class LakeSnapshot:
    """All tables at one point in time, consistent with each other however long it is in use.

    Attributes:
        id: the snapshot's number; 0 before the first.
        branch: the line of history it is on.
    """

    def __init__(self, lake: Lake, base: Cut | BaseView) -> None:
        self._lake = lake
        self._base = base
        self.id = base.snapshot
        self.branch = base.branch

    def __repr__(self) -> str:
        return f"LakeSnapshot({self.id}, tables={len(self.cut.tables)})"

    def tables(self) -> list[str]:
        """The names of all tables."""
        tables = self.cut.tables
        return sorted(map(shown, without_shards(tables, [*tables])))

    def versions(self) -> dict[str, int]:
        """The version of each table, those of shards included."""
        return {shown(name): head.version for name, head in sorted(self.cut.tables.items())}

    @property
    def cut(self) -> Cut:
        """The tables with their versions, as the catalog has them."""
        return self._base.cut()

    def table(self, name: str) -> LakeReader:
        """A table as it was then; it only reads. A sharded one is a ``ShardedReader``.

        Raises:
            NotFound: there was none of that name.
        """
        return reader_of(self, self._physical(refuse_shard(name, lambda full: self._base.find(full) is not None)))

    def _physical(self, full: str) -> LakeReader:
        """A table by its full name in the catalog, be it a shard or the anchor of some."""
        head = self._lake._head(self._base, shown(full))
        access = self._lake.access_of(head, self.branch)
        opened = LakeReader(access, load_head(access, head)[0], Scheme(head.naming))
        opened.name = shown(head.name)
        return opened

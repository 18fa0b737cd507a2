"""What is known of one version's columns, for whoever has nothing but its address: Spark's driver plans scans by it.

The address was found by somebody who may read the table. Nothing here fails: where a version cannot be found as it was addressed, or is
too short to be worth it, nothing is known of it, and all of it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tiltyard.errors import NotFound, TiltyardError
from tiltyard.format.manifest import Manifest
from tiltyard.format.names import Scheme
from tiltyard.format.values import Field
from tiltyard.options import Storage
from tiltyard.verbs.engine.access import ANYWHERE, TableAccess, open_access
from tiltyard.verbs.statistics import fragment_pruning
from tiltyard.verbs.statistics.analyze import ColumnSummary, summary
from tiltyard.verbs.statistics.bounded_conditions import columns_of, understood
from tiltyard.verbs.statistics.fragment_pruning import may_hold
from tiltyard.verbs.statistics.lookup import FragmentStatistics, countable, fragment_statistics


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """Statistics of the columns of a version.

    Attributes:
        fragments: what is known of each.
        names: of all top-level columns.
        fields: those that statistics are kept of, by name.
    """

    fragments: tuple[FragmentStatistics, ...] = ()
    names: tuple[str, ...] = ()
    fields: Mapping[str, Field] | None = None

    def without_match(self, condition: str | None) -> frozenset[int]:
        """Ids of the fragments that a SQL condition certainly holds for no row of."""
        if condition is None or len(self.fragments) < 2:
            return frozenset()
        known = understood(condition, self.names)
        if not columns_of(known):
            return frozenset()
        return frozenset(fragment.id for fragment in self.fragments if not may_hold(known, fragment))

    def columns(self) -> dict[str, ColumnSummary]:
        """The statistics of all fragments together, by column."""
        return {name: summary(self.fragments, name, field) for name, field in (self.fields or {}).items()} if self.fragments else {}

    def bounds(self, name: str) -> tuple[Any, Any] | None:
        """The least and the greatest value of a column; None where they are not known of every fragment."""
        field = (self.fields or {}).get(name)
        found = summary(self.fragments, name, field) if self.fragments and field is not None else None
        return None if found is None or found.least is None or found.greatest is None else (found.least, found.greatest)


NOTHING: Final = VersionStatistics()


def version_statistics(uri: str, version: int, storage_options: Mapping[str, Any] | None = None, version_id: str = "") -> VersionStatistics:
    """What is known of a version.

    Args:
        uri: where the table is.
        version: its number.
        storage_options: as for pylance.
        version_id: which version of this number it is, if that is known.
    """
    try:
        access = open_access(uri, Storage(storage_options, allowed_bases=(ANYWHERE,)))
        manifest = _manifest(access, version)
        if version_id and f"{manifest.transaction_file}@{manifest.timestamp_ns}" != version_id:
            return NOTHING
        if manifest.fragments.live_rows() < fragment_pruning.FROM_ROWS:
            return NOTHING
        fields = {field.name: field for field in countable(manifest.fields).values()}
        names = tuple(field.name for field in manifest.fields if field.parent_id < 0)
        return VersionStatistics(tuple(fragment_statistics(access, manifest)), names, fields)
    except TiltyardError:
        return NOTHING  # whoever reads the rows meets the same, and says what it is


def _manifest(access: TableAccess, version: int) -> Manifest:
    try:
        return access.log.load(version, Scheme.V2).manifest
    except NotFound:
        return access.log.load(version, Scheme.V1).manifest

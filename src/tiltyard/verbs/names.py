"""Moving a table from V1 to V2 manifest names."""

from __future__ import annotations

from tiltyard.errors import AlreadyExists, CorruptTable
from tiltyard.format.names import migration_plan
from tiltyard.transaction.log import VERSIONS
from tiltyard.verbs.place import Place


def migrate_names(place: Place) -> int:
    """Carries out the plan; can be run again after it was interrupted.

    Raises:
        CorruptTable: both names exist and hold different bytes; nothing is deleted then.
    """
    plan = migration_plan(place.store.names(VERSIONS))
    for old, new in plan:
        try:
            place.store.rename_if_absent(VERSIONS + old, VERSIONS + new)
        except AlreadyExists as error:
            if place.store.get(VERSIONS + old) != place.store.get(VERSIONS + new):
                raise CorruptTable(VERSIONS + new, f"it differs from {old}, which names the same version") from error
            place.store.delete(VERSIONS + old)
    return len(plan)

"""Bringing to its end what somebody committed and could not finish. Any number of processes may do so at once."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import replace
from typing import cast

from tiltyard.catalog.catalog import Pending
from tiltyard.catalog.values import TableHead
from tiltyard.errors import ContentionError, CorruptTable, NotFound, StorageError
from tiltyard.lakes.base import LakeBase
from tiltyard.lakes.finishing import finish
from tiltyard.storage.external import ExternalStore

_log = logging.getLogger("tiltyard.lake")


def is_certain(lake: LakeBase, transaction: str) -> bool:
    """Whether a transaction the catalog has as committed stays so; False where it was given up to a writer that does not know the catalog.

    Raises:
        StorageError: nobody can say before the store answers.
    """
    if _waits(lake, transaction):
        recover(lake)
        if _waits(lake, transaction):
            raise StorageError(f"Transaction {transaction} is in the catalog, but the store does not let it be finished.", transient=True)
    return lake.catalog.transaction(transaction) is not None


def _waits(lake: LakeBase, transaction: str) -> bool:
    return any(one.transaction == transaction and one.alone for one in lake.catalog.pending())


def recover(lake: LakeBase) -> int:
    """Gives all committed versions their final names; how many there were. A table that cannot be finished keeps nobody from the others."""
    by_table: dict[tuple[str, str, str, str | None], list[Pending]] = defaultdict(list)
    for one in lake.catalog.pending():
        by_table[one.lake_branch, one.line, one.table, one.branch].append(one)
    done = 0
    for (branch, _, table, _), versions in by_table.items():
        try:
            head = _head_of(lake, versions[0])
            if head is None:
                continue  # dropped before it was finished; cleanup takes all of it
            store = cast(ExternalStore, lake.place_of(head, branch).store)
            finish(lake.catalog, [(versions, store)], alone=versions[0].alone)
            done += len(versions)
        except (ContentionError, CorruptTable, NotFound, StorageError) as error:
            _log.warning("version %s of table %s is not finished: %s", versions[0].version, table, error)
    return done


def _head_of(lake: LakeBase, pending: Pending) -> TableHead | None:
    """Where a version waits. The branch of the lake may be another line by now, whose table of that id is on another branch of its own."""
    if pending.location:
        return TableHead(pending.table, pending.table, pending.location, pending.version, 0, branch=pending.branch, owner=pending.line)
    head = lake.catalog.cut(pending.lake_branch).by_id(pending.table)
    return None if head is None else replace(head, branch=pending.branch)

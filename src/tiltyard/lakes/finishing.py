"""Giving committed versions their final names, by whoever committed them or comes along later."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from tiltyard.catalog.catalog import Catalog, Pending
from tiltyard.catalog.ledger import LakeLedger, foreign_maker
from tiltyard.catalog.values import Cut, TableHead
from tiltyard.errors import ContentionError, CorruptTable, StorageError
from tiltyard.storage.external import Claim, ExternalStore, discard, finalize
from tiltyard.verbs.place import Place

_log = logging.getLogger("tiltyard.lake")


def finish(catalog: Catalog, work: Sequence[tuple[Sequence[Pending], ExternalStore]], *, alone: bool = False) -> list[Pending]:
    """Finishes versions of several tables, with one word to the catalog for all of them.

    Args:
        catalog: of the lake.
        work: versions of a table, and its store.
        alone: whether there is nothing else in the snapshot, so that it can be given up if somebody took the number.

    Returns:
        Versions that had to be given up to a writer that does not know the catalog.

    Raises:
        CorruptTable: such a writer has the number of a version that was committed together with others; writing there is stopped.
        StorageError: the store failed; whoever reads next goes on.
    """
    done: list[tuple[Pending, ExternalStore]] = []
    voided: list[Pending] = []
    apart: list[tuple[Pending, ExternalStore]] = []
    for versions, store in work:
        for one in versions:
            foreign = _finalize(catalog, one, store)
            if foreign is False:
                done.append((one, store))
            elif foreign and alone:
                catalog.void(one, foreign_maker(store, one.version, one.path))
                voided.append(one)
            elif foreign:
                apart.append((one, store))
            elif alone and catalog.transaction(one.transaction) is None:
                voided.append(one)  # somebody else saw that the number was taken, and gave it up
    if _settled(catalog, [one for one, _ in done]):
        for one, store in done:
            discard(store.inner, claim_of(one))
    errors = [_set_apart(one, store) for one, store in apart]
    if errors:
        raise errors[0]
    return voided


def _settled(catalog: Catalog, done: Sequence[Pending]) -> bool:
    """Tells the catalog which versions have their names, which is no part of the commit: if it fails, the next one who looks does it."""
    try:
        catalog.settle(done)
    except (StorageError, ContentionError) as error:
        _log.info("%s versions have their names, which the catalog does not know yet: %s", len(done), error)
        return False
    return True


def _finalize(catalog: Catalog, one: Pending, store: ExternalStore) -> bool | None:
    try:
        return finalize(store.inner, claim_of(one), store.is_conditional())
    except CorruptTable:
        if one.key in catalog.records.get([one.key]):
            raise
        return None  # finished by somebody else, and cleaned up since


def _set_apart(one: Pending, store: ExternalStore) -> CorruptTable:
    ledger = store.ledger
    assert isinstance(ledger, LakeLedger)
    return ledger.set_apart(one)


def finish_before(cut: Cut, head: TableHead, place: Place) -> None:
    """Sees that a version which a cut names has its name before anybody reads it.

    Raises:
        CorruptTable: somebody else has the name.
    """
    if cut.is_unfinished(head):
        cast(ExternalStore, place.store).finish()


def claim_of(pending: Pending) -> Claim:
    return Claim(pending.version, pending.path, pending.staged)

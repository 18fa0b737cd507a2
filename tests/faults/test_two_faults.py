"""Two faults in one commit, every pair at every two calls: the second one hits whatever was done about the first."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, append, is_version, last_id, memory_place, memory_table, plant, reopened
from tests.support.proving import sample
from tiltyard.errors import HistoryUnavailable, OutcomeUnknown, TiltyardError
from tiltyard.format.names import Scheme
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.testing import Fault, FaultStore, Killed, all_faults
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.transaction import Transaction

MOST_CALLS = 40
SILENT = (Fault.STALE_READ,)
"""A commit reads nothing that it replaced, so this one has nothing to hit."""

SECOND = 3
"""Of the faults, in the short form, each after every first one."""

FAULTS = [fault for fault in all_faults() if fault not in SILENT]


def _world(*, racing: bool) -> tuple[MemoryStore, ty.Table, ObjectStore]:
    store = MemoryStore()
    table = memory_table(store)
    seen: ObjectStore = store
    if racing:
        seen = InterruptedStore(store, is_version, lambda: plant(store, append("theirs")))
    return store, table, seen


@pytest.mark.parametrize("racing", [False, True], ids=["alone", "racing"])
@pytest.mark.parametrize("first", FAULTS, ids=lambda fault: fault.value)
def test_every_pair(first: Fault, racing: bool) -> None:
    runs = 0
    chosen = sample(FAULTS, SECOND)
    for second in chosen:
        for at in range(1, MOST_CALLS):
            fired = False
            for then in range(1, MOST_CALLS):
                store, table, seen = _world(racing=racing)
                inner = FaultStore(seen, first, at, times=2)
                outer = FaultStore(inner, second, then, times=2)
                _judge(store, ty.Table(memory_place(outer), table._file, Scheme.V2), {first, second})
                runs += 1
                fired |= inner.fired
                if not outer.fired:
                    break
            if not fired:
                break
    assert runs > 10 * len(chosen)


def _judge(store: MemoryStore, table: ty.Table, faults: set[Fault]) -> None:
    result, error = None, None
    try:
        result = table.commit(append())
    except (TiltyardError, Killed) as caught:
        error = caught
    if error is not None and Fault.TORN_WRITE in faults and _is_torn(store):
        # Nobody but its writer could mend this, and its writer was stopped: it must say so, or be dead.
        assert isinstance(error, OutcomeUnknown | Killed)
        with pytest.raises((HistoryUnavailable, ty.errors.CorruptTable)):
            reopened(store).commit(append("next"))
        return
    id = last_id(table)
    log = VersionLog(store)
    made = []
    for number, name in enumerate(log.versions(), 1):
        assert name.version == number
        committed = log.committed(name.version, name.scheme)
        announced = Transaction.from_bytes(store.get("_transactions/" + committed.manifest.transaction_file))
        assert replace(announced, properties={}) == replace(committed.transaction, properties={})
        if committed.transaction.uuid == id:
            made.append(name.version)
    if result is not None:
        assert made == [result.version]
    elif isinstance(error, OutcomeUnknown):
        assert len(made) <= 1
        assert any(id in name for name in store.names("_transactions/"))
        answer = reopened(store).transactions.outcome(id, version=error.version)
        assert isinstance(answer, ty.outcomes.Committed if made else ty.outcomes.Unknown | ty.outcomes.NotCommitted)
    elif isinstance(error, TiltyardError):
        assert made == []
    assert reopened(store).commit(append("next")).version == len(log.versions())


def _is_torn(store: MemoryStore) -> bool:
    log = VersionLog(store)
    found = log.head()
    assert found is not None
    try:
        log.committed(*found)
    except ty.errors.CorruptTable:
        return True
    return False

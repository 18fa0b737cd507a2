"""Judges small histories by trying every order. Slow, and simple enough to be believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations

from tiltyard_proofs.histories import Append, Element, History, Read, Transaction

Lists = dict[str, tuple[Element, ...]]


def serial_order_exists(history: History, *, realtime: bool = False) -> bool:
    return any(_serial(order, history, realtime) for order in _orders(history))


def snapshots_exist(history: History, *, realtime: bool = False) -> bool:
    """Whether there is an order of commits and, for each transaction, a state before its commit that it read, with nobody committing to
    a key it appends to in between."""
    return any(_snapshots(order, history, realtime) for order in _orders(history))


def _orders(history: History) -> Iterator[tuple[Transaction, ...]]:
    """All orders of those that committed and of any of those that may have; the final read is not among them."""
    sure = [each for each in history.transactions if each.outcome == "ok" and not each.final]
    perhaps = [each for each in history.transactions if each.outcome == "unknown"]
    for count in range(len(perhaps) + 1):
        for some in combinations(perhaps, count):
            yield from permutations([*sure, *some])


def _states(order: Iterable[Transaction]) -> list[Lists]:
    states: list[Lists] = [{}]
    for each in order:
        state = dict(states[-1])
        for op in each.ops:
            if isinstance(op, Append):
                state[op.key] = (*state.get(op.key, ()), op.element)
        states.append(state)
    return states


def _fits(each: Transaction, state: Lists) -> bool:
    own = dict(state)
    for op in each.ops:
        if isinstance(op, Append):
            own[op.key] = (*own.get(op.key, ()), op.element)
        elif isinstance(op, Read) and op.elements is not None and op.elements != own.get(op.key, ()):
            return False
    return True


def _finals_fit(history: History, state: Lists) -> bool:
    return all(_fits(each, state) for each in history.transactions if each.final)


def _ended_before(one: Transaction, other: Transaction) -> bool:
    return one.outcome == "ok" and one.ended is not None and one.ended < other.began


def _serial(order: Sequence[Transaction], history: History, realtime: bool) -> bool:
    if realtime and any(_ended_before(later, earlier) for earlier, later in combinations(order, 2)):
        return False
    states = _states(order)
    return _finals_fit(history, states[-1]) and all(_fits(each, states[place]) for place, each in enumerate(order))


def _snapshots(order: Sequence[Transaction], history: History, realtime: bool) -> bool:
    states = _states(order)
    return _finals_fit(history, states[-1]) and all(_snapshot(order, states, place, realtime) for place in range(len(order)))


def _snapshot(order: Sequence[Transaction], states: list[Lists], place: int, realtime: bool) -> bool:
    each = order[place]
    if realtime and any(_ended_before(later, each) for later in order[place + 1 :]):
        return False
    keys = _appended_keys(each)
    for start in range(place, -1, -1):
        if _fits(each, states[start]):
            return True
        if start and (keys & _appended_keys(order[start - 1]) or (realtime and _ended_before(order[start - 1], each))):
            return False
    return False


def _appended_keys(each: Transaction) -> set[str]:
    return {op.key for op in each.ops if isinstance(op, Append)}

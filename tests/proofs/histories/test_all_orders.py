"""On small histories the checker says what trying every order says, for both isolations, with and without the order in time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proofs.histories.all_orders import serial_order_exists, snapshots_exist
from tests.proofs.histories.executors import Rule, execute
from tiltyard_proofs.histories import AnyOp, Append, Element, Elements, History, Op, Outcome, Read, Transaction, check

KEYS = ("x", "y")


def guessed(chance: random.Random) -> History:
    """Transactions that read whatever prefixes of some order of the appends, so that about any anomaly can come out."""
    bare = [_bare(chance, number, plain=chance.random() < 0.6) for number in range(chance.choice((1, 2, 3, 4, 5, 5)))]
    lists = {key: _list(chance, key, bare) for key in KEYS}
    seen = {}
    if chance.random() < 0.5:  # few states, so that many reads agree
        seen = {key: [chance.randint(0, len(lists[key])) for _ in range(2)] for key in KEYS}
    answered = [replace(each, ops=_answered(chance, each.ops, lists, seen)) for each in bare]
    ops = tuple(Read(key, lists[key]) for key in KEYS)
    return History((*answered, Transaction("final", 0, 1_000, 1_001, ops, "ok", final=True)))


def _bare(chance: random.Random, number: int, plain: bool) -> Transaction:
    ops: list[Op] = []
    one, other = chance.sample(KEYS, 2)
    if plain:  # the shapes that skews are made of, which chance alone seldom hits
        shapes: list[list[Op]] = [[Append(one, number * 10)], [Read(one), Read(other)], [Read(one), Append(other, number * 10)]]
        ops = chance.choice(shapes)
    for place in range(0 if plain else chance.randint(1, 4)):
        key = chance.choice(KEYS)
        ops.append(Append(key, number * 10 + place) if chance.random() < 0.5 else Read(key))
    began = chance.randrange(100)
    outcome: Outcome = chance.choices(("ok", "unknown", "failed"), (12, 3, 1))[0]
    ended = None if outcome == "unknown" else began + chance.randrange(60)
    return Transaction(f"p{number}", 0, began, ended, tuple(ops), outcome)


def _list(chance: random.Random, key: str, transactions: list[Transaction]) -> Elements:
    """What the key ends as: mostly all that was acknowledged and some of what is unknown, mostly with transactions kept whole."""
    blocks: list[list[Element]] = []
    for each in transactions:
        block: list[Element] = [op.element for op in each.ops if isinstance(op, Append) and op.key == key]
        likely = {"ok": 0.97, "unknown": 0.5, "failed": 0.03}[each.outcome]
        if block and chance.random() < likely:
            blocks.append(block)
    chance.shuffle(blocks)
    elements = [element for block in blocks for element in block]
    if len(elements) > 1 and chance.random() < 0.08:
        chance.shuffle(elements)
    if elements and chance.random() < 0.03:
        elements.append(chance.choice([elements[0], 999]))
    return tuple(elements)


def _answered(chance: random.Random, ops: tuple[AnyOp, ...], lists: dict[str, Elements], seen: dict[str, list[int]]) -> tuple[Op, ...]:
    own: dict[str, list[Element]] = {key: [] for key in KEYS}
    all_own = {(op.key, op.element) for op in ops if isinstance(op, Append)}
    bases: dict[str, Elements] = {}
    result: list[Op] = []
    for op in ops:
        if isinstance(op, Append):
            own[op.key].append(op.element)
            result.append(op)
            continue
        assert isinstance(op, Read)
        whole = lists[op.key]
        if op.key not in bases or chance.random() < 0.03:
            first_own = next((place for place, element in enumerate(whole) if (op.key, element) in all_own), None)
            length = chance.choice(seen[op.key]) if op.key in seen else chance.randint(0, len(whole))
            if first_own is not None and chance.random() < 0.8:
                length = first_own if chance.random() < 0.7 else min(length, first_own)
            bases[op.key] = whole[:length]
        elements: tuple[Element, ...] = (*bases[op.key], *own[op.key])
        if len(elements) > 1 and chance.random() < 0.02:
            elements = (elements[1], elements[0], *elements[2:])
        result.append(Read(op.key, None if chance.random() < 0.03 else elements))
    return tuple(result)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.booleans())
def test_agrees_with_trying_every_order(seed: int, realtime: bool) -> None:
    _compare(guessed(random.Random(seed)), realtime)


def test_agrees_on_many_and_both_answers_are_common() -> None:
    verdicts: Counter[tuple[bool, bool]] = Counter()
    for seed in range(2_500):
        for realtime in (False, True):
            verdicts[_compare(guessed(random.Random(f"guess {seed}")), realtime)] += 1
    assert verdicts[False, True] == 0  # a serial order is made of snapshots
    assert min(verdicts[True, True], verdicts[True, False], verdicts[False, False]) > 20, verdicts


def _compare(history: History, realtime: bool) -> tuple[bool, bool]:
    """Whether snapshot isolation and whether a serial order explain it."""
    verdicts = []
    explained = snapshots_exist(history, realtime=realtime), serial_order_exists(history, realtime=realtime)
    for isolation, right in zip(("snapshot", "serializable"), explained, strict=True):
        report = check(history, "snapshot" if isolation == "snapshot" else "serializable", realtime=realtime)
        assert report.ok == right, f"{history}\n{report}"
        verdicts.append(right)
    return verdicts[0], verdicts[1]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.sampled_from(["serial", "snapshot", "serializable"]), st.integers(1, 30), st.integers(1, 5))
def test_silent_on_correct_databases(seed: int, rule: Rule, transactions: int, processes: int) -> None:
    history = execute(seed, transactions, rule, processes=processes, keys=2, faults=0.2)
    report = check(history, "snapshot" if rule == "snapshot" else "serializable", realtime=True, sessions=True)
    assert report.ok, report


@pytest.mark.parametrize("rule", ["serial", "snapshot", "serializable"])
def test_silent_on_large_histories(rule: Rule) -> None:
    history = execute(7, 5_000, rule)
    assert check(history, "snapshot" if rule == "snapshot" else "serializable", realtime=True, sessions=True).ok
    assert check(history, "snapshot").ok


def test_snapshots_are_seen_not_to_be_serial() -> None:
    """The executor's write skews show, or the test above would prove little."""
    report = check(execute(7, 5_000, "snapshot"), "serializable")
    assert {str(anomaly) for anomaly in report.anomalies} == {"G2-item"}, report

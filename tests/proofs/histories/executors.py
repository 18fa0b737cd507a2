"""Small correct databases of lists, driven by a seed, and what their clients saw."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Literal

from tiltyard_proofs.histories import Append, Element, History, Op, Outcome, Read, Transaction

Rule = Literal["serial", "snapshot", "serializable"]

TICK = 10  # room for what is planted later
APPENDS_PER_KEY = 80


@dataclass(slots=True)
class Running:
    """A transaction on its way: what it wants to do, and the lengths of all lists when it took its snapshot."""

    index: int
    began: int
    wishes: list[Op]
    ops: list[Op] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    step: int = 0
    outcome: Outcome = "ok"


@dataclass(slots=True)
class Database:
    """``serial`` runs each transaction in one step; ``snapshot`` refuses it when a key it appends to changed since its snapshot,
    ``serializable`` also when one it read did."""

    rule: Rule
    chance: random.Random
    faults: float
    lists: dict[str, list[Element]] = field(default_factory=dict)

    def look(self, running: Running) -> None:
        running.lengths = {key: len(elements) for key, elements in self.lists.items()}
        own: dict[str, list[Element]] = {}
        for wish in running.wishes:
            if isinstance(wish, Append):
                own.setdefault(wish.key, []).append(wish.element)
                running.ops.append(wish)
            else:
                seen = self.lists.get(wish.key, [])[: running.lengths.get(wish.key, 0)]
                running.ops.append(Read(wish.key, (*seen, *own.get(wish.key, ()))))

    def commit(self, running: Running) -> None:
        touched = {op.key for op in running.ops if isinstance(op, Append) or self.rule == "serializable"}
        passed = all(len(self.lists.get(key, [])) == running.lengths.get(key, 0) for key in touched)
        read_only = not any(isinstance(op, Append) for op in running.ops)
        fault = self.chance.random() < self.faults
        if fault and self.chance.random() < 0.5:
            passed = False  # the request never arrived
        if passed or (read_only and self.rule == "snapshot"):
            for op in running.ops:
                if isinstance(op, Append):
                    self.lists.setdefault(op.key, []).append(op.element)
        running.outcome = "unknown" if fault else "ok" if passed else "failed"


def execute(seed: int, transactions: int, rule: Rule, *, processes: int = 4, keys: int = 6, faults: float = 0.05) -> History:
    """A history by processes whose steps are mixed at random, closed by a final read of every key."""
    chance = random.Random(seed)
    database = Database(rule, chance, faults)
    running: dict[int, Running] = {}
    indexes = [0] * processes
    appended: dict[int, int] = dict.fromkeys(range(keys), 0)
    done: list[Transaction] = []
    now = 0
    started = 0
    while started < transactions or running:
        now += TICK
        process = chance.randrange(processes)
        current = running.get(process)
        if current is None:
            if started < transactions:
                running[process] = Running(indexes[process], now, _wishes(chance, keys, appended))
                indexes[process] += 1
                started += 1
        elif _advance(database, current):
            del running[process]
            ended = None if current.outcome == "unknown" and chance.random() < 0.5 else now
            done.append(Transaction(f"p{process}", current.index, current.began, ended, tuple(current.ops), current.outcome))
    final = tuple(Read(key, tuple(elements)) for key, elements in sorted(database.lists.items()))
    return History((*done, Transaction("final", 0, now + TICK, now + 2 * TICK, final, "ok", final=True)))


def _advance(database: Database, running: Running) -> bool:
    """One step; whether it was the last."""
    running.step += 1
    if running.step == 1:
        database.look(running)
        if database.rule == "serial":
            database.commit(running)
            running.step += 1
    elif running.step == 2:
        database.commit(running)
    return running.step == 3


def _wishes(chance: random.Random, keys: int, appended: dict[int, int]) -> list[Op]:
    wishes: list[Op] = []
    for _ in range(chance.randint(1, 6)):
        slot = chance.randrange(keys)
        key = f"k{slot}-{appended[slot] // APPENDS_PER_KEY}"
        if chance.random() < 0.5:
            wishes.append(Read(key))
        else:
            appended[slot] += 1
            wishes.append(Append(key, appended[slot]))
    return wishes


def with_planted(history: History, planted: list[Transaction], final: dict[str, tuple[Element, ...]]) -> History:
    """The history with some more transactions, whose times count from its middle, and their keys in its final read."""
    middle = history.transactions[len(history) // 2].began
    moved = [replace(each, began=each.began + middle, ended=None if each.ended is None else each.ended + middle) for each in planted]
    rest = list(history.transactions[:-1])
    last = history.transactions[-1]
    assert last.final
    ops = (*last.ops, *(Read(key, elements) for key, elements in final.items()))
    return History((*rest, *moved, replace(last, ops=ops)))


def transaction(process: str, began: int, ended: int | None, *ops: Op, outcome: Outcome = "ok") -> Transaction:
    return Transaction(process, 0, began, ended, ops, outcome)

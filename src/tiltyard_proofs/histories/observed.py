"""Which transactions certainly committed, and what each of them saw and did, key by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tiltyard_proofs.histories.records import Append, Element, Elements, History, Read, Transaction
from tiltyard_proofs.histories.report import Anomaly, Finding


@dataclass(frozen=True, slots=True)
class View:
    """One transaction and one key: the list as it was without it (None if it did not look), and what it appended."""

    base: Elements | None
    own: Elements


@dataclass(frozen=True, slots=True)
class Observed:
    """The committed transactions, numbered by their place; ``views`` has the same numbers.

    ``writers`` names who appended an element: a number, or None for one that did not commit.
    """

    committed: tuple[Transaction, ...]
    views: tuple[dict[str, View], ...]
    writers: dict[str, dict[Element, int | None]]
    authors: dict[tuple[str, Element], Transaction]
    findings: tuple[Finding, ...]


def observe(history: History) -> Observed:
    committed = _committed(history)
    numbers = {transaction.name: number for number, transaction in enumerate(committed)}
    writers: dict[str, dict[Element, int | None]] = {}
    authors: dict[tuple[str, Element], Transaction] = {}
    for transaction in history.transactions:
        for op in _appends(transaction):
            writers.setdefault(op.key, {})[op.element] = numbers.get(transaction.name)
            authors[op.key, op.element] = transaction
    views: list[dict[str, View]] = []
    findings: list[Finding] = []
    for transaction in committed:
        folding = _Folding(transaction)
        views.append(folding.views())
        findings += folding.findings
    return Observed(committed, tuple(views), writers, authors, tuple(findings))


def _appends(transaction: Transaction) -> Iterator[Append]:
    return (op for op in transaction.ops if isinstance(op, Append))


def _answers(transaction: Transaction) -> Iterator[tuple[str, Elements]]:
    return ((op.key, op.elements) for op in transaction.ops if isinstance(op, Read) and op.elements is not None)


def _committed(history: History) -> tuple[Transaction, ...]:
    """Those acknowledged, and those of unknown outcome that one of these saw, directly or through another."""
    pending: dict[str, dict[Element, Transaction]] = {}
    for transaction in history.transactions:
        if transaction.outcome == "unknown":
            for op in _appends(transaction):
                pending.setdefault(op.key, {})[op.element] = transaction
    found = {transaction.name for transaction in history.transactions if transaction.outcome == "ok"}
    queue = [transaction for transaction in history.transactions if transaction.outcome == "ok"]
    while queue:
        for key, elements in _answers(queue.pop()):
            waiting = pending.get(key)
            for element in waiting.keys() & set(elements) if waiting else ():
                seen = pending[key].pop(element)
                if seen.name not in found:
                    found.add(seen.name)
                    queue.append(seen)
    return tuple(transaction for transaction in history.transactions if transaction.name in found)


@dataclass(slots=True)
class _Folding:
    """Goes through one transaction's operations and notices where it contradicts itself."""

    transaction: Transaction
    bases: dict[str, Elements] = field(default_factory=dict)
    own: dict[str, list[Element]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def views(self) -> dict[str, View]:
        for op in self.transaction.ops:
            if isinstance(op, Append):
                self.own.setdefault(op.key, []).append(op.element)
            elif isinstance(op, Read) and op.elements is not None:
                self._read(op.key, op.elements)
        for key, base in self.bases.items():
            early = [element for element in self.own.get(key, ()) if element in base]
            if early:
                self._found(Anomaly.FUTURE_READ, key, f"read {early[0]!r} under {key!r} before it appended it itself")
        return {key: View(self.bases.get(key), tuple(self.own.get(key, ()))) for key in self.bases.keys() | self.own.keys()}

    def _read(self, key: str, elements: Elements) -> None:
        own = tuple(self.own.get(key, ()))
        base = self.bases.get(key)
        if base is not None and elements != base + own:
            self._found(Anomaly.INTERNAL, key, f"read {key!r} as {brief(elements)} where its own operations make it {brief(base + own)}")
        elif base is None and own and elements[-len(own) :] != own:
            self._found(Anomaly.INTERNAL, key, f"read {key!r} as {brief(elements)}, which does not end with its own {brief(own)}")
        elif base is None:
            before = elements[: len(elements) - len(own)]
            twice = [element for element in own if element in before]
            if twice:
                self._found(Anomaly.DUPLICATE, key, f"read {twice[0]!r}, which it had appended once, twice under {key!r}")
            self.bases[key] = tuple(element for element in before if element not in twice) if twice else before

    def _found(self, anomaly: Anomaly, key: str, what: str) -> None:
        self.findings.append(Finding(anomaly, f"{self.transaction.name} {what}", (self.transaction.name,), key))


def brief(elements: Elements) -> str:
    """A list in words: its last few elements are what matters."""
    if len(elements) <= 6:
        return f"[{', '.join(map(repr, elements))}]"
    return f"[{len(elements) - 5} more, {', '.join(map(repr, elements[-5:]))}]"

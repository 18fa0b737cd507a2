"""Names as keys: who gave a name to a table, took it away, asked for it, or listed all of them.

A name is a list like any other key: each transaction that changes it appends what it stands for afterwards, a table or nothing, and who
looks at it reads the list up to there. The clients see only the last element of it. So the order in which names changed comes from the
catalog's own history, one ``NameStep`` a snapshot, and where a transaction stood from the snapshot it says it saw. Neither is believed:
what a transaction saw must fit, or it is told as what it then is, an element of a failed transaction, of nobody, or of another state.

A list of all names is a predicate read: it reads every name there is in the history, those that are absent too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tiltyard.errors import InvalidInput
from tiltyard_proofs.histories.records import AnyOp, Append, Define, History, Listing, Look, NameStep, Op, Read, Transaction
from tiltyard_proofs.histories.report import Anomaly, Finding, Isolation

FINAL = "names"
"""The process of the transaction that reads all names in the end."""
BEFORE = "before"
"""The process of transactions that only the catalog's history knows of."""


def key_of(name: str) -> str:
    return f"name {name}"


@dataclass(frozen=True, slots=True)
class _State:
    """What a name stands for after a snapshot."""

    snapshot: int
    value: str | None
    element: str


def resolve(history: History, steps: Sequence[NameStep], isolation: Isolation) -> tuple[History, list[Finding]]:
    """The history with names as lists, and what was found on the way."""
    return _Resolving(history, sorted(steps, key=lambda step: step.snapshot), isolation).run()


@dataclass(slots=True)
class _Resolving:
    history: History
    steps: Sequence[NameStep]
    isolation: Isolation
    chains: dict[str, list[_State]] = field(default_factory=dict)
    step_of: dict[str, NameStep] = field(default_factory=dict)
    authors: dict[tuple[str, str], str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def run(self) -> tuple[History, list[Finding]]:
        for transaction in self.history.transactions:
            for op in transaction.ops:
                if isinstance(op, Define) and op.table is not None:
                    self.authors.setdefault((op.name, op.table), transaction.name)
                for name in _names_in(op):
                    self.chains.setdefault(name, [])
        for step in self.steps:
            if step.transaction in self.step_of:
                raise InvalidInput(f"{step.transaction} made two snapshots.", argument="names")
            self.step_of[step.transaction] = step
            for name, table in step.names.items():
                self.chains.setdefault(name, []).append(_State(step.snapshot, table, _element(table, step.transaction)))
        known = {transaction.name for transaction in self.history.transactions}
        done = [self._transaction(transaction) for transaction in self.history.transactions]
        done += [self._before(number, step) for number, step in enumerate(self.steps) if step.transaction not in known and step.names]
        last = max((transaction.began for transaction in self.history.transactions), default=0) + 1
        everything = tuple(Read(key_of(name), tuple(state.element for state in chain)) for name, chain in self.chains.items())
        done.append(Transaction(FINAL, 0, last, last, everything, "ok", final=True))
        return History(tuple(done)), self.findings

    def _before(self, number: int, step: NameStep) -> Transaction:
        """A change that no process of the history made: it was there before them."""
        appends = tuple(Append(key_of(name), _element(table, step.transaction)) for name, table in step.names.items())
        return Transaction(f"{BEFORE} {number}", 0, -1, 0, appends, "ok")

    # ---- one transaction -------------------------------------------------------------------------------------------------------

    def _transaction(self, transaction: Transaction) -> Transaction:
        own: dict[str, str | None] = {}
        ops: list[Op] = []
        for op in transaction.ops:
            match op:
                case Define():
                    own[op.name] = op.table
                case Look():
                    ops += self._look(transaction, own, op.name, {op.table})
                case Listing():
                    ops += self._listing(transaction, own, op)
                case _:
                    ops.append(op)
        return replace(transaction, ops=(*ops, *self._changes(transaction, own)))

    def _listing(self, transaction: Transaction, own: Mapping[str, str | None], op: Listing) -> Iterator[Read]:
        if op.names is None:
            return
        for name, chain in self.chains.items():
            yield from self._look(transaction, own, name, self._any_table(name, chain, own) if name in op.names else {None})

    def _any_table(self, name: str, chain: list[_State], own: Mapping[str, str | None]) -> set[str | None]:
        """All tables that a name may have stood for where a list has it: it does not say which."""
        tables: set[str | None] = {table for table in (*(state.value for state in chain), own.get(name)) if table is not None}
        return tables or {next((table for named, table in self.authors if named == name), "some table")}

    def _look(self, transaction: Transaction, own: Mapping[str, str | None], name: str, seen: set[str | None]) -> Iterator[Read]:
        """What the transaction read of a name, when it saw one of some values."""
        if name in own:
            if own[name] not in seen:
                wrong = f"{transaction.name} made {name!r} {_told(own[name])} and then saw {_told(next(iter(seen)))}"
                self.findings.append(Finding(Anomaly.INTERNAL, wrong, (transaction.name,), key_of(name)))
            return
        if transaction.base is None:
            return  # nobody knows where it stood
        chain = self.chains[name]
        place = self._place(transaction, chain, seen)
        if place is not None:
            yield Read(key_of(name), tuple(state.element for state in chain[:place]))
            return
        value = next(iter(seen))
        before = tuple(state.element for state in chain[: _count(chain, transaction.base)])
        yield Read(key_of(name), (*before, _element(value, self.authors.get((name, value or ""), "nobody"))))

    def _place(self, transaction: Transaction, chain: list[_State], seen: set[str | None]) -> int | None:
        """How many states of a name the transaction saw: up to its base, if that fits what it saw, or else up to the nearest that does."""
        assert transaction.base is not None
        step = self.step_of.get(transaction.name)
        places = [_count(chain, transaction.base)]
        if self.isolation == "serializable" and step is not None:
            # A name that stands for the same as before, whatever it stood for in between, is no change to a serial order.
            places.insert(0, _count(chain, step.snapshot - 1))
        places += sorted(range(len(chain) + 1), key=lambda place: abs(place - places[-1]))
        return next((place for place in places if _value(chain, place) in seen), None)

    def _changes(self, transaction: Transaction, own: Mapping[str, str | None]) -> Iterator[Append]:
        step = self.step_of.get(transaction.name)
        made = dict(step.names) if step is not None and transaction.outcome == "unknown" and not own else dict(own)
        if step is not None and transaction.outcome == "ok" and dict(step.names) != self._net(transaction, own):
            what = f"{transaction.name} changed {_names(self._net(transaction, own))}, but the catalog's history has {_names(step.names)}"
            self.findings.append(Finding(Anomaly.INTERNAL, what, (transaction.name,)))
        net = self._net(transaction, made)
        yield from (Append(key_of(name), _element(table, transaction.name)) for name, table in net.items())

    def _net(self, transaction: Transaction, own: Mapping[str, str | None]) -> dict[str, str | None]:
        """What it changed in the end: a name that it took away and gave back is as it was."""
        if transaction.base is None:
            return dict(own)
        at = {name: self.chains[name][: _count(self.chains[name], transaction.base)] for name in own}
        return {name: table for name, table in own.items() if table != (at[name][-1].value if at[name] else None)}


def _value(chain: list[_State], place: int) -> str | None:
    return chain[place - 1].value if place else None


def _count(chain: list[_State], snapshot: int) -> int:
    return sum(state.snapshot <= snapshot for state in chain)


def _names_in(op: AnyOp) -> tuple[str, ...]:
    if isinstance(op, Listing):
        return op.names or ()
    return (op.name,) if isinstance(op, Define | Look) else ()


def _element(table: str | None, transaction: str) -> str:
    return f"{table or 'absent'} by {transaction}"


def _told(table: str | None) -> str:
    return "absent" if table is None else f"the table {table}"


def _names(names: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name}: {_told(table)}" for name, table in sorted(names.items())) or "no name"

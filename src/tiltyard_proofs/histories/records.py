"""What a history is made of: transactions that append elements to lists and read lists, as their clients saw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard, get_args

from tiltyard.errors import InvalidInput

Element = int | str
Elements = tuple[Element, ...]
Outcome = Literal["ok", "failed", "unknown"]

OUTCOMES: tuple[str, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Append:
    """Puts ``element`` at the end of the list under ``key``. No element is ever appended twice to one key."""

    key: str
    element: Element


@dataclass(frozen=True, slots=True)
class Read:
    """The whole list under ``key``; ``None`` when the answer was not seen."""

    key: str
    elements: Elements | None = None


@dataclass(frozen=True, slots=True)
class Define:
    """Gives ``name`` to a table, or takes it away (None). A creation or a drop is one of these, a rename two."""

    name: str
    table: str | None


@dataclass(frozen=True, slots=True)
class Look:
    """Which table ``name`` stands for; None where there is none."""

    name: str
    table: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The names of all tables; ``None`` when the answer was not seen."""

    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class NameStep:
    """What one snapshot did to names, as the catalog's own history has it.

    Attributes:
        snapshot: its number.
        transaction: who made it, as ``Transaction.name`` has it.
        names: what each changed name stands for afterwards; empty where it changed none.
    """

    snapshot: int
    transaction: str
    names: Mapping[str, str | None]


Op = Append | Read
AnyOp = Op | Define | Look | Listing


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction as its client saw it.

    Attributes:
        process: who ran it; one at a time.
        index: its place among those of its process.
        began: when it was asked for, on a clock that all processes share.
        ended: when its answer came; None if none ever did.
        ops: what it did, in order. The reads of a transaction whose outcome is unknown count once its effect has been seen, so they
            must belong to the attempt that may have committed; give None for a read of which that is not certain.
        outcome: "ok" (acknowledged), "failed" (certainly not committed) or "unknown".
        final: it began after all others had come to rest, so every committed append must be in what it read.
        base: the snapshot it saw, if it says so; needed where it looked at names.
    """

    process: str
    index: int
    began: int
    ended: int | None
    ops: tuple[AnyOp, ...]
    outcome: Outcome
    final: bool = False
    base: int | None = None

    @property
    def name(self) -> str:
        return f"{self.process}/{self.index}"


@dataclass(frozen=True, slots=True)
class History:
    """Transactions in the order in which they began. Refuses what could not be judged, such as an element appended twice."""

    transactions: tuple[Transaction, ...]

    def __post_init__(self) -> None:
        ordered = sorted(self.transactions, key=lambda each: (each.began, each.process, each.index))
        object.__setattr__(self, "transactions", tuple(ordered))
        for transaction in ordered:
            _check_transaction(transaction)
        _check_names(ordered)
        _check_unique_appends(ordered)

    def __len__(self) -> int:
        return len(self.transactions)

    @property
    def has_names(self) -> bool:
        return any(isinstance(op, Define | Look | Listing) for transaction in self.transactions for op in transaction.ops)


def is_element(value: object) -> TypeGuard[Element]:
    """Whether a value can be appended. True equals 1 and 1.0 equals 1, so neither kind of value is let in."""
    return type(value) in (int, str)


def _check_transaction(transaction: Transaction) -> None:
    name, outcome = transaction.name, transaction.outcome
    if outcome not in OUTCOMES:
        raise InvalidInput(f"{name} has the outcome {outcome!r}; it is one of {', '.join(OUTCOMES)}.", argument="outcome")
    if transaction.ended is None and outcome != "unknown":
        raise InvalidInput(f"{name} has no end, so its outcome cannot be {outcome!r} but unknown.", argument="ended")
    if transaction.ended is not None and transaction.ended < transaction.began:
        raise InvalidInput(f"{name} ended at {transaction.ended}, before it began at {transaction.began}.", argument="ended")
    for op in transaction.ops:
        elements = (op.element,) if isinstance(op, Append) else (op.elements or ()) if isinstance(op, Read) else ()
        if isinstance(op, Append | Read) and not all(map(is_element, elements)):
            raise InvalidInput(f"{name} has an element under {op.key!r} that is neither an int nor a str.", argument="ops")


def _check_names(transactions: Iterable[Transaction]) -> None:
    last: dict[str, Transaction] = {}
    for transaction in sorted(transactions, key=lambda each: (each.process, each.index)):
        before = last.get(transaction.process)
        if before is not None and before.index == transaction.index:
            raise InvalidInput(
                f"There are two transactions {transaction.name}.", argument="index", advice="Give a restarted process a new name."
            )
        if before is not None and before.began > transaction.began:
            raise InvalidInput(f"{transaction.name} began before {before.name}; a process runs one at a time.", argument="began")
        last[transaction.process] = transaction


def _check_unique_appends(transactions: Iterable[Transaction]) -> None:
    writers: dict[tuple[str, Element], str] = {}
    for transaction in transactions:
        for op in transaction.ops:
            if not isinstance(op, Append):
                continue
            other = writers.setdefault((op.key, op.element), transaction.name)
            if other != transaction.name or transaction.ops.count(op) > 1:
                raise InvalidInput(
                    f"{other} and {transaction.name} both append {op.element!r} to {op.key!r}.",
                    argument="ops",
                    advice="Give each attempt elements of its own, a failed one too.",
                )

"""Histories as lines of JSON. Each process appends to a file of its own; the files are merged by the times in them.

A transaction is two lines: one when it begins, so that a process that dies leaves it behind as unknown, and one when it ends. The
second repeats the operations, now with what was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tiltyard.errors import InvalidInput
from tiltyard_proofs.histories.records import (
    OUTCOMES,
    AnyOp,
    Append,
    Define,
    History,
    Listing,
    Look,
    Outcome,
    Read,
    Transaction,
    is_element,
)


@dataclass(slots=True)
class Recorder:
    """Writes down what one process does. Time and the place to write to are given: ``Recorder("p1", file.write, time.monotonic_ns)``.

    The file must be flushed per line if the process may be killed (open it with ``buffering=1``).
    """

    process: str
    write: Callable[[str], object]
    now: Callable[[], int]
    _next: int = 0

    def begin(self, ops: Sequence[AnyOp], *, final: bool = False) -> int:
        """Call before the transaction starts; gives its index."""
        index = self._next
        self._next += 1
        self.write(began_line(self.process, index, self.now(), ops, final=final))
        return index

    def end(self, index: int, outcome: Outcome, ops: Sequence[AnyOp], *, base: int | None = None) -> None:
        """Call when the outcome is known, or known to be unknown; ``ops`` with what was read, ``base`` if names were looked at."""
        self.write(ended_line(self.process, index, self.now(), outcome, ops, base=base))


def began_line(process: str, index: int, at: int, ops: Sequence[AnyOp], *, final: bool = False) -> str:
    line: dict[str, Any] = {"process": process, "index": index, "began": at, "ops": _ops_out(ops)}
    return _line(line | ({"final": True} if final else {}))


def ended_line(process: str, index: int, at: int, outcome: Outcome, ops: Sequence[AnyOp], *, base: int | None = None) -> str:
    line: dict[str, Any] = {"process": process, "index": index, "ended": at, "outcome": outcome, "ops": _ops_out(ops)}
    return _line(line | ({} if base is None else {"base": base}))


def dump(history: History) -> Iterator[str]:
    """One line a transaction, with the line's end."""
    for each in history.transactions:
        line: dict[str, Any] = {"process": each.process, "index": each.index, "began": each.began, "ended": each.ended}
        line |= {"outcome": each.outcome, "ops": _ops_out(each.ops)} | ({"final": True} if each.final else {})
        line |= {} if each.base is None else {"base": each.base}
        yield _line(line)


def load(*files: Iterable[str]) -> History:
    """Merges the lines of any number of files. Half a line at the end of a file is what a killed process leaves, and is passed over."""
    parts: dict[tuple[str, int], dict[str, Any]] = {}
    for file in files:
        for number, line in enumerate(file, start=1):
            fields = _fields(line, number)
            if fields is not None:
                _merge(parts, fields, number)
    return History(tuple(_transaction(fields) for fields in parts.values()))


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _ops_out(ops: Sequence[AnyOp]) -> list[list[Any]]:
    return [_op_out(op) for op in ops]


def _op_out(op: AnyOp) -> list[Any]:
    match op:
        case Append():
            return ["append", op.key, op.element]
        case Read():
            return ["read", op.key, None if op.elements is None else list(op.elements)]
        case Define():
            return ["define", op.name, op.table]
        case Look():
            return ["look", op.name, op.table]
        case Listing():
            return ["list", None if op.names is None else list(op.names)]


def _fields(line: str, number: int) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        if not line.endswith("\n"):
            return None
        raise InvalidInput(f"Line {number} is not JSON: {error.msg} at column {error.colno}.", argument="files") from error
    known = isinstance(fields, dict) and isinstance(fields.get("process"), str) and isinstance(fields.get("index"), int)
    if not known or not ("began" in fields or "ended" in fields):
        raise InvalidInput(f"Line {number} lacks a process, an index, or a time it began or ended.", argument="files")
    return {str(name): value for name, value in fields.items()}


def _merge(parts: dict[tuple[str, int], dict[str, Any]], fields: dict[str, Any], number: int) -> None:
    known = parts.setdefault((fields["process"], fields["index"]), {})
    twice = [name for name in ("began", "ended") if name in known and name in fields]
    if twice:
        name = f"{fields['process']}/{fields['index']}"
        raise InvalidInput(f"Line {number} says a second time when {name} {twice[0]}.", argument="files", advice="Name each process once.")
    known.update(fields)


def _transaction(fields: dict[str, Any]) -> Transaction:
    name = f"{fields['process']}/{fields['index']}"
    began, ended, outcome = fields.get("began"), fields.get("ended"), fields.get("outcome", "unknown")
    if not isinstance(began, int) or not (ended is None or isinstance(ended, int)):
        raise InvalidInput(f"{name} has no whole number for the time it began or ended.", argument="files")
    if outcome not in OUTCOMES:
        raise InvalidInput(f"{name} has the outcome {outcome!r}; it is one of {', '.join(OUTCOMES)}.", argument="files")
    ops = tuple(_op_in(op, name) for op in fields.get("ops", ()))
    base = fields.get("base")
    if base is not None and not isinstance(base, int):
        raise InvalidInput(f"{name} has no whole number for the snapshot it saw.", argument="files")
    return Transaction(fields["process"], fields["index"], began, ended, ops, outcome, bool(fields.get("final", False)), base)


def _op_in(op: object, name: str) -> AnyOp:
    match op:
        case ["append", str(key), element] if is_element(element):
            return Append(key, element)
        case ["read", str(key), None]:
            return Read(key)
        case ["read", str(key), list(elements)] if all(map(is_element, elements)):
            return Read(key, tuple(elements))
        case ["define", str(key), str() | None as table]:
            return Define(key, table)
        case ["look", str(key), str() | None as table]:
            return Look(key, table)
        case ["list", None]:
            return Listing()
        case ["list", list(names)] if all(isinstance(each, str) for each in names):
            return Listing(tuple(names))
    raise InvalidInput(f"{name} has an operation that is neither an append nor a read: {op!r}.", argument="files")

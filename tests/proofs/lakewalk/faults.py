"""Kills and interruptions between any two calls of a catalog or a store, whoever makes them.

The methods of the classes themselves are replaced, so that nothing that opens a store or a catalog by another door escapes. Only one
process of the walk is at work at a time, so a plan concerns whoever is. After a death every further call of the dead raises, too: none of
its clean-up happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, Literal

from tiltyard.catalog.manifest_records import ManifestRecords
from tiltyard.catalog.sql_records import SqlRecords
from tiltyard.storage.local import LocalStore
from tiltyard.testing.faults import Killed

When = Literal["before", "after"]

STORE_WRITES: Final = ("put", "put_unsynced", "put_if_absent", "rename_if_absent", "copy_if_absent", "delete")
STORE_READS: Final = ("get", "get_range", "head", "names", "list", "sync")
RECORD_READS: Final = ("get", "scan")


@dataclass(slots=True)
class Plan:
    """What happens at a call.

    Attributes:
        at: which call, counted from 1: writes alone for a death, reads too for an interruption, where others may come in between.
        when: before it or after it.
        deed: what somebody else does there; None for a death.
    """

    at: int
    when: When
    deed: Callable[[], object] | None = None


class Director:
    """Counts the calls of whoever is at work, and does what is planned."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.count = 0
        self.dead = False
        self.fired = ""
        self._inside = 0
        self._idle = True

    @contextmanager
    def directing(self, plan: Plan | None) -> Iterator[None]:
        """What is called meanwhile counts; a plan is for this time alone."""
        before = (self.plan, self.count, self._idle)
        self.plan, self.count, self.fired, self._idle = plan, 0, "", False
        try:
            yield
        finally:
            self.plan, self.count, self._idle = before
            self.dead = False

    def call(self, name: str, request: Callable[[], Any], *, writes: bool, transact: bool) -> Any:
        if self._idle:
            return request()
        if self.dead:
            raise Killed(f"{name}: the process is dead already")
        plan, due = self.plan, self._is_due(writes)
        if due and plan is not None and plan.when == "before":
            self._strike(plan, f"before {name}")
        self._inside += transact
        try:
            answer = request()
        finally:
            self._inside -= transact
        if due and plan is not None and plan.when == "after":
            self._strike(plan, f"after {name}")
        return answer

    def _is_due(self, writes: bool) -> bool:
        plan = self.plan
        if plan is None or (plan.deed is None and not writes) or (plan.deed is not None and self._inside):
            return False
        self.count += 1
        return self.count == plan.at

    def _strike(self, plan: Plan, where: str) -> None:
        self.fired = where
        if plan.deed is None:
            self.dead = True
            raise Killed(where)
        self.plan = None
        idle, self._idle = self._idle, True
        count, inside = self.count, self._inside
        self._inside = 0
        try:
            plan.deed()
        finally:
            self._idle, self.count, self._inside, self.fired = idle, count, inside, where


DIRECTOR: Final = Director()


def _wrapped(plain: Callable[..., Any], name: str, *, writes: bool, transact: bool) -> Callable[..., Any]:
    @wraps(plain)
    def method(self: Any, *args: Any, **more: Any) -> Any:
        def request() -> Any:
            answer = plain(self, *args, **more)
            return iter(tuple(answer)) if name in ("list", "names") else answer

        shown = f"{name} {args[0] if args and isinstance(args[0], str) else ''}".strip()
        return DIRECTOR.call(shown, request, writes=writes, transact=transact)

    return method


@contextmanager
def directed_classes() -> Iterator[Director]:
    """Everything that is opened meanwhile, and all that is open, goes through the director."""
    plain: list[tuple[type, str, Any]] = []
    for kind, names, writes, transact in (
        (LocalStore, STORE_WRITES, True, False),
        (LocalStore, STORE_READS, False, False),
        (SqlRecords, RECORD_READS, False, False),
        (SqlRecords, ("transact",), True, True),
        (ManifestRecords, RECORD_READS, False, True),
        (ManifestRecords, ("transact",), True, True),
    ):
        for name in names:
            plain.append((kind, name, vars(kind)[name]))
            setattr(kind, name, _wrapped(vars(kind)[name], name, writes=writes, transact=transact))
    try:
        yield DIRECTOR
    finally:
        for owner, name, method in plain:
            setattr(owner, name, method)

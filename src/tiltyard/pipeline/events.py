"""Where a run is: told to whoever shows progress, and to tests that stop it there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

POINTS: Final = (
    "begun", "planned", "spark is there", "source read", "step done", "quarantine written", "output written", "state written",
    "report written", "publishing", "committed", "report completed", "ended",
)  # fmt: skip
"""What an observer is told of, in this order; those in the middle come once for each source, step and table."""


@dataclass(frozen=True, slots=True)
class Event:
    """One of ``POINTS``, what it is about, and how many pieces of the run are done."""

    point: str
    what: str = ""
    done: int = 0
    total: int = 0


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An observer that is not interested."""

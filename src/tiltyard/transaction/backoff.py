"""How long to wait after a lost race: exponential, with full jitter, in units of what an attempt costs here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiltyard.interfaces import Runtime

FIRST_GUESS: Final = 0.05
SHORTEST_UNIT: Final = 0.0005
LONGEST_WAIT: Final = 5.0
DOUBLINGS: Final = 2
"""More would spread many writers out further. But whoever has just won begins anew without a wait, and wins on while the others sleep."""


MOST_FAILURES: Final = 20
"""How often a store may fail in one commit that sets no bound of its own."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of the race for a version.

    Attributes:
        max_retries: how often a lost race is run again; None for as often as it takes.
        deadline: seconds after which no further attempt begins; None for no limit.
        begun: when the work began whose files are to be committed, on the monotonic clock; None for when the race does.
    """

    max_retries: int | None = None
    deadline: float | None = None
    begun: float | None = None

    def gives_up(self, attempts: int, failures: int) -> bool:
        """Whether so many attempts are enough, of which so many failed because the store did.

        Of many writers one wins each version, so a race that goes on is not in vain; a store that goes on failing is.
        """
        return attempts > self.max_retries if self.max_retries is not None else failures > MOST_FAILURES


def wait_before(retry: int, attempt_seconds: float | None, runtime: Runtime) -> float:
    """Seconds to wait before the given retry (the first is 0).

    The wait is drawn evenly from nothing to twice the unit, then four, eight ... times. Drawing from zero keeps the writers from
    marching in step; scaling by what an attempt takes, from its last look at the newest version to the answer, keeps a local disk from
    waiting like a far store.
    """
    unit = FIRST_GUESS if attempt_seconds is None else max(attempt_seconds, SHORTEST_UNIT)
    ceiling = min(unit * 2 ** (min(retry, DOUBLINGS) + 1), LONGEST_WAIT)
    return runtime.random.uniform(0.0, ceiling)

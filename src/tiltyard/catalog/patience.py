"""How long to try while others are in the way."""

from __future__ import annotations

from dataclasses import dataclass

from tiltyard.interfaces import Runtime


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try while others are in the way: waits drawn evenly from nothing to a bound that doubles.

    Attributes:
        first: the bound of the first wait, in seconds.
        longest: no wait is longer.
        attempts: tries in all.
        seconds: no try begins later than this after the first.
    """

    first: float
    longest: float
    attempts: int
    seconds: float

    def wait(self, retry: int, runtime: Runtime) -> float:
        """Seconds to wait before the given retry (the first is 0)."""
        return runtime.random.uniform(0.0, min(self.first * 2.0 ** min(retry, 16), self.longest))

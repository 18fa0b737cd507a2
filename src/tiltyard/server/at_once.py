"""When the loop may do a commit itself, instead of handing it to a thread and waiting to be told: two wake-ups less for each version.

Meanwhile nobody else is served. So it is done only while nothing else is asked of the server, for versions that need no look at the catalog
and no wait for anybody (``create_at_once``), and not for a while after one that took long: on a slow disk threads do it, as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LONG: Final = 0.005
"""Seconds; what takes longer holds up whoever comes meanwhile."""
REST: Final = 50
"""For how many times as long the loop then leaves commits to threads: so slow ones take it for a fiftieth of the time at most."""


class LoopTime:
    """Says whether the loop may be held up now.

    Args:
        clock: seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._until = clock, 0.0

    def is_free(self) -> bool:
        return self._clock() >= self._until

    def spend(self, began: float) -> None:
        """Notes that something was done by the loop, from a moment until now."""
        now = self._clock()
        if now - began > LONG:
            self._until = now + REST * (now - began)

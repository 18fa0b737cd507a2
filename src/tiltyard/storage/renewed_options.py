"""Storage options with keys that end: whoever looks at them finds some that are good for a while, renewed where need be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tiltyard.errors import TiltyardError

EXPIRES: Final = "expires_at_millis"
"""Until when the keys are good, in milliseconds since 1970; Lance knows it by this name, too."""
_MARGIN: Final = 300.0
"""Seconds before their end from which on keys are renewed; a quarter of their time where that is less."""

Renew = Callable[[], Mapping[str, Any]]


class RenewedOptions(Mapping[str, Any]):
    """Storage options that renew themselves. Threads may share them; another process renews its own.

    Args:
        renew: gives new ones. It has to survive pickling where they are sent to other processes.
        first: those that are good now.
        clock: seconds since 1970.
    """

    def __init__(self, renew: Renew, first: Mapping[str, Any] | None = None, clock: Callable[[], float] = time.time) -> None:
        self._renew, self._clock, self._lock = renew, clock, threading.Lock()
        self._options: Mapping[str, Any] = dict(first or {})
        self._due = self._next_time()

    def __repr__(self) -> str:
        return "RenewedOptions()"

    def __reduce__(self) -> tuple[Any, ...]:
        return RenewedOptions, (self._renew, dict(self._options))

    def __getitem__(self, key: str) -> Any:
        return self.current()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.current())

    def __len__(self) -> int:
        return len(self.current())

    def items(self) -> Any:
        return self.current().items()  # all of one moment: an id and a secret of different keys do not go together

    def current(self) -> Mapping[str, Any]:
        """Options whose keys are good for a while.

        Raises:
            TiltyardError: they have ended, and nobody gives new ones.
        """
        with self._lock:
            if self._clock() >= self._due:
                try:
                    self._options = dict(self._renew())
                except TiltyardError:
                    if self._clock() >= self._end():
                        raise
                    self._due = min(self._end(), self._clock() + _MARGIN / 10)  # those that we have do for now
                else:
                    self._due = self._next_time()
            return self._options

    def credentials(self) -> dict[str, Any]:
        """The keys, as obstore asks for them."""
        options = self.current()
        return {
            "access_key_id": str(options["aws_access_key_id"]),
            "secret_access_key": str(options["aws_secret_access_key"]),
            "token": str(options["aws_session_token"]),
            "expires_at": datetime.fromtimestamp(self._end(), UTC),
        }

    def _end(self) -> float:
        return float(self._options.get(EXPIRES, 0)) / 1000

    def _next_time(self) -> float:
        left = self._end() - self._clock()
        return self._end() - min(_MARGIN, left / 4)

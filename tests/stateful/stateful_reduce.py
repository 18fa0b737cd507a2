"""Makes a failure of the state machine short: steps are left out as long as the rest fails in the same way.

Hypothesis would do so by itself, but takes minutes where every try works on real tables, and it cannot be told to take all steps of an
example when looking for failures and fewer when shortening one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.support.stateful_bench import Bench

Step = tuple[str, Mapping[str, Any]]
TRIES: Final = 150


def program(steps: Sequence[Step]) -> str:
    """Steps as they could be typed."""
    return "\n".join(f"state.{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in steps)


def reduced(machine: type[Bench], steps: Sequence[Step]) -> list[Step]:
    """A short part of the steps that fails as all of them do; the first one, which makes the table, stays."""
    wanted = _failure(machine, steps)
    first, rest, tries, size = steps[0], list(steps[1:]), 0, max(len(steps) // 2, 1)
    while wanted is not None and tries < TRIES:
        before, place = len(rest), 0
        while place < len(rest) and tries < TRIES:
            tries += 1
            fewer = rest[:place] + rest[place + size :]
            if _failure(machine, [first, *fewer]) == wanted:
                rest = fewer
            else:
                place += size
        if size == 1 and len(rest) == before:
            break
        size = max(size // 2, 1)
    return [first, *rest]


def _failure(machine: type[Bench], steps: Sequence[Step]) -> tuple[str, str, int] | None:
    """What goes wrong, and where; None if nothing does."""
    state = machine()
    try:
        try:
            for name, given in steps:
                getattr(state, name)(**given)
        finally:
            state.teardown()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        assert trace is not None
        return type(error).__name__, trace.tb_frame.f_code.co_filename, trace.tb_lineno
    return None

"""Long and short forms of one proof: ``make test`` runs the short one, ``TILTYARD_PROVE=1`` (``make prove``) the long one.

A proof asks here how much to run, so that no test reads the environment by itself, and the run ends with a table of what each proof did.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

T = TypeVar("T")

PROVING: Final = os.environ.get("TILTYARD_PROVE", "") not in ("", "0")
ROOT: Final = Path(__file__).parents[2]
PROOFS: Final = "proofs"
"""Under this name a worker hands its figures to the process that prints them."""

_figures: dict[str, str] = {}
_seconds: dict[str, float] = defaultdict(float)
_tests: dict[str, int] = defaultdict(int)


def pick(short: T, long: T) -> T:
    """What this run takes of the two."""
    chosen = long if PROVING else short
    if isinstance(chosen, int):
        _note(f"{chosen:,}" if PROVING else f"{chosen:,} of {long:,}")
    return chosen


def sample(items: Sequence[T], short: int) -> list[T]:
    """All of them in the long form; ``short`` of them otherwise, evenly spread, the first and the last among them."""
    chosen = list(items) if PROVING or len(items) <= short else spread(items, short)
    _note(f"{len(chosen):,}" if PROVING else f"{len(chosen):,} of {len(items):,}")
    return chosen


def spread(items: Sequence[T], count: int) -> list[T]:
    """``count`` of them from the first to the last, the same ones in every run."""
    if count < 2:
        return list(items[:count])
    places = (place * (len(items) - 1) // (count - 1) for place in range(count))
    return [items[place] for place in dict.fromkeys(places)]


def _note(figure: str) -> None:
    """Keeps the figure under the file of the test that asked."""
    frame = sys._getframe(2)
    path = Path(frame.f_code.co_filename)
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    known = _figures.get(name, "").split("; ") if name in _figures else []
    _figures[name] = "; ".join(dict.fromkeys([*known, figure]))


# ---- the table at the end ---------------------------------------------------------------------------------------------------------


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file = report.nodeid.split("::", 1)[0]
    _seconds[file] += report.duration
    _tests[file] += report.when == "call"


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[PROOFS] = _figures


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _figures.update(getattr(node, "workeroutput", {}).get(PROOFS, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Only for the long form: whoever runs the short one has no use for forty lines of figures."""
    proofs = {file: figure for file, figure in _figures.items() if _tests[file]}
    if not PROVING or not proofs:
        return
    terminalreporter.section("proofs, long form")
    for file in sorted(proofs, key=lambda file: -_seconds[file]):
        terminalreporter.write_line(f"{_seconds[file]:9.1f} s {_tests[file]:6,} tests  {file}: {proofs[file]}")

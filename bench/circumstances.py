"""Under what circumstances a benchmark ran, as its results say: machine, load, versions."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

QUIET: Final = 0.5
"""The highest load average before a run that leaves its figures to itself."""


def circumstances() -> dict[str, Any]:
    """The machine as it is now."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": [round(load, 2) for load in os.getloadavg()],
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "machine": _model(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _model() -> str:
    """What the processor calls itself."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def in_words(before: dict[str, Any]) -> str:
    """A sentence for a page: when and where, and whether anything else ran."""
    load = before["load"][0]
    quiet = "quiet" if load <= QUIET else f"**not quiet: load {load}**, so these figures are not final"
    return (
        f"{before['at'][:10]}, {before['processors']} processors ({before['machine']}), {before['system']}, Python {before['python']}; "
        f"the machine was {quiet}."
    )

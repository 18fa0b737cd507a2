"""What processes that tests start can import."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

ROOT: Final = Path(__file__).parents[2]
WITHOUT_PANDAS: Final = str(Path(__file__).parent / "without_pandas")


def pandas_is(hidden: bool) -> None:
    """Whether processes that this one starts from now on have pandas: it takes a third of the time that each needs to start."""
    others = os.environ.get("PYTHONPATH", "").replace(WITHOUT_PANDAS, "")
    os.environ["PYTHONPATH"] = _joined(WITHOUT_PANDAS, others) if hidden else _joined(others)


def path_with(*first: str | Path) -> str:
    """``PYTHONPATH`` for a process that must find these before anything else."""
    return _joined(*map(str, first), os.environ.get("PYTHONPATH", ""))


def path_of_the_tree() -> str:
    """``PYTHONPATH`` for a process that imports the tests of this tree, and the package that we did, planted bugs included."""
    found = importlib.util.find_spec("tiltyard")  # not imported: the coverage gate must be there first
    assert found is not None
    assert found.origin is not None
    return path_with(Path(found.origin).parents[1], ROOT)


def fork_server() -> ForkServerContext:
    """Starts processes that have the package imported already. Not pylance, which must not be forked: each imports it by itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tiltyard", "tiltyard.testing"])
    return context


def with_pandas(environment: dict[str, str]) -> dict[str, str]:
    """The same environment for a process that needs pandas."""
    kept = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part and part != WITHOUT_PANDAS]
    return {**environment, "PYTHONPATH": os.pathsep.join(kept)}


def _joined(*parts: str) -> str:
    return os.pathsep.join(dict.fromkeys(part for several in parts for part in several.split(os.pathsep) if part))

"""For processes that tests start: pandas cannot be imported there.

Nothing of ours needs it, and it is no dependency; but where it is installed, as it is for tests of Spark Connect, pyarrow imports it with
the first array: a third of the time that such a process takes to start. Put on a child's path by ``tests.support.children``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class NoPandas(MetaPathFinder):
    """Says that there is no pandas, whatever is installed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)
        return None


sys.meta_path.insert(0, NoPandas())

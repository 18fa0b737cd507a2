"""A bound on memory, so that an absurd allocation fails at once instead of filling the machine."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = resource.getpagesize()


@contextmanager
def memory_limit(extra: int) -> Iterator[None]:
    """Lets this process take at most ``extra`` bytes of address space beyond what it has; more is ``MemoryError``."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

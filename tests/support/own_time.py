"""The time of the thread that runs a test, replaced; other threads keep theirs.

``time`` is one for the whole process: a thread that an earlier test has left behind would move the hands of a test's clock with each pause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest


def own_time(monkeypatch: pytest.MonkeyPatch, now: Callable[[], float], sleep: Callable[[float], object]) -> None:
    """Until the end of the test, ``time.monotonic`` and ``time.sleep`` are these for the thread that calls this."""
    own, others_now, others_sleep = threading.get_ident(), time.monotonic, time.sleep
    monkeypatch.setattr(time, "monotonic", lambda: now() if threading.get_ident() == own else others_now())
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(seconds) if threading.get_ident() == own else others_sleep(seconds))

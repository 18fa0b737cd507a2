"""The state machine asserts like a test; registered here, before a test module imports it."""

from __future__ import annotations

import pytest

for name in ("bench", "checks", "columns", "model", "past", "refusals", "rows", "upkeep"):
    pytest.register_assert_rewrite(f"tests.support.stateful_{name}")

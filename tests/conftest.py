"""For all tests: what must happen before anything of ours is imported."""

from __future__ import annotations

import pytest

# The public conformance suite asserts like a test; registered here, before any test module imports it.
pytest.register_assert_rewrite("tiltyard.testing.conformance")

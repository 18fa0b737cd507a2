"""For all tests: what must happen before anything of ours is imported."""

from __future__ import annotations

import pytest

# The public conformance suites assert like tests; registered here, before any test module imports them.
pytest.register_assert_rewrite("tiltyard.testing.conformance", "tiltyard.testing.record_conformance")

"""For all tests: what must happen before anything of ours is imported."""

from __future__ import annotations

import pytest

pytest_plugins = ("tests.support.postgres", "tests.support.spark")

# The public conformance suites assert like tests; registered here, before any test module imports them.
SUITES = ("conformance", "record_conformance", "record_process_conformance")
pytest.register_assert_rewrite(*(f"tiltyard.testing.{suite}" for suite in SUITES))

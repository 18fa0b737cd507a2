"""For all tests: what must happen before anything of ours is imported, and what no test may leave behind."""

from __future__ import annotations

import gc
import logging
from collections.abc import Generator, Iterator

import hypothesis
import pytest

from tests.support.children import pandas_is
from tests.support.scratch import write_to_memory

pytest_plugins = (
    "tests.support.lanes",
    "tests.support.proving",
    "tests.support.selection",
    "tests.support.postgres",
    "tests.support.spark",
)

write_to_memory()  # before anything asks where temporary files go

# The public conformance suites assert like tests; registered here, before any test module imports them.
SUITES = ("conformance", "record_conformance", "record_process_conformance")
pytest.register_assert_rewrite(*(f"tiltyard.testing.{suite}" for suite in SUITES))

NEED_PANDAS = ("tests/spark/", "tests/pipeline/", "tests/docs/")
"""PySpark hands over no Arrow batches without it."""

# How long an example takes says something of the machine, nothing of the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector from going through all collected tests: neither while they come, nor each time it looks at everything."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # For each test anew: the processes of xdist, which are started before any test, must have it.
    pandas_is(hidden=item.get_closest_marker("spark") is None and not item.nodeid.startswith(NEED_PANDAS))


@pytest.fixture(autouse=True)
def _logging_stays_as_it_was() -> Iterator[None]:
    """A test that silences the log would take it from whichever tests the same process runs next."""
    log = logging.getLogger("tiltyard")
    before = (log.level, log.propagate, log.disabled, logging.root.manager.disable)
    yield
    after = (log.level, log.propagate, log.disabled, logging.root.manager.disable)
    logging.disable(before[3])
    log.level, log.propagate, log.disabled = before[:3]
    assert after == before, "a test changed the settings of the log and did not put them back"

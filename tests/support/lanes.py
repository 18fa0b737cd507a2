"""Which tests are quick: ``make check`` runs those that get no marker here. Fixtures, parameters and paths decide.

A test that starts a process without a marker fails, so that the table stays true.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Final

import pytest

MARKERS: Final = {
    "spark": "needs a JVM",
    "server": "needs a server: PostgreSQL or S3",
    "process": "starts processes",
    "fuzz": "feeds random bytes or runs random programs, by the thousand",
    "slow": "needs none of these, and takes its time all the same",
}
STARTS_PROCESSES: Final = ("spark", "server", "process", "fuzz")

BY_FIXTURE: Final = {
    "spark": "spark",
    "postgres_url": "server",
    "s3_server": "server",
    "seaweedfs_server": "server",
    "forgetful_server": "server",
    "tiltyard": "process",
}
BY_PARAMETER: Final = {"postgres": "server", "s3": "server"}
BY_PATH: Final[dict[str, tuple[str, ...]]] = {
    "tests/fuzz/": ("fuzz",),
}
"""A test is marked by the fixtures it asks for, by its parameters, and by every beginning of its id that stands here."""


def markers_of(item: pytest.Item) -> set[str]:
    """What the table says of a test."""
    fixtures = getattr(item, "fixturenames", ())
    found = {marker for fixture, marker in BY_FIXTURE.items() if fixture in fixtures}
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params.values() if callspec else ()
    found |= {BY_PARAMETER[value] for value in parameters if isinstance(value, str) and value in BY_PARAMETER}
    return found.union(*(markers for beginning, markers in BY_PATH.items() if item.nodeid.startswith(beginning)))


def pytest_configure(config: pytest.Config) -> None:
    for marker, words in MARKERS.items():
        config.addinivalue_line("markers", f"{marker}: {words}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in sorted(markers_of(item)):
            item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if any(item.get_closest_marker(marker) for marker in STARTS_PROCESSES):
        return (yield)
    with _no_processes(item.nodeid):
        return (yield)


@contextmanager
def _no_processes(test: str) -> Iterator[None]:
    """Whatever starts one meanwhile is told where to write it down."""

    def refusing(owner: type, name: str) -> Callable[[], None]:
        real = getattr(owner, name)

        def refused(*_given: Any, **_more: Any) -> None:
            pytest.fail(f"{test} starts a process: mark it in tests/support/lanes.py")

        setattr(owner, name, refused)
        return lambda: setattr(owner, name, real)

    undo = [refusing(subprocess.Popen, "_execute_child"), refusing(BaseProcess, "start")]
    try:
        yield
    finally:
        for put_back in undo:
            put_back()

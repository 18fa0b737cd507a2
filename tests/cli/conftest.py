from __future__ import annotations

import functools
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lance
import pyarrow as pa
import pytest
import typer.testing
from typer.testing import CliRunner

import tiltyard as ty
from tiltyard.cli.app import app

# The runner builds all of our commands for each one it runs, which takes thirty times as long as most of them do.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process, on a page of the given width; 0 stands for a pipe."""

    def invoke(*arguments: str | Path, width: int = 80) -> Ran:
        if width:
            monkeypatch.setenv("COLUMNS", str(width))
        else:
            monkeypatch.delenv("COLUMNS", raising=False)
        result = CliRunner().invoke(app, [str(one) for one in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return invoke


@pytest.fixture
def tiltyard() -> Run:
    """Runs the real thing: a process of its own, through its entry point, into a pipe."""

    def start(*arguments: str | Path, width: int = 0) -> Ran:
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        if width:
            environment["COLUMNS"] = str(width)
        command = [sys.executable, "-m", "tiltyard.cli", *(str(one) for one in arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        return Ran(done.returncode, done.stdout, done.stderr)

    return start


def on_terminal(*arguments: str) -> str:
    """What somebody sees who runs a command on a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "150", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen([sys.executable, "-m", "tiltyard.cli", *arguments], stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        found = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not part:
                break
            found += part
        assert process.wait(60) == 0
    os.close(ours)
    return found.decode()


def rows(first: int, last: int) -> pa.Table:
    numbers = range(first, last)
    return pa.table({"id": list(numbers), "name": [f"name {number}" for number in numbers]})


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six versions by two libraries: an append that was rebased, an index, deleted rows, a tag, a branch. Nobody writes to it."""
    path = tmp_path_factory.mktemp("cli") / "readings"
    table = ty.Table.create(path, rows(0, 100), primary_key=["id"], options=ty.TableOptions(config={"color": "blue"}, message="first load"))
    late = ty.Table.open(path)
    table.append(rows(100, 150), message="Monday", commit=ty.CommitOptions(properties={"job": "7"}))
    late.append(rows(150, 160))
    dataset = lance.dataset(str(path))
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id < 5")
    lance.write_dataset(rows(160, 161), str(path), mode="append")
    dataset.tags.create("monday", 2)
    dataset.create_branch("side", 3)
    return path

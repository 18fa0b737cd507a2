"""A process that stops (SIGSTOP) inside its transaction of a catalog, with the locks in its hands.

python -m tests.lakes.stopped URL KEY
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tiltyard.catalog.open_records import open_records
from tiltyard.catalog.records import Found, Writes
from tiltyard.errors import TiltyardError


def main(url: str, key: str) -> None:
    records = open_records(url, durability="os")
    asked: list[Found] = []

    def decide(found: Found) -> Writes[None]:
        asked.append(found)
        if len(asked) == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return Writes(None, {key: {"by": "the stopped one"}})

    try:
        records.transact([key], [], decide)
        print("committed", flush=True)
    except TiltyardError as error:
        print(f"failed: {error}", flush=True)


@contextmanager
def stopped_inside(url: str, key: str) -> Iterator[subprocess.Popen[str]]:
    """Such a process, from when it is stopped on."""
    command = [sys.executable, "-m", "tests.lakes.stopped", url, key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), f"it ended with {status} instead"
            yield process
        finally:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])

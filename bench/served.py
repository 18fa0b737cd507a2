"""What a commit of a stock client costs through the server, beside the same client on a bare directory, measured in turn.

    python -m bench.served                      1-row adds of lancedb: bare, served; about ten seconds
    python -m bench.served --directory /dev/shm --check   where nothing is flushed, as lancedb flushes nothing; fails above the target

lancedb never flushes; a lake does, twice for each commit. So the ratio on a disk says what a flush costs there, and the ratio on a
directory in memory what the server costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lancedb

from bench.commit import in_turn

TARGET = 2.0


@contextmanager
def server(home: Path) -> Iterator[str]:
    """A server process on a lake; its URL."""
    command = [sys.executable, "-m", "tiltyard.cli", "serve", str(home), "--port", "0", "--json", "--audit-log", f"{home}.audit"]
    with (home.parent / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        said = b""
        for line in process.stdout:
            said += line
            if line.startswith(b"}"):
                break
        yield str(json.loads(said)["url"])
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def measure(directory: str | None, adds: int) -> dict[str, list[float]]:
    """Milliseconds of each add, served and bare in turn."""
    with tempfile.TemporaryDirectory(dir=directory) as at, server(Path(at) / "lake") as url:
        served = lancedb.connect_namespace("rest", {"uri": url}).create_table("t", [{"id": 0}])
        bare = lancedb.connect(f"{at}/bare").create_table("t", [{"id": 0}])
        works = {"served": lambda: served.add([{"id": 1}]), "bare": lambda: bare.add([{"id": 1}])}
        in_turn(10, **works)
        taken = in_turn(adds, **works)
        assert served.count_rows() == bare.count_rows() == adds + 11
        return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adds", type=int, default=200)
    parser.add_argument("--directory", help="where lake and table lie; a directory for temporary files by default")
    parser.add_argument("--check", action="store_true", help=f"fail where the ratio of the medians is above {TARGET}")
    given = parser.parse_args()
    taken = measure(given.directory, given.adds)
    for name, times in taken.items():
        ordered = sorted(times)
        print(f"{name:>7}  median {statistics.median(ordered):6.2f} ms  p10 {ordered[len(ordered) // 10]:6.2f} ms")
    ratio = statistics.median(taken["served"]) / statistics.median(taken["bare"])
    print(f"  ratio  {ratio:.2f} (target {TARGET})")
    return int(given.check and ratio > TARGET)


if __name__ == "__main__":
    sys.exit(main())

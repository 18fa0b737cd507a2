"""The servers of the tests must not outlive them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import sys
from pathlib import Path
from tests.support.servers import forgetful_s3
with forgetful_s3(Path(sys.argv[1])) as server:
    print(server.endpoint.rpartition(":")[2], flush=True)
    sys.stdin.read()
"""


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert answers(port)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 20
    while answers(port) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not answers(port)

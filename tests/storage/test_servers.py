"""The servers of the tests must not outlive them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import servers
from tests.support.servers import STARTS, ExitedEarly, forgetful_s3, started

CHILD = """
import sys
from pathlib import Path
from tests.support.servers import forgetful_s3
with forgetful_s3(Path(sys.argv[1])) as server:
    print(server.endpoint.rpartition(":")[2], flush=True)
    sys.stdin.read()
"""


def test_a_port_that_somebody_took_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(0)
        chosen = [[taken.getsockname()[1]], servers.free_ports(1)]
        monkeypatch.setattr(servers, "free_ports", lambda count: chosen.pop(0))
        free = chosen[1][0]
        with forgetful_s3(tmp_path) as server:
            assert server.endpoint == f"http://127.0.0.1:{free}"
            assert answers(free)


def test_a_server_that_never_starts_is_not_started_for_ever(tmp_path: Path) -> None:
    plans: list[int] = []

    def plan() -> tuple[list[str], str]:
        plans.append(1)
        return [sys.executable, "-c", "raise SystemExit('broken')"], f"http://127.0.0.1:{servers.free_ports(1)[0]}"

    with pytest.raises(ExitedEarly, match="broken"), started(plan, tmp_path / "log", tmp_path):
        pytest.fail("it runs")
    assert len(plans) == STARTS


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
    deadline = time.monotonic() + 120
    while answers(port) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not answers(port)

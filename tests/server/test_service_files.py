"""The unit of systemd and the Dockerfile of the page on the server: what they say is understood, and their command lines serve and stop."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.served import served
from tiltyard.server.server_options import ServerLimits

PAGE = (Path(__file__).parents[2] / "docs" / "operations" / "server.md").read_text(encoding="utf-8")


def block(begins: str) -> str:
    found = re.search(rf"^```text\n({re.escape(begins)}.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def unit_options() -> list[str]:
    command = re.search(r"^ExecStart=(.*)$", block("[Unit]"), re.MULTILINE)
    assert command is not None
    return shlex.split(command[1])


def image_options() -> list[str]:
    command = re.search(r"^CMD (\[.*\])$", block("FROM "), re.MULTILINE)
    assert command is not None
    found: list[str] = json.loads(command[1])
    return found


def test_the_unit_is_one_that_systemd_reads(tmp_path: Path) -> None:
    text = block("[Unit]")
    waits = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert waits is not None
    assert int(waits[1]) >= ServerLimits().shutdown_seconds, "systemd kills the server before it is done"
    if (systemd := shutil.which("systemd-analyze")) is None:
        pytest.skip("there is no systemd-analyze here; the command line of the unit is run below")
    unit = tmp_path / "tiltyard.service"
    unit.write_text(text.replace("/opt/tiltyard/bin/tiltyard", str(shutil.which("true"))), encoding="utf-8")
    done = subprocess.run([systemd, "verify", str(unit)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "tiltyard.service" in line]) == (0, [])


@pytest.mark.parametrize("command", [unit_options(), image_options()], ids=["unit", "image"])
def test_its_command_line_serves_and_stops(tmp_path: Path, command: list[str]) -> None:
    program, verb, _, *options = command
    assert (Path(program).name, verb) == ("tiltyard", "serve")
    options = [option.replace("/var/log/tiltyard", str(tmp_path)) for option in options]
    with served(tmp_path / "lake", *options) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        with urllib.request.urlopen(f"{url}/readyz", timeout=60) as answer:
            assert answer.status == 200
        request = urllib.request.Request(f"{url}/v1/table")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        with refused.value as answer:
            assert answer.code == 401
        assert server.stop(signal.SIGTERM) == 0

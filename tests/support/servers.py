"""Real servers on loopback ports, started by a test session and gone with it, also when the session is killed."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ACCESS_KEY = "tiltyard-test"
SECRET_KEY = "tiltyard-test-secret"
START_SECONDS = 180.0
STARTS = 3

# The child asks the kernel to be killed when its parent dies (Linux), checks that the parent has not died already, and becomes the server.
_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class S3Server:
    """An S3-compatible server that runs."""

    name: str
    endpoint: str

    @property
    def storage_options(self) -> dict[str, str]:
        """Fit for pylance and for ``open_store``."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": "us-east-1",
            "allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
        }

    def create_bucket(self, bucket: str) -> None:
        """Unsigned: the servers let an anonymous client do that."""
        request = urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")
        with urllib.request.urlopen(request, timeout=30):
            pass


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now. Somebody may take one before the server does: then starting fails, and is tried again."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextmanager
def running(command: Sequence[str], log: Path, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server until the block ends or this process dies."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _WITH_PARENT, str(os.getpid()), *command], stdout=output, stderr=subprocess.STDOUT, cwd=cwd
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


class ExitedEarly(RuntimeError):
    """A server that ended before it answered, as it does when somebody took its port."""


@contextmanager
def started(plan: Callable[[], tuple[Sequence[str], str]], log: Path, cwd: Path) -> Iterator[str]:
    """Runs a server that answers, and gives the address that answered. Plans anew, with fresh ports, when one ends at once."""
    for attempt in range(1, STARTS + 1):
        command, url = plan()
        with ExitStack() as stack:
            process = stack.enter_context(running(command, log, cwd))
            try:
                wait_for_http(process, url, log)
            except ExitedEarly:
                if attempt == STARTS:
                    raise
                continue
            yield url
            return


def wait_for_http(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Returns when the server gives any HTTP answer."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ExitedEarly(f"{process.args!r} ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except urllib.error.HTTPError as answer:
            answer.close()
            if answer.code < 500:
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} did not start: {log.read_text(errors='replace')[-2000:]}")


def _tool(name: str) -> str:
    """A command that was installed beside this Python. Missing is an error, never a reason to skip."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise RuntimeError(f"{path} is missing: install the development dependencies (make venv)")
    return str(path)


@contextmanager
def seaweedfs(directory: Path, role: str | None = None) -> Iterator[S3Server]:
    """SeaweedFS: a real distributed store with an S3 door.

    Args:
        directory: for its files.
        role: the ARN of a role that may do everything, and that its token service gives out; nobody gets in without keys then.
    """
    data = directory / "seaweedfs"
    data.mkdir()
    config = directory / "seaweedfs.json"
    credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    identities = [{"name": "test", "credentials": credentials, "actions": ["Admin"]}, {"name": "anonymous", "actions": ["Admin"]}]
    config.write_text(json.dumps({"identities": identities if role is None else identities[:1]}))
    more = [] if role is None else [f"-s3.iam.config={_token_service(directory, role)}"]
    names = ("master", "volume", "filer", "s3")
    taken: list[int] = []

    def plan() -> tuple[list[str], str]:
        ports = dict(zip([*names, *(f"{name}.grpc" for name in names)], free_ports(8), strict=True))
        taken.extend(ports.values())
        listening = [f"-{name}.port{'.grpc' if of else ''}={port}" for key, port in ports.items() for name, _, of in [key.partition(".")]]
        command = [
            *(_tool("weed"), "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
            *("-filer", "-s3", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0", *more),
            *("-volume.max=50", "-master.volumeSizeLimitMB=64", "-volume.preStopSeconds=0", *listening),
        ]
        return command, f"http://127.0.0.1:{ports['s3']}/healthz"

    try:
        with started(plan, directory / "seaweedfs.log", directory) as url:
            yield S3Server("seaweedfs", url.removesuffix("/healthz"))
    finally:
        for port in taken:
            for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                leftover.unlink(missing_ok=True)


def _token_service(directory: Path, role: str) -> Path:
    """The settings of SeaweedFS for credentials that end by themselves."""
    signing = base64.b64encode(b"only for tests, never elsewhere: 0123456789").decode()
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}]}
    trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": ["sts:AssumeRole"]}]}
    settings = {
        "sts": {"tokenDuration": "1h", "maxSessionLength": "12h", "issuer": "tests", "signingKey": signing},
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "everything", "document": everything}],
        "roles": [{"roleName": role.rpartition("/")[2], "roleArn": role, "attachedPolicies": ["everything"], "trustPolicy": trust}],
    }
    path = directory / "tokens.json"
    path.write_text(json.dumps(settings))
    return path


@contextmanager
def forgetful_s3(directory: Path) -> Iterator[S3Server]:
    """A server that ignores preconditions, as some S3-compatible ones do: the last writer wins."""
    script = Path(__file__).with_name("forgetful_s3.py")

    def plan() -> tuple[list[str], str]:
        (port,) = free_ports(1)
        return [sys.executable, str(script), str(port)], f"http://127.0.0.1:{port}"

    with started(plan, directory / "forgetful.log", directory) as endpoint:
        yield S3Server("forgetful", endpoint)

"""A lake behind a real server process on loopback, gone with the test session also when that is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import uvicorn

from tests.support.servers import _WITH_PARENT
from tiltyard.lake import Lake
from tiltyard.server.audit import AuditLog
from tiltyard.server.authentication import Authenticator
from tiltyard.server.lake_server import LakeServer
from tiltyard.server.server_options import ServerOptions

ARROW = "application/vnd.apache.arrow.stream"


@dataclass(slots=True)
class Answer:
    """What a server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> int:
        return int(self.json["code"])


@dataclass(slots=True)
class Served:
    """A server process, and the lake that it serves."""

    url: str
    home: Path
    process: subprocess.Popen[bytes]
    errors: Path
    headers: dict[str, str] = field(default_factory=dict)

    def lake(self) -> Lake:
        """The same lake, opened by this process."""
        return Lake.open(self.home, create=False)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def post(self, path: str, body: Any = None, *, raw: bytes | None = None, headers: Mapping[str, str] | None = None) -> Answer:
        data = json.dumps(body).encode() if raw is None else raw
        return self.ask("POST", path, data, headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("GET", path, None, headers)

    def ask(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str] | None) -> Answer:
        sent = {"content-type": "application/json", **self.headers, **(headers or {})}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read())

    def rows(self, path: str, table: pa.Table) -> Answer:
        return self.post(path, raw=ipc(table), headers={"content-type": ARROW})

    def log(self) -> str:
        return self.errors.read_text(encoding="utf-8")

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Ends the process, and waits for it."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(120)


def ipc(table: pa.Table) -> bytes:
    """Rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@contextmanager
def served(home: Path, *options: str, environment: Mapping[str, str] | None = None, program: Sequence[str] = ()) -> Iterator[Served]:
    """Serves a lake until the block ends.

    Args:
        home: the lake's directory; it is made if it is not there.
        options: of ``tiltyard serve``.
        environment: more variables for the process.
        program: what is run in the place of the command line; the same options are given to it.
    """
    errors = home.parent / f"{home.name}.log"
    command = [*(program or (sys.executable, "-m", "tiltyard.cli", "serve")), str(home), "--port", "0", "--json", *options]
    started = [sys.executable, "-c", _WITH_PARENT, str(os.getpid()), *command]
    with errors.open("ab") as log:
        process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **(environment or {})})
    try:
        yield Served(_url(process, errors), home, process, errors)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _url(process: subprocess.Popen[bytes], errors: Path) -> str:
    """The address that the process announces, in one JSON document."""
    assert process.stdout is not None
    said = b""
    for line in process.stdout:
        said += line
        if line.startswith(b"}"):
            return str(json.loads(said)["url"])
    raise AssertionError(f"the server did not start: {said!r} {errors.read_text(encoding='utf-8')[-2000:]}")


@contextmanager
def served_here(
    lake: Lake, options: ServerOptions | None = None, *, required: bool = False, audit: Path | None = None
) -> Iterator[tuple[str, LakeServer]]:
    """Serves a lake from a thread of this process, which takes no time to start; its URL."""
    log = AuditLog(audit or Path(lake.root_uri).parent / "audit.jsonl")
    door = LakeServer(lake, options or ServerOptions(port=0), Authenticator(lake, required=required), log)
    quiet: dict[str, Any] = {"lifespan": "off", "log_config": None, "access_log": False}
    idle = int(door.options.limits.idle_seconds)
    server = uvicorn.Server(uvicorn.Config(door.app(), host="127.0.0.1", port=0, timeout_keep_alive=idle, **quiet))
    ready = threading.Event()
    startup = server.startup

    async def started(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        ready.set()

    server.startup = started  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(60), "the server did not start"
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", door
    finally:
        server.should_exit = True
        thread.join(60)
        door.close()
        log.close()

"""A server that gives the answers a test wrote down: errors, dropped connections, silence."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Answer = int | Literal["drop", "silence"]
"""A status, a connection closed without a word after the request was read, or no answer until the server stops."""


@dataclass(slots=True)
class Scripted:
    endpoint: str
    script: deque[Answer] = field(default_factory=deque)
    body: bytes = b"<Error><Code>Planted</Code><Message>planted</Message></Error>"
    requests: list[str] = field(default_factory=list)

    def answer_with(self, *answers: Answer) -> None:
        self.script = deque(answers)
        self.requests.clear()


@contextmanager
def scripted_http() -> Iterator[Scripted]:
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            scripted.requests.append(f"{self.command} {self.path}")
            status = scripted.script.popleft() if scripted.script else 599
            if status == "drop":
                self.close_connection = True
                return
            if status == "silence":
                over.wait(60)
                self.close_connection = True
                return
            self.send_response(status)
            body = b"" if self.command == "HEAD" else scripted.body
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"planted"')
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scripted = Scripted(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield scripted
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join(10)

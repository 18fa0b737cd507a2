"""An HTTP proxy before an object store: delays each request by as much as a network would, and counts them."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

_LONGEST_HEAD: Final = 1 << 20
_WITHOUT_BODY: Final = ("204", "304")
_EXPECT: Final = re.compile(rb"(?i)(?<=\r\n)expect:[^\r]*\r\n")


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request: what was asked, when it came in and when its answer went out, in seconds."""

    method: str
    path: str
    query: str
    conditional: bool
    begun: float
    ended: float
    status: str
    bytes_out: int
    """Of the answer."""

    @property
    def kind(self) -> str:
        """``LIST``, ``CREATE`` (a PUT under a condition), or the method."""
        if self.method == "GET" and "list-type=2" in self.query:
            return "LIST"
        return "CREATE" if self.method == "PUT" and self.conditional else self.method


@dataclass
class DelayingProxy:
    """Passes requests on after ``delay`` seconds. ``seen`` has all that were answered."""

    upstream: str
    delay: float = 0.0
    endpoint: str = ""
    seen: list[SeenRequest] = field(default_factory=list)

    def kinds(self) -> Counter[str]:
        return Counter(request.kind for request in self.seen)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(self.upstream)
        below_reader, below_writer = await asyncio.open_connection(target.hostname, target.port, limit=_LONGEST_HEAD)
        try:
            while await self._pass_on(reader, writer, below_reader, below_writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # one of the two hung up, or the proxy is to stop
        finally:
            below_writer.close()
            writer.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, below: asyncio.StreamReader, below_writer: asyncio.StreamWriter
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        begun = time.monotonic()
        first, headers = _parsed(head)
        method, target, _ = first.split(" ", 2)
        if headers.get("expect", "").lower() == "100-continue":  # answered here: the body is passed on with its head
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = _EXPECT.sub(b"", head)
        body = await _body(reader, headers)
        await asyncio.sleep(self.delay)
        below_writer.write(head + body)
        await below_writer.drain()
        answer = await below.readuntil(b"\r\n\r\n")
        status_line, answered = _parsed(answer)
        status = status_line.split(" ", 2)[1]
        content = b"" if method == "HEAD" or status in _WITHOUT_BODY else await _body(below, answered, to_end=True)
        path, _, query = target.partition("?")
        # Noted first: whoever has the answer may ask at once what was seen.
        conditional = "if-none-match" in headers or "if-match" in headers
        self.seen.append(SeenRequest(method, unquote(path), query, conditional, begun, time.monotonic(), status, len(content)))
        writer.write(answer + content)
        await writer.drain()
        return headers.get("connection", "").lower() != "close" and answered.get("connection", "").lower() != "close"


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    return lines[0], headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str], *, to_end: bool = False) -> bytes:
    """The body as it is on the wire."""
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.read() if to_end else b""
    parts = []
    while True:
        size = await reader.readuntil(b"\r\n")
        parts += [size, await reader.readexactly(int(size.split(b";")[0], 16) + 2)]
        if int(size.split(b";")[0], 16) == 0:
            return b"".join(parts)


@contextmanager
def delaying_proxy(upstream: str, delay: float = 0.0) -> Iterator[DelayingProxy]:
    """Runs a proxy in a thread of this process until the block ends."""
    proxy = DelayingProxy(upstream, delay)
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def listen() -> None:
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=_LONGEST_HEAD)
        proxy.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        async with server:
            await server.serve_forever()

    def run() -> None:
        asyncio.set_event_loop(loop)
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(listen())
        loop.close()

    thread = threading.Thread(target=run, name="delaying proxy", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join()

"""Runs the server: one process, one port, until it is told to stop; then it finishes what it has begun."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tiltyard.lake import Lake
from tiltyard.redact import redact
from tiltyard.server.audit import AuditLog
from tiltyard.server.authentication import Authenticator, JwtCheck
from tiltyard.server.lake_server import LakeServer
from tiltyard.server.server_options import ServerOptions
from tiltyard.server.tokens import has_tokens
from tiltyard.server.upkeep_policies import read_policies
from tiltyard.server.upkeep_runs import UpkeepThread

_log = logging.getLogger("tiltyard.server")


def serve(lake: Lake, options: ServerOptions, ready: Callable[[str], None] | None = None) -> None:
    """Serves a lake until the process is told to stop (SIGTERM or SIGINT).

    Args:
        lake: an open lake; it stays open.
        options: where, to whom, and how much.
        ready: called with the address once requests are accepted.
    """
    jwt = JwtCheck.from_file(options.auth_config) if options.auth_config is not None else None
    required = options.authenticates or (options.auth is None and has_tokens(lake))
    policies = read_policies(options.upkeep) if options.upkeep is not None else ()
    audit = AuditLog(options.audit_log)
    server = LakeServer(lake, options, Authenticator(lake, jwt, required=required), audit)
    limits = options.limits
    config = uvicorn.Config(
        server.app(),
        host=options.host,
        port=options.port,
        http=_bounded(limits.header_seconds, server),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(limits.idle_seconds),
        timeout_graceful_shutdown=int(limits.shutdown_seconds),
        h11_max_incomplete_event_size=64 * 1024,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
    )
    upkeep = UpkeepThread(lake, policies, server.note_upkeep)
    try:
        _Announcing(config, server, ready, upkeep if policies else None).run()
    finally:
        upkeep.stop()
        server.close()
        if not upkeep.join(limits.shutdown_seconds):
            _log.warning("upkeep is still running and ends with the process; the next run continues it")
        audit.close()


class _Announcing(uvicorn.Server):
    """Tells its address once it listens, and its application when it stops."""

    def __init__(
        self, config: uvicorn.Config, server: LakeServer, ready: Callable[[str], None] | None, upkeep: UpkeepThread | None
    ) -> None:
        super().__init__(config)
        self._server, self._ready, self._upkeep = server, ready, upkeep

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal asks the server to stop, which is no failure of the process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._upkeep is not None:
            self._upkeep.start()
        if self.started and self._ready is not None:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self._ready(f"{self._server.options.scheme}://{shown}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._server.is_stopping = True
        if self._upkeep is not None:
            self._upkeep.stop()
        await super().shutdown(sockets)


class JoiningTransport:
    """A transport that sends the head of an answer together with what follows at once: one packet, and one wake-up of the client.

    Args:
        transport: what it is around.
        loop: a head that nothing follows is sent in its next round.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._head and data.startswith(b"HTTP/") and data[9:10] != b"1":  # 1xx asks the client to go on, and has no body
            self._head = bytes(data)
            self._loop.call_soon(self._send)
        else:
            self._send(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self, data: bytes = b"") -> None:
        head, self._head = self._head, b""
        if head or data:
            self._transport.write(head + data)


def _bounded(seconds: float, server: LakeServer) -> type[H11Protocol]:
    """Connections that are closed if the head of a request does not come in time: a slow client holds nothing but its connection."""

    class BoundedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(JoiningTransport(transport, self.loop))  # type: ignore[arg-type]
            self._arm()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._disarm()  # a request is being answered; its body has a limit of its own
            elif self._deadline is None:
                self._arm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            if self.client is not None:
                server.turns.forget(self.client)
            super().connection_lost(exc)

        def _arm(self) -> None:
            self._deadline = self.loop.call_later(seconds, self._too_slow)

        def _disarm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _too_slow(self) -> None:
            self._deadline = None
            if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
                self.transport.close()

    return BoundedProtocol


class JsonLines(logging.Formatter):
    """Log lines as JSON objects, without credentials."""

    def format(self, record: logging.LogRecord) -> str:
        members: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if record.exc_info:
            members["error"] = redact(self.formatException(record.exc_info))
        return json.dumps(members)


def log_as_json(level: int = logging.INFO) -> None:
    """Sends all log lines to standard error, a JSON object each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)

"""The connection to ``tiltyard serve``: requests in JSON, answers, and what a refusal or a lost answer means."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from tiltyard.errors import ContentionError, InvalidInput, NotFound, RetryableConflict, StorageError, TiltyardError
from tiltyard.interfaces import system_runtime
from tiltyard.redact import redact

SECONDS: Final = 120.0
"""For which an answer is waited for."""
FRESH: Final = 30.0
"""Seconds for which a silent connection is used again; the server closes it after more than twice that."""
BUSY_SECONDS: Final = 60.0
"""For which a server that is too busy to begin is asked again."""
NOT_BEGUN: Final = "x-tiltyard-not-begun"
"""The header of an answer that refuses something by a limit, before anything of it was done."""
SILENT: Final = 1.0
"""Seconds after which a connection is given to another thread than the one that used it."""
_NOT_FOUND: Final = frozenset({4, 10})
_CONFLICTS: Final = frozenset({14, 19})
_LOCAL: Final = frozenset({"127.0.0.1", "::1", "localhost"})

_Idle = tuple[http.client.HTTPConnection, float, int]
"""A connection that nobody uses, since when, and which thread used it last."""

T = TypeVar("T")


def is_server(uri: object) -> bool:
    """Whether an address is that of a server."""
    return isinstance(uri, str) and uri.startswith(("http://", "https://"))


def check_server(url: str, token: str | None) -> str:
    """An address of a server, without a slash at its end.

    Raises:
        InvalidInput: it is none, or a token would travel unencrypted to another machine.
    """
    parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise InvalidInput(f"{redact(str(url))[:80]!r} is not the address of a server.", argument="url", advice="Use https://host:port.")
    if token is not None and parts.scheme == "http" and parts.hostname not in _LOCAL:
        raise InvalidInput("A token would travel unencrypted.", argument="url", advice="Use https://, or a tunnel to this machine.")
    return url.rstrip("/")


class _BusyError(Exception):
    """The server was too busy to begin: whatever it was can be sent again."""

    def __init__(self, seconds: float, refusal: TiltyardError) -> None:
        super().__init__(str(refusal))
        self.seconds, self.refusal = min(max(seconds, 0.1), 5.0), refusal


class ServerLink:
    """Sends requests to one server. Threads may share it: a connection serves one request at a time; a forked process opens others.

    Args:
        url: as ``check_server`` gives it.
        token: as ``tiltyard token create`` showed it.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url, self.token = url, token
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._process = os.getpid()
        weakref.finalize(self, _close_all, self._idle)

    def __repr__(self) -> str:
        return f"ServerLink({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerLink, (self.url, self.token)

    def post(self, path: str, body: Mapping[str, Any], *, writes: bool = True, repeatable: bool = False) -> Any:
        """Sends a request, and reads its answer.

        Args:
            path: below the server's address.
            body: becomes JSON.
            writes: whether it may change something, so that a lost answer leaves it unknown whether it did.
            repeatable: whether doing it twice does no harm, so that it is sent once more; so is one that only reads.

        Raises:
            RetryableConflict: another commit came first.
            StorageError: the server cannot be reached or failed; ``maybe_applied`` where it is not known whether it did what was asked.
        """
        until = time.monotonic() + BUSY_SECONDS
        tries = 0
        while True:
            tries += 1
            try:
                return self._sent(path, body, writes)
            except _BusyError as busy:
                if time.monotonic() + busy.seconds > until:
                    raise busy.refusal from None
                self._pause(busy.seconds)
            except StorageError as error:
                if (writes and not repeatable) or not error.transient or tries > 1:
                    raise

    def _pause(self, seconds: float) -> None:
        """Waits for a while that is not the same for all who were refused."""
        clock = system_runtime()
        clock.clock.sleep(seconds * clock.random.uniform(0.5, 1.5))

    def close(self) -> None:
        """Closes connections that nobody uses at the moment. Closing twice does no harm; the next request opens another."""
        with self._lock:
            _close_all(self._idle)

    def _sent(self, path: str, body: Mapping[str, Any], writes: bool) -> Any:
        data = json.dumps(body, separators=(",", ":")).encode()
        headers = {"content-type": "application/json", **({} if self.token is None else {"authorization": f"Bearer {self.token}"})}
        connection = self._taken()
        try:
            if connection.sock is None:
                self._told(connection.connect, maybe_applied=False)
            whole = urlsplit(self.url).path + path
            status, told, wait = self._told(lambda: _exchanged(connection, whole, data, headers), maybe_applied=writes)
            answer = None if status != 200 else self._told(lambda: json.loads(told), maybe_applied=writes)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append((connection, time.monotonic(), threading.get_ident()))
        if status != 200:
            refusal = refused(status, told, self.url, writes=writes and wait is None)
            raise refusal if wait is None else _BusyError(wait, refusal)
        return answer

    def _taken(self) -> http.client.HTTPConnection:
        """A connection that was used a moment ago, or a new one that is not connected yet.

        A thread is given the one that it used before, or one that has been silent for a while: the server knows writers by their
        connections, and who changed them would be taken for another one when its turn at a table comes.
        """
        old: list[http.client.HTTPConnection] = []
        found: http.client.HTTPConnection | None = None
        with self._lock:
            if self._process != os.getpid():  # what a forked child finds is its parent's
                self._process = os.getpid()
                self._idle.clear()
            now, me = time.monotonic(), threading.get_ident()
            free = [idle for idle in self._idle if idle[2] == me or now - idle[1] > SILENT]
            for idle in sorted(free, key=lambda idle: idle[2] == me, reverse=True):
                self._idle.remove(idle)
                if idle[0].sock is not None and now - idle[1] < FRESH:
                    found = idle[0]
                    break
                old.append(idle[0])
        for stale in old:
            stale.close()
        if found is not None:
            return found
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(str(parts.hostname), parts.port, timeout=SECONDS)

    def _told(self, step: Callable[[], T], *, maybe_applied: bool) -> T:
        """Does a step of an exchange, and puts into our words what goes wrong in it."""
        try:
            return step()
        except (OSError, ValueError, http.client.HTTPException) as error:
            what = f"{self.url} did not answer ({redact(str(error) or type(error).__name__)[:120]})."
            raise StorageError(what, name=self.url, maybe_applied=maybe_applied, transient=True) from error


def _close_all(idle: list[_Idle]) -> None:
    while idle:
        idle.pop()[0].close()


def _exchanged(
    connection: http.client.HTTPConnection, path: str, data: bytes, headers: Mapping[str, str]
) -> tuple[int, bytes, float | None]:
    """Status and text of an answer; and the seconds after which to come again, where the server was too busy to begin."""
    connection.request("POST", path, data, dict(headers))
    with connection.getresponse() as answer:
        told = answer.headers.get("retry-after", "1") if answer.headers.get(NOT_BEGUN) else None
        wait = None if told is None else float(told) if told.isdecimal() else 1.0
        return answer.status, answer.read(), wait


def refused(status: int, body: bytes, url: str, *, writes: bool = True) -> TiltyardError:
    """What a server's refusal means."""
    try:
        told = json.loads(body)
        code, said = int(told["code"]), redact(str(told["error"]))[:200]
    except (ValueError, KeyError, TypeError):
        code, said = -1, f"it answered {status}"
    if code in _CONFLICTS:
        return RetryableConflict(f"The server refused it: {said}", operation="transaction", advice="Nothing was published. Run it again.")
    if code in _NOT_FOUND:
        return NotFound(said, name=url)
    if status == 429:
        return ContentionError(said, operation="transaction", attempts=1)
    if status in (401, 403, 413) or code in (0, 13):
        return InvalidInput(f"The server refused it: {said}", argument="request")
    # A server that failed, or is about to stop, may have done it before.
    return StorageError(f"The server failed: {said}", name=url, maybe_applied=writes and status >= 500, transient=status == 503)

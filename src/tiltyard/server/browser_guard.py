"""Keeps pages of other sites out of a server that asks nobody for a proof.

Such a server listens on loopback, where every program of this machine reaches it, a browser among them. A page from anywhere may have the
browser send requests there; and a name that the page's owner points to this machine makes them look like requests to his own site. A
browser says in each of them which page it comes from and which name was asked for. Clients that are no browsers say the name alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tiltyard.server.wire import failure

PERMISSION_DENIED: Final = 15
_OF_THE_SAME_SITE: Final = ("same-origin", "none")


def is_foreign(headers: Mapping[str, str], *, local: bool) -> bool:
    """Whether a request comes from a page of another site.

    Args:
        headers: of the request.
        local: whether the server listens on loopback alone, so that it has no other name than that.
    """
    host = headers.get("host", "")
    if local and not _is_loopback(host):
        return True
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return True
    return headers.get("sec-fetch-site", "none") not in _OF_THE_SAME_SITE


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class BrowserGuard:
    """An application behind the guard.

    Args:
        app: what is guarded.
        local: as for ``is_foreign``.
    """

    def __init__(self, app: ASGIApp, *, local: bool) -> None:
        self._app, self._local = app, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] == "http" and is_foreign(Request(scope).headers, local=self._local):
            said = "A server without tokens refuses requests from pages of other sites. Start it with --auth token, and use a token."
            refused = failure(PERMISSION_DENIED, said, "", headers={"connection": "close"})
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)

"""The console without a process: a lake's pages asked for in this one, and what a page is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import tiltyard as ty
from tests.support.served import Answer
from tiltyard.server.audit import AuditLog
from tiltyard.server.authentication import Authenticator
from tiltyard.server.lake_server import LakeServer
from tiltyard.server.principals import Grant
from tiltyard.server.server_options import ServerOptions
from tiltyard.server.tokens import create_token

HOST = "127.0.0.1:2333"


@dataclass(slots=True)
class ConsoleClient:
    """Asks an application for pages, as a browser does that keeps cookies."""

    app: Any
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, b"", {key.replace("_", "-"): value for key, value in headers.items()})

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        """Sends a form, as a page of the console does."""
        sent = {
            "origin": f"http://{HOST}",
            "sec-fetch-site": "same-origin",
            **{key.replace("_", "-"): value for key, value in headers.items()},
        }
        return self.ask("POST", path, urlencode(form).encode(), {key: value for key, value in sent.items() if value})

    def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        where, _, query = f"/console{path}".partition("?")
        where = unquote(where)  # as servers do
        cookie = "; ".join(f"{key}={value}" for key, value in self.cookies.items())
        sent = {"host": HOST, **headers, **({"cookie": cookie} if cookie else {})}
        scope = {
            "type": "http", "method": method, "path": where, "raw_path": where.encode(), "query_string": query.encode(),
            "headers": [(key.encode(), value.encode()) for key, value in sent.items()],
            "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 2333),
            "scheme": "http", "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        return self._kept(asyncio.run(_asked(self.app, scope, body)))

    def _kept(self, answer: Answer) -> Answer:
        for name, value in answer.headers.items():
            if name.startswith("set-cookie"):
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0].strip('"')
        return answer

    def text(self, path: str) -> str:
        """A page that has to be there."""
        answer = self.get(path)
        assert answer.status == 200, (path, answer.status, answer.body[:500])
        return answer.body.decode()


async def _asked(app: Any, scope: Mapping[str, Any], body: bytes) -> Answer:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    named: dict[str, str] = {}
    for number, (key, value) in enumerate(sent[0]["headers"]):
        name = key.decode()
        named[name if name not in named else f"{name}-{number}"] = value.decode()
    return Answer(sent[0]["status"], named, b"".join(message.get("body", b"") for message in sent[1:]))


@contextmanager
def console(lake: ty.Lake, *, tokens: bool = False, audit: Path | None = None) -> Iterator[ConsoleClient]:
    """The console of a lake.

    Args:
        lake: which one.
        tokens: whether a token is asked for.
        audit: where requests are written down.
    """
    log = AuditLog(audit)
    server = LakeServer(lake, ServerOptions(auth="token" if tokens else "off"), Authenticator(lake, required=tokens), log)
    try:
        yield ConsoleClient(server.app())
    finally:
        server.close()
        log.close()


def signed_in(client: ConsoleClient, lake: ty.Lake, role: str) -> ConsoleClient:
    token, _ = create_token(lake, f"holder of {role}", [Grant.parse(role)])
    own = ConsoleClient(client.app)
    assert own.post("/sign-in", {"token": token, "next": "/console/tables"}).status == 303
    return own


class PageParts(HTMLParser):
    """Elements, attributes and texts of a page.

    Attributes:
        tags: names of all elements.
        attributes: (element, name, value) of all attributes.
        words: all text.
        open: elements that were not closed.
    """

    _VOID = frozenset({"meta", "link", "input", "br", "hr", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words += data

    def check(self) -> None:
        """No script or style but those that are files of the console; every element closed."""
        assert self.open == []
        scripts = [value for tag, name, value in self.attributes if tag == "script" and name == "src"]
        assert len(scripts) == self.tags.count("script")
        assert all(value.startswith("/console/static/") for value in scripts)
        assert not {"style", "iframe", "object", "embed", "img", "base"} & set(self.tags)
        assert [name for _, name, _ in self.attributes if name.startswith("on") or name == "style"] == []
        links = [value for _, name, value in self.attributes if name in ("href", "src", "action", "hx-get")]
        assert [link for link in links if not link.startswith(("/console", "#"))] == []

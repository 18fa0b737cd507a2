"""The console over HTTP: who looks, at which page, and what a browser may do with the answer.

A page is a function from a ``PageRequest`` to a ``ConsolePage``; ``PAGES`` lists them. They run in a thread, read the lake through a
``LakeViewer``, and are rendered there. A browser proves who it is with a cookie that the sign-in form sets; programs may use the headers
of the protocol.
"""

from __future__ import annotations

import gzip
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from lance_namespace import PermissionDeniedError, UnauthenticatedError
from pyarrow import ArrowException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tiltyard.catalog.lake_values import MAIN
from tiltyard.errors import ConflictError, CorruptTable, InvalidInput, NotFound, TiltyardError
from tiltyard.lake import Lake
from tiltyard.redact import redact
from tiltyard.server.audit import AuditLine, AuditLog, Verdict
from tiltyard.server.authentication import Authenticator, proof_in
from tiltyard.server.browser_guard import is_foreign
from tiltyard.server.console.console_pages import PAGES, PageSpec
from tiltyard.server.console.lake_viewer import LakeViewer
from tiltyard.server.console.page_rendering import BASE, HEADERS, PageAddress, path_to, render, static_file
from tiltyard.server.console.page_values import ConsolePage, PageRequest
from tiltyard.server.principals import NOBODY, Principal
from tiltyard.server.server_metrics import ServerMetrics
from tiltyard.server.server_options import ServerOptions

COOKIE: Final = "tiltyard_token"
THEME: Final = "tiltyard_theme"
THEMES: Final = ("auto", "light", "dark")
MOST_PAGES: Final = 24
"""Pages that are made at one moment; one more is answered with 503."""
_LONGEST_FORM: Final = 64 * 1024
_LONGEST_VALUE: Final = 500
_WORTH_PACKING: Final = 1_000
_YEAR: Final = 365 * 24 * 3600


class ConsoleHost(Protocol):
    """What the console needs of the server that it is part of."""

    lake: Lake
    options: ServerOptions
    authenticator: Authenticator
    audit: AuditLog
    metrics: ServerMetrics

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        """Does something that blocks."""


@dataclass(slots=True)
class _Visit:
    """One request for a page, on its way."""

    spec: PageSpec
    request: Request
    principal: Principal = NOBODY
    target: str = ""


class Console:
    """The pages of a lake.

    Args:
        host: the server.
    """

    def __init__(self, host: ConsoleHost) -> None:
        self._host = host
        self._open = 0

    def routes(self) -> list[Route]:
        """All of the console, below ``/console``."""
        pages = [Route(BASE + spec.path, self._endpoint(spec), methods=[spec.method]) for spec in PAGES]
        return [
            Route("/", _home, methods=["GET"]),
            Route(BASE, _home, methods=["GET"]),
            Route(f"{BASE}/static/{{name}}", _static, methods=["GET"]),
            Route(f"{BASE}/sign-in", self._sign_in_page, methods=["GET"]),
            Route(f"{BASE}/sign-in", self._sign_in, methods=["POST"]),
            Route(f"{BASE}/sign-out", self._sign_out, methods=["POST"]),
            Route(f"{BASE}/theme", self._theme, methods=["POST"]),
            *pages,
            Route(f"{BASE}/{{rest:path}}", self._missing, methods=["GET", "POST"]),
        ]

    # ---- pages -----------------------------------------------------------------------------------------------------------------

    def _endpoint(self, spec: PageSpec) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            visit, began = _Visit(spec, request), time.monotonic()
            if self._open >= MOST_PAGES:
                return self._failure(request, 503, "The server is busy.", "Try again in a moment.", {"retry-after": "1"})
            self._open += 1
            try:
                response = await self._answered(visit)
            finally:
                self._open -= 1
            if response.status_code != 204:
                self._note(visit, response.status_code, time.monotonic() - began)
            return response

        return endpoint

    async def _answered(self, visit: _Visit) -> Response:
        request = visit.request
        if visit.spec.method == "POST" and not _is_own(request):
            return self._failure(request, 403, "This request came from another site.", "Open the console itself, and try there.")
        try:
            visit.principal = await self._principal(request)
        except UnauthenticatedError:
            if visit.spec.method == "POST":
                return self._failure(request, 401, "You are not signed in.", "Sign in, and try again.")
            here = str(PageAddress(request.url.path, dict(request.query_params)))
            return _redirect(path_to("sign-in", next=here))
        try:
            form = await _form(request) if visit.spec.method == "POST" else {}
            return await self._host.in_thread(lambda: self._made(visit, form))  # type: ignore[no-any-return]
        except PermissionDeniedError as error:
            return self._failure(request, 403, str(error), "Ask for a token with that role.")
        except (TiltyardError, ArrowException) as error:
            return self._told(request, error, visit.principal)

    def _made(self, visit: _Visit, form: Mapping[str, str]) -> Response:
        request = visit.request
        query = {key: value[:_LONGEST_VALUE] for key, value in request.query_params.items()}
        seen = query.pop("seen", None)
        viewer = LakeViewer(self._host.lake.signed(visit.principal.name), visit.principal).on_branch(query.get("branch", ""))
        visit.target = "/".join(str(value) for value in request.path_params.values())
        if seen is not None and seen == str(viewer.tip()):
            return Response(status_code=204, headers=dict(HEADERS))
        page = visit.spec.work(PageRequest(viewer, PageAddress(request.url.path, query), dict(request.path_params), form))
        if page.location:
            return _redirect(page.location)
        return self._page(request, page, visit.principal, page.status)

    def _page(self, request: Request, page: ConsolePage, principal: Principal, status: int = 200, more: Mapping[str, str] = {}) -> Response:
        theme = request.cookies.get(THEME, "auto")
        values = {
            **page.values,
            "title": page.title,
            "section": page.section,
            "live": page.live,
            "here": page.here or PageAddress(request.url.path),
            "theme": theme if theme in THEMES else "auto",
            "principal": principal,
            "signed_in": self._host.authenticator.required and principal is not NOBODY,
            "branch": page.branch,
            "branches": page.branches,
            "main": MAIN,
        }
        headers = {**HEADERS, "cache-control": "no-store", **more}
        return _packed(request, Response(render(page.template, values), status, headers, "text/html; charset=utf-8"))

    def _failure(self, request: Request, status: int, what: str, advice: str = "", more: Mapping[str, str] = {}) -> Response:
        page = ConsolePage("error.html", what, values={"status": status, "what": what, "advice": advice})
        return self._page(request, page, NOBODY, status, more)

    def _told(self, request: Request, error: Exception, principal: Principal) -> Response:
        status = 404 if isinstance(error, NotFound) else 400 if isinstance(error, InvalidInput) else 409
        if not isinstance(error, NotFound | InvalidInput | ConflictError | CorruptTable):
            status = 500
        advice = str(getattr(error, "advice", "") or "")
        what = redact(str(error)).removesuffix(advice).strip()[:1000]
        page = ConsolePage(
            "error.html", "Not found" if status == 404 else "That did not work", values={"status": status, "what": what, "advice": advice}
        )
        return self._page(request, page, principal, status)

    async def _missing(self, request: Request) -> Response:
        return self._failure(request, 404, "There is no such page.", "The navigation above lists all pages.")

    def _note(self, visit: _Visit, status: int, seconds: float) -> None:
        verdict: Verdict = "denied" if status in (401, 403) else "failed" if status >= 400 else "allowed"
        operation, client = f"console.{visit.spec.name}", visit.request.client
        who = visit.principal
        self._host.metrics.requests.labels(operation, str(status)).inc()
        self._host.metrics.seconds.labels(operation).observe(seconds)
        remote = client.host if client else ""
        line = AuditLine(secrets.token_hex(8), who.name, who.way, remote, operation, visit.target, verdict, status, "", seconds)
        self._host.audit.note(line)

    # ---- who looks -------------------------------------------------------------------------------------------------------------

    async def _principal(self, request: Request) -> Principal:
        proof = proof_in(request.headers) or request.cookies.get(COOKIE)
        known = self._host.authenticator.known(proof)
        if known is not None:
            return known
        found: Principal = await self._host.in_thread(lambda: self._host.authenticator.principal(proof))
        return found

    async def _sign_in_page(self, request: Request) -> Response:
        if not self._host.authenticator.required:
            return _redirect(BASE + "/")
        page = ConsolePage("sign_in.html", "Sign in", values={"next": _inside(request.query_params.get("next", "")), "refused": False})
        return self._page(request, page, NOBODY)

    async def _sign_in(self, request: Request) -> Response:
        if not _is_own(request):
            return self._failure(request, 403, "This request came from another site.", "Open the console itself, and sign in there.")
        try:
            form = await _form(request)
        except InvalidInput as error:
            return self._failure(request, 400, str(error))
        token, after = form.get("token", "").strip(), _inside(form.get("next", ""))
        try:
            await self._host.in_thread(lambda: self._host.authenticator.principal(token))
        except UnauthenticatedError:
            page = ConsolePage("sign_in.html", "Sign in", values={"next": after, "refused": True})
            return self._page(request, page, NOBODY, 401)
        response = _redirect(after)
        self._set_cookie(response, COOKIE, token, None)
        return response

    async def _sign_out(self, request: Request) -> Response:
        if not _is_own(request):
            return self._failure(request, 403, "This request came from another site.")
        response = _redirect(path_to("sign-in"))
        response.delete_cookie(COOKIE, path=BASE, httponly=True, samesite="strict")
        return response

    async def _theme(self, request: Request) -> Response:
        """Works without a script: the choice is a cookie, and the page comes back in it."""
        if not _is_own(request):
            return self._failure(request, 403, "This request came from another site.")
        try:
            form = await _form(request)
        except InvalidInput as error:
            return self._failure(request, 400, str(error))
        response = _redirect(_inside(form.get("next", "")))
        if form.get("theme") in THEMES:
            self._set_cookie(response, THEME, form["theme"], _YEAR)
        return response

    def _set_cookie(self, response: Response, name: str, value: str, lasts: int | None) -> None:
        secure = self._host.options.certificate is not None
        response.set_cookie(name, value, max_age=lasts, path=BASE, secure=secure, httponly=True, samesite="strict")


def _is_own(request: Request) -> bool:
    """Whether a form was sent by a page of this console. A browser says so; a program that brings a token needs not."""
    said = any(name in request.headers for name in ("origin", "sec-fetch-site"))
    if not said:
        return COOKIE not in request.cookies
    return not is_foreign(request.headers, local=False)


def _inside(address: str) -> str:
    """Where to go on: a page of the console, whatever somebody put into the link."""
    parts = urlsplit(address)
    inside = not parts.scheme and not parts.netloc and (parts.path + "/").startswith(BASE + "/") and "\\" not in address
    return address if inside and all(ord(letter) > 32 for letter in address) else BASE + "/"


def _redirect(address: str) -> Response:
    return RedirectResponse(address, 303, {**HEADERS, "cache-control": "no-store"})


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form.

    Raises:
        InvalidInput: it is too large or malformed.
    """
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_FORM:
                raise InvalidInput("The form is too large.", argument="form")
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=2_000))
    except (ValueError, ClientDisconnect) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("The form is malformed.", argument="form") from error


async def _home(_: Request) -> Response:
    return _redirect(BASE + "/")


async def _static(request: Request) -> Response:
    found = static_file(request.path_params["name"])
    if found is None:
        return Response("There is no such file.", 404, dict(HEADERS), "text/plain")
    kept = "public, max-age=31536000, immutable" if request.query_params.get("v") == found.digest else "no-cache"
    return _packed(request, Response(found.data, 200, {**HEADERS, "cache-control": kept}, found.media))


def _packed(request: Request, response: Response) -> Response:
    """Compressed, if the browser takes that. No page has a secret beside text that others chose, from whose length it could be guessed."""
    response.headers["vary"] = "accept-encoding"
    if "gzip" in request.headers.get("accept-encoding", "") and len(response.body) > _WORTH_PACKING:
        response.body = gzip.compress(bytes(response.body), 5, mtime=0)
        response.headers["content-encoding"] = "gzip"
        response.headers["content-length"] = str(len(response.body))
    return response

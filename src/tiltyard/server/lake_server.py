"""The application: from a request over HTTP to an operation of the namespace, and back.

Each request passes the limits, says who asks, is read into a model, is held against the principal's roles, takes its turn if it writes to a
table that others write to, and is done in a thread. What becomes of it is counted and written to the audit log.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from lance_namespace import (
    ConcurrentModificationError,
    LanceNamespaceError,
    PermissionDeniedError,
    ThrottlingError,
    UnauthenticatedError,
)
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tiltyard.catalog.server_link import NOT_BEGUN
from tiltyard.errors import TiltyardError
from tiltyard.lake import Lake
from tiltyard.lakes.namespace import LakeNamespace
from tiltyard.lakes.namespaces.known_heads import KnownHeads
from tiltyard.lakes.namespaces.namespace_base import CatalogBusyError, told
from tiltyard.lakes.namespaces.namespace_versions import NotAtOnceError
from tiltyard.server.at_once import LoopTime
from tiltyard.server.audit import AuditLine, AuditLog, Verdict
from tiltyard.server.authentication import Authenticator, proof_in
from tiltyard.server.browser_guard import BrowserGuard
from tiltyard.server.catalog_door import CATALOG_ROUTES, CatalogDoor
from tiltyard.server.commit_offers import BY_ITSELF, CommitOffers
from tiltyard.server.console.console_app import Console
from tiltyard.server.openapi import document
from tiltyard.server.principals import NOBODY, Principal
from tiltyard.server.routes import NOT_OFFERED, ROUTES, RouteSpec
from tiltyard.server.server_metrics import CONTENT_TYPE, ServerMetrics
from tiltyard.server.server_options import ServerOptions
from tiltyard.server.settling import SettleQueue
from tiltyard.server.table_turns import TableTurns, branched
from tiltyard.server.upkeep_runs import AUTHOR as UPKEEP_AUTHOR
from tiltyard.server.upkeep_runs import UpkeepStep
from tiltyard.server.vending import Vendor
from tiltyard.server.wire import WireRequest, answer, batched, failed, failure, parsed, read_request, tables_of

_log = logging.getLogger("tiltyard.server")
_RETRY: Final = {"retry-after": "1"}
_NOT_BEGUN: Final = {**_RETRY, NOT_BEGUN: "1"}
_PROMPT_THREADS: Final = 8
_UNAUTHENTICATED_BYTES: Final = 64 * 1024
"""Of a body that is read before its sender is known, for the ``identity`` inside."""


class TooLargeError(Exception):
    """A body is larger than it may be."""


@dataclass(slots=True)
class Exchange:
    """One request on its way through, for the audit log and the figures."""

    spec: RouteSpec
    request: Request
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    principal: Principal = NOBODY
    target: str = ""
    transaction: str = ""
    recheck: str | None = None
    """A token that was good a moment ago, and is looked at again right before the work: it may be revoked since."""
    started: float = field(default_factory=time.monotonic)

    @property
    def peer(self) -> tuple[str, int]:
        client = self.request.client
        return (client.host, client.port) if client else ("", 0)


class LakeServer:
    """A lake behind HTTP.

    Args:
        lake: what is served. Whoever opened it closes it.
        options: how.
        authenticator: says who asks.
        audit: where requests are written down.
    """

    def __init__(self, lake: Lake, options: ServerOptions, authenticator: Authenticator, audit: AuditLog) -> None:
        self.lake, self.options, self.authenticator, self.audit = lake, options, authenticator, audit
        self._pool = ThreadPoolExecutor(options.limits.threads, thread_name_prefix="tiltyard")
        self._prompt_pool = ThreadPoolExecutor(_PROMPT_THREADS, thread_name_prefix="tiltyard-prompt")
        self._settling, self._known = SettleQueue(), KnownHeads()
        self.vendor = Vendor(lake.where.storage.options, lake.where.root, options.vend_to, options.sts)
        self.door = CatalogDoor(lake, self.vendor)
        self.offers = CommitOffers(lake, options.limits.table_queue)
        self.turns = TableTurns(options.limits.table_queue, time.monotonic)
        self.metrics = ServerMetrics(self.turns.waiting, self._is_healthy)
        self._in_flight, self._loop_time = 0, LoopTime(time.monotonic)
        self.is_stopping = False

    def app(self) -> Starlette:
        """The application for a server of ASGI."""
        routes = [Route(spec.path, self._endpoint(spec), methods=[spec.method]) for spec in (*ROUTES, *CATALOG_ROUTES)]
        more = [
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/openapi.json", _openapi, methods=["GET"]),
            *(Route(path, _not_offered(why), methods=["POST"]) for path, why in NOT_OFFERED.items()),
        ]
        guard = [] if self.authenticator.required else [Middleware(BrowserGuard, local=self.options.is_local)]
        handlers = {404: _no_route, 405: _no_route, Exception: _broken}
        return Starlette(routes=[*routes, *more, *Console(self).routes()], middleware=guard, exception_handlers=handlers)

    def close(self) -> None:
        """Waits for all that is at work: a commit that was begun is finished."""
        self.is_stopping = True
        self.offers.close()
        self._pool.shutdown(wait=True)
        self._prompt_pool.shutdown(wait=True)
        self._settling.close()

    def note_upkeep(self, step: UpkeepStep) -> None:
        """Writes a step of upkeep down, as a request is."""
        self.metrics.upkeep.labels(step.kind, step.became).inc()
        self.metrics.upkeep_seconds.labels(step.kind).observe(step.seconds)
        self.metrics.upkeep_last.labels(step.kind).set_to_current_time()
        failed = step.became == "failed"
        _log.log(logging.WARNING if failed else logging.INFO, "upkeep %s %s: %s", step.policy, step.target or "the lake", step.told)
        verdict: Verdict = "failed" if failed else "allowed"
        status = 500 if failed else 409 if step.became == "put off" else 200
        who, what = (secrets.token_hex(8), UPKEEP_AUTHOR, "server", ""), (f"upkeep_{step.kind}", step.target)
        self.audit.note(AuditLine(*who, *what, verdict, status, step.transaction, step.seconds))

    async def in_thread(self, work: Callable[[], Any], *, prompt: bool = False) -> Any:
        """Does something that blocks; what is short and urgent does not wait behind the rest."""
        return await asyncio.get_running_loop().run_in_executor(self._prompt_pool if prompt else self._pool, work)

    # ---- health ----------------------------------------------------------------------------------------------------------------

    async def _healthz(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _readyz(self, _: Request) -> Response:
        ready = not self.is_stopping and await self.in_thread(self._is_healthy, prompt=True)
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    def _is_healthy(self) -> bool:
        try:
            return self.lake.catalog.describe() is not None
        except TiltyardError:
            return False

    async def _metrics(self, request: Request) -> Response:
        try:
            principal = await self.in_thread(lambda: self.authenticator.principal(proof_in(request.headers)), prompt=True)
            if not principal.may_list(()):
                raise PermissionDeniedError("Metrics need a token that has a role.")
        except LanceNamespaceError as error:
            return failed(error, "/metrics")
        return Response(await self.in_thread(self.metrics.text), media_type=CONTENT_TYPE)

    # ---- operations ------------------------------------------------------------------------------------------------------------

    def _endpoint(self, spec: RouteSpec) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            exchange = Exchange(spec, request)
            if self._in_flight >= self.options.limits.requests or self.is_stopping:
                self.metrics.refused.labels("503").inc()
                return self._done(
                    exchange, failure(17, "The server is busy. Try again in a second.", exchange.id, headers=_NOT_BEGUN), "failed"
                )
            self._in_flight += 1
            self.metrics.in_flight.inc()
            try:
                return await self._answered(exchange)
            finally:
                self._in_flight -= 1
                self.metrics.in_flight.dec()

        return endpoint

    async def _answered(self, exchange: Exchange) -> Response:
        verdict: Verdict = "failed"
        try:
            response, verdict = await self._run(exchange), "allowed"
        except TooLargeError:
            self.metrics.refused.labels("413").inc()
            closing = {"connection": "close"}
            response, verdict = failure(13, "The request body is too large.", exchange.id, status=413, headers=closing), verdict
        except (TimeoutError, ClientDisconnect):
            closing = {"connection": "close"}
            response, verdict = failure(13, "The request body did not arrive in time.", exchange.id, status=408, headers=closing), verdict
        except (LanceNamespaceError, TiltyardError) as error:
            theirs = told(error) if isinstance(error, TiltyardError) else error
            response, verdict = self._refused(exchange, theirs)
        return self._done(exchange, response, verdict)

    def _refused(self, exchange: Exchange, error: LanceNamespaceError) -> tuple[Response, Verdict]:
        response = failed(error, exchange.id)
        if isinstance(error, UnauthenticatedError | PermissionDeniedError):
            self.metrics.denied.labels(str(int(error.code))).inc()
            if isinstance(error, UnauthenticatedError):
                response.headers["www-authenticate"] = "Bearer"
            return response, "denied"
        if isinstance(error, ConcurrentModificationError):
            self.metrics.conflicts.labels(exchange.spec.operation).inc()
        if response.status_code in (429, 503):
            # A table with too many requests refuses first of all; a busy catalog at any step. Behind a 503 something may have been done.
            first = isinstance(error, ThrottlingError) and not isinstance(error, CatalogBusyError)
            response.headers.update(_NOT_BEGUN if first else _RETRY)
            self.metrics.refused.labels(str(response.status_code)).inc()
        return response, "failed"

    def _done(self, exchange: Exchange, response: Response, verdict: Verdict) -> Response:
        seconds, operation = time.monotonic() - exchange.started, exchange.spec.operation
        response.headers["x-request-id"] = exchange.id
        self.metrics.requests.labels(operation, str(response.status_code)).inc()
        self.metrics.seconds.labels(operation).observe(seconds)
        if exchange.spec.commits and response.status_code == 200:
            self.metrics.commits.labels(operation).inc()
        who, (remote, _) = exchange.principal, exchange.peer
        made = exchange.transaction
        line = AuditLine(exchange.id, who.name, who.way, remote, operation, exchange.target, verdict, response.status_code, made, seconds)
        self.audit.note(line)
        return response

    async def _run(self, exchange: Exchange) -> Response:
        spec, request = exchange.spec, exchange.request
        proof, body = proof_in(request.headers), None
        if proof is None and self.authenticator.required and spec.body == "json":
            body = await self._read(exchange, _UNAUTHENTICATED_BYTES)
            proof = proof_in(request.headers, _identity(body))
        known = self.authenticator.known(proof)
        exchange.principal = known or await self.in_thread(lambda: self.authenticator.principal(proof), prompt=True)
        exchange.recheck = proof if known is not None and self.authenticator.is_revocable(proof) else None
        if body is None:
            limits = self.options.limits
            body = await self._read(exchange, limits.body_bytes if spec.body == "arrow" or spec.scope == "catalog" else limits.json_bytes)
        if spec.scope == "catalog":
            told = await self._through_door(exchange, body)
            exchange.transaction = str(told.get("transaction_id", ""))
            return answer(spec, told, {})
        given = WireRequest(spec, request.path_params, request.url.query, body)
        model, parts = read_request(given)
        exchange.target = ".".join(parts)
        self._allow(exchange, model, parts)
        self._bound_page(model)
        result = await self._in_turn(exchange, tables_of(model, spec, parts), model, lambda: self._operate(exchange, model, body))
        exchange.transaction = str(getattr(result, "transaction_id", None) or "")
        return answer(spec, result, {})

    async def _through_door(self, exchange: Exchange, body: bytes) -> Mapping[str, Any]:
        """An operation of a lake that was opened by our address."""
        principal, spec = exchange.principal, exchange.spec
        given = self.door.read(principal, spec, body)
        if spec.operation == "offer":
            return await self._offered(exchange, given)
        publication = self.door.publication(given) if spec.operation == "publish" else None
        if publication is None:
            told: Mapping[str, Any] = await self._work(exchange, lambda: self.door.answer(principal, spec, given))
            return told
        written = [change for change in publication.changes if change.kind == "write"]
        names = tuple({branched(publication.branch, change.name) for change in written})
        self.turns.begin(names, exchange.peer)
        try:
            told = await self._work(exchange, lambda: self.door.publish(principal, publication))
            if "published" in told and self.turns.holds(names):
                # While the answer is held back its version has its name: others build on what they find in the store.
                await self.in_thread(lambda: self.door.finish(written), prompt=True)
        except BaseException:
            self.turns.failed(names, exchange.peer, lost=False)
            raise
        if "published" in told:
            await self.turns.won(names, exchange.peer)
        else:
            self.turns.failed(names, exchange.peer, lost="moved" in told)
            self.metrics.conflicts.labels(spec.operation).inc("moved" in told)
        return told

    async def _offered(self, exchange: Exchange, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """A commit that a client has us make. It stands in the line of its table, as all that commit do."""
        known = exchange.principal.way != "open"  # where nobody proves who they are, they may as well say it
        offered = self.offers.read(given, exchange.principal.name if known else None)
        names = (branched(offered.commit.lake_branch, offered.commit.name),)
        if self.turns.holds(names):
            return BY_ITSELF  # stock clients have lost or wait here, and would lose to a server that never does
        self.turns.begin(names, exchange.peer)
        try:
            told = await asyncio.shield(asyncio.wrap_future(self.offers.submit(offered, lambda: self._recheck(exchange))))
        except BaseException:
            self.turns.failed(names, exchange.peer, lost=False)
            raise
        if "version" in told:
            # One at a time: of two that were answered together the slower would come in the next one's turn, and beat a stock client.
            await self.turns.won(names, exchange.peer)
        else:
            self.turns.failed(names, exchange.peer, lost=False)
        return told

    async def _in_turn(self, exchange: Exchange, names: tuple[str, ...], model: Any, work: Callable[[], Any]) -> Any:
        """Does something in a thread; what commits to tables takes its turn there."""
        if not names:
            return await self._work(exchange, work)
        if exchange.spec.operation != "create_table_version":
            async with self.turns.served(names):
                return await self._work(exchange, work)
        self.turns.begin(names, exchange.peer)
        try:
            result = self._done_at_once(exchange, model) or await self._work(exchange, work)
        except BaseException as error:
            self.turns.failed(names, exchange.peer, lost=isinstance(error, ConcurrentModificationError))
            raise
        await self.turns.won(names, exchange.peer)
        return result

    def _done_at_once(self, exchange: Exchange, model: Any) -> Any:
        """Publishes a version without a thread, if nobody has to wait for that; None where it was not done."""
        if self._in_flight > 1 or not self._loop_time.is_free():
            return None
        began, namespace = time.monotonic(), self._namespace(exchange)
        if not namespace.may_create_at_once(model):
            return None  # a catalog that is no file of this machine is not even asked about the token here
        try:
            self._recheck(exchange)
            return namespace.create_at_once(model)
        except NotAtOnceError:
            return None
        finally:
            self._loop_time.spend(began)

    async def _work(self, exchange: Exchange, work: Callable[[], Any]) -> Any:
        """Does in a thread what a request asks for, if its token is still good."""

        def checked() -> Any:
            self._recheck(exchange)
            return work()

        return await self.in_thread(checked, prompt=exchange.spec.is_prompt)

    def _recheck(self, exchange: Exchange) -> None:
        if exchange.recheck is not None:
            self.authenticator.principal(exchange.recheck)

    def _namespace(self, exchange: Exchange) -> LakeNamespace:
        """The lake as the principal of a request sees it."""
        principal = exchange.principal
        namespace = LakeNamespace(self.lake.signed(principal.name))
        parts = tuple(exchange.target.split(".")) if exchange.target else ()
        namespace.vend_by(lambda access: self.vendor.for_table(principal, parts, access.lance_uri, access.lance_options()))
        namespace.only(principal.sees)
        namespace.settle_by(self._settling.add)
        namespace.remember_in(self._known)
        return namespace

    def _operate(self, exchange: Exchange, model: Any, body: bytes) -> Any:
        spec, namespace = exchange.spec, self._namespace(exchange)
        operation = inspect.unwrap(getattr(LakeNamespace, spec.operation))
        return operation(namespace, model, body) if spec.body == "arrow" else operation(namespace, model)

    # ---- what a request may do ---------------------------------------------------------------------------------------------------

    def _allow(self, exchange: Exchange, model: Any, parts: Sequence[str]) -> None:
        """Holds a request against the roles of its principal.

        Raises:
            PermissionDeniedError: they do not allow it.
        """
        spec, principal = exchange.spec, exchange.principal
        if spec.scope == "list":
            allowed = principal.may_list(parts)
        elif spec.scope == "transaction":
            allowed = principal.may_list(())
        elif spec.scope == "batch":
            allowed = all(principal.may(role, names) for role, names in batched(model, spec))
        else:
            allowed = principal.may(spec.role, parts)
        if spec.operation == "rename_table" and allowed:
            target = model.new_namespace_id if model.new_namespace_id is not None else parts[:-1]
            allowed = principal.may(spec.role, [*target, model.new_table_name])
        if not allowed:
            raise PermissionDeniedError(f"{spec.operation} on {exchange.target or 'the lake'} needs the role {spec.role.name.lower()}.")

    def _bound_page(self, model: Any) -> None:
        """Bounds a list to a page; a client that asks for more is given a token for the next one."""
        if "limit" in type(model).model_fields and (model.limit is None or model.limit > self.options.limits.page):
            model.limit = self.options.limits.page

    async def _read(self, exchange: Exchange, most: int) -> bytes:
        """The body, as long as it is small enough and comes in time."""
        stated = exchange.request.headers.get("content-length", "0")
        if stated.isdecimal() and int(stated) > most:
            raise TooLargeError
        chunks, size = [], 0
        async with asyncio.timeout(self.options.limits.body_seconds):
            async for chunk in exchange.request.stream():
                size += len(chunk)
                if size > most:
                    raise TooLargeError
                chunks.append(chunk)
        return b"".join(chunks)


def _identity(body: bytes) -> object:
    """What a body says of its sender; read only where no header does."""
    try:
        found = parsed(body) if body.strip() else None
    except LanceNamespaceError:
        return None
    return found.get("identity") if isinstance(found, dict) else None


async def _openapi(_: Request) -> Response:
    """What the server offers: the same for everybody, and nothing of the lake."""
    return JSONResponse(document())


def _not_offered(why: str) -> Callable[[Request], Awaitable[Response]]:
    async def refused(_: Request) -> Response:
        return failure(0, why, "")

    return refused


async def _no_route(request: Request, error: Exception) -> Response:
    status = int(getattr(error, "status_code", 404))
    return failure(0, "The server has no such operation.", "", status=status)


async def _broken(request: Request, error: Exception) -> Response:
    """Whatever nobody expected: told to the log, not to the client."""
    _log.error("a request failed", exc_info=error, extra={"path": request.url.path[:200]})
    return failure(18, "Something went wrong inside the server. Its log says what.", "")

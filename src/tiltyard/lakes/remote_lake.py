"""A lake behind a server, for stock clients that write several tables at once: ``ty.connect(url).transaction()``."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from tiltyard.catalog.lake_values import LakeCommit
from tiltyard.catalog.server_link import ServerLink, check_server
from tiltyard.errors import (
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    RetryableConflict,
    StorageError,
    TiltyardError,
)
from tiltyard.storage import open_store
from tiltyard.verbs.outcome import Committed, NotCommitted, Outcome, Unknown

if TYPE_CHECKING:
    from lance_namespace import CreateTableVersionEntry, LanceNamespace

IN_DOUBT: Final = "in doubt"
TRIES: Final = 5
"""How often a batch is sent whose answer was lost: the same key is never committed twice."""


def connect(url: str, *, token: str | None = None, storage_options: Mapping[str, Any] | None = None) -> RemoteLake:
    """A lake behind ``tiltyard serve``, for transactions of stock Lance clients.

    Args:
        url: where the server is, such as ``https://host:2333``.
        token: as ``tiltyard token create`` showed it.
        storage_options: how this process reaches the store; what the server gives out by default.

    Raises:
        InvalidInput: the URL is not valid, or a token would travel unencrypted to another machine.
    """
    return RemoteLake(check_server(url, token), token, storage_options)


class RemoteLake:
    """A lake behind a server. ``connect`` makes it."""

    def __init__(self, url: str, token: str | None, storage_options: Mapping[str, Any] | None) -> None:
        self.url = url
        self._link, self._options = ServerLink(url, token), storage_options

    def __repr__(self) -> str:
        return f"RemoteLake({self.url!r})"

    def namespace(self) -> LanceNamespace:
        """The lake for stock clients; each of their commits is one of its own."""
        from lance.namespace import RestNamespace

        headers = {} if self._link.token is None else {"header.Authorization": f"Bearer {self._link.token}"}
        made: LanceNamespace = RestNamespace(uri=self.url, **headers)  # type: ignore[no-untyped-call]
        return made

    def transaction(self, *, message: str | None = None, idempotency_key: str | None = None) -> RemoteTransaction:
        """A transaction that stock clients write through its ``namespace``; use it with ``with``.

        Args:
            message: a sentence for the history.
            idempotency_key: a transaction whose key was committed before does nothing. One is made up by default.
        """
        return RemoteTransaction(self, message, idempotency_key or str(uuid.uuid4()))

    def outcome(self, key: str) -> Outcome:
        """What became of a transaction, by its key or id."""
        try:
            told = self._described(key)
        except NotFound:
            return Unknown("it is not committed yet; its writer may still be at work")
        except TiltyardError as error:
            return Unknown(f"the server does not say: {error}")
        if told["status"] == "Succeeded":
            return Committed(int(told["properties"]["snapshot"]))
        return NotCommitted("it was aborted")

    def _described(self, key: str) -> Any:
        """What the server says of a transaction, by its key or id.

        Raises:
            NotFound: it knows of none.
        """
        return self.post(f"/v1/transaction/{quote(key, safe='')}/describe", {})

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Sends a request to the server, and reads its answer.

        Raises:
            RetryableConflict: another commit came first.
            StorageError: the server cannot be reached or failed; ``maybe_applied`` where it is not known whether it did what was asked.
        """
        return self._link.post(path, body)


class RemoteTransaction:
    """A transaction of stock clients. ``RemoteLake.transaction`` begins it.

    Attributes:
        key: for ``RemoteLake.outcome``.
        namespace: what the clients write through.
        result: the result, once it is committed.
    """

    def __init__(self, lake: RemoteLake, message: str | None, key: str) -> None:
        self._lake, self._message, self.key = lake, message, key
        self._entries: list[CreateTableVersionEntry] = []
        self._state = "open"
        self._doubt: BaseException | None = None
        """Why it is not known whether the server has done it: till it is, nothing is taken back."""
        from tiltyard.lakes.namespaces.collecting_namespace import CollectingNamespace  # takes a moment to load

        self.namespace = CollectingNamespace(lake.namespace(), str(uuid.uuid4()), self._store, self._entries.append)
        self.result: LakeCommit | None = None

    def __repr__(self) -> str:
        return f"RemoteTransaction({self.key!r}, {self._state})"

    def _store(self, location: str, options: Mapping[str, str] | None) -> Any:
        return open_store(os.fspath(location), storage_options=self._lake._options or options)

    def commit(self) -> LakeCommit:
        """Publishes all that was written, in one step.

        Raises:
            RetryableConflict: others changed what was written; nothing was published.
            StorageError: the server cannot be reached; nothing was published, and it can be called again.
            OutcomeUnknown: not known yet; call it again, or ``RemoteLake.outcome``.
        """
        if self._state != IN_DOUBT:
            self._check_open()
        if not self._entries:
            self._ended("committed")
            self.result = LakeCommit(0, "", {})
            return self.result
        from tiltyard.lakes.namespaces.namespace_batches import KEY, MESSAGE

        context = {KEY: self.key, **({MESSAGE: self._message} if self._message else {})}
        body = {"entries": [entry.to_dict() for entry in self._entries], "context": context}
        told = self._sent(body)
        self._ended("committed")
        tables = {".".join(entry.id): int(made["version"]) for entry, made in zip(self._entries, told["versions"], strict=True)}
        found = self._lake.outcome(self.key)
        self.result = LakeCommit(found.version if isinstance(found, Committed) else 0, str(told["transaction_id"]), tables)
        return self.result

    def _sent(self, body: Mapping[str, Any]) -> Any:
        """Sends the batch, again if the answer was lost: it has a key, so it is not done twice."""
        for attempt in range(TRIES):
            try:
                return self._lake.post("/v1/table/version/batch-create", body)
            except TiltyardError as error:
                if not self._may_go_on(error):
                    self._ended("rolled back")
                    raise
                last = error
            except BaseException as error:
                self._in_doubt(error)
                raise
            if attempt + 1 < TRIES:
                _pause(attempt)
        if self._state == IN_DOUBT:
            raise self._unknown() from last
        raise last

    def _may_go_on(self, error: TiltyardError) -> bool:
        """Whether it can be sent again, and notes if nobody can say by now what came of it.

        Once an answer was lost, no refusal of a later attempt tells what it was: that one may not even have been looked at.
        """
        if self._state == IN_DOUBT:
            return not (isinstance(error, RetryableConflict) and self._is_certainly_refused())
        if not isinstance(error, StorageError):
            return False
        if error.maybe_applied:
            self._in_doubt(error)
        return error.maybe_applied or error.transient

    def _is_certainly_refused(self) -> bool:
        """Whether the server, which has just refused it, says that no earlier attempt was committed either."""
        try:
            return bool(self._lake._described(self.key)["status"] != "Succeeded")
        except NotFound:
            return True
        except TiltyardError:
            return False

    def _in_doubt(self, error: BaseException) -> None:
        """From now on nothing is added: the server may have all of it already, under its key, and would leave out what came later."""
        self._state, self._doubt, self.namespace.is_open = IN_DOUBT, error, False

    def _unknown(self) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"Whether transaction {self.key} was committed is not known yet ({self._doubt}).",
            transaction_id=self.key, version=0, uri=self._lake.url,
            advice="Nothing was deleted. Call commit() again, or outcome(key).",
        )  # fmt: skip

    def rollback(self) -> None:
        """Discards all writes. Nothing of it was ever visible.

        Raises:
            OutcomeUnknown: the server may have committed it.
        """
        if self._state == IN_DOUBT:
            raise self._unknown()
        self._check_open()
        self._ended("rolled back")

    def _ended(self, state: str) -> None:
        self._state = state
        self.namespace.close(committed=state == "committed")

    def _check_open(self) -> None:
        if self._state != "open":
            raise InvalidInput(f"The transaction is {self._state}.", argument="transaction", advice="Begin another one.")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._state != "open":
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()


def _pause(attempt: int) -> None:
    from tiltyard.interfaces import system_runtime
    from tiltyard.transaction.backoff import wait_before

    runtime = system_runtime()
    runtime.clock.sleep(wait_before(attempt, 0.1, runtime))

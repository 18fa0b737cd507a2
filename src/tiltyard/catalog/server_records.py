"""The catalog of a lake behind ``tiltyard serve``: records that are read and written over HTTP, and decisions that the server makes.

A step is decided here, on what was read, and sent as *compare and write*: the records that were looked at, and those to put in their place.
The server does it if they are still the same, or else sends them as they are by now, and it is decided anew. What every commit does -
publish, settle, abort - is decided by the server itself: it has the records at hand, so nobody loses a race to the latency of a network.

A lost answer is a ``StorageError`` with ``maybe_applied``, as with every catalog; the transaction's own record tells what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, TypeVar

from tiltyard.catalog.catalog import Catalog, Pending
from tiltyard.catalog.lake_values import ExpectedHead, Moved, Publication, TableHead
from tiltyard.catalog.process_queue import Patience
from tiltyard.catalog.publishing import AbortedError, ExpiredError, Published, StaleError
from tiltyard.catalog.record_codec import check_keys, encode
from tiltyard.catalog.records import Body, Decide, Found, Records
from tiltyard.catalog.server_link import ServerLink
from tiltyard.catalog.server_offers import ServerQueue
from tiltyard.catalog.value_codec import change_from_body
from tiltyard.errors import ContentionError, CorruptTable, HistoryUnavailable, NotFound, ProtectedBranch, StorageError, TiltyardError
from tiltyard.interfaces import Runtime, system_runtime

T = TypeVar("T")

HOME: Final = "/tiltyard/v1"
"""Where the routes of the lake itself are, beside those of the Lance namespace."""
_PATIENCE: Final = Patience(first=0.002, longest=0.25, attempts=200, seconds=30.0)


class ServerRecords:
    """Records behind a server. Threads may share them; they can be sent to another process.

    Args:
        link: to the server.
        runtime: clock and randomness.
        author: who brings the token, as the server knows them; empty where it asks for none.
    """

    def __init__(self, link: ServerLink, runtime: Runtime | None = None, author: str = "") -> None:
        self.link, self.url, self.author = link, link.url, author
        self._runtime = runtime or system_runtime()

    def __repr__(self) -> str:
        return f"ServerRecords({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ServerRecords, (self.link, None, self.author)

    def get(self, keys: Collection[str]) -> Found:
        check_keys(keys)
        found: Found = self.link.post(f"{HOME}/records/get", {"keys": list(keys)}, writes=False)["records"] if keys else {}
        return found

    def scan(self, prefixes: Sequence[str], *, limit: int | None = None, descending: bool = False) -> Sequence[tuple[str, Body]]:
        asked = {"prefixes": list(prefixes), "limit": limit, "descending": descending}
        return [(key, body) for key, body in self.link.post(f"{HOME}/records/scan", asked, writes=False)["records"]]

    def transact(self, exclusive: Collection[str], shared: Collection[str], decide: Decide[T]) -> T:
        check_keys((*exclusive, *shared))
        looked: dict[str, Body | None] = dict.fromkeys((*exclusive, *shared))
        looked.update(self.get(looked))
        clock, tries = self._runtime.clock, 0
        start = clock.monotonic()
        while True:
            writes = decide({key: body for key, body in looked.items() if body is not None})
            check_keys((*writes.put, *writes.delete))
            for key, body in writes.put.items():
                encode(key, body)
            if unseen := [key for key in writes.delete if key not in looked]:
                looked.update(dict.fromkeys(unseen) | dict(self.get(unseen)))
                continue
            put = {key: body for key, body in writes.put.items() if key not in writes.delete}
            moved = self._compared(dict.fromkeys(put) | looked, put, writes.delete)
            if moved is None:
                return writes.result
            looked.update(moved)
            tries, seconds = tries + 1, clock.monotonic() - start
            if tries >= _PATIENCE.attempts or seconds > _PATIENCE.seconds:
                what = (
                    f"The catalog {self.url} was not written in {tries} tries and {seconds:.1f} s: other writers committed first each time."
                )
                raise ContentionError(what, operation="catalog", attempts=tries, seconds=seconds)
            if tries > 1:
                clock.sleep(_PATIENCE.wait(tries - 2, self._runtime))

    def _compared(self, looked: Mapping[str, Body | None], put: Found, delete: Sequence[str]) -> dict[str, Body | None] | None:
        """Sends a step; None once it is done, or what the records are by now. One that writes nothing is compared as well."""
        asked = {"looked": looked, "put": put, "delete": list(delete)}
        told = self.link.post(f"{HOME}/records/transact", asked, writes=bool(put or delete))
        moved: dict[str, Body | None] | None = told.get("moved")
        return moved

    def close(self) -> None:
        self.link.close()


@dataclass(frozen=True, slots=True)
class VendedOptions:
    """Asks the server for storage options whose keys are good for a while. It can be sent to another process.

    Attributes:
        link: to the server.
    """

    link: ServerLink

    def __call__(self) -> Mapping[str, Any]:
        given = self.link.post(f"{HOME}/lake/describe", {}, writes=False).get("storage_options")
        if not given:
            raise StorageError(
                "The server no longer gives out storage options.",
                name=self.link.url,
                advice="Ask its operator for --vend-to, or pass storage_options.",
            )
        return dict(given)


class ServerCatalog(Catalog):
    """A catalog whose server decides what every commit does."""

    decides_here = False

    def __init__(self, records: ServerRecords, runtime: Runtime) -> None:
        super().__init__(records, runtime)
        self._link = records.link
        self.queues = partial(ServerQueue, records.link)

    def publish(self, publication: Publication, allow: Callable[[Found], None] | None = None) -> Published:
        assert allow is None, "the server asks for roles"
        told = self._link.post(f"{HOME}/catalog/publish", {"publication": publication_to_body(publication)})
        if "published" in told:
            return Published(**told["published"])
        if "moved" in told:
            raise StaleError([moved_from_body(body) for body in told["moved"]])
        if "protected" in told:
            raise ProtectedBranch(**told["protected"])
        if "unavailable" in told:
            raise HistoryUnavailable(**told["unavailable"])
        if "corrupt" in told:
            raise CorruptTable(**told["corrupt"])
        if told.get("refused") == "aborted":
            raise AbortedError
        if told.get("refused") == "expired":
            raise ExpiredError
        raise NotFound(f"There is no branch {publication.branch!r} in the lake.", name=publication.branch)

    def abort(self, transaction: str) -> bool:
        return bool(self._again("abort", {"transaction": transaction})["done"])

    def settle(self, finished: Iterable[Pending]) -> None:
        pending = [asdict(version) for version in finished]
        if pending:
            self._again("settle", {"pending": pending})

    def void(self, pending: Pending, maker: str) -> None:
        self._again("void", {"pending": asdict(pending), "maker": maker})

    def quarantine(self, pending: Pending, why: str) -> None:
        self._again("quarantine", {"pending": asdict(pending), "why": why})

    def keep_cut(self, branch: str, snapshot: int, line: str, tables: int | None) -> None:
        """The server writes cuts down, after what it publishes."""

    def _again(self, what: str, body: Mapping[str, Any]) -> Any:
        """Bookkeeping, which may be done twice: it is sent once more where the answer was lost."""
        return self._link.post(f"{HOME}/catalog/{what}", body, repeatable=True)


def catalog_of(records: Records, runtime: Runtime) -> Catalog:
    """The catalog over some records: a server decides by itself."""
    return ServerCatalog(records, runtime) if isinstance(records, ServerRecords) else Catalog(records, runtime)


def publication_to_body(publication: Publication) -> dict[str, Any]:
    return asdict(publication)


def publication_from_body(body: Mapping[str, Any]) -> Publication:
    """Raises ``TypeError``, ``KeyError`` or ``ValueError`` where it is none."""
    changes = tuple(change_from_body(change) for change in body["changes"])
    reads = tuple(ExpectedHead(**read) for read in body.get("reads", ()))
    properties = {str(key): str(value) for key, value in dict(body.get("properties") or {}).items()}
    # Nobody publishes for others from afar: who waits with others has its server do it. Nor are bytes kept for anybody.
    more = {"changes": changes, "reads": reads, "absent": tuple(body.get("absent", ())), "properties": properties}
    return Publication(**{**body, **more, "members": (), "data": ""})


def protected_to_body(error: ProtectedBranch) -> dict[str, Any]:
    members = ("branch", "author", "writers", "checks", "advice")
    return {"what": said_by(error), **{name: getattr(error, name) for name in members}}


def said_by(error: TiltyardError) -> str:
    """What an error says, without its advice."""
    return str(error).removesuffix(error.advice).rstrip()


def moved_to_body(moved: Moved) -> dict[str, Any]:
    return asdict(moved)


def moved_from_body(body: Mapping[str, Any]) -> Moved:
    head = body.get("head")
    return Moved(**{**body, "head": None if head is None else TableHead(**head)})

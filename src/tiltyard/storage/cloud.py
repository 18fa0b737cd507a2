"""S3, Google Cloud Storage and Azure through obstore."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from tiltyard.errors import AlreadyExists, NotFound, StorageError, TiltyardError, UnsupportedFeature
from tiltyard.interfaces import ObjectInfo
from tiltyard.redact import redact
from tiltyard.storage.paths import check_path, check_prefix, check_range, is_temporary, is_visible
from tiltyard.storage.uploads import Uploads, ask_together

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Client

T = TypeVar("T")

_PAGE = 1000
_STATUS = re.compile(r"status code: (\d{3})")
_RETRIES = re.compile(r"retries: (\d+)")
_NEVER_SENT = re.compile(r"kind: Connect\b")
_TOO_MANY = 429
_REQUEST_TIMEOUT = 408
_NOT_IMPLEMENTED = 501


@dataclass(frozen=True, slots=True)
class BucketPath:
    """Where a cloud store points, without anything secret."""

    uri: str
    """The root as the user named it, free of credentials."""

    location: str
    """Bucket and endpoint: what decides whether a store keeps its promises. Two endpoints may serve buckets of one name."""

    ordered: bool = True
    """Whether the names of one directory come in lexical order."""

    offset_exact: bool = False
    """Whether the server's own 'start after' compares whole keys, as the large vendors do; some compatible servers skip entries."""


class CloudStore:
    """An object store in the cloud.

    ``put_if_absent`` is one conditional request. Renaming and copying read the source and create the target with that same request,
    because a server-side copy that spares an existing target is not atomic everywhere.

    The client repeats requests by itself. So ``AlreadyExists`` may be about an object that this very call made: who needs to know
    compares contents. A ``StorageError`` of a write has ``maybe_applied`` set unless the store surely refused it.
    """

    conditional_put_known = False
    """Servers that ignore the precondition exist: see ``ensure_safe``."""

    look_seconds = 5.0
    """For so long a commit may rely on its last look at the table, since each costs requests; cleanups wait for longer than this."""

    def __init__(self, client: Client, place: BucketPath, *, secrets: Iterable[str] = ()) -> None:
        self.uri = place.uri
        self.location = place.location
        self.ordered = place.ordered
        self._offset_exact = place.offset_exact
        self._client = client
        self._secrets = tuple(secrets)
        self._uploads = Uploads(self.put)

    def __repr__(self) -> str:
        return f"CloudStore({self.uri!r})"

    @property
    def identity(self) -> str:
        """The same for stores that hold the same objects."""
        return f"{self.location} {self.uri}"

    def get(self, path: str) -> bytes:
        check_path(path)
        self._uploads.settle(path)
        return self._ask("read", path, lambda: bytes(obstore.get(self._client, path).bytes()))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        check_path(path)
        check_range(path, length)
        self._uploads.settle(path)
        if length and start >= 0:
            return self._range(path, start, length)
        if length:
            try:
                return self._suffix(path, -start)[:length]
            except UnsupportedFeature:
                size = self.head(path).size
                return self._range(path, max(size + start, 0), length)
        self.head(path)
        return b""

    def _range(self, path: str, start: int, length: int) -> bytes:
        return self._read_part(path, start, lambda: bytes(obstore.get_range(self._client, path, start=start, length=length)))

    def _suffix(self, path: str, length: int) -> bytes:
        return self._read_part(path, 0, lambda: bytes(obstore.get(self._client, path, options={"range": {"suffix": length}}).bytes()))

    def _read_part(self, path: str, start: int, request: Callable[[], bytes]) -> bytes:
        try:
            return self._ask("read", path, request)
        except StorageError:
            # a range that begins past the end is an error to servers and nothing to us; only the size tells them apart
            if self.head(path).size <= start:
                return b""
            raise

    def put(self, path: str, data: bytes) -> None:
        check_path(path)
        self._ask("write", path, lambda: obstore.put(self._client, path, data), writing=True)

    def put_later(self, path: str, data: bytes) -> None:
        """Begins a ``put``; ``sync`` waits for it, and raises what it raised."""
        check_path(path)
        self._uploads.begin(path, data)

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """The answers to several questions, asked at the same time."""
        return ask_together(calls)

    def put_parts(self, path: str, parts: Iterable[bytes]) -> None:
        """As ``put``, of an object that need not fit into memory."""
        check_path(path)
        self._ask("write", path, lambda: obstore.put(self._client, path, iter(parts)), writing=True)

    def put_if_absent(self, path: str, data: bytes) -> None:
        check_path(path)
        self._ask("create", path, lambda: obstore.put(self._client, path, data, mode="create", use_multipart=False), writing=True)

    def copy_if_absent(self, source: str, target: str) -> None:
        check_path(target)
        self.put_if_absent(target, self.get(source))

    def rename_if_absent(self, source: str, target: str) -> None:
        self.copy_if_absent(source, target)
        try:
            self.delete(source)
        except StorageError as error:
            error.maybe_applied = True
            raise

    def head(self, path: str) -> ObjectInfo:
        check_path(path)
        self._uploads.settle(path)
        return _info(self._ask("look at", path, lambda: obstore.head(self._client, path)))

    def list(self, prefix: str, *, offset: str | None = None) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._list(prefix, offset)

    def _list(self, prefix: str, offset: str | None) -> Iterator[ObjectInfo]:
        for found in self._pages(prefix, offset if self._offset_exact else None):
            path = found["path"]
            if path.startswith(prefix) and is_visible(path) and (offset is None or path > offset):
                yield _info(found)

    def names(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        return self._names(prefix)

    def _names(self, prefix: str) -> Iterator[str]:
        """Page by page while the directory is flat, as those that matter are; what lies deeper is not walked through."""
        seen = set()
        for found in self._pages(prefix, None):
            name = found["path"][len(prefix) :]
            if "/" in name:
                break
            seen.add(name)
            if name and not is_temporary(name):
                yield name
        else:
            return
        rest = self._ask("list", prefix, lambda: obstore.list_with_delimiter(self._client, prefix or None))["objects"]
        for found in rest:
            name = found["path"][len(prefix) :]
            if name and name not in seen and not is_temporary(name):
                yield name

    def _pages(self, prefix: str, offset: str | None) -> Iterator[ObjectMeta]:
        stream = iter(self._ask("list", prefix, lambda: obstore.list(self._client, prefix or None, offset=offset, chunk_size=_PAGE)))
        while page := self._ask("list", prefix, lambda: next(stream, None)):
            yield from page

    def delete(self, path: str) -> None:
        check_path(path)
        self._uploads.forget(path)  # else it might come back
        try:
            self._ask("delete", path, lambda: obstore.delete(self._client, path), writing=True)
        except NotFound:
            return

    def sync(self, paths: Iterable[str]) -> None:
        """Waits for those that are still on their way; what a cloud store acknowledged is durable."""
        self._uploads.finish(paths)

    def _ask(self, action: str, path: str, request: Callable[[], T], *, writing: bool = False) -> T:
        try:
            return request()
        except (BaseError, OSError, ValueError) as error:
            failure = self._translate(action, path, error, writing=writing)
        # raised out here so that the client's error, whose text may hold credentials, is not attached
        raise failure

    def _translate(self, action: str, path: str, error: Exception, *, writing: bool) -> TiltyardError:
        what = f"Cannot {action} {path!r} in {self.uri}"
        if isinstance(error, FileNotFoundError):
            missing = f"There is no {path!r} in {self.uri}." if not writing else f"{what}: the bucket or container does not exist."
            return NotFound(missing, name=path)
        if isinstance(error, AlreadyExistsError | PreconditionError):
            return AlreadyExists(f"{path!r} exists already.", name=path)
        text = str(error)
        status = _first_number(_STATUS, text)
        if isinstance(error, NotSupportedError) or status == _NOT_IMPLEMENTED:
            return UnsupportedFeature(f"{what}: the store does not support this request.", feature=action, advice="Use another store.")
        refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        reason = redact(" ".join(text.partition("Debug source")[0].split()), self._secrets)
        return StorageError(
            f"{what}: {reason[:140]}",
            name=path,
            maybe_applied=writing and not _surely_refused(text, status),
            transient=not refused and (status is None or status >= 500 or status in (_TOO_MANY, _REQUEST_TIMEOUT)),
            advice="Check the credentials and rights." if refused else None,
        )


def _surely_refused(text: str, status: int | None) -> bool:
    """Only the first answer to the first try is proof: an earlier try of the client may have been carried out."""
    if _first_number(_RETRIES, text) != 0:
        return False
    if status is None:
        return _NEVER_SENT.search(text) is not None
    return 400 <= status < 500 and status != _REQUEST_TIMEOUT


def _first_number(pattern: re.Pattern[str], text: str) -> int | None:
    hit = pattern.search(text)
    return int(hit[1]) if hit else None


def _info(found: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(found["path"], found["size"], found["last_modified"])

"""Requests under way at the same time: uploads that are waited for later, and questions that are asked together.

On an object store each request takes a round trip. So what does not depend on each other is sent at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

_MOST_AT_ONCE: Final = 32

_pools: Final[dict[int, ThreadPoolExecutor]] = {}
_pools_lock: Final = threading.Lock()


def _pool() -> ThreadPoolExecutor:
    """The threads of this process. A child that was forked has none of its parent's, and gets its own."""
    with _pools_lock:
        found = _pools.get(os.getpid())
        if found is None:
            found = _pools[os.getpid()] = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="tiltyard-requests")
        return found


def ask_together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The answers to several questions, asked at once; all are waited for, then the first failure is raised."""
    futures = [_pool().submit(call) for call in calls[1:]]
    try:
        first = calls[0]()
    finally:
        wait(futures)
    return [first, *(future.result() for future in futures)]


@dataclass(slots=True)
class _Upload:
    data: bytes
    future: Future[None] | None
    """None where it failed and is to be sent again."""


class Uploads:
    """Objects that are being written to one store. Threads may share it.

    One that failed is kept, and sent again when somebody waits for it once more: whoever heard of the failure may go on trying.
    """

    def __init__(self, put: Callable[[str, bytes], None]) -> None:
        self._put = put
        self._pending: dict[str, _Upload] = {}
        self._lock = threading.Lock()

    def begin(self, path: str, data: bytes) -> None:
        self.forget(path)  # two writes of one object must not overtake each other
        with self._lock:
            self._pending[path] = _Upload(data, _pool().submit(self._put, path, data))

    def finish(self, paths: Iterable[str]) -> None:
        """Waits until these are written.

        Raises:
            TiltyardError: the first failure, after all were waited for.
        """
        with self._lock:
            sent = {path: self._sent(path, self._pending[path]) for path in paths if path in self._pending}
        wait(sent.values())
        failures = []
        for path, future in sent.items():
            error = future.exception()
            with self._lock:
                upload = self._pending.get(path)
                if upload is None or upload.future is not future:
                    continue  # removed, or begun anew, while we waited
                if error is None:
                    del self._pending[path]
                else:
                    upload.future = None
                    failures.append(error)
        if failures:
            raise failures[0]

    def _sent(self, path: str, upload: _Upload) -> Future[None]:
        if upload.future is None:
            upload.future = _pool().submit(self._put, path, upload.data)
        return upload.future

    def settle(self, path: str) -> None:
        """Waits until an object is there or has failed to be: whoever asks for it sees what became of it."""
        with self._lock:
            upload = self._pending.get(path)
        if upload is not None and upload.future is not None:
            wait([upload.future])

    def forget(self, path: str) -> None:
        """Waits for an upload whose outcome is nobody's concern any more."""
        self.settle(path)
        with self._lock:
            self._pending.pop(path, None)

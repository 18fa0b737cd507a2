"""Whether a store keeps the one promise every commit rests on: a name is created at most once.

Some servers accept the precondition and overwrite all the same, and then the last of two writers wins silently. So before the first commit
to a store we try it out. What was learnt is remembered for the bucket and endpoint within this process, and beside the table in
``_tiltyard/probe.json``: pylance neither lists nor cleans that directory. The note holds a digest of bucket and endpoint, so that it means
nothing when the table is copied elsewhere, and is believed for thirty days.

The probe writes one object twice, one after the other. A server that checks and writes in two steps passes it; no probe can prove that one
never loses a race.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from datetime import datetime, timedelta

from tiltyard.errors import AlreadyExists, NotFound, StorageError, UnsafeStore, UnsupportedFeature
from tiltyard.interfaces import ObjectStore, Runtime, system_runtime

PROBE_DIRECTORY = "_tiltyard/"
NOTE = PROBE_DIRECTORY + "probe.json"
NOTE_LIFETIME = timedelta(days=30)

_log = logging.getLogger(__name__)
_known_safe: set[str] = set()
_lock = threading.Lock()


def ensure_safe(store: ObjectStore, runtime: Runtime | None = None) -> None:
    """Returns if ``store`` creates a name at most once; raises ``UnsafeStore`` if it overwrites. Costs nothing after the first time."""
    if getattr(store, "conditional_put_known", False):
        return
    location = _location(store)
    if location in _known_safe:
        return
    runtime = runtime or system_runtime()
    if not _noted(store, location, runtime.clock.now()):
        probe(store, runtime)
        _note(store, location, runtime.clock.now())
    with _lock:
        _known_safe.add(location)


def probe(store: ObjectStore, runtime: Runtime) -> None:
    """Tries the store out, whatever is known of it; leaves nothing behind."""
    path = f"{PROBE_DIRECTORY}probe-{runtime.random.uuid()}"
    first, second = f"first {path}".encode(), f"second {path}".encode()
    try:
        _create(store, path, first)
        try:
            store.put_if_absent(path, second)
        except AlreadyExists:
            overwritten = False
        else:
            overwritten = True
        if overwritten or store.get(path) != first:
            raise UnsafeStore(f"{store.uri} overwrites an existing object although asked to create it only if absent.", store=store.uri)
    except UnsupportedFeature:
        raise UnsafeStore(f"{store.uri} cannot create an object only if it is absent.", store=store.uri) from None
    finally:
        _tidy(store, path)


def forget() -> None:
    """Forgets what this process learnt about stores."""
    with _lock:
        _known_safe.clear()


def _create(store: ObjectStore, path: str, data: bytes) -> None:
    try:
        store.put_if_absent(path, data)
    except AlreadyExists:
        # the name is fresh, so this can only be the client meeting its own first try
        if store.get(path) != data:
            raise UnsafeStore(f"{store.uri} claims that an object exists which was never created.", store=store.uri) from None


def _tidy(store: ObjectStore, path: str) -> None:
    try:
        store.delete(path)
    except StorageError as error:
        # some buckets forbid deletion; a stray probe object harms nobody
        _log.warning("The probe object %s could not be deleted: %s", path, error)


def _location(store: ObjectStore) -> str:
    return str(getattr(store, "location", store.uri))


def _digest(location: str) -> str:
    return hashlib.sha256(location.encode()).hexdigest()


def _noted(store: ObjectStore, location: str, now: datetime) -> bool:
    try:
        note = json.loads(store.get(NOTE))
        return note["location"] == _digest(location) and abs(now - datetime.fromisoformat(note["at"])) < NOTE_LIFETIME
    except NotFound:
        return False
    except (ValueError, KeyError, TypeError):
        return False  # not a note of ours: find out again


def _note(store: ObjectStore, location: str, now: datetime) -> None:
    store.put(NOTE, json.dumps({"location": _digest(location), "at": now.isoformat(), "safe": True}).encode())

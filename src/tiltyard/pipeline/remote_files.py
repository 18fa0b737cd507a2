"""Files of a source that are in an object store: listed, looked at, and copied to where Spark can read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tiltyard.errors import InvalidInput, NotFound
from tiltyard.interfaces import ObjectInfo, ObjectStore
from tiltyard.pipeline.spec import FileSource
from tiltyard.storage import open_store

_WILD: Final = re.compile(r"[*?\[]")
_BLOCK: Final = 16 * 2**20
"""Bytes of a file that are in memory while it is copied."""


def is_remote(pattern: str) -> bool:
    return "://" in pattern and not pattern.startswith("file://")


def remote_files(source: FileSource, pattern: str) -> Iterator[tuple[str, ObjectInfo]]:
    """The store of a pattern, and the files there that it stands for. Only what begins as the pattern does is listed.

    Raises:
        InvalidInput: the pattern has no place that it begins at.
        StorageError: the store does not answer.
    """
    root, wanted = _apart(source, pattern)
    matches = _expression(wanted)
    for info in _opened(source, root).list(_fixed(wanted)):
        name = info.path.rpartition("/")[2]
        if matches.fullmatch(info.path) and not name.startswith((".", "_")):
            yield root, info


def changed_ns(info: ObjectInfo) -> int:
    return int(info.modified.timestamp() * 1_000_000) * 1_000


def facts_of(source: FileSource, store: str, path: str) -> tuple[int, int] | None:
    """The size of a file and when it was changed; None where it is gone."""
    try:
        info = _opened(source, store).head(path)
    except NotFound:
        return None
    return info.size, changed_ns(info)


def fetch(source: FileSource, store: str, path: str, target: Path) -> None:
    """Copies a file, a block at a time."""
    opened = _opened(source, store)
    size = opened.head(path).size
    with target.open("wb") as file:
        for start in range(0, size, _BLOCK):
            file.write(opened.get_range(path, start, min(_BLOCK, size - start)))


def _opened(source: FileSource, store: str) -> ObjectStore:
    return open_store(store, storage_options=dict(source.storage))


def _apart(source: FileSource, pattern: str) -> tuple[str, str]:
    """The bucket or container of a pattern, and the rest. Of ``abfss://container@account/`` the account is part of the first."""
    scheme, _, rest = pattern.partition("://")
    bucket, _, wanted = rest.partition("/")
    key = f"sources.{source.name}.files"
    if not bucket or not wanted or _WILD.search(bucket):
        raise InvalidInput(f"{key} is {pattern!r}, and must name a bucket and files in it.", argument=key)
    return f"{scheme}://{bucket}", wanted


def _fixed(pattern: str) -> str:
    """The directory that all files of a pattern are below."""
    found = _WILD.search(pattern)
    return pattern if found is None else pattern[: pattern.rfind("/", 0, found.start()) + 1]


def _expression(pattern: str) -> re.Pattern[str]:
    """As on a file system: ``*`` and ``?`` stay within a directory, ``**`` reaches into any."""
    text, place = "", 0
    while place < len(pattern):
        if pattern.startswith("**/", place):
            text, place = text + r"(?:[^/]+/)*", place + 3
            continue
        letter = pattern[place]
        end = pattern.find("]", place + 2) if letter == "[" else -1
        if end > 0:
            inside = pattern[place + 1 : end].replace("\\", r"\\")
            text, place = text + "[" + (f"^{inside[1:]}" if inside.startswith("!") else inside) + "]", end + 1
            continue
        text += {"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter))
        place += 1
    return re.compile(text)

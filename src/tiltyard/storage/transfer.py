"""Copies an object from one store to another, of any size, in little memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from tiltyard.errors import NotFound
from tiltyard.interfaces import ObjectStore
from tiltyard.storage import files
from tiltyard.storage.cloud import CloudStore
from tiltyard.storage.local import LocalStore
from tiltyard.storage.paths import check_path

PART: Final = 16 * 1024**2
"""Bytes that are under way at a time."""


def transfer(source: ObjectStore, path: str, target: ObjectStore, name: str) -> None:
    """Creates or replaces ``name`` in the target with what ``path`` holds; whoever reads there sees all of it or nothing."""
    if isinstance(target, LocalStore):
        _to_directory(source, path, target, name)
    elif isinstance(target, CloudStore) and source.head(path).size > PART:
        target.put_parts(name, _aside(_parts(source, path)))
    else:
        target.put(name, source.get(path))


def _parts(source: ObjectStore, path: str) -> Iterator[bytes]:
    start = 0
    while part := source.get_range(path, start, PART):
        yield part
        start += len(part)


def _aside(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same parts, read by another thread: a client that is writing cannot be asked to read meanwhile. One is read ahead."""
    with ThreadPoolExecutor(1, thread_name_prefix="transfer") as pool:
        following = pool.submit(next, parts, b"")
        while part := following.result():
            following = pool.submit(next, parts, b"")
            yield part


def _to_directory(source: ObjectStore, path: str, target: LocalStore, name: str) -> None:
    there = Path(target.uri) / check_path(name)
    durable = target.durability == "fsync"
    try:
        there.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, LocalStore):
            staged = _copied(source, path, there.parent, durable)
        else:
            staged = _written(_parts(source, path), there.parent, durable)
        try:
            os.replace(staged, there)  # noqa: PTH105
        except OSError:
            with suppress(OSError):
                Path(staged).unlink()
            raise
    except OSError as error:
        raise files.storage_error("copy to", name, target.uri, error) from error
    target.sync([name])


def _copied(source: LocalStore, path: str, directory: Path, durable: bool) -> str:
    try:
        return files.copy_temporary(str(Path(source.uri) / check_path(path)), str(directory), durable=durable)
    except FileNotFoundError as error:
        raise NotFound(f"{path} is not in {source.uri}.", name=path) from error


def _written(parts: Iterator[bytes], directory: Path, durable: bool) -> str:
    staged = Path(files.temporary_name(str(directory)))
    try:
        with staged.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if durable:
                files.flush(file.fileno())
    except BaseException:
        with suppress(OSError):
            staged.unlink()
        raise
    return str(staged)

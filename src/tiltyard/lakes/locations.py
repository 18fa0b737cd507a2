"""Where something is, in the one spelling that is compared: two spellings of one directory are one directory."""

from __future__ import annotations

import os
import posixpath
from urllib.parse import urlsplit

from tiltyard.errors import InvalidInput
from tiltyard.redact import redact
from tiltyard.storage import lance_uri

_OWN_HOSTS = ("s3", "gs", "memory")
"""Schemes whose first part is a bucket: everything in it is told apart by case."""


def resolved(uri: str | os.PathLike[str]) -> str:
    """A directory's location in its one spelling: absolute, without symbolic links, ``.``, ``..``, doubled or trailing slashes.

    Raises:
        InvalidInput: it leads out of its bucket.
    """
    text = os.fspath(uri)
    scheme, mark, rest = text.partition("://")
    if mark and scheme.lower() == "memory":
        return "memory://" + posixpath.normpath(rest).rstrip("/")
    known = lance_uri(text)
    if "://" not in known:
        return os.path.realpath(known)
    scheme, _, rest = known.partition("://")
    bucket, _, path = rest.partition("?")[0].partition("/")
    path = posixpath.normpath("/" + path).strip("/") if path.strip("/") else ""
    if any(part == ".." for part in rest.partition("/")[2].split("/")) and not _stays_inside(rest.partition("/")[2]):
        raise InvalidInput(f"{redact(text)} leads out of its bucket.", argument="uri")
    bucket = bucket if scheme.lower() in _OWN_HOSTS else bucket.lower()
    return f"{scheme.lower()}://{bucket}/{path}".rstrip("/")


def _stays_inside(path: str) -> bool:
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return False
    return True


def is_within(location: str, directory: str) -> bool:
    """Whether a resolved location is a resolved directory or lies below it."""
    return location == directory or location.startswith(directory.rstrip("/") + "/")


def below(location: str, directory: str) -> str | None:
    """The path of a resolved location below a resolved directory; None where it lies elsewhere."""
    if not is_within(location, directory):
        return None
    return location[len(directory.rstrip("/")) :].strip("/")


def shown_database(url: str) -> str:
    """The address of a database without user, password and parameters."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.hostname or ''}{port}{parts.path}"

"""Names of objects: what a path may be, and which files are nobody's business."""

from __future__ import annotations

import re
from typing import Final

from tiltyard.errors import InvalidInput

TEMPORARY_PREFIX = ".tmp"
"""Staged files start with this: such a name never ends up as a version, and pylance's cleanup knows it in ``_versions``."""

_STAGED_UPLOAD = re.compile(r"#\d+$")


_PLAIN: Final = re.compile(r"[A-Za-z0-9_#=-][A-Za-z0-9_.#=-]*(?:/[A-Za-z0-9_#=-][A-Za-z0-9_.#=-]*)*")

is_plain: Final = _PLAIN.fullmatch
"""Matches paths that need no closer look: nearly all. No part of theirs can be ``.`` or ``..``, since none begins with a dot."""


def check_path(path: str) -> str:
    """Returns ``path`` if it names something strictly below the root, written in the one normal form.

    Every backend asks here before it touches anything, since paths also come out of manifests that nobody vouches for.
    """
    if "\0" in path or "\\" in path:
        raise _refused(path, "it holds a NUL or a backslash")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise _refused(path, "it must be relative, without empty, '.' or '..' parts")
    return path


def check_prefix(prefix: str) -> str:
    """Returns ``prefix`` if it is a directory below the root: empty, or a path with ``/`` at the end."""
    if prefix:
        if not prefix.endswith("/"):
            raise _refused(prefix, "a prefix must be empty or end with '/'")
        check_path(prefix[:-1])
    return prefix


def check_range(path: str, length: int) -> None:
    if length < 0:
        raise InvalidInput(f"Cannot read {length} bytes of {path!r}: the length is negative.", argument="length")


def is_temporary(name: str) -> bool:
    """Whether the last part of a path is that of a file still being written, by us or by pylance's store."""
    return name.startswith(TEMPORARY_PREFIX) or ("#" in name and _STAGED_UPLOAD.search(name) is not None)


def is_visible(path: str) -> bool:
    """Whether a listing may return this path."""
    return not is_temporary(path.rpartition("/")[2])


def _refused(path: str, reason: str) -> InvalidInput:
    return InvalidInput(f"Refused the path {path[:80]!r}: {reason}.", argument="path", advice="Use a path inside the table's root.")

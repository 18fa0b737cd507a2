"""Paths a manifest names are untrusted: they must stay below the table's root, or below a base its owner allows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tiltyard.errors import CorruptTable, InvalidInput

_LONGEST: Final = 4096
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
"""A URI's scheme or a drive letter."""
_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://([^/]*)(/.*|)", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ENCODED: Final = re.compile(r"%(2e|2f|5c|00)", re.IGNORECASE)
"""Dots, separators and NUL in disguise: some layer below may decode them."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_\-]{1,100}\.lance", re.ASCII)
"""The name of nearly every data file; a table may have very many of them."""


def check_relative(path: str, source: str) -> str:
    """Returns ``path`` when it stays below the directory it is relative to; otherwise ``CorruptTable`` naming ``source``."""
    if _PLAIN.fullmatch(path):
        return path
    if not path:
        raise CorruptTable(source, "it names an empty path")
    if path.startswith("/") or _SCHEME.match(path):
        raise CorruptTable(source, f"it names {_shown(path)}, which is not relative")
    _check_parts(path, source)
    return path


def check_base(path: str, allowed_roots: Iterable[str], source: str = "manifest", *, own: str = "") -> str:
    """Returns the base's path when it is one of ``allowed_roots`` or below one; otherwise ``CorruptTable``.

    Roots and bases are absolute local paths or URIs; ``file://`` and plain paths mean the same. Only the text is compared: who
    allows a directory allows what its symbolic links lead to. With ``own``, the table's root, the error says so if the base looks like
    that root at another address.
    """
    base = _normal(path, source)
    for root in allowed_roots:
        normal_root = _normal(root, source)
        if base[0] == normal_root[0] and base[1][: len(normal_root[1])] == normal_root[1]:
            return path
    name = own.rstrip("/").rpartition("/")[2]
    if name and name in base[1]:
        raise CorruptTable(
            source, f"it names the base {_shown(path)}: the table was moved or copied from there, and bases are absolute",
            advice="Put it back, or put a symbolic link to it there and open it by that address.",
        )  # fmt: skip
    raise CorruptTable(
        source, f"it names the base {_shown(path)}, outside the allowed roots", advice="Allow this root if you trust the table."
    )


def _normal(path: str, source: str) -> tuple[str, tuple[str, ...]]:
    """Where the path lives (scheme and host, empty for local) and its parts."""
    match = _URI.fullmatch(path)
    where, rest = ("", path) if match is None else (f"{match[1].lower()}://{match[2]}", match[3])
    if where in ("file://", "file://localhost"):
        where = ""
    if where and (not match or not match[2] or "@" in match[2] or "?" in rest or "#" in rest):
        raise CorruptTable(source, "it names a base with credentials, a query or no host")
    if not where and not rest.startswith("/"):
        raise CorruptTable(source, f"it names the base {_shown(path)}, which is not absolute")
    inner = rest.strip("/")
    if inner:
        _check_parts(inner, source)
    return where, tuple(inner.split("/")) if inner else ()


def _check_parts(path: str, source: str) -> None:
    if len(path) > _LONGEST:
        raise CorruptTable(source, f"it names a path of {len(path)} characters")
    if "\\" in path or _CONTROL.search(path) or _ENCODED.search(path):
        raise CorruptTable(source, f"it names {_shown(path)}, which holds characters no path may have")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise CorruptTable(source, f"it names {_shown(path)}, which does not stay in its directory")


def _shown(path: str) -> str:
    return repr(path if len(path) <= 80 else path[:80] + "...")


def check_text(text: str, what: str, argument: str) -> str:
    """Refuses text that has no encoding, or ends early where others read it as a C string.

    Args:
        text: as the caller gave it.
        what: what it is, as the beginning of a sentence.
        argument: what the caller calls it.

    Raises:
        InvalidInput: half of a surrogate pair, or a NUL character.
    """
    if "\0" in text:
        raise InvalidInput(f"{what} holds a NUL character: {text[:60]!r}.", argument=argument, advice="Remove it.")
    return check_encodes(text, what, argument)


def check_encodes(text: str, what: str, argument: str) -> str:
    """Refuses text that has no encoding; a NUL character is fine in values, which are never C strings."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} holds half of a surrogate pair: {text[:60]!r}.", argument=argument, advice="Remove it.") from error
    return text

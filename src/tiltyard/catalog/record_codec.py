"""Records as the databases keep them: which keys there may be, what a body is written as, and the range of keys under a prefix."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tiltyard.catalog.records import Body
from tiltyard.errors import CorruptTable, InvalidInput

LONGEST_KEY: Final = 2000
"""Bytes. An index of PostgreSQL takes keys of up to 2,704, and nobody needs more."""

_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def check_keys(keys: Iterable[str]) -> None:
    """Refuses what not every database can keep as a key."""
    for key in keys:
        if not 0 < _size(key) <= LONGEST_KEY or "\0" in key:
            rule = f"1 to {LONGEST_KEY} bytes of UTF-8 without NUL"
            raise InvalidInput(f"A record cannot have the key {key[:80]!r}: a key is {rule}.", argument="key")


def _size(key: str) -> int:
    """Bytes of UTF-8; nothing for a text that has no such form."""
    try:
        return len(key.encode())
    except UnicodeEncodeError:
        return 0


def encode(key: str, body: Body) -> str:
    """The text of a body: plain ASCII, so that no database has to agree with another about letters."""
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"The record {key!r} cannot be written as JSON: {error}.", argument="body") from None


def decode(key: str, text: str, where: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if isinstance(body, Mapping):
        return dict(body)
    raise CorruptTable(f"{where}: record {key!r}", "it is not a JSON object", advice="Restore the catalog from a copy.")


def encode_all(bodies: Mapping[str, Body]) -> dict[str, str]:
    """The text of each body, by key."""
    return {key: encode(key, body) for key, body in bodies.items()}


def decode_all(rows: Iterable[Sequence[str]], where: str) -> dict[str, dict[str, Any]]:
    """The records that rows of key and text hold, in the order of the rows."""
    return {key: decode(key, text, where) for key, text in rows}


def after_prefix(prefix: str) -> str | None:
    """The least text that is greater than all that begin with ``prefix``; None when there is none.

    Greater by code points, which is the order of the UTF-8 bytes too.
    """
    for end in range(len(prefix), 0, -1):
        point = ord(prefix[end - 1]) + 1
        if point <= _LAST:
            return prefix[: end - 1] + chr(point if point not in _SURROGATES else _SURROGATES.stop)
    return None


def prefix_ranges(prefixes: Iterable[str]) -> list[tuple[str, str | None]]:
    """For each prefix the keys from one on and below another; what another range holds already is left out."""
    ranges: list[tuple[str, str | None]] = []
    for prefix in sorted(set(prefixes)):
        if not ranges or not prefix.startswith(ranges[-1][0]):
            ranges.append((prefix, after_prefix(prefix)))
    return ranges

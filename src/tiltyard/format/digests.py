"""Digests of files, as text: in the properties of the transaction that brought the files, and in records that outlive it.

The format has no checksums, so a flipped byte in a data file is read as another value. A digest is XXH3 (128 bits) over the whole file and
finds chance damage, not malice. The text carries a digest of its own: damage to it is told apart from damage to the files it tells of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from tiltyard.errors import CorruptTable

DIGESTS: Final = "tiltyard.digests"
"""The property of a transaction that holds the digests of the files it brought."""

_ALGORITHM: Final = "xxh3-128"
_LINE: Final = re.compile(r"([0-9a-f]{32}) ([0-9]{1,20}) ([^\x00-\x1f\x7f]+)", re.ASCII | re.DOTALL)
_FITS: Final = re.compile(r"[^\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True)
class Digest:
    """Size and XXH3-128 of one file."""

    size: int
    value: str


def digest(data: bytes) -> Digest:
    return Digest(len(data), xxhash.xxh3_128(data).hexdigest())


def file_key(path: str, base_id: int | None = None) -> str:
    """The name under which the digest of a file is kept: its path below the table's root, after the base it lies in."""
    return path if base_id is None else f"@{base_id}/{path}"


def encode_digests(digests: Mapping[str, Digest]) -> str:
    """Digests by ``file_key``, as text. A path that cannot stand in a line is left out: its file counts as one without a digest."""
    lines = [f"{found.value} {found.size} {key}\n" for key, found in sorted(digests.items()) if _FITS.fullmatch(key)]
    body = "".join(lines)
    return f"{_ALGORITHM} {_own(body)}\n{body}"


def decode_digests(text: str, source: str) -> dict[str, Digest]:
    """What ``encode_digests`` wrote; nothing where a later writer used another algorithm.

    Raises:
        CorruptTable: the text was damaged.
    """
    head, _, body = text.partition("\n")
    algorithm, _, own = head.partition(" ")
    if own != _own(body):
        raise CorruptTable(source, "its list of digests is damaged")
    if algorithm != _ALGORITHM:
        return {}
    found: dict[str, Digest] = {}
    for line in body.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise CorruptTable(source, "its list of digests is damaged")
        found[match[3]] = Digest(int(match[2]), match[1])
    return found


def _own(body: str) -> str:
    return xxhash.xxh3_64(body.encode()).hexdigest()


SEAL: Final = "tiltyard.seal"
UNSEALED: Final = "0" * 32
"""The value of the property in a transaction that is yet to be put into a file."""

_KEY: Final = b"\x0a" + bytes([len(SEAL)]) + SEAL.encode() + b"\x12" + bytes([len(UNSEALED)])
"""How the property begins on the wire: a map entry's key, then the tag and length of its value."""


def sealed(parts: Sequence[bytes], place: int) -> bytes:
    """The part at ``place``, a serialized transaction, with the digest of all parts; as it is, if it has no room for one."""
    transaction = parts[place]
    at = _seal_at(transaction)
    if at is None or transaction[at : at + len(UNSEALED)] != UNSEALED.encode():
        return transaction
    found = xxhash.xxh3_128()
    for part in parts:
        found.update(part)
    return transaction[:at] + found.hexdigest().encode() + transaction[at + len(UNSEALED) :]


def check_seal(data: bytes, transaction_at: int, length: int, source: str) -> bool:
    """Compares a version file with the digest inside it; False if it has none.

    Raises:
        CorruptTable: it was changed since it was written.
    """
    inside = _seal_at(data[transaction_at : transaction_at + length])
    if inside is None:
        return False
    at = transaction_at + inside
    end = at + len(UNSEALED)
    found = xxhash.xxh3_128(data[:at])
    found.update(UNSEALED.encode())
    found.update(memoryview(data)[end:])
    if found.hexdigest().encode() != data[at:end]:
        raise CorruptTable(source, "its bytes are not those that were written: their digest differs")
    return True


def _seal_at(transaction: bytes) -> int | None:
    """Where the value begins; None unless it is there exactly once, since a writer's own text may look like it."""
    at = transaction.find(_KEY)
    return at + len(_KEY) if at >= 0 and transaction.find(_KEY, at + 1) < 0 else None

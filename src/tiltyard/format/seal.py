"""A digest of a whole version file, kept inside it: as a property of the transaction that stands there.

The property has a fixed length, so that a file can be laid out before its digest is known. The digest is of the file with zeros in that
place. Files of other writers have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import xxhash

from tiltyard.errors import CorruptTable

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

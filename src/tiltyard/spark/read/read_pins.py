"""Which version a statement that changes rows reads: decided when it is executed, and again after a conflict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tiltyard.spark.target import Address

_pinned: Final[dict[str, tuple[Address, ...]]] = {}
"""By the mark of a table as one statement resolved it; of a sharded table one address for each shard, in their order."""


@contextmanager
def pinned_at(mark: str, addresses: Sequence[Address]) -> Iterator[None]:
    """While a statement is executed on one version, its scans of the table it changes read that one."""
    _pinned[mark] = tuple(addresses)
    try:
        yield
    finally:
        del _pinned[mark]


def addresses_of(facts: Mapping[str, Any], *, pinned: bool = True) -> tuple[Address, ...]:
    """The versions that a scan of the catalog reads: that of the table, or those of all shards.

    Args:
        facts: what the scan tells.
        pinned: whether the version may be one that was decided since the table was resolved.
    """
    found = _pinned.get(facts["id"]) if pinned else None
    return found or tuple(map(Address.from_json, facts.get("shards") or [facts["address"]]))


def address_of(facts: Mapping[str, Any]) -> Address:
    """The version that a scan of a table which is not sharded reads."""
    [found] = addresses_of(facts)
    return found

"""Which version a statement that changes rows reads: decided when it is executed, and again after a conflict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tiltyard.spark.target import Address

_pinned: Final[dict[str, Address]] = {}
"""By the mark of a table as one statement resolved it."""


@contextmanager
def pinned_at(mark: str, address: Address) -> Iterator[None]:
    """While a statement is executed on one version, its scans of the table it changes read that one."""
    _pinned[mark] = address
    try:
        yield
    finally:
        del _pinned[mark]


def address_of(facts: Mapping[str, Any]) -> Address:
    """The version that a scan of the catalog reads."""
    return _pinned.get(facts["id"]) or Address.from_json(facts["address"])

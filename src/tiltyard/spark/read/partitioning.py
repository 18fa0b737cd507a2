"""Fragments into partitions of about the same size."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SMALLEST_ROWS: Final = 50_000
"""Rows below which another partition costs more than it saves, unless somebody asks for a number."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """What packing has to know of a fragment: its live rows, the bytes of its files, and its rows with those that are deleted."""

    id: int
    rows: int
    bytes: int = 0
    physical: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """All live rows of a fragment, or those from ``start`` on, at most ``rows`` of them."""

    fragment: int
    rows: int
    start: int | None = None


def addresses(span: Span, fragment: Fragment) -> tuple[int, int]:
    """Where a part of a fragment begins and ends, by addresses of rows: together the parts are the fragment, each address once."""
    assert span.start is not None
    ends = (span.start, span.start + span.rows)
    low, high = (end * fragment.physical // fragment.rows for end in ends)
    return (fragment.id << 32) + low, (fragment.id << 32) + high


def pack(
    fragments: Sequence[Fragment], partitions: int, *, may_split: bool = True, smallest: int = SMALLEST_ROWS
) -> list[tuple[Span, ...]]:
    """Spreads fragments over at most so many partitions; largest first, each to the partition with the least so far.

    Args:
        fragments: all that have to be read; those without rows are left out.
        partitions: how many partitions are wanted.
        may_split: whether a fragment larger than a fair share may be cut by its rows.
        smallest: rows below which no partition is made for its own sake.
    """
    full = [fragment for fragment in fragments if fragment.rows > 0]
    rows = sum(fragment.rows for fragment in full)
    if not full:
        return []
    wanted = max(1, min(partitions, -(-rows // max(smallest, 1))))
    share = -(-rows // wanted)
    pieces = [piece for fragment in full for piece in _pieces(fragment, share, may_split)]
    weight = _weights(full, rows)
    heap = [(0.0, number) for number in range(min(wanted, len(pieces)))]
    bins: list[list[Span]] = [[] for _ in heap]
    for piece in sorted(pieces, key=lambda part: (-part.rows * weight[part.fragment], part.fragment, part.start or 0)):
        load, number = heapq.heappop(heap)
        bins[number].append(piece)
        heapq.heappush(heap, (load + piece.rows * weight[piece.fragment], number))
    return [tuple(sorted(bin, key=lambda span: (span.fragment, span.start or 0))) for bin in bins]


def _pieces(fragment: Fragment, share: int, may_split: bool) -> list[Span]:
    # A little above the share is not worth a second start of the scanner.
    if not may_split or fragment.rows <= share * 1.25:
        return [Span(fragment.id, fragment.rows)]
    count = -(-fragment.rows // share)
    step = -(-fragment.rows // count)
    return [Span(fragment.id, min(step, fragment.rows - start), start) for start in range(0, fragment.rows, step)]


def _weights(fragments: Sequence[Fragment], rows: int) -> dict[int, float]:
    """What a row costs in each fragment: rows and bytes count alike, since wide rows take longer."""
    size = sum(fragment.bytes for fragment in fragments)
    if not size:
        return {fragment.id: 1.0 for fragment in fragments}
    mean = size / rows
    return {fragment.id: 0.5 + 0.5 * (fragment.bytes / fragment.rows) / mean for fragment in fragments}

"""Draws the plan of a pipeline's run as SVG: sources, steps and outputs from left to right, and which reads which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiltyard.server.console.timeline_svg import cut, plain

MOST_PARTS: Final = 60
"""Of larger plans only the list is shown."""
_BOX: Final = (196, 46)
_GAP: Final = (64, 18)
_EDGE: Final = 14
_LONGEST: Final = 27


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """A part of a plan.

    Attributes:
        kind: ``source``, ``step``, ``output`` or ``quarantine``.
        name: what it is called.
        inputs: what it reads.
        figures: what it came to, in a few words.
        failed: whether the run failed there.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    figures: str = ""
    failed: bool = False


def plan_svg(parts: Sequence[DrawnPart], title: str) -> str:
    """The picture; empty where there is nothing to draw, or too much."""
    if not parts or len(parts) > MOST_PARTS:
        return ""
    columns = _columns(parts)
    places = _places(columns)
    width = 2 * _EDGE + len(columns) * _BOX[0] + (len(columns) - 1) * _GAP[0]
    height = 2 * _EDGE + max(map(len, columns)) * (_BOX[1] + _GAP[1]) - _GAP[1]
    named = {part.name: number for number, part in enumerate(parts) if part.kind in ("source", "step")}
    edges = [
        _edge(places[named[name]], places[number])
        for number, part in enumerate(parts)
        for name in part.inputs
        if name in named and named[name] != number
    ]
    boxes = [_box(part, places[number]) for number, part in enumerate(parts)]
    return (
        f'<svg class="plan" role="img" aria-label="{plain(title)}" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        + "".join((*edges, *boxes))
        + "</svg>"
    )


def _columns(parts: Sequence[DrawnPart]) -> list[list[int]]:
    """Numbers of parts by how many parts come before them. Whoever wrote the report may have made a circle: each part counts once."""
    depth: dict[str, int] = {}
    found: dict[int, int] = {}
    for number, part in enumerate(parts):
        found[number] = 1 + max((depth[name] for name in part.inputs if name in depth), default=-1)
        if part.kind in ("source", "step"):
            depth.setdefault(part.name, found[number])
    used = sorted(set(found.values()))
    return [[number for number, column in found.items() if column == each] for each in used]


def _places(columns: list[list[int]]) -> Mapping[int, tuple[float, float]]:
    tallest = max(map(len, columns))
    found = {}
    for column, numbers in enumerate(columns):
        above = (tallest - len(numbers)) * (_BOX[1] + _GAP[1]) / 2
        for row, number in enumerate(numbers):
            found[number] = _EDGE + column * (_BOX[0] + _GAP[0]), _EDGE + above + row * (_BOX[1] + _GAP[1])
    return found


def _edge(begin: tuple[float, float], end: tuple[float, float]) -> str:
    (left, top), (right, bottom) = (begin[0] + _BOX[0], begin[1] + _BOX[1] / 2), (end[0], end[1] + _BOX[1] / 2)
    middle = (left + right) / 2
    line = f'<path class="tl-arrow" d="M{left:g} {top:g}C{middle:g} {top:g} {middle:g} {bottom:g} {right - 6:g} {bottom:g}"/>'
    head = f'<path class="tl-head" d="M{right - 7:g} {bottom - 4:g}L{right:g} {bottom:g}L{right - 7:g} {bottom + 4:g}Z"/>'
    return line + head


def _box(part: DrawnPart, place: tuple[float, float]) -> str:
    left, top = place
    kind = part.kind if part.kind in ("source", "step", "output", "quarantine") else "step"
    state = " pl-failed" if part.failed else ""
    below = "failed here" if part.failed else part.figures
    line = f"{part.kind}, {below}" if below else part.kind
    return (
        f"<g><title>{plain(f'{part.name}: {line}')}</title>"
        f'<rect class="pl-box pl-{kind}{state}" x="{left:g}" y="{top:g}" width="{_BOX[0]}" height="{_BOX[1]}" rx="8"/>'
        f'<text x="{left + 12:g}" y="{top + 19:g}">{plain(cut(part.name, _LONGEST))}</text>'
        f'<text class="{"tl-text-lost" if part.failed else "tl-soft"}" x="{left + 12:g}" y="{top + 36:g}">{plain(cut(line, 34))}</text></g>'
    )

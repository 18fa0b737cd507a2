"""Line plots as SVG, with logarithmic axes: what grows by powers of ten is read off as a slope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

WIDTH, HEIGHT = 920, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 230, 30, 50
INK, PALE = "#222222", "#dddddd"
COLORS: Final = ("#3949ab", "#c2571a", "#2e7d32", "#8e24aa", "#00838f", "#6d4c41", "#ad1457", "#827717", "#37474f", "#f9a825")
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis over whole powers of ten, along so many pixels from a start."""

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Axis:
        low, high = floor(log10(min(values))), ceil(log10(max(values)))
        return cls(low, max(high, low + 1), start, end)

    def at(self, value: float) -> float:
        return self.start + (log10(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def draw(curves: Mapping[str, Points], across: str, up: str) -> str:
    """An SVG of one line for each name; values that are not above zero are left out.

    Args:
        curves: points by name, in the order in which they are listed beside the plot.
        across, up: what the axes say.
    """
    shown = {name: [(x, y) for x, y in points if x > 0 and y > 0] for name, points in curves.items()}
    shown = {name: points for name, points in shown.items() if points}
    every = [point for points in shown.values() for point in points]
    x_axis = Axis.over([x for x, _ in every], LEFT, WIDTH - RIGHT)
    y_axis = Axis.over([y for _, y in every], HEIGHT - BOTTOM, TOP)
    lines = [*_frame(x_axis, y_axis, across, up)]
    for number, (name, points) in enumerate(shown.items()):
        lines += _curve(name, [(x_axis.at(x), y_axis.at(y)) for x, y in points], number)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _frame(x_axis: Axis, y_axis: Axis, across: str, up: str) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    yield '  font-family="sans-serif" font-size="13">'
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    for tick in x_axis.ticks:
        x = x_axis.at(tick)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="{PALE}"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="{INK}">{_number(tick)}</text>'
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{PALE}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{INK}">{_number(tick)}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 10}" text-anchor="middle" fill="{INK}">{escape(across)}</text>'
    yield f'<text x="{LEFT}" y="{TOP - 12}" fill="{INK}">{escape(up)}</text>'


def _curve(name: str, points: Points, number: int) -> Iterator[str]:
    color, label = COLORS[number % len(COLORS)], TOP + 14 + 22 * number
    dashes = ' stroke-dasharray="6 3"' if number >= len(COLORS) // 2 else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>'
    for x, y in points:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>'
    left = WIDTH - RIGHT + 20
    yield f'<line x1="{left}" y1="{label - 4}" x2="{left + 24}" y2="{label - 4}" stroke="{color}" stroke-width="2"{dashes}/>'
    yield f'<text x="{left + 32}" y="{label}" fill="{INK}">{escape(name)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"

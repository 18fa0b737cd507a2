"""Draws the tables of the benchmark page as bars: ``python -m bench.plots``, or with ``--check`` only compares.

The figures stand in the page and nowhere else. Each bar is a ratio, Tiltyard to what it is compared with: shorter is better, the line is
parity, and a tick is the aim.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference" / "benchmarks.md"
PLOTS: Final = PAGE.parent / "plots"
SECTIONS: Final = {
    "Commits against pylance": "commits",
    "The verbs": "verbs",
    "Large tables": "cliffs",
    "The lake": "lake",
    "Spark": "spark",
}
"""Headings of the page whose first table is drawn, and the name of the plot."""

WIDTH: Final = 920
LABELS: Final = 480
FIGURE: Final = 40
"""Room that the figure behind a bar takes."""
ROW: Final = 26
TOP: Final = 34
BETTER, WORSE, INK, PALE = "#3949ab", "#c2571a", "#222222", "#bbbbbb"


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a table: what was measured, the ratio, and the aim if there is one."""

    name: str
    ratio: float
    aim: float | None


def bars(page: str, heading: str) -> list[Bar]:
    """The ratios of the first table below a heading."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].splitlines()
    table = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|"), section))
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table]
    if len(rows) < 3:
        raise SystemExit(f"{PAGE.name}: no table below {heading!r}")
    header, lines = rows[0], rows[2:]
    column = next(number for number, name in enumerate(header) if name.endswith("ratio"))
    return [_bar(line, column) for line in lines if line[column]]


def _bar(cells: list[str], column: int) -> Bar:
    """The ratio is a cell of its own, or stands behind the two figures: ``90, 105 ms: 0.86``. Of several aims the first is that of time."""
    aim = re.match(r"[\d.]+", cells[-1])
    return Bar(cells[0].replace("`", ""), float(cells[column].rpartition(":")[2]), float(aim[0]) if aim else None)


def draw(found: list[Bar]) -> str:
    """An SVG of horizontal bars."""
    longest = max(max(bar.ratio, bar.aim or 0.0) for bar in found)
    scale = (WIDTH - LABELS - 60) / max(longest, 1.0)
    height = TOP + ROW * len(found) + 12
    return "\n".join(_lines(found, scale, height)) + "\n"


def _lines(found: list[Bar], scale: float, height: int) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    yield '  font-family="sans-serif" font-size="13">'
    yield f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    parity = LABELS + scale
    yield f'<line x1="{parity:.1f}" y1="{TOP - 8}" x2="{parity:.1f}" y2="{height - 8}" stroke="{PALE}" stroke-dasharray="4 3"/>'
    yield f'<text x="{parity:.1f}" y="{TOP - 14}" text-anchor="middle" fill="{INK}">parity</text>'
    for number, bar in enumerate(found):
        top = TOP + number * ROW
        end = LABELS + bar.ratio * scale
        color = WORSE if bar.aim is not None and bar.ratio > bar.aim else BETTER
        yield f'<text x="{LABELS - 8}" y="{top + 14}" text-anchor="end" fill="{INK}">{escape(bar.name)}</text>'
        yield f'<rect x="{LABELS}" y="{top + 2}" width="{bar.ratio * scale:.1f}" height="{ROW - 10}" fill="{color}"/>'
        place = LABELS + (bar.aim or 0.0) * scale
        label = end
        for line in sorted((place, parity)):  # neither the tick nor parity through the figure
            label = line if label <= line < label + FIGURE else label
        yield f'<text x="{label + 6:.1f}" y="{top + 15}" fill="{INK}">{bar.ratio:.2f}</text>'
        if bar.aim is not None:
            yield f'<line x1="{place:.1f}" y1="{top - 1}" x2="{place:.1f}" y2="{top + ROW - 5}" stroke="{INK}" stroke-width="2"/>'
    yield "</svg>"


def plots() -> dict[Path, str]:
    """Every plot by its file."""
    page = PAGE.read_text()
    return {PLOTS / f"{name}.svg": draw(bars(page, heading)) for heading, name in SECTIONS.items()}


def main() -> None:
    wanted = plots()
    if "--check" in sys.argv[1:]:
        stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text() != text]
        if stale:
            raise SystemExit(f"{', '.join(stale)} not in step with {PAGE.name}; run `python -m bench.plots`")
        return
    PLOTS.mkdir(exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text)


if __name__ == "__main__":
    main()

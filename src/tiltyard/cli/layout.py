"""Columns of text on a page of some width."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

UNBOUNDED: Final = 100_000
"""The width of a pipe: whoever reads it breaks lines as they like."""

NARROWEST: Final = 10
"""What a column shrinks to before columns are left out."""

GAP: Final = "  "
ELLIPSIS: Final = "..."

Row = Sequence[str]


def page_console() -> Console:
    """Standard output; as wide as it needs to be when nobody said how wide it is."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=UNBOUNDED if piped else None)


def widths_of(rows: Sequence[Row]) -> list[int]:
    return [max(cell_len(text) for text in column) for column in zip(*rows, strict=True)]


def total_width(rows: Sequence[Row]) -> int:
    """What the rows need side by side, with nothing cut."""
    widths = widths_of(rows)
    return sum(widths) + len(GAP) * (len(widths) - 1)


def fit_widths(natural: Sequence[int], room: int) -> list[int]:
    """Widths for as many columns as fit, from the left: narrow ones stay as they are, wide ones share what is left evenly."""
    count = len(natural)
    while count > 1 and sum(min(width, NARROWEST) for width in natural[:count]) + len(GAP) * (count - 1) > room:
        count -= 1
    left = room - len(GAP) * (count - 1)
    widths = [0] * count
    for rank, column in enumerate(sorted(range(count), key=lambda number: natural[number])):
        widths[column] = max(min(natural[column], left // (count - rank)), 1)
        left -= widths[column]
    return widths


def cut(text: str, width: int) -> str:
    """At most so wide, ending in dots where something is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - len(ELLIPSIS)) + ELLIPSIS if width > 2 * len(ELLIPSIS) else set_cell_size(text, width)


def pad(text: str, width: int, *, right: bool) -> str:
    gap = " " * (width - cell_len(text))
    return gap + text if right else text + gap


def print_rows(console: Console, header: Row, rows: Sequence[Row], *, numbers: Collection[int] = (), below: Sequence[str] = ()) -> int:
    """One line a row, cells cut where the page is too narrow; ``below`` each a note. Gives the number of columns that found room."""
    widths = fit_widths(widths_of([header, *rows]), console.width)
    for number, row in enumerate([header, *rows]):
        shown = zip(row, widths, strict=False)
        cells = [pad(cut(text, width), width, right=column in numbers) for column, (text, width) in enumerate(shown)]
        console.print(Text(GAP.join(cells).rstrip(), "dim" if number == 0 else ""), soft_wrap=True)
        if number and below and below[number - 1]:
            print_hanging(console, [(below[number - 1],)], indent=widths[0] + len(GAP), last="italic")
    return len(widths)


def print_hanging(console: Console, rows: Sequence[Row], *, indent: int = 0, header: bool = False, label: str = "", last: str = "") -> None:
    """Rows whose last cell is wrapped below itself; ``label`` and ``last`` style the first cell and the last."""
    if not rows:
        return
    widths = widths_of(rows)[:-1]
    margin = indent + sum(width + len(GAP) for width in widths)
    for number, row in enumerate(rows):
        wrapped = Text(row[-1]).wrap(console, max(console.width - margin, NARROWEST), overflow="fold")
        for position, part in enumerate(wrapped or [Text("")]):
            line = Text(" " * indent)
            for column, (text, width) in enumerate(zip(row, widths, strict=False)):
                line.append(pad(text if position == 0 else "", width, right=False) + GAP, label if column == 0 else "")
            line.append(part.plain.rstrip(), last)
            line.rstrip()
            console.print(Text(line.plain, "dim") if header and number == 0 else line, soft_wrap=True)

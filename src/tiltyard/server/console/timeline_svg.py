"""Draws a timeline as SVG: for a page of the console, and as a file of its own with the styles inside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Final

from tiltyard.server.console.timeline import RebaseArrow, Timeline, TimelineLane, TimelineMark, TimelineStep

_LABELS: Final = 190
_PLOT: Final = 960
"""Width of the names, and of all columns together."""
_TOP: Final = 76
_FLAG_ROWS: Final = 3
_LANE: Final = 32
_LEGEND: Final = 44
_RIGHT: Final = 76
_LONGEST_NAME: Final = 24
_NOT_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Link = Callable[[int], str]
"""The address of the page of a snapshot."""

WORDS: Final[Mapping[str, str]] = {
    "write": "write",
    "create": "create",
    "drop": "drop",
    "rename": "rename",
    "register": "register",
    "adopt": "foreign writer",
    "lost": "lost or voided",
}
"""What the shapes stand for."""

STYLE: Final = """
svg{--paper:#fff;--ink:#1b2330;--soft:#5b6675;--rule:#e3e7ec;--write:#2563b8;--create:#17803d;--drop:#5b6675;--rename:#7c3aad;
--adopt:#b45309;--lost:#c02626;--arrow:#8a94a3;--bar:#cdd9ea}
@media(prefers-color-scheme:dark){svg{--paper:#12161c;--ink:#e6eaf0;--soft:#9aa5b4;--rule:#2a313b;--write:#6ea8f5;--create:#4cc38a;
--drop:#9aa5b4;--rename:#c592ee;--adopt:#f0a04b;--lost:#ff7b72;--arrow:#77828f;--bar:#2c3c52}}
text{font:12px system-ui,sans-serif;fill:var(--ink)}
.tl-paper{fill:var(--paper)}.tl-soft{fill:var(--soft);font-size:11px}.tl-rule{stroke:var(--rule)}.tl-bar{fill:var(--bar)}
.tl-write{fill:var(--write)}.tl-create{fill:var(--create)}.tl-rename,.tl-register{fill:var(--rename)}.tl-adopt{fill:var(--adopt)}
.tl-drop{fill:var(--paper);stroke:var(--drop);stroke-width:2}.tl-lost{fill:none;stroke:var(--lost);stroke-width:2.5}
.tl-text-lost{fill:var(--lost)}.tl-held{fill:var(--lost);opacity:.09}
.tl-arrow{fill:none;stroke:var(--arrow);stroke-width:1.4}.tl-head{fill:var(--arrow)}.tl-flag{fill:var(--soft)}.tl-fork{fill:none;stroke:var(--soft);stroke-width:1.5}
"""
"""For a file of its own; pages have the same classes in their style sheet."""


def timeline_svg(timeline: Timeline, link: Link | None = None, title: str = "") -> str:
    """Draws a timeline.

    Args:
        timeline: what is drawn.
        link: where a snapshot leads to, inside a page; without it the picture is a file of its own, with its styles.
        title: what the picture is called.
    """
    return _Drawing(timeline, link, title or f"Timeline of branch {timeline.branch}").text()


def plain(text: str) -> str:
    """Text for markup: escaped, and without characters that XML does not have."""
    return escape(_NOT_XML.sub("\ufffd", text), quote=True)


def cut(text: str, longest: int) -> str:
    """The beginning of a text that is too long."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def described(step: TimelineStep) -> str:
    """A snapshot in a sentence, for screen readers and for whoever points at it."""
    done = ", ".join(f"{mark.table} {_done(mark)} to version {mark.version}" for mark in step.marks[:8])
    more = f" and {len(step.marks) - 8} more tables" if len(step.marks) > 8 else ""
    said = f": {cut(step.message, 120)}" if step.message else ""
    state = f" ({step.state})" if step.state else ""
    return f"Snapshot {step.snapshot}{state} by {step.author or 'an unknown author'}{said}. {done}{more}"


def _done(mark: TimelineMark) -> str:
    if mark.kind == "adopt":
        return "by a foreign writer"
    return ", ".join(dict.fromkeys(mark.operations)) if mark.kind == "write" else mark.kind


@dataclass(slots=True)
class _Drawing:
    timeline: Timeline
    link: Link | None
    title: str

    @property
    def column(self) -> float:
        return min(_PLOT / max(len(self.timeline.steps), 1), 48.0)

    @property
    def mark(self) -> float:
        """The width of a mark."""
        return max(3.0, min(14.0, self.column - 3))

    @property
    def width(self) -> int:
        return _LABELS + _PLOT + _RIGHT

    @property
    def bottom(self) -> int:
        return _TOP + _LANE * max(len(self.timeline.lanes), 1)

    def text(self) -> str:
        return "\n".join(part for part in self._parts() if part)

    def _parts(self) -> Iterator[str]:
        height = self.bottom + _LEGEND
        role = 'role="img" aria-labelledby="tl-title"' if self.link is None else f'role="group" aria-label="{plain(self.title)}"'
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {self.width} {height}"'
            f' width="{self.width}" height="{height}" {role}>'
        )
        if self.link is None:
            yield f'<title id="tl-title">{plain(self.title)}</title><style>{STYLE}</style>'
            yield f'<rect class="tl-paper" width="{self.width}" height="{height}"/>'
        for number, lane in enumerate(self.timeline.lanes):
            yield self._lane(number, lane)
        yield self._axis()
        places = {step.snapshot: number for number, step in enumerate(self.timeline.steps)}
        yield from (self._bar(number, step) for number, step in enumerate(self.timeline.steps))
        yield from (self._arrow(arrow, places) for arrow in self.timeline.arrows)
        yield from (self._step(number, step) for number, step in enumerate(self.timeline.steps))
        yield self._legend()
        yield "</svg>"

    def _x(self, number: int) -> float:
        return round(_LABELS + (number + 0.5) * self.column, 1)

    def _y(self, lane: int) -> float:
        return _TOP + _LANE * (lane + 0.5)

    def _lane(self, number: int, lane: TimelineLane) -> str:
        y = self._y(number)
        name = cut(lane.name, _LONGEST_NAME) if lane.name else f"{lane.tables} more tables"
        held = ""
        if lane.quarantine:
            held = f'<rect class="tl-held" x="0" y="{y - _LANE / 2}" width="{self.width}" height="{_LANE}"/>'
        kind = ' class="tl-text-lost"' if lane.quarantine else ' class="tl-soft"' if not lane.name else ""
        told = f"{lane.name}: quarantined, {lane.quarantine}" if lane.quarantine else lane.name or name
        shown = ("⚠ " if lane.quarantine else "") + name
        return (
            f'{held}<line class="tl-rule" x1="{_LABELS}" x2="{self.width - _RIGHT}" y1="{y}" y2="{y}"/>'
            f'<text{kind} x="12" y="{y + 4}">{plain(shown)}<title>{plain(told)}</title></text>'
        )

    def _bar(self, number: int, step: TimelineStep) -> str:
        """A transaction over several tables: drawn first, beneath the arrows."""
        lanes = sorted({mark.lane for mark in step.marks})
        if len(lanes) < 2:
            return ""
        wide, top = self.mark, self._y(lanes[0])
        left = self._x(number) - wide / 2
        return f'<rect class="tl-bar" x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{self._y(lanes[-1]) - top}"/>'

    def _step(self, number: int, step: TimelineStep) -> str:
        x, wide = self._x(number), self.mark
        by_lane = {mark.lane: mark for mark in step.marks}
        parts = [self._mark(mark, x, wide, bool(step.state)) for mark in by_lane.values()]
        told = plain(described(step))
        body = f"<title>{told}</title>{''.join(parts)}"
        if self.link is None:
            return f"<g>{body}</g>"
        target = (
            f'<rect class="tl-target" x="{x - self.column / 2:.1f}" y="{_TOP}" width="{self.column:.1f}" height="{self.bottom - _TOP}"/>'
        )
        return f'<a id="s{step.snapshot}" href="{plain(self.link(step.snapshot))}" aria-label="{told}">{body}{target}</a>'

    def _mark(self, mark: TimelineMark, x: float, wide: float, void: bool) -> str:
        return _shape("lost" if mark.lost or void else mark.kind, x, self._y(mark.lane), wide)

    def _arrow(self, arrow: RebaseArrow, places: Mapping[int, int]) -> str:
        y, begin, end = self._y(arrow.lane), self._x(places[arrow.by]), self._x(places[arrow.over])
        told = f"{arrow.table}: {arrow.ours} in snapshot {arrow.by} was rebased over {arrow.theirs} in snapshot {arrow.over}"
        return f"<g><title>{plain(told)}</title>{_arc(begin - 2, end + 2, y - 7)}</g>"

    def _axis(self) -> str:
        every = max(1, round(40 / self.column))
        parts = [
            f'<text class="tl-soft" x="{self._x(number)}" y="{_TOP - 8}" text-anchor="middle">{step.snapshot}</text>'
            for number, step in enumerate(self.timeline.steps)
            if number % every == 0
        ]
        ends = [0.0] * _FLAG_ROWS
        for number, step in enumerate(self.timeline.steps):
            for name, kind in [*((name, "tag") for name in step.tags), *((name, "branch") for name in step.branches)]:
                parts.append(self._flag(self._x(number), name, kind, step.snapshot, ends))
        if not self.timeline.steps:
            parts.append(f'<text class="tl-soft" x="{_LABELS}" y="{self.bottom - 12}">No snapshots here.</text>')
        return "".join(parts)

    def _flag(self, x: float, name: str, kind: str, snapshot: int, ends: list[float]) -> str:
        """The name of a tag or branch above its snapshot, in the first row that has room; where none has, only its line."""
        words, line = cut(name, 20), f'<line class="tl-rule" x1="{x}" x2="{x}" y1="{_TOP - 4}" y2="{self.bottom}"/>'
        wide = 20 + 6.6 * len(words)
        left = min(x - 6, self.width - wide - 4)
        row = next((row for row, end in enumerate(ends) if end <= left), None)
        if row is None:
            return line
        ends[row], y = left + wide + 6, 8 + 15 * row
        flag = f"M{left + 6} {y}v11M{left + 6} {y + 1}h7l-2 2.5 2 2.5h-7"
        fork = f"M{left + 6} {y}v11M{left + 6} {y + 8}c0-4 6-2 6-7"
        told = plain(f"{kind} {name} at snapshot {snapshot}")
        return (
            f'{line}<g><title>{told}</title><path class="tl-fork" d="{flag if kind == "tag" else fork}"/>'
            f'<text x="{left + 17}" y="{y + 10}">{plain(words)}</text></g>'
        )

    def _legend(self) -> str:
        x, y, parts = 18.0, self.bottom + 26, []
        for kind, word in WORDS.items():
            parts.append(f'{_shape(kind, x, y - 4, 12)}<text class="tl-soft" x="{x + 13}" y="{y}">{word}</text>')
            x += 13 + len(word) * 6.4 + 22
        parts.append(f'<rect class="tl-bar" x="{x - 5}" y="{y - 10}" width="10" height="12"/>')
        parts.append(f'<text class="tl-soft" x="{x + 13}" y="{y}">one transaction</text>')
        x += 130
        parts.append(_arc(x + 16, x, y - 1))
        parts.append(f'<text class="tl-soft" x="{x + 26}" y="{y}">rebased over</text>')
        x += 122
        parts.append(f'<rect class="tl-held" x="{x - 6}" y="{y - 12}" width="16" height="16"/>')
        parts.append(f'<text class="tl-soft" x="{x + 18}" y="{y}">quarantine</text>')
        return "".join(parts)


def _arc(begin: float, end: float, y: float) -> str:
    """An arrow that rises from one place and comes down on another."""
    tip = f"{end:.1f},{y:.1f} {end - 3.2:.1f},{y - 5.5:.1f} {end + 3.2:.1f},{y - 5.5:.1f}"
    curve = f"M{begin:.1f} {y:.1f}C{begin:.1f} {y - 13:.1f} {end:.1f} {y - 13:.1f} {end:.1f} {y - 5:.1f}"
    return f'<path class="tl-arrow" d="{curve}"/><polygon class="tl-head" points="{tip}"/>'


def _shape(kind: str, x: float, y: float, wide: float) -> str:
    """A shape for each kind, so that colour is not all that tells them apart."""
    half = wide / 2
    if kind == "create":
        return f'<circle class="tl-create" cx="{x}" cy="{y}" r="{min(half, 6.5)}"/>'
    if kind == "adopt":
        return f'<polygon class="tl-adopt" points="{x},{y - 8} {x + half + 1},{y} {x},{y + 8} {x - half - 1},{y}"/>'
    if kind == "lost":
        return f'<path class="tl-lost" d="M{x - half} {y - 5}L{x + half} {y + 5}M{x - half} {y + 5}L{x + half} {y - 5}"/>'
    if kind in ("rename", "register"):
        base, tip = (y + 6, y - 7) if kind == "rename" else (y - 6, y + 7)
        return f'<polygon class="tl-{kind}" points="{x - half},{base} {x},{tip} {x + half},{base}"/>'
    kind = kind if kind in ("write", "drop") else "write"
    return f'<rect class="tl-{kind}" x="{x - half}" y="{y - 6}" width="{wide}" height="12" rx="2.5"/>'

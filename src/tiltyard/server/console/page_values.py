"""What a page is asked with, and what it comes to: the values that all pages share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tiltyard.errors import InvalidInput
from tiltyard.redact import redact
from tiltyard.server.console.lake_viewer import HistoryFilter, LakeViewer
from tiltyard.server.console.page_rendering import PageAddress

LONGEST_CELL: Final = 120
"""Characters of a value that a table of a page shows."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a page is asked for.

    Attributes:
        viewer: the lake, on the branch that was asked for, and who looks.
        here: the address, with its parameters.
        path: parameters in the path.
        form: fields that were sent.
    """

    viewer: LakeViewer
    here: PageAddress
    path: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A parameter; empty where it is not given."""
        return self.here.query.get(name, "").strip()

    def number(self, name: str, default: int, least: int = 0, most: int = 2**53) -> int:
        """A parameter that is a number.

        Raises:
            InvalidInput: it is none, or out of bounds.
        """
        found = self.optional_number(name)
        if found is None:
            return default
        if not least <= found <= most:
            raise InvalidInput(f"{name} is a number from {least} to {most}.", argument=name)
        return found

    def optional_number(self, name: str) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise InvalidInput(f"{name} is a number, not {text[:40]!r}.", argument=name)
        return int(text)

    @property
    def wanted(self) -> HistoryFilter:
        """The filter in the parameters."""
        return HistoryFilter(self.text("author"), self.text("table"), self.text("operation"))


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """What a page shows.

    Attributes:
        template: that renders it.
        title: of the window.
        section: the entry of the navigation that it belongs to.
        values: for the template, beside what all pages have.
        here: its address, for links to its neighbours.
        branch, branches: the branch that is shown, and those that can be chosen; none where that makes no difference.
        live: the snapshot that it shows, where it follows the lake by itself; None where it does not.
        status: of HTTP.
        location: where the browser goes instead.
    """

    template: str
    title: str = ""
    section: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    here: PageAddress | None = None
    branch: str = ""
    branches: tuple[str, ...] = ()
    live: int | None = None
    status: int = 200
    location: str = ""


def page_of(
    asked: PageRequest, template: str, title: str, section: str, view: Any, *, live: int | None = None, status: int = 200
) -> ConsolePage:
    """A page about a branch of the lake."""
    viewer, following = asked.viewer, asked.text("live") != "off"
    return ConsolePage(
        template,
        title,
        section,
        {"view": view, "follows": live is not None},
        asked.here,
        viewer.branch,
        tuple(viewer.branches()),
        live if following else None,
        status,
    )


def cell(value: Any, longest: int = LONGEST_CELL) -> str:
    """A value as one line of text, cut where it is long; of what is long, no more is looked at than is shown."""
    if value is None:
        return "null"
    if isinstance(value, str):
        text = value[: longest + 1]
    elif isinstance(value, bytes):
        text = "0x" + value[: longest // 2 + 1].hex()
    elif isinstance(value, Mapping):
        parts = [f"{cell(key, 40)}: {cell(inner, 40)}" for key, inner in list(value.items())[:20]]
        text = "{" + ", ".join(parts) + ("…" if len(value) > 20 else "") + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(cell(inner, 40) for inner in value[:20]) + ("…" if len(value) > 20 else "") + "]"
    elif isinstance(value, float):
        text = f"{value:.6g}" if abs(value) < 1e15 else repr(value)
    else:
        text = str(value)
    return text if len(text) <= longest else text[:longest] + "…"


def said(text: str, longest: int = 300) -> str:
    """Stored text of a person or an error, cut and without credentials."""
    clean = redact(text[: longest * 4])
    return clean if len(clean) <= longest else clean[:longest] + "…"

"""Pages as HTML: templates, what they may call, the files that they load, and the headers that keep a browser from doing more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

BASE: Final = "/console"

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Of every answer of the console. Neither scripts nor styles are taken from a page itself, whatever a stored text brings in."""

STATIC: Final[Mapping[str, str]] = {
    "console.css": "text/css; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "htmx.LICENSE": "text/plain; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The files that pages load, by name, with their types."""


@dataclass(frozen=True, slots=True)
class PageAddress:
    """The address of a page, from which those of its neighbours are made.

    Attributes:
        path: below the server.
        query: after the question mark.
    """

    path: str
    query: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.path + (f"?{urlencode(self.query)}" if self.query else "")

    def but(self, **changes: object) -> str:
        """The same page with some parameters changed; None and empty ones go."""
        merged = {**self.query, **{key: "" if value is None else str(value) for key, value in changes.items()}}
        return str(PageAddress(self.path, {key: value for key, value in merged.items() if value != ""}))


def path_to(*parts: object, **query: object) -> str:
    """The address of a page of the console."""
    path = "/".join([BASE, *(quote(str(part), safe="") for part in parts)])
    return PageAddress(path).but(**query)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that pages load.

    Attributes:
        data: its bytes.
        media: its type.
        digest: of the bytes, for the address, so that browsers keep it for as long as it is the same.
    """

    data: bytes
    media: str
    digest: str


@cache
def static_file(name: str) -> StaticFile | None:
    """One of the files in ``static/``; None for any other name."""
    if name not in STATIC:
        return None
    data = (files(__package__) / "static" / name).read_bytes()
    return StaticFile(data, STATIC[name], hashlib.sha256(data).hexdigest()[:12])


def _static_path(name: str) -> str:
    found = static_file(name)
    assert found is not None
    return path_to("static", name, v=found.digest)


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def _number(value: float | int | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def size(number: int) -> str:
    """Bytes, as people read them."""
    scaled = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(scaled) < 1024:
            return f"{scaled:.0f} {unit}" if unit == "B" else f"{scaled:.1f} {unit}"
        scaled /= 1024
    return f"{scaled:,.1f} TiB"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _sentence(text: str) -> str:
    """The text with a capital at its beginning; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value * 1000:.0f} ms" if value < 1 else f"{value:,.1f} s"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("tiltyard.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {"time": _time, "number": _number, "size": size, "seconds": _seconds, "count": _count, "sentence": _sentence}
    made.globals |= {
        "path_to": path_to,
        "static": _static_path,
        "htmx_config": json.dumps(
            {"includeIndicatorStyles": False, "allowEval": False, "selfRequestsOnly": True, "historyCacheSize": 0, "timeout": 20_000}
        ),
    }
    return made


def render(template: str, values: Mapping[str, Any]) -> str:
    """A page as HTML. Whatever stands in the values is escaped."""
    return _environment().get_template(template).render(values)

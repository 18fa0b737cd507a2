"""Options that commands share, and the small languages some of them are written in."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

import typer

import tiltyard as ty
from tiltyard.options import span_of

Uri = Annotated[str, typer.Argument(metavar="URI", help="The table: a directory, s3://, gs:// or az://.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, errors too.")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="KEY=VALUE", help="For the store, as pylance takes them; repeat. Values are never shown."),
]
Bases = Annotated[
    list[str] | None,
    typer.Option("--allow-base", metavar="URI", help="A place outside the table where its files may be; '*' for anywhere."),
]
Branch = Annotated[str | None, typer.Option("--branch", metavar="NAME", help="A branch instead of main.")]
Tag = Annotated[str | None, typer.Option("--tag", metavar="NAME", help="The version a tag names.")]
Version = Annotated[int | None, typer.Option("--version", metavar="N", help="A version; the latest by default.")]
Message = Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="A sentence for the history.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
Where = Annotated[str, typer.Option("--where", metavar="SQL", help="Which rows.")]


def listed(given: Iterable[str] | None) -> list[str]:
    """Names given as ``a,b``, by an option that may be repeated."""
    return [name.strip() for text in given or () for name in text.split(",") if name.strip()]


def pairs(given: Iterable[str], argument: str) -> dict[str, str]:
    """Texts of the form ``KEY=VALUE``; ``argument`` says what they are for."""
    found: dict[str, str] = {}
    for number, text in enumerate(given, 1):
        key, separator, value = text.partition("=")
        key = key.strip()
        if not separator or not key:
            # The text itself stays unsaid: it may be a key somebody pasted.
            what = argument.replace("_", " ").capitalize()
            raise ty.InvalidInput(f"{what} {number} is not of the form KEY=VALUE.", argument=argument)
        if key in found:
            raise ty.InvalidInput(f"{argument.replace('_', ' ').capitalize()} {key!r} is given twice.", argument=argument)
        found[key] = value
    return found


def duration(text: str | None, argument: str) -> timedelta | None:
    """A span of time such as ``7d``, ``12h`` or ``1d12h``."""
    if text is None:
        return None
    found = span_of(text)
    if found is None:
        raise ty.InvalidInput(f"{text!r} is not a span of time.", argument=argument, advice="Write 7d, 12h, 90m, 30s or 1d12h.")
    return found

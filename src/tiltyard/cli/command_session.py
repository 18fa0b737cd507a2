"""What all commands on a table have in common: how they open it, where answers and errors go, and how the process ends."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, Final, get_type_hints

import typer

import tiltyard as ty
from tiltyard.cli.facts import RowAddress
from tiltyard.cli.option_types import Bases, Branch, Json, StorageOptions, Uri, pairs
from tiltyard.cli.output import CommandOutput, JsonOutput
from tiltyard.cli.text_output import TextOutput
from tiltyard.redact import redact

DONE: Final = 0
PROBLEMS: Final = 1
"""``check`` found the table unsound."""
FAILED: Final = 2
"""An error, or a command line that cannot be understood."""
CONFLICT: Final = 3
"""Somebody else's commit stood in the way; nothing of ours is visible."""
UNKNOWN: Final = 4
"""It cannot be said whether a commit was made."""
INTERRUPTED: Final = 130

Work = Callable[..., None]
"""Takes a session first, then what is its own."""


@dataclass(frozen=True, slots=True)
class Session:
    """One command on one table."""

    uri: str
    branch: str | None
    options: dict[str, str] | None
    bases: tuple[str, ...]
    output: CommandOutput

    def open(self, *, version: int | None = None, tag: str | None = None) -> ty.Table:
        return ty.Table.open(
            self.uri, version_or_tag(version, tag), branch=self.branch, storage_options=self.options, allowed_bases=self.bases
        )

    @property
    def shown_uri(self) -> str:
        return redact(self.uri)

    def where(self, table: ty.Table) -> RowAddress:
        return RowAddress(self.shown_uri, table.branch, table.layout.latest_version())


def version_or_tag(version: int | None, tag: str | None) -> int | str | None:
    """What a command was told of a version.

    Raises:
        InvalidInput: both its number and a tag.
    """
    if version is not None and tag is not None:
        raise ty.InvalidInput("Give one of version and tag.", argument="version")
    return version if tag is None else tag


_BEFORE: Final = (Parameter("uri", Parameter.KEYWORD_ONLY, annotation=Uri),)
_AFTER: Final = (
    Parameter("branch", Parameter.KEYWORD_ONLY, annotation=Branch, default=None),
    Parameter("json", Parameter.KEYWORD_ONLY, annotation=Json, default=False),
    Parameter("storage_option", Parameter.KEYWORD_ONLY, annotation=StorageOptions, default=None),
    Parameter("allow_base", Parameter.KEYWORD_ONLY, annotation=Bases, default=None),
)


def table_command(app: typer.Typer, name: str | None = None, *, branches: bool = True) -> Callable[[Work], Work]:
    """Makes a command of a function: it is given a session, and the options that all commands on tables have are added to its own.

    Args:
        app: whose command it becomes.
        name: what it is called; by default as the function.
        branches: whether it takes ``--branch``.
    """

    def register(work: Work) -> Work:
        hints = get_type_hints(work, include_extras=True)
        own = [parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]) for parameter in _parameters(work)[1:]]
        shared = [parameter for parameter in _AFTER if branches or parameter.name != "branch"]

        def command(**given: Any) -> None:
            uri, json, options, bases = (given.pop(key) for key in ("uri", "json", "storage_option", "allow_base"))
            with reporting(uri, given.pop("branch", None), json, options, bases) as session:
                work(session, **given)

        command.__doc__, command.__name__ = work.__doc__, work.__name__
        command.__annotations__ = {}
        command.__signature__ = Signature([*_BEFORE, *own, *shared])  # type: ignore[attr-defined]
        app.command(name)(command)
        return work

    return register


def _parameters(work: Work) -> list[Parameter]:
    return list(inspect.signature(work).parameters.values())


@contextmanager
def reporting(uri: str, branch: str | None, json: bool, given: list[str] | None, bases: list[str] | None) -> Iterator[Session]:
    """A session; an error of ours ends in a report and an exit code of its own kind."""
    output: CommandOutput = JsonOutput() if json else TextOutput()
    try:
        options = pairs(given or [], "storage_option")
        secrets = [value for value in options.values() if value.lower() not in ("true", "false")]
        output = JsonOutput(secrets) if json else TextOutput(secrets)
        yield Session(uri, branch, options or None, tuple(bases or ()), output)
    except ty.TiltyardError as error:
        output.error(_advised(error, uri))
        raise typer.Exit(exit_code(error)) from None


def exit_code(error: ty.TiltyardError) -> int:
    if isinstance(error, ty.OutcomeUnknown):
        return UNKNOWN
    return CONFLICT if isinstance(error, ty.ConflictError | ty.ContentionError | ty.HistoryUnavailable) else FAILED


def _advised(error: ty.TiltyardError, uri: str) -> ty.TiltyardError:
    """An error whose advice is about commands where it was about calls."""
    if isinstance(error, ty.OutcomeUnknown):
        uri = error.uri if error.operation == "Clone" else uri  # of the new table
        where = redact(uri) if len(uri) < 80 else "URI"
        ask = f"tiltyard why {shlex.quote(where)} {error.transaction_id} --tried {error.version}"
        return error.advised(f"Nothing was deleted. Run `{ask}` once the store answers again.")
    return error

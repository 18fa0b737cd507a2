"""What a server does for its lake by itself: policies from a TOML file. A complaint names policy, key and what is allowed there.

[compact-sales]                 what the policy is called
do = "compact"                  or "index", "cleanup"
tables = ["sales", "events.raw"]  names, and all below them; all tables by default
every = "1h"                    or at = "03:30", each day, UTC
min_fragments = 16
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any, Final

from tiltyard.errors import InvalidInput
from tiltyard.lakes.table_names import JOINT, full_name
from tiltyard.options import span_of

SHORTEST: Final = timedelta(seconds=1)
_SHARED: Final = frozenset({"do", "every", "at"})
_KINDS: Final[Mapping[str, Mapping[str, type]]] = {
    "compact": {"tables": list, "min_fragments": int, "target_rows": int, "deletions": float},
    "index": {"tables": list, "min_rows": int, "merge": bool},
    "cleanup": {"older_than": timedelta, "keep_snapshots": int, "grace": timedelta},
}
"""The keys of each kind, and what they hold."""


@dataclass(frozen=True, slots=True)
class UpkeepSchedule:
    """When something is done.

    Attributes:
        every: the time between two beginnings.
        at: a time of the day, UTC.
    """

    every: timedelta | None = None
    at: time | None = None

    def next_after(self, last: datetime | None, now: datetime) -> datetime:
        """When it is due; what was never done is due at once, or at its time of the day."""
        if self.every is not None:
            return now if last is None else last + self.every
        assert self.at is not None
        since = now if last is None else last
        today = datetime.combine(since.date(), self.at, since.tzinfo)
        return today if today > since else today + timedelta(days=1)

    def __str__(self) -> str:
        return f"every {self.every}" if self.every is not None else f"at {self.at:%H:%M} UTC"


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    """One thing that is done again and again.

    Attributes:
        name: what it is called.
        kind: ``compact``, ``index`` or ``cleanup``.
        schedule: when.
        tables: names; all tables with such a name, or below it, are meant. None for all.
        settings: the other keys.
    """

    name: str
    kind: str
    schedule: UpkeepSchedule
    tables: tuple[tuple[str, ...], ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def covers(self, name: str) -> bool:
        """Whether a table, by its full name, is meant."""
        parts = tuple(name.split(JOINT))
        return self.tables is None or any(parts[: len(prefix)] == prefix for prefix in self.tables)

    def __str__(self) -> str:
        if self.kind == "cleanup":
            where = "the lake"
        else:
            where = "all tables" if self.tables is None else ", ".join(".".join(prefix) for prefix in self.tables)
        told = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        return f"{self.kind} {where} {self.schedule}" + (f" ({told})" if told else "")


def read_policies(path: Path) -> tuple[UpkeepPolicy, ...]:
    """The policies of a file.

    Raises:
        InvalidInput: it cannot be read, or something in it is missing, unknown or not what it has to be.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.", argument="upkeep") from error
    if not given:
        raise InvalidInput(f"{path} has no policy.", argument="upkeep", advice='Write [NAME], do = "compact", every = "1h".')
    return tuple(_policy(name, keys) for name, keys in given.items())


def _policy(name: str, keys: Any) -> UpkeepPolicy:
    if not isinstance(keys, dict):
        raise _wrong(name, "", "is a table [NAME] with the keys of a policy")
    kind = keys.get("do")
    if kind not in _KINDS:
        raise _wrong(name, "do", f"is one of {', '.join(_KINDS)}")
    known = _KINDS[str(kind)]
    if unknown := sorted(set(keys) - _SHARED - set(known)):
        raise _wrong(name, unknown[0], f"is not known for {kind}; known are {', '.join(sorted(_SHARED | set(known)))}")
    settings = {key: _value(name, key, wanted, keys[key]) for key, wanted in known.items() if key in keys}
    tables = settings.pop("tables", None)
    if kind == "cleanup" and not {"older_than", "keep_snapshots"} & set(settings):
        raise _wrong(name, "older_than", "or keep_snapshots is needed: it says which snapshots are removed")
    return UpkeepPolicy(name, str(kind), _schedule(name, keys), tables, settings)


def _schedule(name: str, keys: Mapping[str, Any]) -> UpkeepSchedule:
    if ("every" in keys) == ("at" in keys):
        raise _wrong(name, "every", "or at is needed, and not both")
    if "every" in keys:
        every = _value(name, "every", timedelta, keys["every"])
        if every < SHORTEST:
            raise _wrong(name, "every", "is a second at least")
        return UpkeepSchedule(every=every)
    try:
        return UpkeepSchedule(at=time.fromisoformat(keys["at"]) if isinstance(keys["at"], str) else _refused_time(keys["at"]))
    except (TypeError, ValueError):
        raise _wrong(name, "at", "is a time of the day such as '03:30', UTC") from None


def _refused_time(given: Any) -> time:
    if isinstance(given, time) and given.tzinfo is None:
        return given
    raise TypeError


def _value(name: str, key: str, wanted: type, given: Any) -> Any:
    if wanted is timedelta:
        found = span_of(given) if isinstance(given, str) else None
        if found is None:
            raise _wrong(name, key, "is a span of time such as '30m', '12h' or '7d'")
        return found
    if wanted is list:
        return _prefixes(name, key, given)
    number = int if wanted is int else (int, float)
    if wanted is bool:
        fine = isinstance(given, bool)
    else:
        fine = isinstance(given, number) and not isinstance(given, bool) and (0 <= given <= 1 if wanted is float else given >= 1)
    if not fine:
        what = {bool: "true or false", int: "a whole number of at least 1", float: "a share between 0 and 1"}[wanted]
        raise _wrong(name, key, f"is {what}")
    return given


def _prefixes(name: str, key: str, given: Any) -> tuple[tuple[str, ...], ...]:
    listed: Sequence[Any] = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    if not listed or not all(isinstance(prefix, str) for prefix in listed):
        raise _wrong(name, key, "is a name, or a list of names")
    try:
        return tuple(tuple(full_name(prefix).split(JOINT)) for prefix in listed)
    except InvalidInput as error:
        raise _wrong(name, key, f"has a name that no table can have ({error})") from None


def _wrong(name: str, key: str, what: str) -> InvalidInput:
    return InvalidInput(f"[{name[:60]}] {key[:60]} {what}.".replace("  ", " "), argument="upkeep")

"""Cleanup after every so many versions, where the table's config asks for it: ``lance.auto_cleanup.*``, as pylance reads it.

The commit is done by then. Whatever is wrong with the config or the cleanup is logged, and changes nothing of its result.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tiltyard.errors import InvalidInput, TiltyardError
from tiltyard.verbs.cleanup.cleanup_plan import Policy
from tiltyard.verbs.cleanup.run_cleanup import cleanup_table
from tiltyard.verbs.engine.access import TableAccess

PREFIX: Final = "lance.auto_cleanup."

_log = logging.getLogger("tiltyard.cleanup")

_PART: Final = re.compile(r"\s*([0-9]{1,15})\s*([a-zA-Z]+)")
_UNITS: Final[Mapping[str, timedelta]] = {
    **dict.fromkeys(("ns", "nsec", "us", "usec"), timedelta(0)),
    **dict.fromkeys(("ms", "msec", "millis"), timedelta(milliseconds=1)),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), timedelta(seconds=1)),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), timedelta(minutes=1)),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), timedelta(hours=1)),
    **dict.fromkeys(("d", "day", "days"), timedelta(days=1)),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), timedelta(weeks=1)),
    **dict.fromkeys(("M", "month", "months"), timedelta(days=30.44)),
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), timedelta(days=365.25)),
}


@dataclass(frozen=True, slots=True)
class CleanupSchedule:
    """What a table's config asks for.

    Attributes:
        interval: after every so many versions.
        older_than: how old a version has to be to go; None for any age.
        retain_versions: how many of the newest stay; None for no such rule.
    """

    interval: int
    older_than: timedelta | None
    retain_versions: int | None

    def is_due(self, version: int) -> bool:
        return version % self.interval == 0


def schedule_of(config: Mapping[str, str]) -> CleanupSchedule | None:
    """The schedule that a table's config states; None where it states none.

    Raises:
        InvalidInput: naming the key whose value says nothing.
    """
    interval = _number(config, "interval")
    if interval is None:
        return None
    return CleanupSchedule(interval, _age(config), _number(config, "retain_versions"))


def clean_up_when_due(access: TableAccess, main: TableAccess, config: Mapping[str, str], version: int) -> None:
    """Cleans up after a commit where the config says that it is time."""
    try:
        schedule = schedule_of(config)
        if schedule is None or not schedule.is_due(version):
            return
        policy = Policy(schedule.older_than, schedule.retain_versions)
        report = cleanup_table(access, main, version, policy, patient=False)  # nobody expects a commit to wait
    except TiltyardError as error:
        _log.warning("automatic cleanup of %s after version %s did not happen: %s", access.store.uri, version, error)
    else:
        _log.info("automatic cleanup of %s after version %s: %s versions removed", access.store.uri, version, len(report.versions))


def _number(config: Mapping[str, str], name: str) -> int | None:
    text = config.get(PREFIX + name)
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) < 2**63:
        raise InvalidInput(f"{PREFIX}{name} must be a number of at least 1, not {text[:40]!r}.", argument=PREFIX + name)
    return int(text)


def _age(config: Mapping[str, str]) -> timedelta | None:
    """A duration in the words pylance takes: ``14days``, ``1h 30m``, ``3600s``."""
    text = config.get(PREFIX + "older_than")
    if text is None:
        return None
    age, rest = timedelta(0), text.strip()
    while rest:
        part = _PART.match(rest)
        if part is None or part[2] not in _UNITS:
            raise InvalidInput(f"{PREFIX}older_than is a duration such as '14days', not {text[:40]!r}.", argument=PREFIX + "older_than")
        try:
            age += int(part[1]) * _UNITS[part[2]]
        except OverflowError as error:
            raise InvalidInput(f"{PREFIX}older_than is too long: {text[:40]!r}.", argument=PREFIX + "older_than") from error
        rest = rest[part.end() :].strip()
    if not text.strip():
        raise InvalidInput(f"{PREFIX}older_than is empty.", argument=PREFIX + "older_than")
    return age

"""Deletes chosen versions of one table, as far as the lake does not need them.

A snapshot of the lake shows a version of each table, and whoever is at work at the end of a line of history needs all versions since its
oldest snapshot. Such a version is not deleted by its number: ``lake.cleanup`` gives up snapshots, of all tables at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tiltyard.errors import InvalidInput, NotFound
from tiltyard.format.names import parse_manifest_name
from tiltyard.lakes.cleanup.lake_cleanup import needs_now
from tiltyard.lakes.cleanup.references import References
from tiltyard.lakes.table_names import shown
from tiltyard.transaction.log import VERSIONS
from tiltyard.verbs.cleanup.cleanup_plan import Policy, kept_versions
from tiltyard.verbs.cleanup.run_cleanup import cleanup_table

if TYPE_CHECKING:
    from tiltyard.catalog.lake_values import TableHead
    from tiltyard.lake import Lake
    from tiltyard.verbs.engine.access import TableAccess

GRACE: Final = timedelta(days=7)
"""For files that no version names: stock writers count on it."""


def delete_versions(lake: Lake, head: TableHead, wanted: Callable[[int], bool], branch: str | None = None) -> int:
    """Deletes the versions that are asked for, all or none; how many there were.

    Args:
        lake: the lake.
        head: the table, as the catalog has it.
        wanted: which versions are to go.
        branch: of the table's own branches; the one that the lake shows by default.

    Raises:
        InvalidInput: one of them is needed; the message says by whom.
        NotFound: the table was dropped meanwhile.
    """
    main = lake.plain_access_of(head)
    access = lake.access_of(head, lake.branch) if branch is None else main.on_branch(branch)
    there = _numbers(access)
    asked = {number for number in there if wanted(number)}
    if not asked:
        return 0
    before, keep = (max(there), frozenset[int]()) if branch is not None else _needed(lake, head)
    _refuse_needed(asked, before, kept_versions(access, main, Policy(keep=keep), max(there)))
    # The floor goes no higher than it must: who is at work above it is not disturbed.
    named = References(lake).named(replace(head, branch=branch or head.branch))
    policy = Policy(keep=keep | (there - asked), grace=GRACE, before=max(asked) + 1, named=named)
    return len(asked.intersection(cleanup_table(access, main, max(there), policy, patient=False).versions))


def _needed(lake: Lake, head: TableHead) -> tuple[int, frozenset[int]]:
    """From which version on all are needed, and which earlier ones."""
    need = needs_now(lake).tables.get((head.location, head.branch))
    if need is None:
        raise NotFound(f"{shown(head.name)} was dropped from the lake.", name=shown(head.name))
    return need.before, frozenset(need.keep)


def _refuse_needed(asked: set[int], before: int, kept: dict[int, list[str]]) -> None:
    named = {number: kept[number][-1] for number in asked if number in kept}
    needed = sorted({*named, *(number for number in asked if number >= before)})
    if not needed:
        return
    number = needed[0]
    holder = named.get(number, "")
    by = holder if holder.startswith(("tag ", "branch ")) else "snapshots of the lake, or writers at work on them"
    raise InvalidInput(
        f"Version {number} is needed by {by}. Nothing was deleted.",
        argument="ranges",
        advice="lake.cleanup(keep_snapshots=...) removes snapshots, and with them the versions that only they need.",
    )


def _numbers(access: TableAccess) -> set[int]:
    names = (parse_manifest_name(info.path.removeprefix(VERSIONS)) for info in access.store.list(VERSIONS))
    return {name.version for name in names if name is not None and not name.detached}

"""Fast-forward as one step of the catalog: main gets what a branch has, and the branch restarts from there as another line.

Either both are stored or nothing is, so that at no moment two lines write to the same branch of a table, and whoever was at work on the
branch is refused from that step on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import MAIN, Publication
from tiltyard.catalog.line_identity import ended_body, is_line, moved_line, root_body, root_key
from tiltyard.catalog.protection import checks_key, guard_author, passed_at, protected_tip, protection_in
from tiltyard.catalog.publishing import Published, StaleError, decide, locks
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.value_codec import (
    BRANCHES,
    BUCKET,
    TABLE_COUNT,
    TABLES,
    cut_key,
    cuts_prefix,
    ended_key,
    freed_key,
    name_key,
    snapshots_prefix,
    table_key,
    tip_key,
)
from tiltyard.errors import ContentionError, ProtectedBranch

TRIES: Final = 16
"""How often commits on main may come between reading its tables and the step."""


class _AgainError(Exception):
    """What was read outside of the step has changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A branch to be brought home.

    Attributes:
        branch: its name.
        line: which line of that name.
        snapshot: where it was when all of it was read.
        fresh: the id of the line that it is afterwards.
        author: who does it.
        check: looks whether anything outside of the step forbids it, and raises; called before each try.
    """

    branch: str
    line: str
    snapshot: int
    fresh: str
    author: str
    check: Callable[[], None]


def branch_prefixes(branch: str) -> list[str]:
    """All records of a line of history but those of the branch itself."""
    return [table_key(branch, ""), name_key(branch, ""), freed_key(branch, ""), snapshots_prefix(branch), cuts_prefix(branch)]


def forward(catalog: Catalog, plan: Forward, publication: Publication | None) -> Published:
    """Publishes on main what a branch has, and lets the branch begin anew from there.

    Args:
        catalog: of the lake.
        plan: which branch.
        publication: what main gets; None where it has all of it.

    Raises:
        StaleError: tables of main are not where the publication expects them, or the branch was written to or replaced.
        ContentionError: others commit to main too fast.
        ProtectedBranch: main or the branch is protected.
    """
    records = catalog.records
    for _ in range(TRIES):
        begin = records.get([BRANCHES + plan.branch]).get(BRANCHES + plan.branch, {})
        plan.check()  # after that: who names a snapshot of the branch counts up in its record
        main = catalog.cut(MAIN)
        old = [key for key, _ in records.scan(branch_prefixes(plan.branch))]
        mine = [BRANCHES + plan.branch, tip_key(plan.branch), root_key(plan.branch), checks_key(plan.line), *old]
        exclusive, shared = locks(publication) if publication is not None else ([tip_key(MAIN)], [])
        heads = [table_key(MAIN, head.id) for head in main.tables.values()]

        def step(found: Found, begin: Body = begin, snapshot: int = main.snapshot, old: list[str] = old) -> Writes[Published]:
            now = catalog.runtime.clock.now()
            passed = passed_at(found, plan.line, plan.snapshot)
            published = Writes(Published(snapshot, "")) if publication is None else decide(publication, found, now, passed)
            if published.result.replayed:
                return Writes(published.result)  # an earlier try, of which no answer came: the branch has moved with it
            tip = found.get(tip_key(plan.branch))
            if tip is None or not is_line(found, plan.branch, plan.line) or int(tip["snapshot"]) != plan.snapshot:
                raise StaleError([moved_line(plan.branch, plan.snapshot, tip)])
            _guard_branch(plan, tip)
            if int(found[tip_key(MAIN)]["snapshot"]) != snapshot or found.get(BRANCHES + plan.branch) != begin:
                raise _AgainError
            put = _begin_anew(plan, found, published, now.isoformat())
            gone = [key for key in (*published.delete, *old, checks_key(plan.line)) if key not in put]
            return Writes(published.result, {**published.put, **put}, gone)

        try:
            done = records.transact([*exclusive, *mine], [*shared, *heads], step)
        except _AgainError:
            continue
        if publication is not None and not done.replayed:
            catalog.keep_cut(MAIN, done.snapshot, publication.line, done.tables)
        return done
    raise ContentionError(f"Others commit to main faster than it can be fast-forwarded to branch {plan.branch!r}.", attempts=TRIES)


def _guard_branch(plan: Forward, tip: Body) -> None:
    """The branch gets what main has, which is a step on it as well."""
    rule = protection_in(tip)
    if rule is None:
        return
    guard_author(plan.branch, rule, plan.author)
    if rule.checks:
        raise ProtectedBranch(
            f"Branch {plan.branch!r} is protected: a fast-forward gives it what main has, which must have passed checks.",
            branch=plan.branch, author=plan.author, writers=rule.writers or (), checks=rule.checks,
            advice="Nothing was committed. Merge it into main instead.",
        )  # fmt: skip


def _begin_anew(plan: Forward, found: Found, published: Writes[Published], now: str) -> dict[str, Body]:
    """The records of a branch that begins with main as it is after a publication."""
    name, snapshot = plan.branch, published.result.snapshot
    after: Mapping[str, Body] = {**found, **published.put}
    prefix, own, gone = f"{TABLES}{MAIN}/", table_key(name, ""), {*published.delete}
    line = str(after[tip_key(MAIN)].get("line", ""))
    heads: list[dict[str, Any]] = [
        {**body, "owner": body.get("owner") or line} for key, body in after.items() if key.startswith(prefix) and key not in gone
    ]
    begin = {**found[BRANCHES + name], "origin": MAIN, "origin_line": line, "snapshot": snapshot, "id": plan.fresh}
    tip = {"snapshot": snapshot, "at": now, "line": plan.fresh, TABLE_COUNT: len(heads)}
    put: dict[str, Body] = {
        BRANCHES + name: begin,
        tip_key(name): protected_tip(tip, protection_in(found[tip_key(name)])),
        **line_records(name, snapshot, heads),
        root_key(name): root_body(plan.fresh, [*heads]),
        ended_key(name, plan.line): ended_body(now, plan.line, [body for key, body in found.items() if key.startswith(own)]),
    }
    return put


def line_records(branch: str, snapshot: int, heads: list[Any]) -> dict[str, Body]:
    """The heads, the names and the first cut of a line of history that begins after a snapshot."""
    put: dict[str, Body] = {cut_key(branch, snapshot // BUCKET): {"tables": heads}}
    for head in heads:
        put[table_key(branch, str(head["id"]))] = head
        put[name_key(branch, str(head["name"]))] = {"table": head["id"], "location": head["location"]}
    return put

"""The decision at the end of a transaction over several tables: pure, made while everything it looks at is locked.

Either all of it is stored, the heads, the snapshot and the transaction's own record, or nothing is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tiltyard.catalog.lake_values import Change, Moved, Publication, Snapshot, TableHead
from tiltyard.catalog.line_identity import differs, is_line, moved_line
from tiltyard.catalog.protection import guard, protection_in
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.value_codec import (
    BEFORE,
    PROTECTED,
    TABLE_COUNT,
    freed_key,
    gone_key,
    head_from_body,
    head_to_body,
    idempotency_key,
    name_key,
    pending_key,
    snapshot_key,
    snapshot_to_body,
    table_key,
    tip_key,
    transaction_key,
)
from tiltyard.errors import CorruptTable, HistoryUnavailable, NotFound
from tiltyard.transaction.operations import Append

COMMITTED = "committed"
ABORTED = "aborted"
LEADER = "leader"
"""In the record of a commit that is in somebody else's version: that one's transaction."""
MEMBERS = "members"
"""In the record of that one: theirs."""
IN_DOUBT = "in doubt"
"""Of a transaction found staged when a lost catalog was replaced: whether that one had committed it nobody can tell any more."""


class StaleError(Exception):
    """Tables moved since the publication was built; from the decision to whoever can carry it over, never to a user."""

    def __init__(self, moved: Iterable[Moved]) -> None:
        super().__init__("tables moved")
        self.moved = tuple(moved)


class ExpiredError(Exception):
    """The transaction is so old that nobody can tell any more whether it was committed before; never reaches a user as it is."""


class AbortedError(Exception):
    """Somebody took the transaction for dead and removed what it had staged; never reaches a user as it is."""


class MembersError(Exception):
    """Commits of others must not be in this version: they were decided before, or may not write. From the decision to who leads."""

    def __init__(self, members: Iterable[str]) -> None:
        super().__init__("commits of others are decided by themselves")
        self.members = tuple(members)


@dataclass(frozen=True, slots=True)
class Published:
    """What a publication came to: its snapshot, whether that was there before, and how many tables there are; None where nobody counts."""

    snapshot: int
    transaction: str
    replayed: bool = False
    tables: int | None = None


def is_alone(publication: Publication) -> bool:
    """Whether it is one version of one table and nothing else, so that giving it up takes nothing with it."""
    first = publication.changes[0] if len(publication.changes) == 1 else None
    return first is not None and first.kind == "write" and not first.former and len(first.steps) == 1


def locks(publication: Publication) -> tuple[list[str], list[str]]:
    """Keys of the records that a publication writes, and of those that must only stay as they are."""
    branch = publication.branch
    exclusive = [tip_key(branch), transaction_key(publication.transaction)]
    exclusive += [transaction_key(member.transaction) for member in publication.members]
    for change in publication.changes:
        exclusive.append(table_key(branch, change.table))
        exclusive += [key for name in change.names for key in (name_key(branch, name), freed_key(branch, name))]
    exclusive += [idempotency_key(key) for key in _keys(publication).values()]
    written = set(exclusive)
    looked_at = [*(table_key(branch, read.table) for read in publication.reads), *(name_key(branch, name) for name in publication.absent)]
    shared = [key for key in looked_at if key not in written]
    return exclusive, [*shared, *(gone_key(change.location) for change in publication.changes if change.location)]


def decide(publication: Publication, found: Found, now: datetime, passed: Collection[str] = ()) -> Writes[Published]:
    """What to write for a publication, given all it locked, and the names of the checks that it has passed.

    Raises:
        StaleError: tables are not where it expects them.
        AbortedError: it was given up meanwhile.
        ExpiredError: it was begun before snapshots whose transactions nobody remembers any more.
        NotFound: the branch is gone.
        ProtectedBranch: the rule of the branch does not allow it.
        MembersError: it would, without some of its members.
    """
    before = _decided_before(publication, found)
    if before is not None:
        return Writes(before)
    if any(change.location and gone_key(change.location) in found for change in publication.changes):
        raise AbortedError  # a cleanup took the new table for one that nobody finished
    tip = found.get(tip_key(publication.branch))
    if tip is None:
        raise NotFound(f"There is no branch {publication.branch!r} in the lake.", name=publication.branch)
    if not is_line(found, publication.branch, publication.line):
        raise StaleError([moved_line(publication.branch, publication.base, tip)])
    if PROTECTED in tip:
        guard(publication, tip, passed)
    if publication.members:
        _guard_members(publication, found, tip)
    if publication.base < int(tip.get("expired", 0)) and not _tells_by_itself(publication):
        raise ExpiredError
    if moved := [*_moved(publication, found, tip)]:
        raise StaleError(moved)
    line = str(tip.get("line") or publication.line)
    snapshot = Snapshot(
        id=int(tip["snapshot"]) + 1,
        branch=publication.branch,
        at=max(now, datetime.fromisoformat(tip["at"])),  # clocks differ; the order of snapshots does not
        transaction=publication.transaction,
        changes=tuple(_named_as_now(change, publication.branch, found) for change in publication.changes),
        author=publication.author,
        message=publication.message,
        properties=dict(publication.properties),
        isolation=publication.isolation,
        base=publication.base,
        line=line,
        members=publication.members,
    )
    at, names = snapshot.at.isoformat(), _names_after(publication, tip, snapshot.id)
    replaced: dict[str, Body] = {}
    counted = {} if (tables := _tables_after(publication, tip)) is None else {TABLE_COUNT: tables}
    put: dict[str, Any] = {
        tip_key(publication.branch): {**tip, "snapshot": snapshot.id, "at": at, "line": line, "names": names, **counted},
        **_outcomes(publication, {"state": COMMITTED, "snapshot": snapshot.id, "branch": publication.branch, "line": line, "at": at}),
        snapshot_key(publication.branch, snapshot.id): {**snapshot_to_body(snapshot), BEFORE: replaced},
    }
    for transaction, key in _keys(publication).items():
        put[idempotency_key(key)] = {"transaction": transaction, "snapshot": snapshot.id}
    delete: list[str] = []
    for change in publication.changes:
        was = _apply(change, replace(publication, line=line), snapshot.id, found, put, delete)
        if was is not None:
            replaced[change.table] = was
    return Writes(Published(snapshot.id, publication.transaction, tables=tables), put, [key for key in delete if key not in put])


def _guard_members(publication: Publication, found: Found, tip: Body) -> None:
    """Leaves out members that were decided before, they or others with their key; that are older than what is remembered; or whose
    authors the rule of the branch does not let write.

    Raises:
        MembersError: there are some; each meets by itself what is in its way.
    """
    rule = protection_in(tip)
    writers = None if rule is None or publication.noted else rule.writers
    members, expired = publication.members, int(tip.get("expired", 0))
    ids = [member.transaction for member in members]
    decided = [member for member in dict.fromkeys(ids) if transaction_key(member) in found or ids.count(member) > 1]
    refused = [member.transaction for member in members if writers is not None and member.author not in writers]
    # Of a single verb its version tells whether it was committed before.
    refused += [member.transaction for member in members if member.tables and member.base < expired and not publication.noted]
    keys: set[str] = set()
    for transaction, key in _keys(publication).items():
        if transaction != publication.transaction and (key in keys or idempotency_key(key) in found):
            decided.append(transaction)
        keys.add(key)
    if decided or refused:
        raise MembersError(dict.fromkeys((*decided, *refused)))


def _keys(publication: Publication) -> dict[str, str]:
    """The idempotency keys of all transactions that it commits, by their ids."""
    mine = {} if publication.key is None else {publication.transaction: publication.key}
    return {**mine, **{member.transaction: member.key for member in publication.members if member.key is not None}}


def _outcomes(publication: Publication, done: Body) -> dict[str, Body]:
    """The records of all transactions that it commits, for whoever asks what became of one."""
    mine, others = publication.transaction, [member.transaction for member in publication.members]
    keys = {transaction: {"key": key} for transaction, key in _keys(publication).items()}
    own = {**done, **keys.get(mine, {}), **({MEMBERS: others} if others else {})}
    return {transaction_key(mine): own, **{transaction_key(member): {**done, **keys.get(member, {}), LEADER: mine} for member in others}}


def _tells_by_itself(publication: Publication) -> bool:
    """Whether it needs no record to be known again: a single verb has its version, and what is adopted is there."""
    if all(change.kind == "adopt" for change in publication.changes):
        return True
    return is_alone(publication) and publication.changes[0].steps[0].transaction == publication.transaction


def is_decided(publication: Publication, found: Found) -> bool:
    """Whether it was sent before, and decided about; or another one with its key was."""
    keys = [transaction_key(publication.transaction), *([] if publication.key is None else [idempotency_key(publication.key)])]
    return any(key in found for key in keys)


def _decided_before(publication: Publication, found: Found) -> Published | None:
    mine = found.get(transaction_key(publication.transaction))
    if mine is not None:
        if mine["state"] == COMMITTED:
            return Published(int(mine["snapshot"]), publication.transaction, replayed=True)
        raise AbortedError
    if publication.key is not None and (other := found.get(idempotency_key(publication.key))) is not None:
        return Published(int(other["snapshot"]), str(other["transaction"]), replayed=True)
    return None


def _moved(publication: Publication, found: Found, tip: Body) -> Iterable[Moved]:
    """What is not as it expects. What was read comes first: whoever rests on it is to look again, even where a write could not follow."""
    yield from _moved_reads(publication, found)
    yield from _moved_names(publication, found, tip)
    yield from _moved_writes(publication, found)
    yield from _freed_names(publication, found)


def _moved_writes(publication: Publication, found: Found) -> Iterable[Moved]:
    branch = publication.branch
    leaving = {change.table for change in publication.changes if change.kind == "drop" or change.former}
    for change in publication.changes:
        if change.kind in ("create", "register", "rename"):
            holder = found.get(name_key(branch, change.name))
            if holder is not None and holder.get("table") not in leaving:
                yield Moved(str(holder.get("table", "")), change.name, "incompatible", 0, None)
                continue
        if change.kind in ("create", "register"):
            continue
        body = found.get(table_key(branch, change.table))
        if body is None:
            yield Moved(change.table, change.former or change.name, "incompatible", change.base, None)
            continue
        head = head_from_body(body)
        if head.name != (change.former or change.name) and (change.former or change.kind == "drop"):
            yield Moved(change.table, change.former, "incompatible", change.base, head.version, head)
        elif head.version != change.base:
            yield Moved(change.table, head.name, "write", change.base, head.version, head)
        elif differs(change, head, branch, publication.line):
            yield Moved(change.table, head.name, "replaced", change.base, head.version, head)
        elif head.quarantine and change.kind != "drop":
            raise CorruptTable(head.name.replace("$", "."), head.quarantine, advice="Run `tiltyard lake repair`.")
        elif (change.read or change.base) < head.refused:
            raise HistoryUnavailable(
                f"The lake was cleaned up while the transaction was at work on {head.name}; it read version {change.read or change.base}.",
                read_version=change.read or change.base,
                head=head.version,
            )


def _moved_reads(publication: Publication, found: Found) -> Iterable[Moved]:
    for read in publication.reads:
        body = found.get(table_key(publication.branch, read.table))
        if body is None:
            yield Moved(read.table, read.name, "read", read.base, None)
            continue
        head = head_from_body(body)
        changed = (read.level == "rows" and head.data_version != read.data_version) or (read.level == "table" and head.version != read.base)
        if changed:
            yield Moved(read.table, read.name, "read", read.base, head.version, head)
        elif head.name != read.name:
            yield Moved(read.table, read.name, "name", read.base, head.version, head)


def _moved_names(publication: Publication, found: Found, tip: Body) -> Iterable[Moved]:
    for name in publication.absent:
        holder = found.get(name_key(publication.branch, name))
        if holder is not None:
            yield Moved(str(holder.get("table", "")), name, "name", 0, None)
    if publication.names is not None and names_of(tip) != publication.names:
        yield Moved("", "", "name", publication.names, names_of(tip))


def _freed_names(publication: Publication, found: Found) -> Iterable[Moved]:
    """Names that it takes or frees, and that others have freed since its base: the first committer wins.

    That a name is free again, or stands for the same table again, does not make its two looks one: whatever else the transaction read is
    from before the others.
    """
    if publication.blind or publication.noted:
        return
    for name in dict.fromkeys(name for change in publication.changes for name in change.names):
        freed = found.get(freed_key(publication.branch, name), {})
        if (at := int(freed.get("snapshot", 0))) > publication.base:
            yield Moved(str(freed["table"]), name, "freed", publication.base, at)


def _names_after(publication: Publication, tip: Body, snapshot: int) -> int:
    return snapshot if any(change.changes_names for change in publication.changes) else names_of(tip)


def _tables_after(publication: Publication, tip: Body) -> int | None:
    """How many tables there are afterwards; None where the tip does not say how many there were."""
    before = tip.get(TABLE_COUNT)
    kinds = [change.kind for change in publication.changes]
    new = sum(kind in ("create", "register") for kind in kinds)
    return None if before is None else int(before) + new - kinds.count("drop")


def names_of(tip: Body) -> int:
    """The snapshot that last changed a name. Where a tip does not say, each step to it may have been one."""
    return int(tip.get("names", tip["snapshot"]))


def _named_as_now(change: Change, branch: str, found: Found) -> Change:
    """Somebody may have renamed the table meanwhile, which does not keep others from writing to it."""
    body = found.get(table_key(branch, change.table))
    return change if body is None or change.former else replace(change, name=str(body["name"]))


def new_head(change: Change, branch: str, line: str, snapshot: int) -> TableHead:
    """The head that the creation of a table leaves behind in a snapshot."""
    content = max((step.version for step in change.steps if step.content), default=0)
    return TableHead(
        id=change.table,
        name=change.name,
        location=change.location,
        version=change.version,
        data_version=content or change.version,
        naming=change.naming,
        branch=change.branch,
        home=branch,
        transaction=change.steps[-1].transaction if change.steps else change.base_transaction,
        owner=change.owner or line,
        changed=snapshot,
        appends_since=change.version,
    )


def next_head(change: Change, before: TableHead, line: str, snapshot: int) -> TableHead:
    """The head that a change leaves behind in a snapshot of a table that was there."""
    content = max((step.version for step in change.steps if step.content), default=0)
    return replace(
        before,
        name=change.name,
        version=change.version,
        data_version=max(before.data_version, content),
        branch=change.branch or before.branch,
        transaction=change.steps[-1].transaction if change.steps else before.transaction,
        owner=line if change.steps and line else before.owner,
        changed=snapshot,
        appends_since=_appends_since(change, before),
    )


def _appends_since(change: Change, before: TableHead) -> int:
    known = before.version if before.appends_since < 0 else before.appends_since
    return max((step.version for step in change.steps if step.operation != Append.name), default=known)


def _apply(change: Change, publication: Publication, snapshot: int, found: Found, put: dict[str, Any], delete: list[str]) -> Body | None:
    """The head, the name and the unfinished versions that one change leaves behind in a snapshot; gives the head that was there."""
    branch = publication.branch
    key = table_key(branch, change.table)
    if change.kind == "drop" or change.former:
        put[freed_key(branch, change.former or change.name)] = {"snapshot": snapshot, "table": change.table}
    if change.kind == "drop":
        delete += [key, name_key(branch, str(found[key]["name"]))]
        return found[key]
    if change.kind in ("create", "register"):
        head = new_head(change, branch, publication.line, snapshot)
    else:
        before = head_from_body(found[key])
        head = next_head(change if change.former else replace(change, name=before.name), before, publication.line, snapshot)
    put[key] = head_to_body(head)
    if change.former:
        delete.append(name_key(branch, change.former))
    if change.kind in ("create", "register", "rename"):
        put[name_key(branch, head.name)] = {"table": head.id, "location": head.location}
    for step in change.steps:
        if step.staged is not None:
            put[pending_key(change.table, head.branch, step.version)] = {
                "table": change.table,
                "lake_branch": branch,
                "branch": head.branch,
                "version": step.version,
                "path": step.path,
                "staged": step.staged,
                "transaction": publication.transaction,
                "alone": is_alone(publication),
                "line": publication.line,
                "location": head.location,
                **({"data": publication.data} if publication.data else {}),
            }
    return found.get(key)

"""Reads all that the files of a lake tell beyond what a catalog knows: tables it has, tables it never had, and versions on their way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tiltyard.catalog.expiry import expired_among
from tiltyard.catalog.lake_values import MAIN, TableHead
from tiltyard.catalog.marks import Owner, owner_of
from tiltyard.catalog.publishing import COMMITTED, IN_DOUBT
from tiltyard.catalog.records import Body
from tiltyard.catalog.snapshot_index import read_line
from tiltyard.catalog.value_codec import GONE, TRANSACTIONS, transaction_key
from tiltyard.lakes.claim import TABLE_DIRECTORY
from tiltyard.lakes.recovery.found import Directory, FoundLine, LineKey, read_versions
from tiltyard.lakes.recovery.found_batches import in_line, named_by_members
from tiltyard.lakes.recovery.reconstruct import Progress, Reconstruction, home_of
from tiltyard.lakes.recovery.regroup import contested, last_staged, staged_transactions
from tiltyard.lakes.table_names import resolved, shown

UNMARKED = "it carries no mark of a lake; register it if it belongs here"


# ---- tables ----------------------------------------------------------------------------------------------------------------------


def sort_directories(work: Reconstruction, found: Mapping[str, Directory]) -> None:
    """Tells tables that the lake made, and the catalog does not know, from all other directories, which are not taken in."""
    known, locations = _known(work)
    heads = [head for notes in work.noted.names.values() for names in notes for head in names.tables.values()]
    locations |= {head.location for head in heads if not TABLE_DIRECTORY.fullmatch(head.location)}
    noted = {names.transaction: names for notes in work.noted.names.values() for names in notes}
    listed = {table for names in noted.values() for table in names.tables}
    by_id: dict[str, list[str]] = defaultdict(list)
    owners: dict[str, Owner] = {}
    for name in sorted(found):
        if name in locations or resolved(work.lake.uri_of(name)) in locations:
            continue
        owner = owner_of(work.lake.plain_access_of(TableHead("", "", name, 0, 0)).store)
        why = _refusal(work, owner, known)
        if not why and owner is not None and owner.transaction in noted and owner.table not in listed:
            why = "it was dropped soon after it was made"
        if why or owner is None:
            work.not_taken[name] = why or UNMARKED
        else:
            owners[name] = owner
            by_id[owner.table].append(name)
    for table, names in by_id.items():
        if len(names) > 1:
            for name in names:
                others = ", ".join(other for other in names if other != name)
                work.not_taken[name] = f"it says that it is table {table}, as does {others}: one is a copy; remove it, or register both"
        else:
            work.new[names[0]] = owners[names[0]]


def _refusal(work: Reconstruction, owner: Owner | None, known: set[str]) -> str:
    if owner is None:
        return UNMARKED
    if owner.lake != work.id:
        return f"it belongs to lake {owner.lake}"
    if not owner.table:
        return "it does not say which table it is"
    if owner.table in known:
        return f"it says that it is table {owner.table}, which the catalog knows elsewhere or as dropped"
    decided = work.lake.catalog.transaction(owner.transaction) if owner.transaction else None
    if decided is not None and decided["state"] == COMMITTED:
        return "it was dropped before the backup was taken"
    return ""


def _known(work: Reconstruction) -> tuple[set[str], set[str]]:
    """Ids of all tables that any snapshot of the catalog shows, and directories that it knows of, those given up among them."""
    known: set[str] = set()
    locations = {key.removeprefix(GONE) for key, _ in work.lake.catalog.records.scan([GONE])}
    for branch in (MAIN, *work.lake.branches):
        line = read_line(work.lake.catalog.records, branch)
        cuts = [*line.named.values(), *(heads for _, heads, _ in _changed(line.cuts()))]
        for heads in cuts:
            known.update(heads)
            locations.update(head.location for head in heads.values())
    return known, locations


def _changed(cuts: Iterable[tuple[int, dict[str, TableHead], Iterable[str]]]) -> Iterable[tuple[int, dict[str, TableHead], Iterable[str]]]:
    for number, heads, changed in cuts:
        yield number, {table: heads[table] for table in changed if table in heads}, changed


# ---- versions --------------------------------------------------------------------------------------------------------------------


def read_branch(work: Reconstruction, branch: str, progress: Progress) -> None:
    """Reads, for every table of a branch of the lake, what came after the version that the catalog has; and all of new tables."""
    wanted: list[tuple[LineKey, TableHead, bool]] = []
    for head in work.lake.catalog.cut(branch).tables.values():
        key = home_of(work, branch, head)
        wanted.append((key, head, key == (head.location, head.branch)))
    for location, owner in work.new.items():
        if (owner.branch or MAIN) == branch:
            wanted.append(((location, None), TableHead(owner.table, owner.name, location, 0, 0, home=branch), False))
    wanted += [((head.location, head.branch), head, True) for head in _registered(work, branch, {key for key, _, _ in wanted})]
    for done, (key, head, is_known) in enumerate(wanted, 1):
        if key not in work.lines and key[0] not in work.not_taken:
            store = work.lake.plain_access_of(head).on_branch(key[1]).store
            found = work.lines[key] = read_versions(store, key, head.version)
            work.unknown += [f"{shown(head.name)}: {problem}" for problem in found.problems]
            if key[0] in work.new and not _is_used(work, head, found):
                work.not_taken[key[0]] = "no version of it was committed through the lake, and the journal does not have it"
                del work.lines[key]
                continue
            if is_known and not found.present:
                work.missing.append(_called(head, branch))
                work.absent.add(head.location)
            elif is_known and head.version > max(found.present) and not _is_waiting(work, head):
                what = f"version {head.version} of {_called(head, branch)}, which the catalog has"
                work.unknown.append(f"{what}: the latest one found is {max(found.present)}")
        work.homes.setdefault(key, branch)
        progress(done, len(wanted))


def _is_used(work: Reconstruction, head: TableHead, found: FoundLine) -> bool:
    """Whether anything but the word of its directory tells that a table was part of the lake."""
    if any(work.is_ours(version) for version in (*found.versions, *found.staged)):
        return True
    return any(head.id in names.tables for notes in work.noted.names.values() for names in notes)


def _called(head: TableHead, branch: str) -> str:
    return shown(head.name) if branch == MAIN else f"{shown(head.name)}@{branch}"


def _is_waiting(work: Reconstruction, head: TableHead) -> bool:
    """Whether the version of a head is committed and has yet to get its final name."""
    return any(pending.version == head.version for pending in work.lake.catalog.pending(head.id, head.branch))


def _registered(work: Reconstruction, branch: str, read: set[LineKey]) -> list[TableHead]:
    """Tables that only the journal knows: they were registered, and lie where they lie."""
    found: dict[LineKey, TableHead] = {}
    tip = work.lake.catalog.cut(branch).snapshot
    for names in work.names(branch):
        if names.as_of > tip:
            for head in names.tables.values():
                key = (head.location, head.branch)
                if key not in read and key not in found and head.location not in work.not_taken:
                    found[key] = head
    return list(found.values())


# ---- versions on their way -------------------------------------------------------------------------------------------------------


def place_staged(work: Reconstruction) -> None:
    """Puts what committed transactions have staged where it belongs: a transaction that has one version for good has all of them.

    Of those that have none nobody can tell whether they were committed.
    """
    known = {key.removeprefix(TRANSACTIONS): body for key, body in work.lake.catalog.records.scan([TRANSACTIONS])}
    committed = {version.transaction for line in work.lines.values() for version in line.versions if work.is_ours(version)}
    committed |= {member.transaction for line in work.lines.values() for version in line.versions for member in version.members}
    committed |= {names.transaction for notes in work.noted.names.values() for names in notes}
    committed |= named_by_members(work.lines.values(), committed - set(known), work.is_ours)
    for key, line in work.lines.items():
        work.lines[key] = _with_staged(work, line, committed - set(known))
    staged = [version for line in work.lines.values() for version in line.staged]
    doubted = staged_transactions(staged, {*known, *committed})
    for name in expired_among(work.lake.catalog, list(doubted)):
        del doubted[name]  # committed long ago; what is staged was only left behind
    now = work.lake.catalog.runtime.clock.now().isoformat()
    records: dict[str, Body] = {transaction_key(name): {"state": IN_DOUBT, "at": now} for name in doubted}
    work.put(records)
    work.in_doubt += sorted(doubted)


def _with_staged(work: Reconstruction, line: FoundLine, committed: set[str]) -> FoundLine:
    there = in_line(line, committed)
    waiting = {version.transaction for version in line.staged if work.is_ours(version)} & committed - there
    for transaction in sorted(waiting):
        top = max(line.present, default=0)
        run = last_staged(line.staged, transaction, top)
        if run:
            line = replace(line, versions=(*line.versions, *run), present=line.present | {version.version for version in run})
            continue
        known = line.versions[0].version - 1 if line.versions else top
        taken = contested(line.versions, line.staged, transaction, known)
        if taken:
            below = tuple(version for version in line.versions if version.version < taken[0].version)
            line = replace(line, versions=(*below, *taken))
            work.unknown.append(f"which version {taken[0].version} of {line.key[0]} counts: `tiltyard lake repair` decides")
    return line

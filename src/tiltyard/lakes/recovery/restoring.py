"""Giving a lake its catalog back: from a backup, or from what its files say of themselves.

All is worked out in memory and stored in one step, so that whoever looks finds the catalog as it was before, or all of the new one. Only
then is the claim of the root turned to it, and versions that were committed get their final names, as after any crash. Each of these
steps may be repeated, and no file of a table is deleted or replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from tiltyard.catalog.catalog import FORMAT, check_format
from tiltyard.catalog.lake_values import MAIN
from tiltyard.catalog.line_identity import new_line
from tiltyard.catalog.merge_records import renamed_line
from tiltyard.catalog.open_records import MemoryRecords
from tiltyard.catalog.records import Body, Found, Records, Writes
from tiltyard.catalog.value_codec import LAKE, tip_key
from tiltyard.errors import AlreadyExists, ContentionError, OwnershipError
from tiltyard.interfaces import Runtime, system_runtime
from tiltyard.lakes.claim import RootClaim, make_claim, read_claim, refuse_other_lake, replace_claim
from tiltyard.lakes.finishing import recover
from tiltyard.lakes.opening import LakeLocation, open_where, trusting
from tiltyard.lakes.recovery.backup import TIPS, is_lakes, read_backup, tips_of
from tiltyard.lakes.recovery.found import directories
from tiltyard.lakes.recovery.gather import place_staged, read_branch, sort_directories
from tiltyard.lakes.recovery.journal_refs import begin_branches, end_deleted_branches, restore_rules, restore_tags
from tiltyard.lakes.recovery.journal_replay import read_journal
from tiltyard.lakes.recovery.lost_versions import forget_unreadable, note_lost_merges, note_untrusted, set_aside_torn, settle_pending
from tiltyard.lakes.recovery.reconstruct import AdoptedSnapshot, Progress, Reconstruction, SetClock, catch_up
from tiltyard.lakes.table_names import resolved, shown
from tiltyard.options import Storage
from tiltyard.verbs.engine.access import ANYWHERE

if TYPE_CHECKING:
    from tiltyard.lake import Lake

TRIES: Final = 5
"""How often the catalog that is replaced may change while it is."""

_LINE_MEMBERS: Final = ("line", "owner", "origin_line")
"""Members of records that hold the id of a line of history."""

REBUILT: Final = "files"
"""What a catalog was recovered from that was rebuilt; for a restored one the digest of its backup."""

Make = Callable[..., "Lake"]
"""Makes a lake of where it is, its records, a runtime and an author."""


@dataclass(frozen=True, slots=True)
class LakeRecoveryReport:
    """What a recovery of the catalog brought back, and what is still missing.

    Attributes:
        url: the catalog.
        lake: the lake's id, the same as before.
        tables: the version of each table of main.
        snapshots: the latest snapshot of each branch.
        adopted: commits that were found in the files and not in the backup; all of them where there was none.
        in_doubt: staged transactions whose outcome is unknown. Nothing of them is shown, and
            nothing deleted; ``Lake.outcome(id, give_up=True)`` aborts one.
        missing: tables whose files were not found.
        not_taken: directories below the root that were not registered, and why.
        unknown: what else could not be known, a sentence each.
    """

    url: str
    lake: str
    tables: Mapping[str, int]
    snapshots: Mapping[str, int]
    adopted: tuple[AdoptedSnapshot, ...] = ()
    in_doubt: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    not_taken: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether everything was recovered."""
        return not (self.in_doubt or self.missing or self.unknown)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {"complete": self.complete, **asdict(self)}


@dataclass(frozen=True)
class RestoreTarget:
    """A catalog that is to be made.

    Attributes:
        uri, root, catalog, storage: as for ``Lake.open``.
        author: who does it.
        replace: whether an existing catalog may be replaced.
    """

    uri: str | os.PathLike[str]
    root: str | os.PathLike[str] | None
    catalog: str | None
    storage: Storage
    author: str
    replace: bool = False

    @cached_property
    def runtime(self) -> Runtime:
        """Time and chance."""
        return self.storage.runtime or system_runtime()


def restore_lake(target: RestoreTarget, backup: str | os.PathLike[str], make: Make, progress: Progress) -> LakeRecoveryReport:
    """See ``Lake.restore``."""
    taken, known = read_backup(backup)
    facts = check_format(known[LAKE], taken.path)
    stated = facts.get("root") if target.root is None else None

    def check(where: LakeLocation) -> None:
        claim = read_claim(where.root_store()) if where.root else None
        if claim is not None:
            refuse_other_lake(claim, taken.lake, where.root)

    where, records = _opened(target, str(stated) if stated else None, check)
    try:
        _refuse_taken(where, records, taken.lake, taken.digest, replacing=target.replace)
        body = {**facts, "root": where.stated_root, **_bases(target)}
        where = trusting(where, body)
        work = _begun(target, where, {**known, LAKE: body}, make)
        settle_pending(work)
        _reconstruct(work, progress, taken.created)
        return _stored(work, where, records, taken.digest, target, make)
    finally:
        records.close()


def rebuild_lake(target: RestoreTarget, make: Make, progress: Progress) -> LakeRecoveryReport:
    """See ``Lake.rebuild``."""
    owners: list[RootClaim] = []

    def check(where: LakeLocation) -> None:
        claim = read_claim(where.with_root(None).root_store())
        if claim is None:
            raise OwnershipError(
                f"{where.root} is claimed by no lake, so the owner of its tables is unknown.",
                root=where.root,
                advice="Open a new lake there and register its tables.",
            )
        owners.append(claim)

    where, records = _opened(target, None, check)
    try:
        claim = owners[0]
        _refuse_taken(where, records, claim.lake, REBUILT, replacing=target.replace)
        now = _now(target)
        body = {"format": FORMAT, "id": claim.lake, "created": claim.created or now, "root": where.stated_root, **_bases(target)}
        start: dict[str, Body] = {LAKE: body, tip_key(MAIN): {"snapshot": 0, "at": claim.created or now, "line": new_line(claim.lake)}}
        work = _begun(target, where, start, make)
        _reconstruct(work, progress, None)
        return _stored(work, where, records, REBUILT, target, make)
    finally:
        records.close()


def _bases(target: RestoreTarget) -> dict[str, Any]:
    """The places that a clone's tables may name files in, where the caller names them."""
    bases = target.storage.allowed_bases
    return {"bases": [base if base == ANYWHERE else resolved(os.fspath(base)) for base in bases]} if bases else {}


def _now(target: RestoreTarget) -> str:
    return target.runtime.clock.now().isoformat()


# ---- the catalog that is to be made ------------------------------------------------------------------------------------------------


def _opened(target: RestoreTarget, root: str | None, check: Callable[[LakeLocation], None]) -> tuple[LakeLocation, Records]:
    """The place of the catalog, after it was looked at whether the root is the lake's."""
    where, records = open_where(target.uri, target.root or root, target.catalog, target.storage, target.runtime, check=check)
    try:
        return where.with_root(None), records
    except BaseException:
        records.close()
        raise


def _refuse_taken(where: LakeLocation, records: Records, lake: str, source: str, *, replacing: bool) -> None:
    """Refuses to write over a catalog that somebody may use, unless asked to; and over that of another lake in any case."""
    found = {key: body for key, body in records.scan([LAKE, TIPS, "table/"]) if is_lakes(key, body)}
    if LAKE not in found:
        return
    facts = check_format(found[LAKE], records.url)
    if str(facts["id"]) != lake:
        raise OwnershipError(
            f"The catalog {records.url} is that of lake {str(facts['id'])[:8]}, not of lake {lake[:8]}.",
            root=where.root,
            lake=str(facts["id"]),
            catalog=str(where.catalog),
            advice="Name another place for the catalog.",
        )
    claim = read_claim(where.root_store())
    is_used = claim is None or claim.catalog == where.catalog
    is_empty = not any(tips_of(found).values()) and not any(key.startswith("table/") for key in found)
    is_mine = facts.get("recovered", {}) == {"from": source, "snapshots": tips_of(found)}  # an earlier try, and nothing happened since
    if is_used and not is_empty and not is_mine and not replacing:
        raise AlreadyExists(
            f"There is a catalog of this lake at {records.url}.",
            name=records.url,
            advice="Pass options=ty.RecoveryOptions(replace=True), or --replace, to put another one in its place.",
        )


def _begun(target: RestoreTarget, where: LakeLocation, known: Mapping[str, Body], make: Make) -> Reconstruction:
    """A catalog in memory, over the real tables."""
    clock = SetClock(target.runtime.clock)
    memory = MemoryRecords()
    memory.transact([], [], lambda found: Writes(None, known))
    identity = str(known[LAKE]["id"])
    lake = make(replace(where, lake=identity), memory, Runtime(clock, target.runtime.random), target.author)
    return Reconstruction(lake, clock, identity, read_journal(where.root_store(), identity))


def _reconstruct(work: Reconstruction, progress: Progress, since: datetime | None) -> None:
    """Brings the catalog in memory to where the files are."""
    known = {branch: work.lake.catalog.cut(branch).snapshot for branch in (MAIN, *work.lake.branches)}
    work.unknown += [f"what the journal said in {path}, which cannot be read" for path in work.noted.unreadable]
    end_deleted_branches(work)
    sort_directories(work, directories(work.lake.root_access().store))
    for branch in (MAIN, *work.lake.branches):
        read_branch(work, branch, progress)
    place_staged(work)
    for branch in (MAIN, *work.lake.branches):
        catch_up(work, branch)
    for branch in begin_branches(work, since):
        read_branch(work, branch, progress)
        place_staged(work)
        catch_up(work, branch)
    restore_tags(work, since)
    restore_rules(work, since)
    note_lost_merges(work, known)
    for location, owner in work.new.items():
        if (location, None) not in work.lines:
            work.not_taken.setdefault(location, f"it was made on branch {owner.branch}, which is not known")
    forget_unreadable(work)


# ---- storing it --------------------------------------------------------------------------------------------------------------------


def _stored(
    work: Reconstruction, where: LakeLocation, records: Records, source: str, target: RestoreTarget, make: Make
) -> LakeRecoveryReport:
    made = _renewed(dict(work.lake.catalog.records.scan([""])), target.runtime.random.uuid())
    made[LAKE] = {**made[LAKE], "recovered": {"from": source, "snapshots": tips_of(made)}}
    _replace(records, made)
    claim = RootClaim(work.id, where.catalog, str(made[LAKE].get("created", "")))
    store = where.root_store()
    if make_claim(store, claim, target.runtime).catalog != where.catalog:
        replace_claim(store, claim)
    lake = make(replace(where, lake=work.id), records, target.runtime, target.author)
    recover(lake)
    set_aside_torn(work, lake)
    note_untrusted(work)
    heads = lake.catalog.cut(MAIN).tables.values()
    return LakeRecoveryReport(
        records.url,
        work.id,
        {shown(head.name): head.version for head in sorted(heads, key=lambda head: head.name)},
        tips_of(made),
        tuple(work.adopted),
        tuple(dict.fromkeys(work.in_doubt)),
        tuple(dict.fromkeys(work.missing)),
        {**_dropped(work, lake), **work.not_taken},
        tuple(dict.fromkeys(work.unknown)),
    )


def _dropped(work: Reconstruction, lake: Lake) -> dict[str, str]:
    """Directories of the lake that no branch shows any more. A drop that an old catalog had forgotten counts again, so it is told."""
    branches = [key.removeprefix(tip_key("")) for key, _ in lake.catalog.records.scan([tip_key("")])]
    seen = {head.location for branch in branches for head in lake.catalog.cut(branch).tables.values()}
    return {location: "the journal says that this table was dropped" for location, _ in work.lines if location not in seen}


def _renewed(made: Mapping[str, Body], uuid: str) -> dict[str, Body]:
    """The same records with main as another line of history, so that whatever is open on the lost catalog's is refused."""
    tip = made[tip_key(MAIN)]
    old, new = str(tip.get("line") or new_line(str(made[LAKE]["id"]))), new_line(uuid)

    def renew(value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {name: renew(member, name) for name, member in value.items()}
        if isinstance(value, list):
            return [renew(member) for member in value]
        return new if key in _LINE_MEMBERS and value == old else value

    renewed = renamed_line({key: renew(body) for key, body in made.items()}, old, new)
    return {**renewed, tip_key(MAIN): {**renewed[tip_key(MAIN)], "line": new}}


def _replace(records: Records, made: Mapping[str, Body]) -> None:
    """Puts all records in the place of those that are there, in one step."""
    for _ in range(TRIES):
        there = {key: body for key, body in records.scan([""]) if is_lakes(key, body)}
        if records.transact([*{*there, *made}], [], _replacing(there, made)):
            return
    what = f"The catalog {records.url} is being written to."
    raise ContentionError(what, operation="restore", attempts=TRIES, advice="Nothing was changed. Stop its writers, then try again.")


def _replacing(there: Mapping[str, Body], made: Mapping[str, Body]) -> Callable[[Found], Writes[bool]]:
    def decide(found: Found) -> Writes[bool]:
        if any(found.get(key) != body for key, body in there.items()) or any(key in found for key in made if key not in there):
            return Writes(False)  # somebody committed since we looked
        return Writes(True, made, [key for key in there if key not in made])

    return decide

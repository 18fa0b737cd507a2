"""Two writers with one version number: the caller decides whose it is. The other is set aside; nothing is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from tiltyard.catalog.catalog import Pending
from tiltyard.catalog.lake_values import Change, Snapshot, TableHead
from tiltyard.catalog.ledger import adopt
from tiltyard.catalog.line_identity import owns
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.value_codec import (
    TABLES,
    cuts_prefix,
    head_from_body,
    head_to_body,
    name_key,
    snapshot_from_body,
    snapshot_key,
    snapshot_to_body,
    table_key,
)
from tiltyard.errors import CorruptTable, InvalidInput, NotFound, StorageError
from tiltyard.format.manifest_file import decode_manifest_file
from tiltyard.format.names import HINT_PATH, Scheme, manifest_path
from tiltyard.interfaces import ObjectStore
from tiltyard.lakes.finishing import finish
from tiltyard.lakes.table_names import full_name, shown
from tiltyard.storage.external import ExternalStore, is_torn
from tiltyard.transaction.log import VersionLog
from tiltyard.verbs.cleanup.cleanup_plan import SET_ASIDE, names_in

if TYPE_CHECKING:
    from tiltyard.lake import Lake

Keep = Literal["ours", "theirs"]
KEEP: Final = ("ours", "theirs")


@dataclass(frozen=True, slots=True)
class LakeRepairReport:
    """What a repair did.

    Attributes:
        table: which one.
        kept: whose version stayed; empty if there was nothing to decide.
        version: where the table is now.
        transaction: the lake's transaction whose version was in question.
        set_aside: paths to which the manifests of losing versions were moved. Delete them when they are no longer needed.
        files: what only these versions name; cleanup keeps it as long as they exist.
        done: what else was repaired.
    """

    table: str
    kept: str
    version: int
    transaction: str = ""
    set_aside: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    done: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return asdict(self)


def repair_table(lake: Lake, name: str, keep: Keep | None) -> LakeRepairReport:
    """See ``Lake.repair``."""
    if keep is not None and keep not in KEEP:
        raise InvalidInput(f"keep is 'ours' or 'theirs', not {keep!r}.", argument="keep")
    full = full_name(name)
    head = next((table for table in lake.catalog.cut(lake.branch).tables.values() if table.name == full), None)
    if head is None:
        raise NotFound(f"There is no table {name!r} in the lake.", name=name, advice="See lake.tables().")
    store = cast(ExternalStore, lake.access_of(head, lake.branch).store)
    pending = [pending for pending in lake.catalog.pending() if (pending.table, pending.branch) == (head.id, head.branch)]
    taken = _first_taken(store.inner, pending)
    if taken is None:
        return _small_repairs(lake, head, store, pending)
    if keep is None:
        raise InvalidInput(
            f"{name}: {head.quarantine or 'two writers have one number'}.",
            argument="keep",
            advice="Say whose version stays: ours or theirs.",
        )
    lost = [each_pending for each_pending in pending if each_pending.version >= taken.version]
    return _keep_ours(lake, head, store, pending, taken) if keep == "ours" else _keep_theirs(lake, head, store, pending, lost)


def _first_taken(store: ObjectStore, pending: Sequence[Pending]) -> Pending | None:
    """The lowest version whose name somebody else has."""
    for each_pending in pending:
        with suppress(NotFound):
            there, ours = store.get(each_pending.path), _bytes_of(store, each_pending)
            if there != ours and not (each_pending.data and is_torn(there, ours)):
                return each_pending
    return None


def _bytes_of(store: ObjectStore, pending: Pending) -> bytes:
    return pending.bytes or store.get(pending.staged)


# ---- ours stays ------------------------------------------------------------------------------------------------------------------


def _keep_ours(lake: Lake, head: TableHead, store: ExternalStore, pending: list[Pending], taken: Pending) -> LakeRepairReport:
    """Moves theirs out of the way, the newest first: others who look meanwhile find a whole table, if an older one."""
    plain = store.inner
    log, scheme = VersionLog(plain), Scheme(head.naming)
    theirs = [name for name in log.versions() if name.version >= taken.version]
    data = {manifest_path(name.version, name.scheme): plain.get(manifest_path(name.version, name.scheme)) for name in theirs}
    aside = set_aside(lake, plain, data)
    with suppress(StorageError):
        plain.delete(HINT_PATH)  # it would lead beyond the newest version
    for path in reversed(data):
        plain.delete(path)
    finish(lake.catalog, [(pending, store)])
    _lift(lake, head)
    kept = plain.get(manifest_path(pending[-1].version, scheme))
    return LakeRepairReport(shown(head.name), "ours", pending[-1].version, taken.transaction, aside, _only_in([*data.values()], kept))


def _lift(lake: Lake, head: TableHead) -> None:
    key = table_key(lake.branch, head.id)

    def decide(found: Found) -> Writes[None]:
        return Writes(None, {key: {**found[key], "quarantine": ""}} if key in found else {})

    lake.catalog.records.transact([key], [], decide)


# ---- theirs stays ----------------------------------------------------------------------------------------------------------------


def _keep_theirs(lake: Lake, head: TableHead, store: ExternalStore, pending: list[Pending], lost: list[Pending]) -> LakeRepairReport:
    """Takes our versions back, in the catalog alone, and adopts theirs in a snapshot of its own."""
    plain = store.inner
    finish(lake.catalog, [([each_pending for each_pending in pending if each_pending not in lost], store)])
    data = {pending.path: _bytes_of(plain, pending) for pending in lost}
    aside = set_aside(lake, plain, data)
    take_back(lake, head, lost)
    for each_pending in lost:
        plain.delete(each_pending.staged)
    cut = lake.catalog.cut(lake.branch)
    now = cut.by_id(head.id)
    assert now is not None
    now = adopt(lake.catalog, store, now, lake.branch, cut.line)
    theirs = plain.get(manifest_path(now.version, Scheme(now.naming)))
    return LakeRepairReport(shown(head.name), "theirs", now.version, lost[0].transaction, aside, _only_in([*data.values()], theirs))


def take_back(lake: Lake, head: TableHead, lost: list[Pending]) -> None:
    """Writes into the snapshot that our versions never took effect, and puts every head and cut that shows them where they were before."""
    catalog = lake.catalog
    record = catalog.transaction(lost[0].transaction)
    if record is None:
        raise CorruptTable("the catalog", f"it does not know transaction {lost[0].transaction}")
    at = snapshot_key(str(record["branch"]), int(record["snapshot"]))
    first = lost[0].version
    before = catalog.cut_at(int(record["snapshot"]) - 1, str(record["branch"])).by_id(head.id)
    heads = [key for key, _ in catalog.records.scan([TABLES]) if key.endswith(f"/{head.id}")]
    cuts = [key for branch in {key.split("/")[1] for key in heads} for key, _ in catalog.records.scan([cuts_prefix(branch)])]

    def back(body: Body) -> Body:
        one = head_from_body(body)
        if one.id != head.id or one.branch != head.branch or one.version < first:
            return body
        known = before is not None and first == before.version + 1
        data_version = before.data_version if before is not None and known else min(one.data_version, first - 1)
        made_by = before.transaction if before is not None and known else ""
        return head_to_body(replace(one, version=first - 1, data_version=data_version, quarantine="", transaction=made_by))

    def cut_back(body: Body) -> Body:
        older = {"before": cut_back(body["before"])} if body.get("before") else {}
        return {**body, "tables": [back(item) for item in body["tables"]], **older}

    def decide(found: Found) -> Writes[None]:
        if at not in found:
            raise CorruptTable("the catalog", f"the snapshot of transaction {lost[0].transaction} is gone")
        put: dict[str, Body] = {at: snapshot_to_body(_without(snapshot_from_body(found[at]), head.id, first))}
        put.update((key, back(found[key])) for key in heads if key in found)
        put.update((key, cut_back(found[key])) for key in cuts if key in found)
        return Writes(None, put, [pending.key for pending in lost])

    catalog.records.transact([at, *heads, *cuts, *(pending.key for pending in lost)], [], decide)


def _without(snapshot: Snapshot, table: str, first: int) -> Snapshot:
    def cut(change: Change) -> Change:
        if change.table != table:
            return change
        stay = tuple(step for step in change.steps if step.version < first)
        return replace(change, steps=stay, lost=tuple(step for step in change.steps if step.version >= first))

    return replace(snapshot, changes=tuple(map(cut, snapshot.changes)))


# ---- what both need --------------------------------------------------------------------------------------------------------------


def set_aside(lake: Lake, store: ObjectStore, data: dict[str, bytes]) -> tuple[str, ...]:
    """Keeps manifests under names that no version has; their new paths."""
    directory = f"{SET_ASIDE}{lake.catalog.runtime.random.uuid()}/"
    paths = []
    for path, content in data.items():
        target = directory + path.rpartition("/")[2]
        store.put(target, content)
        paths.append(target)
    return tuple(paths)


def _only_in(losers: Sequence[bytes], winner: bytes) -> tuple[str, ...]:
    """What versions name that the winner does not."""
    named = {name for data in losers for name in names_in(decode_manifest_file(data, source="set aside").manifest)}
    return tuple(sorted(named - {*names_in(decode_manifest_file(winner, source="kept").manifest)}))


def _small_repairs(lake: Lake, head: TableHead, store: ExternalStore, pending: list[Pending]) -> LakeRepairReport:
    """Where nobody has to decide: ends what was begun, adopts what others committed, and restores what can be told from the rest."""
    done = []
    if pending:
        finish(lake.catalog, [(pending, store)], alone=pending[0].alone)
        done.append(f"finished {len(pending)} version{'s' if len(pending) > 1 else ''}")
    if head.quarantine:
        _lift(lake, head)
        done.append("lifted the quarantine: no foreign writer has the version any more")
    if _rename(lake, head):
        done.append("restored the name")
    line = lake.catalog.cut(lake.branch).line
    plain = replace(head, quarantine="")
    # What another line owns is that line's to adopt.
    adopted = adopt(lake.catalog, store, plain, lake.branch, line) if owns(head, lake.branch, line) else plain
    if adopted.version > head.version:
        done.append(f"adopted versions {head.version + 1} to {adopted.version}")
    return LakeRepairReport(shown(head.name), "", adopted.version, done=tuple(done))


def _rename(lake: Lake, head: TableHead) -> bool:
    """The record that keeps a name for one table follows from the table's own."""
    key = name_key(lake.branch, head.name)
    right: Body = {"table": head.id, "location": head.location}

    def decide(found: Found) -> Writes[bool]:
        return Writes(False) if key in found else Writes(True, {key: right})

    return lake.catalog.records.transact([key], [], decide)

"""Makes a lake of an earlier release one of today: its root is claimed, and its tables say whose they are.

Until then it opens and works, but no cleanup deletes a directory of which nothing proves whose it is. Each step can be repeated; the number
of the format is raised last, so that an upgrade that died is gone on with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tiltyard.catalog.catalog import FORMAT
from tiltyard.catalog.lake_values import MAIN, Cut, TableHead
from tiltyard.catalog.line_identity import LINE_DIGITS, owns
from tiltyard.catalog.marks import LAKE_ID, OWNER_FILE, Owner, owner_of
from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.catalog.snapshot_index import read_line
from tiltyard.catalog.value_codec import BRANCHES, GONE, PINS, TAGS, head_from_body, head_to_body, pin_key, table_key, tip_key
from tiltyard.errors import NotFound, TiltyardError
from tiltyard.format.names import Scheme
from tiltyard.lakes.claim import TABLE_DIRECTORY, RootClaim, make_claim, read_claim
from tiltyard.lakes.cleanup.pins import make_pin
from tiltyard.lakes.recovery.journal import complete_journal
from tiltyard.lakes.table_names import shown
from tiltyard.transaction.verify import transaction_id

if TYPE_CHECKING:
    from tiltyard.lake import Lake

Progress = Callable[[int, int], object]
"""Is told how many of how many tables are done."""


@dataclass(frozen=True, slots=True)
class LakeUpgradeReport:
    """What an upgrade of a lake did, or would do.

    Attributes:
        url: the catalog.
        dry_run: whether nothing was changed.
        before, after: the format that the lake had, and the one it has then.
        claimed: whether the root had to be claimed.
        marked: tables that got a version which names this lake as their owner.
        owned: directories that got a file which says so.
        filled: branches of the lake whose records lacked something that this release writes.
        pinned: tags and branches whose versions got Lance tags, so that a foreign cleanup keeps them.
        skipped: tables that could not be marked, and why; running the upgrade again tries them again.
    """

    url: str
    dry_run: bool
    before: int
    after: int
    claimed: bool
    marked: tuple[str, ...]
    owned: tuple[str, ...]
    filled: tuple[str, ...]
    pinned: tuple[str, ...]
    skipped: dict[str, str]

    @property
    def changed(self) -> bool:
        """Whether anything was changed, or would be."""
        return self.claimed or bool(self.marked or self.owned or self.filled or self.pinned) or self.before != self.after

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {"changed": self.changed, **asdict(self)}


def upgrade_lake(lake: Lake, *, dry_run: bool, progress: Progress) -> LakeUpgradeReport:
    """See ``Lake.upgrade``."""
    facts = lake.catalog.describe()
    if facts is None:
        raise NotFound(f"There is no lake at {lake.url}.", name=lake.url)
    before = int(facts.get("format", 0))
    root = lake.root_access()
    claimed = read_claim(root.store) is None
    if claimed and not dry_run:
        make_claim(root.store, RootClaim(lake.id, lake._where.catalog, str(facts.get("created", ""))), lake.catalog.runtime)
    skipped: dict[str, str] = {}
    owned = _own(lake, skipped, dry_run=dry_run)
    filled = [branch for branch in (MAIN, *lake.branches) if _fill(lake, branch, dry_run=dry_run)]
    marked = _mark(lake, skipped, progress, dry_run=dry_run)
    pinned = _pin(lake, skipped, dry_run=dry_run)
    after = before
    if before < FORMAT and not skipped:
        after = FORMAT
        if not dry_run:
            complete_journal(lake)
            lake.catalog.amend({"format": FORMAT})
    return LakeUpgradeReport(lake.url, dry_run, before, after, claimed, tuple(marked), tuple(owned), tuple(filled), tuple(pinned), skipped)


def _own(lake: Lake, skipped: dict[str, str], *, dry_run: bool) -> list[str]:
    """Puts an owner file into each directory that the lake made and any snapshot shows."""
    owned = []
    for head, branch, transaction in _made(lake):
        access = lake.plain_access_of(head)
        try:
            owner = owner_of(access.store)
            if owner is not None and owner.lake != lake.id:
                skipped[shown(head.name)] = f"its directory belongs to lake {owner.lake}"
            elif _has_owner_file(lake, head):
                continue
            else:
                owned.append(head.location)
                if not dry_run:
                    now = lake.catalog.runtime.clock.now().isoformat()
                    access.store.put(OWNER_FILE, Owner(lake.id, head.id, head.name, transaction, branch, 0, now).to_bytes())
        except TiltyardError as error:
            skipped[shown(head.name)] = str(error)
    return owned


def _has_owner_file(lake: Lake, head: TableHead) -> bool:
    try:
        lake.plain_access_of(head).store.head(OWNER_FILE)
    except NotFound:
        return False
    return True


def _made(lake: Lake) -> Iterator[tuple[TableHead, str, str]]:
    """Tables that the lake made itself, dropped ones among them: each once, with its branch and the transaction that made it."""
    gone = {key.removeprefix(GONE) for key, _ in lake.catalog.records.scan([GONE])}
    seen: set[str] = set()
    for branch in (MAIN, *lake.branches):
        line = read_line(lake.catalog.records, branch)
        makers = {change.table: step.transaction for step in line.steps for change in step.changes if change.kind == "create"}
        cuts = [*line.named.values(), *({table: heads[table] for table in changed if table in heads} for _, heads, changed in line.cuts())]
        for heads in cuts:
            for head in heads.values():
                if head.location not in seen and head.location not in gone and TABLE_DIRECTORY.fullmatch(head.location):
                    seen.add(head.location)
                    yield head, branch, makers.get(head.id, "")


def _mark(lake: Lake, skipped: dict[str, str], progress: Progress, *, dry_run: bool) -> list[str]:
    """Commits, through the lake, a version to each table it made that says whose it is. What was registered is somebody else's."""
    marked = []
    cut = lake.catalog.cut(MAIN)
    heads = [head for head in cut.tables.values() if TABLE_DIRECTORY.fullmatch(head.location) and head.branch is None]
    for done, head in enumerate(sorted(heads, key=lambda head: head.name), 1):
        name = shown(head.name)
        try:
            access = lake.access_of(head, MAIN)
            config = access.load(head.version, Scheme(head.naming), lazily=True).manifest.config
            if config.get(LAKE_ID) != lake.id and name not in skipped:
                if not dry_run:
                    lake.on_branch(MAIN).table(name).update_config(lake.marks_of(head, MAIN).config(), message="upgrade of the lake")
                marked.append(name)
        except TiltyardError as error:
            skipped[name] = str(error)
        progress(done, len(heads))
    return marked


# ---- records ---------------------------------------------------------------------------------------------------------------------


def _fill(lake: Lake, branch: str, *, dry_run: bool) -> bool:
    """Gives the records of a branch what an earlier release did not write: its line, and who made and owns the version of each table."""
    cut, tip = lake.catalog.cut(branch), tip_key(branch)
    known = lake.catalog.records.get([tip])[tip]
    heads = {table_key(branch, head.id): _filled(lake, cut, head) for head in cut.tables.values() if not (head.owner and head.transaction)}
    before = {key: head_to_body(head) for head in cut.tables.values() if (key := table_key(branch, head.id)) in heads}
    lacking = {key: head for key, head in heads.items() if head_to_body(head) != before[key]}
    if known.get("line") and not lacking:
        return False

    def decide(found: Found) -> Writes[None]:
        put: dict[str, Body] = {tip: {**found[tip], "line": found[tip].get("line") or cut.line}} if tip in found else {}
        for key, head in lacking.items():
            if key in found and head_from_body(found[key]) == head_from_body(before[key]):  # nobody has moved it meanwhile
                put[key] = head_to_body(head)
        return Writes(None, put)

    if not dry_run:
        lake.catalog.records.transact([tip, *lacking], [], decide)
    return True


def _filled(lake: Lake, cut: Cut, head: TableHead) -> TableHead:
    access = lake.plain_access_of(head).on_branch(head.branch)
    try:
        maker = transaction_id(access.log.peek(head.version, Scheme(head.naming)))
    except TiltyardError:
        maker = ""  # it waits for its name, or is gone; what is not compared harms nobody
    owner = head.owner or (cut.line if owns(head, cut.branch, cut.line) else _owner(lake, head))
    return replace(head, transaction=head.transaction or maker, owner=owner)


def _owner(lake: Lake, head: TableHead) -> str:
    """The line of history that a branch of a table belongs to, by its name, or by the branch of the lake where it was made."""
    if head.branch is not None:
        return head.branch[-LINE_DIGITS:]
    return lake.catalog.cut(head.home).line if head.home in lake.branches else ""


def _pin(lake: Lake, skipped: dict[str, str], *, dry_run: bool) -> list[str]:
    """Leaves Lance tags at the versions that tags and branches of the lake need."""
    done = []
    found = dict(lake.catalog.records.scan([TAGS, BRANCHES, PINS]))
    for key, body in found.items():
        if key.startswith(PINS) or pin_key(str(body.get("pin" if key.startswith(TAGS) else "id", ""))) in found:
            continue
        kind, name = ("tag", key.removeprefix(TAGS)) if key.startswith(TAGS) else ("branch", key.removeprefix(BRANCHES))
        try:
            if not dry_run:
                _pin_one(lake, kind, name, key, body)
            done.append(f"{kind} {name}")
        except TiltyardError as error:
            skipped[f"{kind} {name}"] = str(error)
    return done


def _pin_one(lake: Lake, kind: str, name: str, key: str, body: Body) -> None:
    identity = str(body["id"]) if kind == "branch" else lake.catalog.runtime.random.uuid()[:8]
    cut = lake.catalog.cut_at(int(body["snapshot"]), str(body["branch"] if kind == "tag" else body["origin"]))
    make_pin(lake, kind, name, identity, cut)
    if kind == "tag":  # one that was deleted or made anew meanwhile keeps what it has; the pin is then released by the next cleanup
        lake.catalog.records.transact(
            [key], [], lambda found: Writes(None, {key: {**body, "pin": identity}} if found.get(key) == body else {})
        )

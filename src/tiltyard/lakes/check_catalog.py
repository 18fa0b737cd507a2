"""Is the catalog of a lake sound? What it says of itself: snapshots, heads, names, tags, outcomes, unfinished versions, directories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tiltyard.catalog.lake_values import MAIN, Cut, Snapshot
from tiltyard.catalog.line_identity import owns
from tiltyard.catalog.publishing import ABORTED, COMMITTED, IN_DOUBT
from tiltyard.catalog.records import Body
from tiltyard.catalog.snapshot_index import BranchHistory, read_line
from tiltyard.catalog.value_codec import GONE, TABLES, TRANSACTIONS, head_from_body, name_key, tip_key
from tiltyard.errors import CorruptTable, NotFound, TiltyardError
from tiltyard.interfaces import ObjectStore
from tiltyard.lakes.cleanup.orphans import Orphan, find_orphans
from tiltyard.lakes.table_names import shown
from tiltyard.verbs.check.findings import CheckReport

if TYPE_CHECKING:
    from tiltyard.lake import Lake


@dataclass(frozen=True, slots=True)
class LakeProblem:
    """A broken invariant of a lake.

    Attributes:
        invariant: its name among the promises, or ``catalog``.
        text: what is wrong.
        table, snapshot: where, if it has a place.
    """

    invariant: str
    text: str
    table: str = ""
    snapshot: int | None = None


@dataclass(frozen=True, slots=True)
class LakeCheckReport:
    """What a check of a lake found.

    Attributes:
        url: the catalog.
        snapshots: how many were looked at.
        transactions: how many the catalog knows the outcome of.
        tables: what the check of each table found, by name.
        problems: broken invariants; empty if the lake is in order.
        orphans: directories below the root that the catalog does not know. Those that are tables are problems, too.
    """

    url: str
    snapshots: int
    transactions: int
    tables: Mapping[str, CheckReport]
    problems: tuple[LakeProblem, ...]
    orphans: tuple[Orphan, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        tables = {name: report.to_dict() for name, report in self.tables.items()}
        return {"ok": self.ok, **asdict(self), "tables": tables, "orphans": [orphan.to_dict() for orphan in self.orphans]}


@dataclass(slots=True)
class LakeFindings:
    problems: list[LakeProblem] = field(default_factory=list)
    tables: dict[str, CheckReport] = field(default_factory=dict)
    orphans: list[Orphan] = field(default_factory=list)
    snapshots: int = 0
    transactions: int = 0
    data: bool = False
    """Whether files are compared with their digests."""

    def add(self, invariant: str, text: str, table: str = "", snapshot: int | None = None) -> None:
        self.problems.append(LakeProblem(invariant, text, shown(table), snapshot))


def read_lines(lake: Lake, findings: LakeFindings) -> list[BranchHistory]:
    """Snapshots without gaps; a line that has some cannot be looked at any further."""
    lines = []
    for branch in (MAIN, *lake.branches):
        try:
            line = read_line(lake.catalog.records, branch)
        except TiltyardError as error:
            findings.add("catalog", f"the history of branch {branch} cannot be read: {error}")
            continue
        findings.snapshots += len(line.steps)
        lines.append(line)
        for before, after in zip(line.steps, line.steps[1:], strict=False):
            if after.at < before.at:
                findings.add("catalog", "it is older than the one before it", snapshot=after.id)
    return lines


def check_heads(lake: Lake, line: BranchHistory, findings: LakeFindings) -> None:
    """The heads are what all snapshots come to."""
    try:
        cut = lake.catalog.cut(line.branch)
    except (CorruptTable, NotFound) as error:
        if line.branch in lake.branches:
            findings.add("catalog", str(error))
        return
    after = read_line(lake.catalog.records, line.branch)  # others may be at work
    if after.identity != line.identity:
        return  # the branch was deleted, or is another line by now
    if line.identity and cut.line != line.identity:
        findings.add("catalog", f"the latest snapshot of branch {line.branch} belongs to line {cut.line}, the branch is {line.identity}")
    if not line.tip <= cut.snapshot <= after.tip:
        findings.add("catalog", f"branch {line.branch} is said to be at {cut.snapshot}, its latest snapshot is {after.tip}")
        return
    expected = next((dict(heads) for number, heads, _ in after.cuts() if number == cut.snapshot), None)
    if expected is None:
        return  # cleaned up by now
    for head in cut.tables.values():
        known = expected.get(head.id)
        if known is None:
            findings.add("catalog", f"no snapshot of branch {line.branch} made it", head.name)
        elif (known.name, known.version, known.location, known.branch) != (head.name, head.version, head.location, head.branch):
            findings.add(
                "catalog", f"it is at version {head.version} as {shown(head.name)}; by its snapshots at {known.version}", head.name
            )
    for identity in {*expected} - {head.id for head in cut.tables.values()}:
        findings.add("catalog", f"branch {line.branch} has lost it", expected[identity].name)


def check_names(lake: Lake, branch: str, findings: LakeFindings) -> None:
    """Every name leads to one table, and that table has the name."""
    found = dict(lake.catalog.records.scan([f"{TABLES}{branch}/", name_key(branch, "")]))
    heads = {head.id: head for key, body in found.items() if key.startswith(TABLES) for head in [head_from_body(body)]}
    names = {key.removeprefix(name_key(branch, "")): body for key, body in found.items() if not key.startswith(TABLES)}
    for name, body in names.items():
        head = heads.get(str(body["table"]))
        if head is None or head.name != name:
            findings.add("catalog", f"the name is reserved on branch {branch} for a table that does not exist or has another name", name)
    for head in heads.values():
        if head.name not in names:
            findings.add("catalog", f"its name on branch {branch} has no record; use `repair`", head.name)
        if head.quarantine:
            findings.add("I10", f"{head.quarantine}; use `repair`", head.name)
        if head.version < head.data_version or head.version < head.refused:
            findings.add(
                "catalog",
                f"its version numbers contradict each other: version {head.version}, data {head.data_version}, refused {head.refused}",
                head.name,
            )


def check_refs(lake: Lake, findings: LakeFindings) -> None:
    """Tags and branches lead to snapshots that are there."""
    branches = lake.branches.list()
    lines = {branch.name: branch.id for branch in branches}
    named = [(f"tag {tag.name}", tag.snapshot, tag.branch, tag.line) for tag in lake.tags.list()]
    # A branch keeps all it needs of where it began, also where that began anew since.
    named += [
        (f"branch {branch.name}", branch.snapshot, branch.origin, branch.origin_line)
        for branch in branches
        if branch.origin_line in ("", lines.get(branch.origin, branch.origin_line))
    ]
    for what, snapshot, branch, line in named:
        try:
            lake.catalog.cut_at(snapshot, branch)
        except TiltyardError as error:
            findings.add("catalog", f"{what} leads to nothing: {error}", snapshot=snapshot)
        if line and line != lines.get(branch, line):
            findings.add(
                "catalog", f"{what} leads to a snapshot of branch {branch} from before that branch was restarted", snapshot=snapshot
            )


def check_outcomes(lake: Lake, lines: list[BranchHistory], findings: LakeFindings) -> None:
    """I12: whoever asks for a transaction's outcome is told what the history says."""
    known: dict[str, Body] = {key.removeprefix(TRANSACTIONS): body for key, body in lake.catalog.records.scan([TRANSACTIONS])}
    findings.transactions = len(known)
    steps = {(line.branch, step.id): step for line in lines for step in line.steps}
    begins = {line.branch: line.begin for line in lines}
    tips = lake.catalog.records.get([tip_key(line.branch) for line in lines]) if lines else {}
    expired = {line.branch: int(tips.get(tip_key(line.branch), {}).get("expired", 0)) for line in lines}
    identities = {line.branch: line.identity for line in lines}
    for (branch, number), step in steps.items():
        for made_by in () if step.voided or step.unknown else _makers(step):
            told = known.get(made_by)
            if told is None and number <= expired[branch]:
                continue
            if told is None or told["state"] != COMMITTED:
                findings.add("I12", f"transaction {made_by} has a snapshot, but is said to be {_state(told)}", snapshot=number)
            elif (told["branch"], int(told["snapshot"])) != (branch, number):
                findings.add("I12", f"transaction {made_by} has two snapshots: {told['snapshot']} as well", snapshot=number)
    for transaction, told in known.items():
        if told["state"] == COMMITTED and _is_of_another(told, identities):
            continue  # of a line whose name another one has by now
        if told["state"] == COMMITTED and told["branch"] in begins and int(told["snapshot"]) > begins[told["branch"]]:
            made = steps.get((str(told["branch"]), int(told["snapshot"])))
            if made is None and int(told["snapshot"]) <= _tip(lines, str(told["branch"])):
                findings.add("I12", f"transaction {transaction} is recorded as committed, but its snapshot does not exist")
            elif made is not None and transaction not in _makers(made):
                findings.add(
                    "I12",
                    f"transaction {transaction} is recorded as committed, but its snapshot is of another transaction",
                    snapshot=made.id,
                )
        elif told["state"] not in (COMMITTED, ABORTED, IN_DOUBT):
            findings.add("I12", f"transaction {transaction} is said to be {told['state']}")


def _makers(step: Snapshot) -> tuple[str, ...]:
    """The transactions that a snapshot was made by."""
    return (step.transaction, *(member.transaction for member in step.members))


def _is_of_another(told: Body, identities: Mapping[str, str]) -> bool:
    """Whether a transaction was committed to another line of history than the one that has its name now."""
    now = identities.get(str(told["branch"]), "")
    return bool(now) and str(told.get("line", "")) not in ("", now)


def _tip(lines: list[BranchHistory], branch: str) -> int:
    return next(line.tip for line in lines if line.branch == branch)


def _state(told: Body | None) -> str:
    return "undecided" if told is None else str(told["state"])


def check_pending(lake: Lake, findings: LakeFindings) -> None:
    """What was committed can be finished. What is left after the recovery could not be."""
    cuts: dict[str, Cut] = {}
    for pending in lake.catalog.pending():
        try:
            cut = cuts.get(pending.lake_branch) or cuts.setdefault(pending.lake_branch, lake.catalog.cut(pending.lake_branch))
        except NotFound:
            continue  # nobody sees the branch any more
        head = cut.by_id(pending.table)
        if head is None or head.quarantine or pending.line not in ("", cut.line):
            continue  # dropped, which cleanup takes care of; or told already; or of a line that is not there any more
        store = lake.plain_access_of(head).on_branch(pending.branch).store
        if not pending.data and not any(is_there(store, path) for path in (pending.staged, pending.path)):
            findings.add("I10", f"version {pending.version} was committed, but its bytes at {pending.staged} are gone", head.name)


def is_there(store: ObjectStore, path: str) -> bool:
    try:
        store.head(path)
    except NotFound:
        return False
    return True


def shared_tables(lake: Lake, branches: Iterable[str], add: Callable[[str, str, str], object]) -> None:
    """Tells of every branch of a table that two lines of history write to: what one of them commits would show up on the other."""
    owners: dict[tuple[str, str | None], dict[str, str]] = defaultdict(dict)
    for branch in branches:
        try:
            cut = lake.catalog.cut(branch)
        except NotFound:
            continue  # deleted meanwhile
        for head in cut.tables.values():
            if owns(head, branch, cut.line):
                owners[head.location, head.branch][f"{branch} ({cut.line})"] = head.name
    for names in owners.values():
        if len(names) > 1:
            who = " and ".join(sorted(names))
            add("catalog", f"{who} write to the same branch of it: what one commits, the other shows", min(names.values()))


def check_directories(lake: Lake, findings: LakeFindings) -> None:
    """No table lives where a cleanup has given the directory up."""
    found = dict(lake.catalog.records.scan([TABLES, GONE]))
    for key, body in found.items():
        if key.startswith(TABLES) and GONE + str(body["location"]) in found:
            findings.add("catalog", f"its directory is marked for deletion by a cleanup: {body['location']}", str(body["name"]))


def check_orphans(lake: Lake, findings: LakeFindings) -> None:
    """P12: every table below the root is in the catalog."""
    try:
        findings.orphans = find_orphans(lake)
    except TiltyardError as error:
        findings.add("P12", f"the directories below the root cannot be compared with the catalog: {error}")
    for orphan in findings.orphans:
        if orphan.is_table:
            advice = "run `tiltyard lake rebuild`, or register it" if orphan.lake == lake.id else "nothing deletes it"
            findings.add("P12", f"{orphan.path} (owner: {orphan.owner}): {orphan.reason}; {advice}")

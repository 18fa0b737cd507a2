"""Tags and branches of a lake, and the rules of protected ones, brought back from the journal into a catalog in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from tiltyard.catalog.forwarding import branch_prefixes, line_records
from tiltyard.catalog.lake_values import MAIN, Cut, TableHead
from tiltyard.catalog.line_identity import bodies_of, root_body, root_key
from tiltyard.catalog.protection import protected_tip
from tiltyard.catalog.records import Body
from tiltyard.catalog.snapshot_index import body_of, named_cut_key
from tiltyard.catalog.value_codec import BRANCHES, TAGS, ended_key, head_to_body, tip_key
from tiltyard.errors import NotFound
from tiltyard.format.refs import Tag
from tiltyard.lakes.branches.fast_forward import root_of
from tiltyard.lakes.branches.lake_refs import LakeBranch, ended_lines
from tiltyard.lakes.cleanup.pins import pin_name
from tiltyard.lakes.recovery.reconstruct import Reconstruction
from tiltyard.verbs.table_refs import Tags


def end_deleted_branches(work: Reconstruction) -> None:
    """Takes branches out that were deleted, or begun anew, after the backup was taken."""
    for branch in list(work.lake.branches.list()):
        if branch.name in work.noted.branches:
            noted = work.noted.branches[branch.name]
            if noted is None or noted.id != branch.id:
                _end(work, branch)
    now = work.lake.catalog.runtime.clock.now().isoformat()
    alive = {branch.id for branch in work.noted.branches.values() if branch is not None}
    work.put({ended_key(name, line): {"at": now, "known": known} for (name, line), known in work.noted.ended.items() if line not in alive})


def _end(work: Reconstruction, branch: LakeBranch) -> None:
    name = branch.name
    records = work.lake.catalog.records
    tags = [TAGS + tag.name for tag in work.lake.tags.list() if tag.branch == name]
    gone = dict(records.scan(branch_prefixes(name)))
    work.put(ended_lines(work.lake, branch, gone), [BRANCHES + name, tip_key(name), root_key(name), *tags, *gone])


def begin_branches(work: Reconstruction, since: datetime | None) -> Iterable[str]:
    """Makes branches that the journal has and the catalog does not, each as soon as what it began at is known; their names.

    Args:
        since: when the catalog was as it is; a branch that was made before and is not there was deleted. None for an empty catalog.
    """
    there = set(work.lake.branches)
    waiting = [branch for branch in work.noted.branches.values() if branch is not None and branch.name not in there]
    waiting = [branch for branch in waiting if since is None or branch.created > since]
    while waiting:
        ready = [branch for branch in waiting if branch.origin in {MAIN, *work.lake.branches}]
        if not ready:
            break
        for branch in ready:
            waiting.remove(branch)
            cut = known_cut(work, branch.origin, branch.snapshot, "branch", branch.name)
            if cut is None:
                work.unknown.append(f"what branch {branch.name} began with: snapshot {branch.snapshot} of {branch.origin} is not known")
            else:
                _begin(work, branch, cut)
                yield branch.name
    work.unknown += [f"what branch {branch.name} began with: branch {branch.origin} is not known" for branch in waiting]


def _begin(work: Reconstruction, branch: LakeBranch, cut: Cut) -> None:
    at = branch.created.isoformat()
    body = {"origin": branch.origin, "origin_line": cut.line, "snapshot": branch.snapshot, "created": at, "id": branch.id}
    heads = left_main = bodies_of(cut)
    if branch.origin != MAIN:
        left_main = [head_to_body(head) for head in root_of(work.lake, work.lake.branches[branch.origin]).values()]
    records: dict[str, Body] = {
        BRANCHES + branch.name: body,
        tip_key(branch.name): {"snapshot": branch.snapshot, "at": at, "line": branch.id},
        root_key(branch.name): root_body(branch.id, left_main),
        **line_records(branch.name, branch.snapshot, heads),
    }
    work.put(records)


def restore_tags(work: Reconstruction, since: datetime | None) -> None:
    """Makes and deletes tags so that they are as the journal has them; ``since`` as for branches."""
    there = {tag.name: tag for tag in work.lake.tags.list()}
    for name, tag in work.noted.tags.items():
        known = there.get(name)
        if tag is None:
            work.put({}, [TAGS + name] if known is not None else [])
        elif (known is not None and (known.snapshot, known.branch) == (tag.snapshot, tag.branch)) or (
            known is None and since is not None and tag.created <= since
        ):
            continue
        elif tag.branch not in work.lake.branches or known_cut(work, tag.branch, tag.snapshot, "tag", name) is None:
            work.unknown.append(f"what tag {name} named: snapshot {tag.snapshot} of {tag.branch} is not known")
        else:
            line = work.lake.catalog.cut(tag.branch).line
            body = {"snapshot": tag.snapshot, "branch": tag.branch, "created": tag.created.isoformat(), "line": line}
            work.put({TAGS + name: body})


def restore_rules(work: Reconstruction, since: datetime | None) -> None:
    """Protects the branches that the journal says were protected; ``since`` as for branches."""
    ids = {MAIN: "", **{branch.name: branch.id for branch in work.lake.branches.list()}}
    for noted in work.noted.rules:
        if ids.get(noted.branch) == noted.branch_id and (since is None or noted.since > since):
            key = tip_key(noted.branch)
            work.put({key: protected_tip(work.lake.catalog.records.get([key])[key], noted.rule)})


def known_cut(work: Reconstruction, branch: str, snapshot: int, kind: str, name: str) -> Cut | None:
    """All tables as of a snapshot that has its old number: as the catalog has it, as somebody wrote it down, or as Lance tags in the
    tables have it; None where nobody did.

    Args:
        work: the catalog so far.
        branch: of the lake.
        snapshot: of that branch.
        kind: ``"tag"`` or ``"branch"``, of what needs it.
        name: what that is called.
    """
    try:
        return work.lake.catalog.cut_at(snapshot, branch)
    except NotFound:
        pass
    found = next((names.tables.values() for names in work.names(branch) if names.as_of == snapshot), None)
    heads = list(found) if found is not None else _pinned(work, kind, name)
    heads = [head for head in heads if head.location not in work.absent and head.location not in work.not_taken]
    if not heads:
        return None
    work.put({named_cut_key(branch, snapshot): body_of(heads)})
    return Cut(branch, snapshot, {head.name: head for head in heads}, line=work.lake.catalog.cut(branch).line)


def _pinned(work: Reconstruction, kind: str, name: str) -> list[TableHead]:
    """Tables as the Lance tags have them that a tag or a branch of the lake left; none where there are such of several of that name."""
    heads = {head.location: head for notes in work.noted.names.values() for names in notes for head in names.tables.values()}
    heads |= {head.location: head for found in work.heads.values() for head in found.values()}
    prefix = pin_name(kind, name, "")
    by_pin: dict[str, list[TableHead]] = defaultdict(list)
    for head in heads.values():
        for pin, tag in Tags(work.lake.plain_access_of(head)).items():
            if pin.startswith(prefix) and "-" not in pin[len(prefix) :]:
                by_pin[pin].append(_at(head, tag))
    return next(iter(by_pin.values())) if len(by_pin) == 1 else []


def _at(head: TableHead, tag: Tag) -> TableHead:
    """A table at the version of a Lance tag. Who made that one is not noted, and not compared then."""
    return replace(
        head, version=tag.version, data_version=tag.version, branch=tag.branch, refused=0, quarantine="", transaction=""
    )  # fmt: skip

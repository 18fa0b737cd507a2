"""Merges of branches as the catalog knows them: which snapshots of which lines another line has in it, and the step that adds one.

A line keeps one record of all that was merged into it. It is written in the same step as the snapshot that the merge makes, under the
locks of both lines: a branch that is deleted, or begins anew, meanwhile is not merged, and the same snapshot is not merged twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.lake_values import MAIN, Publication
from tiltyard.catalog.line_identity import is_line, line_in, moved_line
from tiltyard.catalog.protection import checks_key, passed_at
from tiltyard.catalog.publishing import Published, StaleError, decide, locks
from tiltyard.catalog.records import Body, Found, Records, Writes
from tiltyard.catalog.snapshot_index import floor_key
from tiltyard.catalog.value_codec import BRANCHES, tip_key

MERGED: Final = "merged/"


@dataclass(frozen=True, slots=True)
class MergedLine:
    """A line that another one has in it.

    Attributes:
        line: its id.
        branch: what it was called.
        snapshot: up to where it is in.
        at: the snapshot of the other line that the merge made.
    """

    line: str
    branch: str
    snapshot: int
    at: int


def merged_key(line: str) -> str:
    """The record of all that was merged into a line."""
    return MERGED + line


def merged_into(body: Body | None) -> list[MergedLine]:
    """Reads that record, oldest merge first."""
    return [MergedLine(**item) for item in (body or {}).get("merges", ())]


def forgotten_until(body: Body | None) -> int:
    """From the same record: up to this snapshot of the line nobody knows what was merged into it, since the catalog that knew was lost."""
    return int((body or {}).get("forgotten_until", 0))


def with_forgotten(body: Body | None, until: int) -> dict[str, Any]:
    """The record of a line whose catalog was lost."""
    return {"merges": [], "picks": {}, **(body or {}), "forgotten_until": until}


def renamed_line(made: Mapping[str, Body], old: str, new: str) -> dict[str, Body]:
    """Records in which a line has another id, as far as they tell of merges into it and picks from it."""
    return {merged_key(new) if key == merged_key(old) else key: _picked_from(key, body, old, new) for key, body in made.items()}


def _picked_from(key: str, body: Body, old: str, new: str) -> Body:
    if not key.startswith(MERGED):
        return body
    return {**body, "picks": {pick.replace(f" {old}@", f" {new}@"): at for pick, at in picked_into(body).items()}}


def picked_into(body: Body | None) -> dict[str, int]:
    """From the same record, what was brought of lines otherwise, and the snapshot that each made."""
    return {str(pick): int(at) for pick, at in (body or {}).get("picks", {}).items()}


@dataclass(frozen=True, slots=True)
class MergeStep:
    """A merge to be committed.

    Attributes:
        source, line, snapshot: the branch, which line of that name, and up to where it is merged.
        target_line: the line that it is merged into.
        seen: the record of what was merged there, as it was read when the merge was planned.
        floor: the record of where the branch's past begins, as it was then: what a cleanup gave up since may be part of the merge.
        pick: what was brought of the branch, if that is not all of it; None for a merge.
        unmoved: whether the branch must still be at that snapshot.
    """

    source: str
    line: str
    snapshot: int
    target_line: str
    seen: Body | None
    floor: Body | None
    pick: str | None = None
    unmoved: bool = False


def _with(body: Body | None, step: MergeStep, at: int) -> dict[str, Any]:
    """The record with one merge more. That it is there says that the line may name files of others."""
    merges, picks = merged_into(body), picked_into(body)
    if step.pick is None:
        merges.append(MergedLine(step.line, step.source, step.snapshot, at))
    else:
        picks[step.pick] = at
    return {**(body or {}), "merges": [asdict(item) for item in merges], "picks": picks}


def publish_merge(catalog: Catalog, step: MergeStep, publication: Publication) -> Published:
    """Publishes a merge together with the record of it.

    Raises:
        StaleError: tables of the target are not where the publication expects them, the branch is another line by now, or somebody
            merged it meanwhile.
        ProtectedBranch: the target is protected, and the branch has not passed what it asks for.
    """
    exclusive, shared = locks(publication)
    key, begin = merged_key(step.target_line), BRANCHES + step.source
    beside = list(
        dict.fromkeys([tip_key(step.source), floor_key(step.source), checks_key(step.line), *([] if step.source == MAIN else [begin])])
    )
    now = catalog.runtime.clock.now()

    def decided(found: Found) -> Writes[Published]:
        passed = passed_at(found, step.line, step.snapshot) if step.pick is None else frozenset()
        published = decide(publication, found, now, passed)
        if published.result.replayed:
            return published
        tip = found.get(tip_key(step.source))
        if tip is None or not is_line(found, step.source, step.line) or (step.unmoved and int(tip["snapshot"]) != step.snapshot):
            raise StaleError([moved_line(step.source, step.snapshot, tip)])
        if found.get(key) != step.seen or found.get(floor_key(step.source)) != step.floor:
            raise StaleError([moved_line(publication.branch, publication.base, found.get(tip_key(publication.branch)))])
        return Writes(published.result, {**published.put, key: _with(found.get(key), step, published.result.snapshot)}, published.delete)

    done = catalog.records.transact([*exclusive, key], [name for name in (*shared, *beside) if name not in exclusive], decided)
    if not done.replayed:
        catalog.keep_cut(publication.branch, done.snapshot, publication.line, done.tables)
    return done


# ---- which lines have which in them ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LineFacts:
    """Where a line that is alive began: the line that it left, and its snapshot; empty and 0 for main."""

    branch: str
    origin: str
    snapshot: int


class LineGraph:
    """All lines that are alive, where each left its parent, what was merged into it, and up to where that is not known."""

    def __init__(self, lines: dict[str, LineFacts], merges: dict[str, list[MergedLine]], forgotten: dict[str, int]) -> None:
        self.lines, self._merges, self.forgotten = lines, merges, forgotten

    @classmethod
    def read(cls, records: Records) -> LineGraph:
        found = dict(records.scan([BRANCHES, MERGED, tip_key(MAIN)]))
        main = line_in(found.get(tip_key(MAIN)), records, MAIN)
        lines = {main: LineFacts(MAIN, "", 0)}
        for key, body in found.items():
            if key.startswith(BRANCHES):
                origin = str(body.get("origin_line", "")) or (main if body["origin"] == MAIN else "")
                lines[str(body["id"])] = LineFacts(key.removeprefix(BRANCHES), origin, int(body["snapshot"]))
        into = {key.removeprefix(MERGED): body for key, body in found.items() if key.startswith(MERGED)}
        merges = {line: merged_into(body) for line, body in into.items()}
        return cls(lines, merges, {line: until for line, body in into.items() if (until := forgotten_until(body))})

    def is_certain(self, base: tuple[str, int], *sides: str) -> bool:
        """Whether a snapshot is the latest that two lines have in them: it has all of them up to where merges may be forgotten."""
        contained = self.contained(*base)
        return all(contained.get(line, -1) >= self.forgotten.get(line, -1) for line in (base[0], *sides))

    def beginning(self, line: str, snapshot: int) -> tuple[str, int]:
        """The same state of the lake on the line that it was made on: a line without a snapshot of its own is where it began."""
        while line in self.lines and self.lines[line].origin and snapshot <= self.lines[line].snapshot:
            line = self.lines[line].origin
        return line, snapshot

    def chain(self, line: str, snapshot: int) -> dict[str, int]:
        """The line and those that it came from, each with its last snapshot that it has."""
        found = {line: snapshot}
        while line in self.lines and self.lines[line].origin:
            line, snapshot = self.lines[line].origin, min(self.lines[line].snapshot, snapshot)
            found[line] = snapshot
        return found

    def contained(self, line: str, snapshot: int) -> dict[str, int]:
        """All lines that a snapshot has in it, by origin and by merges, each with its last snapshot."""
        found: dict[str, int] = {}
        left = [(line, snapshot)]
        while left:
            one, number = left.pop()
            for part, last in self.chain(one, number).items():
                if found.get(part, -1) >= last:
                    continue
                found[part] = last
                left += [(merge.line, merge.snapshot) for merge in self._merges.get(part, ()) if merge.at <= last]
        return found

    def common(self, one: tuple[str, int], other: tuple[str, int]) -> list[tuple[str, int]]:
        """The latest snapshots that both have in them; several where lines were merged crosswise."""
        mine, theirs = self.contained(*one), self.contained(*other)
        shared = {line: min(last, theirs[line]) for line, last in mine.items() if line in theirs}
        return [
            (line, last)
            for line, last in shared.items()
            if not any(self.contained(*rival).get(line, -1) >= last for rival in shared.items() if rival[0] != line)
        ]

    def kept(self) -> Iterable[tuple[str, int, str]]:
        """Snapshots that later merges may need as a common ancestor: their branch, number, and the branch that they were merged into.

        Of each line that is the one merged last; for branches that left the target before that, the last one they have in them.
        """
        for target, merges in self._merges.items():
            if target not in self.lines or not merges:
                continue
            left = [facts.snapshot for facts in self.lines.values() if facts.origin == target]
            for until in (*left, max(merge.at for merge in merges)):
                latest = {merge.line: merge.snapshot for merge in merges if merge.at <= until}
                for line, snapshot in latest.items():
                    if line in self.lines:
                        yield self.lines[line].branch, snapshot, self.lines[target].branch

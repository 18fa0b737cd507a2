"""Who consumes a source: each output and each step that ends something. What each of them has consumed is noted for itself.

An output that is added later has consumed nothing yet, so it gets all that is there, while the others get what is new. Consumers that
have consumed the same take part in the same pass of a run; most runs have one. All passes of a run are one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tiltyard.errors import InvalidInput
from tiltyard.pipeline.consumed import WHOLE, Mark, Marks
from tiltyard.pipeline.spec import FileSource, Output, PipelineSpec, Source, Step

BY: Final = "by"
"""The member of a mark that names the consumers; marks of earlier releases have none, and are about all of them."""
STEP: Final = "step "
"""Begins the name of a consumer that is a step; no table has a name with a blank."""
Known = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Again:
    """What a run is to do once more.

    Attributes:
        refresh: tables that are recomputed from all of their sources.
        since: files that changed since then are consumed again, and all rows of tables, by outputs that can take rows twice.
        backfill: the outputs that ``since`` is for; all of them, if it is empty.
        steps: only what these steps belong to; all, if it is empty.
    """

    refresh: tuple[str, ...] = ()
    since: datetime | None = None
    backfill: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.refresh) or self.since is not None

    def check(self, outputs: Sequence[Output]) -> None:
        """Refuses tables that are not outputs, and outputs that would store rows twice.

        Raises:
            InvalidInput: naming the table.
        """
        tables = [output.table for output in outputs]
        for argument, names in (("refresh", self.refresh), ("backfill", self.backfill)):
            for name in names:
                if name not in tables:
                    raise InvalidInput(f"{name!r} is not an output of the pipeline; outputs are {', '.join(tables)}.", argument=argument)
        if self.backfill and self.since is None:
            raise InvalidInput("backfill needs since: the time since when files are consumed again.", argument="backfill")
        if self.since is not None and self.since.tzinfo is None:
            raise InvalidInput("since needs a time zone.", argument="since")
        for output in outputs:
            if self.since is not None and self.fills(output.table) and output.mode not in ("merge", "overwrite where", "scd2"):
                raise InvalidInput(
                    f"outputs.{output.table}: mode {output.mode!r} would store the rows twice.", argument="since",
                    advice="Refresh it, or name outputs with mode 'merge' or 'overwrite where' in backfill.",
                )  # fmt: skip

    def fills(self, table: str) -> bool:
        """Whether an output consumes files again. Steps do not: what they caught is in quarantine already."""
        return (
            not table.startswith(STEP)
            and self.since is not None
            and table not in self.refresh
            and (not self.backfill or table in self.backfill)
        )


NOT_AGAIN: Final = Again()


@dataclass(frozen=True, slots=True)
class Pass:
    """A part of a run whose consumers have consumed the same.

    Attributes:
        consumers: outputs by their table, steps as ``step NAME``.
        known: what they have consumed, by source.
        refresh: whether what they have is to be replaced.
        behind: whether others have consumed more.
    """

    consumers: frozenset[str]
    known: Mapping[str, Known]
    refresh: bool = False
    behind: bool = False

    def of_outputs(self, outputs: Iterable[Output]) -> tuple[Output, ...]:
        return tuple(output for output in outputs if output.table in self.consumers)


def consumer_of(part: Output | Step) -> str:
    return part.table if isinstance(part, Output) else f"{STEP}{part.name}"


def is_end(step: Step) -> bool:
    """Whether a step does something by itself: it judges rows, or is a function, which may do anything."""
    return bool(step.expect) or step.sql is None


def passes_of(spec: PipelineSpec, reads: Mapping[str, Collection[str]], marks: Marks, again: Again = NOT_AGAIN) -> list[Pass]:
    """The passes of a run; those who have consumed most come first.

    Args:
        spec: the pipeline.
        reads: the sources that each consumer reads.
        marks: what was consumed.
        again: what is to be done once more.
    """
    sources = {source.name: source for source in spec.sources}
    groups: dict[tuple[bool, tuple[tuple[str, Any], ...]], list[str]] = {}
    for consumer, names in reads.items():
        fresh = consumer in again.refresh
        lacking = tuple(
            (name, missing)
            for name in sorted(names)
            if (missing := _missing(sources[name], marks.get(name, {}), consumer, again, fresh=fresh))
        )
        groups.setdefault((fresh, lacking), []).append(consumer)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], bool(group[0][1]), group[1]))
    found = []
    for (fresh, lacking), names in ordered:
        known: dict[str, Known] = {}
        for source in spec.sources:
            # All who read it have consumed the same of it; the others have consumed nothing of it, and do not count.
            reader = next((name for name in names if source.name in reads[name]), "")
            known[source.name] = known_to(source, marks.get(source.name, {}), reader, again, fresh=fresh)
        found.append(Pass(frozenset(names), known, fresh, bool(lacking)))
    return found


def known_to(source: Source, marks: Known, consumer: str, again: Again = NOT_AGAIN, *, fresh: bool = False) -> Known:
    """What a consumer has consumed of a source. What a bad file is needs to be found out only once."""
    if fresh:
        return {item: value for item, value in marks.items() if value.get("bad") or "schema" in value}
    if isinstance(source, FileSource):
        filling = again.fills(consumer)
        limit = int(again.since.timestamp() * 1e9) if again.since is not None else 0
        return {
            item: value
            for item, value in marks.items()
            if value.get("bad")
            or item == WHOLE
            or ((BY not in value or consumer in value[BY]) and not (filling and int(value.get("mtime_ns", 0)) >= limit))
        }
    mark = marks.get(WHOLE)
    if mark is None or (again.fills(consumer) and source.read == "changes"):
        return {}
    if BY not in mark:
        return marks
    own = mark[BY].get(consumer)
    return {} if own is None else {WHOLE: {**mark, "version": own[0], "since": own[1]}}


def _missing(source: Source, marks: Known, consumer: str, again: Again, *, fresh: bool) -> Any:
    """What others have consumed of a source and this one has not; nothing most of the time."""
    known = known_to(source, marks, consumer, again, fresh=fresh)
    if isinstance(source, FileSource):
        return tuple(sorted(item for item in marks if item not in known))
    now, all_of = known.get(WHOLE), marks.get(WHOLE)
    if all_of is None:
        return None
    return ("version", now["version"] if now else None) if now is None or now["version"] != all_of["version"] else None


def merged_mark(
    mark: Mark, consumers: Collection[str], before: Mapping[str, Any] | None, *, readers: Collection[str] = (), ignored: bool = False
) -> Mark:
    """A mark with those who have consumed the item: these, and those who had before, if it is the same item still.

    Args:
        mark: of the item, as it was consumed now.
        consumers: who consumed it now.
        before: the mark that it replaces.
        readers: all who read the source. What others of them need of the history has to stay; those that are gone may find it cleaned up.
        ignored: whether a file that changed counts as the same.
    """
    value, old = dict(mark.value), before or {}
    if "version" in value:
        others: dict[str, Any] = {}
        if old.get("table") == value.get("table"):
            earlier = [old.get("version"), old.get("since", 0)]  # of an earlier release: all have consumed as much
            others = dict(old[BY]) if BY in old else dict.fromkeys(readers, earlier)
        by = {**others, **{consumer: [value["version"], value["since"]] for consumer in consumers}}
        newest = max(own[0] for own in by.values())
        since = min(own[1] for name, own in by.items() if name in readers or name in consumers)
        return Mark(mark.source, mark.item, {**value, "version": newest, "since": since, BY: by})
    same = bool(old) and not old.get("bad") and (ignored or all(old.get(name) == value.get(name) for name in ("size", "mtime_ns")))
    if same and BY not in old:
        return Mark(mark.source, mark.item, value)  # of an earlier release: all have consumed it
    return Mark(mark.source, mark.item, {**value, BY: sorted({*(old.get(BY, ()) if same else ()), *consumers})})

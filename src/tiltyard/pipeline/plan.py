"""What a run would do: which sources have something new, which steps run, where their rows go. Finding out changes nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tiltyard as ty
from tiltyard.pipeline.consumed import Marks, marks_of
from tiltyard.pipeline.consumers import NOT_AGAIN, Again, Pass, consumer_of, is_end, passes_of
from tiltyard.pipeline.portions import FilePortion, Portion, TablePortion, portion_of
from tiltyard.pipeline.run_report import PlanPart
from tiltyard.pipeline.spec import FileSource, Maintenance, Output, PipelineSpec, Source, Step


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a pipeline that runs. What one source feeds runs together, because it is consumed once for all."""

    sources: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    maintenance: tuple[Maintenance, ...]


def select(spec: PipelineSpec, names: Collection[str] | None = None) -> Selection:
    """The part that some steps, or pieces of upkeep, belong to; all without names.

    A source that nothing is made of is no part of it: what it has new waits for the step that will read it.

    Raises:
        InvalidInput: there is nothing of that name.
    """
    if not names:
        used = _used(spec)
        return Selection(
            tuple(source.name for source in spec.sources if source.name in used),
            tuple(step for step in spec.steps if step.name in used),
            spec.outputs,
            spec.maintenance,
        )
    known = {*(step.name for step in spec.steps), *(maintenance.name for maintenance in spec.maintenance)}
    for name in names:
        if name not in known:
            raise ty.InvalidInput(f"There is no step {name!r}; there are {', '.join(sorted(known))}.", argument="select")
    above = {source.name: _above(spec, source.name) for source in (*spec.sources, *spec.steps)}
    wanted = {name for name in names if name in above}
    consumed = {
        source.name for source in spec.sources if isinstance(source, FileSource) or source.read == "changes" or spec.triggers(source)
    }
    while True:
        sources = {each_name for name in wanted for each_name in above[name] if each_name in consumed}
        fed = {output.source for output in spec.outputs if above[output.source] & (sources | wanted)}
        fed |= {step.name for step in spec.steps if above[step.name] & sources}
        if fed <= wanted:
            break
        wanted |= fed
    needed = {each_name for name in wanted for each_name in above[name]} & _used(spec)
    return Selection(
        tuple(source.name for source in spec.sources if source.name in needed),
        tuple(step for step in spec.steps if step.name in needed),
        tuple(output for output in spec.outputs if output.source in needed),
        tuple(maintenance for maintenance in spec.maintenance if maintenance.name in names),
    )


def parts_of(spec: PipelineSpec, selection: Selection) -> tuple[PlanPart, ...]:
    """What a run is to do, part by part, with what each part reads."""
    steps = [PlanPart("step", step.name, spec.inputs_of(step)) for step in selection.steps]
    caught: dict[str, list[str]] = {}
    for step in selection.steps:
        for expectation in step.expect:
            if expectation.quarantine is not None:
                caught.setdefault(expectation.quarantine, []).append(step.name)
    return (
        *(PlanPart("source", name) for name in selection.sources),
        *steps,
        *(PlanPart("output", output.table, (output.source,)) for output in selection.outputs),
        *(PlanPart("quarantine", table, tuple(dict.fromkeys(names))) for table, names in caught.items()),
    )


def _used(spec: PipelineSpec) -> set[str]:
    """The sources and steps whose rows get somewhere: to an output, to a check, or to a function, which may do anything with them."""
    ends = {output.source for output in spec.outputs} | {step.name for step in spec.steps if is_end(step)}
    return {name for end in ends for name in _above(spec, end)}


def _above(spec: PipelineSpec, name: str) -> set[str]:
    """A step with all that it is made of."""
    step = next((step for step in spec.steps if step.name == name), None)
    found = {name}
    for each_name in spec.inputs_of(step) if step is not None else ():
        found |= _above(spec, each_name)
    return found


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """What a run does for consumers that have consumed the same: what it takes for them of each source, their steps and outputs,
    and which sources each of them reads."""

    which: Pass
    portions: tuple[Portion, ...]
    selection: Selection
    sources_of: Mapping[str, Collection[str]]

    @property
    def whose(self) -> str:
        """Whom it is for, where it is not for all."""
        if not (self.which.refresh or self.which.behind):
            return ""
        return f", {'refresh of' if self.which.refresh else 'for'} {', '.join(sorted(self.which.consumers))}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does.

    Attributes:
        pipeline: its name.
        snapshot: what it sees of the lake.
        passes: what it does, for those who have consumed the same; those with nothing new are left out.
        selection: the steps and outputs.
        versions: of the tables written to; None for one that is to be made.
        nothing: whether no source has anything new.
        marks: what was consumed before.
        waiting: outputs that read a table which the pipeline has yet to make.
        looked: the tables that are read as a whole, or were found to have nothing new, by which an output is left as it is.
    """

    pipeline: str
    snapshot: int
    passes: tuple[PlannedPass, ...]
    selection: Selection
    versions: dict[str, int | None]
    nothing: bool
    marks: Marks
    waiting: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()

    @property
    def portions(self) -> tuple[Portion, ...]:
        """What it takes of each source, in all passes."""
        return tuple(portion for each in self.passes for portion in each.portions)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "pipeline": self.pipeline,
            "dry_run": True,
            "committed": False,
            "nothing_to_do": self.nothing,
            "snapshot": self.snapshot,
            "sources": [portion_dict(portion) for portion in self.portions],
            "waiting": list(self.waiting),
            "steps": [step.name for step in self.selection.steps],
            "outputs": [
                {"table": output.table, "from": output.source, "mode": output.mode, "version": self.versions[output.table]}
                for output in self.selection.outputs
            ],
            "maintenance": [{"name": maintenance.name, "kind": maintenance.kind} for maintenance in self.selection.maintenance],
        }

    def lines(self) -> Iterable[tuple[str, str]]:
        """The plan for people, as facts with a name each."""
        for each in self.passes:
            for portion in each.portions:
                yield "source", f"{portion.source.name}: {portion.described()}{each.whose}"
        for step in self.selection.steps:
            expected = f", {len(step.expect)} expectation{'' if len(step.expect) == 1 else 's'}" if step.expect else ""
            yield "step", f"{step.name}{expected}"
        for output in self.selection.outputs:
            version = self.versions[output.table]
            at = "to be made" if version is None else f"version {version}"
            yield "output", f"{output.table} ({at}): {output.mode} from {output.source}"
        for upkeep in self.selection.maintenance:
            yield "upkeep", f"{upkeep.name}: {upkeep.kind} {', '.join(upkeep.tables) or 'the lake'}"


def portion_dict(portion: Portion) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": portion.source.name, "kind": portion.source.kind, "new": portion.has_new}
    if isinstance(portion, FilePortion):
        found = portion.found
        return {**facts, "files": [file.item for file in portion.files], "waiting": found.waiting, "partial": list(found.partial)}
    return {**facts, "table": portion.source.table, "read": portion.source.read, "after": portion.first, "to": portion.last}


def make_plan(
    spec: PipelineSpec, sight: ty.LakeSnapshot, selection: Selection, runner: str, marks: Marks | None = None, again: Again = NOT_AGAIN
) -> Plan:
    """Looks at sources and tables as one snapshot of the lake has them.

    Raises:
        NotFound: a source is a table that is not there, and that the pipeline does not make.
        InvalidInput: a file changed after it was consumed; or what is to be refreshed was made of files that are gone.
    """
    again.check(selection.outputs)
    known = marks_of(sight, spec.name) if marks is None else marks
    now_ns = time.time_ns()
    versions = sight.versions()
    reads, waiting = _reads(spec, selection, versions)
    passes = []
    for which in passes_of(spec, reads, known, again):
        part = _part(spec, selection, which)
        portions = tuple(
            portion_of(_whole(source) if which.refresh else source, sight, which.known[source.name], spec.directory, now_ns, runner)
            for source in spec.sources
            if source.name in part.sources
        )
        if which.refresh:
            _check_there(portions, known)
        passes.append(PlannedPass(which, portions, part, reads))
    new = _with_news(spec, selection, passes)
    tables = {output.table: versions.get(output.table) for output in selection.outputs}
    looked = tuple(dict.fromkeys(table for each in passes for table in _snapshots(each.portions)))
    return Plan(spec.name, sight.id, new or tuple(passes), selection, tables, not new, known, waiting, looked)


def _with_news(spec: PipelineSpec, selection: Selection, passes: Iterable[PlannedPass]) -> tuple[PlannedPass, ...]:
    """The parts of passes for which there is something new: an output whose own sources have nothing new is left as it is.

    A source that is no reason to run is none for an output that has others, too: without news of those there are no rows to make. But an
    output that has no others would never be made, so it takes part in runs that others are the reason for.
    """
    reasons = {source.name for source in spec.sources if spec.triggers(source)}
    found, reason = [], False
    for each in passes:
        fresh = {portion.source.name for portion in each.portions if portion.has_new}
        active = set()
        for name in each.which.consumers:
            own = set(each.sources_of[name])
            telling = own if each.which.refresh else own & reasons  # who asks for a refresh has a reason
            reason = reason or bool(fresh & telling)
            if fresh & (telling or own) or not own:
                active.add(name)
        if active:
            which = replace(each.which, consumers=frozenset(active))
            part = _part(spec, selection, which)
            portions = tuple(portion for portion in each.portions if portion.source.name in part.sources)
            found.append(replace(each, which=which, selection=part, portions=portions))
    return tuple(found) if reason else ()


def _reads(spec: PipelineSpec, selection: Selection, there: Collection[str]) -> tuple[dict[str, set[str]], tuple[str, ...]]:
    """The sources that each consumer reads, and who waits for a table that the pipeline has yet to make."""
    made = {output.table for output in spec.outputs}
    missing = {
        source.name for source in spec.sources if not isinstance(source, FileSource) and source.table in made and source.table not in there
    }
    parts = [(consumer_of(output), output.source) for output in selection.outputs]
    parts += [(consumer_of(step), step.name) for step in selection.steps if is_end(step)]
    found: dict[str, set[str]] = {}
    waiting = []
    for consumer, name in parts:
        sources = _above(spec, name) & set(selection.sources)
        if sources & missing:
            waiting.append(consumer)
        else:
            found[consumer] = sources
    return found, tuple(waiting)


def _part(spec: PipelineSpec, selection: Selection, which: Pass) -> Selection:
    """The steps and outputs of a pass, with what they are made of."""
    outputs = which.of_outputs(selection.outputs)
    ends = [step.name for step in selection.steps if consumer_of(step) in which.consumers]
    needed = {name for end in (*(output.source for output in outputs), *ends) for name in _above(spec, end)}
    sources = tuple(name for name in selection.sources if name in needed)
    return Selection(sources, tuple(step for step in selection.steps if step.name in needed), outputs, ())


def _whole(source: Source) -> Source:
    """A source of which all is taken at once."""
    return replace(source, max_files=None) if isinstance(source, FileSource) else replace(source, start="beginning", max_versions=None)


def _check_there(portions: Iterable[Portion], marks: Marks) -> None:
    """Makes sure that whatever rows were made of is still there, or they would be gone after a refresh."""
    for portion in portions:
        if not isinstance(portion, FilePortion):
            continue
        name = portion.source.name
        gone = [item for item, value in marks.get(name, {}).items() if item and not value.get("bad") and item not in portion.found.present]
        if gone:
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            raise ty.InvalidInput(
                f"sources.{name}: {sorted(gone)[0]}{more} was consumed and is gone: a refresh would lose its rows.", argument="refresh",
                advice="Put the files back, or use since for the files that still exist.",
            )  # fmt: skip


def _snapshots(portions: Iterable[Portion]) -> list[str]:
    """The tables of which all rows are read."""
    return [portion.source.table for portion in portions if isinstance(portion, TablePortion) and portion.source.read == "snapshot"]

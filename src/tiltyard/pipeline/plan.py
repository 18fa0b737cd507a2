"""What a run would do: which sources have something new, which steps run, where their rows go. Finding out changes nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import tiltyard as ty
from tiltyard.pipeline.consumed import Marks, marks_of
from tiltyard.pipeline.portions import FilePortion, Portion, TablePortion, portion_of
from tiltyard.pipeline.spec import FileSource, Maintenance, Output, PipelineSpec, Step


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


def _used(spec: PipelineSpec) -> set[str]:
    """The sources and steps whose rows get somewhere: to an output, to a check, or to a function, which may do anything with them."""
    ends = {output.source for output in spec.outputs} | {step.name for step in spec.steps if step.expect or step.sql is None}
    return {name for end in ends for name in _above(spec, end)}


def _above(spec: PipelineSpec, name: str) -> set[str]:
    """A step with all that it is made of."""
    step = next((step for step in spec.steps if step.name == name), None)
    found = {name}
    for each_name in spec.inputs_of(step) if step is not None else ():
        found |= _above(spec, each_name)
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does.

    Attributes:
        pipeline: its name.
        snapshot: what it sees of the lake.
        portions: what it takes of each source.
        selection: the steps and outputs.
        versions: of the tables written to; None for one that is to be made.
        nothing: whether no source has anything new.
    """

    pipeline: str
    snapshot: int
    portions: tuple[Portion, ...]
    selection: Selection
    versions: dict[str, int | None]
    nothing: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "dry_run": True,
            "committed": False,
            "nothing_to_do": self.nothing,
            "snapshot": self.snapshot,
            "sources": [portion_dict(portion) for portion in self.portions],
            "steps": [step.name for step in self.selection.steps],
            "outputs": [
                {"table": output.table, "from": output.source, "mode": output.mode, "version": self.versions[output.table]}
                for output in self.selection.outputs
            ],
            "maintenance": [{"name": maintenance.name, "kind": maintenance.kind} for maintenance in self.selection.maintenance],
        }

    def lines(self) -> Iterable[tuple[str, str]]:
        """The plan for people, as facts with a name each."""
        for portion in self.portions:
            yield "source", f"{portion.source.name}: {portion.described()}"
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


def make_plan(spec: PipelineSpec, sight: ty.LakeSnapshot, selection: Selection, runner: str, marks: Marks | None = None) -> Plan:
    """Looks at sources and tables as one snapshot of the lake has them.

    Raises:
        NotFound: a source is a table that is not there.
        InvalidInput: a file changed after it was consumed.
    """
    known = marks_of(sight, spec.name) if marks is None else marks
    now_ns = time.time_ns()
    sources = [source for source in spec.sources if source.name in selection.sources]
    portions = tuple(portion_of(source, sight, known.get(source.name, {}), spec.directory, now_ns, runner) for source in sources)
    versions = sight.versions()
    return Plan(
        spec.name,
        sight.id,
        portions,
        selection,
        {output.table: versions.get(output.table) for output in selection.outputs},
        nothing=not any(portion.has_new for portion in portions if spec.triggers(portion.source)),
    )


def tables_read(plan: Plan) -> list[str]:
    """The tables of which a run reads all rows."""
    return [portion.source.table for portion in plan.portions if isinstance(portion, TablePortion) and portion.source.read == "snapshot"]

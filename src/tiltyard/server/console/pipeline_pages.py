"""The pages about pipelines: their runs, latest first, and one run with its sources, steps, outputs and quarantine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from tiltyard.errors import NotFound
from tiltyard.lakes.lake_tables import LakeReader
from tiltyard.server.console.lake_viewer import LakeViewer
from tiltyard.server.console.page_values import ConsolePage, PageRequest, page_of, said
from tiltyard.server.console.plan_svg import DrawnPart, plan_svg

RUNS: Final = "_tiltyard.pipeline_runs"
"""The table that runs are written to; see ``tiltyard.pipeline``."""
PAGE_RUNS: Final = 100
KINDS: Final = ("source", "step", "output", "upkeep")
_LINE: Final = (
    "run",
    "pipeline",
    "status",
    "started",
    "seconds",
    "rows_in",
    "rows_out",
    "quarantined",
    "attempts",
    "snapshot",
    "author",
    "error",
)


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in the list."""

    run: str
    pipeline: str
    status: str
    started: datetime | None
    seconds: float | None
    rows_in: int | None
    rows_out: int | None
    quarantined: int | None
    attempts: int | None
    snapshot: int | None
    author: str
    error: str


@dataclass(frozen=True, slots=True)
class PipelineLine:
    """What the runs of a page come to, for one pipeline."""

    name: str
    runs: int
    failed: int
    rows_out: int
    quarantined: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PipelinesView:
    """Runs, a page of them. ``readable`` is false where the role does not show them."""

    readable: bool
    runs: tuple[RunLine, ...] = ()
    pipelines: tuple[PipelineLine, ...] = ()
    begin: int = 0
    total: int = 0


def pipelines_page(asked: PageRequest) -> ConsolePage:
    """Runs of all pipelines."""
    viewer, begin = asked.viewer, asked.number("from", 0)
    tip = viewer.tip()
    view = PipelinesView(viewer.sees(RUNS))
    reader = _runs(viewer)
    if reader is not None:
        # Runs are added at the end and completed there, so the last rows are the latest runs.
        total = reader.count_rows()
        end = max(total - begin, 0)
        first = max(end - PAGE_RUNS, 0)
        rows = reader.to_arrow(columns=list(_LINE), offset=first, limit=end - first).to_pylist() if end else []
        lines = sorted((_line(row) for row in rows), key=lambda line: str(line.started), reverse=True)
        view = PipelinesView(True, tuple(lines), _by_pipeline(lines), begin, total)
    return page_of(asked, "pipelines.html", "Pipelines", "pipelines", view, live=tip)


def _runs(viewer: LakeViewer) -> LakeReader | None:
    """The table of runs; None where there is none that may be seen."""
    if not viewer.sees(RUNS):
        return None
    try:
        return viewer.snapshot().table(RUNS)
    except NotFound:
        return None


def _line(row: Mapping[str, Any]) -> RunLine:
    return RunLine(**{**row, "pipeline": str(row["pipeline"]), "author": str(row["author"] or ""), "error": said(str(row["error"] or ""))})


def _by_pipeline(lines: list[RunLine]) -> tuple[PipelineLine, ...]:
    names = sorted({line.pipeline for line in lines})
    grouped = {name: [line for line in lines if line.pipeline == name] for name in names}
    return tuple(
        PipelineLine(
            name,
            len(runs),
            sum(run.status == "failed" for run in runs),
            sum(run.rows_out or 0 for run in runs),
            sum(run.quarantined or 0 for run in runs),
            sum(run.seconds or 0.0 for run in runs),
        )
        for name, runs in grouped.items()
    )


# ---- one run -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunPart:
    """A source, step, output or piece of upkeep.

    Attributes:
        kind: which of them.
        name: what it is called.
        detail: what it did, in words.
        rows: how many; None where they were not counted.
        seconds: how long it took; None where it was not done.
        share: of the longest part, from 0 to 100.
        inputs: what it reads.
        failed: whether the run failed there.
    """

    kind: str
    name: str
    detail: str
    rows: int | None
    seconds: float | None
    share: float = 0.0
    inputs: tuple[str, ...] = ()
    failed: bool = False


@dataclass(frozen=True, slots=True)
class RunView:
    """All of a run. ``picture`` is its plan as SVG, in which all texts are escaped; empty where the run left none."""

    line: RunLine
    parts: tuple[RunPart, ...]
    quarantine: tuple[tuple[str, int], ...] = ()
    conflicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    over: tuple[str, ...] = field(default=())
    picture: str = ""


def run_page(asked: PageRequest) -> ConsolePage:
    """One run."""
    viewer, run = asked.viewer, asked.path["run"]
    reader = _runs(viewer)
    found = []
    if reader is not None and all(letter.isalnum() or letter in "-_." for letter in run):
        found = reader.to_arrow(columns=[*_LINE, "report"], filter=f"run = '{run}'", limit=1).to_pylist()
    if not found:
        raise NotFound(f"There is no run {run[:60]!r}.", name=run[:60])
    row = found[0]
    view = _run(viewer, _line({name: row[name] for name in _LINE}), _report(row["report"]))
    return page_of(asked, "run.html", f"Run of {view.line.pipeline}", "pipelines", view)


def _report(text: object) -> Mapping[str, Any]:
    """The report of a run; empty where it is none, as any writer may have written the row."""
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _run(viewer: LakeViewer, line: RunLine, report: Mapping[str, Any]) -> RunView:
    parts = [
        *(_part("source", source, said(str(source.get("taken", "")), 120), source.get("rows")) for source in _list(report, "sources")),
        *(_part("step", step, _broken(step), step.get("rows")) for step in _list(report, "steps")),
        *(_output(output) for output in _list(report, "outputs") if viewer.sees(str(output.get("table", "")))),
        *(_part("upkeep", upkeep, said(str(upkeep.get("did", "")), 120), None) for upkeep in _list(report, "upkeep")),
    ]
    drawn = _drawn(viewer, report, parts)
    # Of a run that failed nothing was done, but what it was to do is known.
    done = {(part.kind, part.name) for part in parts}
    undone = [part for part in drawn if (part.kind, part.name) not in done and part.kind != "quarantine"]
    parts += [RunPart(part.kind, part.name, "", None, None) for part in undone]
    parts.sort(key=lambda part: KINDS.index(part.kind) if part.kind in KINDS else len(KINDS))
    longest = max((part.seconds or 0.0 for part in parts), default=0.0) or 1.0
    plan = {(part.kind, part.name): (part.inputs, part.failed) for part in drawn}
    shared = tuple(
        replace(part, share=round(100 * (part.seconds or 0.0) / longest, 1), inputs=inputs, failed=failed)
        for part in parts
        for inputs, failed in (plan.get((part.kind, part.name), ((), False)),)
    )
    given = report.get("quarantine")
    quarantine = tuple((str(name), _whole(count) or 0) for name, count in given.items()) if isinstance(given, dict) else ()
    over = tuple(
        said(f"{output.get('table')}: version {before.get('version')} by {before.get('author') or 'an unknown author'}", 200)
        for output in _list(report, "outputs")
        for before in _list(output, "over")
        if viewer.sees(str(output.get("table", "")))
    )
    picture = plan_svg(drawn, f"The plan of the run: {len(drawn)} parts, which the list below has, too")
    return RunView(line, shared, quarantine, _texts(report, "conflicts"), _texts(report, "notes"), over, picture)


def _drawn(viewer: LakeViewer, report: Mapping[str, Any], parts: Sequence[RunPart]) -> list[DrawnPart]:
    """The plan that a run left, with what each part came to."""
    done = {(part.kind, part.name): part for part in parts}
    caught = report.get("quarantine")
    found = []
    for entry in _list(report, "plan"):
        kind, name = str(entry.get("kind", "")), str(entry.get("name", ""))
        if kind in ("output", "quarantine") and not viewer.sees(name):
            continue
        inputs = entry.get("inputs")
        reads = tuple(said(str(text), 80) for text in inputs[:50]) if isinstance(inputs, list) else ()
        failed = report.get("failed_at") == f"{kind}s.{name}"
        shown, part = said(name, 80), done.get((kind, said(name, 80)))
        rows = _whole(caught.get(name)) if kind == "quarantine" and isinstance(caught, dict) else part.rows if part else None
        figures = [f"{rows:,} row{'' if rows == 1 else 's'}"] if rows is not None else []
        if part is not None and part.seconds is not None:
            figures.append(f"{part.seconds:.1f} s")
        found.append(DrawnPart(kind, shown, reads, ", ".join(figures), failed))
    return found


def _list(report: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = report.get(name)
    entries: list[Mapping[str, Any]] = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    return entries[:200]


def _texts(report: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = report.get(name)
    return tuple(said(str(entry)) for entry in found[:50]) if isinstance(found, list) else ()


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _part(kind: str, entry: Mapping[str, Any], detail: str, rows: object) -> RunPart:
    seconds = entry.get("seconds")
    named = said(str(entry.get("name", entry.get("table", ""))), 80)
    return RunPart(kind, named, detail, _whole(rows), float(seconds) if isinstance(seconds, int | float) else 0.0)


def _broken(step: Mapping[str, Any]) -> str:
    found = [f"{_whole(broken.get('rows')) or 0:,} broke {broken.get('name')!r}" for broken in _list(step, "broken") if broken.get("rows")]
    return said("; ".join(found), 200)


def _output(output: Mapping[str, Any]) -> RunPart:
    rows = output.get("rows")
    counts = {str(how): _whole(count) or 0 for how, count in rows.items()} if isinstance(rows, dict) else {}
    detail = ", ".join(f"{count:,} {how}" for how, count in counts.items() if count)
    return _part("output", output, f"{said(str(output.get('mode', '')), 40)}: {detail or 'no rows'}", sum(counts.values()))

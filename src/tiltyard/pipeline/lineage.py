"""Lineage of runs as OpenLineage events: which datasets a run read, which it wrote, how many rows, and how it ended."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tiltyard.pipeline.run_report import RunReport
from tiltyard.pipeline.spec import FileSource, PipelineSpec
from tiltyard.redact import redact

PRODUCER: Final = "https://tiltyard.dev/pipeline"
SCHEMA: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = "https://openlineage.io/spec/facets/1-0-0"
KEY: Final = "OPENLINEAGE_API_KEY"
"""Variable of the environment with a token for the server, as other clients have it."""
PATIENCE: Final = 10.0
"""Seconds that a server may take for an event."""


def lineage_events(spec: PipelineSpec, lake: str, report: RunReport) -> list[dict[str, Any]]:
    """The events of a run that is over: its start, and how it ended. None for a run that had nothing to do."""
    if report.status not in ("committed", "failed"):
        return []
    ended = report.started + timedelta(seconds=report.seconds)
    failed = report.status == "failed"
    facts = {"errorMessage": _facet("ErrorMessageRunFacet", message=report.error or "", programmingLanguage="PYTHON")} if failed else {}
    job = {"namespace": redact(lake), "name": report.pipeline}
    inputs, outputs = _inputs(spec, lake, report), _outputs(lake, report)

    def event(kind: str, when: datetime, facets: Mapping[str, Any], written: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "eventType": kind,
            "eventTime": when.astimezone(UTC).isoformat(),
            "run": {"runId": report.run, "facets": dict(facets)},
            "job": job,
            "inputs": inputs,
            "outputs": written,
            "producer": PRODUCER,
            "schemaURL": SCHEMA,
        }

    names = [{**output, "outputFacets": {}} for output in outputs]
    return [event("START", report.started, {}, names), event("FAIL" if failed else "COMPLETE", ended, facts, outputs)]


def send(spec: PipelineSpec, lake: str, report: RunReport) -> str:
    """Sends the events of a run to where the pipeline says, a URL or a file. What went wrong, as a note; a run never fails of it."""
    if spec.lineage is None:
        return ""
    events = lineage_events(spec, lake, report)
    try:
        if spec.lineage.startswith(("http://", "https://")):
            for event in events:
                _post(spec.lineage, event)
        elif events:
            with (spec.directory / spec.lineage).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(event) + "\n" for event in events)
    except (OSError, urllib.error.URLError, ValueError) as error:
        return f"its lineage was not sent: {redact(str(error))}"
    return ""


def _post(url: str, event: Mapping[str, Any]) -> None:
    """Posts an event; to the path that servers of OpenLineage have, where the URL names none."""
    place = url if url.partition("://")[2].partition("/")[2] else f"{url.rstrip('/')}/api/v1/lineage"
    key = os.environ.get(KEY)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(place, json.dumps(event).encode(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE):
        pass


def _inputs(spec: PipelineSpec, lake: str, report: RunReport) -> list[dict[str, Any]]:
    rows: dict[str, int] = {}
    for read in report.sources:
        rows[read.name] = rows.get(read.name, 0) + read.rows
    wanted = {part.name for part in report.plan if part.kind == "source"}
    found: list[dict[str, Any]] = []
    for source in spec.sources:
        if source.name not in wanted:
            continue
        counted = {"inputStatistics": _facet("InputStatisticsInputDatasetFacet", rowCount=rows[source.name])} if source.name in rows else {}
        if not isinstance(source, FileSource):
            found.append({"namespace": redact(lake), "name": source.table, "inputFacets": counted})
            continue
        for pattern in source.files:
            scheme, there, rest = pattern.partition("://")
            bucket, _, path = rest.partition("/")
            space, name = (f"{scheme}://{bucket}", path) if there else ("file", str(Path(spec.directory) / pattern))
            found.append({"namespace": redact(space), "name": name, "inputFacets": counted})
    return found


def _outputs(lake: str, report: RunReport) -> list[dict[str, Any]]:
    done = {output.table: output for output in report.outputs}
    found = []
    for table in dict.fromkeys(part.name for part in report.plan if part.kind in ("output", "quarantine")):
        output = done.get(table)
        rows = sum(output.rows.get(how, 0) for how in ("inserted", "updated")) if output is not None else report.quarantine.get(table)
        counted = {"outputStatistics": _facet("OutputStatisticsOutputDatasetFacet", rowCount=rows)} if rows is not None else {}
        version = {"version": _facet("DatasetVersionDatasetFacet", datasetVersion=str(output.version))} if output and output.version else {}
        found.append({"namespace": redact(lake), "name": table, "facets": version, "outputFacets": counted})
    return found


def _facet(name: str, **values: Any) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": f"{_FACETS}/{name}.json", **values}

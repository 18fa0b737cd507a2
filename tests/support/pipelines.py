"""Small pipelines for tests: downlinks come as files of JSON, and go into one lake."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiltyard as ty
from tiltyard.pipeline import Expectation, FileSource, Output, Pipeline, PipelineSpec, Step

SCHEMA = "id BIGINT, satellite STRING, value DOUBLE"
READINGS, QUARANTINE, TOTALS = "telemetry.readings", "telemetry.quarantine", "telemetry.totals"


@dataclass(frozen=True, slots=True)
class Bench:
    """A directory with files that come in, and a lake.

    Attributes:
        directory: where all of it is.
    """

    directory: Path

    @property
    def lake_uri(self) -> str:
        return str(self.directory / "lake")

    def lake(self, author: str = "tests") -> ty.Lake:
        return ty.Lake.open(self.lake_uri, author=author)

    def downlink(self, name: str, ids: Iterable[int], value: float = 1.0, satellite: str = "a") -> Path:
        """A file of readings; one that is not plausible for each id that is divisible by 10."""
        rows = [{"id": one, "satellite": satellite, "value": 1e6 if one % 10 == 0 else value} for one in ids]
        return self.lines(f"landing/{name}.json", rows)

    def lines(self, name: str, rows: Iterable[dict[str, Any]]) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def pipeline(self, **more: Any) -> Pipeline:
        return Pipeline(ingest(self.directory, **more))


def ingest(directory: Path, **more: Any) -> PipelineSpec:
    """Readings that are plausible are appended, the others are set apart, and how many came is merged into a table of totals."""
    facts: dict[str, Any] = {
        "sources": (FileSource("downlinks", ("landing/*.json",), "json", schema=SCHEMA),),
        "steps": (
            Step(
                "readings",
                "SELECT id, satellite, value FROM downlinks",
                expect=(Expectation("plausible", "value < 1000", "drop", QUARANTINE),),
            ),
            Step("totals", "SELECT id DIV 100 AS hundred, count(*) AS readings FROM readings GROUP BY 1"),
        ),
        "outputs": (Output(READINGS, "readings"), Output(TOTALS, "totals", "merge", on=("hundred",))),
        **more,
    }
    return PipelineSpec("ingest", directory=directory, **facts)


def ids_of(lake: ty.Lake, table: str = READINGS) -> list[int]:
    """The ids that are in a table, or in the rows of a quarantine."""
    if table not in lake.tables():
        return []
    rows = lake.table(table).to_arrow().to_pylist()
    return sorted(json.loads(row["row"])["id"] if table == QUARANTINE else row["id"] for row in rows)

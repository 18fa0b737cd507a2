"""Files that are corrupt, that change their columns, or that come corrected: none stops the others, and nothing of them is lost."""

from __future__ import annotations

import json
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiltyard as ty
from tests.support.pipelines import SCHEMA, Bench
from tiltyard.pipeline import FileSource, Output, Pipeline, PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAD = "telemetry.bad_files"


def copied(bench: Bench, pattern: str, kind: Any, schema: str | None = SCHEMA, **more: Any) -> Pipeline:
    """A pipeline that only copies its files."""
    source = FileSource("files", (pattern,), kind, schema, file_column="file", **more)
    return Pipeline(PipelineSpec("copy", directory=bench.directory, sources=(source,), outputs=(Output("t", "files"),)))


def rows_of(bench: Bench, table: str = "t") -> list[dict[str, Any]]:
    with bench.lake() as lake:
        return [dict(row) for row in lake.table(table).to_arrow().to_pylist()]


def test_a_corrupt_file_is_set_apart_and_the_others_go_on(bench: Bench, spark: SparkSession) -> None:
    bench.downlink("a", [1, 2])
    (bench.directory / "landing/b.json").write_text('{"id": 3, "satellite"\n')
    bench.downlink("c", [4])
    with pytest.raises(ty.InvalidInput):
        copied(bench, "landing/*.json", "json").run(spark)
    pipeline = copied(bench, "landing/*.json", "json", quarantine=BAD)
    report = pipeline.run(spark)
    assert (report.rows_in, report.rows_out, report.quarantine) == (3, 3, {BAD: 1})
    assert "1 of them bad: landing/b.json" in report.sources[0].taken
    (bad,) = rows_of(bench, BAD)
    assert (bad["file"], bad["source"], bad["pipeline"], bad["run"]) == ("landing/b.json", "files", "copy", report.run)
    assert "MALFORMED" in bad["reason"]
    assert pipeline.run(spark).status == "nothing to do", "a bad file is looked at once"
    bench.downlink("b", [3])
    assert pipeline.run(spark).rows_out == 1, "until somebody corrects it, whatever `changed` says"
    assert sorted(row["id"] for row in rows_of(bench)) == [1, 2, 3, 4]
    assert len(rows_of(bench, BAD)) == 1


def test_names_of_files_are_taken_as_they_are(bench: Bench, spark: SparkSession) -> None:
    """Blanks, quotes and percent signs, and signs that Spark takes for patterns: none of them is another file, and none is left out."""
    for number, name in enumerate(["it's a file", "100% {a,b} [1]", "a*b?", "ü+&#"], 1):
        bench.downlink(name, [number])
    report = copied(bench, "landing/*.json", "json").run(spark)
    assert report.rows_in == 4
    assert sorted(row["id"] for row in rows_of(bench)) == [1, 2, 3, 4]


def test_all_kinds_of_bad_files(bench: Bench, spark: SparkSession) -> None:
    """Every file is bad for itself: a header without a column, a Parquet file of noise; runs of only bad files are committed, too."""
    (bench.directory / "csv").mkdir()
    (bench.directory / "csv/1.csv").write_text("id,satellite,value\n1,a,1.5\n")
    (bench.directory / "csv/2.csv").write_text("id,satellite\n2,a\n")
    (bench.directory / "csv/3.csv").write_text("id,satellite,value\nx,a,1.5\n")
    report = copied(bench, "csv/*.csv", "csv", quarantine=BAD).run(spark)
    assert (report.rows_in, report.quarantine) == (1, {BAD: 2})
    assert [row["file"] for row in rows_of(bench, BAD)] == ["csv/2.csv", "csv/3.csv"]
    assert "lacks the column 'value'" in rows_of(bench, BAD)[0]["reason"]
    (bench.directory / "csv/4.csv").write_text("nothing\nof,this\n")
    again = copied(bench, "csv/*.csv", "csv", quarantine=BAD).run(spark)
    assert (again.status, again.rows_in, again.quarantine) == ("committed", 0, {BAD: 1})
    (bench.directory / "pq").mkdir()
    (bench.directory / "pq/noise.parquet").write_bytes(b"PAR1" + b"x" * 64 + b"PAR1")
    pq.write_table(pa.table({"id": [7], "satellite": ["b"], "value": [0.5]}), bench.directory / "pq/good.parquet")
    report = copied(bench, "pq/*.parquet", "parquet", quarantine=BAD).run(spark)
    assert (report.rows_in, report.quarantine) == (1, {BAD: 1})
    assert sorted(row["id"] for row in rows_of(bench)) == [1, 7]


def test_what_the_schema_has_not_is_rescued(bench: Bench, spark: SparkSession) -> None:
    lines = [
        '{"id": 1, "satellite": "a", "value": 1.0}',
        '{"id": 2, "Satellite": "b", "value": 2.0, "mode": "eco", "at": {"x": 1}}',
        '{"id": "three", "satellite": "c", "value": 3.0}',
        "no json at all",
        "",
    ]
    (bench.directory / "landing/a.json").write_text("\n".join(lines))
    report = copied(bench, "landing/*.json", "json", rescued="rescued").run(spark)
    assert report.rows_in == 4
    found = {row["id"] or row["satellite"]: row for row in rows_of(bench)}
    assert found[1]["rescued"] is None
    assert found[1]["file"] == "a.json"
    assert json.loads(found[2]["rescued"]) == {"mode": "eco", "at": '{"x":1}'}
    assert {json.loads(row["rescued"])["_record"] for row in rows_of(bench) if row["id"] is None} == {lines[2], lines[3]}


def test_columns_that_come_go_and_change_their_type_are_rescued(bench: Bench, spark: SparkSession) -> None:
    (bench.directory / "csv").mkdir()
    (bench.directory / "csv/1.csv").write_text("id,satellite,value\n1,a,1.5\n")
    (bench.directory / "csv/2.csv").write_text("value,id,mode\n2.5,2,eco\nx,3,eco\n")
    copied(bench, "csv/*.csv", "csv", rescued="rest").run(spark)
    found = {row["value"]: row for row in rows_of(bench)}
    assert (found[1.5]["id"], found[1.5]["satellite"], found[1.5]["rest"]) == (1, "a", None)
    assert (found[2.5]["id"], found[2.5]["satellite"], json.loads(found[2.5]["rest"])) == (2, None, {"mode": "eco"})
    assert json.loads(found[None]["rest"]) == {"_record": "x,3,eco"}
    (bench.directory / "pq").mkdir()
    pq.write_table(pa.table({"id": pa.array([4], pa.int32()), "satellite": ["d"], "value": [0.5]}), bench.directory / "pq/1.parquet")
    changed = pa.table({"id": [5.75], "satellite": ["e"], "value": [0.25], "day": [date(2026, 11, 17)]})
    pq.write_table(changed, bench.directory / "pq/2.parquet")
    spec = copied(bench, "pq/*.parquet", "parquet", rescued="rest").spec
    Pipeline(PipelineSpec("parquet", directory=bench.directory, sources=spec.sources, outputs=spec.outputs)).run(spark)
    found = {row["value"]: row for row in rows_of(bench)}
    assert (found[0.5]["id"], found[0.5]["rest"]) == (4, None)
    assert (found[0.25]["id"], json.loads(found[0.25]["rest"])) == (None, {"id": 5.75, "day": "2026-11-17"}), "5.75 is not cut to 5"


def test_sources_that_cannot_rescue_say_so(bench: Bench) -> None:
    for more, what in (
        ({"schema": None, "rescued": "r"}, "sources.files.rescued is for sources with a schema"),
        ({"rescued": "r", "options": {"MODE": "PERMISSIVE"}}, "sources.files.options.mode cannot be combined with rescued"),
        ({"quarantine": "_tiltyard.pipeline_runs"}, "sources.files.quarantine is"),
    ):
        with pytest.raises(ty.InvalidInput, match=what):
            copied(bench, "landing/*.json", "json", **more)

"""Pipelines as TOML: what is understood, and that every complaint names file, key and what is allowed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import tiltyard as ty
from tiltyard.pipeline import FileSource, Pipeline, TableSource
from tiltyard.pipeline.toml_spec import parse_span, parse_spec

GOOD = """
name = "ingest"
lake = "place"
retries = 3
isolation = "serializable"

[spark]
master = "local[1]"
"spark.sql.ansi.enabled" = true

[sources.downlinks]
files = ["landing/*.csv", "more/*.csv"]
options = { sep = ";", inferSchema = true }
max_files = 4
order = "any"
min_age = "1m30s"

[sources.seen]
table = "telemetry.readings"
max_versions = 5
start = "now"

[sources.satellites]
table = "satellites"
read = "snapshot"

[[steps]]
name = "joined"
sql = "SELECT * FROM downlinks JOIN satellites USING (satellite)"

[[steps.expect]]
name = "positive"
check = "value > 0"
otherwise = "drop"
quarantine = "bad"

[[steps]]
name = "shaped"
python = "shapes:shape"
inputs = "joined"

[[outputs]]
table = "telemetry.readings"
from = "shaped"
mode = "merge"
on = "id"
update = ["value"]

[[maintenance]]
name = "small_files"
kind = "compact"
tables = "telemetry.readings"
every = "10m"
"""


def spec_of(text: str) -> ty.pipeline.PipelineSpec:
    return parse_spec(text, "p.toml", Path("/somewhere"))


def test_everything_is_read() -> None:
    spec = spec_of(GOOD)
    downlinks, seen, satellites = spec.sources
    assert isinstance(downlinks, FileSource)
    assert isinstance(seen, TableSource)
    assert isinstance(satellites, TableSource)
    assert (downlinks.format, downlinks.files, downlinks.min_age) == ("csv", ("landing/*.csv", "more/*.csv"), timedelta(seconds=90))
    assert downlinks.options == {"sep": ";", "inferSchema": "true"}
    assert (seen.read, seen.start, seen.max_versions, satellites.read) == ("changes", "now", 5, "snapshot")
    assert [spec.triggers(one) for one in spec.sources] == [True, True, False]
    joined, shaped = spec.steps
    assert spec.inputs_of(joined) == ("downlinks", "satellites")
    assert (shaped.function, shaped.inputs) == ("shapes:shape", ("joined",))
    assert joined.expect[0].quarantine == "bad"
    (output,) = spec.outputs
    assert (output.mode, output.on, output.update, output.source) == ("merge", ("id",), ("value",), "shaped")
    assert spec.maintenance[0].every == timedelta(minutes=10)
    assert spec.spark == {"master": "local[1]", "spark.sql.ansi.enabled": "true"}
    assert spec.lake_uri() == "/somewhere/place"
    assert (spec.retries, spec.isolation) == (3, "serializable")


@pytest.mark.parametrize(
    ("before", "after", "key", "said"),
    [
        ('name = "ingest"', "", "name", "is missing"),
        ('name = "ingest"', 'name = "in gest"', "name", "letters, digits"),
        ('name = "ingest"', "name = 7", "name", "is 7, and must be text"),
        ("retries = 3", "retries = -1", "retries", "0 or more"),
        ("retries = 3", "retrys = 3", "the file", "unknown keys 'retrys'; known are isolation, lake"),
        ('isolation = "serializable"', 'isolation = "none"', "isolation", "'serializable' or 'snapshot'"),
        ("max_files = 4", 'max_files = "4"', "sources.downlinks.max_files", "is '4', and must be a whole number"),
        ("max_files = 4", "max_files = 0", "sources.downlinks.max_files", "above 0"),
        ("max_files = 4", "max_file = 4", "sources.downlinks", "unknown keys 'max_file'; known are changed"),
        ('order = "any"', 'order = "size"', "sources.downlinks.order", "'any' or 'name'"),
        ('order = "any"', 'format = "xml"', "sources.downlinks.format", "'csv' or 'json' or 'parquet'"),
        ('files = ["landing/*.csv", "more/*.csv"]', 'files = "landing/*"', "sources.downlinks.format", "is missing"),
        (
            'files = ["landing/*.csv", "more/*.csv"]',
            'files = "ftp://b/*.csv"',
            "sources.downlinks.files",
            "files are on a file system, or at s3",
        ),
        ('files = ["landing/*.csv", "more/*.csv"]', "files = [1]", "sources.downlinks.files", "text or a list of texts"),
        ('order = "any"', 'table = "x"', "sources.downlinks", "either files or table"),
        ('min_age = "1m30s"', 'min_age = "soon"', "sources.downlinks.min_age", "'30s', '10m'"),
        ('read = "snapshot"', 'read = "all"', "sources.satellites.read", "'changes' or 'snapshot'"),
        ('read = "snapshot"', 'read = "snapshot"\nstart = "now"', "sources.satellites.start", "for read = 'changes' only"),
        ("[sources.seen]", '[sources."a b"]', "sources.a b", "as in SQL"),
        ('python = "shapes:shape"', 'python = "shapes"', "steps.shaped.python", "'module:function'"),
        ('python = "shapes:shape"', 'python = "shapes:shape"\nsql = "SELECT 1"', "steps.shaped", "not both"),
        ('inputs = "joined"', 'inputs = "later"', "steps.shaped.inputs", "before it come downlinks, joined"),
        ('name = "shaped"', 'name = "joined"', "steps.joined", "has the name of a source"),
        ('otherwise = "drop"', 'otherwise = "die"', "steps.joined.expect.positive.otherwise", "'drop' or 'fail' or 'warn'"),
        ('otherwise = "drop"', 'otherwise = "warn"', "steps.joined.expect.positive.quarantine", "for otherwise = 'drop' only"),
        ('from = "shaped"', 'from = "nobody"', "outputs.telemetry.readings.from", "may be downlinks, joined"),
        ('mode = "merge"', 'mode = "upsert"', "outputs.telemetry.readings.mode", "'overwrite where'"),
        ('mode = "merge"', 'mode = "append"', "outputs.telemetry.readings.on", "only there"),
        ('on = "id"', "", "outputs.telemetry.readings.on", "is needed there"),
        ('on = "id"', 'on = "id"\nwhere = "x = 1"', "outputs.telemetry.readings.where", "'overwrite where' only"),
        ('table = "telemetry.readings"\nfrom', 'table = "_tiltyard.x"\nfrom', "outputs._tiltyard.x", "reserved for tables of Tiltyard"),
        ('kind = "compact"', 'kind = "vacuum"', "maintenance.small_files.kind", "'cleanup' or 'compact' or 'index'"),
        ('kind = "compact"', 'kind = "index"', "maintenance.small_files.column", "is needed for kind = 'index'"),
        ('kind = "compact"', 'kind = "cleanup"', "maintenance.small_files.tables", "not for cleanup"),
        ('every = "10m"', 'every = "10 minutes"', "maintenance.small_files.every", "a span of time"),
        ('[spark]\nmaster = "local[1]"', "[spark]\nmaster = [1]", "spark.master", "must be text"),
        ("[sources.seen]", "[sources]\nseen = 1\n[sources.other]", "sources.seen", "must be a table"),
        ("[sources.seen]", "[sources.downlinks]", "", "not TOML"),
    ],
)
def test_errors_name_file_key_and_what_is_allowed(before: str, after: str, key: str, said: str) -> None:
    assert GOOD.count(before) >= 1
    with pytest.raises(ty.InvalidInput) as caught:
        spec_of(GOOD.replace(before, after, 1))
    text = str(caught.value)
    assert text.startswith("p.toml")
    assert key in text
    assert said in text
    assert len(text) < 300


def test_a_pipeline_without_anything_to_do_is_refused() -> None:
    with pytest.raises(ty.InvalidInput, match="nothing to do"):
        spec_of('name = "idle"')
    with pytest.raises(ty.InvalidInput, match="nowhere to come from"):
        spec_of('name = "idle"\n[[outputs]]\ntable = "t"\nfrom = "s"')


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ty.NotFound, match="no pipeline at"):
        Pipeline.load(tmp_path / "p.toml")
    (tmp_path / "p.toml").write_text(
        GOOD.replace('sql = "SELECT * FROM downlinks JOIN satellites USING (satellite)"', 'sql_file = "a.sql"')
    )
    with pytest.raises(ty.InvalidInput, match=r"steps.joined.sql_file cannot be read"):
        Pipeline.load(tmp_path / "p.toml")
    (tmp_path / "a.sql").write_text("SELECT * FROM downlinks")
    assert Pipeline.load(tmp_path / "p.toml").spec.steps[0].sql == "SELECT * FROM downlinks"


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("1d12h", 129600), ("1w", 604800)])
def test_spans(text: str, seconds: int) -> None:
    assert parse_span(text, "every").total_seconds() == seconds

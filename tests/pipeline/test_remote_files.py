"""Sources in an object store: each file once, bad ones set apart, changed ones noticed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiltyard as ty
from tests.support.pipelines import SCHEMA, Bench
from tests.support.servers import S3Server, seaweedfs
from tiltyard.interfaces import ObjectStore
from tiltyard.pipeline import FileSource, Output, Pipeline, PipelineSpec
from tiltyard.pipeline.remote_files import _expression, _fixed
from tiltyard.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("s3")) as server:
        yield server


def lines(ids: Iterable[int]) -> bytes:
    return b"".join(json.dumps({"id": number, "satellite": "a", "value": 1.0}).encode() + b"\n" for number in ids)


def copied(bench: Bench, pattern: str, kind: Any = "json", **more: Any) -> Pipeline:
    source = FileSource("files", (pattern,), kind, SCHEMA, file_column="file", **more)
    return Pipeline(PipelineSpec("copy", directory=bench.directory, sources=(source,), outputs=(Output("t", "files"),)))


def ids_of(bench: Bench) -> list[tuple[int, str]]:
    with bench.lake() as lake:
        return sorted((row["id"], row["file"]) for row in lake.table("t").to_arrow().to_pylist())


def test_files_of_a_bucket_go_through_once(bench: Bench, spark: SparkSession, seaweedfs_server: S3Server) -> None:
    options, bucket, home = seaweedfs_server.storage_options, "landing", "in"
    seaweedfs_server.create_bucket(bucket)
    store = open_store(f"s3://{bucket}", storage_options=options)
    store.put(f"{home}/a.json", lines([1, 2]))
    store.put(f"{home}/deep/b.json", lines([3]))
    store.put(f"{home}/_hidden.json", lines([9]))
    store.put(f"{home}/c.txt", b"no json")
    pipeline = copied(bench, f"s3://{bucket}/{home}/**/*.json", storage=options, quarantine="bad")
    assert pipeline.run(spark).rows_out == 3
    assert pipeline.run(spark).status == "nothing to do"
    store.put(f"{home}/deep/d.json", lines([4]))
    store.put(f"{home}/e.json", b'{"id": ')
    report = pipeline.run(spark)
    assert (report.rows_out, report.quarantine) == (1, {"bad": 1})
    assert ids_of(bench) == [(1, "a.json"), (2, "a.json"), (3, "b.json"), (4, "d.json")]
    secret = options["aws_secret_access_key"]
    with bench.lake() as lake:
        (bad,) = lake.table("bad").to_arrow().to_pylist()
        assert bad["file"] == f"s3://{bucket}/{home}/e.json"
        kept = json.dumps([row["report"] for row in ty.pipeline.runs(lake)])
    assert secret not in repr(pipeline.spec) + kept + bad["reason"]


def test_a_file_that_changes_is_noticed(bench: Bench, spark: SparkSession) -> None:
    store = open_store("memory://landing-changes")
    store.put("in/a.json", lines([1]))
    pipeline = copied(bench, "memory://landing-changes/in/*.json")
    pipeline.run(spark)
    store.delete("in/a.json")
    store.put("in/a.json", lines([1, 2]))
    with pytest.raises(ty.InvalidInput, match=r"memory://landing-changes/in/a.json changed after it was consumed"):
        pipeline.run(spark)
    assert ids_of(bench) == [(1, "a.json")]


def test_a_file_that_changes_while_it_is_read_is_read_again(bench: Bench, spark: SparkSession) -> None:
    store = open_store("memory://landing-races")
    store.put("in/a.json", lines([1]))
    changed: list[ty.pipeline.Event] = []

    def change(event: ty.pipeline.Event) -> None:
        if event.point == "source read" and not changed:
            changed.append(event)
            store.delete("in/a.json")
            store.put("in/a.json", lines([7, 8]))

    report = copied(bench, "memory://landing-races/in/*.json").run(spark, observer=change)
    assert report.attempts == 2
    assert ids_of(bench) == [(7, "a.json"), (8, "a.json")]


def test_parquet_and_headers(bench: Bench, spark: SparkSession) -> None:
    store: ObjectStore = open_store("memory://landing-kinds")
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [5], "satellite": ["p"], "value": [0.5]}), out)
    store.put("in/a.parquet", out.getvalue().to_pybytes())
    store.put("in/b.csv", b"value,id,satellite\n1.5,6,c\n")
    for kind, expected in (("parquet", 1), ("csv", 2)):
        spec = copied(bench, f"memory://landing-kinds/in/*.{kind}", kind).spec
        Pipeline(PipelineSpec(kind, directory=bench.directory, sources=spec.sources, outputs=spec.outputs)).run(spark)
        assert len(ids_of(bench)) == expected


@pytest.mark.parametrize(
    "pattern", ["in/*.json", "in/**/*.json", "in/2026-??/[ab]*.json", "in/[!x]/a.json", "in/a.json", "**/x+y(1).json", "in/*/*"]
)
def test_patterns_are_those_of_file_systems(bench: Bench, pattern: str) -> None:
    """The same files as a file system gives for the same pattern, below a directory that all of them share."""
    names = [
        "in/a.json",
        "in/b.txt",
        "in/deep/a.json",
        "in/2026-11/a.json",
        "in/2026-11/c.json",
        "in/y/a.json",
        "in/x/a.json",
        "x+y(1).json",
    ]
    for name in names:
        path = bench.directory / "disk" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    disk = {path.relative_to(bench.directory / "disk").as_posix() for path in (bench.directory / "disk").glob(pattern) if path.is_file()}
    found = {name for name in names if re.fullmatch(_expression(pattern), name)}
    assert found == disk
    assert all(name.startswith(_fixed(pattern)) for name in found)


def test_patterns_without_a_place_are_refused(bench: Bench) -> None:
    for pattern in ("s3://bucket", "s3://*/a.json"):
        with pytest.raises(ty.InvalidInput, match="must name a bucket and files in it"):
            copied(bench, pattern).plan()
    with pytest.raises(ty.InvalidInput, match="files are on a file system, or at s3"):
        copied(bench, "ftp://host/a.json")

"""Events of OpenLineage: what a run read and wrote, to a real server or a file; a server that is away stops no run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

import tiltyard as ty
from tests.support.pipelines import QUARANTINE, READINGS, TOTALS, Bench
from tiltyard.pipeline import Output, Pipeline, Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """A server that keeps what it gets: path, token, event."""
    got: list[tuple[str, str, Any]] = []

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers.get("Authorization", ""), json.loads(body)))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with HTTPServer(("127.0.0.1", 0), Keeper) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}", got
        made.shutdown()
        thread.join()


def test_what_a_run_read_and_wrote(
    bench: Bench, spark: SparkSession, server: tuple[str, list[tuple[str, str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = server
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "secret-of-lineage")
    bench.downlink("one", range(1, 12))
    spec = bench.pipeline(lineage=url).spec
    report = Pipeline(spec).run(spark)
    assert [(path, event["eventType"]) for path, _, event in got] == [("/api/v1/lineage", "START"), ("/api/v1/lineage", "COMPLETE")]
    assert {token for _, token, _ in got} == {"Bearer secret-of-lineage"}
    event = got[1][2]
    assert event["run"]["runId"] == report.run
    assert event["inputs"][0]["name"] == str(bench.directory / "landing/*.json")
    assert event["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 11
    rows = {output["name"]: output["outputFacets"]["outputStatistics"]["rowCount"] for output in event["outputs"]}
    assert rows == {READINGS: 10, TOTALS: 1, QUARANTINE: 1}
    assert Pipeline(spec).run(spark).status == "nothing to do"
    assert len(got) == 2, "a run that had nothing to do is no event"
    bench.downlink("two", [12])
    broken = replace(spec, steps=(*spec.steps, Step("bad", "SELECT nowhere FROM readings")), outputs=(*spec.outputs, Output("bad", "bad")))
    with pytest.raises(ty.InvalidInput):
        Pipeline(broken).run(spark)
    assert (got[-1][2]["eventType"], "nowhere" in got[-1][2]["run"]["facets"]["errorMessage"]["message"]) == ("FAIL", True)
    assert "secret-of-lineage" not in json.dumps([event for _, _, event in got])


def test_a_file_and_a_server_that_is_away(bench: Bench, spark: SparkSession) -> None:
    bench.downlink("one", [1])
    Pipeline(bench.pipeline(lineage="lineage.jsonl").spec).run(spark)
    kept = [json.loads(line) for line in (bench.directory / "lineage.jsonl").read_text().splitlines()]
    assert [event["eventType"] for event in kept] == ["START", "COMPLETE"]
    bench.downlink("two", [2])
    report = Pipeline(bench.pipeline(lineage="http://127.0.0.1:9").spec).run(spark)
    assert report.status == "committed"
    assert "its lineage was not sent" in report.notes[0]

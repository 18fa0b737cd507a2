"""The benchmark of peers in small, with those that are in our own environment: every case runs and counts its rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import pages, peers
from bench.limits import LIMITS
from bench.peer_processes import Sites
from tests.support.proving import pick

SMALL = "--commits 6 --writers 2 --on-stores 2 --seconds 0.5 --files 50 --rows 1000 --pairs 3 --json"


def test_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    cases = pick(["serial", "limits"], [case for case in peers.CASES if case != "own"])  # runs what ``shared`` runs
    assert peers.main(["--only", "tiltyard", "pylance", "--cases", *cases, *SMALL.split()]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["cases"]) == cases
    figures = [figure for case in told["cases"].values() for figure in case["figures"]]
    found = {(figure["case"], figure["peer"]): figure for figure in figures}
    for peer in ("tiltyard", "pylance"):
        assert {case for case, name in found if name == peer} >= pick(
            {"serial"}, {"serial", "open", "shared", "wide", "upsert", "deletes", "s3", "s3-far"}
        )
    assert {peer for case, peer in found if case == "limits"} == set(LIMITS)
    if "pairs" in cases:
        assert {peer for case, peer in found if case == "pairs"} == {"tiltyard", "tiltyard-postgres"}, "pylance has no such transactions"
    assert all(figure["p50_ms"] > 0 for figure in figures)
    assert sum(figure["failed"] for figure in figures if figure["peer"] == "tiltyard") == 0
    assert found["serial", "tiltyard"]["done"] == 6
    assert [case["problems"] for case in told["cases"].values()] == [[]] * len(cases)
    assert all(case["before"]["load"] for case in told["cases"].values())
    check_page(told)


def check_page(told: dict[str, Any]) -> None:
    blocks = pages.peer_blocks(told)
    assert blocks["peers-serial"].count("\n") == 4, "a line for each, and two for the header"
    assert "PostgreSQL commit" in blocks["peers-limits"]
    for case, measured in told["cases"].items():
        assert f"| {case} |" in blocks["peers-run"], "each case says under what load it was measured"
        assert f"{measured['before']['load'][0]:g}, {measured['after']['load'][0]:g}" in blocks["peers-run"]


def test_writers_on_an_object_store_in_small(tmp_path: Path) -> None:
    extent = replace(peers.QUICK, seconds=0.1, on_stores=(2,))
    [figure] = [figure for step in peers.Bench(Sites(""), ["tiltyard"], tmp_path, extent, "").s3_far() for figure in step()]
    assert (figure.case, figure.size, figure.failed) == ("s3-far", 2, 0)
    assert figure.done >= 2
    assert figure.p50_ms > 2 * 1000 * peers.FAR, "each append takes two rounds of requests, each of them delayed"


def test_rows_that_are_missing_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = Sites.run

    def short(self: Sites, peer: str, work: str, *given: Any, **job: Any) -> dict[str, Any]:
        told = real(self, peer, work, *given, **job)
        return {"rows": told["rows"] - 1} if work == "count" else told

    monkeypatch.setattr(Sites, "run", short)
    with pytest.raises(AssertionError, match="acknowledged"):
        peers.Bench(Sites(""), ["tiltyard"], tmp_path, replace(peers.QUICK, seconds=0.2), "").writers("tiltyard", 1, shared=True)

"""The benchmark of object stores: a short run of it, and what its proxy sees."""

from __future__ import annotations

import json

import pytest

from bench import object_store


def test_a_short_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert object_store.main(["--delays", "5", "--writers", "1", "2x2", "--seconds", "1", "--appends", "3", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [(figure["kind"], figure["writers"]) for figure in figures] == [
        *(("ours", "1"), ("pylance", "1")),
        *(("ours", "2x2"), ("pylance", "2x2")),
    ]
    alone = figures[0]
    assert (alone["requests"]["PUT"], alone["requests"]["CREATE"]) == (2.0, 1.0)
    assert alone["p50_ms"] > 10
    assert all(figure["per_second"] > 0 for figure in figures)
    assert figures[2]["failed"] == 0

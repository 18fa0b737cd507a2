"""The benchmark of many writers in small: it counts every acknowledged row, and none of ours fails."""

from __future__ import annotations

import json

import pytest

from bench import writers
from tests.support.proving import pick


def test_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    assert writers.main(["--writers", "3", "--seconds", "1", "--rounds", "1", "--beside", "1", "--json"]) == 0
    (figure,) = json.loads(capsys.readouterr().out)
    assert figure["writers"] == 4
    assert figure["kind"] == "both"
    assert figure["per_second"] > 0
    assert figure["versions"] > 0


def test_no_append_of_ours_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Two and five writers in closed loops, by the default options: compatible commits never fail against each other."""
    assert writers.main(["--writers", "2", "5", "--seconds", pick("1", "4"), "--rounds", "1", "--ours-only"]) == 0
    assert capsys.readouterr().out.count("failed 0") == 2


def test_a_batching_writer_goes_on_before_its_receipts(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--writers", "1", "--batching", "64", "--durability", "fsync", "--seconds", "1", "--rounds", "1", "--ours-only", "--json"]
    assert writers.main(given) == 0
    (figure,) = json.loads(capsys.readouterr().out)
    assert figure["kind"] == "batching"
    assert figure["failed"] == 0
    assert figure["versions"] > 0

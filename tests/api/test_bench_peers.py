"""The benchmark of peers in small, with those that are in our own environment: every case runs and counts its rows."""

from __future__ import annotations

import json

import pytest

from bench import peers


def test_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "tiltyard", "pylance", "--commits", "6", "--writers", "2", "--seconds", "0.5", "--rows", "1000", "--json"]
    assert peers.main(arguments) == 0
    figures = json.loads(capsys.readouterr().out)
    cases = {(figure["case"], figure["peer"]) for figure in figures}
    for peer in ("tiltyard", "pylance"):
        for case in (
            "6 appends",
            "open the latest of 6",
            "2 writers, one table",
            "2 writers, tables of their own",
            "upsert 100 into 1,000",
        ):
            assert (case, peer) in cases
    assert {case for case, peer in cases if peer == "limit"} == {"create + rename", "create + fsync", "SQLite commit"}
    assert all(figure["p50_ms"] > 0 for figure in figures)
    assert sum(figure["failed"] for figure in figures if figure["peer"] == "tiltyard") == 0


def test_rows_that_are_missing_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    real = peers.run

    def short(peer: str, work: str, *given: object, **job: object) -> dict[str, object]:
        told = real(peer, work, *given, **job)  # type: ignore[arg-type]
        return {"rows": told["rows"] - 1} if work == "count" else told

    monkeypatch.setattr(peers, "run", short)
    with pytest.raises(AssertionError, match="acknowledged"):
        peers.writers("tiltyard", tmp_path, 1, 0.2, shared=True)  # type: ignore[arg-type]

"""Figures of peers come case by case: each takes its own place in the page, and says under what load it was measured."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench import pages, peers
from bench.circumstances import circumstances


def _case(case: str, load: float, *figures: peers.Figure) -> dict[str, object]:
    now = {**circumstances(), "load": [load, 0, 0]}
    return {"before": now, "after": now, "extent": asdict(peers.FULL), "problems": [], "figures": [asdict(one) for one in figures]}


def test_a_case_takes_the_place_of_its_own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "RESULTS", tmp_path / "results" / "peers.json")
    figure = peers.Figure("shared", "tiltyard", 8, 500.0, 2.0, 9.0, 0.9, 1500, 0)
    peers._keep("shared", _case("shared", 0.25, figure))
    peers._keep("limits", _case("limits", 3.0, replace(figure, case="limits", peer="create + fsync")))
    peers._keep("shared", _case("shared", 0.5, replace(figure, per_second=777.0)))
    told = json.loads(peers.RESULTS.read_text())
    assert list(told["cases"]) == ["limits", "shared"], "in the order of the page"
    blocks, plots = pages.peer_blocks(told), pages.peer_plots(told)
    assert "777/s" in blocks["peers-shared"]
    assert "500/s" not in blocks["peers-shared"]
    assert "| shared |" in blocks["peers-run"]
    assert "0.5, 0.5" in blocks["peers-run"]
    assert blocks["peers-pairs"] == "Not measured yet.\n"
    assert set(plots) == {"peers-shared"}
    page = (pages.REFERENCE / "benchmarks.md").read_text()
    assert "777/s" in pages.written(page, blocks)


def test_only_figures_of_all_peers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "RESULTS", tmp_path / "peers.json")
    monkeypatch.setattr(peers, "figures", lambda *_: iter(()))
    peers.main(["--cases", "limits", "--only", "tiltyard"])
    peers.main(["--cases", "limits", "--quick"])
    assert not peers.RESULTS.exists()
    peers.main(["--cases", "limits", "--seconds", "1"])
    told = json.loads(peers.RESULTS.read_text())["cases"]
    assert list(told) == ["limits"]
    assert told["limits"]["extent"]["seconds"] == 1.0, "and how much was measured is said"

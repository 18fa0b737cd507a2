"""Many stock clients and ours on one table at once: every row is there once, and nobody starves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable
from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from bench.served_writers import TARGET, run_writers
from tests.support.proving import PROVING, pick
from tests.support.served import served_here
from tiltyard.server import table_turns

ROWS = pa.table({"id": [1]})


def test_every_row_of_every_writer_is_there_once(tmp_path: Path) -> None:
    run = run_writers(tmp_path / "lake", pick(3, 8), pick(1, 2), pick(8, 50))
    print(run)
    assert run.is_whole
    if PROVING:
        assert run.share >= TARGET


def test_a_lake_by_the_address_of_the_server_stands_in_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer waits while another has lost; its version has its name meanwhile, so whoever comes back builds on it."""
    for patience in ("SHORTEST_PATIENCE", "LONGEST_HOLD"):
        monkeypatch.setattr(table_turns, patience, 60.0)
    with ty.Lake.open(tmp_path / "lake", durability="os") as home, served_here(home) as (url, server):
        home.create_table("t", ROWS)
        home.create_table("free", ROWS)
        versions = Path(home.table("t")._access.lance_uri) / "_versions"
        turns, seen = server.turns, list[tuple[tuple[str, ...], bool, int]]()
        begin, won = turns.begin, turns.won

        def begun(names: tuple[str, ...], peer: Hashable) -> None:
            if "t" in names:
                begin(["t"], "another")
                turns.failed(["t"], "another", lost=True)
            begin(names, peer)

        async def answered(names: tuple[str, ...], peer: Hashable) -> None:
            task = asyncio.ensure_future(won(names, peer))
            await asyncio.sleep(0)
            seen.append((names, task.done(), len([*versions.glob("*.manifest")])))
            turns.forget("another")
            await task

        monkeypatch.setattr(turns, "begin", begun)
        monkeypatch.setattr(turns, "won", answered)
        with ty.Lake.open(url, durability="os") as lake:
            lake.table("t").append(pa.table({"id": [2]}))
            lake.table("free").append(ROWS)
            with lake.transaction() as tx:
                tx.table("t").append(pa.table({"id": [3]}))
                tx.table("free").append(ROWS)
        assert [(sorted(names), at_once, named) for names, at_once, named in seen] == [
            (["t"], False, 2), (["free"], True, 2), (["free", "t"], False, 3)
        ]  # fmt: skip
        assert sorted(home.table("t").to_arrow()["id"].to_pylist()) == [1, 2, 3]
        assert home.check().ok


def test_who_lost_and_comes_again_is_known_by_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of one process that share a lake are writers of their own; each keeps its connection."""
    with ty.Lake.open(tmp_path / "lake", durability="os") as home, served_here(home) as (url, server):
        home.create_table("t", ROWS)
        turns, peers = server.turns, dict[Hashable, int]()
        begin = turns.begin

        def begun(names: tuple[str, ...], peer: Hashable) -> None:
            peers[peer] = peers.get(peer, 0) + 1
            begin(names, peer)

        monkeypatch.setattr(turns, "begin", begun)
        with ty.Lake.open(url, durability="os") as lake:
            together = threading.Barrier(3)

            def write() -> None:
                for _ in range(2):
                    together.wait(60)
                    lake.table("t").append(ROWS)

            writers = [threading.Thread(target=write) for _ in range(3)]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join(60)
        assert home.table("t").count_rows() == 7
        assert len(peers) == 3
        assert min(peers.values()) >= 2

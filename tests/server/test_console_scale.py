"""Large lakes: what a page reads is bounded by what it shows, however long the history and however wide the table."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.console_client import ConsoleClient, PageParts, console
from tests.support.proving import pick
from tiltyard.catalog.lake_values import MAIN, Change, Snapshot, TableHead, VersionStep
from tiltyard.catalog.records import Body, Writes
from tiltyard.catalog.snapshot_index import cut_stride
from tiltyard.catalog.value_codec import BUCKET, cut_key, head_to_body, snapshot_key, snapshot_to_body, table_key, tip_key
from tiltyard.server.console.lake_viewer import SEARCHED
from tiltyard.testing.counting_records import CountingRecords

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
TABLES = 200


def long_history(lake: ty.Lake, snapshots: int) -> None:
    """Writes records of so many snapshots over 200 tables, each a transaction over three of them, every other one rebased."""
    put: dict[str, Body] = {}
    versions = [1] * TABLES
    for number in range(1, snapshots + 1):
        changes = []
        for table in {number % TABLES, number * 7 % TABLES, number * 13 % TABLES}:
            base = versions[table]
            versions[table] += 1
            step = VersionStep(versions[table], f"_versions/{versions[table]}.manifest", None, f"{number}-{table}", "Append")
            changes.append(Change(f"id{table}", "write", f"many$table_{table:03d}", base, max(base - number % 2, 1), (step,)))
        at = BEGAN + timedelta(seconds=number)
        snapshot = Snapshot(number, MAIN, at, f"transaction-{number}", tuple(changes), f"author {number % 9}", "a message", base=number - 1)
        put[snapshot_key(MAIN, number)] = snapshot_to_body(snapshot)
        if (number + 1) % (BUCKET * cut_stride(TABLES)) == 0:
            put[cut_key(MAIN, (number + 1) // BUCKET)] = {"tables": [head_to_body(head) for head in heads(versions)]}
    put |= {table_key(MAIN, head.id): head_to_body(head) for head in heads(versions)}
    tip = tip_key(MAIN)
    lake.catalog.records.transact(
        [tip], [], lambda found: Writes(None, {**put, tip: {**found[tip], "snapshot": snapshots, "at": BEGAN.isoformat()}})
    )


def heads(versions: list[int]) -> list[TableHead]:
    return [
        TableHead(f"id{number}", f"many$table_{number:03d}", f"{number}.lance", version, version) for number, version in enumerate(versions)
    ]


def counted(lake: ty.Lake) -> CountingRecords:
    records = CountingRecords(lake.catalog.records)
    lake.catalog.records = records
    return records


@pytest.mark.parametrize("snapshots", [1_000, pick(3_000, 100_000)])
def test_a_page_of_a_long_history_reads_a_page(tmp_path: Path, snapshots: int) -> None:
    with ty.Lake.open(tmp_path / "lake") as lake:
        long_history(lake, snapshots)
        records = counted(lake)
        with console(lake) as client:
            for path, most in (("/", 900), (f"/?before={snapshots // 2}&span=160", 900), (f"/transactions/main/{snapshots // 2}", 2_600)):
                records.reset()
                page = client.text(path)
                assert records.found < most, path
                assert sum(records.calls.values()) < 120, path
                assert len(page) < 240_000, path
                PageParts(page).check()
            records.reset()
            page = client.text("/?author=unheard-of")
            assert records.found < 2 * SEARCHED  # read in steps that grow
            assert ("Older" in page) == (snapshots > SEARCHED)


def test_many_tables_share_a_lane(tmp_path: Path) -> None:
    with ty.Lake.open(tmp_path / "lake") as lake:
        long_history(lake, 300)
        with console(lake) as client:
            words = PageParts(client.text("/?span=160")).words
            others = re.search(r"(\d+) more tables", words)
            assert others is not None
            assert int(others[1]) > 100
            assert "200 tables on branch main" in PageParts(client.text("/tables")).words


def test_wide_tables_and_large_cells(tmp_path: Path) -> None:
    wide = pa.table({f"column_{number}": [number, -number] for number in range(2_000)})
    large = pa.table({"id": [1, 2, 3], "text": ["x" * 1_000_000] * 3, "bytes": [b"y" * 1_000_000] * 3, "list": [[1.5] * 100_000] * 3})
    with ty.Lake.open(tmp_path / "lake") as lake:
        lake.create_table("wide", wide)
        lake.create_table("large", large, primary_key=["id"])
        lake.table("large").update({"text": "'short'"}, where="id = 1")
        lake.table("wide").drop_columns([f"column_{number}" for number in range(700, 1_200)])
        lake.table("large").settings.update_config({"aws_secret_access_key": "hunter2hunter2", "owner": "ada"})
        with console(lake) as client:
            _wide(client, "?at=1")
            for path in ("/tables/large", "/tables/large?view=diff&first=2&second=3", "/tables/large?view=schema"):
                assert len(client.text(path)) < 20_000, path
            assert "x" * 120 + "…" in client.text("/tables/large")
            dropped = client.text("/tables/wide?view=diff&first=1&second=4")
            assert len(dropped) < 60_000
            assert "And 300 more differences." in dropped
            settings = client.text("/tables/large?view=diff&first=3&second=5")
            assert "config.owner" in settings
            assert "hunter2" not in settings + client.text("/tables/large?view=schema")


def _wide(client: ConsoleClient, at: str) -> None:
    page = client.text(f"/tables/wide{at}")
    assert len(page) < 30_000
    assert "1–30 of 2,000" in page
    last = client.text(f"/tables/wide{at}&column=1980")
    assert "column_1999" in last
    assert "-1,999" not in last
    assert "-1999" in last
    assert len(client.text(f"/tables/wide{at}&view=schema")) < 60_000
    assert "column_1999" in client.text(f"/tables/wide{at}&view=schema&from=1800")
    assert client.get(f"/tables/wide{at}&column=2000").status == 400

"""Upkeep by the server: which tables and when, beside writers, once for several servers, stopped in the middle, and what is refused."""

from __future__ import annotations

import json
import signal
import threading
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import tiltyard as ty
from tests.support.in_line import until
from tests.support.served import served
from tiltyard.catalog.records import Writes
from tiltyard.cli.app import app
from tiltyard.server.upkeep_policies import UpkeepPolicy, UpkeepSchedule, read_policies
from tiltyard.server.upkeep_runs import UPKEEP, UpkeepStep, UpkeepThread, claim, record_key, run_policy

FILE = """
[small-files]
do = "compact"
tables = ["sales"]
every = "1s"
min_fragments = 4

[search]
do = "index"
every = "1s"

[old]
do = "cleanup"
every = "1s"
keep_snapshots = 2
"""


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    file = tmp_path / "upkeep.toml"
    file.write_text(FILE, encoding="utf-8")
    return file


def fill(lake: ty.Lake, name: str, times: int) -> ty.LakeTable:
    table = lake.create_table(name, pa.table({"id": pa.array([0], pa.int64())}))
    for number in range(1, times):
        table.append(pa.table({"id": pa.array([number], pa.int64())}))
    return table


def fragments(lake: ty.Lake, name: str) -> int:
    return len(lake.table(name).layout.fragments)


WRONG = {
    "": "no policy",
    "x = 1": "[x] is a table",
    '[a]\ndo = "vacuum"\nevery = "1h"': "[a] do is one of compact, index, cleanup",
    '[a]\ndo = "compact"': "[a] every or at is needed, and not both",
    '[a]\ndo = "compact"\nevery = "1h"\nat = "03:00"': "[a] every or at is needed, and not both",
    '[a]\ndo = "compact"\nevery = "often"': "[a] every is a span of time",
    '[a]\ndo = "compact"\nevery = "0s"': "[a] every is a second at least",
    '[a]\ndo = "compact"\nevery = 3600': "[a] every is a span of time",
    '[a]\ndo = "compact"\nat = "25:00"': "[a] at is a time of the day",
    '[a]\ndo = "compact"\nat = 7': "[a] at is a time of the day",
    '[a]\ndo = "compact"\nevery = "1h"\nmin_fragment = 4': "[a] min_fragment is not known for compact",
    '[a]\ndo = "compact"\nevery = "1h"\nmin_fragments = true': "[a] min_fragments is a whole number",
    '[a]\ndo = "compact"\nevery = "1h"\nmin_fragments = 0': "[a] min_fragments is a whole number",
    '[a]\ndo = "compact"\nevery = "1h"\ndeletions = 2': "[a] deletions is a share",
    '[a]\ndo = "compact"\nevery = "1h"\ntables = []': "[a] tables is a name",
    '[a]\ndo = "compact"\nevery = "1h"\ntables = ["../x"]': "[a] tables has a name that no table can have",
    '[a]\ndo = "index"\nevery = "1h"\nmerge = 1': "[a] merge is true or false",
    '[a]\ndo = "cleanup"\nevery = "1h"': "[a] older_than or keep_snapshots is needed",
    '[a]\ndo = "cleanup"\nevery = "1h"\nkeep_snapshots = 2\ntables = ["sales"]': "[a] tables is not known for cleanup",
    "[a": "cannot be read",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_file_is_understood_in_full_or_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "u.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ty.InvalidInput) as refused:
        read_policies(file)
    assert WRONG[text] in str(refused.value)


def test_when_something_is_due() -> None:
    now = datetime(2026, 11, 17, 4, 0, tzinfo=UTC)
    hourly, nightly = UpkeepSchedule(every=timedelta(hours=1)), UpkeepSchedule(at=time(3, 30))
    assert hourly.next_after(None, now) == now
    assert hourly.next_after(now - timedelta(hours=3), now) == now - timedelta(hours=2)
    assert nightly.next_after(None, now) == datetime(2026, 11, 18, 3, 30, tzinfo=UTC)
    assert nightly.next_after(now - timedelta(hours=1), now) == datetime(2026, 11, 17, 3, 30, tzinfo=UTC)
    assert nightly.next_after(now, now) == datetime(2026, 11, 18, 3, 30, tzinfo=UTC)


def test_policies_say_which_tables_and_what(tmp_path: Path, policies: Path) -> None:
    compact, index, cleanup = read_policies(policies)
    with ty.Lake.open(tmp_path / "lake") as lake:
        for name in ("sales.orders", "sales2.orders", "logs"):
            fill(lake, name, 5)
        fill(lake, "sales.few", 2)
        lake.table("logs").create_index("id", "BTREE")
        lake.table("logs").append(pa.table({"id": pa.array([9], pa.int64())}))
        before = lake.snapshot().id
        would = [step for policy in (compact, index, cleanup) for step in run_policy(lake, policy, dry_run=True)]
        assert lake.snapshot().id == before, "a dry run changed something"
        assert {step.target: step.became for step in would if step.kind == "compact"} == {"sales.orders": "would", "sales.few": "nothing"}
        assert {step.target for step in would if step.kind == "index" and step.became == "would"} == {"logs"}
        done = [step for policy in (compact, index, cleanup) for step in run_policy(lake, policy)]
        found = {(step.kind, step.target) for step in done if step.became == "done"}
        assert found == {("compact", "sales.orders"), ("index", "logs"), ("cleanup", "")}
        assert [fragments(lake, name) for name in ("sales.orders", "sales.few", "sales2.orders")] == [1, 2, 5]
        assert lake.table("logs").indices.list()[0].missing_rows == 0
        assert [entry.author for entry in lake.history()[:2]] == ["upkeep", "upkeep"]
        assert {step.became for step in run_policy(lake, compact)} == {"nothing"}
        assert lake.check().ok


def test_what_is_due_is_taken_once_by_many_servers(tmp_path: Path) -> None:
    policy = UpkeepPolicy("p", "compact", UpkeepSchedule(every=timedelta(hours=1)))
    nightly = UpkeepPolicy("n", "compact", UpkeepSchedule(at=time(3, 30)))
    with ty.Lake.open(tmp_path / "lake") as lake:
        taken: list[object] = []
        threads = [threading.Thread(target=lambda: taken.append(claim(lake, policy))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert taken.count(None) == 1
        assert all(isinstance(due, datetime) for due in taken if due is not None)
        first = claim(lake, nightly)
        assert first is not None, "it waits for its time of the day"
        assert claim(lake, nightly) == first
        key = record_key(nightly)
        earlier = {**lake.catalog.records.get([key])[key], "at": (datetime.now(UTC) - timedelta(days=2)).isoformat()}
        lake.catalog.records.transact([key], [], lambda found: Writes(None, {key: earlier}))
        assert claim(lake, nightly) is None, "a time of the day went by while no server was there"
        assert lake.check().ok


def test_what_fails_at_one_table_does_not_keep_it_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: dict[str, Exception] = {
        "a": ty.RetryableConflict("no", operation="Rewrite"),
        "b": RuntimeError("a panic of the library at s3://user:secret@host/x"),
    }
    with ty.Lake.open(tmp_path / "lake") as lake:
        for name in ("a", "b", "c"):
            fill(lake, name, 4)
        compact = ty.LakeTable.compact

        def failing(self: ty.LakeTable, **given: Any) -> Any:
            if self.name in errors:
                raise errors[self.name]
            return compact(self, **given)

        monkeypatch.setattr(ty.LakeTable, "compact", failing)
        policy = UpkeepPolicy("p", "compact", UpkeepSchedule(every=timedelta(hours=1)), settings={"min_fragments": 2})
        steps = {step.target: step for step in run_policy(lake, policy)}
        assert {name: step.became for name, step in steps.items()} == {"a": "put off", "b": "failed", "c": "done"}
        assert "secret" not in steps["b"].told


def test_a_stop_ends_between_two_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ty.Lake.open(tmp_path / "lake") as lake:
        for name in ("a", "b", "c"):
            fill(lake, name, 4)
        seen: list[UpkeepStep] = []
        policy = UpkeepPolicy("p", "compact", UpkeepSchedule(every=timedelta(hours=1)), settings={"min_fragments": 2})

        def note(step: UpkeepStep) -> None:
            seen.append(step)
            thread.stop()

        thread = UpkeepThread(lake, [policy], note)
        thread.start()
        assert thread.join(60)
        assert [step.target for step in seen] == ["a"]
        assert (fragments(lake, "a"), fragments(lake, "b")) == (1, 4)
        clean = UpkeepPolicy("c", "cleanup", UpkeepSchedule(every=timedelta(hours=1)), settings={"keep_snapshots": 1})
        asked = iter([False, True])
        steps = list(run_policy(lake, clean, stopping=lambda: next(asked, True)))
        assert [step.became for step in steps] == ["put off"]
        assert [step.became for step in run_policy(lake, clean)] == ["done"]
        assert lake.check().ok


def test_a_server_keeps_its_lake_in_shape_beside_writers(tmp_path: Path, policies: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    # More snapshots than come during one append: a writer whose snapshot is given up is refused.
    policies.write_text(FILE.replace("keep_snapshots = 2", "keep_snapshots = 30"), encoding="utf-8")
    with ty.Lake.open(tmp_path / "lake") as lake:
        table = fill(lake, "sales.orders", 6)
        with served(tmp_path / "lake", "--upkeep", str(policies), "--audit-log", str(audit)) as server:
            written = 6
            while "upkeep_compact" not in audit.read_text() or written < 40:
                table.append(pa.table({"id": pa.array([written], pa.int64())}))
                written += 1
                assert written < 2000, server.log()[-2000:]
            until(lambda: fragments(lake, "sales.orders") < 6 and "upkeep_cleanup" in audit.read_text())
            figures = server.get("/metrics").body.decode()
            assert 'tiltyard_upkeep_steps_total{became="done",kind="compact"}' in figures
            assert server.stop(signal.SIGTERM) == 0
        assert sorted(lake.table("sales.orders").to_arrow()["id"].to_pylist()) == list(range(written))
        assert lake.check().ok
        assert "upkeep" in {entry.author for entry in lake.history()} or lake.snapshot().id > written
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    mine = [line for line in lines if line["principal"] == "upkeep"]
    assert {line["operation"] for line in mine} == {"upkeep_compact", "upkeep_index", "upkeep_cleanup"}
    assert {line["target"] for line in mine if line["operation"] == "upkeep_compact"} == {"sales.orders"}
    assert any(line["transaction"] for line in mine)


def test_commands(tmp_path: Path, policies: Path) -> None:
    with ty.Lake.open(tmp_path / "lake") as lake:
        fill(lake, "sales.orders", 5)

    def told(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, [*words, "--json"])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.output)
        return found

    assert [policy["name"] for policy in told("upkeep", "check", str(policies))["policies"]] == ["small-files", "search", "old"]
    assert told("upkeep", "run", str(tmp_path / "lake"), str(policies), "--dry-run")["steps"][0]["became"] == "would"
    assert told("upkeep", "run", str(tmp_path / "lake"), str(policies))["steps"][0]["became"] == "done"
    with ty.Lake.open(tmp_path / "lake") as lake:
        assert fragments(lake, "sales.orders") == 1
        assert not lake.catalog.records.scan([UPKEEP]), "what was asked for by hand does not count as done by the server"

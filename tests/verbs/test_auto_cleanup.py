"""``lance.auto_cleanup.*``: what pylance does after its own commits, ours do after theirs."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.errors import InvalidInput, StorageError
from tiltyard.verbs.cleanup import auto_cleanup
from tiltyard.verbs.cleanup.auto_cleanup import PREFIX, CleanupSchedule, schedule_of

ROWS = pa.table({"id": pa.array([1], pa.int64())})
EVERY_THIRD = {f"{PREFIX}interval": "3", f"{PREFIX}older_than": "0s"}


def _versions(table: ty.TableReader) -> list[int]:
    return sorted(table.layout.versions())


def _appended(uri: Path, config: dict[str, str], count: int) -> ty.Table:
    table = ty.Table.create(uri, ROWS, durability="os", options=ty.TableOptions(config=config))
    for _ in range(count):
        table.append(ROWS)
    return table


def test_every_third_version_cleans_up(tmp_path: Path) -> None:
    table = _appended(tmp_path / "t", EVERY_THIRD, 1)
    seen = [_versions(table)]
    for _ in range(4):
        table.append(ROWS)
        seen.append(_versions(table))
    assert seen == [[1, 2], [3], [3, 4], [3, 4, 5], [6]]
    assert table.count_rows() == lance.dataset(str(tmp_path / "t")).count_rows() == 6
    assert table.check().ok


def test_what_is_kept(tmp_path: Path) -> None:
    assert _versions(_appended(tmp_path / "newest", {**EVERY_THIRD, f"{PREFIX}retain_versions": "2"}, 2)) == [2, 3]
    assert _versions(_appended(tmp_path / "young", {**EVERY_THIRD, f"{PREFIX}older_than": "1h"}, 5)) == [1, 2, 3, 4, 5, 6]
    assert _versions(_appended(tmp_path / "no rule", {f"{PREFIX}interval": "2"}, 3)) == [1, 2, 3, 4]
    table = _appended(tmp_path / "tagged", EVERY_THIRD, 0)
    table.tags.create("first", 1)
    for _ in range(2):
        table.append(ROWS)
    assert _versions(table) == [1, 3]


def test_pylance_and_we_share_the_rule(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri, auto_cleanup_options={"interval": 2, "older_than_seconds": 0})
    table = ty.Table.open(uri)
    assert schedule_of(table.settings.config) == CleanupSchedule(2, timedelta(0), None)
    table.append(ROWS)
    assert _versions(table) == [2]


def test_a_commit_stands_whatever_becomes_of_the_cleanup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ty.Table.create(
        tmp_path / "t", ROWS, durability="os", options=ty.TableOptions(config={**EVERY_THIRD, f"{PREFIX}older_than": "some time"})
    )
    with caplog.at_level(logging.WARNING, "tiltyard.cleanup"):
        table.append(ROWS)
        table.append(ROWS)
    assert "some time" in caplog.text
    assert _versions(table) == [1, 2, 3]
    table.update_config(EVERY_THIRD)

    def fails(*_: object, **__: object) -> None:
        raise StorageError("the disk is gone", name="x")

    monkeypatch.setattr(auto_cleanup, "cleanup_table", fails)
    table.append(ROWS)
    assert table.append(ROWS).version == 6
    assert _versions(table) == [1, 2, 3, 4, 5, 6]


def test_a_table_of_a_lake_is_left_to_the_lake(tmp_path: Path) -> None:
    lake = ty.Lake.open(tmp_path / "lake")
    table = lake.create_table("t", ROWS, options=ty.TableOptions(config=EVERY_THIRD))
    for _ in range(4):
        table.append(ROWS)
    assert _versions(table) == [1, 2, 3, 4, 5]
    assert lake.snapshot(1).table("t").count_rows() == 1


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("14days", timedelta(days=14)),
        ("1h 30m", timedelta(minutes=90)),
        ("3600s", timedelta(hours=1)),
        (" 2 w ", timedelta(weeks=2)),
        ("1M", timedelta(days=30.44)),
        ("1500ms", timedelta(seconds=1.5)),
    ],
)
def test_durations(text: str, age: timedelta) -> None:
    assert schedule_of({f"{PREFIX}interval": "1", f"{PREFIX}older_than": text}) == CleanupSchedule(1, age, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("interval", "0"), ("interval", "-1"), ("interval", "often"), ("interval", ""), ("older_than", "7"), ("older_than", ""),
        ("older_than", "7 fortnights"), ("older_than", "9" * 15 + "years"), ("retain_versions", "0"), ("retain_versions", "1.5"),
    ],
)  # fmt: skip
def test_values_that_say_nothing(name: str, text: str) -> None:
    config = {f"{PREFIX}interval": "1", f"{PREFIX}{name}": text}
    with pytest.raises(InvalidInput, match=f"{PREFIX}{name}"):
        schedule_of(config)

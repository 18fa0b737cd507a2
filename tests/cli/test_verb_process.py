"""The commands that change a table, as processes of their own: two at once, on a terminal, and with texts that mean harm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import typer

import tiltyard as ty
from tests.cli.conftest import Run, on_terminal, rows
from tiltyard.cli.app import app
from tiltyard.cli.column_commands import arrow_type
from tiltyard.cli.option_types import duration, pairs

SECRET = "hunter2-wJalrXUtnFEMI"
EVIL = "\x1b]0;owned\x07\x1b[31m \u202e [bold]loud[/bold]"


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    """Each appends rows of its own and both land, in whatever order."""
    ty.Table.create(tmp_path / "t", rows(0, 10), primary_key=["id"])
    started = []
    for number in (1, 2):
        pa.parquet.write_table(rows(number * 100, number * 100 + 50), tmp_path / f"{number}.parquet")
        command = [sys.executable, "-m", "tiltyard.cli", "append", str(tmp_path / "t"), str(tmp_path / f"{number}.parquet"), "--json"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    told = []
    for process in started:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, ""), out
        told.append(json.loads(out))
    assert sorted(one["version"] for one in told) == [2, 3]
    assert ty.Table.open(tmp_path / "t").count_rows() == 110


def test_a_mistake_is_no_traceback(tiltyard: Run, tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", rows(0, 10))
    done = tiltyard("delete", tmp_path / "t", "--where", "nobody = 1")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    usage = tiltyard("delete", tmp_path / "t", "--json")
    assert (usage.code, json.loads(usage.out)["kind"], usage.err) == (2, "usage", "")


def test_a_bar_for_whoever_watches_and_for_nobody_else(tiltyard: Run, tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(0, 10))
    table.append(rows(10, 20))
    before = on_terminal("compact", str(tmp_path / "t"))
    assert "compacting" in before
    assert "2 fragments became 1" in before
    table.refresh().append(rows(20, 30))
    piped = tiltyard("compact", tmp_path / "t")
    assert (piped.code, piped.err, "compacting" in piped.out) == (0, "", False)


def test_what_a_writer_chose_gives_a_terminal_no_orders(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = ty.Table.create(path, [{"text": "x"}], stable_row_ids=True, options=ty.TableOptions(config={"k": EVIL}))
    made = table.append([{"text": EVIL}], message=EVIL).transaction_id
    table.tags.create("t", metadata={"k": EVIL})
    for arguments in (
        ("diff", path, "1"),
        ("config", "list", path),
        ("config", "get", path, "k"),
        ("why", path, made),
        ("restore", path, "2", "--dry-run"),
    ):
        shown = on_terminal(*map(str, arguments))
        assert "[bold]loud[/bold]" in shown, arguments
        assert "\x1b]0;" not in shown
        assert "\x1b[31m" not in shown
        assert "\u202e" not in shown


def test_secrets_stay_unsaid(run: Run, tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", rows(0, 10))
    unreachable = [
        f"aws_secret_access_key={SECRET}",
        "aws_access_key_id=me",
        "endpoint=http://127.0.0.1:1",
        "allow_http=true",
        "client_max_retries=0",
    ]
    options = [text for one in unreachable for text in ("--storage-option", one)]
    for arguments in (
        ["delete", "s3://bucket/t", "--where", "true", *options],
        ["delete", f"s3://me:{SECRET}@bucket/t", "--where", "true"],
        ["tag", "list", "s3://bucket/t", *options, "--json"],
        ["cleanup", "s3://bucket/t", "--storage-option", SECRET],
        ["clone", str(tmp_path / "t"), f"s3://me:{SECRET}@bucket/t", *options],
    ):
        done = run(*arguments)
        assert done.code != 0
        assert SECRET not in done.out + done.err, arguments


@pytest.mark.parametrize(
    ("text", "seconds"), [("7d", 604_800), ("1d12h", 129_600), ("90m", 5_400), ("30s", 30), ("1w", 604_800), ("0s", 0)]
)
def test_spans_of_time(text: str, seconds: int) -> None:
    found = duration(text, "older_than")
    assert found is not None
    assert found.total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-1d", "1.5h", "7days", "999999999w"])
def test_what_is_no_span_of_time(text: str) -> None:
    with pytest.raises(ty.InvalidInput):
        duration(text, "older_than")


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary(),
        pa.date32(), pa.timestamp("ns"), pa.timestamp("us", "Europe/Berlin"), pa.decimal128(38, 4), pa.decimal256(50, -2), pa.binary(16),
        pa.list_(pa.int64()), pa.large_list(pa.string()), pa.list_(pa.float32(), 8), pa.list_(pa.list_(pa.decimal128(5, 2))),
    ],
    ids=str,
)  # fmt: skip
def test_types_are_read_as_arrow_writes_them(kind: pa.DataType) -> None:
    assert arrow_type(str(kind)) == kind


@pytest.mark.parametrize(
    "text", ["", "nothing", "decimal128(99, 2)", "list<>", "fixed_size_list<float>[]", "list<nothing>", "struct<x: int64>"]
)
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(ty.InvalidInput, match="is not an Arrow type"):
        arrow_type(text)


def test_every_command_is_on_its_page() -> None:
    """With an example: a line that begins with a dollar."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md").read_text()
    group: Any = typer.main.get_command(app)
    names = [
        name if not hasattr(one, "commands") else f"{name} {inner}"
        for name, one in group.commands.items()
        for inner in getattr(one, "commands", [""])
    ]
    assert len(names) > 30
    assert [name for name in names if f"$ tiltyard {name} " not in page.replace("\n", " ")] == []


def test_pairs_keep_what_follows_the_first_sign() -> None:
    assert pairs(["a=b=c", " d = "], "set") == {"a": "b=c", "d": " "}
    with pytest.raises(ty.InvalidInput, match="given twice"):
        pairs(["a=1", "a=2"], "set")

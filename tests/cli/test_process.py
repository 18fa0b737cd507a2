"""The command line as a process: entry point, exit codes, pipes, and what it must not say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import tiltyard as ty
from tests.cli.conftest import Run, on_terminal, rows

SECRET = "hunter2-wJalrXUtnFEMI"


def test_it_runs(tiltyard: Run, readings: Path) -> None:
    done = tiltyard("log", readings)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert json.loads(tiltyard("log", readings, "--json").out)["latest_version"] == 6


def test_its_version(tiltyard: Run) -> None:
    assert tiltyard("--version").out == f"tiltyard {ty.__version__}\n"


def test_a_wrong_command_line(tiltyard: Run) -> None:
    as_text = tiltyard("bogus")
    assert (as_text.code, as_text.out, as_text.err) == (2, "", "error: No such command 'bogus'. [usage]\n")
    as_json = tiltyard("log", "--json")
    assert (as_json.code, as_json.err) == (2, "")
    assert json.loads(as_json.out) == {"kind": "usage", "message": "Missing argument 'URI'."}


def test_without_a_command_it_explains_itself(tiltyard: Run) -> None:
    done = tiltyard()
    assert done.code == 2
    assert "What happened to a table" in done.out + done.err
    assert "error" not in done.err


def test_errors_are_no_tracebacks(tiltyard: Run, tmp_path: Path) -> None:
    done = tiltyard("check", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1


def test_a_reader_that_has_seen_enough(readings: Path, tmp_path: Path) -> None:
    """As with ``tiltyard cat ... | head -1``: no complaint."""
    ty.Table.create(tmp_path / "long", rows(0, 20_000))
    command = [sys.executable, "-m", "tiltyard.cli", "cat", str(tmp_path / "long"), "-n", "20000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        complaints = process.stderr.read()
        process.wait(60)
    assert complaints == b""


def test_a_terminal_gets_colours_but_not_those_of_the_table(tmp_path: Path) -> None:
    """Bytes that a table's writer chose reach no terminal as commands."""
    evil = "\x1b]0;owned\x07\x1b[31m \u202e [bold]loud[/bold]"
    table = ty.Table.create(tmp_path / "evil", [{"text": evil}], options=ty.TableOptions(message=evil, config={"k": evil}))
    assert table.transactions.describe().message == evil
    for arguments in (("log",), ("show",), ("cat",)):
        shown = on_terminal(*arguments, str(tmp_path / "evil"))
        assert "\x1b[2m" in shown, "no colour on a terminal"
        assert "\x1b]0;" not in shown
        assert "\x1b[31m" not in shown
        assert "\u202e" not in shown
        assert "[bold]loud[/bold]" in shown


def test_storage_options_are_never_shown(run: Run) -> None:
    given = [
        "aws_access_key_id=me",
        f"aws_secret_access_key={SECRET}",
        f"unsuspicious={SECRET}x",
        "region=x",
        "endpoint=http://127.0.0.1:1",
        "allow_http=true",
        "client_max_retries=0",
    ]
    options = [text for one in given for text in ("--storage-option", one)]
    for arguments in (["s3://bucket/table", *options], ["s3://bucket/table", *options, "--json"]):
        done = run("log", *arguments)
        assert done.code == 2
        assert SECRET not in done.out + done.err
        assert "bucket/table" in done.out + done.err
    for arguments in (["s3://bucket/table", "--storage-option", SECRET], [f"s3://me:{SECRET}@bucket/table"]):
        done = run("log", *arguments)
        assert done.code == 2
        assert SECRET not in done.out + done.err

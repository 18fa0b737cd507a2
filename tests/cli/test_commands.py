"""Each command, for people and for programs."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.cli.conftest import Run, rows
from tests.support.in_line import LONG, Work, in_line
from tiltyard.transaction import turns

WIDTHS = (30, 80, 200)


# ---- log -----------------------------------------------------------------------------------------------------------------------


def test_log_tells_what_happened_newest_first(run: Run, readings: Path) -> None:
    found = json.loads(run("log", readings, "--json").out)
    assert set(found) == {"uri", "branch", "latest_version", "older", "versions"}
    assert (found["uri"], found["branch"], found["latest_version"], found["older"]) == (str(readings), None, 6, 0)
    told = [(one["version"], one["operation"], one["rows"], one["writer"].split()[0]) for one in found["versions"]]
    assert told == [
        (6, "Append", 156, "lance"),
        (5, "Delete", 155, "lance"),
        (4, "CreateIndex", 160, "lance"),
        (3, "Append", 160, "tiltyard"),
        (2, "Append", 150, "tiltyard"),
        (1, "Overwrite", 100, "tiltyard"),
    ]
    assert [one["rebased_over"] for one in found["versions"]] == [[], [], [], [2], [], []]
    monday = found["versions"][4]
    assert (monday["message"], monday["properties"]["job"], monday["read_version"]) == ("Monday", "7", 1)
    assert abs(datetime.fromisoformat(monday["timestamp"]) - datetime.now(UTC)).total_seconds() < 3600


def test_several_writers_in_one_version(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", LONG)
    uri = str(tmp_path / "t")
    ty.Table.create(uri, rows(0, 1))

    def work(name: str) -> Work:
        return lambda table: table.append(rows(1, 2), message=f"by {name}")

    made = [future.result().transaction_id for future in in_line(uri, [work("anna"), work("ben"), work("carl")])]
    newest = json.loads(run("log", uri, "--json").out)["versions"][0]
    assert newest["version"] == 2
    assert {newest["transaction_id"], *(member["transaction_id"] for member in newest["members"])} == set(made)
    assert "with 2 transactions of other writers" in run("log", uri, width=200).out
    for name, transaction in zip(("anna", "ben", "carl"), made, strict=True):
        found = json.loads(run("why", uri, transaction[:12], "--json").out)
        assert (found["version"], found["message"], found["transaction_id"]) == (2, f"by {name}", transaction)
        assert sorted(found["committed_with"]) == sorted(set(made) - {transaction})
        assert "2 transactions of other writers, in one version" in run("why", uri, transaction, width=200).out


def test_log_as_text(run: Run, readings: Path) -> None:
    for width in WIDTHS:
        done = run("log", readings, width=width)
        assert (done.code, done.err) == (0, "")
        assert "latest version 6" in done.out
        assert "Monday" in done.out
        assert "rebased over 2" in done.out
        assert max(map(len, done.out.splitlines()[1:])) <= width


def test_log_stops_at_the_limit_and_says_so(run: Run, readings: Path) -> None:
    found = json.loads(run("log", readings, "--limit", "2", "--json").out)
    assert ([one["version"] for one in found["versions"]], found["older"]) == ([6, 5], 4)
    assert "4 older versions" in run("log", readings, "-n", "2").out
    assert "older" not in run("log", readings, "-n", "2", "--all").out


def test_log_of_a_branch(run: Run, readings: Path) -> None:
    found = json.loads(run("log", readings, "--branch", "side", "--json").out)
    assert found["branch"] == "side"
    assert found["versions"][0]["operation"] == "Clone"


# ---- show ----------------------------------------------------------------------------------------------------------------------


def test_show_tells_all_of_the_latest_version(run: Run, readings: Path) -> None:
    found = json.loads(run("show", readings, "--json").out)
    assert (found["version"], found["latest_version"], found["rows"], found["deleted_rows"], found["fragments"]) == (6, 6, 156, 5, 4)
    assert found["schema"][0] == {"name": "id", "type": "int64", "nullable": False}
    assert (found["primary_key"], found["config"], found["tags"]) == (["id"], {"color": "blue"}, [])
    assert (found["data_format"], found["features"]) == ("2.2", "deletion files (1), table config (8)")
    assert found["indices"] == [{"name": "id_idx", "type": "BTree", "columns": ["id"]}]
    assert [(one["rows"], one["deleted_rows"]) for one in found["fragment_list"]] == [(95, 5), (50, 0), (10, 0), (1, 0)]
    file = found["fragment_list"][0]["files"][0]
    assert (readings / "data" / file["path"]).stat().st_size == file["bytes"]


def test_show_one_version_by_number_and_by_tag(run: Run, readings: Path) -> None:
    by_number = json.loads(run("show", readings, "2", "--json").out)
    assert (by_number["version"], by_number["rows"], by_number["tags"]) == (2, 150, ["monday"])
    assert json.loads(run("show", readings, "--tag", "monday", "--json").out) == by_number


def test_show_as_text(run: Run, readings: Path) -> None:
    for width in WIDTHS:
        done = run("show", readings, "3", width=width)
        assert (done.code, done.err) == (0, "")
        for text in ("version 3 of 6", "rebased over", "color = blue", "160 in 3", "int64"):
            assert text in done.out, f"{text!r} at width {width}"
        assert max(map(len, done.out.splitlines()[1:])) <= width


# ---- check ---------------------------------------------------------------------------------------------------------------------


def test_check_of_a_sound_table(run: Run, readings: Path) -> None:
    done = run("check", readings)
    assert (done.code, done.out.startswith("sound ")) == (0, True)
    found = json.loads(run("check", readings, "--json").out)
    assert (found["ok"], found["versions"], found["problems"], found["orphans"]) == (True, 6, [], [])


def test_check_finds_what_is_missing(run: Run, readings: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(readings, broken)
    lost = sorted((broken / "data").iterdir())[0]
    lost.unlink()
    done = run("check", broken)
    assert done.code == 1
    assert "problem" in done.out
    assert lost.name in done.out.replace("\n", "").replace(" ", "")
    as_json = run("check", broken, "--json")
    found = json.loads(as_json.out)
    assert (as_json.code, found["ok"]) == (1, False)
    assert {one["invariant"] for one in found["problems"]} >= {"I2"}


def test_check_lists_files_nobody_names(run: Run, readings: Path, tmp_path: Path) -> None:
    littered = tmp_path / "littered"
    shutil.copytree(readings, littered)
    for number in range(12):
        (littered / "data" / f"stray-{number:02}.lance").write_bytes(b"")
    done = run("check", littered)
    assert done.code == 0
    assert "12 files that no version names" in done.out
    assert "data/stray-00.lance" in done.out
    assert "and 2 more" in done.out
    assert len(json.loads(run("check", littered, "--json").out)["orphans"]) == 12


def test_check_of_a_table_that_cannot_be_opened(run: Run, readings: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(readings, broken)
    newest = min((broken / "_versions").glob("*.manifest"))
    newest.write_bytes(newest.read_bytes()[:-7])
    done = run("check", broken, "--json")
    found = json.loads(done.out)
    assert (done.code, found["ok"]) == (1, False)
    assert newest.name in found["problems"][0]["text"]
    for command in ("log", "show", "cat"):
        failed = run(command, broken, "--json")
        assert (failed.code, json.loads(failed.out)["kind"]) == (2, "corrupt-table")


# ---- cat -----------------------------------------------------------------------------------------------------------------------


def test_cat_shows_rows(run: Run, readings: Path) -> None:
    found = json.loads(run("cat", readings, "--limit", "2", "--json").out)
    assert found["rows"] == [{"id": 5, "name": "name 5"}, {"id": 6, "name": "name 6"}]
    assert (found["version"], found["total"]) == (6, 156)
    assert found["columns"] == [{"name": "id", "type": "int64"}, {"name": "name", "type": "string"}]


def test_cat_of_columns_filter_version_tag_and_branch(run: Run, readings: Path) -> None:
    found = json.loads(run("cat", readings, "--columns", "name", "--filter", "id = 7", "--json").out)
    assert (found["rows"], found["total"]) == ([{"name": "name 7"}], None)
    assert json.loads(run("cat", readings, "--version", "1", "-n", "1", "--json").out)["rows"] == [{"id": 0, "name": "name 0"}]
    assert json.loads(run("cat", readings, "--tag", "monday", "-n", "0", "--json").out)["total"] == 150
    assert json.loads(run("cat", readings, "--branch", "side", "-n", "0", "--json").out)["total"] == 160


def test_cat_of_values_that_python_cannot_hold(run: Run, tmp_path: Path) -> None:
    days = pa.array([2**31 - 1], pa.int32()).view(pa.date32())
    ty.Table.create(tmp_path / "t", pa.table({"day": days}))
    for options in ((), ("--json",)):
        done = run("cat", tmp_path / "t", *options)
        assert (done.code, done.err) == (0, "")
        assert f"{2**31 - 1} d" in done.out


def test_cat_as_text(run: Run, readings: Path) -> None:
    done = run("cat", readings, "--limit", "3")
    assert done.out.splitlines() == ["id  name", " 5  name 5", " 6  name 6", " 7  name 7", "3 rows of 156 at version 6"]
    assert "1 row that match, at version 6" in run("cat", readings, "--filter", "id = 7").out
    assert "perhaps more" in run("cat", readings, "--filter", "id > 7", "-n", "2").out


def test_cat_of_no_rows(run: Run, readings: Path) -> None:
    assert run("cat", readings, "-n", "0").out.splitlines() == ["id  name", "0 rows of 156 at version 6"]


def test_cat_leaves_out_columns_that_find_no_room(run: Run, tmp_path: Path) -> None:
    import pyarrow as pa

    wide = pa.table({f"column_{number}": ["some longer text"] for number in range(30)})
    ty.Table.create(tmp_path / "wide", wide)
    narrow = run("cat", tmp_path / "wide", width=80).out
    assert "no room for 24 more columns: column_6, " in narrow
    assert narrow.splitlines()[1].count("...") == 6
    assert "no room" not in run("cat", tmp_path / "wide", width=0).out


# ---- all of them ---------------------------------------------------------------------------------------------------------------


def test_a_shallow_clone_needs_leave_to_look_elsewhere(run: Run, readings: Path, tmp_path: Path) -> None:
    lance.dataset(str(readings)).shallow_clone(str(tmp_path / "clone"), 6)
    refused = run("cat", tmp_path / "clone", "--json")
    assert (refused.code, json.loads(refused.out)["kind"]) == (2, "corrupt-table")
    for command in ("log", "show", "check", "cat"):
        assert run(command, tmp_path / "clone", "--allow-base", readings).code == 0


@pytest.mark.parametrize("command", ["log", "show", "check", "cat"])
def test_each_command_ends_in_one_document_or_one_error(command: str, run: Run, tmp_path: Path) -> None:
    missing = run(command, tmp_path / "nothing", "--json")
    found = json.loads(missing.out)
    assert (missing.code, found["kind"], missing.err) == (2, "not-found", "")
    assert str(tmp_path / "nothing") in found["message"]
    as_text = run(command, tmp_path / "nothing")
    assert (as_text.code, as_text.out) == (2, "")
    assert as_text.err.startswith("error: There is no table")
    assert as_text.err.endswith("[not-found]\n")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("show", "URI", "99"), "not-found"),
        (("show", "URI", "--tag", "nope"), "not-found"),
        (("log", "URI", "--branch", "nope"), "not-found"),
        (("show", "URI", "1", "--tag", "monday"), "invalid-input"),
        (("cat", "URI", "--columns", "nope"), "invalid-input"),
        (("cat", "URI", "--filter", "id >"), "invalid-input"),
        (("cat", "URI", "--storage-option", "no-equals-sign"), "invalid-input"),
        (("log", "gopher://x"), "invalid-input"),
        (("log", "s3://"), "invalid-input"),
    ],
)
def test_what_the_user_can_mend(arguments: tuple[str, ...], kind: str, run: Run, readings: Path) -> None:
    given = [str(readings) if one == "URI" else one for one in arguments]
    done = run(*given, "--json")
    found = json.loads(done.out)
    assert (done.code, found["kind"]) == (2, kind)
    assert 0 < len(found["message"]) < 300
    as_text = run(*given)
    assert (as_text.code, as_text.out) == (2, "")
    assert f"[{kind}]" in as_text.err


def test_an_empty_table(run: Run, tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "empty", rows(0, 0).schema)
    for command in ("log", "show", "check", "cat"):
        done = run(command, tmp_path / "empty")
        assert (done.code, done.err) == (0, ""), done
        assert json.loads(run(command, tmp_path / "empty", "--json").out)

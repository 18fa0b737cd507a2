"""What ``make check`` leaves out, and how much of a proof ``make test`` runs."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests.lakes.conftest import ON_EVERY_CATALOG
from tests.support import lanes, proving, selection

ROOT = Path(__file__).parents[2]
TABLES = (*lanes.BY_PATH.values(), *selection.FIRST, selection.SHARES)
BEGINNINGS = [beginning for beginnings in TABLES for beginning in beginnings]


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_what_the_table_names_is_there(beginning: str) -> None:
    path, _, name = beginning.partition("::")
    assert (ROOT / path).exists()
    for part in filter(None, name.split("::")):
        assert re.search(rf"^\s*(def|class) {re.escape(part)}", (ROOT / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("chosen", sorted(ON_EVERY_CATALOG))
def test_what_runs_on_every_catalog_is_there(chosen: str) -> None:
    module, _, name = chosen.partition(".")
    assert f"\ndef {name or 'test_'}" in (ROOT / "tests" / "lakes" / f"{module}.py").read_text()


def test_a_test_without_a_marker_starts_no_process() -> None:
    def start_command() -> None:
        subprocess.run([sys.executable, "-V"], check=True)

    def start_worker() -> None:
        get_context("spawn").Process(target=print).start()

    for start in (start_command, start_worker):
        with pytest.raises(pytest.fail.Exception, match="mark it in"):
            start()


@pytest.mark.parametrize(
    ("count", "chosen"), [(1, [0]), (2, [0, 9]), (3, [0, 4, 9]), (4, [0, 3, 6, 9]), (10, list(range(10))), (50, list(range(10)))]
)
def test_a_sample_reaches_from_the_first_to_the_last(count: int, chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "PROVING", False)
    assert proving.sample(range(10), count) == chosen


def test_the_long_form_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def both() -> tuple[Any, Any]:
        return proving.pick(2, 50), proving.sample(range(5), 2)

    monkeypatch.setattr(proving, "PROVING", True)
    assert both() == (50, [0, 1, 2, 3, 4])
    monkeypatch.setattr(proving, "PROVING", False)
    assert both() == (2, [0, 4])


CASES: list[dict[str, Any]] = [{"verb": verb, "fault": fault, "path": Path(verb)} for verb in "abc" for fault in range(12)]


@pytest.mark.parametrize("share", [2, 3, 5, 30])
def test_a_share_has_every_value_of_every_parameter(share: int) -> None:
    kept = selection.chosen(CASES, share)
    assert {CASES[place]["verb"] for place in kept} == set("abc")
    assert {CASES[place]["fault"] for place in kept} == set(range(12))
    assert len(kept) <= max(len(CASES) / share + 3, 14)
    for verb in "abc":
        assert len({CASES[place]["fault"] % 2 for place in kept if CASES[place]["verb"] == verb}) == 2 or share == 30


def test_a_test_that_is_asked_for_by_name_is_not_left_out() -> None:
    assert selection.chosen(CASES[7:8], 30) == {0}


@dataclass
class Collected:
    """As much of a test as its order depends on."""

    nodeid: str


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_workers_begin_with_what_takes_longest(workers: int) -> None:
    several = [beginning for beginnings in selection.FIRST for beginning in beginnings]
    names = [f"tests/api/test_quick.py::test_{number}" for number in range(400)]
    names[50:50] = [f"{beginning}::test_long" for beginning in reversed(several)]
    ordered: Any = selection.in_order([Collected(name) for name in names], workers)  # type: ignore[misc]
    found = [item.nodeid for item in ordered]
    assert sorted(found) == sorted(names)
    begun = 0
    for number in range(workers if workers > 1 else 0):
        assert found[begun].startswith(tuple(several) if number < len(selection.FIRST) else "tests/api/")
        begun += (len(found) - begun) // (workers - number)

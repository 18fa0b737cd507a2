"""What ``make check`` leaves out, and how much of a proof ``make test`` runs."""

from __future__ import annotations

import re
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests.lakes.conftest import ON_EVERY_CATALOG
from tests.support import lanes, proving

ROOT = Path(__file__).parents[2]
BEGINNINGS = [beginning for beginnings in lanes.BY_PATH.values() for beginning in beginnings]


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

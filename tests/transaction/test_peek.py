"""A glance at a version costs little and leaves nothing behind that a reader or a commit would build on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.format.fragment_check import check_fragments
from tiltyard.format.names import Scheme
from tiltyard.transaction.log import VersionLog
from tiltyard.verbs.engine.access import open_access


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many fragments each check was about."""
    seen: list[int] = []

    def spy(records: Any, *args: Any, **how: Any) -> None:
        seen.append(len(records))
        check_fragments(records, *args, **how)

    monkeypatch.setattr("tiltyard.format.manifest.check_fragments", spy)
    return seen


def _grown(root: Path) -> ty.Table:
    table = ty.Table.create(str(root), pa.table({"a": [0]}))
    for number in range(1, 8):
        table.append(pa.table({"a": [number]}))
    return table


def test_history_checks_no_fragments(tmp_path: Path, checked: list[int]) -> None:
    table = _grown(tmp_path / "t")
    checked.clear()
    assert [(entry.version, entry.rows, entry.fragments) for entry in table.history()] == [(n, n, n) for n in range(8, 0, -1)]
    assert checked == []
    assert ty.Table.open(str(tmp_path / "t"), timestamp=datetime(9999, 1, 1, tzinfo=UTC)).version == 8
    assert checked == [8], "the version that is opened is checked"


def test_a_glance_is_not_taken_for_a_version_that_was_read(tmp_path: Path, checked: list[int]) -> None:
    _grown(tmp_path / "t")
    log = VersionLog(open_access(str(tmp_path / "t")).store)
    checked.clear()
    glance = log.peek(7, Scheme.V2)
    assert len(glance.manifest.fragments) == 7
    assert not glance.message.extendable
    assert log.load(8, Scheme.V2).manifest.version == 8
    assert checked == [8], "all fragments, those of version 7 too"

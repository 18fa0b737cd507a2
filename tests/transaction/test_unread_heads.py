"""Commits from a version of which only the transaction was read."""

from __future__ import annotations

from pathlib import Path

import tiltyard as ty
from tests.support.commits import ids_of, rows
from tiltyard.transaction.transaction import MESSAGE_PROPERTY


def test_whoever_leads_reads_the_version_first(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(0))
    ty.Table.open(tmp_path / "t").append(rows(1))
    access, below = table._to_append()
    table._known = (access, access.log.after_append(2, table._scheme, below)[0])
    assert table._known[1].partial
    result = table.append(rows(2))
    assert (result.version, result.read_version, result.rebased_over) == (3, 2, ())
    assert ids_of(table) == [0, 1, 2]


def test_a_long_transaction_is_read_to_its_end(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", rows(0))
    access, below = table._to_append()
    ty.Table.open(tmp_path / "t").append(rows(1), message="long " * 4000)
    file, heading = access.log.after_append(2, table._scheme, below)
    assert heading.properties[MESSAGE_PROPERTY] == "long " * 4000
    assert file.transaction == access.log.load(2, table._scheme).transaction

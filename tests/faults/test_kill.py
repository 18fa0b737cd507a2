"""SIGKILL at every store call of a create, appends and an overwrite, in processes of their own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import tiltyard as ty
from tests.faults.killed_writer import STEPS, write, write_and_die
from tests.support.commits import files_below, has_table, ids_of, rows
from tests.support.lake_killed import child
from tests.support.proving import pick, sample
from tiltyard.format.names import HINT_PATH
from tiltyard.storage.local import LocalStore
from tiltyard.testing import CountingStore
from tiltyard.testing.faults import When
from tiltyard.testing.stores import WRITES

DEATHS: list[tuple[str, When]] = [("conditional-put", "before"), ("conditional-put", "after"), ("rename", "after"), ("rename", "before")]
MODEL = ([0], [0, 1], [2], [2, 3])
"""The rows after each step."""


def _killed(root: Path, handler: str, at: int, when: When) -> list[int]:
    """Runs the writer until it dies at the call ``at``; returns the versions it was told were committed."""
    said = root.with_suffix(".said")
    code = child(str(root), handler, at, when, said, target=write_and_die)
    assert code == -signal.SIGKILL, f"it ended with {code} instead of dying {when} call {at}"
    return [int(line) for line in said.read_text().split()]


def _judge(root: Path, acknowledged: list[int]) -> int:
    """What was acknowledged is there; the one under way is there as a whole or not at all; the next writer goes on."""
    assert acknowledged == list(range(1, len(acknowledged) + 1))
    if not has_table(root):
        assert acknowledged == []
        ty.Table.create(root, rows(100))
        return 0
    table = ty.Table.open(root)
    made = table.version
    assert made - len(acknowledged) in (0, 1)
    assert table.layout.versions() == list(range(1, made + 1))
    for version in table.layout.versions():
        assert ids_of(ty.Table.open(root, version=version)) == MODEL[version - 1]
    assert table.check().problems == ()
    assert table.append(rows(100)).version == made + 1
    assert ids_of(table) == [*MODEL[made - 1], 100]
    assert not any(name.startswith(".tmp") for name in files_below(root, "data"))
    return made


def _writes_version(method: str, path: str) -> bool:
    return method in WRITES and path.startswith("_versions/") and path != HINT_PATH


@pytest.mark.parametrize(("handler", "when"), pick(DEATHS[:3], DEATHS))
def test_every_call(tmp_path: Path, handler: str, when: When, capfd: pytest.CaptureFixture[str]) -> None:
    counting = CountingStore(LocalStore(tmp_path / "whole"))
    write(counting, str(tmp_path / "whole"), handler)
    capfd.readouterr()
    calls = range(1, counting.total + 1)
    # The handlers differ only in how a version is created: for the second one those calls are enough.
    some = sample(calls, 4) if handler == "conditional-put" else []
    chosen = [at for at in calls if at in some or _writes_version(*counting.log[at - 1])]
    assert len(chosen) >= 2 * len(STEPS)

    def one(at: int) -> int:
        root = tmp_path / str(at)
        return _judge(root, _killed(root, handler, at, when))

    made = [one(at) for at in chosen]  # one by one: of two threads that wait for children, either may take the other's answer
    assert made == sorted(made)
    # After the last version is created a commit only looks once more, and that every call counts for the first handler alone.
    assert set(made) == set(range(len(STEPS) + (when == "after" or handler == "conditional-put")))

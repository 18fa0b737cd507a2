"""Power fails at every step of commits: what was acknowledged in the "fsync" mode is on the disk, data files included."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiltyard as ty
from tests.support.commits import FIELDS, memory_place, noted_runtime
from tests.support.proving import pick
from tiltyard import ops
from tiltyard.errors import HistoryUnavailable, NotFound, TiltyardError
from tiltyard.format.names import Scheme
from tiltyard.format.values import DataFile, DataFormat, DataFragment
from tiltyard.storage import Durability
from tiltyard.testing import Killed, PowerLossStore, SeededRandomness
from tiltyard.transaction.apply.next_manifest import Creation
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT, without_marks

SEEDS = range(pick(8, 25))
STEPS = ("create", "append", "overwrite", "append")


def _content(name: str) -> bytes:
    return f"the rows of {name}".encode() * 50


def _fragment(store: PowerLossStore, name: str) -> DataFragment:
    """A data file as pylance leaves it: written, named, and not flushed."""
    store.put_unsynced(f"data/{name}.lance", _content(name))
    return DataFragment(0, (DataFile(f"{name}.lance", (0, 1), (0, 1), size=len(_content(name))),), 1)


def _work(store: PowerLossStore, acknowledged: list[str]) -> None:
    """Commits until the power fails, and notes each commit that was acknowledged."""
    place = memory_place(store, noted_runtime(1))
    first = Transaction(0, place.runtime.random.uuid(), ops.Overwrite((_fragment(store, "file0"),), FIELDS))
    _, file = place.committer.create_table(first, Creation(DataFormat()), Scheme.V2)
    acknowledged.append(first.uuid)
    table = ty.Table(place, file, Scheme.V2)
    for number, step in enumerate(STEPS[1:], 1):
        fragments = (_fragment(store, f"file{number}"),)
        result = table.commit(ops.Append(fragments) if step == "append" else ops.Overwrite(fragments, FIELDS))
        acknowledged.append(result.transaction_id)


def _survivors(store: PowerLossStore) -> list[str]:
    """Transactions of the versions on the disk, oldest first; each version must be whole, with everything it names."""
    log = VersionLog(store)
    found = []
    for position, name in enumerate(log.versions(), 1):
        assert name.version == position
        committed = log.committed(name.version, name.scheme)
        beside = Transaction.from_bytes(store.get("_transactions/" + committed.manifest.transaction_file), "beside")
        # Only the version's own seal differs: it is of bytes that hold the transaction.
        assert without_marks(beside) == without_marks(committed.transaction)
        assert beside.properties.get(PARENT) == committed.transaction.properties.get(PARENT)
        for fragment in committed.manifest.fragments:
            for file in fragment.files:
                assert store.get(f"data/{file.path}") == _content(file.path.removesuffix(".lance"))
        found.append(committed.transaction.uuid)
    return found


def _steps(durability: Durability) -> int:
    store = PowerLossStore(durability)
    _work(store, [])
    return store.steps


def _interrupted(durability: Durability, stop_at: int, seed: int) -> tuple[PowerLossStore, list[str]]:
    store = PowerLossStore(durability, random=SeededRandomness(seed), stop_at=stop_at)
    acknowledged: list[str] = []
    try:
        _work(store, acknowledged)
    except Killed:
        pass
    store.crash()
    return store, acknowledged


@pytest.mark.parametrize("stop_at", range(1, _steps("fsync") + 2))
def test_what_was_acknowledged_survives(stop_at: int) -> None:
    for seed in SEEDS:
        store, acknowledged = _interrupted("fsync", stop_at, seed)
        survivors = _survivors(store)
        assert survivors[: len(acknowledged)] == acknowledged, f"seed {seed}"
        assert len(survivors) - len(acknowledged) in (0, 1), f"seed {seed}"


def test_the_next_writer_goes_on_after_the_crash() -> None:
    for stop_at in range(1, _steps("fsync") + 2):
        store, acknowledged = _interrupted("fsync", stop_at, stop_at)
        try:
            table = ty.Table._open(memory_place(store))
        except NotFound:
            assert acknowledged == []
            continue
        before = len(_survivors(store))
        assert table.commit(ops.Append((_fragment(store, "after"),))).version == before + 1
        store.crash()
        assert len(_survivors(store)) == before + 1


def test_what_the_os_mode_gives_up() -> None:
    """Without flushing, a power loss may take back acknowledged commits, or leave versions whose files are empty or missing."""
    lost = broken = intact = 0
    for seed in range(200):
        store, acknowledged = _interrupted("os", 1000, seed)
        assert len(acknowledged) == len(STEPS)
        try:
            survivors = _survivors(store)
        except (AssertionError, TiltyardError):
            broken += 1
            continue
        if survivors == acknowledged:
            intact += 1
        else:
            lost += 1
    assert lost + intact + broken == 200
    assert lost > 0
    assert broken > 0


def test_a_table_damaged_by_a_crash_in_the_os_mode_is_refused_not_misread() -> None:
    refused = 0
    for seed in range(200):
        store = PowerLossStore("os", random=SeededRandomness(seed))
        acknowledged: list[str] = []
        place = memory_place(store, noted_runtime(1))
        _work(store, acknowledged)
        before = ty.Table._open(place)
        store.crash()
        try:
            before.commit(ops.Append((_fragment(store, "after"),)))
        except HistoryUnavailable:
            refused += 1
    assert refused > 0


def test_the_fsync_mode_is_the_default(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", {"id": [1]})
    assert table._access.durability == "fsync"
    assert "durability='fsync'" in repr(table._access.store)

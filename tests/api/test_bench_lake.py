"""The benchmarks of the lake: what they build is a lake, and what they call met is so."""

from __future__ import annotations

from dataclasses import replace

from bench.lake_growth import AT_ONCE, grow
from bench.lake_hot import HotFigure
from tiltyard.catalog.catalog import Catalog
from tiltyard.catalog.open_records import MemoryRecords
from tiltyard.interfaces import system_runtime


def test_a_grown_lake_has_so_many_tables_and_snapshots() -> None:
    catalog = Catalog(MemoryRecords(), system_runtime())
    catalog.initialize({"root": None})
    size = AT_ONCE + 100
    grow(catalog.records, size)
    cut = catalog.cut()
    assert (len(cut.tables), cut.snapshot) == (size, size)
    assert [snapshot.id for snapshot in catalog.history()] == list(range(size, 0, -1))
    past = catalog.cut_at(size // 2)
    assert len(past.tables) == size
    assert {head.version for head in cut.tables.values()} == {1, 2}


def test_a_target_that_is_missed_says_so() -> None:
    good = HotFigure("sqlite", 16, 50.0, 0.8, 0.3, 10.0, 200.0, 0)
    assert good.met
    for worse in ({"rate": 0.79}, {"fairness": 0.29}, {"p99_ms": 201.0}, {"failed": 1}):
        assert replace(good, **worse).met is False
    assert replace(good, writers=4, rate=0.1).met is None

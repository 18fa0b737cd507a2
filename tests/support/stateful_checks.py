"""What must hold of a table that the state machine made: in each version, for us and for stock pylance."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import tiltyard as ty
from tests.support.stateful_model import ID, World
from tests.support.tables import open_stock

if TYPE_CHECKING:
    from tests.support.stateful_bench import Bench

SINGLETONS: Final = frozenset({"__lance_frag_reuse", "__lance_mem_wal"})
_KEY_METADATA: Final = "lance-schema:unenforced-primary-key"


def rows_of(table: pa.Table, names: list[str]) -> list[tuple[Any, ...]]:
    return sorted(zip(*(table.column(name).to_pylist() for name in names), strict=True), key=repr)


def assert_rows(seen: pa.Table, world: World) -> None:
    assert seen.column_names == world.names
    rows = rows_of(seen, world.names)
    if rows != world.plain_rows:
        there, wanted = Counter(rows), Counter(world.plain_rows)
        raise AssertionError(
            f"rows {world.names}: too many {list((there - wanted).elements())}, missing {list((wanted - there).elements())}"
        )


def assert_schema(schema: pa.Schema, world: World) -> None:
    seen = [(one.name, one.type, one.nullable) for one in schema]
    assert seen == [(one.arrow.name, one.arrow.type, one.arrow.nullable) for one in world.columns]
    for one, column in zip(schema, world.columns, strict=True):
        assert {key: text for key, text in texts(one.metadata).items() if not key.startswith(_KEY_METADATA)} == column.metadata
    assert texts(schema.metadata) == world.schema_metadata


def texts(entries: Any) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (entries or {}).items()}


def assert_like(table: ty.Table, world: World) -> None:
    """All that is known without reading rows."""
    assert_schema(table.schema, world)
    assert table.primary_key == ((world.key.name,) if world.keyed else ())
    assert (table.settings.config, table.settings.metadata) == (world.config, world.metadata)
    assert table.count_rows() == len(world.rows)
    assert {one.name for one in table.indices.segments} - SINGLETONS == set(world.indices)
    assert table.indices.mem_wal.generations == world.generations
    assert world.bases <= {base.path for base in table._file.manifest.base_paths}


def check_all(bench: Bench) -> None:
    """Every version that is left, of every line of history; and the tables that were made of them."""
    for branch, line in bench.lines.items():
        newest = bench.open(branch)
        assert newest.version == line.head
        assert newest.layout.versions() == line.retained
        report = newest.check()
        assert [one for one in report.problems if not (line.gapped and one.invariant == "I1")] == []
        assert report.orphans == ()
        entries = newest.history()
        assert [one.version for one in entries] == line.retained[::-1]
        ids = [one.transaction_id for one in entries if one.transaction_id]
        assert len(set(ids)) == len(ids), "a transaction id is in the history twice"
        place = str(bench.directory(branch))
        open_stock(place).validate()
        keep: dict[int, int] = {}
        for version in line.retained:
            _check_version(bench, branch, version, line.worlds[version], keep)
            stock = open_stock(place, version)
            assert_schema(stock.schema, line.worlds[version])
            assert_rows(stock.to_table(use_scalar_index=False), line.worlds[version])
    _check_refs(bench)
    for path, world in bench.clones:
        assert_rows(ty.Table.open(path, allowed_bases=["*"]).to_arrow(), world)
        assert_rows(open_stock(str(path)).to_table(), world)
        assert list(ty.Table.open(path, allowed_bases=["*"]).check().problems) == []


def _check_version(bench: Bench, branch: str | None, version: int, world: World, keep: dict[int, int]) -> None:
    ours = bench.open(branch, version=version)
    assert_like(ours, world)
    stable = bench.kind.stable and not world.has_double_ids()
    rows = ours.to_arrow(options={"with_row_id": stable})
    if world.keyed:
        assert not world.has_double_ids()
    if stable:
        given = dict(zip(rows.column(world.key.name).to_pylist(), rows.column("_rowid").to_pylist(), strict=True))
        rows = rows.drop_columns(["_rowid"])
        for number, values in world.rows.items():
            here = given[values[ID]]
            assert keep.setdefault(number, here) == here, f"the row of id {values[ID]} has another row id in version {version}"
    assert_rows(rows, world)


def _check_refs(bench: Bench) -> None:
    table = bench.open()
    assert {name: (tag.branch, tag.version) for name, tag in table.tags.items()} == bench.tags
    assert set(table.branches) == set(bench.lines) - {None}
    for name, (branch, version) in bench.tags.items():
        tagged = ty.Table.open(bench.uri, version=name, allowed_bases=["*"])
        assert (tagged.branch, tagged.version) == (branch, version)

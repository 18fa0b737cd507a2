"""Indices beside writers: what a query finds through an index is what a scan finds, whatever came in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.commits import InterruptedStore, files_below, handle, is_version
from tests.support.proving import pick
from tests.support.tables import open_stock
from tiltyard.errors import AlreadyExists, IncompatibleConflict, InvalidInput, NotFound, RetryableConflict
from tiltyard.storage.local import LocalStore
from tiltyard.transaction.footprint import FRAGMENT_REUSE
from tiltyard.verbs.indices.optimize_indices import reuse_versions

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
SCALAR = [("id", "BTREE"), ("x", "BITMAP"), ("tags", "LABEL_LIST"), ("s", "NGRAM"), ("id", "ZONEMAP"), ("id", "BLOOMFILTER")]
VECTOR: list[tuple[str, dict[str, Any]]] = [
    ("IVF_FLAT", {"num_partitions": 2, "metric": "cosine"}),
    ("IVF_PQ", {"num_partitions": 2, "num_sub_vectors": 2}),
    ("IVF_HNSW_SQ", {"num_partitions": 2, "m": 10}),
]
FILTERS = ["id = 5", "id = 250", "id >= 90 and id < 110", "x = 3", "x = -1", "array_has_any(tags, ['t1'])", "array_has_any(tags, ['new'])"]
FILTERS += ["contains(s, 'word1')", "contains(s, 'fresh')"]
WORDS = {"word1": "s like '%word1 %'", "fresh": "s like '%fresh%'"}
COUNT, PER_FILE = 300, 100
SEED = 20261115


def _rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    vectors = np.random.default_rng(SEED + first).random(count * 8, dtype=np.float32)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": pa.array([number % 7 for number in ids], pa.int64()),
            "s": [f"word{number % 5} and more" for number in ids],
            "tags": pa.array([[f"t{number % 3}"] for number in ids], pa.list_(pa.string())),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 8),
        }
    )


def _make(root: Path, stable: bool = False) -> ty.Table:
    return ty.Table.create(
        root, _rows(0, COUNT), stable_row_ids=stable, durability="os", options=ty.TableOptions(files=ty.FileLimits(rows=PER_FILE))
    )


def _sound(root: Path) -> ty.Table:
    """The table as everybody finds it: no index changes what a query gives."""
    table = ty.Table.open(root)
    report = table.check()
    assert (report.problems, report.orphans) == ((), ())
    stock = open_stock(str(root))
    stock.validate()
    for condition in FILTERS:
        found = stock.to_table(columns=["id"], filter=condition)["id"].to_pylist()
        scanned = stock.scanner(columns=["id"], filter=condition, use_scalar_index=False).to_table()["id"].to_pylist()
        assert sorted(found) == sorted(scanned), condition
    kinds = {one.type for one in table.indices.list()}
    if "INVERTED" in kinds:
        for word, condition in WORDS.items():
            found = stock.to_table(columns=["id"], full_text_query=word)["id"].to_pylist()
            assert sorted(found) == sorted(stock.to_table(columns=["id"], filter=condition)["id"].to_pylist()), word
    if any(kind.startswith("IVF") for kind in kinds):
        wanted = stock.count_rows()
        near = {"column": "v", "q": [0.5] * 8, "k": wanted, "nprobes": 10, "refine_factor": 2, "ef": 1000}
        assert sorted(stock.to_table(columns=["id"], nearest=near)["id"].to_pylist()) == sorted(stock.to_table()["id"].to_pylist())
    return table


def _only(table: ty.Table) -> Any:
    (found,) = table.indices.list()
    return found


@pytest.mark.parametrize(("column", "kind"), [*SCALAR, ("s", "INVERTED")])
@STABLE
def test_scalar_and_text(tmp_path: Path, column: str, kind: str, stable: bool) -> None:
    root = tmp_path / "t"
    table = _make(root, stable)
    result = table.create_index(column, kind.lower(), message="for the dashboard")
    assert (result.operation, result.version, result.rows) == ("CreateIndex", 2, {"indexed": COUNT})
    assert table.history()[0].message == "for the dashboard"
    found = _only(_sound(root))
    assert (found.name, found.type, found.columns, found.version) == (f"{column}_idx", kind, (column,), 1)
    assert (found.fragments, found.missing, found.rows, found.missing_rows) == ((0, 1, 2), (), COUNT, 0)
    (described,) = open_stock(str(root)).describe_indices()
    assert (described.name, described.num_rows_indexed) == (found.name, COUNT)
    table.append(_rows(COUNT, 50))
    found = _only(_sound(root))
    assert (found.missing, found.missing_rows) == ((3,), 50)
    assert table.indices.extend(found.name).rows == {"indexed": 50}
    found = _only(_sound(root))
    assert (found.missing, len(found.segments)) == ((), 2)
    table.append(_rows(COUNT + 50, 50))
    table.indices.optimize(merge=True)
    found = _only(_sound(root))
    assert (found.missing, len(found.segments)) == ((), 1)


@pytest.mark.parametrize(("kind", "options"), VECTOR)
def test_vectors(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    root = tmp_path / "t"
    table = _make(root)
    stages: set[str] = set()
    table.indices.create("v", ty.IndexSpec(kind, options, lambda stage, done, of: stages.add(stage)), "near")
    assert "train_ivf" in stages
    assert _only(_sound(root)).type == kind
    before = open_stock(str(root)).describe_indices()[0].details
    table.append(_rows(COUNT, 40))
    table.indices.extend("near")
    found = _only(_sound(root))
    assert (found.missing, found.rows) == ((), COUNT + 40)
    after = open_stock(str(root)).describe_indices()[0].details
    for part in ("metric_type", "hnsw", "compression"):
        assert before.get(part) == after.get(part)
    table.indices.optimize(retrain=True)
    assert len(_only(_sound(root)).segments) == 1


def test_what_pylance_writes_of_an_index_is_what_we_write(tmp_path: Path) -> None:
    ours, theirs = _make(tmp_path / "ours"), _make(tmp_path / "theirs")
    stock = open_stock(str(tmp_path / "theirs"))
    for column, kind in [*SCALAR, ("s", "INVERTED")]:
        ours.create_index(column, kind, name=kind)
        stock.create_scalar_index(column, kind, name=kind)
    theirs.refresh()
    assert len(ours.indices.segments) == len(theirs.indices.segments) == len(SCALAR) + 1
    for one, other in zip(ours.indices.segments, theirs.indices.segments, strict=True):
        for part in ("name", "fields", "dataset_version", "fragment_bitmap", "details", "index_version", "base_id", "covering_fields"):
            assert getattr(one, part) == getattr(other, part), (one.name, part)
        assert sorted(file.path for file in one.files) == sorted(file.path for file in other.files)


def test_names_replacement_and_dropping(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.create_index("id", "BTREE")
    with pytest.raises(AlreadyExists):
        table.create_index("id", "BTREE")
    first = _only(table).segments
    table.create_index("id", "BTREE", replace=True)
    assert _only(_sound(root)).segments != first
    table.create_index("id", ty.IndexSpec("ZONEMAP", {"rows_per_zone": 10}))
    assert [(one.name, one.type) for one in table.indices.list()] == [("id_idx", "BTREE"), ("id_idx_2", "ZONEMAP")]
    result = table.drop_index("id_idx")
    assert (result.operation, _only(_sound(root)).name) == ("CreateIndex", "id_idx_2")
    with pytest.raises(NotFound, match="id_idx_2"):
        table.drop_index("id_idx")


@pytest.mark.parametrize(
    ("column", "kind", "options"),
    [
        ("nope", "BTREE", {}),
        ("id", "TREE", {}),
        ("tags", "BTREE", {}),
        ("id", "BTREE", {"zone": 3}),
        ("s", "INVERTED", {"with_a_bow": True}),
        ("v", "IVF_PQ", {"num_partitions": 2, "num_sub_vectors": 3}),
        ("v", "IVF_FLAT", {"partitions": 2}),
    ],
)
def test_what_cannot_be_indexed_is_refused(tmp_path: Path, column: str, kind: str, options: dict[str, Any]) -> None:
    table = _make(tmp_path / "t")
    with pytest.raises(InvalidInput):
        table.create_index(column, ty.IndexSpec(kind, options))
    with pytest.raises(InvalidInput):
        table.create_index("id", "BTREE", name=FRAGMENT_REUSE)
    assert table.layout.latest_version() == 1


@pytest.mark.parametrize(("column", "kind"), [("id", "BTREE"), ("s", "INVERTED")])
def test_an_empty_table_can_have_indices(tmp_path: Path, column: str, kind: str) -> None:
    root = tmp_path / "t"
    table = ty.Table.create(root, _rows(0, 1).schema)
    table.create_index(column, kind)
    table.append(_rows(0, 50))
    table.indices.optimize()
    assert (_only(_sound(root)).rows, _only(table).missing) == (50, ())


# ---- values that changed under an index ------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize(("column", "kind"), [*SCALAR, ("s", "INVERTED")])
@pytest.mark.parametrize("mode", ["rows", "columns"])
@STABLE
def test_former_values_do_not_come_back(tmp_path: Path, column: str, kind: str, mode: Any, stable: bool, merge: bool) -> None:
    root = tmp_path / "t"
    table = _make(root, stable)
    table.create_index(column, kind)
    table.update({column: {"id": "id + 1000", "x": "-1", "s": "'fresh text'", "tags": "['new']"}[column]}, "id >= 200", mode)
    _sound(root)
    table.indices.optimize(merge=merge)
    assert _only(_sound(root)).missing == ()
    table.append(_rows(COUNT, 20))
    table.indices.optimize(merge=merge)
    assert _only(_sound(root)).missing == ()


@pytest.mark.parametrize(("column", "kind"), [*SCALAR, ("s", "INVERTED")])
def test_former_values_do_not_come_back_with_a_compaction(tmp_path: Path, column: str, kind: str) -> None:
    """The fragment with new values is rewritten under another id, and what the index still says of it is translated along."""
    root = tmp_path / "t"
    table = _make(root)
    table.create_index(column, kind)
    table.update({column: {"id": "id + 1000", "x": "-1", "s": "'fresh text'", "tags": "['new']"}[column]}, "id >= 200", "columns")
    table.delete("id in (1, 2, 1250)")
    table.compact(target_rows=1000, deletions=0.0)
    table.indices.optimize()
    assert _only(_sound(root)).missing == ()


# ---- compaction ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("column", "kind"), [*SCALAR, ("s", "INVERTED"), ("v", "IVF_FLAT"), ("v", "IVF_PQ"), ("v", "IVF_HNSW_SQ")])
def test_indices_follow_a_compaction(tmp_path: Path, column: str, kind: str) -> None:
    root = tmp_path / "t"
    table = _make(root)
    options: dict[str, Any] = {"num_partitions": 2} if column == "v" else {}
    if kind == "IVF_PQ":
        options["num_sub_vectors"] = 2
    table.create_index(column, ty.IndexSpec(kind, options))
    table.append(_rows(COUNT, 30))
    if "HNSW" not in kind:
        table.delete("id in (7, 107)")
    table.compact(target_rows=1000, deletions=0.0)
    _sound(root)
    assert reuse_versions(table._file.manifest)
    table.indices.optimize()
    found = _only(_sound(root))
    assert (found.missing, found.rows) == ((), table.count_rows())
    assert reuse_versions(table._file.manifest) == []
    version = table.version
    assert table.indices.optimize().version == version == table.layout.latest_version()


@STABLE
def test_a_graph_stays_readable_when_fragments_with_deletions_are_compacted(tmp_path: Path, stable: bool) -> None:
    """pylance opens no graph whose rows are gone from a fragment that was rewritten before the index followed."""
    root = tmp_path / "t"
    table = _make(root, stable)
    table.create_index("v", ty.IndexSpec("IVF_HNSW_SQ", {"num_partitions": 1}))
    table.delete("id in (7, 107, 207)")
    table.compact(target_rows=1000, deletions=0.0)
    _sound(root)
    table.append(_rows(COUNT, 20))
    table.append(_rows(COUNT + 20, 20))
    table.compact(target_rows=1000, deletions=0.0)
    assert sum(one.physical_rows == 40 for one in table.layout.fragments) == 1
    table.indices.optimize()
    assert _only(_sound(root)).missing == ()


@pytest.mark.parametrize(("column", "kind"), [*SCALAR, ("s", "INVERTED"), ("v", "IVF_FLAT")])
def test_what_one_index_still_needs_is_kept(tmp_path: Path, column: str, kind: str) -> None:
    """Its coverage is put into new terms when the other one follows; its files are not, and must be before the translation goes."""
    root = tmp_path / "t"
    table = _make(root)
    table.create_index("id", "BTREE", name="first")
    options: dict[str, Any] = {"num_partitions": 2} if column == "v" else {}
    table.create_index(column, ty.IndexSpec(kind, options), name="second")
    table.compact(target_rows=1000)
    table.indices.optimize(["first"])
    assert len(reuse_versions(table._file.manifest)) == 1
    _sound(root)
    table.indices.optimize()
    assert reuse_versions(table._file.manifest) == []
    _sound(root)


def test_an_index_on_a_branch(tmp_path: Path) -> None:
    table = _make(tmp_path / "t")
    table.branches.create("side")
    side = ty.Table.open(tmp_path / "t", branch="side")
    side.create_index("id", "BTREE")
    side.append(_rows(COUNT, 10))
    side.indices.optimize(merge=True)
    assert (_only(side).missing, table.refresh().indices.list()) == ((), ())
    assert side.to_arrow(["id"], "id = 305")["id"].to_pylist() == [305]
    assert "ScalarIndexQuery" in side.lance.scanner(filter="id = 305").explain_plan()


# ---- races -----------------------------------------------------------------------------------------------------------------


def _racing(root: Path, action: Any, times: int = 1) -> ty.Table:
    return handle(root, InterruptedStore(LocalStore(root, durability="os"), is_version, action, times))


@pytest.mark.parametrize("kind", ["BTREE", "NGRAM", "INVERTED"])
@STABLE
@pytest.mark.parametrize("other", ["append", "delete", "update rows", "update columns", "compact"])
def test_an_index_is_built_while_others_write(tmp_path: Path, kind: str, stable: bool, other: str) -> None:
    root = tmp_path / "t"
    _make(root, stable)
    column = "id" if kind == "BTREE" else "s"
    value = "id + 1000" if kind == "BTREE" else "'fresh text'"

    def act() -> None:
        table = ty.Table.open(root)
        match other.split():
            case ["append"]:
                table.append(_rows(COUNT, 10))
            case ["delete"]:
                table.delete("id in (3, 150)")
            case ["update", mode]:
                table.update({column: value}, "id >= 200", mode)  # type: ignore[arg-type]
            case _:
                table.compact(target_rows=1000)

    result = _racing(root, act).create_index(column, kind)
    assert result.version == ty.Table.open(root).version
    table = _sound(root)
    table.indices.optimize()
    assert _only(_sound(root)).missing == ()


@pytest.mark.parametrize("late", ["index", "compaction"])
def test_a_graph_that_meets_a_compaction_is_built_anew(tmp_path: Path, late: str) -> None:
    """It was built before rows were deleted, which the compaction leaves out: pylance opens no such graph."""
    root = tmp_path / "t"
    _make(root).create_index("id", "BTREE")
    early = handle(root)
    if late == "index":

        def compacted() -> None:
            other = ty.Table.open(root)
            other.delete("id in (5, 250)")
            other.compact(target_rows=1000, deletions=0.0)

        result = _racing(root, compacted).create_index("v", ty.IndexSpec("IVF_HNSW_SQ", {"num_partitions": 1}))
    else:
        ty.Table.open(root).delete("id in (5, 250)")
        racing = _racing(root, lambda: early.create_index("v", ty.IndexSpec("IVF_HNSW_SQ", {"num_partitions": 1})))
        result = racing.compact(target_rows=1000, deletions=0.0)
    assert {"CreateIndex", "Rewrite"} <= {result.operation, *(one.operation for one in result.rebased_over)}
    table = _sound(root)
    assert [one.missing for one in table.indices.list()] == [(), ()]


def test_of_two_indices_with_one_name_the_second_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root)
    table = _racing(root, lambda: ty.Table.open(root).create_index("id", "BTREE"))
    with pytest.raises(AlreadyExists):
        table.create_index("id", "BTREE")
    _sound(root)
    assert len(files_below(root, "_indices")) == 2  # the loser's directory stays, empty
    assert sum(1 for path in (root / "_indices").rglob("*") if path.is_file()) == 2


def test_two_extensions_do_not_cover_a_fragment_twice(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.create_index("id", "BTREE")
    table.append(_rows(COUNT, 10))
    result = _racing(root, lambda: ty.Table.open(root).indices.extend("id_idx")).indices.extend("id_idx")
    assert result.attempts == 0  # the second run found it done
    assert len(_only(_sound(root)).segments) == 2


def test_an_index_that_was_extended_meanwhile_is_dropped_as_a_whole(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.create_index("id", "BTREE")
    table.append(_rows(COUNT, 10))
    _racing(root, lambda: ty.Table.open(root).indices.extend("id_idx")).drop_index("id_idx")
    assert _sound(root).indices.list() == ()


def test_without_retries_the_conflict_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _make(root)
    table = _racing(root, lambda: ty.Table.open(root).compact(target_rows=1000))
    with pytest.raises(RetryableConflict):
        table.indices.create("id", "BTREE", commit=ty.CommitOptions(reexecutions=0))
    _sound(root)
    assert not [path for path in (root / "_indices").rglob("*") if path.is_file()]


def test_a_compaction_while_the_reuse_entry_is_trimmed_keeps_its_part(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = _make(root)
    table.create_index("id", "BTREE")
    table.compact(target_rows=1000)
    table.indices.extend("id_idx")
    table.append(_rows(COUNT, 10))
    table.indices.extend("id_idx")

    def act() -> None:
        other = ty.Table.open(root)
        other.delete("id < 20")
        other.compact(target_rows=1000, deletions=0.0)

    racing = _racing(root, act)
    racing.indices.optimize()
    assert len(reuse_versions(racing._file.manifest)) == 1
    _sound(root)
    racing.indices.optimize()
    assert reuse_versions(racing._file.manifest) == []
    _sound(root)


# ---- many steps ------------------------------------------------------------------------------------------------------------

_VALUES = {"id": "id + 1000", "x": "-1", "s": "'fresh text'", "tags": "['new']"}


def _step(table: ty.Table, chance: random.Random) -> None:
    first = chance.randrange(COUNT)
    some = f"id >= {first} and id < {first + chance.randrange(1, 60)}"
    names = sorted({one.name for one in table.indices.segments if not one.name.startswith("__")})
    match chance.choice(["append", "update rows", "update columns", "delete", "compact", "index", "index", "extend", "merge", "optimize"]):
        case "append":
            table.append(_rows(chance.randrange(2000, 10**6), chance.randrange(1, 30)))
        case "update rows" | "update columns" as verb:
            column = chance.choice(["x", "s", "tags"])
            table.update({column: _VALUES[column]}, some, verb.split()[1])  # type: ignore[arg-type]
        case "delete":
            table.delete(f"({some}) and x = 2")
        case "compact":
            table.compact(target_rows=chance.choice([150, 1000]), deletions=0.0)
        case "index":
            column, kind = chance.choice([*SCALAR, ("s", "INVERTED")])
            table.create_index(column, kind, name=kind, replace=True)
        case "optimize":
            table.indices.optimize()
        case verb if names:
            table.indices.extend(chance.choice(names), merge=verb == "merge")


@pytest.mark.parametrize("seed", range(1, pick(2, 20)))
@STABLE
def test_whatever_comes_in_whatever_order(tmp_path: Path, stable: bool, seed: int) -> None:
    """Several handles, most of them behind, so that every verb is carried over others or done again."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    root = tmp_path / "t"
    _make(root, stable)
    handles = [ty.Table.open(root, durability="os") for _ in range(3)]
    for _ in range(25):
        table = chance.choice(handles)
        try:
            _step(table, chance)
        except (NotFound, IncompatibleConflict, RetryableConflict):
            table.refresh()  # somebody else was faster
        _sound(root)

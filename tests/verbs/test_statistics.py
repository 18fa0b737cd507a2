"""Statistics of columns: what is left out by them is what nobody would have found, and what they answer is what a scan answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import cast

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.manifests import decoded_fragments
from tests.support.proving import pick
from tests.support.random_columns import KINDS, condition, rows
from tiltyard.format.schema import fields_from_arrow
from tiltyard.format.statistics import ColumnStatistics, FileStatistics, cut, decode_statistics, encode_statistics
from tiltyard.verbs.statistics import fragment_pruning, gather_statistics
from tiltyard.verbs.statistics.analyze import analyze_table, table_statistics
from tiltyard.verbs.statistics.bounded_conditions import AnyAnswer, understood
from tiltyard.verbs.statistics.distinct import Sketch, estimate
from tiltyard.verbs.statistics.fragment_pruning import kept_fragments
from tiltyard.verbs.statistics.lookup import fragment_statistics

STATISTICS = "_tiltyard/statistics"


@pytest.fixture(autouse=True)
def few_rows_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers look at, and readers look for, files of any length."""
    monkeypatch.setattr(gather_statistics, "FROM_ROWS", 1)
    monkeypatch.setattr(fragment_pruning, "FROM_ROWS", 1)


def make(root: Path, data: pa.Table, **more: object) -> ty.Table:
    return ty.Table.create(root, data, durability="os", **more)  # type: ignore[arg-type]


def numbers(first: int, count: int = 10) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "text": [f"t{n:05}" for n in range(first, first + count)]})


def four(root: Path) -> ty.Table:
    """Four fragments of ten rows, from 0, 100, 200 and 300."""
    table = make(root, numbers(0))
    for first in (100, 200, 300):
        table.append(numbers(first))
    return table


def kept(table: ty.Table, sql: str) -> list[int] | None:
    return kept_fragments(table._access, table._file.manifest, sql)


def found(table: ty.Table, sql: str) -> list[int]:
    return sorted(table.to_arrow(["id"], filter=sql).column("id").to_pylist())


def unpruned(table: ty.Table, sql: str) -> list[int]:
    return sorted(table.lance.to_table(columns=["id"], filter=f"({sql})").column("id").to_pylist())


# ---- the generator ---------------------------------------------------------------------------------------------------------


class History:
    """A table that random steps are done to, by us and by stock pylance."""

    def __init__(self, root: Path, seed: int) -> None:
        self.source = random.Random(seed)
        self.names = self.source.sample(sorted(KINDS), 7)
        self.next = 0
        version = self.source.choice(["2.0", "2.1", "2.2"])
        options = ty.TableOptions(data_format=version, files=ty.FileLimits(rows=15))
        self.table = make(root, self.rows(), stable_row_ids=self.source.random() < 0.5, options=options)
        self.old: list[int] = []
        self.pruned = self.checked = 0

    def rows(self) -> pa.Table:
        count = self.source.randrange(5, 25)
        self.next += count
        return rows(self.source, self.next - count, count, self.names)

    def append(self) -> None:
        self.table.append(self.rows().to_reader(7) if self.source.random() < 0.5 else self.rows(), files=ty.FileLimits(rows=15))

    def append_foreign(self) -> None:
        lance.write_dataset(self.rows().select(self.table.schema.names), self.table.uri, mode="append")
        self.table.refresh()

    def delete(self) -> None:
        self.table.delete(f"id % 7 = {self.source.randrange(7)} or id = {self.source.randrange(self.next)}")

    def update(self) -> None:
        name = self.source.choice([name for name in self.names if KINDS[name].sql is not None])
        sql = KINDS[name].sql
        assert sql is not None
        value = sql(KINDS[name].draw(self.source, self.source.randrange(3)))
        if name in ("york", "utc"):
            value = f"arrow_cast({value}, 'Timestamp(Microsecond, Some(\"{KINDS[name].type.tz}\"))')"
        self.table.update({name: value}, where=f"id % {self.source.randrange(1, 5)} = 0")

    def analyze(self) -> None:
        some = self.source.choice([None, ["id"]])
        analyze_table(self.table._access, self.table._file.manifest, some)

    def restore(self) -> None:
        self.table.restore(self.source.randrange(1, self.table.version + 1))

    def compact(self) -> None:
        self.table.compact(target_rows=self.source.choice([20, 60]))

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.append, self.append, self.append_foreign, self.delete, self.update]
        steps += [self.analyze, self.restore, self.compact]
        self.source.choice(steps)()
        self.old.append(self.table.version)

    def check(self, conditions: int) -> None:
        for version in {self.table.version, self.source.choice([self.table.version, *self.old])}:
            at = self.table if version == self.table.version else ty.Table.open(self.table.uri, version=version, durability="os")
            for _ in range(conditions):
                sql = condition(self.source, at.schema)
                try:
                    expected = unpruned(at, sql)
                except ValueError:
                    continue  # pylance does not take every literal for every type
                self.checked += 1
                assert found(at, sql) == expected, (version, sql)
                assert at.count_rows(sql) == len(expected), (version, sql)
                self.pruned += kept_fragments(at._access, at._file.manifest, sql) is not None


def test_a_pruned_scan_finds_what_a_whole_one_finds(tmp_path: Path) -> None:
    pruned = checked = 0
    for seed in range(pick(8, 400)):
        print("seed", seed)
        history = History(tmp_path / str(seed), seed)
        for _ in range(9):
            history.step()
            history.check(5)
        pruned, checked = pruned + history.pruned, checked + history.checked
    print(pruned, "of", checked)
    assert checked > pick(400, 20_000)
    assert pruned > pick(60, 4000), "too few conditions left a fragment out for this to prove anything"


# ---- who writes, who reads -------------------------------------------------------------------------------------------------


def test_writers_keep_statistics_of_what_they_write(tmp_path: Path) -> None:
    table = four(tmp_path / "t")
    known = table.layout.statistics()
    assert (known.rows, known.fragments, known.analyzed) == (40, 4, 0)
    assert known.columns["id"] == ty.ColumnSummary("id", 0, 0, 309, True, None, 4)
    assert (known.columns["text"].least, known.columns["text"].greatest) == ("t00000", "t00309")
    assert kept(table, "id > 105") == [1, 2, 3]
    assert kept(table, "id = 5 or id = 305") == [0, 3]
    assert kept(table, "text < 't00100'") == [0]
    assert found(table, "id > 305") == [306, 307, 308, 309]
    assert table.count_rows("id between 8 and 101") == 4
    assert found(table, "id < 0") == []
    assert table.to_arrow(filter="id < 0").schema.equals(table.schema)


@pytest.mark.parametrize("stream", [False, True])
def test_files_of_one_write_are_told_apart(tmp_path: Path, stream: bool) -> None:
    table = make(tmp_path / "t", numbers(0, 1))
    rows = numbers(100, 95)
    table.append(rows.to_reader(7) if stream else rows, files=ty.FileLimits(rows=30))
    assert [len(fragment.files) for fragment in table.layout.fragments] == [1] * 5
    assert kept(table, "id = 131") == [2]
    assert kept(table, "id = 194") == [4]
    written = table.distributed.write_task(files=ty.FileLimits(rows=30)).write(numbers(1000, 95))
    table.distributed.append([written])
    assert kept(table, "id = 1031") == [6]
    assert found(table, "id = 1031") == [1031]


def test_a_small_append_writes_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_statistics, "FROM_ROWS", 1 << 16)
    table = four(tmp_path / "t")
    assert not (tmp_path / "t" / STATISTICS).exists()
    assert table.layout.statistics().columns["id"].nulls is None


def test_files_of_foreign_writers_are_read(tmp_path: Path) -> None:
    table = four(tmp_path / "t")
    lance.write_dataset(numbers(500), str(tmp_path / "t"), mode="append")
    table.refresh()
    assert kept(table, "id = 5") == [0, 4]
    assert found(table, "id = 505") == [505]
    assert table.maintenance.analyze().analyzed == 5
    assert kept(table, "id = 505") == [4]
    assert table.maintenance.analyze().analyzed == 0


def test_deleted_rows_stay_within_the_bounds(tmp_path: Path) -> None:
    """What is deleted in one version is there in another: analyze looks at all that a file has."""
    table = make(tmp_path / "t", numbers(0))
    lance.write_dataset(numbers(100), str(tmp_path / "t"), mode="append")
    table.refresh()
    before = table.version
    table.delete("id >= 105")
    known = table.maintenance.analyze().columns["id"]
    assert (known.greatest, known.exact) == (109, False)
    table.restore(before)
    assert found(table, "id = 109") == [109]


def test_a_rewritten_column_counts_with_its_new_values(tmp_path: Path) -> None:
    table = four(tmp_path / "t")
    table.update({"text": "'z'"}, where="id < 10")
    assert any(len(fragment.files) > 1 for fragment in table.layout.fragments) or len(table.layout.fragments) > 4 - 1
    assert found(table, "text = 'z'") == list(range(10))
    assert found(table, "text = 't00001'") == []
    table.add_columns({"twice": "id * 2"})
    assert found(table, "twice = 6") == [3]
    table.maintenance.analyze()
    assert found(table, "text = 'z'") == list(range(10))
    assert found(table, "twice = 6") == [3]
    assert len(kept(table, "twice = 6") or []) == 1


def test_a_renamed_column_keeps_its_statistics_and_a_cast_one_loses_them(tmp_path: Path) -> None:
    table = four(tmp_path / "t")
    table.alter_columns({"path": "id", "name": "number"})
    assert kept(table, "number = 105") == [1]
    table.alter_columns({"path": "number", "data_type": pa.int32()})
    assert kept(table, "number = 105") is None
    assert table.count_rows("number = 105") == 1
    table.append(pa.table({"number": pa.array([105], pa.int32()), "text": ["x"]}))
    assert table.count_rows("number = 105") == 2


def test_compaction_looks_at_what_it_wrote(tmp_path: Path) -> None:
    table = four(tmp_path / "t")
    table.delete("id % 2 = 1")
    table.compact(target_rows=10)
    assert table.layout.statistics().columns["id"] == ty.ColumnSummary("id", 0, 0, 308, True, None, len(table.layout.fragments))
    assert found(table, "id = 304") == [304]


def test_deletes_and_updates_search_what_can_match(tmp_path: Path) -> None:
    table = four(tmp_path / "t")
    (tmp_path / "t" / "data" / table.layout.fragments[3].files[0].path).rename(tmp_path / "away")
    table.delete("id = 105")  # or it would miss the file of the last fragment
    table.update({"text": "'u'"}, where="id between 200 and 203")
    assert found(table, "text = 'u' and id < 300") == [200, 201, 202, 203]
    assert table.count_rows() == 39


# ---- records ---------------------------------------------------------------------------------------------------------------


def records(root: Path) -> list[Path]:
    return sorted((root / STATISTICS).glob("*.statistics"))


@pytest.mark.parametrize("damage", ["cut", "empty", "byte", "other", "gone", "future"])
def test_a_damaged_record_costs_no_row(tmp_path: Path, damage: str) -> None:
    four(tmp_path / "t")
    for path in records(tmp_path / "t"):
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            changed = {
                "cut": data[:-3],
                "empty": b"",
                "byte": data[:-5] + b"#" + data[-4:],
                "other": b"x" * 300,
                "future": data.replace(b"tics 1", b"tics 2"),
            }
            path.write_bytes(changed[damage])
    table = ty.Table.open(tmp_path / "t", durability="os")
    assert kept(table, "id = 105") is None
    assert found(table, "id = 105") == [105]
    table.maintenance.analyze()
    assert kept(table, "id = 105") == [1]


def test_a_record_of_another_file_is_not_believed(tmp_path: Path) -> None:
    """Restored from a copy, or made up: size and rows must be those of the file that the manifest names."""
    table = four(tmp_path / "t")
    name, size = table.layout.fragments[1].files[0].path, table.layout.fragments[1].files[0].size
    wrong = {0: ColumnStatistics("int64", 0, 1, 2)}
    for file in (
        FileStatistics(size + 1, 10, wrong),
        FileStatistics(size, 11, wrong),
        FileStatistics(size, 10, {0: ColumnStatistics("int32", 0, 1, 2)}),
    ):
        for path in records(tmp_path / "t"):
            path.unlink()
        (tmp_path / "t" / STATISTICS / "made-up.statistics").write_bytes(encode_statistics({name: file}))
        again = ty.Table.open(tmp_path / "t", durability="os")
        assert kept(again, "id = 105") is None
        assert found(again, "id = 105") == [105]


def test_cleanup_drops_what_is_told_of_files_that_went(tmp_path: Path) -> None:
    table = four(tmp_path / "t")
    table.delete("id < 200")
    table.compact(target_rows=100)
    told = [name for path in records(tmp_path / "t") for name in decode_statistics(path.read_bytes()) or {}]
    assert len(set(told)) == 5
    table.cleanup(keep_versions=1, grace=timedelta(0))
    (record,) = records(tmp_path / "t")
    assert set(decode_statistics(record.read_bytes()) or ()) == {
        file.path for fragment in table.layout.fragments for file in fragment.files
    }
    table.cleanup(grace=timedelta(0))
    assert records(tmp_path / "t") == [record]
    assert table.check().problems == ()
    assert table.check().orphans == ()


def test_cleanup_removes_records_that_say_nothing(tmp_path: Path) -> None:
    table = four(tmp_path / "t")
    (tmp_path / "t" / STATISTICS / "torn.statistics").write_bytes(b"tilty")
    table.cleanup(grace=timedelta(0))
    assert not any(path.name == "torn.statistics" for path in records(tmp_path / "t"))
    assert kept(table, "id = 105") == [1]


def test_one_of_sixteen_writers_joins_the_records(tmp_path: Path) -> None:
    table = make(tmp_path / "t", numbers(0))
    for number in range(1, 80):
        table.append(numbers(100 * number))
    assert len(records(tmp_path / "t")) < 79, "by chance once in 10**2 runs of 80 without one that joins"
    again = ty.Table.open(tmp_path / "t", durability="os")
    assert kept(again, "id = 4205") == [42]


def test_clones_and_branches_find_the_statistics_of_their_base(tmp_path: Path) -> None:
    table = four(tmp_path / "t")
    table.branches.create("b")
    table.clone(tmp_path / "clone")
    allowed = ty.Storage(durability="os", allowed_bases=(str(tmp_path / "t"),))
    for other in (ty.Table.open(tmp_path / "clone", storage=allowed), ty.Table.open(tmp_path / "t", branch="b", durability="os")):
        assert kept(other, "id = 105") == [1]
        assert found(other, "id = 105") == [105]
        other.append(numbers(900))
        assert kept(other, "id = 905") == [4]


# ---- bounds ----------------------------------------------------------------------------------------------------------------


def test_long_texts_are_cut_and_the_upper_bound_rounded_up() -> None:
    assert cut("a" * 80, "b" * 80) == ("a" * 64, "b" * 63 + "c", False)
    assert cut("a", "b" * 63 + "\ud7ff" + "x") == ("a", "b" * 63 + "\ue000", False)
    assert cut("a", "b" + "\U0010ffff" * 70) == ("a", "c", False)
    assert cut("a", "\U0010ffff" * 70) == ("a", None, False)
    assert cut("a", "b" * 64) == ("a", "b" * 64, True)


def test_records_are_read_as_they_were_written() -> None:
    columns = {
        0: ColumnStatistics("double", 3, float("-inf"), 5e-324),
        1: ColumnStatistics("string", 0, "", "\U0010ffff'", False),
        2: ColumnStatistics("decimal:128:38:4", 1, -(10**37), 10**37, True, Sketch().text()),
        7: ColumnStatistics("float", 4),
    }
    files = {"a.lance": FileStatistics(10, 4, columns), "b.lance": FileStatistics(2**40, 2**31, {})}
    data = encode_statistics(files)
    assert decode_statistics(data) == files
    assert all(decode_statistics(data[:at]) is None for at in range(len(data)))


@pytest.mark.parametrize("count", [1, 10, 300, 5000, 100_000])
def test_distinct_values_are_counted_about(count: int) -> None:
    for values in (
        pa.array(range(count), pa.int64()),
        pa.array([f"v{n}" for n in range(min(count, 5000))]),
        pa.array([n / 7 for n in range(count)]),
    ):
        sketch, twice = Sketch(), Sketch()
        sketch.add(pa.chunked_array([values, values]))
        twice.add(pa.chunked_array([values.slice(0, 2)]))
        exact = len(values)
        assert abs((estimate([sketch.text(), twice.text()]) or 0) - exact) <= max(2, 0.25 * exact)


@pytest.mark.parametrize(
    "sql",
    [
        "id + 1 = 5", "id = 5 = true", "id between 1 and id", "case when id = 1 then true end", "id is distinct from 5", '"id" = 5',
        "upper(text) = 'X'", "text like 't%'", "id in (1, id)", "id = null", "id.x = 5", "id = 5 xor text = 'x'",
        "id not between 1 and 5 and text = 'x'",
        "cast(id as string) = '5'", "ID = 5", "- id < 5", "id = 5 + id",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_left_to_pylance(sql: str) -> None:
    assert understood(sql, ("id", "text")) == AnyAnswer()


def test_names_that_differ_by_case_are_not_told_apart() -> None:
    assert understood("id = 5", ("id", "ID")) == AnyAnswer()


def test_a_column_with_nan_has_no_bounds(tmp_path: Path) -> None:
    table = make(tmp_path / "t", pa.table({"id": [0, 1], "x": [1.0, float("nan")]}))
    table.append(pa.table({"id": [2, 3], "x": [7.0, 8.0]}))
    for sql in ("x > 5", "x >= 9", "x != 1.0", "NOT (x < 5)", "isnan(x)", "x IS NOT NULL"):
        assert found(table, sql) == unpruned(table, sql), sql
    assert found(table, "x > 5") == [1, 2, 3]
    assert kept(table, "x < 6.0 and x is null") == [0]


def test_zeros_of_both_signs_are_found(tmp_path: Path) -> None:
    """Whether -0.0 is below 0.0 is not ours to decide: bounds do not tell them apart."""
    table = make(tmp_path / "t", pa.table({"id": [0], "x": [-0.0]}))
    table.append(pa.table({"id": [1], "x": [0.0]}))
    for sql in ("x < 0.0", "x > -0.0", "x <= -0.0", "x >= 0.0", "x = 0.0", "x != 0.0", "NOT (x >= 0.0)"):
        assert found(table, sql) == unpruned(table, sql), sql
    assert table.layout.statistics().columns["x"].exact is False


def test_columns_that_have_no_order_for_all_are_refused_by_name(tmp_path: Path) -> None:
    table = make(tmp_path / "t", pa.table({"id": [1], "v": [b"x"], "p": [{"x": 1}]}))
    assert list(table.maintenance.analyze().columns) == ["id"]
    for name in ("v", "p", "p.x", "nope"):
        with pytest.raises(ty.InvalidInput, match=f"Column '{name}' cannot be analyzed"):
            table.maintenance.analyze([name])


def test_a_stream_may_end_in_the_middle_of_a_file(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 100, 20):
            yield from numbers(first, 20).to_batches()

    schema = numbers(0).schema
    table = make(
        tmp_path / "t", pa.RecordBatchReader.from_batches(schema, batches()), options=ty.TableOptions(files=ty.FileLimits(rows=30))
    )
    stats = fragment_statistics(table._access, table._file.manifest, ["id"])
    assert [(part.rows, part.columns["id"].low, part.columns["id"].high) for part in stats] == [
        (30, 0, 29),
        (30, 30, 59),
        (30, 60, 89),
        (10, 90, 99),
    ]
    assert table_statistics(table._access, table._file.manifest).columns["id"].exact


def test_a_table_of_very_many_columns_is_asked_for_their_names_once() -> None:
    """Each time it makes a list of all of them, which is what an update of such a table spent half of its time on."""
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(300)])
    fields, _ = fields_from_arrow(schema, file_version=(2, 1))

    class Asked:
        names_of = fields_of = 0

        @property
        def names(self) -> list[str]:
            self.names_of += 1
            names: list[str] = schema.names
            return names

        def field(self, name: str) -> pa.Field:
            self.fields_of += 1
            return schema.field(name)

    asked = Asked()
    counted = gather_statistics.counted_columns(cast(pa.Schema, asked), fields, "2.1")
    assert [column.name for column in counted] == schema.names[: gather_statistics.MOST_COLUMNS]
    assert (asked.names_of, asked.fields_of) == (1, gather_statistics.MOST_COLUMNS)


# ---- what it costs to look -------------------------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The fragments that were turned into values."""
    return decoded_fragments(monkeypatch)


def test_where_nothing_is_known_no_fragment_is_looked_at(tmp_path: Path, decoded: list[bytes]) -> None:
    for first in (0, 100, 200, 300):
        lance.write_dataset(numbers(first), str(tmp_path), mode="append" if first else "create")
    table = ty.Table.open(tmp_path, durability="os")
    assert kept(table, "id = 105") is None
    assert [(one.id, one.rows, one.live, one.columns) for one in fragment_statistics(table._access, table._file.manifest)] == [
        (number, 10, 10, {}) for number in range(4)
    ]
    assert decoded == []
    assert table.delete("id = 105").rows["deleted"] == 1
    assert len(decoded) == 1, "only the one that is deleted from"
    decoded.clear()
    table.maintenance.analyze()
    assert kept(ty.Table.open(tmp_path), "id = 106") == [1], "what somebody found out since is found"
    assert kept(table, "id = 106") == [1]


def test_a_look_keeps_no_fragment(tmp_path: Path, decoded: list[bytes]) -> None:
    four(tmp_path)
    table = ty.Table.open(tmp_path, durability="os")
    assert kept(table, "id = 105") == kept(table, "id = 105") == [1]
    assert len(decoded) == 8, "nothing was kept of the first look"

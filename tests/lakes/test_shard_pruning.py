"""Which shards a condition can be about: few where it names keys, and never one too few."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tiltyard.lakes.sharded.pruning import shards_of
from tiltyard.lakes.sharded.shard_hash import shard_numbers
from tiltyard.lakes.sharded.sharding import Sharding

SCHEMA = pa.schema({"id": pa.int32(), "s": pa.string(), "x": pa.float64(), "Big": pa.int64(), "big": pa.int64()})
BY_ID = Sharding("t", ("id",), 16)
BY_TEXT = Sharding("t", ("s",), 16)
BY_BOTH = Sharding("t", ("id", "s"), 16)
ALL = list(range(16))


def of(sharding: Sharding, *keys: tuple[object, ...]) -> list[int]:
    columns = [pa.array(column, SCHEMA.field(name).type) for name, column in zip(sharding.columns, zip(*keys, strict=True), strict=True)]
    return sorted(set(shard_numbers(pa.table(columns, names=list(sharding.columns)), sharding.columns, 16).tolist()))


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("id = 5", [5]),
        ("5 = id", [5]),
        ("id == 5", [5]),
        ("(id = 5)", [5]),
        ("((id = 5) AND x > 2)", [5]),
        ("id=-7", [-7]),
        ("x > 1 and id = 5 and s like 'a%'", [5]),
        ("id in (1, 2,3)", [1, 2, 3]),
        ("id IN (-1)", [-1]),
        ("id = 5 AND (x = 1 OR x = 2)", [5]),
        ("id = 5 AND id = 6", [5]),
        ("id = 5 -- and more", [5]),
    ],
)
def test_keys_that_are_named(condition: str, ids: list[int]) -> None:
    assert shards_of(condition, BY_ID, SCHEMA) == of(BY_ID, *((number,) for number in ids))


@pytest.mark.parametrize(
    "condition",
    [
        None,
        "x = 5",
        "id > 5",
        "id != 5",
        "NOT id = 5",
        "not (id = 5)",
        "id = 5 or x > 1",
        "x between 1 and id = 5",
        "case when id = 5 then true else true end",
        "id = 5 + 1",
        "id = 5.0",
        "id = '5'",
        "id = x",
        "id = 5::int",
        "id = abs(5)",
        "id = 99999999999999",
        "id not in (1, 2)",
        "id in (1, x)",
        "id in (1) is true",
        "`id` = 5",
        '"id" = 5',
        "ID = 5",
        "t.id = 5",
        "3 - 5 = id",
        "id = 5 is not null",
        "id = null",
        "true",
        "id = 5 ; drop",
        "(id = 5",
    ],
)
def test_all_are_read_where_it_is_not_certain(condition: str | None) -> None:
    assert shards_of(condition, BY_ID, SCHEMA) == ALL


def test_text() -> None:
    assert shards_of("s = 'it''s'", BY_TEXT, SCHEMA) == of(BY_TEXT, ("it's",))
    assert shards_of("s in ('a', 'b')", BY_TEXT, SCHEMA) == of(BY_TEXT, ("a",), ("b",))
    assert shards_of("s = 5", BY_TEXT, SCHEMA) == ALL
    assert shards_of("s = 'a\\n'", BY_TEXT, SCHEMA) == ALL
    assert shards_of('s = "a"', BY_TEXT, SCHEMA) == ALL


def test_all_columns_are_needed() -> None:
    assert shards_of("id = 1", BY_BOTH, SCHEMA) == ALL
    assert shards_of("id in (1, 2) and s = 'a'", BY_BOTH, SCHEMA) == of(BY_BOTH, (1, "a"), (2, "a"))


def test_a_column_that_only_differs_in_case_is_not_told_apart() -> None:
    assert shards_of("Big = 1", Sharding("t", ("Big",), 16), SCHEMA) == ALL


def test_too_many_keys_are_all_shards() -> None:
    assert shards_of(f"id in ({', '.join(map(str, range(2000)))})", BY_ID, SCHEMA) == ALL
    assert shards_of("id in (1)", Sharding("t", ("id",), 1), SCHEMA) == [0]

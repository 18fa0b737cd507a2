"""Queries made by chance from a seed, and rows that have all that is awkward in them, for comparing two sources in Spark."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

TEXTS = ["", "a", "ab", "abc", "a%b", "a_b", "é", "日本", "b'c", "A", 'q"r', "z z"]
FLOATS = [0.0, -0.0, 1.5, -2.25, float("nan"), -float("nan"), float("inf"), float("-inf"), 1e300, 3.0, 1.1]
ZONES = ["UTC", "Europe/Berlin", "America/New_York"]


def awkward_rows(rows: int, seed: int) -> pa.Table:
    """Every type that filters, groups or nests, with nulls, NaN, both zeros and moments before 1970."""
    random = Random(seed)

    def some(make: Any, nulls: float = 0.15) -> list[Any]:
        return [None if random.random() < nulls else make() for _ in range(rows)]

    moments = [0, -1, 1, 1_577_836_800_123_456, 1_616_893_200_000_000, 1_635_640_200_000_000, -62_000_000_000_000_000]

    def moment() -> int:
        return random.choice(moments) + random.choice([0, 0, 3_600_000_000])

    columns = {
        "id": pa.array(range(rows), pa.int64()),
        "k": pa.array(some(lambda: random.randrange(8)), pa.int32()),
        "small": pa.array(some(lambda: random.randrange(-128, 128)), pa.int8()),
        "n": pa.array(some(lambda: random.randrange(-(10**12), 10**12)), pa.int64()),
        "d": pa.array(some(lambda: random.choice(FLOATS)), pa.float64()),
        "f": pa.array(some(lambda: random.choice([*FLOATS[:8], 3.0, 1.1])), pa.float32()),
        "s": pa.array(some(lambda: random.choice(TEXTS)), pa.string()),
        "b": pa.array(some(lambda: random.random() < 0.5), pa.bool_()),
        "day": pa.array(some(lambda: dt.date(1970, 1, 1) + dt.timedelta(days=random.randrange(-400, 400, 50))), pa.date32()),
        "at": pa.array(some(moment), pa.timestamp("us", "UTC")),
        "there": pa.array(some(moment), pa.timestamp("us", "Europe/Berlin")),
        "local": pa.array(some(moment), pa.timestamp("us")),
        "price": pa.array(some(lambda: Decimal(random.randrange(-500, 500)).scaleb(-2)), pa.decimal128(10, 2)),
        "blob": pa.array(some(lambda: random.choice(TEXTS).encode()), pa.binary()),
        "st": pa.array(
            some(lambda: {"q": random.choice([None, 1, 2, 3]), "in": random.choice([None, {"z": random.choice(TEXTS)}])}),
            pa.struct([("q", pa.int64()), ("in", pa.struct([("z", pa.string())]))]),
        ),
        "tags": pa.array(some(lambda: [random.choice([None, *TEXTS[:4]]) for _ in range(random.randrange(4))]), pa.list_(pa.string())),
        "map": pa.array(some(lambda: [(key, random.choice([None, 1, 2])) for key in "xy"]), pa.map_(pa.string(), pa.int32())),
    }
    return pa.table(columns)


class Queries:
    """Makes queries over a table ``{t}`` of awkward rows and a small one ``{u}`` with columns ``k``, ``name`` and ``rate``."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def all(self) -> list[str]:
        """At least 60, of every kind."""
        made = [self.filtered() for _ in range(24)] + [self.grouped() for _ in range(18)]
        made += (
            [self.joined() for _ in range(8)]
            + [self.nested() for _ in range(6)]
            + [self.timed(column, sign) for sign in ("<", ">=", "=") for column in ("at", "there", "local")]
        )
        return made + FIXED

    def filtered(self) -> str:
        columns = ", ".join(self._random.sample(["k", "n", "d", "s", "day", "at", "price", "st", "tags", "map", "blob", "local"], 3))
        return f"select id, {columns} from {{t}} where {self.condition(3)}"  # noqa: S608

    def grouped(self) -> str:
        pick, keys = self._random, self._random.sample(["k", "s", "b", "day", "f", "d", "at", "price", "small"], self._random.randrange(3))
        counted = ["count(*)", "count(n)", "sum(k)", "sum(n)", "sum(small)", "avg(n)", "avg(k)", "min(n)", "max(n)", "min(s)", "max(s)"]
        counted += ["min(day)", "max(at)", "min(local)", "count(st)", "sum(price)", "max(price)", "min(d)", "max(d)", "min(f)", "max(f)"]
        counted += ["count(distinct s)", "sum(n + 1)", "count(*) filter (where b)", "min(b)", "avg(price)", "count(f)"]
        chosen = pick.sample(counted, pick.randrange(1, 5))
        where = f" where {self.condition(2)}" if pick.random() < 0.6 else ""
        group = f" group by {', '.join(keys)}" if keys else ""
        having = " having count(*) > 2" if keys and pick.random() < 0.2 else ""
        return f"select {', '.join([*keys, *chosen])} from {{t}}{where}{group}{having}"  # noqa: S608

    def joined(self) -> str:
        kind = self._random.choice(["join", "left join", "full join", "left semi join", "left anti join"])
        more = f" and {self.condition(1, 'a.')}" if self._random.random() < 0.5 else ""
        shown = "a.id, a.s" if "semi" in kind or "anti" in kind else "a.id, a.s, u.name, u.rate"
        return f"select {shown} from {{t}} a {kind} {{u}} u on a.k = u.k{more} where {self.condition(1, 'a.')}"  # noqa: S608

    def nested(self) -> str:
        shown = self._random.choice(["st.q", "st.in.z", "size(tags)", "map['x']", "get(tags, 0)", "st.in"])
        test = self._random.choice(
            ["st.q = 1", "st.q is null", "st.in.z = 'a'", "array_contains(tags, 'a')", "map['x'] = 1", "st is not null"]
        )
        return f"select id, {shown} as v from {{t}} where {test} or not ({self.condition(1)})"  # noqa: S608

    def timed(self, column: str, sign: str) -> str:
        moment = self._random.choice(
            ["2020-01-01 01:00:00.123456", "2021-03-28 02:00:00", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00"]
        )
        kind = "timestamp_ntz" if column == "local" else "timestamp"
        return f"select id, {column}, hour({column}), date({column}) from {{t}} where {column} {sign} {kind} '{moment}'"  # noqa: S608

    def condition(self, depth: int, of: str = "") -> str:
        pick = self._random
        if depth == 0 or pick.random() < 0.25:
            return self.atom(of)
        kind = pick.choice(["and", "or", "not", "and", "or"])
        if kind == "not":
            return f"not ({self.condition(depth - 1, of)})"
        return f"({self.condition(depth - 1, of)} {kind} {self.condition(depth - 1, of)})"

    def atom(self, of: str = "") -> str:
        pick = self._random
        sign = pick.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
        number = pick.choice(["0", "3", "-5", "7"])
        text = pick.choice(TEXTS).replace("'", "''").replace("\\", "\\\\")
        real = pick.choice(["0.0d", "-0.0d", "1.5d", "double('NaN')", "double('Infinity')", "-2.25d", "1.1d"])
        return pick.choice(
            [
                f"{of}k {sign} {number}",
                f"{of}small {sign} {number}",
                f"{of}n {sign} {pick.choice(['0', '100000000000', '-1'])}",
                f"{of}d {sign} {real}",
                f"{of}f {sign} float({real})",
                f"{of}s {sign} '{text}'",
                f"{of}s like '{pick.choice(['a%', '%b', '%é%', 'a_b', '%', 'ab', '%a%b%', 'a%%b%', '%a%_%'])}'",
                f"{of}s in ({', '.join(self._quoted())})",
                f"{of}k not in (1, 2, {pick.choice(['3', 'null'])})",
                f"{of}id in ({', '.join(map(str, pick.sample(range(400), 15)))})",
                f"{of}{pick.choice(['k', 's', 'd', 'st', 'tags', 'price', 'at'])} is {pick.choice(['', 'not '])}null",
                f"{of}b",
                f"{of}day {sign} date '{pick.choice(['1970-01-01', '1969-08-04', '1971-01-01'])}'",
                f"{of}price {sign} {pick.choice(['0.00', '1.25', '-3.5', '1.255', '99999999999.0'])}",
                f"{of}st.q {sign} {pick.choice('123')}",
                f"isnan({of}d)",
                f"{of}k {sign} {of}small",
                f"{of}id % 7 = {pick.randrange(7)}",
                f"{of}blob = cast('a' as binary)",
                f"{of}k between 2 and 5",
                f"{of}k + 1 > {number}",
            ]
        )

    def _quoted(self) -> list[str]:
        return ["'" + text.replace("'", "''") + "'" for text in self._random.sample(TEXTS, 3)]


FIXED = [
    "select count(*) from {t}",
    "select count(*), count(1) + 1 from {t} where k = 3",
    "select a.id, b.id from {t} a join {t} b on a.id = b.id + 1 where a.k = 1 and b.k <> 1",
    "select id from {t} where k = 1 union all select id from {t} where k = 2 union all select id from {t} where s = 'a'",
    "select id, n from {t} where n > (select avg(n) from {t} where k = 2) and k is not null",
    "select id from {t} a where exists (select 1 from {u} u where u.k = a.k and u.rate > 1)",
    "select k, id, row_number() over (partition by k order by id) r from {t} where k in (1, 2)",
    "select id, s from {t} where s is not null order by id limit 7",
    "select id from {t} order by id limit 5 offset 10",
    "with x as (select k, count(*) c from {t} group by k) select a.k, a.c, b.c from x a join x b on a.k = b.k",
    "select tag, count(*) from (select explode(tags) tag from {t}) group by tag",
    "select distinct s, b from {t}",
    "select id from {t} where false",
    "select sum(n) from {t} where id < 0",
    "select count(*), min(n), avg(k) from {t} where id < 0",
    "select k, count(*) from {t} where id < 0 group by k",
    "select max(id), min(id) from {t}",
    "select s, max(c) from (select s, k, count(*) c from {t} group by s, k) group by s",
]


def comparable(rows: Iterable[Any]) -> list[str]:
    """Rows in an order of their own, with numbers cut to what adding up in another order leaves of them."""
    return sorted(repr(_plain(row)) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else f"{value:.9g}"
    if isinstance(value, dict):
        return sorted((str(key), _plain(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return value

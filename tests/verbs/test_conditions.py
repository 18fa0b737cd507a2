"""A condition or an expression is taken whole or refused, at every door.

Expressions are made at random together with what they mean, evaluated by Python. Then text is put behind, in front of or into them: the
result is refused, or it means what all of the text means.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.proving import pick
from tiltyard.errors import InvalidInput
from tiltyard.verbs.engine.sql_expressions import condition

ROWS = [{"id": number, "n": number % 5, "m": None if number % 7 == 0 else number % 3, "s": "ab'c;)"[number % 6]} for number in range(60)]
TABLE = pa.table({name: [row[name] for row in ROWS] for name in ROWS[0]})
ROUNDS = pick(250, 4000)

TAILS = (
    " limit 1",
    " order by id",
    " order by id limit 1",
    " andd id = 1",
    "; and id = 1",
    ";",
    ", id = 1",
    ") and (id = 1",
    " group by n",
    " having n = 1",
    " union select 1",
    " for update",
    " as x",
    " x",
    " 'b'",
    ' "b"',
    " fetch first 1 row only",
    " offset 3",
    " qualify n",
    " 1",
    " (n = 1)",
    " limit 1 --",
    ") limit 1 --",
    ") or (true",
    ") -- ",
    " -- \n limit 1",
    " /* */ limit 1",
    " /*",
    " */",
    " \\ 2",
    " \0",
    " # x",
    " $$",
    " ?",
    " :x",
    " window w as ()",
    " lateral view x",
    " into y",
    "'",
    '"',
    "`",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    " ,",
    " [0",
    " from t",
    " where n = 1",
    " _0",
)
"""What pylance drops without a word, and what could close or swallow the brackets it is given."""


@dataclass(frozen=True)
class Made:
    """An expression, and what it gives for a row: true, false or null."""

    text: str
    holds: Callable[[dict[str, Any]], bool | None]


def _compared(rnd: random.Random) -> Made:
    name = rnd.choice(("id", "n", "m"))
    value, sign = rnd.randrange(-2, 8), rnd.choice(("=", "<>", "<", ">", "<=", ">=", "==", "!="))
    tests = {
        "=": lambda a: a == value, "==": lambda a: a == value, "<>": lambda a: a != value, "!=": lambda a: a != value,
        "<": lambda a: a < value, ">": lambda a: a > value, "<=": lambda a: a <= value, ">=": lambda a: a >= value,
    }  # fmt: skip
    shown = rnd.choice((name, f"`{name}`", name.upper(), f"({name})"))
    space = rnd.choice((" ", "\n", "\t", " /* ( ; */ ", " -- ) limit 1\n"))
    return Made(f"{shown}{space}{sign}{space}{value}", lambda row: None if row[name] is None else tests[sign](row[name]))


def _listed(rnd: random.Random) -> Made:
    if rnd.random() < 0.5:
        letter = rnd.choice("ab'c;)")
        quoted = letter.replace("'", "''")
        return Made(rnd.choice((f"s = '{quoted}'", f's = "{letter}"')), lambda row: bool(row["s"] == letter))
    values = rnd.sample(range(6), 3)
    return Made(f"n in ({', '.join(map(str, values))})", lambda row: row["n"] in values)


def made(rnd: random.Random, depth: int = 3) -> Made:
    if depth == 0 or rnd.random() < 0.25:
        kind = rnd.random()
        if kind < 0.15:
            return Made("m is null", lambda row: row["m"] is None)
        if kind < 0.3:
            low, high = sorted((rnd.randrange(6), rnd.randrange(6)))
            return Made(f"n between {low} and {high}", lambda row: low <= row["n"] <= high)
        return _listed(rnd) if kind < 0.6 else _compared(rnd)
    if rnd.random() < 0.2:
        inner = made(rnd, depth - 1)
        return Made(f"not ({inner.text}\n)", lambda row: None if (found := inner.holds(row)) is None else not found)
    one, two = made(rnd, depth - 1), made(rnd, depth - 1)
    word = rnd.choice(("and", "or"))
    decided = word == "or"

    def holds(row: dict[str, Any]) -> bool | None:
        both = (one.holds(row), two.holds(row))
        return decided if decided in both else None if None in both else not decided

    return Made(f"({one.text}\n) {word} ({two.text}\n)", holds)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ty.Table:
    return ty.Table.create(tmp_path_factory.mktemp("conditions") / "t", TABLE, durability="os")


def test_whole_expressions_mean_what_they_say(table: ty.Table) -> None:
    rnd = random.Random(13)
    for number in range(ROUNDS):
        one = made(rnd)
        expected = [row["id"] for row in ROWS if one.holds(row)]
        assert table.to_arrow(columns=["id"], filter=one.text)["id"].to_pylist() == expected, (13, number, one.text)


def test_text_around_an_expression_is_refused_or_counts(table: ty.Table) -> None:
    """Refused, or as pylance understands all of it: the same text in a pair of brackets that nothing in it can close."""
    rnd = random.Random(7)
    taken = 0
    for number in range(ROUNDS):
        one = made(rnd, 2)
        tail = rnd.choice(TAILS)
        place = rnd.random()
        cut = rnd.randrange(len(one.text) + 1)
        text = one.text + tail if place < 0.7 else tail + one.text if place < 0.8 else one.text[:cut] + tail + one.text[cut:]
        try:
            found = table.count_rows(text)
        except InvalidInput:
            continue
        taken += 1
        assert found == _counted(table, text), (7, number, text)
    assert taken < ROUNDS // 3


def _counted(table: ty.Table, text: str) -> int:
    """How many rows a text holds for, by a grammar that cannot drop a rest: the text is an operand inside a larger expression."""
    both = table.lance.count_rows(f"((({text}\n)) and (id >= 0)) or (1 = 0)")
    return int(both)


@pytest.mark.parametrize("tail", TAILS)
def test_every_tail_behind_a_plain_condition(tail: str, table: ty.Table) -> None:
    with pytest.raises(InvalidInput, match=r"character \d+|there is no column") as caught:
        table.count_rows("n = 1" + tail)
    assert "filter" in str(caught.value)


DOORS: dict[str, Callable[[ty.Table, str], object]] = {
    "delete": lambda t, text: t.delete(text),
    "count": lambda t, text: t.count_rows(text),
    "read": lambda t, text: t.to_arrow(filter=text),
    "scan": lambda t, text: t.scan(filter=text).read_all(),
    "columns": lambda t, text: t.to_arrow(columns={"x": text}),
    "scan task": lambda t, text: t.distributed.scan_task().scan({"x": text}).read_all(),
    "update where": lambda t, text: t.update({"n": "1"}, where=text),
    "update rows where": lambda t, text: t.update({"n": "1"}, where=text, mode="rows"),
    "update columns where": lambda t, text: t.update({"n": "1"}, where=text, mode="columns"),
    "update value": lambda t, text: t.update({"n": text}, mode="columns"),
    "update value of rows": lambda t, text: t.update({"n": text}, mode="rows"),
    "add columns": lambda t, text: t.add_columns({"z": text}),
    "merge update": lambda t, text: t.merge(TABLE, on="id").when_matched_update_all(f"source.{text}").execute(),
    "merge delete": lambda t, text: t.merge(TABLE, on="id").when_matched_delete(f"target.{text}").execute(),
    "merge where nothing matches": lambda t, text: (
        t.merge(TABLE.slice(0, 0), on="id").when_matched_delete(f"target.{text}").when_not_matched_insert_all().execute()
    ),
    "merge by source": lambda t, text: t.merge(TABLE, on="id").when_not_matched_by_source_delete(text).execute(),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("tail", [" limit 1", "; n = 2", ", n", ") or (true", " andd", " -- \n limit 1"])
def test_every_door(door: str, tail: str, table: ty.Table) -> None:
    with pytest.raises(InvalidInput, match=r"character \d+"):
        DOORS[door](table, "n = 1" + tail)
    assert (table.version, table.count_rows()) == (1, len(ROWS))


def test_a_comment_does_not_swallow_what_follows(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", TABLE, durability="os")
    assert table.update({"n": "n + 100 -- more"}, where="id < 3 -- only these", mode="rows").rows["updated"] == 3
    assert table.to_arrow(columns={"v": "n -- (", "id": "id"}, filter="id = 2 -- )")["v"].to_pylist() == [102]


@pytest.mark.parametrize(
    "text",
    [
        "+".join(["n"] * 5000) + " = 1", "n" + "::bigint" * 5000 + " = 1", "(" * 5000 + "n = 1" + ")" * 5000, "n" + "['a']" * 5000 + " = 1",
        " or ".join(["n = 1"] * 60_000), "not " * 5000 + "n = 1", "n = " + "- " * 5000 + "1", "n = " + "abs(" * 5000 + "1" + ")" * 5000,
    ],
    ids=["sum", "casts", "brackets", "members", "ors", "nots", "minuses", "calls"],
)  # fmt: skip
def test_depth_is_refused_before_it_ends_the_process(text: str, table: ty.Table) -> None:
    with pytest.raises(InvalidInput):
        table.count_rows(text)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("n = 1" + " + 0" * 280, 12), ("n = 1" + " or n = 1" * 5000, 12), ("n in (" + ", ".join(map(str, range(20_000))) + ")", 60),
        ("n" + "::bigint" * 280 + " = 1", 12),
    ],
    ids=["sum", "ors", "list", "casts"],
)  # fmt: skip
def test_long_conditions_are_taken(text: str, rows: int, table: ty.Table) -> None:
    assert table.count_rows(text) == rows


def test_what_a_position_is(table: ty.Table) -> None:
    for text, at in {"n = 1 limit 1": 7, "n = 1;": 6, "(n = 1": 1, "n = 1)": 6, "s = 'x": 5, "n = 1 and": 7, "n = 1, 2": 6}.items():
        with pytest.raises(InvalidInput, match=f"at character {at}\\."):
            condition(text, table.schema)


def test_pylance_itself_drops_what_follows(tmp_path: Path) -> None:
    """Why all this: should pylance one day refuse it, this fails, and the brackets can go."""
    found = lance.write_dataset(TABLE, str(tmp_path / "t"))
    assert found.count_rows("n = 1 limit 1") == 12

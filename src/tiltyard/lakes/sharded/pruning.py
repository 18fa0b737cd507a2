"""Which shards a condition can be about: those of the keys that it names.

A condition is looked at token by token. What it must say of every row, joined by AND at its top level, is compared with two forms:
``column = literal`` and ``column IN (literals)``. If all shard columns are given that way, only the shards of those keys can have rows.
Anything that is not understood for certain - other types of literals, quoted names, OR, functions - leaves all shards in.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Final

import pyarrow as pa

from tiltyard.errors import InvalidInput
from tiltyard.lakes.sharded.shard_hash import shard_numbers
from tiltyard.lakes.sharded.sharding import Sharding
from tiltyard.verbs.engine.sql_expressions import Token, expression_tokens

MOST_KEYS: Final = 1000
"""Keys that a condition may name before all shards are read."""

_NOT_CONJUNCTIONS: Final = frozenset({"or", "between", "case", "xor"})
"""Words that make an AND mean something else, or nothing for the whole row."""


def shards_of(condition: str | None, sharding: Sharding, schema: pa.Schema) -> list[int]:
    """The shards that can have rows which a condition holds for, ascending."""
    every = list(range(sharding.shards))
    if condition is None or sharding.shards == 1:
        return every
    try:
        tokens = expression_tokens(condition, "filter")
    except InvalidInput:
        return every  # whoever evaluates it says what is wrong with it
    values = _constraints(tokens, [schema.field(name) for name in sharding.columns], schema)
    if any(name not in values for name in sharding.columns):
        return every
    keys = list(product(*(values[name] for name in sharding.columns)))
    if len(keys) > MOST_KEYS:
        return every
    arrays = [pa.array(column, schema.field(name).type) for name, column in zip(sharding.columns, zip(*keys, strict=True), strict=True)]
    return sorted(set(shard_numbers(pa.table(arrays, names=list(sharding.columns)), sharding.columns, sharding.shards).tolist()))


def _constraints(tokens: Sequence[Token], columns: Sequence[pa.Field], schema: pa.Schema) -> dict[str, list[Any]]:
    """The values that each column can have, as far as the condition says so."""
    found: dict[str, list[Any]] = {}
    known = {field.name: field for field in columns if sum(name.lower() == field.name.lower() for name in schema.names) == 1}
    for part in _conjuncts(tokens):
        inner = part
        if len(part) > 2 and part[0].text == "(" and _closes(part) == len(part) - 1:
            for name, values in _constraints(part[1:-1], columns, schema).items():
                found.setdefault(name, values)
            continue
        name, literals = _equality(inner)
        if name in known:
            with suppress(ValueError):
                found.setdefault(name, [_value(literal, known[name].type) for literal in literals])
    return found


def _closes(tokens: Sequence[Token]) -> int:
    """Where the bracket closes that the first token opens."""
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token.kind == "open") - (token.kind == "close")
        if not depth:
            return place
    return -1


def _conjuncts(tokens: Sequence[Token]) -> list[list[Token]]:
    """What is joined by AND at the top level; nothing where other words are there as well."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.kind == "open") - (token.kind == "close")
        word = token.text.lower() if token.kind == "word" and not depth else ""
        if word in _NOT_CONJUNCTIONS:
            return []
        if word == "and":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _equality(tokens: Sequence[Token]) -> tuple[str, list[list[Token]]]:
    """The column and the literals of ``column = literal``, ``literal = column`` or ``column IN (...)``; an empty name for all else."""
    texts = [token.text.lower() for token in tokens]
    if len(tokens) >= 3 and tokens[0].kind == "word" and texts[1] in ("=", "=="):
        return tokens[0].text, [list(tokens[2:])]
    if len(tokens) >= 3 and tokens[-1].kind == "word" and texts[-2] in ("=", "=="):
        return tokens[-1].text, [list(tokens[:-2])]
    if len(tokens) >= 4 and tokens[0].kind == "word" and texts[1:3] == ["in", "("] and texts[-1] == ")":
        parts: list[list[Token]] = [[]]
        for token in tokens[3:-1]:
            if token.kind == "comma":
                parts.append([])
            else:
                parts[-1].append(token)
        return tokens[0].text, parts
    return "", []


def _value(tokens: Sequence[Token], kind: pa.DataType) -> Any:
    """What a literal says in a column of a type.

    Raises:
        ValueError: it is no literal whose value in this type is known for certain.
    """
    text = "".join(token.text for token in tokens)
    plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if plain and len(tokens) == 1 and tokens[0].kind == "string" and text[0] == "'" and "\\" not in text:
        return text[1:-1].replace("''", "'")
    negative = len(tokens) == 2 and tokens[0].text == "-"
    if (
        pa.types.is_integer(kind)
        and tokens
        and tokens[-1].kind == "number"
        and (len(tokens) == 1 or negative)
        and tokens[-1].text.isdecimal()
    ):
        try:
            return pa.scalar(int(text), kind).as_py()
        except (pa.ArrowInvalid, OverflowError) as error:
            raise ValueError(text) from error
    raise ValueError(text)

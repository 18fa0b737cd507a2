"""Rows like those of TPC-H, made by ourselves from a seed: the same tables, keys, ranges and skews, other texts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final

import numpy as np
import pyarrow as pa

Random = np.random.Generator
_EPOCH: Final = date(1970, 1, 1)


def _day(year: int, month: int, day: int) -> int:
    return (date(year, month, day) - _EPOCH).days


FIRST_DAY: Final = _day(1992, 1, 1)
LAST_DAY: Final = _day(1998, 8, 2)
"""The days that orders are made on."""
TODAY: Final = _day(1995, 6, 17)
"""What was received by then may have been returned; what was shipped later is still open."""

REGIONS: Final = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
NATIONS: Final = (
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0), ("FRANCE", 3), ("GERMANY", 3),
    ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2), ("JORDAN", 4), ("KENYA", 0), ("MOROCCO", 0),
    ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4), ("VIETNAM", 2), ("RUSSIA", 3),
    ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
)  # fmt: skip
_COLOURS: Final = (
    "almond antique aquamarine azure beige bisque black blanched blue blush brown burlywood burnished chartreuse chiffon chocolate "
    "coral cornflower cornsilk cream cyan dark deep dim dodger drab firebrick floral forest frosted gainsboro ghost goldenrod "
    "green grey honeydew hot indian ivory khaki lace lavender lawn lemon light lime linen magenta maroon medium metallic midnight "
    "mint misty moccasin navajo navy olive orange orchid pale papaya peach peru pink plum powder puff purple red rose rosy royal "
    "saddle salmon sandy seashell sienna sky slate smoke snow spring steel tan thistle tomato turquoise violet wheat white yellow"
)
_WORDS: Final = (
    "furiously quickly carefully slyly blithely the even final regular express ironic bold pending silent special unusual deposits "
    "packages requests accounts foxes ideas theodolites pinto beans instructions dependencies excuses platelets asymptotes courts "
    "dolphins sleep wake are haggle nag use boost among above along across about after against"
)
COLOURS: Final = tuple(_COLOURS.split())
WORDS: Final = tuple(_WORDS.split())
TYPES: Final = (
    ("STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"),
    ("ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"),
    ("TIN", "NICKEL", "BRASS", "STEEL", "COPPER"),
)
CONTAINERS: Final = (("SM", "LG", "MED", "JUMBO", "WRAP"), ("CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM"))
SEGMENTS: Final = ("AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD")
PRIORITIES: Final = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
INSTRUCTIONS: Final = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
MODES: Final = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")


def tables(scale: float, seed: int) -> dict[str, pa.Table]:
    """All eight tables.

    Args:
        scale: 1 is six million lines of orders.
        seed: the same gives the same rows.
    """
    random = np.random.default_rng(seed)
    texts = _Texts(random)
    suppliers, parts, customers, orders = (max(int(scale * count), 40) for count in (10_000, 200_000, 150_000, 1_500_000))
    ordered, lines = _orders(random, texts, (orders, customers, parts, suppliers))
    return {
        "region": pa.table({"r_regionkey": _ints(np.arange(5)), "r_name": list(REGIONS), "r_comment": texts.some(5, 31, 115)}),
        "nation": pa.table(
            {
                "n_nationkey": _ints(np.arange(25)),
                "n_name": [name for name, _ in NATIONS],
                "n_regionkey": _ints(np.array([region for _, region in NATIONS])),
                "n_comment": texts.some(25, 31, 114),
            }
        ),
        "supplier": _supplier(random, texts, suppliers),
        "part": _part(random, texts, parts),
        "partsupp": _partsupp(random, texts, parts, suppliers),
        "customer": _customer(random, texts, customers),
        "orders": ordered,
        "lineitem": lines,
    }


class _Texts:
    """Comments: pieces of one long text of words, as the standard has it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        text = " ".join(random.choice(WORDS, 200_000))
        self._pool = np.frombuffer(text.encode(), np.uint8)

    def some(self, count: int, least: int, most: int) -> pa.Array:
        lengths = self._random.integers(least, most + 1, count)
        starts = self._random.integers(0, len(self._pool) - most, count)
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1], dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(self._pool[places]))


def _ints(values: Any) -> pa.Array:
    return pa.array(np.asarray(values), pa.int32())


def _longs(values: Any) -> pa.Array:
    return pa.array(np.asarray(values), pa.int64())


def _money(cents: Any) -> pa.Array:
    """Hundredths as DECIMAL(15, 2), by their bytes."""
    wide = np.empty((len(cents), 2), np.int64)
    wide[:, 0] = cents
    wide[:, 1] = np.where(wide[:, 0] < 0, -1, 0)
    return pa.Array.from_buffers(pa.decimal128(15, 2), len(cents), [None, pa.py_buffer(wide)])


def _dates(days: Any) -> pa.Array:
    return pa.array(np.asarray(days), pa.int32()).cast(pa.date32())


def _chosen(random: Random, count: int, words: Sequence[str]) -> pa.Array:
    return _of(random.integers(0, len(words), count), words)


def _of(places: Any, words: Sequence[str]) -> pa.Array:
    return pa.array(list(words)).take(pa.array(places))


def _numbered(word: str, keys: Any) -> pa.Array:
    return pa.array(np.char.add(f"{word}#", np.char.zfill(np.asarray(keys).astype(str), 9)))


def _phones(random: Random, nations: Any) -> pa.Array:
    parts = [
        np.asarray(nations) + 10,
        *(random.integers(least, most, len(nations)) for least, most in ((100, 1000),) * 2 + ((1000, 10000),)),
    ]
    text = parts[0].astype(str)
    for part in parts[1:]:
        text = np.char.add(np.char.add(text, "-"), part.astype(str))
    return pa.array(text)


def _supplier(random: Random, texts: _Texts, count: int) -> pa.Table:
    keys, nations = np.arange(1, count + 1), random.integers(0, 25, count)
    comments = texts.some(count, 25, 100).to_pylist()
    few = random.permutation(count)[: max(count // 1000, 2)]
    for number, place in enumerate(few):
        comments[place] = f"{comments[place][:10]} Customer sly {'Complaints' if number % 2 else 'Recommends'}"
    return pa.table(
        {
            "s_suppkey": _longs(keys),
            "s_name": _numbered("Supplier", keys),
            "s_address": texts.some(count, 10, 40),
            "s_nationkey": _ints(nations),
            "s_phone": _phones(random, nations),
            "s_acctbal": _money(random.integers(-99_999, 1_000_000, count)),
            "s_comment": pa.array(comments),
        }
    )


def _retail(keys: Any) -> Any:
    return 90_000 + (keys // 10) % 20_001 + 100 * (keys % 1000)


def _part(random: Random, texts: _Texts, count: int) -> pa.Table:
    keys = np.arange(1, count + 1)
    colours = np.array(COLOURS)
    picked = np.argsort(random.random((count, len(COLOURS))), axis=1)[:, :5]
    names = colours[picked[:, 0]]
    for place in range(1, 5):
        names = np.char.add(np.char.add(names, " "), colours[picked[:, place]])
    maker = random.integers(1, 6, count)
    kinds = [f"{one} {two} {three}" for one in TYPES[0] for two in TYPES[1] for three in TYPES[2]]
    boxes = [f"{one} {two}" for one in CONTAINERS[0] for two in CONTAINERS[1]]
    return pa.table(
        {
            "p_partkey": _longs(keys),
            "p_name": pa.array(names),
            "p_mfgr": pa.array(np.char.add("Manufacturer#", maker.astype(str))),
            "p_brand": pa.array(np.char.add("Brand#", (maker * 10 + random.integers(1, 6, count)).astype(str))),
            "p_type": _chosen(random, count, kinds),
            "p_size": _ints(random.integers(1, 51, count)),
            "p_container": _chosen(random, count, boxes),
            "p_retailprice": _money(_retail(keys)),
            "p_comment": texts.some(count, 5, 22),
        }
    )


def _supplier_of(part: Any, which: Any, suppliers: int) -> Any:
    """The suppliers of a part: four, spread over all."""
    return (part + which * (suppliers // 4 + (part - 1) // suppliers)) % suppliers + 1


def _partsupp(random: Random, texts: _Texts, parts: int, suppliers: int) -> pa.Table:
    part, which = np.repeat(np.arange(1, parts + 1), 4), np.tile(np.arange(4), parts)
    return pa.table(
        {
            "ps_partkey": _longs(part),
            "ps_suppkey": _longs(_supplier_of(part, which, suppliers)),
            "ps_availqty": _ints(random.integers(1, 10_000, len(part))),
            "ps_supplycost": _money(random.integers(100, 100_001, len(part))),
            "ps_comment": texts.some(len(part), 49, 198),
        }
    )


def _customer(random: Random, texts: _Texts, count: int) -> pa.Table:
    keys, nations = np.arange(1, count + 1), random.integers(0, 25, count)
    return pa.table(
        {
            "c_custkey": _longs(keys),
            "c_name": _numbered("Customer", keys),
            "c_address": texts.some(count, 10, 40),
            "c_nationkey": _ints(nations),
            "c_phone": _phones(random, nations),
            "c_acctbal": _money(random.integers(-99_999, 1_000_000, count)),
            "c_mktsegment": _chosen(random, count, SEGMENTS),
            "c_comment": texts.some(count, 29, 116),
        }
    )


def _orders(random: Random, texts: _Texts, counts: tuple[int, int, int, int]) -> tuple[pa.Table, pa.Table]:
    """Orders and their lines: one to seven each. A third of the customers never order; of 32 order keys eight are used."""
    count, customers, parts, suppliers = counts
    place = np.arange(count)
    keys = place // 8 * 32 + place % 8 + 1
    buyers = random.integers(1, customers + 1, count)
    buyers = np.where(buyers % 3 == 0, np.maximum(buyers - 1, 1), buyers)
    days = random.integers(FIRST_DAY, LAST_DAY + 1, count)
    many = random.integers(1, 8, count)
    first = np.cumsum(many) - many
    lines = _lines(random, texts, keys.repeat(many), days.repeat(many), np.arange(many.sum()) - first.repeat(many) + 1, (parts, suppliers))
    cents, shipped = lines.pop("cents"), lines.pop("shipped")
    open_lines = np.add.reduceat((shipped > TODAY).astype(np.int64), first)
    status = np.where(open_lines == 0, 0, np.where(open_lines == many, 1, 2))
    clerks = random.integers(1, max(count // 1500, 1) + 1, count)
    orders = pa.table(
        {
            "o_orderkey": _longs(keys),
            "o_custkey": _longs(buyers),
            "o_orderstatus": _of(status, ("F", "O", "P")),
            "o_totalprice": _money(np.add.reduceat(cents, first)),
            "o_orderdate": _dates(days),
            "o_orderpriority": _chosen(random, count, PRIORITIES),
            "o_clerk": _numbered("Clerk", clerks),
            "o_shippriority": _ints(np.zeros(count)),
            "o_comment": texts.some(count, 19, 78),
        }
    )
    return orders, pa.table(lines)


def _lines(random: Random, texts: _Texts, keys: Any, days: Any, numbers: Any, counts: tuple[int, int]) -> dict[str, Any]:
    parts, suppliers = counts
    count = len(keys)
    part = random.integers(1, parts + 1, count)
    quantity, discount, tax = random.integers(1, 51, count), random.integers(0, 11, count), random.integers(0, 9, count)
    price = quantity * _retail(part)
    shipped = days + random.integers(1, 122, count)
    received = shipped + random.integers(1, 31, count)
    returned = np.where(received <= TODAY, random.integers(0, 2, count), 2)
    return {
        "l_orderkey": _longs(keys),
        "l_partkey": _longs(part),
        "l_suppkey": _longs(_supplier_of(part, random.integers(0, 4, count), suppliers)),
        "l_linenumber": _ints(numbers),
        "l_quantity": _money(quantity * 100),
        "l_extendedprice": _money(price),
        "l_discount": _money(discount),
        "l_tax": _money(tax),
        "l_returnflag": _of(returned, ("R", "A", "N")),
        "l_linestatus": _of((shipped > TODAY).astype(np.int64), ("F", "O")),
        "l_shipdate": _dates(shipped),
        "l_commitdate": _dates(days + random.integers(30, 91, count)),
        "l_receiptdate": _dates(received),
        "l_shipinstruct": _chosen(random, count, INSTRUCTIONS),
        "l_shipmode": _chosen(random, count, MODES),
        "l_comment": texts.some(count, 10, 43),
        "cents": price * (100 - discount) * (100 + tax) // 10_000,
        "shipped": shipped,
    }

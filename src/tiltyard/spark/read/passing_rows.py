"""About which share of a table's rows passes a condition, by the bounds of columns: Spark chooses between kinds of joins by it.

Only plans depend on the answer. Bounds do not say how values lie between them, so the guess is a careful one: it goes by the one column
that narrows most, as if its values were spread evenly, and is never below ``LEAST_SHARE``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from math import inf, isfinite
from typing import Any, Final

LEAST_SHARE: Final = 1 / 8
"""What is broadcast by mistake, since a few values lie far from all others, is not more than so many times as long as Spark allows."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE: Final = ("byte", "short", "integer", "long", "date")
_NUMBERS: Final = (*_WHOLE, "float", "double", "timestamp")
_SIDES: Final = {"LessThan": "below", "LessThanOrEqual": "below", "GreaterThan": "above", "GreaterThanOrEqual": "above"}
_FLIPPED: Final = {"below": "above", "above": "below"}

Node = Mapping[str, Any]
Bounds = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What conditions leave of a column: values from one number to another, or so many of them."""

    low: float = -inf
    high: float = inf
    values: int | None = None

    def both(self, other: _Asked) -> _Asked:
        several = [count for count in (self.values, other.values) if count is not None]
        return _Asked(max(self.low, other.low), min(self.high, other.high), min(several, default=None))

    def share(self, least: float, greatest: float, unit: int) -> float:
        """Of values that lie evenly between two; ``unit`` is 1 for whole numbers."""
        width = greatest - least + unit
        if width <= 0:
            return 1.0
        if self.values is not None:
            return self.values / width if unit else 1.0
        return max(min(self.high, greatest) - max(self.low, least) + unit, 0) / width


def share_of_rows(filters: Sequence[Mapping[str, Any]], bounds: Callable[[str], Bounds | None]) -> float:
    """About which share of rows passes.

    Args:
        filters: conditions that all hold, in the form that the rule tells Spark's in.
        bounds: the least and the greatest value of a column; None where they are not known.
    """
    asked: dict[str, tuple[_Asked, str]] = {}
    for entry in filters:
        for column, kind, told in _conditions(entry["is"]):
            known = asked.get(column)
            asked[column] = (told if known is None else known[0].both(told), kind)
    found = [1.0]
    for column, (told, kind) in asked.items():
        ends = bounds(column)
        least, greatest = (None, None) if ends is None else map(as_number, ends)
        if least is not None and greatest is not None and isfinite(least) and isfinite(greatest):
            found.append(told.share(least, greatest, 1 if kind in _WHOLE else 0))
    return max(min(found), LEAST_SHARE)


def _conditions(node: Node) -> Iterator[tuple[str, str, _Asked]]:
    """Comparisons of a column with numbers, of those that all have to hold."""
    name, children = node["c"], node["k"]
    if name == "And":
        yield from _conditions(children[0])
        yield from _conditions(children[1])
    elif name in ("In", "InSet") and children[0]["c"] == "AttributeReference" and children[0]["t"] in _NUMBERS:
        count = len(node["vs"]) if name == "InSet" else len(children) - 1
        yield children[0]["n"], children[0]["t"], _Asked(values=count)
    elif name == "EqualTo" or name in _SIDES:
        yield from _comparison(name, children[0], children[1])


def _comparison(name: str, left: Node, right: Node) -> Iterator[tuple[str, str, _Asked]]:
    side = _SIDES.get(name, "")
    if left["c"] == "Literal":
        left, right, side = right, left, _FLIPPED.get(side, "")
    if left["c"] != "AttributeReference" or right["c"] != "Literal" or left["t"] != right["t"] or right["v"] is None:
        return
    kind = str(left["t"])
    if kind not in _NUMBERS and not kind.startswith("decimal"):
        return
    value = float(right["v"])
    given = {"below": _Asked(high=value), "above": _Asked(low=value)}.get(side)
    yield left["n"], kind, _Asked(value, value, values=1) if given is None else given


def as_number(value: Any) -> int | float | None:
    """A bound as Spark's estimates count, in days and microseconds; none of text and truth values."""
    if isinstance(value, bool | str | None):
        return None
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - _EPOCH.date()).days
    return value if isinstance(value, int) else float(value)

"""Answers to the conflicts of a merge, as a form brings them: for whole tables, and for single rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, cast

from tiltyard.merges import OnConflict, Resolution

TABLE: Final = "use:"
"""Begins the field that answers for a table; its name follows."""
ROW: Final = "row:"
"""Begins the field that answers for a row; the table's name and the row's token follow."""
EARLIER: Final = ("ours:", "theirs:")
"""Begin the fields with the tokens of rows that were answered on earlier pages; the table's name follows."""
_TOKEN: Final = 16


def row_token(table: str, key: Mapping[str, Any]) -> str:
    """Stands for a row in a form: a key may be of any type and length. Empty where rows have no key."""
    if not key:
        return ""
    return sha256("\0".join((table, *(f"{name}={key[name]!r}" for name in sorted(key)))).encode("utf-8", "replace")).hexdigest()[:_TOKEN]


@dataclass(frozen=True, slots=True)
class ChosenRows(Resolution):
    """Which side is right about rows that are known by their tokens."""

    keys: tuple[Any, ...] | None = ()
    table: str = ""
    tokens: frozenset[str] = frozenset()

    def is_for(self, key: Mapping[str, Any]) -> bool:
        return row_token(self.table, key) in self.tokens


@dataclass(frozen=True, slots=True)
class MergeAnswers:
    """What somebody answered so far.

    Attributes:
        tables: the side that is right about all other rows of a table, or about the table itself.
        rows: by table and token, the side that is right about a row.
    """

    tables: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of_form(cls, form: Mapping[str, str]) -> MergeAnswers:
        """Reads a form. A row that is answered twice has the later answer: rows of earlier pages come first."""
        tables = {name.removeprefix(TABLE): use for name, use in form.items() if name.startswith(TABLE) and use not in ("", "rows")}
        rows: dict[str, dict[str, str]] = {}
        for begin in EARLIER:
            for name, tokens in form.items():
                if name.startswith(begin):
                    use = begin.removesuffix(":")
                    rows.setdefault(name.removeprefix(begin), {}).update(dict.fromkeys(filter(None, tokens.split(",")), use))
        for name, use in form.items():
            table, _, token = name.removeprefix(ROW).rpartition(":")
            if name.startswith(ROW) and use and token:
                rows.setdefault(table, {})[token] = use
        return cls(tables, rows)

    def for_rows(self) -> OnConflict:
        """Answers for rows alone; what they leave is what still has to be answered."""
        return {table: self._chosen(table) for table in self.rows} or "fail"

    def for_all(self) -> OnConflict:
        """All answers."""
        names = {**self.tables, **self.rows}
        found: dict[str, Sequence[Resolution]] = {}
        for table in names:
            whole = [Resolution(cast(Any, self.tables[table]))] if table in self.tables else []
            found[table] = [*whole, *self._chosen(table)]
        return found or "fail"

    def tokens(self, table: str, use: str) -> tuple[str, ...]:
        """Rows of a table for which one side was chosen."""
        return tuple(token for token, chosen in self.rows.get(table, {}).items() if chosen == use)

    def _chosen(self, table: str) -> list[Resolution]:
        uses = dict.fromkeys(self.rows.get(table, {}).values())
        return [ChosenRows(cast(Any, use), table=table, tokens=frozenset(self.tokens(table, use))) for use in uses]

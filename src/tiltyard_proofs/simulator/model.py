"""The table as it should be: rows by identity, and what each committed intention does to them, one after the other.

A row has an identity that stays with it wherever it is moved. Values are made from the values before them, so that a change that was
undone, done twice or worked out from an old value shows. What a transaction read is part of its effect: under snapshot isolation
the rows it changed must still be as it saw them when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

Value = str | int | None
Row = Mapping[str, Value]
Rows = Mapping[str, Row]

KEY: Final = "key"
NOTHING: Final[Mapping[str, str]] = {}


class Violation(AssertionError):
    """A promise was broken. The text says which one and where."""


@dataclass(frozen=True, slots=True)
class State:
    """What one version must say."""

    columns: tuple[str, ...]
    rows: Rows
    config: Mapping[str, str] = field(default_factory=dict)
    bases: frozenset[str] = frozenset()
    generations: Mapping[str, int] = field(default_factory=dict)
    indices: Mapping[str, str] = field(default_factory=dict)
    """Column by name of index."""
    reset: frozenset[str] = frozenset()
    """Keys of the config that a Restore set back. Settings go over a Restore by rule, whatever they saw before it."""


History = Callable[[int], State]
"""The state at a version."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a transaction means, in terms of rows. Members that are empty change nothing.

    Attributes:
        seen: rows it deletes or changes, as they were where it was built.
        deleted: rows it deletes.
        appended: what is put behind values of rows, by row and column.
        loose: whether ``appended`` passes over rows that are gone, and only the changed columns must be as they were seen.
        added: new rows.
        new_column: a column, and its values by row.
        dropped_column: a column.
        replaced: columns of the table that takes the place of all before.
        restored: a version that takes the place of the newest.
        config: keys set, with the values seen before.
        base: a base added.
        generations: shards of the write-ahead log, and how far they come.
        index: name and column of an index that is added.
        dropped_index: name of one that goes.
    """

    seen: Rows = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    appended: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    loose: bool = False
    added: Rows = field(default_factory=dict)
    new_column: tuple[str, Mapping[str, Value]] | None = None
    dropped_column: str | None = None
    replaced: tuple[str, ...] | None = None
    restored: int | None = None
    config: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    base: str | None = None
    generations: Mapping[str, int] = field(default_factory=dict)
    index: tuple[str, str] | None = None
    dropped_index: str | None = None

    def on(self, state: State, history: History) -> State:
        """The state after this effect.

        Raises:
            Violation: what the transaction was built on does not hold any more, so it should have been refused.
        """
        if self.restored is not None:
            then = history(self.restored)
            reset = {key for key in {*state.config, *then.config} if state.config.get(key) != then.config.get(key)}
            return replace(then, reset=state.reset | reset)
        if self.replaced is not None:
            return replace(state, columns=self.replaced, rows=_added({}, self.added, self.replaced), indices={}, generations={})
        self._check_seen(state)
        rows = {rid: row for rid, row in state.rows.items() if rid not in self.deleted}
        for rid, changes in self.appended.items():
            if rid in rows:
                rows[rid] = {**rows[rid], **{name: f"{rows[rid][name]}{more}" for name, more in changes.items() if name in rows[rid]}}
        state = self._columns(replace(state, rows=_added(rows, self.added, state.columns)))
        return self._settings(state)

    def _check_seen(self, state: State) -> None:
        for rid, row in self.seen.items():
            now = state.rows.get(rid)
            if now is None:
                if self.loose:
                    continue
                raise Violation(f"P4: row {rid} was changed, though somebody had deleted it meanwhile")
            columns = self.appended.get(rid, {}) if self.loose else row
            for name in columns:
                if name in now and now[name] != row[name]:
                    raise Violation(f"P4: {name} of row {rid} was {row[name]!r} when it was read, but {now[name]!r} when it was changed")

    def _columns(self, state: State) -> State:
        if self.new_column is not None:
            name, values = self.new_column
            rows = {rid: {**row, name: values.get(rid)} for rid, row in state.rows.items()}
            state = replace(state, columns=(*state.columns, name), rows=rows)
        if self.dropped_column is not None:
            gone = self.dropped_column
            columns = tuple(name for name in state.columns if name != gone)
            rows = {rid: {name: value for name, value in row.items() if name != gone} for rid, row in state.rows.items()}
            state = replace(state, columns=columns, rows=rows, indices={k: v for k, v in state.indices.items() if v != gone})
        return state

    def _settings(self, state: State) -> State:
        for key, (seen, _) in self.config.items():
            if state.config.get(key) != seen and key not in state.reset:
                raise Violation(f"P4: config {key} was {seen!r} when it was read, but {state.config.get(key)!r} when it was set")
        if self.base is not None and self.base in state.bases:
            raise Violation(f"P4: base {self.base} was added twice")
        for shard, generation in self.generations.items():
            if state.generations.get(shard, 0) >= generation:
                raise Violation(f"P4: generation {generation} of shard {shard} was recorded twice")
        indices = dict(state.indices)
        if self.dropped_index is not None:
            indices.pop(self.dropped_index, None)
        if self.index is not None:
            if self.index[0] in indices:
                raise Violation(f"P4: index {self.index[0]} was created twice")
            indices[self.index[0]] = self.index[1]
        return replace(
            state,
            config={**state.config, **{key: value for key, (_, value) in self.config.items()}} if self.config else state.config,
            bases=state.bases | {self.base} if self.base is not None else state.bases,
            generations={**state.generations, **self.generations} if self.generations else state.generations,
            indices=indices,
        )


def _added(rows: dict[str, Row], added: Rows, columns: tuple[str, ...]) -> dict[str, Row]:
    for rid, row in added.items():
        if rid in rows:
            raise Violation(f"P4: row {rid} was added twice")
        rows[rid] = {name: row.get(name) for name in columns}
    return rows

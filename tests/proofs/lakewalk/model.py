"""What a lake must hold: lines of history, tables by identity, rows; and what each deed makes of that.

An effect is a pure function from one state to the next. It returns None where the deed must have been refused: whoever acknowledges it
then has broken a promise. So a deed of which nobody knows whether it happened simply leaves two possible states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

Rows = frozenset[int]
MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class Tab:
    """A table as one line of history has it.

    Attributes:
        token: its identity, the same on all lines and under all names.
        rows: what it holds there.
        outside: the directory of a registered table, which belongs to somebody else; empty for the lake's own.
    """

    token: str
    rows: Rows
    outside: str = ""


Content = Mapping[str, Tab]
"""Tables by name."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of history.

    Attributes:
        token: its identity; a branch that is made again under the same name has another one.
        tables: what it holds.
        base: what main held where this line left it.
        fork: what the line that it was made from held.
        origin: that line's token.
    """

    token: str
    tables: Content
    base: Content = field(default_factory=dict)
    fork: Content = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Tag:
    """A lake-wide tag: the line it was made on, and what stood there."""

    line: str
    tables: Content


@dataclass(frozen=True, slots=True)
class Foreign:
    """A commit to a table by somebody who does not know the lake, which shows from when on the lake adopts it."""

    line: str
    token: str
    add: Rows = frozenset()
    remove: Rows = frozenset()
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """All that one catalog must show; ``pending`` is not adopted yet, the oldest first."""

    lines: Mapping[str, Line]
    tags: Mapping[str, Tag] = field(default_factory=dict)
    pending: tuple[Foreign, ...] = ()


Effect = Callable[[State], State | None]


def empty_state() -> State:
    return State({MAIN: Line("main-0", {})})


def adopted(state: State, change: Foreign) -> State:
    """With a commit of a foreign writer in it; where its table is gone from the line, so is the commit."""
    rest = tuple(one for one in state.pending if one is not change)
    line = state.lines.get(change.line)
    there = by_token(line.tables).get(change.token) if line is not None else None
    if line is None or there is None:
        return replace(state, pending=rest)
    name, tab = there
    rows = (frozenset() if change.replaced else tab.rows - change.remove) | change.add
    return replace(with_tables(state, change.line, {**line.tables, name: replace(tab, rows=rows)}), pending=rest)


def expanded(states: Iterable[tuple[State, bool]]) -> list[tuple[State, bool]]:
    """Together with all that follow from them when foreign commits are adopted: table by table, each in its order, all or none of them."""
    found = []
    for state, counted in states:
        reached = [state]
        for where in dict.fromkeys((change.line, change.token) for change in state.pending):
            reached += [_all_adopted(one, where) for one in reached]
        found += [(one, counted) for one in reached]
    return found


def _all_adopted(state: State, where: tuple[str, str]) -> State:
    for change in [one for one in state.pending if (one.line, one.token) == where]:
        state = adopted(state, change)
    return state


def nothing(state: State) -> State:
    """The effect of a deed that changes no row and no name."""
    return state


def refused(state: State) -> None:
    """The effect of a deed that must not be acknowledged in any state."""


def by_token(tables: Content) -> dict[str, tuple[str, Tab]]:
    return {tab.token: (name, tab) for name, tab in tables.items()}


def shown(tables: Content) -> dict[str, Rows]:
    return {name: tab.rows for name, tab in tables.items()}


# ---- one table or many --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Draft:
    """What a transaction sees and means to do: its base, its own view, and the rows it added and removed.

    Attributes:
        site, line: where, the line by name and by token.
        reads: names it was told of, with what it was told (None where there was no such table); ``*`` for the list of names.
    """

    line: str
    token: str
    base: Content
    view: dict[str, Tab] = field(default_factory=dict)
    added: dict[str, set[int]] = field(default_factory=dict)
    removed: dict[str, set[int]] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    reads: dict[str, Rows | None] = field(default_factory=dict)
    names_read: bool = False

    def __post_init__(self) -> None:
        self.view = dict(self.base)

    @property
    def wrote(self) -> bool:
        return self.view != dict(self.base) or any(self.added.values()) or any(self.removed.values())

    def edit(self, name: str, add: Iterable[int] = (), remove: Iterable[int] = (), *, replace_all: bool = False) -> None:
        tab = self.view[name]
        added, removed = self.added.setdefault(tab.token, set()), self.removed.setdefault(tab.token, set())
        if replace_all:
            self.replaced.add(tab.token)
            added.clear()
            removed.clear()
        removed |= set(remove)
        added -= set(remove)
        added |= set(add)
        rows = frozenset() if replace_all else tab.rows
        self.view[name] = replace(tab, rows=(rows - set(remove)) | set(add))

    def create(self, name: str, token: str, rows: Rows) -> None:
        self.view[name] = Tab(token, rows)

    def drop(self, name: str) -> None:
        del self.view[name]

    def ignore(self, name: str) -> None:
        """As if it had never seen a table: whether its name can be taken is decided by the state that the deed meets."""
        self.base = {other: tab for other, tab in self.base.items() if other != name}
        del self.view[name]

    def rename(self, name: str, to: str) -> None:
        self.view[to] = self.view.pop(name)

    def effect(self, state: State) -> State | None:
        """What its commit makes of a state: by identity, on the very line it began on, and on no other."""
        return self.effect_on(self.token, state)

    def effect_on(self, token: str, state: State) -> State | None:
        """``effect``, for one that began on a line which took the name after the draft was made."""
        line = state.lines.get(self.line)
        if line is None or line.token != token:
            return None if self.wrote else state
        after = self._on(line.tables)
        return None if after is None else with_tables(state, self.line, after)

    def _on(self, now: Content) -> Content | None:
        before, mine, there = by_token(self.base), by_token(self.view), by_token(now)
        content = dict(now)
        placed: dict[str, Tab] = {}
        for token in {*before, *mine}:
            if token not in before:
                name, tab = mine[token]
                placed[name] = tab
            elif token not in mine:  # dropped
                if token not in there:
                    return None
                del content[there[token][0]]
            elif mine[token] != before[token]:
                if token not in there or (mine[token][0] != before[token][0] and there[token][0] != before[token][0]):
                    return None
                name = mine[token][0] if mine[token][0] != before[token][0] else there[token][0]
                del content[there[token][0]]
                if name in placed:
                    return None
                placed[name] = self._edited(there[token][1])
        if any(name in content for name in placed):
            return None
        return {**content, **placed}

    def _edited(self, tab: Tab) -> Tab:
        rows = frozenset() if tab.token in self.replaced else tab.rows - self.removed.get(tab.token, set())
        return replace(tab, rows=rows | self.added.get(tab.token, set()))

    def may_commit(self, state: State) -> str:
        """Why a serializable commit must be refused now; empty where it may be done. What it was told must still be so."""
        line = state.lines.get(self.line)
        if line is None or not self.wrote:
            return ""
        if self.names_read and set(line.tables) != set(self.base):
            return f"it listed the tables {sorted(self.base)}, now there are {sorted(line.tables)}"
        for name, told in self.reads.items():
            now = line.tables[name].rows if name in line.tables else None
            if now != told:
                return f"it was told that {name} holds {told and sorted(told)}, now it holds {now and sorted(now)}"
        return ""


def with_tables(state: State, line: str, tables: Content) -> State:
    return replace(state, lines={**state.lines, line: replace(state.lines[line], tables=dict(tables))})


def registered(line: str, name: str, token: str, rows: Rows, outside: str) -> Effect:
    """A table that was there is taken in; a directory can be in the lake once, on whichever line."""

    def effect(state: State) -> State | None:
        tables = state.lines[line].tables if line in state.lines else None
        everywhere = [tab for there in state.lines.values() for tab in there.tables.values()]
        if tables is None or name in tables or any(tab.outside == outside for tab in everywhere):
            return None
        return with_tables(state, line, {**tables, name: Tab(token, rows, outside)})

    return effect


# ---- lines and tags -----------------------------------------------------------------------------------------------------------------


def branch_created(name: str, token: str, origin: str, origin_token: str, tables: Content | None) -> Effect:
    """A line begins where another one is, or was: ``tables`` as the snapshot shows them, None for the newest."""

    def effect(state: State) -> State | None:
        source = state.lines.get(origin)
        if name in state.lines or source is None or source.token != origin_token:
            return None
        there = dict(source.tables if tables is None else tables)
        base = there if origin == MAIN else source.base
        return replace(state, lines={**state.lines, name: Line(token, there, base, there, source.token)})

    return effect


def branch_deleted(name: str) -> Effect:
    def effect(state: State) -> State | None:
        line = state.lines.get(name)
        if line is None or any(tag.line == line.token for tag in state.tags.values()):
            return None
        if any(other.origin == line.token for other in state.lines.values()):
            return None
        return replace(state, lines={key: value for key, value in state.lines.items() if key != name})

    return effect


def fast_forwarded(name: str) -> Effect:
    """Main becomes what the branch is, where main has not changed the same; the branch begins anew from there, as another line.

    A table that both dropped, and a name that both gave it, is what the branch wants already.
    """

    def effect(state: State) -> State | None:
        line, main = state.lines.get(name), state.lines[MAIN]
        if line is None or name == MAIN:
            return None
        ours, theirs, base, fork = by_token(main.tables), by_token(line.tables), by_token(line.base), by_token(line.fork)
        after = dict(main.tables)
        coming: dict[str, Tab] = {}
        for token in {*base, *theirs}:
            if base.get(token) == theirs.get(token) or (token not in theirs and token not in ours):
                continue  # the branch did not change it, or both have dropped it
            brought = _brought(ours.get(token), theirs.get(token), base.get(token), fork.get(token))
            if brought is None:
                return None
            if token in ours:
                del after[ours[token][0]]
            if token in theirs:
                coming[brought[0]] = brought[1]
        if any(one in after for one in coming):
            return None
        after |= coming
        # Another line from here on: whatever is open on the branch is refused, and those that were made from it stand on what it was.
        begun = Line(f"{line.token}'", dict(after), dict(after), dict(after), main.token)
        return replace(state, lines={**state.lines, MAIN: replace(main, tables=after), name: begun})

    return effect


def _brought(
    ours: tuple[str, Tab] | None, theirs: tuple[str, Tab] | None, base: tuple[str, Tab] | None, fork: tuple[str, Tab] | None
) -> tuple[str, Tab] | None:
    """A table as main has it after a fast-forward, by name and rows; None where both have changed the same of it in different ways."""
    if ours is None or theirs is None or base is None:
        return (theirs or ours or base) if ours in (base, fork) else None
    before = [one for one in (base, fork) if one is not None]
    name, rows = ours[0], ours[1].rows
    if theirs[0] != base[0]:
        if name not in [theirs[0], *(one[0] for one in before)]:
            return None
        name = theirs[0]
    if theirs[1].rows != base[1].rows:
        if rows not in [one[1].rows for one in before]:
            return None
        rows = theirs[1].rows
    return name, replace(ours[1], rows=rows)


def tagged(name: str, line: str, tables: Content | None) -> Effect:
    def effect(state: State) -> State | None:
        if name in state.tags or line not in state.lines:
            return None
        there = state.lines[line]
        return replace(state, tags={**state.tags, name: Tag(there.token, dict(there.tables if tables is None else tables))})

    return effect


def untagged(name: str) -> Effect:
    def effect(state: State) -> State | None:
        if name not in state.tags:
            return None
        return replace(state, tags={key: value for key, value in state.tags.items() if key != name})

    return effect

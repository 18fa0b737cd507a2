"""One table at a time: rows, names, and handles that somebody kept."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.proofs.lakewalk.acting import HELD, Walk, deed, fresh_name, told
from tests.proofs.lakewalk.model import Effect, State, refused
from tests.proofs.lakewalk.world import DONE, Held, numbers, pick


@deed(5, nested=True)
def create_table(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    line = walk.line(site, random)
    draft = walk.draft(site, line)
    name, rows = fresh_name(draft.view, random), walk.world.fresh_rows(2)
    plan = walk.plan(random, 10, process)
    if name in draft.view:  # then it is refused, unless somebody drops that table in the middle of it
        draft.ignore(name)
    draft.create(name, walk.world.token("table"), rows)
    end, result = walk.act(
        site, process, draft.effect, lambda: walk.lake_on(process, line).create_table(name, numbers(rows)), plan, must=True
    )
    return f"{site.name} {line} {name} {told(end, result)}"


@deed(14, nested=True)
def write_rows(walk: Walk, random: Random) -> str:
    """A verb on a table that is opened just now."""
    site = walk.site(random)
    process = walk.process(site, random)
    line = walk.line(site, random)
    name = pick(random, walk.own(site, line))
    verb, plan = random.choice(["append", "append", "delete", "overwrite", "merge", "compact"]), walk.plan(random, 12, process)
    if name is None:
        return "nothing there"
    walk.world.perform(site, lambda state: state, lambda: walk.lake_on(process, line).table(name))
    walk.watcher.look(lazily=walk.lazily)
    draft = walk.draft(site, line)
    if name not in draft.view:
        return "gone meanwhile"
    rows, old = walk.world.fresh_rows(), pick(random, sorted(draft.view[name].rows))
    lake, opened = walk.lake_on(process, line), list[str]()
    was = lake.snapshot().cut.line

    def table() -> Any:
        handle: Any = lake.table(name)
        opened.append(handle._access.store.ledger.line)
        return handle

    def effect(state: State) -> State | None:
        """It is done to the line that had the name when the table was opened, which another one may have taken just before."""
        anew = bool(opened) and opened[0] != was and line in state.lines
        return draft.effect_on(state.lines[line].token if anew else draft.token, state)

    if verb == "append":
        draft.edit(name, add=rows)
        call = lambda: table().append(numbers(rows))  # noqa: E731
    elif verb == "overwrite":
        draft.edit(name, add=rows, replace_all=True)
        call = lambda: table().overwrite(numbers(rows))  # noqa: E731
    elif verb == "merge":
        draft.edit(name, add=rows)
        both = rows | ({old} if old is not None else frozenset())
        call = lambda: table().merge(numbers(both), on=["id"]).when_not_matched_insert_all().execute()  # noqa: E731
    elif verb == "delete" and old is not None:
        draft.edit(name, remove={old})
        call = lambda: table().delete(f"id = {old}")  # noqa: E731
    else:
        call = lambda: table().compact()  # noqa: E731
    end, result = walk.act(site, process, effect, call, plan, must=True)
    return f"{site.name} {line} {name} {verb} {told(end, result)}"


@deed(3, nested=True)
def drop_table(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    line = walk.line(site, random)
    name, plan = pick(random, sorted(walk.draft(site, line).view)), walk.plan(random, 4, process)
    if name is None:
        return "nothing there"
    draft = walk.draft(site, line)
    draft.drop(name)
    end, result = walk.act(site, process, draft.effect, lambda: walk.lake_on(process, line).drop_table(name), plan, must=True)
    return f"{site.name} {line} {name} {told(end, result)}"


@deed(3, nested=True)
def rename_table(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    line = walk.line(site, random)
    draft = walk.draft(site, line)
    name, to, plan = pick(random, sorted(draft.view)), fresh_name(draft.view, random), walk.plan(random, 4, process)
    if name is None:
        return "nothing there"
    if to != name and to in draft.view:
        draft.ignore(to)
    if to != name:
        draft.rename(name, to)
    effect = draft.effect if to != name else refused
    end, result = walk.act(site, process, effect, lambda: walk.lake_on(process, line).rename_table(name, to), plan, must=True)
    return f"{site.name} {line} {name} -> {to} {told(end, result)}"


@deed(4)
def hold_table(walk: Walk, random: Random) -> str:
    """Somebody opens a table and keeps the handle."""
    site = walk.site(random)
    process = walk.process(site, random)
    line = walk.side(site, random)
    name = pick(random, walk.own(site, line))
    if name is None or len(process.held) >= HELD:
        return "nothing there"
    end, handle = walk.act(site, process, lambda state: state, lambda: walk.lake_on(process, line).table(name), must=True)
    walk.watcher.look()
    there = site.state.lines.get(line)
    if end == DONE and there is not None and name in there.tables:
        process.held.append(Held(line, there.token, name, there.tables[name].token, handle))
    return f"{site.name} {line} {name} {told(end, handle)}"


@deed(6, nested=True)
def use_held(walk: Walk, random: Random) -> str:
    """And writes through it later. Whatever happened since, it is the table and the line that it was, or nothing."""
    site = walk.site(random)
    held = pick(random, [(process, one) for process in site.processes for one in process.held if process is not walk.busy])
    if held is None:
        return "nothing held"
    process, one = held
    plan, rows = walk.plan(random, 12, process), walk.world.fresh_rows()
    there = site.state.lines.get(one.line)
    name = next((key for key, tab in there.tables.items() if tab.token == one.table), None) if there is not None else None
    draft = walk.draft(site, one.line) if there is not None else None
    effect: Effect
    if there is None or name is None or draft is None or there.token != one.token:
        effect = refused
    else:
        draft.edit(name, add=rows)
        effect = draft.effect
    end, result = walk.act(site, process, effect, lambda: one.handle.append(numbers(rows)), plan)
    if end != DONE and one in process.held:
        process.held.remove(one)
    return f"{site.name} {one.line} {one.name} {told(end, result)}"

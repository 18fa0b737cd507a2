"""Transactions that stay open while others go on."""

from __future__ import annotations

from random import Random

from tests.proofs.lakewalk.acting import OPEN, Walk, deed, fresh_name, told
from tests.proofs.lakewalk.world import DONE, REFUSED, UNKNOWN, Broken, Open, Process, Site, numbers, pick, rows_of
from tiltyard.errors import NotFound


@deed(7)
def begin(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    process = walk.process(site, random)
    line = walk.side(site, random)
    serializable = random.random() < 0.4
    if len(process.open) >= OPEN:
        return "enough open"
    walk.watcher.look()
    if line not in site.state.lines:
        return "gone meanwhile"
    lake = walk.lake_on(process, line)
    end, tx = walk.act(
        site, process, lambda state: state, lambda: lake.transaction(isolation="serializable" if serializable else "snapshot"), must=True
    )
    if end == DONE:
        process.open.append(Open(tx, walk.draft(site, line), serializable, site.moves))
    return f"{site.name} {line} {told(end, tx)}"


def _some(walk: Walk, site: Site, random: Random) -> tuple[Process, Open] | None:
    found: tuple[Process, Open] | None = pick(
        random, [(process, one) for process in site.processes for one in process.open if process is not walk.busy]
    )
    return found


@deed(12, nested=True)
def work(walk: Walk, random: Random) -> str:
    """Does something inside an open transaction; nobody else sees any of it."""
    site = walk.site(random)
    found = _some(walk, site, random)
    verb = random.choice(["append", "append", "append", "delete", "create", "drop", "rename", "swap", "read", "names", "absent"])
    plan = walk.plan(random, 8, found[0] if found else None)
    name, rows = random.random(), walk.world.fresh_rows()
    if found is None:
        return "nothing open"
    process, one = found
    moves = site.moves
    line = site.state.lines.get(one.draft.line)
    broken = {tab.token for tab in line.tables.values() if (line.token, tab.token) in site.broken} if line else set()
    chosen = pick(Random(name), sorted(key for key, tab in one.draft.view.items() if tab.token not in broken))
    try:
        end, result = walk.act(site, process, lambda state: state, lambda: _do(one, verb, chosen, rows, random), plan)
    finally:
        site.moves = moves if not (plan and plan.deed) else site.moves
    if end == REFUSED and one in process.open:  # perhaps half of it is there: whoever sees an error throws it away
        process.open.remove(one)
        walk.act(site, process, lambda state: state, one.tx.rollback)
    return f"{site.name} {one.draft.line} {chosen} {verb} {told(end, result)}"


def _do(one: Open, verb: str, name: str | None, rows: frozenset[int], random: Random) -> None:
    tx, draft = one.tx, one.draft
    if verb == "names":
        draft.names_read = True
        if set(tx.tables()) != set(draft.view):
            raise Broken(f"the transaction lists {tx.tables()}, expected {sorted(draft.view)}")
    elif verb == "absent":
        missing = fresh_name(draft.view, random)
        if missing not in draft.view:
            if missing not in draft.base:
                draft.reads[missing] = None
            try:
                tx.table(missing)
            except NotFound:
                return
            raise Broken(f"the transaction finds {missing}, which is not there")
    elif verb == "create":
        fresh = fresh_name(draft.view, random)
        if fresh not in draft.view:
            tx.create_table(fresh, numbers(rows))
            draft.create(fresh, f"made-{min(rows)}", rows)
    elif name is not None:
        _do_to(one, verb, name, rows, random)


def _do_to(one: Open, verb: str, name: str, rows: frozenset[int], random: Random) -> None:
    tx, draft = one.tx, one.draft
    if verb == "append":
        tx.table(name).append(numbers(rows))
        draft.edit(name, add=rows)
    elif verb == "delete":
        old = pick(random, sorted(draft.view[name].rows))
        if old is not None:
            tx.table(name).delete(f"id = {old}")
            draft.edit(name, remove={old})
    elif verb == "drop":
        tx.drop_table(name)
        draft.drop(name)
    elif verb == "rename":
        to = fresh_name(draft.view, random)
        if to not in draft.view:
            tx.rename_table(name, to)
            draft.rename(name, to)
    elif verb == "swap":
        other = pick(random, sorted({*draft.view} - {name}))
        if other is not None and "between" not in draft.view:
            for old_name, new_name in ((name, "between"), (other, name), ("between", other)):
                tx.rename_table(old_name, new_name)
                draft.rename(old_name, new_name)
    elif verb == "read":
        found = sorted(rows_of(tx.table(name)))
        if found != sorted(draft.view[name].rows):
            raise Broken(f"the transaction reads {found} in {name}, expected {sorted(draft.view[name].rows)}")
        token = draft.view[name].token
        before = next((key for key, tab in draft.base.items() if tab.token == token), None)
        if before is not None:
            draft.reads[before] = draft.base[before].rows


@deed(9, nested=True)
def commit(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    found = _some(walk, site, random)
    plan = walk.plan(random, 14, found[0] if found else None)
    if found is None:
        return "nothing open"
    process, one = found
    quiet = one.quiet == site.moves
    why = [one.draft.may_commit(state) for state, _ in site.states] if one.serializable else [""]
    process.open.remove(one)
    end, result = walk.act(site, process, one.draft.effect, one.tx.commit, plan, must=quiet)
    if end == DONE and all(why) and one.serializable and plan is None:
        raise Broken(f"{site.name}: a serializable transaction was committed, though {why[0]}")
    if end == UNKNOWN:
        _ask(walk, site, process, one)
    kind = "serializable" if one.serializable else "snapshot"
    return f"{site.name} {one.draft.line} {kind}{' quiet' if quiet else ''} {told(end, result)}"


def _ask(walk: Walk, site: Site, process: Process, one: Open) -> None:
    """Whoever is left in doubt asks again; what he is told is how it stays."""
    walk.act(site, process, one.draft.effect, one.tx.commit)


@deed(2, nested=True)
def rollback(walk: Walk, random: Random) -> str:
    site = walk.site(random)
    found = _some(walk, site, random)
    plan = walk.plan(random, 5, found[0] if found else None)
    if found is None:
        return "nothing open"
    process, one = found
    process.open.remove(one)
    end, result = walk.act(site, process, lambda state: state, one.tx.rollback, plan)
    return f"{site.name} {one.draft.line} {told(end, result)}"


@deed(3, nested=True)
def several(walk: Walk, random: Random) -> str:
    """A transaction over two tables, begun and ended at once: all of it or nothing, wherever it is killed."""
    site = walk.site(random)
    process = walk.process(site, random)
    line = walk.line(site, random)
    names, plan = sorted(walk.own(site, line))[:2], walk.plan(random, 24, process)
    rows, made = walk.world.fresh_rows(), walk.world.fresh_rows()
    draft = walk.draft(site, line)
    fresh = fresh_name(draft.view, random)
    for name in names:
        draft.edit(name, add=rows)
    if fresh not in draft.view:
        draft.create(fresh, walk.world.token("table"), made)

    def run() -> None:
        with walk.lake_on(process, line).transaction() as tx:
            for name in names:
                tx.table(name).append(numbers(rows))
            if fresh not in draft.base:
                tx.create_table(fresh, numbers(made))

    end, result = walk.act(site, process, draft.effect, run, plan)
    return f"{site.name} {line} {names} {told(end, result)}"

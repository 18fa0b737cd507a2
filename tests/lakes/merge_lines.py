"""Lines of random operations on the tables of one lake, done to the lake and to the model of ``merge_model`` alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import lance
import pyarrow as pa
import pytest
from lance.lance import _Session as Session

from tests.lakes.merge_model import SHARED, THERE, Content, Line, Row, copied
from tests.support.lakes import Site, through
from tiltyard.catalog.lake_values import MAIN
from tiltyard.catalog.line_identity import owns
from tiltyard.catalog.open_records import MemoryRecords
from tiltyard.catalog.records import Records, Writes
from tiltyard.format.manifest import decode_indices
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file
from tiltyard.format.names import Scheme
from tiltyard.lake import Lake
from tiltyard.lakes.merging.merge_branches import adopt_foreign
from tiltyard.transaction import log
from tiltyard.verbs.engine.access import TableAccess

KEY: Final = "lance-schema:unenforced-primary-key"
STRUCT: Final = "s"
"""The struct that a table may have."""


def in_memory(records: Records) -> MemoryRecords:
    """The same records, for as long as the process lives: half of the time of a small merge is the database's."""
    made = MemoryRecords()
    found = dict(records.scan([""]))
    made.transact([*found], [], lambda _: Writes(None, found))
    return made


@contextmanager
def hurried() -> Iterator[None]:
    """For merges by the thousand: what was read of a file that never changes is kept, by its bytes here, by its path in pylance."""
    known: dict[tuple[bytes, int | None, bool], ManifestFile] = {}

    def decoded(data: bytes, *, source: str, version: int | None = None, check: bool = True, **_: Any) -> ManifestFile:
        key = (data, version, check)
        if key not in known:
            if len(known) > 2_000:
                known.clear()
            known[key] = decode_manifest_file(data, source=source, version=version, check=check)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "decode_manifest_file", decoded)
        patch.setattr(lance, "dataset", partial(lance.dataset, session=Session(1 << 22, 1 << 24)))
        yield


def arrow(table: Content, rows: Sequence[Row]) -> pa.Table:
    """Rows as Arrow has them, members of the struct inside it."""
    columns: dict[str, pa.Array] = {}
    fields: dict[str, pa.Field] = {}
    for number, name in table.columns.items():
        kind = pa.int32() if number in table.narrow else pa.int64()
        top, _, member = name.partition(".")
        if member and top not in columns:
            inside = [(other, called) for other, called in table.columns.items() if called.startswith(f"{top}.")]
            parts = [pa.field(called.partition(".")[2], pa.int32() if other in table.narrow else pa.int64()) for other, called in inside]
            values = [pa.array([row.values.get(other) for row in rows], part.type) for (other, _), part in zip(inside, parts, strict=True)]
            columns[top], fields[top] = pa.StructArray.from_arrays(values, fields=parts), pa.field(top, pa.struct(parts))
        elif not member:
            columns[name] = pa.array([row.values.get(number) for row in rows], kind)
            fields[name] = pa.field(name, kind, nullable=number not in table.required)
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(list(fields.values())))


def flat(row: dict[str, Any], names: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """A row as the model shows it: members by their path, null where the struct is."""
    found = []
    for name in sorted(names):
        top, _, member = name.partition(".")
        found.append((name, row[top] if not member else (row[top] or {}).get(member)))
    return tuple(found)


def index_elsewhere(access: TableAccess, scheme: Scheme) -> bool:
    """Whether the latest version of a table has an index whose files are not in its own directory."""
    latest = access.log.head()
    assert latest is not None
    return any(index.base_id is not None for index in decode_indices(access.load(latest[0], scheme).manifest, "a table"))


class Lines:
    """Branches of one lake, with what they have by the model."""

    def __init__(self, site: Site, seed: int) -> None:
        self.lake = site.open()
        if seed % 8:  # one in eight has a database
            through(self.lake, in_memory)
        self.random = Random(seed)
        self.numbers = count(2)  # columns 0 and 1 are id and v
        self.log = [f"seed {seed}: replay with python -m tools.prove --merges --replay {seed}"]
        self.lines: dict[str, Line] = {MAIN: {}}
        self.past: dict[tuple[str, int], list[tuple[int, Content]]] = {}
        """Versions of each table since the last merge, by branch and token."""
        self.opened: Any = None
        self.foreign: set[str] = set()
        """Branches with versions of pylance that nobody has adopted yet."""
        self.outside = Path(f"{site.root}-outside")

    def on(self, branch: str) -> Lake:
        return self.lake if branch == MAIN else self.lake.on_branch(branch)

    def branch(self, name: str, origin: str) -> None:
        self.note(origin, f"branch {name}")
        self.adopt(origin)
        self.on(origin).branches.create(name)
        self.lines[name] = copied(self.lines[origin])
        for (where, _), past in self.past.items():
            for _, then in past if where == origin else ():
                then.strayed = True

    def adopt(self, *branches: str) -> None:
        """A branch begins with what the catalog has: what pylance wrote is brought there first."""
        for branch in sorted(self.foreign.intersection(branches)):
            adopt_foreign(self.lake, branch)
            self.foreign.discard(branch)

    def work(self, steps: int, *branches: str) -> None:
        for _ in range(steps):
            self.step(self.random.choice(branches))

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def note(self, branch: str, what: str) -> None:
        self.log.append(f"{branch}: {what}")

    def handle(self, branch: str, table: Content, what: str) -> Any:
        self.note(branch, f"{table.name}: {what}")
        table.changes += 1
        self.opened = self.on(branch).table(table.name)
        return self.opened

    def step(self, branch: str) -> None:
        if self.chance(0.06):
            return self.define(branch)
        if self.chance(0.01):
            return self.tag(branch)
        if not self.lines[branch]:
            return self.create(branch)
        token, table = self.random.choice(list(self.lines[branch].items()))
        past = self.past.setdefault((branch, token), [])
        if past and self.chance(0.06):
            return self.restore(branch, token, past)
        actions: list[Callable[[str, Content], None]] = [
            *[self.append] * 4, *[self.update] * 4, *[self.delete] * 4, *[self.compact] * 2,
            *[self.configure, self.index, self.overwrite, self.in_place, self.upsert, self.by_pylance] * 2,
            self.drop_index, self.optimize_indices, self.merge_away, self.by_pylance,
            *self.random.sample((self.add_column, self.drop_column, self.rename_column, self.null_column, self.cast, self.nullability), 2),
        ]  # fmt: skip
        before = table.changes
        self.random.choice(actions)(branch, table)
        if table.changes > before:
            past.append((self.opened.version, table.copy()))
        return None

    # ---- tables ----------------------------------------------------------------------------------------------------------------

    def create(self, branch: str, name: str = "") -> None:
        shared = self.random.choice(("s1", "s2"))  # both sides may make a table of that name
        if not name and self.chance(0.15) and all(table.name != shared for table in self.lines[branch].values()):
            name = shared
        name = name or f"t{next(self.numbers)}"
        key, stable = self.chance(0.45), self.chance(0.4)
        made = Content(name, key, stable, {0: "id", 1: "v"})
        if self.chance(0.3):
            made.columns |= {next(self.numbers): f"{STRUCT}.{member}" for member in "ab"}
        if key or self.chance(0.5):
            made.required.add(0)
        self.note(branch, f"create {name} key={key} stable={stable} {list(made.columns.values())}")
        rows = self.new_rows(made, self.random.randrange(3, 7))
        if not key and self.chance(0.1):
            self.note(branch, f"as a registered one: {name}")
            outside = str(self.outside / f"{next(self.numbers)}.lance")
            lance.write_dataset(arrow(made, rows), outside, enable_stable_row_ids=stable)
            self.on(branch).register_table(name, outside)
        else:
            self.on(branch).create_table(name, arrow(made, rows), primary_key=["id"] if key else None, stable_row_ids=stable)
        self.lines[branch][next(self.numbers)] = made

    def define(self, branch: str) -> None:
        choice = self.random.randrange(3)
        if choice == 0 or not self.lines[branch]:
            self.create(branch)
            return
        token, table = self.random.choice(list(self.lines[branch].items()))
        if choice == 1:
            self.note(branch, f"drop {table.name}")
            self.on(branch).drop_table(table.name)
            del self.lines[branch][token]
            if self.chance(0.4):  # the name comes back, and is another table
                self.create(branch, table.name)
        else:
            taken = {other.name for other in self.lines[branch].values()}
            free = [name for name in ("s1", "s2") if name not in taken]  # which the other side may have given away, too
            name = self.random.choice(free) if free and self.chance(0.4) else f"r{next(self.numbers)}"
            self.note(branch, f"rename {table.name} to {name}")
            self.on(branch).rename_table(table.name, name)
            table.name = name

    def restore(self, branch: str, token: int, past: list[tuple[int, Content]]) -> None:
        version, then = self.random.choice(past)
        now = self.lines[branch][token]
        self.handle(branch, now, f"restore version {version}").restore(version)
        made = then.copy()
        made.name, made.changes, made.maintained, made.restored = now.name, now.changes, now.maintained, True
        made.rewrote, made.did, made.in_place = now.rewrote or "maybe", now.did | then.did, now.in_place or then.in_place
        made.added_values = now.added_values | then.added_values | (then.columns.keys() - now.columns.keys())
        made.overwritten = now.overwritten or then.overwritten
        made.spent, made.odd, made.shared_before = True, now.odd or then.odd, now.shared_before or then.shared_before
        self.lines[branch][token] = made

    def tag(self, branch: str) -> None:
        name = f"g{next(self.numbers)}"
        self.note(branch, f"tag {name}")
        self.on(branch).tags.create(name)
        if self.chance(0.5):
            self.lake.tags.delete(name)

    # ---- rows ------------------------------------------------------------------------------------------------------------------

    def value(self, table: Content, number: int) -> int | None:
        return None if number not in table.required and self.chance(0.08) else self.random.randrange(5)

    def new_rows(self, table: Content, many: int, ids: list[int] | None = None) -> list[Row]:
        made = []
        for place in range(many):
            uid = next(self.numbers)
            values: dict[int, Any] = {number: self.value(table, number) for number in table.columns if number} | self.there(table)
            made.append(Row(uid, {0: ids[place] if ids else uid, **values}, uid))
        table.rows.update((row.uid, row) for row in made)
        return made

    def there(self, table: Content) -> dict[int, Any]:
        """That the struct is there, as in all rows that are written as Arrow."""
        return {THERE: True} if table.members() else {}

    def some(self, table: Content) -> list[Row]:
        """One row or two, with all that have the same ids: a condition names them by these."""
        found = self.random.sample(list(table.rows.values()), min(len(table.rows), self.random.randrange(1, 3)))
        ids = {row.values[0] for row in found}
        return [row for row in table.rows.values() if row.values[0] in ids]

    def where(self, rows: list[Row]) -> str:
        return f"id in ({', '.join(str(number) for number in sorted({row.values[0] for row in rows}))})"

    def new_values(self, table: Content) -> tuple[str, dict[int, Any], str]:
        """New values for a column, or for all members of the struct: its name, the values by number, and as SQL."""
        tops = sorted({name.partition(".")[0] for number, name in table.columns.items() if number})
        name = table.columns[1] if 1 in table.columns and self.chance(0.6) else self.random.choice(tops)
        own = {number: called for number, called in table.columns.items() if called == name or called.startswith(f"{name}.")}
        values = {number: self.value(table, number) for number in own}
        texts = {number: "NULL" if value is None else str(value) for number, value in values.items()}
        if "." not in next(iter(own.values())):
            return name, values, next(iter(texts.values()))
        kinds = {number: "int" if number in table.narrow else "bigint" for number in own}
        parts = [f"'{own[number].partition('.')[2]}', cast({texts[number]} as {kinds[number]})" for number in own]
        return name, values | {THERE: True}, f"named_struct({', '.join(parts)})"

    def append(self, branch: str, table: Content) -> None:
        known = {row.values[0] for row in table.rows.values()}
        ids = None
        if self.chance(0.4 if table.key else 0.1):  # a few small keys, so that both sides insert the same
            ids = [number for number in self.random.sample(range(-4, 0), 2) if not table.key or number not in known] or None
        rows = self.new_rows(table, len(ids) if ids else self.random.randrange(1, 3), ids)
        table.did.add("append")
        self.handle(branch, table, f"append {[row.values for row in rows]}").append(arrow(table, rows))

    def update(self, branch: str, table: Content, mode: str = "rows") -> None:
        rows = self.some(table)
        if not rows or len(table.columns) < 2:
            return
        name, values, text = self.new_values(table)
        where = self.where(rows)
        self.handle(branch, table, f"update by {mode} {name} = {text} where {where}").update({name: text}, where=where, mode=mode)
        for row in rows:
            row.values |= values
            row.place = next(self.numbers) if mode == "rows" else row.place
        table.in_place = table.in_place or mode == "columns"
        table.rewrote = "moved" if mode == "rows" else table.rewrote or "maybe"

    def in_place(self, branch: str, table: Content) -> None:
        self.update(branch, table, "columns")

    def upsert(self, branch: str, table: Content) -> None:
        rows = self.some(table)
        if not rows or not table.key:
            return
        handle = self.handle(branch, table, "")
        self.log.pop()
        source, apply = self.upserted(table, rows)
        self.note(branch, f"{table.name}: upsert {source.to_pylist()}")
        handle.merge(source).when_matched_update_all().when_not_matched_insert_all().execute()
        apply()

    def upserted(self, table: Content, rows: list[Row]) -> tuple[pa.Table, Callable[[], None]]:
        """Rows of the table with other values, and perhaps a new one; and what they do to the model."""
        given = [row.copy() for row in rows]
        for row in given:
            row.values |= {number: self.value(table, number) for number in table.columns if number} | self.there(table)
        inserted = self.new_rows(table, self.random.randrange(2))

        def apply() -> None:
            for row, new in zip(rows, given, strict=True):
                row.values, row.place = new.values, next(self.numbers)
            table.rewrote = "moved"
            table.did |= {"append"} if inserted else set()

        return arrow(table, [*given, *inserted]), apply

    def merge_away(self, branch: str, table: Content) -> None:
        """A merge whose clauses delete: rows that it finds, or those of the table that it does not."""
        rows = self.some(table)
        if not rows:
            return
        ids = {row.values[0] for row in rows}
        source = pa.table({"id": pa.array(sorted(ids), pa.int64())})
        matched = self.chance(0.5)
        below = self.random.choice(list(table.rows.values())).values[0]
        handle = self.handle(branch, table, f"merge {sorted(ids)} deletes {'these' if matched else f'others up to {below}'}")
        merge = handle.merge(source, on="id")
        if matched:
            merge.when_matched_delete().execute()
        else:
            merge.when_not_matched_by_source_delete(where=f"id <= {below}").execute()
        table.did.add("delete")
        for uid, row in list(table.rows.items()):
            if row.values[0] in ids if matched else (row.values[0] not in ids and row.values[0] <= below):
                del table.rows[uid]

    def delete(self, branch: str, table: Content) -> None:
        rows = self.some(table)
        if rows:
            self.handle(branch, table, f"delete {self.where(rows)}").delete(self.where(rows))
            self.gone(table, rows)

    def gone(self, table: Content, rows: list[Row]) -> None:
        table.did.add("delete")
        for row in rows:
            del table.rows[row.uid]

    def compact(self, branch: str, table: Content) -> None:
        self.handle(branch, table, "compact").maintenance.compact()
        self.shake(table)

    def shake(self, table: Content) -> None:
        table.maintained += 1
        for row in table.rows.values():
            row.doubt = next(self.numbers)
        table.rewrote = table.rewrote or "maybe"

    def overwrite(self, branch: str, table: Content) -> None:
        if self.chance(0.5):
            return
        others = [number for number in table.columns if number > 1]
        if others and self.chance(0.2):
            del table.columns[self.random.choice(others)]
            table.spent = table.odd = True
        elif self.chance(0.2):
            self.retyped(table, self.random.choice([number for number in table.columns if number]))
        rows = self.emptied(table)
        self.handle(branch, table, f"overwrite {table.schema()} {[row.values for row in rows]}").overwrite(arrow(table, rows))

    def emptied(self, table: Content) -> list[Row]:
        """The rows of an overwrite, which has a new schema."""
        table.rows, table.rewrote, table.overwritten = {}, "moved", True
        table.settings = {key: value for key, value in table.settings.items() if key.startswith(("config", "metadata"))}
        return self.new_rows(table, 2)

    # ---- columns, settings, indices --------------------------------------------------------------------------------------------

    def retyped(self, table: Content, number: int) -> tuple[int, int]:
        """Gives a column another type, which makes it another column; its old number and its new one."""
        made = next(self.numbers)
        table.columns = {made if known == number else known: name for known, name in table.columns.items()}
        if number not in table.narrow:
            table.narrow.add(made)
        table.required = {made if known == number else known for known in table.required}
        table.spent = table.odd = True
        if number == 1:
            self.undescribed(table)
        return number, made

    def undescribed(self, table: Content) -> None:
        table.settings = {key: value for key, value in table.settings.items() if not key.startswith("field_metadata")}

    def cast(self, branch: str, table: Content) -> None:
        some = [number for number in table.columns if number]
        if not some:
            return
        number = self.random.choice(some)
        kind = pa.int64() if number in table.narrow else pa.int32()
        name = table.columns[number]
        self.handle(branch, table, f"cast {name} to {kind}").alter_columns({"path": name, "data_type": kind})
        old, made = self.retyped(table, number)
        table.added_values.add(made)
        for row in table.rows.values():
            if old in row.values:
                row.values[made] = row.values[old]

    def nullability(self, branch: str, table: Content) -> None:
        some = [number for number, name in table.columns.items() if (number or not table.key) and "." not in name]
        if not some:
            return
        number = self.random.choice(some)
        if number not in table.required and any(row.values.get(number) is None for row in table.rows.values()):
            return
        takes = number in table.required
        name = table.columns[number]
        self.handle(branch, table, f"{name} takes nulls: {takes}").alter_columns({"path": name, "nullable": takes})
        table.required ^= {number}

    def add_column(self, branch: str, table: Content) -> None:
        shared = not table.shared_before and self.chance(0.3)
        number, times = SHARED if shared else next(self.numbers), self.random.randrange(1, 4)
        name = "w" if shared else f"c{number}"
        self.handle(branch, table, f"add column {name} = id * {times}").add_columns({name: f"id * {times}"})
        table.columns[number] = name
        table.added_values.add(number)
        table.shared_before |= shared
        for row in table.rows.values():
            row.values[number] = row.values[0] * times

    def null_column(self, branch: str, table: Content) -> None:
        shared = not table.shared_before and self.chance(0.3)
        number = SHARED if shared else next(self.numbers)
        name = "w" if shared else f"c{number}"
        kind: pa.DataType = pa.int64()
        added = pa.field(name, kind)
        if not shared and self.chance(0.5):
            added, name = pa.field(STRUCT, pa.struct([pa.field(name, kind)])), f"{STRUCT}.{name}"
            table.odd = True
        self.handle(branch, table, f"add column {name} without values").add_columns(pa.schema([added]))
        table.columns[number] = name
        table.shared_before |= shared
        for row in table.rows.values():  # a new struct is null in them, too
            row.values[number] = None

    def drop_column(self, branch: str, table: Content) -> None:
        some = [number for number in table.columns if number]
        if len(some) > 1:
            number = self.random.choice(some)
            self.handle(branch, table, f"drop column {table.columns[number]}").drop_columns([table.columns[number]])
            del table.columns[number]
            table.required.discard(number)
            table.spent = table.odd = True
            if not table.members():
                for row in table.rows.values():
                    row.values.pop(THERE, None)
            if number == 1:
                self.undescribed(table)

    def rename_column(self, branch: str, table: Content) -> None:
        some = [number for number in table.columns if number]
        if some:
            number, name = self.random.choice(some), f"n{next(self.numbers)}"
            path = table.columns[number]
            self.handle(branch, table, f"rename column {path} to {name}").alter_columns({"path": path, "name": name})
            table.columns[number] = f"{STRUCT}.{name}" if "." in path else name

    def configure(self, branch: str, table: Content) -> None:
        kinds = ("config", "metadata", "schema_metadata", *(["field_metadata"] if 1 in table.columns else []))
        where, key = self.random.choice(kinds), self.random.choice("xy")
        known = f"{where} {key}"
        value = None if known in table.settings and self.chance(0.3) else str(self.random.randrange(3))
        settings = self.handle(branch, table, f"{known} = {value}").settings
        of_column = [table.columns[1]] if where == "field_metadata" else []
        getattr(settings, f"update_{where}")(*of_column, {key: value})
        if value is None:
            del table.settings[known]
        else:
            table.settings[known] = value

    def index(self, branch: str, table: Content) -> None:
        name = table.columns[self.random.choice([number for number in (0, 1) if number in table.columns])]
        self.handle(branch, table, f"index {name}").create_index(name, "BTREE", replace=True)
        table.maintained += 1

    def drop_index(self, branch: str, table: Content) -> None:
        if found := self.on(branch).table(table.name).indices.list():
            self.handle(branch, table, f"drop index {found[0].name}").indices.drop(found[0].name)
            table.maintained += 1

    def optimize_indices(self, branch: str, table: Content) -> None:
        if self.on(branch).table(table.name).indices.list():
            self.handle(branch, table, "optimize indices").indices.optimize()
            table.maintained += 1

    # ---- a foreign writer ------------------------------------------------------------------------------------------------------

    def by_pylance(self, branch: str, table: Content) -> None:
        """A writer that knows nothing of the lake: its version is adopted later, by whoever comes first."""
        cut = self.on(branch).snapshot().cut
        head = cut.tables[table.name]
        if not owns(head, branch, cut.line):
            return  # the branch has nothing of its own there yet
        place = self.lake.plain_access_of(head).on_branch(head.branch)
        table.changes += 1
        found: Any = lance.dataset(place.lance_uri)
        deeds = (
            self.stock_append, self.stock_append, self.stock_delete, self.stock_update, self.stock_upsert, self.stock_compact,
            self.stock_key, self.stock_overwrite,
        )  # fmt: skip
        deed = self.random.choice(deeds)
        # Pylance rewrites an index that lies in another directory to its own, and goes on looking for it there: see the test of that.
        lost = deed == self.stock_compact and index_elsewhere(place, Scheme(head.naming))
        done = "" if lost else deed(found, table)
        if not done:
            table.changes -= 1
            return
        self.note(branch, f"{table.name}: pylance {done}")
        self.opened = SimpleNamespace(version=lance.dataset(place.lance_uri).version)
        self.foreign.add(branch)

    def stock_append(self, found: Any, table: Content) -> str:
        rows = self.new_rows(table, 2)
        lance.write_dataset(arrow(table, rows), found.uri, mode="append")
        table.did.add("append")
        return f"appends {[row.values for row in rows]}"

    def stock_delete(self, found: Any, table: Content) -> str:
        if rows := self.some(table):
            found.delete(self.where(rows))
            self.gone(table, rows)
            return f"deletes {self.where(rows)}"
        return ""

    def stock_update(self, found: Any, table: Content) -> str:
        rows = self.some(table)
        if not rows or 1 not in table.columns:
            return ""
        value = self.random.randrange(5)
        found.update({table.columns[1]: str(value)}, where=self.where(rows))
        for row in rows:
            row.values[1], row.place = value, next(self.numbers)
        table.rewrote = "moved"
        return f"updates v = {value} where {self.where(rows)}"

    def stock_upsert(self, found: Any, table: Content) -> str:
        rows = self.some(table)
        if not rows or len({row.values[0] for row in rows}) < len(rows):
            return ""
        source, apply = self.upserted(table, rows)
        found.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)
        apply()
        return f"upserts {source.to_pylist()}"

    def stock_compact(self, found: Any, table: Content) -> str:
        before = found.version
        found.optimize.compact_files()
        if lance.dataset(found.uri).version == before:
            return ""
        self.shake(table)
        return "compacts"

    def stock_key(self, found: Any, table: Content) -> str:
        """Sets a primary key, which pylance allows once."""
        ids = [row.values[0] for row in table.rows.values()]
        if table.key or 0 not in table.required or len({*ids}) < len(ids):
            return ""
        found.update_field_metadata({"id": {KEY: "true"}})
        table.key = True
        return "sets a key"

    def stock_overwrite(self, found: Any, table: Content) -> str:
        """Takes the key away with all else that the schema says."""
        if self.chance(0.5):
            return ""
        table.key = False
        rows = self.emptied(table)
        lance.write_dataset(arrow(table, rows), found.uri, mode="overwrite")
        return f"overwrites {[row.values for row in rows]}"

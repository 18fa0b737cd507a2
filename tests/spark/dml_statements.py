# ruff: noqa: S608  # the texts are made here
"""Random INSERT, UPDATE, DELETE, MERGE and ALTER statements, each as Spark and as DuckDB write it.

Two tables: ``k`` has the primary key ``id``, ``u`` has none. Values come from few ones, so that keys meet, and many are null. Columns are
added and dropped on the way, by ALTER and by schema evolution; one is a struct that gets further members, one an array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

KINDS: Final = {"bigint": "BIGINT", "int": "INTEGER", "string": "VARCHAR"}
ARRAY: Final = "array<int>"
_WORDS: Final = ("a", "B", "it''s", "", "zz", "ü")


class Both(NamedTuple):
    """The same text in both dialects."""

    spark: str
    duck: str


def same(text: str) -> Both:
    return Both(text, text)


def joined(parts: list[Both], glue: str) -> Both:
    return Both(glue.join(part.spark for part in parts), glue.join(part.duck for part in parts))


@dataclass
class Column:
    """A column: its kind, or the members of a struct."""

    name: str
    kind: str
    members: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """One statement.

    Attributes:
        table: the one it changes.
        spark: for Spark.
        duck: for DuckDB, in one transaction.
        once: a query of DuckDB that finds a row of the table which a merge would touch twice: Spark refuses then.
        may_twice: whether Spark does not, since the row is deleted whatever matches it; DuckDB does all the same.
        again: a query of DuckDB that finds a row which a merge may delete, as the source lacks it, and insert again under its key. On a
            keyed table that is refused, be it right in the end: keys are compared with those of the version before.
    """

    table: str
    spark: str
    duck: tuple[str, ...]
    once: str | None = None
    may_twice: bool = False
    again: str | None = None


class Statements:
    """A sequence of statements; it keeps the columns of both tables in mind."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.tables = {
            name: [
                Column("id", "bigint"),
                Column("v", "int"),
                Column("s", "string"),
                Column("p", "struct", ["x", "y"]),
                Column("l", ARRAY),
            ]
            for name in ("k", "u")
        }
        self.added = 0

    def next(self) -> Step:
        table = self.random.choice(("k", "k", "u"))
        makers: list[tuple[Callable[[str], Step], int]] = [
            (self._insert, 5), (self._insert_select, 2), (self._update, 5), (self._delete, 3), (self._merge, 10),
            (self._overwrite, 1), (self._replace_where, 2), (self._evolve_insert, 1), (self._evolve_merge, 1), (self._alter, 1),
        ]  # fmt: skip
        [maker] = self.random.choices([maker for maker, _ in makers], [weight for _, weight in makers])
        return maker(table)

    # ---- values ------------------------------------------------------------------------------------------------------------------

    def _literal(self, column: Column, *, null: float = 0.2) -> Both:
        if self.random.random() < null:
            return same(f"CAST(NULL AS {column.kind})") if column.kind == "bigint" else same("NULL")
        if column.kind == "bigint":
            return Both(f"{(number := self.random.randrange(14))}L", f"{number}::BIGINT")
        if column.kind == "int":
            return same(str(self.random.randrange(-9, 60)))
        if column.kind == "string":
            word = self.random.choice(_WORDS)
            return Both("'" + word.replace("''", "\\'") + "'", f"'{word}'")
        if column.kind == ARRAY:
            numbers = [str(self.random.randrange(5)) for _ in range(self.random.randrange(3))]
            if not numbers:
                return Both("CAST(array() AS array<int>)", "CAST([] AS INTEGER[])")
            return Both(f"array({', '.join(numbers)})", f"[{', '.join(numbers)}]")
        values = {member: "CAST(NULL AS INT)" if self.random.random() < 0.3 else str(self.random.randrange(9)) for member in column.members}
        return _struct({member: same(value) for member, value in values.items()})

    def _value(self, column: Column, prefix: str = "", source: list[Column] | None = None) -> Both:
        """A new value of a column, over the row as it was, and over the source's where there is one."""
        others = [item for item in source or [] if item.kind == column.kind and (item.kind != "struct" or item.members == column.members)]
        if others and self.random.random() < 0.6:
            return same(f"s.{self.random.choice(others).name}")
        name = f"{prefix}{column.name}"
        if column.kind == "int":
            texts = [f"({name} + 1) % 97", f"coalesce({name}, 0) - 3", f"{name} * 2 % 50", f"abs({name})"]
            texts += [f"CASE WHEN {prefix}id % 2 = 0 THEN {name} ELSE 7 END", f"{prefix}p.x", f"length({prefix}s)"]
            return same(self.random.choice(texts)) if self.random.random() < 0.7 else self._literal(column)
        if column.kind == "string" and self.random.random() < 0.6:
            return same(self.random.choice([f"upper({name})", f"substr({name} || '!', 1, 4)", f"coalesce({name}, 'none')"]))
        if column.kind == "struct" and self.random.random() < 0.5:
            return _struct({member: same(f"{name}.{member}") if self.random.random() < 0.5 else same("3") for member in column.members})
        return self._literal(column)

    def _condition(self, prefix: str = "", source: str | None = None) -> Both:
        p, n = prefix, self.random.randrange(14)
        texts = [
            f"{p}id < {n}", f"{p}id = {n}", f"{p}v > {n}", f"{p}v IS NULL", f"{p}s = 'a'", f"{p}s IN ('zz', 'B') AND {p}id > {n}",
            f"NOT ({p}v <= {n})", f"{p}p.x > 3", f"{p}p IS NULL OR {p}p.y < 2", f"{p}id BETWEEN {n} AND {n + 2}", f"length({p}s) > 1",
        ]  # fmt: skip
        if source is not None:
            texts += [f"s.v > {p}v", f"s.s <> {p}s", f"s.v IS NULL AND {p}id > 2"]
        return same(self.random.choice(texts))

    # ---- statements --------------------------------------------------------------------------------------------------------------

    def _rows(self, columns: list[Column], count: int, *, null_key: float = 0.05) -> list[list[Both]]:
        return [[self._literal(column, null=null_key if column.name == "id" else 0.25) for column in columns] for _ in range(count)]

    def _insert(self, table: str) -> Step:
        columns = self.tables[table]
        named = self.random.random() < 0.5
        if named:
            chosen = [columns[0], *self.random.sample(columns[1:], self.random.randrange(1, len(columns)))]
            self.random.shuffle(chosen)
        else:
            chosen = list(columns)
        rows = [joined(row, ", ") for row in self._rows(chosen, self.random.randrange(1, 4))]
        listed = f" ({_names(chosen)})" if named else ""
        texts = Both(", ".join(f"({row.spark})" for row in rows), ", ".join(f"({row.duck})" for row in rows))
        return Step(
            table,
            f"INSERT INTO lake.{table}{listed} VALUES {texts.spark}",
            (f"INSERT INTO {table} ({_names(chosen)}) VALUES {texts.duck}",),
        )

    def _shared(self, table: str) -> list[Column]:
        """Columns that both tables have alike, which all statements over both read."""
        other = {column.name: column for column in self.tables["u" if table == "k" else "k"]}
        return [column for column in self.tables[table] if column.name in other and other[column.name] == column]

    def _insert_select(self, table: str) -> Step:
        other, shared = "u" if table == "k" else "k", self._shared(table)
        moved = f"id + {self.random.randrange(3)} AS id"
        listed = ", ".join([moved, *(column.name for column in shared[1:])])
        where = self._condition()
        return Step(
            table,
            f"INSERT INTO lake.{table} BY NAME SELECT {listed} FROM lake.{other} WHERE {where.spark}",
            (f"INSERT INTO {table} BY NAME SELECT {listed} FROM {other} WHERE {where.duck}",),
        )

    def _update(self, table: str) -> Step:
        columns = self.tables[table]
        movable = columns[1:] if table == "k" else columns
        if self.random.random() < 0.2:
            struct = next(column for column in columns if column.kind == "struct")
            member = self.random.choice(struct.members)
            kept = {name: same(f"p.{name}") if name != member else same("coalesce(v, 0) + 1") for name in struct.members}
            where = self._condition()
            return Step(
                table,
                f"UPDATE lake.{table} SET p.{member} = coalesce(v, 0) + 1 WHERE {where.spark}",
                (f"UPDATE {table} SET p = {_struct(kept).duck} WHERE {where.duck}",),
            )
        chosen = self.random.sample(movable, self.random.randrange(1, 3))
        values = {column.name: self._value(column) for column in chosen}
        if self.random.random() < 0.2:
            other = "u" if table == "k" else "k"
            values["v"] = Both(
                f"(SELECT max(o.v) FROM lake.{other} o WHERE o.id = {table}.id)",
                f"(SELECT max(o.v) FROM {other} o WHERE o.id = {table}.id)",
            )
        where = self._condition()
        sets = Both(
            ", ".join(f"{name} = {value.spark}" for name, value in values.items()),
            ", ".join(f"{name} = {value.duck}" for name, value in values.items()),
        )
        if self.random.random() < 0.1:
            return Step(table, f"UPDATE lake.{table} SET {sets.spark}", (f"UPDATE {table} SET {sets.duck}",))
        return Step(
            table, f"UPDATE lake.{table} SET {sets.spark} WHERE {where.spark}", (f"UPDATE {table} SET {sets.duck} WHERE {where.duck}",)
        )

    def _delete(self, table: str) -> Step:
        other = "u" if table == "k" else "k"
        where = self._condition()
        choice = self.random.random()
        if choice < 0.25:
            inner = f"IN (SELECT o.id FROM {{}}{other} o WHERE o.id IS NOT NULL AND o.v > 10)"
            where = Both("id " + inner.format("lake."), "id " + inner.format(""))
        elif choice < 0.4:
            inner = f"EXISTS (SELECT 1 FROM {{}}{other} o WHERE o.id = {table}.id AND o.s = {table}.s)"
            where = Both(inner.format("lake."), inner.format(""))
        elif choice < 0.45:
            where = same("id NOT IN (1, 2, 3, 4, 5, 6, 7, 8)")
        return Step(table, f"DELETE FROM lake.{table} WHERE {where.spark}", (f"DELETE FROM {table} WHERE {where.duck}",))

    def _overwrite(self, table: str) -> Step:
        columns = self.tables[table]
        numbers = self.random.sample(range(14), 4)
        rows = self._rows(columns, 4)
        for row, number in zip(rows, numbers, strict=True):
            row[0] = Both(f"{number}L", f"{number}::BIGINT")
        texts = [joined(row, ", ") for row in rows]
        values = Both(", ".join(f"({row.spark})" for row in texts), ", ".join(f"({row.duck})" for row in texts))
        return Step(
            table,
            f"INSERT OVERWRITE lake.{table} VALUES {values.spark}",
            (f"DELETE FROM {table}", f"INSERT INTO {table} VALUES {values.duck}"),
        )

    def _replace_where(self, table: str) -> Step:
        columns, n = self.tables[table], self.random.randrange(10)
        rows = self._rows(columns, 2, null_key=0)
        for row, number in zip(rows, (n, n + 1), strict=True):
            row[0] = Both(f"{number}L", f"{number}::BIGINT")
        texts = [joined(row, ", ") for row in rows]
        where = f"id BETWEEN {n} AND {n + 2}"
        values = Both(", ".join(f"({row.spark})" for row in texts), ", ".join(f"({row.duck})" for row in texts))
        return Step(
            table,
            f"INSERT INTO lake.{table} REPLACE WHERE {where} VALUES {values.spark}",
            (f"DELETE FROM {table} WHERE {where}", f"INSERT INTO {table} VALUES {values.duck}"),
        )

    # ---- merges ------------------------------------------------------------------------------------------------------------------

    def _source(self, table: str, extra: tuple[Column, ...] = (), *, rows_only: bool = False) -> tuple[Both, list[Column]]:
        """Rows as a source, and its columns; keys may be null, or come twice."""
        columns = [column for column in self.tables[table] if column.name in ("id", "v", "s", "p")]
        other = "u" if table == "k" else "k"
        if (
            not (extra or rows_only)
            and self.random.random() < 0.3
            and {column.name for column in columns} <= {item.name for item in self._shared(table)}
        ):
            where = self._condition()
            names = _names(columns)
            return Both(
                f"(SELECT {names} FROM lake.{other} WHERE {where.spark})", f"(SELECT {names} FROM {other} WHERE {where.duck})"
            ), columns
        columns = [*columns, *extra]
        rows = self._rows(columns, self.random.randrange(1, 5), null_key=0.1)
        texts = [joined(row, ", ") for row in rows]
        names = _names(columns)
        casts = _casts(columns)
        made = Both(
            f"(SELECT {casts.spark} FROM VALUES {', '.join(f'({row.spark})' for row in texts)} AS q({names}))",
            f"(SELECT {casts.duck} FROM (VALUES {', '.join(f'({row.duck})' for row in texts)}) AS q({names}))",
        )
        return made, columns

    def _merge(self, table: str) -> Step:
        source, given = self._source(table)
        columns = self.tables[table]
        on = self.random.choice(("t.id = s.id", "t.id = s.id", "s.id = t.id AND s.v > 5", "t.id = s.id AND t.s = s.s"))
        clauses: list[Both] = []
        guarded = self.random.random() < 0.5
        whole = all(any(item.name == column.name and item == column for item in given) for column in columns)
        for _ in range(self.random.randrange(3)):
            where = self._condition("t.", "s") if guarded else None
            clauses.append(self._matched(where, table, given, whole=whole))
            if where is None:
                break
        touching, deleting = bool(clauses), bool(clauses) and clauses[0].spark == "WHEN MATCHED THEN DELETE"
        if self.random.random() < 0.7:
            clauses.append(self._not_matched(columns, given, whole=whole))
        if self.random.random() < 0.25 or not clauses:
            head = f"WHEN NOT MATCHED BY SOURCE AND {self._condition('t.').spark} THEN "
            if self.random.random() < 0.5:
                clauses.append(same(f"{head}DELETE"))
            else:
                value = self._value(columns[1], "t.")
                clauses.append(Both(f"{head}UPDATE SET v = {value.spark}", f"{head}UPDATE SET v = {value.duck}"))
        text = joined(clauses, " ")
        once = f"SELECT t.rowid FROM {table} t JOIN {source.duck} s ON {on} GROUP BY t.rowid HAVING count(*) > 1"
        again = f"SELECT 1 FROM {source.duck} s JOIN {table} t ON t.id = s.id WHERE NOT EXISTS (SELECT 1 FROM {table} t WHERE {on})"
        whole_row = text.spark.endswith("THEN DELETE") and "NOT MATCHED BY SOURCE" in text.spark and "INSERT" in text.spark
        return Step(
            table,
            f"MERGE INTO lake.{table} AS t USING {source.spark} AS s ON {on} {text.spark}",
            (f"MERGE INTO {table} AS t USING {source.duck} AS s ON {on} {text.duck}",),
            once if touching else None,
            deleting,
            again if table == "k" and whole_row else None,
        )

    def _matched(self, where: Both | None, table: str, given: list[Column], *, whole: bool) -> Both:
        head = "WHEN MATCHED THEN " if where is None else f"WHEN MATCHED AND {where.spark} THEN "
        if self.random.random() < 0.25:
            return same(f"{head}DELETE")
        columns = self.tables[table]
        if whole and self.random.random() < 0.3:
            sets = ", ".join(f"{column.name} = s.{column.name}" for column in columns)
            return Both(f"{head}UPDATE SET *", f"{head}UPDATE SET {sets}")
        chosen = self.random.sample(columns[1:], self.random.randrange(1, 3))
        values = {column.name: self._value(column, "t.", given) for column in chosen}
        return Both(
            head + "UPDATE SET " + ", ".join(f"{name} = {value.spark}" for name, value in values.items()),
            head + "UPDATE SET " + ", ".join(f"{name} = {value.duck}" for name, value in values.items()),
        )

    def _not_matched(self, columns: list[Column], given: list[Column], *, whole: bool) -> Both:
        head = "WHEN NOT MATCHED AND s.v > 3 THEN " if self.random.random() < 0.3 else "WHEN NOT MATCHED THEN "
        names = [column.name for column in given if any(column == item for item in columns)]
        values = ", ".join(f"s.{name}" for name in names)
        explicit = f"{head}INSERT ({', '.join(names)}) VALUES ({values})"
        return Both(f"{head}INSERT *", explicit) if whole and self.random.random() < 0.5 else same(explicit)

    # ---- columns that come and go ------------------------------------------------------------------------------------------------

    def _new_column(self) -> Column:
        self.added += 1
        return Column(f"n{self.added}", self.random.choice(("int", "string")))

    def _evolve_insert(self, table: str) -> Step:
        new = self._new_column()
        self.tables[table].append(new)
        row = self._rows([Column("id", "bigint"), new], 1, null_key=0)[0]
        listed = Both(
            f"{row[0].spark} AS id, CAST({row[1].spark} AS {new.kind}) AS {new.name}", f"{row[0].duck} AS id, {row[1].duck} AS {new.name}"
        )
        return Step(
            table,
            f"INSERT WITH SCHEMA EVOLUTION INTO lake.{table} BY NAME SELECT {listed.spark}",
            (f"ALTER TABLE {table} ADD COLUMN {new.name} {KINDS[new.kind]}", f"INSERT INTO {table} BY NAME SELECT {listed.duck}"),
        )

    def _evolve_merge(self, table: str) -> Step:
        struct = next(column for column in self.tables[table] if column.kind == "struct")
        if len(struct.members) < 4 and self.random.random() < 0.4:
            return self._evolve_struct(table, struct)
        new = self._new_column()
        before = list(self.tables[table])
        source, given = self._source(table, (new,))
        self.tables[table].append(new)
        names = [column.name for column in given if column == new or column in before]
        return _evolving(table, source, names, f"{new.name} {KINDS[new.kind]}")

    def _evolve_struct(self, table: str, struct: Column) -> Step:
        """The struct of the source has one more member."""
        struct.members.append(f"m{len(struct.members)}")
        source, given = self._source(table, rows_only=True)
        return _evolving(table, source, [column.name for column in given], f"p.{struct.members[-1]} INTEGER")

    def _alter(self, table: str) -> Step:
        columns = self.tables[table]
        spare = [column for column in columns if column.name.startswith("n")]
        if spare and self.random.random() < 0.6:
            gone = self.random.choice(spare)
            if self.random.random() < 0.5:
                columns.remove(gone)
                return _alike(table, f"DROP COLUMN {gone.name}")
            old, gone.name = gone.name, self._new_column().name
            return _alike(table, f"RENAME COLUMN {old} TO {gone.name}")
        struct = next(column for column in columns if column.kind == "struct")
        if len(struct.members) < 4 and self.random.random() < 0.5:
            struct.members.append(f"m{len(struct.members)}")
            return _alike(table, f"ADD COLUMN p.{struct.members[-1]} INT")
        new = self._new_column()
        columns.append(new)
        return Step(
            table,
            f"ALTER TABLE lake.{table} ADD COLUMN {new.name} {new.kind}",
            (f"ALTER TABLE {table} ADD COLUMN {new.name} {KINDS[new.kind]}",),
        )


def _evolving(table: str, source: Both, names: list[str], added: str) -> Step:
    """A merge whose source has a column, or a member of one, that the table has not."""
    sets = ", ".join(f"{name} = s.{name}" for name in names)
    values = ", ".join(f"s.{name}" for name in names)
    return Step(
        table,
        f"MERGE WITH SCHEMA EVOLUTION INTO lake.{table} AS t USING {source.spark} AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        (
            f"ALTER TABLE {table} ADD COLUMN {added}",
            f"MERGE INTO {table} AS t USING {source.duck} AS s ON t.id = s.id "
            f"WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({values})",
        ),
        f"SELECT t.rowid FROM {table} t JOIN {source.duck} s ON t.id = s.id GROUP BY t.rowid HAVING count(*) > 1",
    )


def _alike(table: str, what: str) -> Step:
    return Step(table, f"ALTER TABLE lake.{table} {what}", (f"ALTER TABLE {table} {what}",))


def _names(columns: list[Column]) -> str:
    return ", ".join(column.name for column in columns)


def _struct(values: dict[str, Both]) -> Both:
    return Both(
        "named_struct(" + ", ".join(f"'{name}', {value.spark}" for name, value in values.items()) + ")",
        "{" + ", ".join(f"'{name}': {value.duck}" for name, value in values.items()) + "}",
    )


def _casts(columns: list[Column]) -> Both:
    """The columns of VALUES, of which a whole one may be null, by their types."""
    spark, duck = [], []
    for column in columns:
        if column.kind == "struct":
            members = Both(", ".join(f"{name}: INT" for name in column.members), ", ".join(f"{name} INTEGER" for name in column.members))
            spark.append(f"CAST({column.name} AS STRUCT<{members.spark}>) AS {column.name}")
            duck.append(f"CAST({column.name} AS STRUCT({members.duck})) AS {column.name}")
        else:
            spark.append(f"CAST({column.name} AS {column.kind}) AS {column.name}")
            duck.append(f"CAST({column.name} AS {KINDS[column.kind]}) AS {column.name}")
    return Both(", ".join(spark), ", ".join(duck))

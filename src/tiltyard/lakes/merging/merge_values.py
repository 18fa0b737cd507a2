"""What a merge came to, what conflicted, and how that is settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from tiltyard.catalog.lake_values import Isolation
from tiltyard.errors import InvalidInput

Use: TypeAlias = Literal["ours", "theirs"]
ConflictKind: TypeAlias = Literal["rows", "key", "column", "setting", "dropped", "created", "name"]
MergedHow: TypeAlias = Literal["replayed", "merged", "restored", "created", "dropped", "renamed", "kept"]

SAMPLE: Final = 10
"""Rows that a conflict shows."""


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """What a merge expects.

    Attributes:
        source_at: the expected snapshot of the branch; the merge is refused if the branch has a later one.
        target_at: the same of the target, so that resolutions are applied only to the conflicts that were reviewed.
        isolation: ``"snapshot"`` merges the branch as it was when the merge began, beside commits to other tables of the target;
            ``"serializable"`` commits only if neither branch has moved since it was read, and is planned again until that is so.
    """

    source_at: int | None = None
    target_at: int | None = None
    isolation: Isolation = "snapshot"

    def __post_init__(self) -> None:
        if self.isolation not in ("snapshot", "serializable"):
            raise InvalidInput(f"isolation is 'snapshot' or 'serializable', not {self.isolation!r}.", argument="isolation")
        for name in ("source_at", "target_at"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InvalidInput(f"{name} is the number of a snapshot, not {value!r}.", argument=name)


@dataclass(frozen=True, slots=True)
class ConflictingRow:
    """A row that both sides changed.

    Attributes:
        key: its primary key or row id, by column; empty where rows have neither.
        base, ours, theirs: its values at the common ancestor, on the target and on the branch; None where there is no such row.
    """

    key: Mapping[str, Any]
    base: Mapping[str, Any] | None
    ours: Mapping[str, Any] | None
    theirs: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ConflictingStep:
    """A snapshot that changed the table on one of the two sides.

    Attributes:
        branch, snapshot: which one.
        author, message: as its writer gave them.
        operation: what it did to the table.
    """

    branch: str
    snapshot: int
    author: str
    message: str
    operation: str


@dataclass(frozen=True, slots=True)
class TableConflict:
    """Why one table cannot be merged.

    Attributes:
        table: its name on the target, or on the branch, if it is only there.
        kind: ``rows`` if both sides changed the same rows, or it is not known whether they did; ``key`` if both inserted a key;
            ``column`` and ``setting`` if both changed the same one; ``dropped`` if one side dropped the table and the other changed it;
            ``created`` if both have a new table of that name; ``name`` if both renamed it, or its new name is another table's.
        detail: a sentence.
        ours, theirs: what was done to the table on either side since the common ancestor, the latest first.
        rows: how many rows conflict; 0 where it is not about rows.
        sample: some of these.
    """

    table: str
    kind: ConflictKind
    detail: str
    ours: tuple[ConflictingStep, ...] = ()
    theirs: tuple[ConflictingStep, ...] = ()
    rows: int = 0
    sample: tuple[ConflictingRow, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Resolution:
    """Which side to take for a table, or for some of its rows.

    Attributes:
        use: ``"ours"``, what the target has, or ``"theirs"``, what the branch has.
        keys: primary keys of the rows that it is for, each a mapping by column, or a plain value where the key is one column. None for
            the whole table.
    """

    use: Use
    keys: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        if self.use not in get_args(Use):
            raise InvalidInput(f"A conflict is settled by 'ours' or 'theirs', not {self.use!r}.", argument="use")
        if isinstance(self.keys, str | bytes | Mapping):
            raise InvalidInput("keys is a list of keys.", argument="keys")
        if self.keys is not None:
            object.__setattr__(self, "keys", tuple(self.keys))

    def is_for(self, key: Mapping[str, Any]) -> bool:
        """Whether it is for the row with this key."""
        return self.keys is None or any(_is_key(given, key) for given in self.keys)


def _is_key(given: Any, key: Mapping[str, Any]) -> bool:
    return dict(given) == dict(key) if isinstance(given, Mapping) else len(key) == 1 and given == next(iter(key.values()))


Answer: TypeAlias = "Use | Resolution | Sequence[Resolution]"
OnConflict: TypeAlias = "Literal['fail', 'ours', 'theirs'] | Mapping[str, Answer]"


@dataclass(frozen=True, slots=True)
class Settlement:
    """All answers of a caller to conflicts, by table; without a table, for all."""

    answers: Mapping[str, tuple[Resolution, ...]]
    default: Use | None = None

    def of_table(self, table: str) -> Use | None:
        """Which side is right about a table as a whole; None where nobody said."""
        whole = [answer.use for answer in self.answers.get(table, ()) if answer.keys is None]
        return whole[-1] if whole else self.default

    def of_row(self, table: str, key: Mapping[str, Any]) -> Use | None:
        """Which side is right about a row. What was said of the row itself counts more than what was said of its table."""
        own = [answer.use for answer in self.answers.get(table, ()) if answer.keys is not None and answer.is_for(key)]
        return own[-1] if own else self.of_table(table)


def settlement_of(on_conflict: OnConflict) -> Settlement:
    """Checks what a caller gave.

    Raises:
        InvalidInput: it is none of the forms that ``LakeBranches.merge`` takes.
    """
    if on_conflict == "fail":
        return Settlement({})
    if isinstance(on_conflict, str):
        return Settlement({}, Resolution(on_conflict).use)
    if not isinstance(on_conflict, Mapping):
        raise InvalidInput("on_conflict is 'fail', 'ours', 'theirs', or answers by table.", argument="on_conflict")
    return Settlement({str(table): _answers(answer) for table, answer in on_conflict.items()})


def _answers(answer: Answer) -> tuple[Resolution, ...]:
    if isinstance(answer, str):
        return (Resolution(answer),)
    several = (answer,) if isinstance(answer, Resolution) else tuple(answer)
    if not all(isinstance(item, Resolution) for item in several):
        raise InvalidInput("A table's conflicts are settled by 'ours', 'theirs' or Resolution values.", argument="on_conflict")
    return several


@dataclass(frozen=True, slots=True)
class TableMerge:
    """What a merge does to one table of the target.

    Attributes:
        table: its name there afterwards.
        how: ``replayed`` if only the branch changed it: its operations are repeated; ``merged`` if both did; ``restored``,
            ``created``, ``dropped``,
            ``renamed``; ``kept`` if a conflict was resolved for the target.
        operations: versions that were added.
        added, removed: rows that were added and removed, for ``merged``.
        referenced: bytes of data files that are now part of the table, in the directory where the branch wrote them.
        written: bytes of data files that had to be rewritten.
        left_out: indices of the branch that do not fit the merged rows; build them again.
    """

    table: str
    how: MergedHow
    operations: int = 0
    added: int = 0
    removed: int = 0
    referenced: int = 0
    written: int = 0
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge did, or would do.

    Attributes:
        source, source_snapshot: the branch, and up to which snapshot it is merged.
        target: the branch that it was merged into.
        base, base_snapshot: the common ancestor.
        snapshot: the snapshot of the target that it made; the latest one where nothing was done.
        transaction_id: for ``Lake.outcome``; empty where nothing was committed.
        tables: what is done to each table; those that stay as they are, are not among them.
        conflicts: what keeps it from being merged; only a dry run has any.
        up_to_date: whether the target had all of it already.
        dry_run: whether nothing was changed.
    """

    source: str
    source_snapshot: int
    target: str
    base: str
    base_snapshot: int
    snapshot: int
    transaction_id: str = ""
    tables: tuple[TableMerge, ...] = ()
    conflicts: tuple[TableConflict, ...] = ()
    up_to_date: bool = False
    dry_run: bool = False

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return asdict(self)

    def resolve(
        self, table: str, use: Use, *, keys: Sequence[Any] | None = None, so_far: Mapping[str, Answer] | None = None
    ) -> dict[str, tuple[Resolution, ...]]:
        """Resolves a conflict: returns the value for ``on_conflict`` of the next merge.

        Args:
            table: whose.
            use: ``"ours"`` or ``"theirs"``.
            keys: of the rows that it is for; all of the table without it.
            so_far: what was resolved before.

        Raises:
            InvalidInput: there is no such conflict.
        """
        if not any(conflict.table == table for conflict in self.conflicts):
            raise InvalidInput(f"There is no conflict about {table!r}.", argument="table", advice="See MergeResult.conflicts.")
        settled = {name: _answers(answer) for name, answer in (so_far or {}).items()}
        return {**settled, table: (*settled.get(table, ()), Resolution(use, None if keys is None else tuple(keys)))}


@dataclass(slots=True)
class FoundConflicts:
    """Conflicts as they are found, by table."""

    found: list[TableConflict] = field(default_factory=list)

    def add(self, table: str, kind: ConflictKind, detail: str, rows: int = 0, sample: Sequence[ConflictingRow] = ()) -> None:
        self.found.append(TableConflict(table, kind, detail, rows=rows, sample=tuple(sample)))

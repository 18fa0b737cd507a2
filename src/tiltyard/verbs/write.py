"""Create, append, overwrite: the verbs that bring new rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tiltyard.errors import (
    AlreadyExists,
    HistoryUnavailable,
    InvalidInput,
    KeyConflict,
    NotFound,
    RetryableConflict,
    StorageError,
    TiltyardError,
)
from tiltyard.format.fields import leaf_ids, parse_path
from tiltyard.format.flags import Feature
from tiltyard.format.keys import primary_key as key_of
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.safe_text import check_encodes, check_text
from tiltyard.format.schema import SchemaMatch, arrow_from_fields, check_encodable, fields_from_arrow, match_schema
from tiltyard.format.values import DataFormat, DataFragment, Field
from tiltyard.options import FileLimits, OnDuplicate, TableOptions
from tiltyard.storage import refuse_file
from tiltyard.transaction.apply.next_manifest import Creation
from tiltyard.transaction.key_filter import WrittenKeys
from tiltyard.transaction.operations import Append, Overwrite
from tiltyard.transaction.pending_rows import PendingRows
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.data_files import discard, write_into, write_new
from tiltyard.verbs.engine.pylance import open_dataset
from tiltyard.verbs.engine.reexecution import Committed, Execution, ReexecutionPolicy, StreamSpentError, always, run_verb
from tiltyard.verbs.engine.row_input import Rows, as_rows, conformed
from tiltyard.verbs.engine.rows_in_memory import SmallAppends
from tiltyard.verbs.engine.write_bases import WriteBase, find_base
from tiltyard.verbs.keys.primary_keys import AnyKeys, Key, NewKeys, PassingKeys, check_comparable, distinct_keys, primary_key_of

if TYPE_CHECKING:
    from lance import LanceDataset

DATA_FORMATS = ("2.0", "2.1", "2.2")


@dataclass(frozen=True, slots=True)
class NewTable:
    """What is decided when a table is made."""

    primary_key: Sequence[str] | None = None
    stable_row_ids: bool = False
    scheme: Scheme = Scheme.V2
    data_format: str = "2.2"
    config: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, primary_key: Sequence[str] | None, stable_row_ids: bool, options: TableOptions) -> NewTable:
        """What a caller decides."""
        scheme, config = Scheme(options.manifest_naming), dict(options.config or {})
        return cls(primary_key, stable_row_ids, scheme, options.data_format, config)

    def __post_init__(self) -> None:
        for key, value in self.config.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise InvalidInput(f"config must map text to text, not {key!r}: {value!r}.", argument="config")
            check_encodes(check_text(key, "The name of a setting", "config") + value, "A setting", "config")
        if self.data_format not in DATA_FORMATS:
            raise InvalidInput(
                f"Data format {self.data_format!r} cannot be written.",
                argument="data_format",
                advice=f"Use one of {', '.join(DATA_FORMATS)}.",
            )


@dataclass(frozen=True, slots=True)
class Writing:
    """How rows are written.

    Attributes:
        limits: when a new data file is begun, and to which base the files go.
        on_duplicate: what to do, on a table with a primary key, about duplicate keys.
    """

    limits: FileLimits = field(default_factory=FileLimits)
    on_duplicate: OnDuplicate = "error"

    def __post_init__(self) -> None:
        if not isinstance(self.limits, FileLimits):
            raise InvalidInput(f"files is a ty.FileLimits, not a {type(self.limits).__name__}.", argument="files")
        if self.on_duplicate not in ("error", "allow"):
            raise InvalidInput(f"on_duplicate is 'error' or 'allow', not {self.on_duplicate!r}.", argument="on_duplicate")


USUAL: Final = Writing()


def create_table(access: TableAccess, data: Any, new: NewTable, properties: Mapping[str, str], how: Writing) -> Committed:
    """Makes a table of these rows, or an empty one of a schema."""
    if access.log.head() is not None:
        raise AlreadyExists.table(access.store.uri)
    refuse_file(access.uri)
    access.ensure_safe()
    fields, metadata, rows = _as_schema(as_rows(data), new.primary_key, new.data_format)
    seen = _Distinct.of(fields, how, rows)
    try:
        fragments = write_new(access, seen.noting(rows), new.data_format, how.limits, replacing=False)
    except (StorageError, InvalidInput) as error:
        if access.log.head() is not None:  # pylance writes no files for a new table where somebody else just made one
            raise AlreadyExists.table(access.store.uri) from error
        raise
    operation = Overwrite(fragments=fragments, schema=fields, schema_metadata=metadata, config_upsert_values=new.config)
    transaction = Transaction(0, access.runtime.random.uuid(), operation, properties)
    creation = Creation(DataFormat("lance", new.data_format), new.stable_row_ids)
    try:
        seen.check()
        result, file = access.committer.create_table(transaction, creation, new.scheme)
    except TiltyardError as error:
        discard(access, fragments, error)
        raise
    return replace(result, rows=inserted(fragments)), file


@dataclass(slots=True)
class _Distinct:
    """Sees to it that no key comes twice in rows that replace all others: before they are written, or of a stream, before the commit.

    It also stands for the fields of the table to be.
    """

    fields: tuple[Field, ...]
    _passing: PassingKeys | None = None

    @classmethod
    def of(cls, fields: tuple[Field, ...], how: Writing, rows: Rows) -> _Distinct:
        made = cls(fields)
        key = primary_key_of(made)
        if key is None or how.on_duplicate == "allow" or (isinstance(rows, pa.Table) and not rows.num_rows):
            return made
        made._passing = PassingKeys(check_comparable(made, key))
        return made

    def noting(self, rows: Rows) -> Rows:
        if self._passing is None:
            return rows
        noted = self._passing.noting(rows)
        if isinstance(rows, pa.Table):
            self.check()
        return noted

    def check(self) -> None:
        """Raises KeyConflict for keys that came twice among the rows that went by."""
        keys = self._passing.keys() if self._passing is not None else None
        self._passing = None
        if keys is not None:
            distinct_keys(keys, "The rows have", Overwrite.name)


def inserted(fragments: Sequence[DataFragment]) -> dict[str, int]:
    return {"inserted": sum(fragment.physical_rows for fragment in fragments)}


@dataclass
class Appending:
    """What one append or merge leaves for the next while fields and data format stay the same: all that depends on them alone."""

    fields: tuple[Field, ...]
    data_version: str
    key: Key | None = None
    dataset: tuple[TableAccess, LanceDataset] | None = None
    matched: tuple[pa.Schema, SchemaMatch] | None = None
    small: SmallAppends = field(default_factory=SmallAppends)

    def match(self, schema: pa.Schema) -> SchemaMatch:
        found = self.matched  # read once: other threads may put theirs in its place at any time
        if found is None or not found[0].equals(schema, check_metadata=True):
            match = match_schema(self.fields, schema)
            check_encodable(match.fields, file_version(self.data_version))
            found = self.matched = (schema, match)
        return found[1]

    def dataset_at(self, access: TableAccess, version: int) -> LanceDataset:
        """pylance's handle on a version with our fields, which need not be this one: only the schema tells it how to write."""
        found = self.dataset
        if found is None or found[0] is not access:  # what is private to a transaction must not outlive it
            found = self.dataset = (access, open_dataset(access, version, writing=True))
        return found[1]

    @cached_property
    def schema(self) -> pa.Schema:
        """The table's Arrow schema, without metadata."""
        return arrow_from_fields(self.fields, {})


class AppendCache:
    """What the last append or merge left for the next; dropped when the table's fields or data format change. Handles may share one."""

    def __init__(self) -> None:
        self._last: Appending | None = None

    def at(self, read: ManifestFile) -> Appending:
        found, manifest = self._last, read.manifest  # read once: other threads may put theirs in its place at any time
        data_version = manifest.data_format.version if manifest.data_format else "0.1"  # the first, which did not say so
        if found is None or found.fields != manifest.fields or found.data_version != data_version:
            found = self._last = Appending(manifest.fields, data_version, primary_key_of(manifest))
        return found

    def clear(self) -> None:
        self._last = None


class _RowSource:
    """The rows a caller gave to a verb, and the files written of them so far, over all its runs.

    Files are written again only where another version needs other files. So a stream, which can be read once, is enough for most
    conflicts, and nothing that was written in vain costs twice.
    """

    def __init__(self, access: TableAccess, data: Any) -> None:
        self._access = access
        self._data = data
        self._rows: Rows | None = None
        self._written: tuple[object, tuple[DataFragment, ...], WriteBase | None] | None = None

    @property
    def rows(self) -> Rows:
        if self._rows is None:
            self._rows, self._data = as_rows(self._data), None
        return self._rows

    def files(
        self, plan: object, write: Callable[[], tuple[DataFragment, ...]], after: RetryableConflict | None, target: WriteBase | None = None
    ) -> tuple[DataFragment, ...]:
        """The rows as files.

        Args:
            plan: all that decides what the files look like; equal plans can share files.
            write: writes them.
            after: the conflict that ended the run before.
            target: the base they are written to.
        """
        if self._written is not None:
            if self._written[0] == (plan, target):
                return self._written[1]
            if not isinstance(self.rows, pa.Table):
                raise StreamSpentError
            assert after is not None
            self.discard(after)
        fragments = write()
        self._written = ((plan, target), fragments, target)
        return fragments

    def discard(self, failure: TiltyardError) -> None:
        """Removes the files, unless the failure leaves open whether they are part of the table."""
        if self._written is not None:
            discard(self._access, self._written[1], failure, self._written[2])
            self._written = None


def append_rows(
    access: TableAccess, read: ManifestFile, scheme: Scheme, data: Any, cache: AppendCache,
    properties: Mapping[str, str], how: Writing, policy: ReexecutionPolicy,
) -> Committed:  # fmt: skip
    """Adds rows. ``cache`` holds what earlier appends of the handle left."""
    source = _RowSource(access, data)
    passing: list[PassingKeys] = []

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        appending = cache.at(run.read)
        key, data_version = appending.key, appending.data_version
        checked = check_comparable(manifest, key) if key is not None and how.on_duplicate == "error" else None
        target = find_base(access, manifest, how.limits.base) if how.limits.base is not None else None
        match = appending.match(source.rows.schema)
        alone = key is not None or run.after is not None or access.committer.queue is None  # a run before may have left files
        if not alone and (pending := appending.small.pending(access, source.rows, match, data_version, how.limits)):
            return commit_rows(access, run, Append((pending.planned,)), properties, pending=pending)

        def write() -> tuple[DataFragment, ...]:
            rows = conformed(source.rows, match.schema, match.check_not_null)
            if checked is not None and not isinstance(rows, pa.Table):
                passing[:] = [PassingKeys(checked)]
                rows = passing[0].noting(rows)
            # One that an earlier append left may not know the base yet.
            dataset = partial(appending.dataset_at, access) if target is None else partial(open_dataset, access)
            version = partial(dataset, manifest.version)
            return write_into(access, rows, match.fields, data_version, version, how.limits, target, later=True)

        keys: WrittenKeys | None = AnyKeys() if key is not None else None
        if checked is not None and isinstance(source.rows, pa.Table):  # before anything is written
            keys = checked_keys(access, manifest, checked, _key_columns(source.rows, checked, match))
        fragments = source.files((match.fields, data_version, checked), write, run.after, target)
        if checked is not None and not isinstance(source.rows, pa.Table):
            keys = checked_keys(access, manifest, checked, passing[0].keys())
        return commit_rows(access, run, Append(fragments), properties, keys)

    # A key that is there already is no reason to try again: the next run would find it as well.
    return _run(access, read, scheme, source, execute, policy, again=lambda conflict: not isinstance(conflict, KeyConflict))


def _key_columns(rows: pa.Table, key: Key, match: SchemaMatch) -> pa.Table:
    part = rows.select(key.columns)
    schema = pa.schema([match.schema.field(name) for name in key.columns])
    return key.of(conformed(part, schema, [path for path in match.check_not_null if parse_path(path)[0] in key.columns]))


def checked_keys(access: TableAccess, manifest: Manifest, key: Key, keys: pa.Table | None) -> WrittenKeys | None:
    """The keys of rows to be appended.

    Raises:
        KeyConflict: two rows have one key, or a row of the table has it.
    """
    if keys is None:
        return None
    new = NewKeys(access, key, distinct_keys(keys, "The rows have", Append.name).keys)
    if shared := new.shared_with_all(manifest):
        raise KeyConflict(
            f"Version {manifest.version} already has these keys: {'; '.join(shared)}.",
            operation=Append.name,
            read_version=manifest.version,
            sample=shared,
            retryable=False,
        )
    return new


def overwrite_rows(
    access: TableAccess, read: ManifestFile, scheme: Scheme, data: Any, primary_key: Sequence[str] | None, properties: Mapping[str, str],
    how: Writing, policy: ReexecutionPolicy, expected: int | None = None,
) -> Committed:  # fmt: skip
    """Replaces rows and schema, of an expected version if one is given. The primary key stays unless another one is named."""
    source = _RowSource(access, data)
    read = expected_version(access, read, scheme, expected)

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        data_version = manifest.data_format.version if manifest.data_format else "2.2"
        key = kept_key(manifest, source.rows.schema) if primary_key is None else primary_key
        fields, metadata, rows = _as_schema(source.rows, key, data_version)
        plan = (fields, data_version, manifest.max_allocated_field_id)
        target = find_base(access, manifest, how.limits.base)
        seen = _Distinct.of(fields, how, rows)

        def write() -> tuple[DataFragment, ...]:
            return write_new(access, seen.noting(rows), data_version, how.limits, replacing=True, target=target)

        fragments = source.files(plan, write, run.after, target)
        seen.check()
        fields, fragments = _above_old_ids(manifest, fields, fragments)
        operation = Overwrite(fragments=fragments, schema=fields, schema_metadata=metadata)
        return commit_rows(access, run, operation, properties, unchanged=expected is not None)

    return _run(access, read, scheme, source, execute, policy, again=lambda _: expected is None)


def expected_version(access: TableAccess, read: ManifestFile, scheme: Scheme, expected: int | None) -> ManifestFile:
    """The version that an overwrite stands on: the one that its caller expects, or else the one of the handle.

    Raises:
        HistoryUnavailable: it is gone, so that it is not known what came since.
    """
    if expected is None:
        return read
    if expected == read.manifest.version:
        return read
    try:
        return access.load(expected, scheme)
    except NotFound as error:
        raise HistoryUnavailable(
            f"Version {expected}, which the rows were made from, cannot be read.",
            operation=Overwrite.name,
            read_version=expected,
            missing=[expected],
        ) from error


def _run(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    source: _RowSource,
    execute: Callable[[Execution], Committed],
    policy: ReexecutionPolicy,
    again: Callable[[RetryableConflict], bool] = always,
) -> Committed:  # fmt: skip
    try:
        return run_verb(access, read, scheme, execute, policy, again=again)
    except TiltyardError as error:
        source.discard(error)
        raise


def commit_rows(
    access: TableAccess, run: Execution, operation: Append | Overwrite, properties: Mapping[str, str], keys: WrittenKeys | None = None,
    *, unchanged: bool = False, pending: PendingRows | None = None,
) -> Committed:  # fmt: skip
    transaction = Transaction(run.read.manifest.version, access.runtime.random.uuid(), operation, properties)
    counts, commit = inserted(operation.fragments), access.committer.commit
    return commit(transaction, run.read, run.scheme, run.policy, keys=keys, counts=counts, unchanged=unchanged, pending=pending)


def _as_schema(rows: Rows, primary_key: Sequence[str] | None, data_version: str) -> tuple[tuple[Field, ...], dict[str, bytes], Rows]:
    """Fields and metadata for these rows, and the rows under exactly that schema."""
    version = file_version(data_version)
    fields, metadata = fields_from_arrow(rows.schema, primary_key=primary_key or None, file_version=version)
    check_encodable(fields, version)
    schema = arrow_from_fields(fields, metadata)
    return fields, metadata, conformed(rows, schema, key_of(fields))


def file_version(data_version: str) -> tuple[int, int]:
    major, _, minor = data_version.partition(".")
    return int(major), int(minor)


def kept_key(manifest: Manifest, schema: pa.Schema) -> tuple[str, ...]:
    key = key_of(manifest.fields)
    lost = [path for path in key if path.split(".")[0] not in schema.names]
    if lost:
        raise InvalidInput(
            f"The new rows lack {', '.join(lost)} of the table's primary key.",
            argument="primary_key",
            advice="Add the columns, or pass primary_key=[] to remove the key.",
        )
    return key


def _above_old_ids(
    manifest: Manifest, fields: tuple[Field, ...], fragments: tuple[DataFragment, ...]
) -> tuple[tuple[Field, ...], tuple[DataFragment, ...]]:
    """On tables that never reuse a field id, the new schema's ids begin above the highest one given out.

    pylance has numbered the files' columns that way already, from the newest version it saw, which may be newer than ours. So the
    schema follows the files; only without files we begin where our version says.
    """
    if manifest.max_allocated_field_id is None or not manifest.writer_flags & Feature.NON_REUSABLE_FIELD_IDS:
        return fields, fragments
    numbers = [number for fragment in fragments for file in fragment.files for number in file.fields]
    lowest = min(leaf_ids(fields, file_version(manifest.data_format.version)) if manifest.data_format else (0,))
    shift = min(numbers) - lowest if numbers else manifest.max_allocated_field_id + 1
    moved = tuple(
        replace(field, id=field.id + shift, parent_id=field.parent_id + shift if field.parent_id >= 0 else -1) for field in fields
    )
    return moved, fragments

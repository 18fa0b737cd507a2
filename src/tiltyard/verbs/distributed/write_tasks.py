"""Work done in other processes: data files are written by whoever has the rows, and committed by whoever has the table.

A ``WriteTask`` travels to the writers. It knows where the table is and what its rows look like, and needs neither a catalog nor the right
to commit. What a writer made travels back as a ``Piece``. Until it is committed nobody sees it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from tiltyard.errors import InvalidInput, StorageError, UnsupportedFeature
from tiltyard.format.digests import Digest
from tiltyard.format.fields import leaf_ids
from tiltyard.format.manifest import Manifest
from tiltyard.format.schema import SchemaMatch, arrow_from_fields, check_encodable, fields_from_arrow, match_schema
from tiltyard.format.statistics import FileStatistics
from tiltyard.format.values import DataFragment, Field
from tiltyard.interfaces import ObjectStore
from tiltyard.options import FileLimits, Storage, TableOptions
from tiltyard.redact import redact
from tiltyard.storage import Durability
from tiltyard.verbs.distributed.plain_files import file_prefix, read_plain, write_plain
from tiltyard.verbs.engine.access import TableAccess, open_access
from tiltyard.verbs.engine.blobs import blob_files, has_blobs
from tiltyard.verbs.engine.data_files import is_plain, keep_statistics, write_into, write_new
from tiltyard.verbs.engine.pylance import open_dataset
from tiltyard.verbs.engine.row_input import Rows, as_rows, conformed
from tiltyard.verbs.engine.write_bases import without_base
from tiltyard.verbs.keys.primary_keys import Key, PassingKeys, check_comparable, primary_key_of
from tiltyard.verbs.write import NewTable, Writing, file_version, kept_key

Kind: TypeAlias = Literal["append", "overwrite", "create"]

INLINE_KEYS: Final = 4 * 1024**2
"""Keys up to so many bytes travel with their piece; more are read from its files when they are needed."""
_TOKEN_BYTES: Final = 8
_DATA: Final = "data/"


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that were written and are not committed yet. It can be pickled.

    Attributes:
        token: which group of pieces it is of; the names of its files begin with it.
        fragments: its files.
        fields: the table's columns that it covers.
        rows: how many there are.
        bytes: the size of its files.
        data_format: version of its files.
        version: the version that its task was made at.
        part: what part of the rows it is, if its writer said so: of several pieces of one part only the first is committed.
        keys: the primary keys of its rows, unless they are too many to travel.
        uri: of the table's directory that its files are in.
        digests: of its files, taken by the writer.
        statistics: of columns of its files, by their names, as far as these are long enough.
    """

    token: str
    fragments: tuple[DataFragment, ...]
    fields: tuple[Field, ...] = field(repr=False)
    rows: int
    bytes: int
    data_format: str
    version: int = 0
    part: str | None = None
    keys: pa.Table | None = field(default=None, repr=False, compare=False)
    uri: str = field(default="", repr=False)
    digests: Mapping[str, Digest] = field(default_factory=dict, repr=False, compare=False)
    statistics: Mapping[str, FileStatistics] = field(default_factory=dict, repr=False, compare=False)

    @property
    def paths(self) -> tuple[str, ...]:
        """Its data files, as the table names them."""
        return tuple(file.path for fragment in self.fragments for file in fragment.files)


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes rows for a table from any process that reaches its store. See ``t.distributed.write_task``.

    It can be pickled. Storage options travel along and are never shown.

    Attributes:
        uri: the table's directory.
        kind: whether the pieces are for an append, an overwrite or a new table.
        fields: the columns of the table, or of the one to be.
        version: the version it was made at; 0 for a new table.
        data_format: version of the data files.
        limits: when a new file is begun.
        token: identifies the files of this task.
    """

    uri: str
    kind: Kind
    fields: tuple[Field, ...] = field(repr=False)
    version: int
    data_format: str
    limits: FileLimits
    token: str
    metadata: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    durability: Durability = "fsync"
    key: Key | None = None
    primary_key: tuple[str, ...] | None = None
    lance_version: int = 0
    new: NewTable | None = None
    table_id: str = ""

    def __repr__(self) -> str:
        return f"WriteTask({self.kind!r}, {redact(self.uri)!r}, version={self.version})"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, or of the one to be."""
        return arrow_from_fields(self.fields, dict(self.metadata))

    def grouped(self, name: str) -> WriteTask:
        """The same task for another group of pieces, whose uncommitted files have names of their own."""
        return replace(self, token=hashlib.sha256(f"{self.token}/{name}".encode()).hexdigest()[: 2 * _TOKEN_BYTES])

    def check(self, schema: pa.Schema) -> None:
        """Refuses rows of a schema that do not fit, before any are written.

        Raises:
            InvalidInput: naming the columns.
        """
        self._match(schema)

    def write(self, data: Any, *, part: str | None = None) -> Piece:
        """Writes rows as data files. Nothing is committed; if it fails, nothing is left.

        Args:
            data: rows: Arrow tables, batches, a reader, an iterator of batches.
            part: what part of all rows these are. Writers that may run twice for the same rows must set it.

        Raises:
            InvalidInput: the rows do not fit the table.
        """
        access = open_access(self.uri, Storage(self.storage_options, self.durability))
        rows = _as_rows(data)
        if rows is None:
            return Piece(self.token, (), self.fields, 0, 0, self.data_format, self.version, part, uri=access.lance_uri)
        match = self._match(rows.schema)
        rows = conformed(rows, match.schema, match.check_not_null)
        passing = PassingKeys(self.key) if self.key is not None else None
        if passing is not None:
            rows = passing.noting(rows)
        fragments, statistics = self._files(access, rows, match)
        keys = passing.keys() if passing is not None else None
        if keys is not None and keys.nbytes > INLINE_KEYS:
            keys = None
        count = sum(fragment.physical_rows for fragment in fragments)
        size = sum(file.size for fragment in fragments for file in fragment.files)
        paths = [f"{_DATA}{file.path}" for fragment in fragments for file in fragment.files]
        digests = access.digests.of(paths, blobs=any(map(has_blobs, match.schema)))
        return Piece(
            self.token, fragments, match.fields, count, size, self.data_format, self.version, part, keys,
            access.lance_uri, digests, statistics,
        )  # fmt: skip

    def read(self, pieces: Iterable[Piece | None], columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of pieces, committed or not; null where a piece lacks a column.

        Args:
            pieces: which; None among them is passed over.
            columns: names of columns; all of the task's if not given.

        Raises:
            UnsupportedFeature: there are columns that are stored in another form than they are given in, such as blobs.
        """
        access = open_access(self.uri, Storage(self.storage_options, self.durability))
        if not is_plain(self.fields, self.data_format):
            raise UnsupportedFeature(
                "Pieces with columns such as blobs cannot be read before they are committed.", feature="reading pieces"
            )
        schema = arrow_from_fields(self.fields)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        parts = []
        for piece in filter(None, pieces):
            there = [field.name for field in piece.fields if field.parent_id < 0]
            parts += [read_plain(access, path, schema, there) for path in piece.paths]
        return pa.concat_tables([schema.empty_table(), *parts])

    def discard(self, pieces: Iterable[Piece | None] = (), *, all_of_token: bool = False) -> int:
        """Removes the files of pieces that are not to be committed; returns how many.

        Args:
            pieces: which; None among them is passed over.
            all_of_token: also whatever else was written by this task and the groups of the pieces, and was not returned.

        Never call it while the outcome of a commit of the pieces is unknown.

        Raises:
            InvalidInput: a version of the table has them; nothing is removed.
        """
        given = [piece for piece in pieces if piece is not None]
        access = open_access(self.uri, Storage(self.storage_options, self.durability))
        tokens = dict.fromkeys((self.token, *(piece.token for piece in given)))
        refuse_committed(access, self.version, [path for piece in given for path in piece.paths], tokens if all_of_token else ())
        removed = remove_pieces(access.store, given)
        if all_of_token:
            removed += sum(remove_leftovers(access.store, token, ()) for token in tokens)
        return removed

    def _match(self, schema: pa.Schema) -> SchemaMatch:
        return match_schema(self.fields, schema)

    def _files(self, access: TableAccess, rows: Rows, match: SchemaMatch) -> tuple[tuple[DataFragment, ...], Mapping[str, FileStatistics]]:
        if is_plain(match.fields, self.data_format):
            return write_plain(access, rows, match.fields, self.data_format, self.limits, self.token)
        if self.kind == "append":
            # A handle that finds the version by the number pylance knows it by: inside a transaction that is another one than ours.
            dataset = partial(open_dataset, access, self.lance_version, writing=True)
            made = write_into(access, rows, match.fields, self.data_format, dataset, self.limits)
        else:
            made = write_new(access, rows, self.data_format, self.limits, replacing=self.kind == "overwrite")
        access.store.sync([f"{_DATA}{file.path}" for fragment in made for file in fragment.files])
        return _numbered(made, leaf_ids(match.fields, file_version(self.data_format))), {}


def _numbered(fragments: tuple[DataFragment, ...], ids: tuple[int, ...]) -> tuple[DataFragment, ...]:
    """The files with the ids of the task's fields: pylance may have numbered them after another version than others saw."""
    for fragment in fragments:
        for file in fragment.files:
            if len(file.fields) != len(ids):
                raise UnsupportedFeature("Columns of this kind cannot be written by a write task.", feature="write tasks", writing=True)
    return tuple(replace(fragment, files=tuple(replace(file, fields=ids) for file in fragment.files)) for fragment in fragments)


def _as_rows(data: Any) -> Rows | None:
    """Rows, or None where an iterator has none: then there is no telling of what columns, and no need to."""
    if isinstance(data, Iterator):
        first = next(data, None)
        if first is None:
            return None
        data = chain([first], data)
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes) and not data:
        return None
    return as_rows(data)


# ---- tasks -----------------------------------------------------------------------------------------------------------------


def new_token(access: TableAccess) -> str:
    return access.runtime.random.uuid().replace("-", "")[: 2 * _TOKEN_BYTES]


def append_task(access: TableAccess, manifest: Manifest, limits: FileLimits, schema: pa.Schema | None, *, with_keys: bool) -> WriteTask:
    """A task whose pieces are to be appended."""
    key = primary_key_of(manifest)
    checked = check_comparable(manifest, key) if key is not None and with_keys else None
    data_format = manifest.data_format.version if manifest.data_format else ""
    task = WriteTask(
        access.uri, "append", tuple(manifest.fields), manifest.version, data_format, limits, new_token(access),
        dict(manifest.schema_metadata), access.storage_options, access.durability, checked,
    )  # fmt: skip
    if schema is not None:
        task.check(schema)
    if manifest.data_format is not None:
        check_encodable(task.fields, file_version(data_format))
    if not is_plain(task.fields, data_format):
        task = replace(task, lance_version=access.lance_version(manifest.version))
    return task


def overwrite_task(
    access: TableAccess, manifest: Manifest, limits: FileLimits, schema: pa.Schema, primary_key: Sequence[str] | None, *, with_keys: bool
) -> WriteTask:
    """A task whose pieces replace all rows, and the schema by this one."""
    data_format = manifest.data_format.version if manifest.data_format else "2.2"
    key = kept_key(manifest, schema) if primary_key is None else tuple(primary_key)
    task = _with_schema(access, "overwrite", schema, key, data_format, limits, with_keys=with_keys)
    return replace(task, version=manifest.version, primary_key=None if primary_key is None else tuple(primary_key))


def create_task(
    access: TableAccess, schema: pa.Schema, new: NewTable, limits: FileLimits, *, with_keys: bool, table_id: str = ""
) -> WriteTask:
    """A task whose pieces make a new table."""
    key = tuple(new.primary_key or ())
    task = _with_schema(access, "create", schema, key, new.data_format, limits, with_keys=with_keys)
    return replace(task, new=new, primary_key=key, table_id=table_id)


def _with_schema(
    access: TableAccess, kind: Kind, schema: pa.Schema, key: Sequence[str], data_format: str, limits: FileLimits, *, with_keys: bool
) -> WriteTask:
    if not isinstance(schema, pa.Schema):
        raise InvalidInput(f"A schema is a pyarrow.Schema, not {type(schema).__name__}.", argument="schema")
    version = file_version(data_format)
    fields, metadata = fields_from_arrow(schema, primary_key=tuple(key) or None, file_version=version)
    check_encodable(fields, version)
    task = WriteTask(
        access.uri, kind, fields, 0, data_format, limits, new_token(access), dict(metadata), access.storage_options, access.durability
    )  # fmt: skip
    primary = primary_key_of(task)
    return replace(task, key=check_comparable(task, primary) if primary is not None and with_keys else None)


def check_uri(access: TableAccess, pieces: Iterable[Piece]) -> None:
    """Refuses files that lie elsewhere: a table may have been made anew, under its name, since they were written."""
    for piece in pieces:
        if piece.uri != access.lance_uri:
            raise InvalidInput(
                f"A piece was written to {redact(piece.uri)}, and the table is at {redact(access.lance_uri)}.",
                argument="pieces",
                advice="Make a new write task and write the rows again.",
            )


def take_over_findings(access: TableAccess, pieces: Iterable[Piece]) -> None:
    """What writers found out about their files need not be found out again, perhaps from far away."""
    statistics: dict[str, FileStatistics] = {}
    for piece in pieces:
        access.digests.remember(piece.digests)
        statistics.update(piece.statistics)
    keep_statistics(access, statistics)


# ---- files that nobody wants -----------------------------------------------------------------------------------------------


def refuse_committed(access: TableAccess, since: int, paths: Iterable[str], tokens: Iterable[str] = ()) -> None:
    """Makes sure that no version after one has these files, or others of these groups.

    Whoever asks for their removal may not know what became of a commit: its process may have died right after it.
    """
    wanted, begins = frozenset(paths), tuple(file_prefix(token) for token in tokens)
    head = access.log.head()
    for name in access.log.versions() if head is not None else ():
        if name.version <= since or head is None:
            continue
        for fragment in access.load(name.version, head[1]).manifest.fragments:
            if any(file.path in wanted or (begins and file.path.startswith(begins)) for file in fragment.files):
                raise InvalidInput(
                    f"Version {name.version} of {access.store.uri} has a file of these pieces.",
                    argument="pieces",
                    advice="They are committed: keep them.",
                )


def remove_pieces(store: ObjectStore, pieces: Iterable[Piece]) -> int:
    """Deletes the files of pieces; what cannot be deleted is cleanup's."""
    removed = 0
    for piece in pieces:
        with suppress(StorageError):
            for path in blob_files(store, piece.fragments):
                store.delete(path)
        for path in piece.paths:
            with suppress(StorageError):
                store.delete(_DATA + path)
                removed += 1
    return removed


def remove_leftovers(store: ObjectStore, token: str, kept: Iterable[str]) -> int:
    """Deletes files of a group of pieces that are not among those kept: of attempts that were lost on the way."""
    begin, keep = file_prefix(token), frozenset(kept)
    removed = 0
    with suppress(StorageError):
        # Listed from there on, so that a store which keeps its names in order is asked for little more than what there is to delete.
        for found in store.list(_DATA, offset=_DATA + begin):
            name = found.path.removeprefix(_DATA)
            if not name.startswith(begin):
                if store.ordered and name > begin:
                    break
                continue
            if name not in keep:
                store.delete(found.path)
                removed += 1
    return removed


def new_task(
    access: TableAccess, schema: pa.Schema, primary_key: Sequence[str] | None, stable_row_ids: bool, options: TableOptions | None
) -> WriteTask:
    """A task for a table that is not there yet, as a caller describes it."""
    given = options or TableOptions()
    how = Writing(without_base(given.files), given.on_duplicate)
    new = NewTable.of(primary_key, stable_row_ids, given)
    return create_task(access, schema, new, how.limits, with_keys=given.on_duplicate == "error")

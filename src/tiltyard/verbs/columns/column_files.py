"""What the verbs that change columns share: finding a column by its path, and new files for columns, fragment by fragment."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput, NotFound, TiltyardError, UnsupportedFeature
from tiltyard.format.fields import ROOT, FieldTree, field_tree, leaf_ids, parse_path
from tiltyard.format.keys import primary_key_fields
from tiltyard.format.manifest import Manifest
from tiltyard.format.safe_text import check_text
from tiltyard.format.schema import RESERVED_NAMES, arrow_from_fields
from tiltyard.format.values import DataFile, DataFragment, Field
from tiltyard.transaction.deletion_vectors import DeletionVectors
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.blobs import has_blobs
from tiltyard.verbs.engine.checkpoint import Checkpoint, WrittenColumns
from tiltyard.verbs.engine.data_files import fragment_from_lance
from tiltyard.verbs.engine.lent_streams import lent
from tiltyard.verbs.engine.pylance import lance_errors, translated
from tiltyard.verbs.engine.row_deletion import dataset_at, discard_files
from tiltyard.verbs.engine.row_input import cast

if TYPE_CHECKING:
    from lance import LanceDataset

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Batches: TypeAlias = Iterator[pa.RecordBatch]
Progress: TypeAlias = Callable[[int, int], object]
"""Called with how many fragments are done, and how many there are."""


# ---- columns by name -------------------------------------------------------------------------------------------------------


def quoted(*names: str) -> str:
    """A column for a SQL expression, whatever characters its names are made of."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def find_field(tree: FieldTree, path: object, argument: str) -> Field:
    """The field at a column path; members of structs can be reached, those of lists and maps cannot."""
    if not isinstance(path, str) or not path:
        raise InvalidInput(f"A column is named by its path, not {path!r}.", argument=argument)
    parent = ROOT
    found: Field | None = None
    for name in parse_path(path):
        if found is not None and found.logical_type != "struct":
            raise InvalidInput(f"{found.name!r} is not a struct, so there is no column {path!r}.", argument=argument)
        found = next((field for field in tree.below(parent) if field.name == name), None)
        if found is None:
            known = ", ".join(field.name for field in tree.below(parent))
            raise InvalidInput(f"There is no column {path[:60]!r}.", argument=argument, advice=f"There is: {known[:120]}.")
        parent = found.id
    assert found is not None
    return found


def family_of(tree: FieldTree, top: Field) -> list[Field]:
    """A field and all that is below it, in the schema's order."""
    inside = {top.id}
    for member in tree.fields:
        if member.parent_id in inside:
            inside.add(member.id)
    return [field for field in tree.fields if field.id in inside]


def refuse_key(tree: FieldTree, top: Field, what: str) -> None:
    """Refuses to touch what identifies rows.

    Raises:
        InvalidInput: the field is part of the primary key, or holds a part of it.
    """
    inside = {field.id for field in family_of(tree, top)}
    if keys := [field for field in primary_key_fields(tree.fields) if field.id in inside]:
        path = tree.path(keys[0])
        raise InvalidInput(f"{path} is part of the primary key and cannot be {what}.", argument=path, advice="Make a new table without it.")


def check_new_name(name: object, siblings: Iterable[str], argument: str) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"A column's name is text, not {name!r}.", argument=argument)
    if "." in name or "`" in name or name in RESERVED_NAMES:  # stock readers cannot ask for a name with a backtick
        advice = "Names hold no dot and no backtick; some are reserved."
        raise InvalidInput(f"A column cannot be called {name[:60]!r}.", argument=argument, advice=advice)
    check_text(name, "The name of a column", argument)
    if name in siblings:
        raise InvalidInput(f"There is a column {name[:60]!r} already.", argument=argument, advice="Choose another name.")
    return name


def check_new_names(manifest: Manifest, names: Iterable[object]) -> None:
    """Refuses names of new columns that the table has, or cannot have."""
    taken = {field.name for field in manifest.fields if field.parent_id == ROOT}
    for name in names:
        check_new_name(name, taken, "columns")


# ---- values ----------------------------------------------------------------------------------------------------------------


def fitting(column: pa.Array, wanted: pa.Field, argument: str) -> pa.Array:
    """The column as the type wanted, which it must fit without loss.

    Raises:
        InvalidInput: a value does not fit, or is null where none may be.
    """
    try:
        found = cast(column, wanted.type)
    except (pa.ArrowException, OverflowError) as error:
        what = f"A value of {wanted.name!r} does not fit {wanted.type}: {str(error)[:100].rstrip('. ')}."
        raise InvalidInput(what, argument=argument, advice="Nothing was committed.") from error
    if not wanted.nullable and found.null_count:
        raise InvalidInput(f"A value of {wanted.name!r} is null, and the column takes none.", argument=argument)
    return found


def fitting_batch(batch: object, schema: pa.Schema, rows: int, argument: str) -> pa.RecordBatch:
    """What a caller's function made of a batch, checked: these columns, and as many rows."""
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidInput(f"The function must return a RecordBatch, not {type(batch).__name__}.", argument=argument)
    if batch.num_rows != rows:
        raise InvalidInput(f"The function returned {batch.num_rows} rows for a batch of {rows}.", argument=argument)
    if sorted(batch.schema.names) != sorted(schema.names):
        made, wanted = ", ".join(batch.schema.names)[:80], ", ".join(schema.names)[:80]
        raise InvalidInput(f"The columns are {made}, not {wanted}.", argument=argument)
    return pa.RecordBatch.from_arrays([fitting(batch.column(item.name), item, argument) for item in schema], schema=schema)


def scanned(
    access: TableAccess, dataset: LanceDataset, fragment: int, columns: list[str] | Mapping[str, str], batch_size: int | None = None
) -> pa.RecordBatchReader:
    """The live rows of one fragment in order, with columns given by name or as SQL expressions by name; others may come after them."""
    with lance_errors(access, "read columns", dataset.version):
        chosen: Any = list(columns)
        if isinstance(columns, Mapping) and columns:
            chosen = dict(columns)
        elif not all(map(_PLAIN_NAME.fullmatch, columns)):  # pylance takes names for paths
            chosen = {name: quoted(name) for name in columns}
        one = dataset.get_fragment(fragment)
        assert one is not None
        # An expression over no column is no scan for pylance; one over the row's address is.
        bare = not columns or isinstance(chosen, dict)
        scanner = dataset.scanner(columns=chosen, fragments=[one], with_row_address=bare, batch_size=batch_size)
        return translated(access, scanner.to_reader(), dataset.version)


# ---- files -----------------------------------------------------------------------------------------------------------------


@dataclass
class ColumnFiles:
    """Files with new values for columns, over all executions of a verb: what was written for a fragment that did not change is kept.

    A file has the values of the rows that were live when it was written; in the places of deleted rows it has any values at all. So it
    serves again after more rows were deleted, but not once a deleted row is back.
    """

    access: TableAccess
    checkpoint: Checkpoint | None = None
    _files: dict[str, WrittenColumns] = field(default_factory=dict)
    _outdated: list[DataFile] = field(default_factory=list)
    """Files that another one had to be written for."""

    def at(self, manifest: Manifest) -> FilesAt:
        """For a run on this version."""
        names = repr([(field.id, field.parent_id, field.name, field.logical_type) for field in manifest.fields])
        return FilesAt(self, manifest, dataset_at(self.access, manifest), names)

    def get(self, key: str, before: DataFragment, manifest: Manifest) -> DataFile | None:
        """The file that was written under a key, if it has a value for each row of the fragment that is live now."""
        if key not in self._files and self.checkpoint is not None:
            found = self.checkpoint.finished(key, self.access.store)
            if found is not None:
                self._files[key] = found
        written = self._files.get(key)
        return written.file if written is not None and self._serves(written, before, manifest) else None

    def _serves(self, written: WrittenColumns, before: DataFragment, manifest: Manifest) -> bool:
        """Whether no row is live now that was deleted when the file was written."""
        then, now = written.deletions, before.deletion_file
        if then is None or then == now:
            return True
        if now is None:
            return False
        vectors = DeletionVectors(self.access.store, self.access.runtime.random, self.access.open_base)
        try:
            return vectors.of(replace(before, deletion_file=then), manifest.base_paths) <= vectors.of(before, manifest.base_paths)
        except (NotFound, CorruptTable, UnsupportedFeature):
            return False  # nobody can tell which rows the file has values for

    def keep(self, key: str, file: DataFile, before: DataFragment) -> None:
        written = WrittenColumns(file, before.deletion_file)
        if key in self._files:
            self._outdated.append(self._files[key].file)
        self._files[key] = written
        if self.checkpoint is not None:
            self.access.store.sync([f"data/{file.path}"])
            self.checkpoint.note(key, written)

    def _all(self) -> list[DataFile]:
        return [*(written.file for written in self._files.values()), *self._outdated]

    def discard(self, failure: TiltyardError) -> None:
        """After a failure: removes the files, unless it leaves open whether they are needed, or they are to be found again."""
        if self.checkpoint is None:
            discard_files(self.access, [f"data/{file.path}" for file in self._all()], failure)

    def settle(self, used: Iterable[DataFragment]) -> None:
        """After the commit: removes files of fragments that are gone by now."""
        needed = {file.path for fragment in used for file in fragment.files}
        for file in self._all():
            if file.path not in needed:
                with suppress(TiltyardError):
                    self.access.store.delete(f"data/{file.path}")
        if self.checkpoint is not None:
            self.checkpoint.close()


@dataclass(frozen=True, slots=True)
class FilesAt:
    """Column files for one version of a table."""

    kept: ColumnFiles
    manifest: Manifest
    dataset: LanceDataset
    names: str

    @property
    def version(self) -> tuple[int, int]:
        """Of the data files."""
        return file_version(self.manifest)

    def file(self, before: DataFragment, fields: list[Field], what: str, batches: Callable[[], Batches]) -> DataFile:
        """A file with columns of one fragment.

        Args:
            before: the fragment.
            fields: the columns, with all that is above and below them.
            what: tells these values from others for the same fragment.
            batches: their values for all live rows, in order.
        """
        found = self.found(before, fields, what)
        return found if found is not None else self.keep(before, fields, what, self._written(before, fields, batches()))

    def found(self, before: DataFragment, fields: list[Field], what: str) -> DataFile | None:
        """The file, if it was written before."""
        ids = leaf_ids(fields, self.version)
        found = self.kept.get(_key(before, self.manifest, self.names, what), before, self.manifest)
        return None if found is None or len(found.fields) != len(ids) else replace(found, fields=ids)

    def keep(self, before: DataFragment, fields: list[Field], what: str, file: DataFile) -> DataFile:
        """A file that was just written, with the ids of its columns."""
        ids = leaf_ids(fields, self.version)
        self.kept.keep(_key(before, self.manifest, self.names, what), file, before)
        if len(file.fields) != len(ids):
            raise UnsupportedFeature(
                "pylance stores these columns in a form that this release does not know.", feature="columns", writing=True
            )
        return replace(file, fields=ids)

    def _written(self, before: DataFragment, fields: list[Field], batches: Batches) -> DataFile:
        return written_columns(self.kept.access, self.dataset, before.id, self.free_names(arrow_from_fields(fields)), batches)

    def free_names(self, schema: pa.Schema) -> pa.Schema:
        """pylance adds columns under new names only; what a file calls its columns does not matter, their field ids do."""
        taken = {field.name for field in self.manifest.fields if field.parent_id == ROOT}
        names = []
        for item in schema:
            name, number = item.name if _PLAIN_NAME.fullmatch(item.name) else "column", 0
            while name in taken:
                name, number = f"{item.name}_{number}", number + 1
            taken.add(name)
            names.append(name)
        return pa.schema([item.with_name(name) for item, name in zip(schema, names, strict=True)])


def written_columns(access: TableAccess, dataset: LanceDataset, fragment: int, schema: pa.Schema, batches: Batches) -> DataFile:
    """Has pylance write new columns of one fragment.

    Args:
        access: the table.
        dataset: pylance's handle on the version.
        fragment: its id.
        schema: the columns, under names that are free.
        batches: their values for all live rows, in order.
    """

    def stream() -> Batches:
        for batch in batches:
            # What a caller's library makes may be a view of what a file can hold.
            columns = [cast(have, want.type) for have, want in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    one = dataset.get_fragment(fragment)
    assert one is not None
    known = {(file.path, file.base_id) for file in one.metadata.files}
    with lent(schema, stream()) as source, lance_errors(access, "write columns"):
        written, _ = one.merge_columns(source)
    return next(file for file in fragment_from_lance(written).files if (file.path, file.base_id) not in known)


def file_version(manifest: Manifest) -> tuple[int, int]:
    """Version of the table's data files.

    Raises:
        UnsupportedFeature: it is older than what columns can be added to.
    """
    major, _, minor = (manifest.data_format.version if manifest.data_format else "").partition(".")
    if not major.isdigit() or not minor.isdigit() or int(major) < 2:
        raise UnsupportedFeature("Columns of tables in the oldest data format cannot be changed.", feature="columns", writing=True)
    return int(major), int(minor)


def refuse_blobs(schema: pa.Schema) -> None:
    if names := [item.name for item in schema if has_blobs(item) or b"lance-encoding:blob" in (item.metadata or {})]:
        raise UnsupportedFeature(
            f"Column {names[0]!r} holds blobs, which can be written only with new rows.", feature="columns of blobs", writing=True
        )


def _key(before: DataFragment, manifest: Manifest, names: str, what: str) -> str:
    """All that decides which values a fragment's new columns have, apart from its deletions: its number alone says nothing of its rows."""
    bases = {base.id: base.path for base in manifest.base_paths}
    files = [(file.path, bases.get(file.base_id or 0), file.fields, file.column_indices) for file in before.files]
    rows = (before.physical_rows, before.row_ids, before.created_at, before.updated_at, before.overlays, before.unknown)
    return hashlib.sha256(repr((before.id, rows, files, names, what)).encode()).hexdigest()


def tree_of(manifest: Manifest) -> FieldTree:
    return field_tree(manifest.fields, f"version {manifest.version}")

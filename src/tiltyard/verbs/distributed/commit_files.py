"""Pieces that other processes wrote, committed: by the rules that append, overwrite and create follow for rows of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from tiltyard.errors import AlreadyExists, InvalidInput, KeyConflict, RetryableConflict
from tiltyard.format.fields import field_tree
from tiltyard.format.flags import Feature
from tiltyard.format.keys import primary_key as key_of
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.values import DataFormat, DataFragment, Field
from tiltyard.options import OnDuplicate
from tiltyard.transaction.apply.next_manifest import Creation
from tiltyard.transaction.key_filter import WrittenKeys
from tiltyard.transaction.operations import Append, Overwrite
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.distributed.write_tasks import Piece, WriteTask, check_uri, remove_leftovers, remove_pieces, take_over_findings
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.reexecution import Committed, Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.keys.primary_keys import AnyKeys, Key, check_comparable, distinct_keys, key_of_fields, primary_key_of
from tiltyard.verbs.write import NewTable, checked_keys, commit_rows, expected_version, inserted, kept_key

LONG_AGO: Final = float("-inf")
"""When pieces were written: nobody knows, so the commit looks whether their files are there."""
WRITE_AGAIN = "Make a new write task and write the rows again; discard these pieces."


@dataclass(frozen=True, slots=True)
class Settled:
    """Pieces to be committed, and those that others stand for."""

    kept: tuple[Piece, ...]
    lost: tuple[Piece, ...] = ()

    @property
    def fragments(self) -> tuple[DataFragment, ...]:
        return tuple(fragment for piece in self.kept for fragment in piece.fragments)

    @property
    def shapes(self) -> list[Piece]:
        """One piece for each set of columns that there is; mostly there is one."""
        found: list[Piece] = []
        for piece in self.kept:
            if piece.fragments and not any(
                piece.fields == each_piece.fields and piece.data_format == each_piece.data_format for each_piece in found
            ):
                found.append(piece)
        return found

    def remove_lost(self, access: TableAccess, *, leftovers: bool) -> None:
        """Once the others are committed, whatever else was written is of no use to anybody."""
        remove_pieces(access.store, self.lost)
        if leftovers:
            names = [path for piece in self.kept for path in piece.paths]
            for token in dict.fromkeys(piece.token for piece in self.kept):
                remove_leftovers(access.store, token, names)


def settled(pieces: Iterable[Piece | None]) -> Settled:
    """Of several pieces of one part the first; a piece that was given twice counts once."""
    kept: dict[object, Piece] = {}
    lost: list[Piece] = []
    files: set[str] = set()
    for number, piece in enumerate(pieces):
        if piece is None:
            continue
        if not isinstance(piece, Piece):
            raise InvalidInput(f"A {type(piece).__name__} is not a piece.", argument="pieces", advice="Give what WriteTask.write returned.")
        if files.intersection(piece.paths):
            continue
        files.update(piece.paths)
        part = number if piece.part is None else (piece.token, piece.part)
        if part in kept:
            lost.append(piece)
        else:
            kept[part] = piece
    return Settled(tuple(kept.values()), tuple(lost))


def append_pieces(
    access: TableAccess, read: ManifestFile, scheme: Scheme, pieces: Iterable[Piece | None], on_duplicate: OnDuplicate,
    properties: Mapping[str, str], policy: ReexecutionPolicy, *, leftovers: bool,
) -> Committed:  # fmt: skip
    """Adds the rows of pieces."""
    work = settled(pieces)
    check_uri(access, work.kept)
    take_over_findings(access, work.kept)

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        for piece in work.shapes:
            _check_fits(manifest, piece.fields, piece.data_format)
        key = primary_key_of(manifest)
        keys: WrittenKeys | None = AnyKeys() if key is not None else None
        if key is not None and on_duplicate == "error":
            checked = check_comparable(manifest, key)
            keys = checked_keys(access, manifest, checked, _keys_of(access, checked, work.kept))
        return commit_rows(access, replace(run, begun=LONG_AGO), Append(work.fragments), properties, keys)

    # A key that is there already is no reason to try again: the next run would find it as well.
    done = run_verb(access, read, scheme, execute, policy, again=lambda conflict: not isinstance(conflict, KeyConflict))
    work.remove_lost(access, leftovers=leftovers)
    return done


def overwrite_pieces(
    access: TableAccess, read: ManifestFile, scheme: Scheme, task: WriteTask, pieces: Iterable[Piece | None], on_duplicate: OnDuplicate,
    properties: Mapping[str, str], policy: ReexecutionPolicy, *, leftovers: bool, expected: int | None = None,
) -> Committed:  # fmt: skip
    """Replaces rows and schema by those of pieces, of an expected version if one is given."""
    _check_kind(task, "overwrite")
    work = settled(pieces)
    _check_own(task, work)
    check_uri(access, work.kept)
    take_over_findings(access, work.kept)
    read = expected_version(access, read, scheme, expected)

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        if (manifest.data_format.version if manifest.data_format else "2.2") != task.data_format:
            raise _changed(manifest, "the format of data files is another one now")
        if task.primary_key is None and kept_key(manifest, task.schema) != key_of(task.fields):
            raise _changed(manifest, "the table's primary key is another one now")
        if on_duplicate == "error":
            _check_distinct(access, task, work)
        fields, fragments = _numbered_above(manifest, task.fields, work.fragments)
        metadata = dict(task.metadata)
        operation = Overwrite(fragments=fragments, schema=fields, schema_metadata=metadata)
        return commit_rows(access, replace(run, begun=LONG_AGO), operation, properties, unchanged=expected is not None)

    done = run_verb(access, read, scheme, execute, policy, again=lambda _: expected is None)
    work.remove_lost(access, leftovers=leftovers)
    return done


def create_from_pieces(
    access: TableAccess, task: WriteTask, pieces: Iterable[Piece | None], properties: Mapping[str, str], *, leftovers: bool
) -> Committed:
    """Makes a table of pieces. Whether their keys must differ was said when the task was made."""
    _check_kind(task, "create")
    work = settled(pieces)
    _check_own(task, work)
    check_uri(access, work.kept)
    take_over_findings(access, work.kept)
    new = task.new or NewTable()
    if access.log.head() is not None:
        raise AlreadyExists.table(access.store.uri)
    access.ensure_safe()
    if task.key is not None:
        _check_distinct(access, task, work)
    operation = Overwrite(
        fragments=work.fragments, schema=task.fields, schema_metadata=dict(task.metadata), config_upsert_values=new.config
    )
    transaction = Transaction(0, access.runtime.random.uuid(), operation, properties)
    creation = Creation(DataFormat("lance", new.data_format), new.stable_row_ids)
    result, file = access.committer.create_table(transaction, creation, new.scheme, begun=LONG_AGO)
    work.remove_lost(access, leftovers=leftovers)
    return replace(result, rows=inserted(work.fragments)), file


# ---- whether they fit ------------------------------------------------------------------------------------------------------


def _check_kind(task: WriteTask, kind: str) -> None:
    if not isinstance(task, WriteTask) or task.kind != kind:
        made = task.kind if isinstance(task, WriteTask) else type(task).__name__
        raise InvalidInput(f"The task was made for another purpose: {made}, not {kind}.", argument="task")


def _check_own(task: WriteTask, work: Settled) -> None:
    known = {field.id: field for field in task.fields}
    for piece in work.kept:
        if piece.data_format != task.data_format or any(known.get(field.id) != field for field in piece.fields):
            raise InvalidInput("A piece was written by a task for other columns.", argument="pieces", advice="Give pieces of this task.")


def _check_fits(manifest: Manifest, fields: Sequence[Field], data_format: str) -> None:
    """Whether files of these columns can become part of a version: columns are found by id, so that one may have another name since."""
    if manifest.data_format is not None and manifest.data_format.version != data_format:
        raise _changed(manifest, "the format of data files is another one now")
    there = {field.id: field for field in manifest.fields}
    for mine in fields:
        now = there.get(mine.id)
        if now is None or now.logical_type != mine.logical_type or now.parent_id != mine.parent_id:
            raise _changed(manifest, f"column {mine.name} is gone or of another type")
        if mine.nullable and not now.nullable:
            raise _changed(manifest, f"column {mine.name} must not be null any more")
    covered = {field.id for field in fields}
    for field in field_tree(manifest.fields).fields:
        if field.id not in covered and not field.nullable and (field.parent_id < 0 or field.parent_id in covered):
            raise _changed(manifest, f"column {field.name} is new and must not be null")


def _changed(manifest: Manifest, what: str) -> RetryableConflict:
    return RetryableConflict(
        f"The pieces do not fit version {manifest.version}: {what}.",
        operation=Append.name,
        read_version=manifest.version,
        retryable=False,
        advice=WRITE_AGAIN,
    )


# ---- keys ------------------------------------------------------------------------------------------------------------------


def _check_distinct(access: TableAccess, task: WriteTask, work: Settled) -> None:
    key = primary_key_of(task)
    keys = _keys_of(access, check_comparable(task, key), work.kept) if key is not None else None
    if keys is not None:
        distinct_keys(keys, "The rows have", Overwrite.name)


def _keys_of(access: TableAccess, key: Key, pieces: Sequence[Piece]) -> pa.Table | None:
    parts = [_keys_of_piece(access, key, piece) for piece in pieces if piece.rows]
    return pa.concat_tables(parts) if parts else None


def _keys_of_piece(access: TableAccess, key: Key, piece: Piece) -> pa.Table:
    if piece.keys is not None and piece.keys.num_columns == len(key.names):
        return piece.keys.rename_columns([*key.names])
    then = key_of_fields(piece, key.fields)  # as the columns were called when the files were written
    if then is None:
        raise InvalidInput("The pieces lack a column of the primary key.", argument="pieces")
    return pa.concat_tables([_keys_in_file(access, then, path) for path in piece.paths]).rename_columns([*key.names])


def _keys_in_file(access: TableAccess, key: Key, path: str) -> pa.Table:
    from lance.file import LanceFileReader

    with lance_errors(access, "read keys"):
        reader = LanceFileReader(f"{access.lance_uri}/data/{path}", access.lance_options(), columns=key.columns)
        return key.of(reader.read_all().to_table())


# ---- numbers of columns ----------------------------------------------------------------------------------------------------


def _numbered_above(
    manifest: Manifest, fields: tuple[Field, ...], fragments: tuple[DataFragment, ...]
) -> tuple[tuple[Field, ...], tuple[DataFragment, ...]]:
    """On tables that never reuse a field id, the new schema's begin above the highest one given out. Files only list ids, so theirs can
    follow."""
    if manifest.max_allocated_field_id is None or not manifest.writer_flags & Feature.NON_REUSABLE_FIELD_IDS:
        return fields, fragments
    shift = manifest.max_allocated_field_id + 1 - min((field.id for field in fields), default=0)
    moved = tuple(
        replace(field, id=field.id + shift, parent_id=field.parent_id + shift if field.parent_id >= 0 else -1) for field in fields
    )
    files = tuple(
        replace(fragment, files=tuple(replace(file, fields=tuple(number + shift for number in file.fields)) for file in fragment.files))
        for fragment in fragments
    )
    return moved, files

"""The files that an operation brings along, as paths below the table's root. What lies in another base is the business of its writer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFile, DataFragment, IndexFile
from tiltyard.transaction.operations import (
    Append,
    CreateIndex,
    DataReplacement,
    Delete,
    Merge,
    Operation,
    Overwrite,
    Rewrite,
    Update,
)
from tiltyard.transaction.rebase import fragments_of


def new_files(operation: Operation, base: Manifest | None) -> list[str]:
    """Files that a version would name and the one below it does not; for indices that do not list theirs, the directory, with a ``/``."""
    return list(dict.fromkeys((*_of_fragments(_fragments(operation), base), *_of_columns(operation), *_of_indices(operation))))


def _fragments(operation: Operation) -> list[DataFragment]:
    if isinstance(operation, Append | Overwrite | Merge):
        return [*operation.fragments]
    if isinstance(operation, Delete):
        return [*operation.updated_fragments]
    if isinstance(operation, Update):
        return [*operation.updated_fragments, *operation.new_fragments]
    if isinstance(operation, Rewrite):
        return [one for group in operation.groups for one in group.new_fragments]
    return []


def _of_fragments(fragments: Iterable[DataFragment], base: Manifest | None) -> Iterator[str]:
    several = list(fragments)
    # New fragments have no id yet and must not be taken for the one that has id 0; files of theirs are in no version.
    known = {} if base is None else fragments_of(base, {one.id for one in several if one.id or one.deletion_file})
    for one in several:
        before = known.get(one.id)
        there = set(before.files) if before is not None else set()
        yield from _data_files(file for file in one.files if file not in there)
        deletions = one.deletion_file
        if deletions is not None and deletions.base_id is None and (before is None or before.deletion_file != deletions):
            yield deletions.path(one.id)


def _data_files(files: Iterable[DataFile]) -> Iterator[str]:
    return (f"data/{file.path}" for file in files if file.base_id is None)


def _of_columns(operation: Operation) -> Iterator[str]:
    return _data_files(one.new_file for one in operation.replacements) if isinstance(operation, DataReplacement) else iter(())


def _of_indices(operation: Operation) -> Iterator[str]:
    if isinstance(operation, CreateIndex):
        for index in operation.new_indices:
            if index.base_id is None and index.fields:
                yield from _index_files(index.uuid, index.files)
    if isinstance(operation, Rewrite):
        for mapped in operation.rewritten_indices:
            yield from _index_files(mapped.new_id, mapped.files)


def _index_files(uuid: str, files: tuple[IndexFile, ...]) -> Iterator[str]:
    directory = f"_indices/{uuid}/"
    return (directory + file.path for file in files) if files else iter((directory,))

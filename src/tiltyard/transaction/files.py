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
    new = (path for one in _added(operation) for path in (*_data_files(one.files), *_deletions(one)))
    changed = _of_changed(_changed(operation), base)
    return list(dict.fromkeys((*new, *changed, *_of_columns(operation), *_of_indices(operation))))


def _added(operation: Operation) -> list[DataFragment]:
    """Fragments that no version has yet. Most have no id, and must not be taken for the one whose id is 0."""
    if isinstance(operation, Append | Overwrite):
        return [*operation.fragments]
    if isinstance(operation, Update):
        return [*operation.new_fragments]
    if isinstance(operation, Rewrite):
        return [one for group in operation.groups for one in group.new_fragments]
    return []


def _changed(operation: Operation) -> list[DataFragment]:
    """New states of fragments that are there."""
    if isinstance(operation, Delete | Update):
        return [*operation.updated_fragments]
    return [*operation.fragments] if isinstance(operation, Merge) else []


def _of_changed(fragments: list[DataFragment], base: Manifest | None) -> Iterator[str]:
    known = fragments_of(base, {one.id for one in fragments}) if base is not None else {}
    for one in fragments:
        before = known.get(one.id)
        # By name: of a file that stays, an operation may well say other things than before.
        there = {*_data_files(before.files), *_deletions(before)} if before is not None else set()
        yield from (path for path in (*_data_files(one.files), *_deletions(one)) if path not in there)


def _deletions(fragment: DataFragment) -> tuple[str, ...]:
    file = fragment.deletion_file
    return (file.path(fragment.id),) if file is not None and file.base_id is None else ()


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

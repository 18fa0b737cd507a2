"""The files that an operation brings along, as paths below the table's root. What lies in another base is the business of its writer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tiltyard.errors import NotFound, StorageError
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFile, DataFragment, IndexFile
from tiltyard.interfaces import ObjectStore, SeesFiles
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

LOOK_AFTER: Final = 600.0
"""Seconds after which new files are looked for before the commit even where each costs a request."""


def new_files(operation: Operation, base: Manifest | None) -> list[str]:
    """Files that a version would name and the one below it does not; for indices that do not list theirs, the directory, with a ``/``."""
    new = (path for one in _added(operation) for path in (*_data_files(one.files), *_deletions(one)))
    changed = _of_changed(_changed(operation), base)
    return list(dict.fromkeys((*new, *changed, *_of_columns(operation), *_of_indices(operation))))


def check_there(store: ObjectStore, paths: Sequence[str], operation: str, *, ask: bool) -> None:
    """Refuses to commit files that are not there any more: a cleanup whose clock is days ahead takes new files for orphans.

    Args:
        store: where they lie.
        paths: below the table's root.
        operation: what is to be committed.
        ask: whether they are worth a request each, where it takes one.

    Raises:
        StorageError: naming the first that is gone.
    """
    gone = store.missing(paths) if isinstance(store, SeesFiles) else None
    if gone is None:
        gone = [path for path in paths if not _is_there(store, path)] if ask else []
    if gone:
        others = f" and {len(gone) - 1} others" if len(gone) > 1 else ""
        raise StorageError(
            f"{gone[0]}{others}, written for this {operation}, were deleted before the commit, as a cleanup does with orphans.",
            name=gone[0],
            advice="Nothing was committed. Check the clock of whoever cleans up, then run the operation again.",
        )


def _is_there(store: ObjectStore, path: str) -> bool:
    try:
        store.head(path)
    except NotFound:
        return False
    return True


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

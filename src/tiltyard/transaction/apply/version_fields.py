"""A version made of another one: Restore in the same table, Clone in a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tiltyard.errors import UnsupportedFeature
from tiltyard.format.flags import check_readable, check_writable
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import BasePath, DataFile, DataFragment, IndexMetadata
from tiltyard.transaction.apply.coverage import indices_of, with_indices
from tiltyard.transaction.apply.frame import gone, has_stable_row_ids, highest_fragment_id, invalid
from tiltyard.transaction.operations import Clone, Restore


def restore(operation: Restore, base: Manifest, restored: Manifest | None) -> Manifest:
    """The content of an older version again. What must never be given out twice goes on from where the table is now."""
    if restored is None or restored.version != operation.version:
        raise invalid(f"Version {operation.version} must be given to restore it.", "restored")
    if restored.branch != base.branch:
        raise invalid(f"Version {operation.version} belongs to another branch.", "restored")
    check_readable(restored.reader_flags)
    check_writable(restored.reader_flags, restored.writer_flags)
    if has_stable_row_ids(base) and not has_stable_row_ids(restored):
        # Row ids of the older version are addresses: the same numbers would mean other rows.
        raise gone(operation.name, f"version {operation.version} is from before the table had stable row ids")
    marks = [mark for mark in (highest_fragment_id(base), highest_fragment_id(restored)) if mark is not None]
    fields = [mark for mark in (base.max_allocated_field_id, restored.max_allocated_field_id) if mark is not None]
    return replace(
        restored,
        version=base.version + 1,
        fragments=restored.fragments.in_order(),
        max_fragment_id=max(marks, default=None),
        next_row_id=max(base.next_row_id, restored.next_row_id),
        max_allocated_field_id=max(fields, default=None),
        # Both keep what stays once it is set; the rest is computed from the content.
        reader_flags=restored.reader_flags | base.reader_flags,
        writer_flags=restored.writer_flags | base.writer_flags,
    )


def clone(operation: Clone, source: Manifest) -> Manifest:
    """The first version of a new table or branch: the source's content, under the source's number."""
    if source.version != operation.ref_version:
        raise invalid(f"The version to clone is {operation.ref_version}, not {source.version}.", "source")
    check_readable(source.reader_flags)
    check_writable(source.reader_flags, source.writer_flags)
    if any(fragment.overlays for fragment in source.fragments):
        raise UnsupportedFeature("Tables with overlays cannot be cloned.", feature="data overlays", writing=True)
    if operation.is_shallow:
        return _by_reference(operation, source)
    if operation.branch_name is not None:
        raise invalid("A branch cannot be a deep clone: it refers to its table's files.", "is_shallow")
    return _by_copy(source)


def _by_reference(operation: Clone, source: Manifest) -> Manifest:
    if not operation.ref_path:
        raise invalid("A clone must say where its files are.", "ref_path")
    taken = {base.id for base in source.base_paths}
    number = next(number for number in range(len(taken) + 1) if number not in taken)
    entry = BasePath(number, operation.ref_path, is_dataset_root=True, name=operation.ref_name)
    made = _placed(source, lambda base: number if base is None else base)
    return replace(made, base_paths=(*source.base_paths, entry), branch=operation.branch_name)


def _by_copy(source: Manifest) -> Manifest:
    """All files lie in one directory afterwards, so no two may have one name."""
    homes: dict[str, int | None] = {}
    for fragment in source.fragments:
        for file in fragment.files:
            if homes.setdefault(file.path, file.base_id) != file.base_id:
                raise invalid(f"Two bases have a file {file.path}.", "source")
    return replace(_placed(source, lambda _: None), base_paths=(), branch=None)


def _placed(source: Manifest, access: Callable[[int | None], int | None]) -> Manifest:
    """The manifest with every file in another base."""

    def file(one: DataFile) -> DataFile:
        return replace(one, base_id=access(one.base_id))

    def fragment(one: DataFragment) -> DataFragment:
        deletions = one.deletion_file and replace(one.deletion_file, base_id=access(one.deletion_file.base_id))
        return replace(one, files=tuple(map(file, one.files)), deletion_file=deletions)

    def index(one: IndexMetadata) -> IndexMetadata:
        return replace(one, base_id=access(one.base_id))

    made = replace(source, fragments=FragmentList(map(fragment, source.fragments)).in_order())
    return with_indices(made, tuple(map(index, indices_of(source))))

"""Repeats the operations of a branch on a table that the target has left as it was: the same versions, over the branch's own files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from tiltyard.catalog.lake_values import TableHead
from tiltyard.errors import CorruptTable, HistoryUnavailable, NotFound
from tiltyard.format.digests import DIGESTS
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.row_ids import decode_row_versions, encode_row_versions, joined
from tiltyard.format.values import DataFile, DataFragment, DeletionFile, IndexMetadata
from tiltyard.lakes.branches.fast_forward import added_reuse, homeward, segments_of
from tiltyard.lakes.merging.apply_merge import OTHER_COLUMNS, MergedTable
from tiltyard.lakes.merging.table_state import TableState
from tiltyard.lakes.table_names import shown
from tiltyard.storage.transfer import transfer
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.operations import Clone, Overwrite, Restore, Rewrite, UnknownOperation, UpdateBases, UpdateMemWalState
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT
from tiltyard.verbs.engine.access import TableAccess

if TYPE_CHECKING:
    from tiltyard.lake import Lake

_OTHERWISE = (Restore, Clone, UnknownOperation, UpdateMemWalState, UpdateBases)
"""Operations that speak of versions, bases or places of their own line: of these only the outcome is merged."""


@dataclass(frozen=True)
class MadeVersion:
    """A version of the branch: the state of the table there, and what made it."""

    state: TableState
    before: ManifestFile
    transaction: Transaction
    plain: TableAccess


def versions_to_replay(lake: Lake, branch: str, before: TableHead, head: TableHead) -> list[MadeVersion] | None:
    """The versions of a line since a base, lowest first; None where they cannot be repeated one by one."""
    main = lake.plain_access_of(head)
    found: list[MadeVersion] = []
    scheme = Scheme(head.naming)
    try:
        for name, first, last in segments_of(main, before, head):
            access = lake.access_of(replace(head, branch=name), branch)
            log, below = VersionLog(access.store), access.load(first - 1, scheme)
            for version in range(first, last + 1):
                made = log.committed(version, scheme)
                if isinstance(made.transaction.operation, _OTHERWISE):
                    return None
                state = TableState(shown(head.name), access, made.file)
                found.append(MadeVersion(state, below, made.transaction, main.on_branch(name)))
                below = made.file
    except (CorruptTable, HistoryUnavailable, NotFound):
        return None
    return found


def lasting_fields(lake: Lake, branch: str, one: TableHead, other: TableHead, fields: frozenset[int]) -> frozenset[int]:
    """Those of some field ids that stand for the same column in two states, as the history between them shows; none where it does not.

    Either state may be the earlier one: a revert goes from the later to the earlier.
    """
    before, head = sorted((one, other), key=lambda state: state.version)  # a table's branch counts on from where it began
    own = head.branch == before.branch
    try:
        found = [(head.branch, before.version + 1, head.version)] if own else segments_of(lake.plain_access_of(head), before, head)
        logs = {
            version: log
            for name, first, last in found
            for log in (VersionLog(lake.access_of(replace(head, branch=name), branch).store),)
            for version in range(first, last + 1)
        }
        return _lasting(logs, before.version, head, fields)
    except (CorruptTable, HistoryUnavailable, NotFound):
        return frozenset()


def _lasting(logs: Mapping[int, VersionLog], first: int, head: TableHead, fields: frozenset[int]) -> frozenset[int]:
    """Goes back through the versions that a state came from; what a restore took back is not among them."""
    version, scheme = head.version, Scheme(head.naming)
    while version > first and fields:
        made = logs[version].committed(version, scheme)
        operation = made.transaction.operation
        if isinstance(operation, Restore) and first <= operation.version < version:
            version = operation.version
            continue
        if isinstance(operation, (Overwrite, *_OTHERWISE)) or OTHER_COLUMNS in made.transaction.properties:
            return frozenset()
        # The id of a column that was dropped and is in no file any more goes to the next one that is added.
        fields = fields.intersection(field.id for field in made.file.manifest.fields)
        version -= 1
    return fields


def replay(target: MergedTable, versions: list[MadeVersion]) -> None:
    """Commits the same operations on the target, which is at the version that the first of them was built on."""
    offset = target.manifest.version + 1 - versions[0].state.manifest.version
    first = versions[0].state.manifest.version
    for made in versions:
        before = target.manifest.version
        bases = target.base_ids(made.state, list(dict.fromkeys(_bases_in(made.transaction.operation))))
        offset += target.manifest.version - before
        operation = homeward(made.transaction.operation, bases)
        if isinstance(operation, Rewrite):
            _copy_indices(target, made)
            operation = _shifted(operation, first, offset)
        reuse = added_reuse(made.before, made.state.file) if isinstance(operation, Rewrite) else None
        kept = {name: value for name, value in made.transaction.properties.items() if name not in (PARENT, DIGESTS)}
        target.commit(operation, kept, reuse=None if reuse is None else homeward(reuse, bases))
        target.referenced += _sizes(made)


def _bases_in(value: Any) -> Iterator[int | None]:
    """The bases that files of an operation lie in; None for those in the branch's own directory."""
    if isinstance(value, tuple):
        for item in value:
            yield from _bases_in(item)
    elif is_dataclass(value):
        if isinstance(value, DataFile | DeletionFile | IndexMetadata):
            yield value.base_id
        for member in fields(value):
            yield from _bases_in(getattr(value, member.name))


def _sizes(made: MadeVersion) -> int:
    """Bytes of the data files that a version brought."""
    known = {file.path for fragment in made.before.manifest.fragments for file in fragment.files}
    brought = {file.path: file.size for fragment in made.state.manifest.fragments for file in fragment.files if file.path not in known}
    return sum(brought.values())


def _copy_indices(target: MergedTable, made: MadeVersion) -> None:
    """Copies index files of a compaction: a rewritten index has no base of its own."""
    for path in new_files(made.transaction.operation, made.before.manifest):
        if path.startswith("_indices/"):
            for file in [path + name for name in made.plain.store.names(path)] if path.endswith("/") else [path]:
                transfer(made.plain.store, file, target.access.store.inner, file)


def _shifted(operation: Rewrite, first: int, offset: int) -> Rewrite:
    """A rewrite whose rows say when they were created and updated, in the target's numbers of versions."""
    if not offset:
        return operation
    groups = tuple(
        replace(group, new_fragments=tuple(_moved(fragment, first, offset) for fragment in group.new_fragments))
        for group in operation.groups
    )
    return replace(operation, groups=groups)


def _moved(fragment: DataFragment, first: int, offset: int) -> DataFragment:
    changed: dict[str, Any] = {}
    for member in ("created_at", "updated_at"):
        data = getattr(fragment, member)
        if data is not None:
            versions = decode_row_versions(data, physical_rows=fragment.physical_rows, source="the branch")
            runs = [(count, version + offset if version >= first else version) for count, version in versions.runs]
            changed[member] = encode_row_versions(joined(runs))
    return replace(fragment, **changed)

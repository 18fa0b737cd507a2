"""Changes of rows computed elsewhere: other processes find rows to delete and write new ones; the commit is made here.

It is the same commit as that of the verbs that do all of it themselves: one operation on a pinned version, with the same rules for keys,
carried over what others commit meanwhile, and worked out again after a conflict that allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from tiltyard.errors import InvalidInput, KeyConflict, OutcomeUnknown, RetryableConflict, TiltyardError, UnsupportedFeature
from tiltyard.format.keys import primary_key_fields
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.roaring import encode_roaring
from tiltyard.format.schema import arrow_from_fields, is_legacy_blob
from tiltyard.format.values import DataFragment
from tiltyard.options import FileLimits
from tiltyard.transaction.apply.next_manifest import has_stable_row_ids
from tiltyard.transaction.deletion_vectors import DeletionVectors
from tiltyard.transaction.footprint import fragments_of
from tiltyard.transaction.operations import CompactedSsTable, Delete, Update
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.delete import Committed, nothing_done
from tiltyard.verbs.distributed.key_tasks import MatchTask, match_task
from tiltyard.verbs.distributed.scan_tasks import ScanTask, scan_task
from tiltyard.verbs.distributed.write_tasks import Piece, WriteTask, append_task, check_uri, remove_leftovers, remove_pieces
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.blobs import has_blobs
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.engine.row_deletion import Addresses, Rows, Struck, discard_files, strike_out
from tiltyard.verbs.indices.mem_wal import check_progress, commit_progress
from tiltyard.verbs.keys.primary_keys import Key, NewKeys, check_comparable, distinct_keys, filter_of, primary_key_of
from tiltyard.verbs.merge_plan import merge_key, primary_free, refuse_second_key, update_of, with_row_ids
from tiltyard.verbs.write import expected_version


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What a change is going to do, as far as the rules ask.

    Attributes:
        kind: ``"delete"`` where rows are only deleted; ``"update"`` where some are moved or inserted.
        matched: whether rows are matched by a key at all; a plain update or delete is not.
        on: the columns of that key; None for the primary key; empty where rows are matched by some other condition.
        inserting: whether rows may be inserted.
        updated: columns that rows which stay may get other values in; None for all.
        allow_duplicates: whether the result may have duplicate primary keys.
        predicate: for a delete, what the rows have in common, in words or SQL, for the history.
        generations: up to where shards of a write-ahead log are in the table afterwards.
    """

    kind: Literal["delete", "update"] = "update"
    matched: bool = False
    on: tuple[str, ...] | None = None
    inserting: bool = False
    updated: frozenset[str] | None = frozenset()
    allow_duplicates: bool = False
    predicate: str = ""
    generations: tuple[CompactedSsTable, ...] = ()


@dataclass(frozen=True, slots=True)
class RowChange:
    """The result of a change, on the version it was executed on.

    Attributes:
        taken: rows that are deleted or moved: for each fragment the offsets, as ``pack_rows`` gives them.
        pieces: the rows that moved, under their new values, and those that are new.
        moved: on tables whose rows keep their ids, for each piece the ids of rows that moved; these come first in it.
        keys: of all rows that are new; None where there are none, or no key is compared.
        counts: for the result: ``inserted``, ``updated``, ``deleted``.
        distinct: whether it is known already that no two new rows have one key.
    """

    taken: Mapping[int, bytes] = field(default_factory=dict)
    pieces: Sequence[Piece] = ()
    moved: Sequence[Any] = ()
    keys: pa.Table | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    distinct: bool = False


Worker: TypeAlias = Callable[["Pinned"], RowChange]
"""Works a change out on a version; called again, with a newer one, after a conflict."""


@dataclass(frozen=True)
class Pinned:
    """One version of a table, which work in other processes is based on.

    Attributes:
        version: its number.
        schema: its columns.
        after: the conflict that ended the run before; None in the first one.
    """

    _access: TableAccess = field(repr=False)
    _manifest: Manifest = field(repr=False)
    _key: Key | None = None
    after: RetryableConflict | None = None

    @property
    def version(self) -> int:
        """The version of the table that it reads."""
        return self._manifest.version

    @cached_property
    def schema(self) -> pa.Schema:
        return arrow_from_fields(self._manifest.fields, {})

    @property
    def stable(self) -> bool:
        """Whether rows keep their ids when they move."""
        return has_stable_row_ids(self._manifest)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that rows are matched by; empty where there are none."""
        return self._key.names if self._key is not None else ()

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._manifest.fragments.live_rows()

    @property
    def key_reader(self) -> Key | None:
        """Takes the key out of rows: ``key_reader.of(rows)``. It can be pickled."""
        return self._key

    def checked_keys(self, keys: pa.Table) -> pa.Table:
        """The keys of a source, if none of them is null and no two are the same.

        Raises:
            InvalidInput: one is null.
            KeyConflict: naming some that occur more than once.
        """
        for name in keys.column_names:
            if keys.column(name).null_count:
                raise InvalidInput(
                    f"The source has nulls in {name}, which rows are matched by.", argument=name, advice="Fill or drop them."
                )
        return distinct_keys(keys, "The source has", "Merge").keys

    def scan_task(self) -> ScanTask:
        """Reads rows of this version."""
        return scan_task(self._access, self._manifest)

    def write_task(self, limits: FileLimits | None = None) -> WriteTask:
        """Writes rows for a table with the columns of this version."""
        return append_task(self._access, self._manifest, limits or FileLimits(), None, with_keys=False)

    def match_task(self, keys: pa.Table) -> MatchTask:
        """Finds rows of this version by keys that ``checked_keys`` gave."""
        if self._key is None:
            raise InvalidInput("The plan matches rows without a key.", argument="plan")
        return match_task(self._access, self._manifest, self._key, keys)

    def refuse_carrying(self, columns: Iterable[str]) -> None:
        """Refuses to move rows that have blobs in columns which keep their values.

        Raises:
            UnsupportedFeature: naming the column.
        """
        blobs = [column for column in columns if has_blobs(self.schema.field(column)) or is_legacy_blob(self.schema.field(column))]
        if blobs:
            raise UnsupportedFeature(
                f"Blobs of column {blobs[0]!r} would have to be copied, which is not supported.",
                feature="moving blobs",
                writing=True,
                advice="Give the column a new value.",
            )


def pack_rows(addresses: Any) -> dict[int, bytes]:
    """Row addresses, in any order, as offsets by fragment: small, and quick to join.

    Raises:
        InvalidInput: a row address is duplicate.
    """
    found = Addresses()
    found.add(addresses if isinstance(addresses, pa.Array | pa.ChunkedArray) else pa.array(addresses, pa.uint64()))
    packed = found.by_fragment()
    if sum(map(len, packed.values())) < len(found):
        raise InvalidInput(
            "A row of the table matches several rows of the source.", argument="source", advice="Keep one row for each key in the source."
        )
    return {number: encode_roaring(rows) for number, rows in packed.items()}


def join_rows(parts: Iterable[Mapping[int, bytes]]) -> dict[int, bytes]:
    """Joins the rows that several tasks found.

    Raises:
        InvalidInput: two of them found the same row: the source has two rows for it.
    """
    found: dict[int, BitMap] = {}
    for part in parts:
        for number, packed in part.items():
            rows, known = BitMap.deserialize(packed), found.get(number)
            if known is not None and known & rows:
                raise InvalidInput(
                    "A row of the table matches several rows of the source.",
                    argument="source",
                    advice="Keep one row for each key in the source.",
                )
            found[number] = rows if known is None else known | rows
    return {number: encode_roaring(rows) for number, rows in found.items()}


# ---- the verb --------------------------------------------------------------------------------------------------------------


def change_rows(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    worker: Worker,
    plan: RowPlan,
    properties: Mapping[str, str],
    policy: ReexecutionPolicy,
    expected: int | None = None,
) -> Committed:
    """Has a change worked out, on an expected version if one is given, and commits it; nothing where there is nothing to do."""
    read = expected_version(access, read, scheme, expected)
    written: dict[str, list[Piece]] = {}  # by group, over all runs: a worker may use pieces of an earlier one again
    latest: list[RowChange] = []

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        if plan.generations:
            check_progress(manifest, plan.generations)
        key = _checked_plan(manifest, plan)
        change = worker(Pinned(access, manifest, key, run.after))
        check_uri(access, change.pieces)
        latest[:] = [change]
        for piece in change.pieces:
            written.setdefault(piece.token, []).append(piece)
        if not change.taken and not any(piece.rows for piece in change.pieces):
            if plan.generations:
                return commit_progress(access, run, plan.generations, properties, change.counts)
            return nothing_done(run, Delete.name if plan.kind == "delete" else Update.name, change.counts)
        return _commit(access, run, plan, key, change, properties, unchanged=expected is not None)

    try:
        done = run_verb(access, read, scheme, execute, policy, again=lambda _: expected is None)
    except TiltyardError as error:
        if not isinstance(error, OutcomeUnknown):
            _discard(access, written, ())
        raise
    _discard(access, written, {path for change in latest for piece in change.pieces for path in piece.paths})
    return done


def _checked_plan(manifest: Manifest, plan: RowPlan) -> Key | None:
    """The key at play, if the plan does it no harm."""
    top = {field.name for field in manifest.fields if field.parent_id < 0}
    if unknown := sorted((plan.updated or frozenset()) - top):
        raise InvalidInput(f"There is no column {unknown[0]!r}.", argument="values", advice=f"Columns are {', '.join(top)[:120]}.")
    if not plan.matched:
        named = [field.name for field in primary_key_fields(manifest.fields) if plan.updated is None or field.name in plan.updated]
        if named and plan.kind == "update":
            raise InvalidInput(
                f"{named[0]!r} is part of the primary key; an update could make two rows of one key.",
                argument="values",
                advice="Merge the rows under their new keys and delete the old ones.",
            )
        return None
    if plan.on == ():
        return _matched_otherwise(manifest, plan, top)
    primary = primary_key_of(manifest)
    key = merge_key(manifest, plan.on, primary)
    if primary is not None and key != primary and not plan.allow_duplicates:
        refuse_second_key(key.names, primary, inserting=plan.inserting, updated=top if plan.updated is None else plan.updated)
    return key


def _matched_otherwise(manifest: Manifest, plan: RowPlan, top: Collection[str]) -> Key | None:
    """Rows were matched by a condition: then new ones must be looked for by the primary key, and old ones keep theirs."""
    primary = primary_key_of(manifest)
    if primary is None or plan.allow_duplicates:
        return None
    if not primary_free(primary, top if plan.updated is None else plan.updated):
        refuse_second_key((), primary, inserting=False, updated=top)
    return check_comparable(manifest, primary)


def _new_keys(access: TableAccess, manifest: Manifest, plan: RowPlan, key: Key | None, change: RowChange) -> NewKeys | None:
    """The keys that the commit brings.

    Raises:
        KeyConflict: where rows were not matched by this key, that some of them are there already.
    """
    if key is None:
        return None
    primary = key == primary_key_of(manifest)
    keys, schema = change.keys, arrow_from_fields(manifest.fields, {})
    if keys is None:
        keys = key.of(pa.Table.from_batches([], schema))
    if not change.distinct:
        distinct_keys(keys, "The new rows have", "Merge")
    new = NewKeys(access, key, keys, filter_of(key, schema, keys) if primary else None)
    if plan.on == () and (shared := new.shared_with_all(manifest)):
        raise KeyConflict(
            f"Version {manifest.version} already has these keys: {'; '.join(shared)}.",
            operation="Merge",
            read_version=manifest.version,
            sample=shared,
            retryable=False,
        )
    return new


def _commit(
    access: TableAccess, run: Execution, plan: RowPlan, key: Key | None, change: RowChange, properties: Mapping[str, str],
    *, unchanged: bool,
) -> Committed:  # fmt: skip
    manifest = run.read.manifest
    keys = _new_keys(access, manifest, plan, key, change)
    rows = _live(access, manifest, change.taken)
    fragments = _fragments(manifest, change)
    struck = strike_out(access, manifest, rows)
    operation: Update | Delete
    if plan.kind == "delete":
        operation = Delete(struck.updated, struck.removed, plan.predicate)
    else:
        inserted = keys is not None and keys.keys.num_rows > 0
        assigned = None if inserted or plan.updated is None or change.counts.get("inserted") else plan.updated
        operation = update_of(manifest, struck, fragments, assigned)
        operation = replace(operation, inserted_rows=keys.filter if keys is not None else None, compacted_sstables=plan.generations)
    transaction = Transaction(manifest.version, access.runtime.random.uuid(), operation, properties)
    try:
        return access.committer.commit(
            transaction, run.read, run.scheme, run.policy, keys=keys, rows=rows, counts=change.counts, unchanged=unchanged
        )
    except TiltyardError as error:
        _discard_struck(access, struck, error)
        raise


def _live(access: TableAccess, manifest: Manifest, taken: Mapping[int, bytes]) -> Rows:
    """The rows to be struck out, if all of them are there."""
    rows = {number: BitMap.deserialize(packed) for number, packed in taken.items()}
    known = fragments_of(manifest, rows)
    vectors = DeletionVectors(access.store, access.runtime.random, access.open_base, access.digests.note)
    for number, some in rows.items():
        fragment = known.get(number)
        if fragment is None or (some and some.max() >= fragment.physical_rows) or vectors.of(fragment, manifest.base_paths) & some:
            raise InvalidInput(f"Rows of fragment {number} are not in version {manifest.version}.", argument="taken")
    return {number: some for number, some in rows.items() if some}


def _fragments(manifest: Manifest, change: RowChange) -> tuple[DataFragment, ...]:
    known = {field.id: field for field in manifest.fields}
    data_format = manifest.data_format.version if manifest.data_format else ""
    for piece in change.pieces:
        if piece.data_format != data_format or any(known.get(field.id) != field for field in piece.fields):
            raise InvalidInput(f"A piece was written for other columns than version {manifest.version} has.", argument="pieces")
    if not has_stable_row_ids(manifest):
        return tuple(fragment for piece in change.pieces for fragment in piece.fragments)
    ids = change.moved or [np.empty(0, np.uint64)] * len(change.pieces)
    pairs = zip(change.pieces, ids, strict=True)
    return tuple(fragment for piece, moved in pairs for fragment in with_row_ids(piece.fragments, np.asarray(moved, np.uint64)))


def _discard_struck(access: TableAccess, struck: Struck, error: TiltyardError) -> None:
    discard_files(access, struck.files(), error)


def _discard(access: TableAccess, written: Mapping[str, Sequence[Piece]], kept: Collection[str]) -> None:
    """Removes what was written in vain: in runs before the last one, or by attempts that came back to nobody."""
    for token, pieces in written.items():
        remove_pieces(access.store, [piece for piece in pieces if not set(piece.paths) & set(kept)])
        remove_leftovers(access.store, token, kept)

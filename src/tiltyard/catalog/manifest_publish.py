"""Publishes rows of a ``__manifest`` table: those that are replaced are known, so nothing has to be searched for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

from tiltyard.catalog.manifest_rows import GONE, SCHEMA, Row, table_of
from tiltyard.errors import TiltyardError
from tiltyard.format.flags import check_writable
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.schema import arrow_from_fields, match_schema
from tiltyard.options import FileLimits
from tiltyard.transaction.apply.frame import has_stable_row_ids
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.new_files import new_files
from tiltyard.transaction.operations import Update
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.data_files import discard, write_into
from tiltyard.verbs.engine.pylance import open_dataset
from tiltyard.verbs.engine.reexecution import ReexecutionPolicy
from tiltyard.verbs.engine.row_deletion import discard_files, strike_out
from tiltyard.verbs.engine.row_input import conformed
from tiltyard.verbs.keys.primary_keys import NewKeys, filter_of, primary_key_of
from tiltyard.verbs.merge import merge_rows
from tiltyard.verbs.merge_plan import Clause, MergePlan, merge_key, update_of
from tiltyard.verbs.write import AppendCache

_ONCE: Final = RetryPolicy(max_retries=0)
"""A publish that meets another one fails, and what to write is decided anew: carried over it would be an answer to another question."""
_ID: Final = "object_id"

Places = Mapping[int, BitMap]
"""Offsets of rows by fragment."""


def publish_rows(
    access: TableAccess, read: ManifestFile, scheme: Scheme, rows: Sequence[Row], taken: Places, known: Collection[str]
) -> tuple[ManifestFile, dict[str, Sequence[Row]]]:
    """Puts rows in the place of others, on the version that was read and no other.

    Args:
        access: the table.
        read: that version.
        scheme: how versions are named.
        rows: new ones, and ids of those that go.
        taken: where the rows lie that are replaced or go.
        known: the ids of these.

    Returns:
        The version that was made; and the rows of each data file in it that is new, as far as they are known.
    """
    manifest = read.manifest
    if not _is_ours(manifest):
        return _merged(access, read, scheme, rows), {}
    check_writable(manifest.reader_flags, manifest.writer_flags)
    access.ensure_safe()
    kept = [row for row in rows if row.object_type != GONE]
    source = table_of(kept)
    match = match_schema(manifest.fields, source.schema)
    data_version = manifest.data_format.version if manifest.data_format else ""
    fitting = conformed(source, match.schema, match.check_not_null)
    fragments = write_into(access, fitting, match.fields, data_version, lambda: open_dataset(access, manifest.version), FileLimits())
    operation = Update(new_fragments=fragments)
    try:
        new = [at for at, row in enumerate(kept) if row.object_id not in known]
        operation = update_of(manifest, strike_out(access, manifest, taken), fragments, None if new else SCHEMA.names)
        key = merge_key(manifest, [_ID], primary_key_of(manifest))
        came = key.of(source.take(pa.array(new, pa.int64())))
        keys = NewKeys(access, key, came, filter_of(key, arrow_from_fields(manifest.fields, {}), came))
        operation = replace(operation, inserted_rows=keys.filter)
        transaction = Transaction(manifest.version, access.runtime.random.uuid(), operation, {})
        _, file = access.committer.commit(transaction, read, scheme, _ONCE, keys=keys, rows=taken)
    except TiltyardError as error:
        discard_files(access, new_files(operation, manifest), error)
        discard(access, fragments, error)
        raise
    return file, {fragments[0].files[0].path: kept} if len(fragments) == 1 else {}


def _is_ours(manifest: Manifest) -> bool:
    """Whether the table is as we make it. Another client may have made it with columns or row ids that a merge has to carry on."""
    top = [field.name for field in manifest.fields if field.parent_id < 0]
    return top == SCHEMA.names and not has_stable_row_ids(manifest)


def _merged(access: TableAccess, read: ManifestFile, scheme: Scheme, rows: Sequence[Row]) -> ManifestFile:
    plan = MergePlan(on=(_ID,), matched=(Clause("update"),), inserts=(Clause("insert"),))
    if any(row.object_type == GONE for row in rows):
        plan = replace(plan, matched=(Clause("delete", f"source.object_type = '{GONE}'"), *plan.matched))
    _, file = merge_rows(access, read, scheme, table_of(rows), plan, AppendCache(), {}, ReexecutionPolicy(_ONCE, reexecutions=0))
    return file

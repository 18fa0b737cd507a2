"""Whether a version follows from the one before it: what a writer asks who finds a later version than the one it just made."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tiltyard.errors import TiltyardError
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.digests import SEAL, UNSEALED
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import parse_transaction_name
from tiltyard.format.values import WriterVersion
from tiltyard.transaction.apply.coverage import indices_of
from tiltyard.transaction.apply.next_manifest import Stamp, apply
from tiltyard.transaction.footprint import FRAGMENT_REUSE
from tiltyard.transaction.log import Committed
from tiltyard.transaction.operations import Restore, Rewrite
from tiltyard.transaction.system_indices import singleton
from tiltyard.transaction.transaction import Transaction

PARENT: Final = "tiltyard.parent"
"""The property that names the transaction of the version below. The copy inside the manifest has it right; the transaction file, which is
not written again for each attempt, names the version that the first one was put on."""

_STAMP: Final = Stamp(0, WriterVersion("", ""), "")


def with_parent(transaction: Transaction, base: ManifestFile) -> Transaction:
    """The transaction with the id of the one that made the version it is put on, for the copy inside the manifest."""
    parent = transaction_id(base)
    return replace(transaction, properties={**transaction.properties, PARENT: parent}) if parent else transaction


def to_be_sealed(transaction: Transaction) -> Transaction:
    """The transaction with room for the digest of the version file that it is put into."""
    return replace(transaction, properties={**transaction.properties, SEAL: UNSEALED})


def without_marks(transaction: Transaction) -> Transaction:
    """The transaction without what depends on the version that it is put on: what its copies have in common."""
    own = {name: value for name, value in transaction.properties.items() if name not in (PARENT, SEAL)}
    return replace(transaction, properties=own)


def transaction_id(file: ManifestFile) -> str:
    """Who made a version; nothing where it does not say."""
    if file.transaction is not None:
        return pb.Transaction.FromString(file.transaction).uuid
    named = parse_transaction_name(file.manifest.transaction_file)
    return named[1] if named else ""


def fits(later: Committed, below: ManifestFile) -> bool:
    """Whether a version can have been put on the one that has the number below it. Only a version of ours can tell that it was not."""
    parent, made_by = later.transaction.properties.get(PARENT), transaction_id(below)
    return parent is None or not made_by or parent == made_by


def follows(later: Committed, made: Manifest, made_by: str) -> bool | None:
    """Whether the later version was put on ``made``, the work of the transaction ``made_by``. None where that cannot be told.

    Ours say so. Of a stock writer's it is certain where the version is what its operation makes of ``made``; compared is what tells
    versions apart, not how their writers put it.
    """
    parent = later.transaction.properties.get(PARENT)
    if parent is not None:
        return parent == made_by
    operation = later.transaction.operation
    if isinstance(operation, Restore):
        return None  # whatever was there before it, it is the same
    reuse = singleton(later.manifest, FRAGMENT_REUSE) if isinstance(operation, Rewrite) else None
    try:
        expected = apply(operation, made, _STAMP, reuse=reuse)
    except TiltyardError:
        return None
    return True if _outline(expected) == _outline(later.manifest) else None


def _outline(manifest: Manifest) -> object:
    return (
        [(one.id, [file.path for file in one.files], one.deletion_file) for one in manifest.fragments],
        [(one.id, one.name, one.logical_type) for one in manifest.fields],
        dict(manifest.config),
        dict(manifest.table_metadata),
        dict(manifest.schema_metadata),
        sorted((one.uuid, one.fragment_bitmap or b"") for one in indices_of(manifest)),
        sorted(one.path for one in manifest.base_paths),
        manifest.max_fragment_id,
    )

"""Whether a version follows from the one before it: what a writer asks who finds a later version than the one it just made."""

from __future__ import annotations

from typing import Final

from tiltyard.errors import TiltyardError
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import WriterVersion
from tiltyard.transaction.apply import Stamp, apply
from tiltyard.transaction.applying.coverage import indices_of
from tiltyard.transaction.log import Committed
from tiltyard.transaction.operations import Restore, Rewrite
from tiltyard.transaction.singletons import singleton
from tiltyard.transaction.touched import FRAGMENT_REUSE

_STAMP: Final = Stamp(0, WriterVersion("", ""), "")


def follows(later: Committed, made: Manifest) -> bool:
    """Whether the later version is what its operation makes of ``made``: then what was done in ``made`` is in it, or was undone on purpose.

    Compared is what tells versions apart, not how their writers put it.
    """
    operation = later.transaction.operation
    if isinstance(operation, Restore):
        return True  # whatever was there before it, it is the same
    reuse = singleton(later.manifest, FRAGMENT_REUSE) if isinstance(operation, Rewrite) else None
    try:
        expected = apply(operation, made, _STAMP, reuse=reuse)
    except TiltyardError:
        return False
    return _outline(expected) == _outline(later.manifest)


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

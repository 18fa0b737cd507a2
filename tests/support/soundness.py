"""What must hold of a manifest that was accepted, whatever its bytes looked like."""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import replace

from tiltyard.errors import CorruptTable
from tiltyard.format.flags import Feature
from tiltyard.format.keys import primary_key
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file, encode_manifest_file
from tiltyard.format.row_ids import decode_row_ids
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import DataFile, DataFragment

ADDED = DataFragment(0, (DataFile("added.lance", (0,), (0,)),), 5)


def assert_sound(file: ManifestFile, version: int | None = None) -> None:
    """Every promise a decoded manifest makes, asked again in the plainest way."""
    manifest = file.manifest
    if version is not None:
        assert manifest.version == version
    fragments = list(manifest.fragments)
    ids = [fragment.id for fragment in fragments]
    assert len(set(ids)) == len(ids)
    assert manifest.fragments.ids() == ids
    if manifest.max_fragment_id is not None:
        assert max(ids, default=0) <= manifest.max_fragment_id
    bases = {base.id for base in manifest.base_paths}
    for fragment in fragments:
        _assert_sound_fragment(fragment, manifest, bases)
    assert manifest.fragments.live_rows() == sum(fragment.live_rows for fragment in fragments)
    assert manifest.fragments.has_deletions() == any(fragment.deletion_file for fragment in fragments)
    assert "/" not in manifest.transaction_file
    decode_indices(manifest, "again")
    with contextlib.suppress(CorruptTable):  # a type nobody knows shows when the schema is asked for
        arrow_from_fields(manifest.fields, manifest.schema_metadata)
        primary_key(manifest.fields)


def _assert_sound_fragment(fragment: DataFragment, manifest: Manifest, bases: set[int]) -> None:
    assert 0 <= fragment.live_rows <= fragment.physical_rows <= 2**32
    for file in fragment.files:
        below = posixpath.normpath(f"/table/data/{file.path}")
        assert below == f"/table/data/{file.path}"
        assert below.startswith("/table/data/")
        assert "\0" not in file.path
        assert file.base_id is None or file.base_id in bases
        assert len(file.column_indices) == len(file.fields) or (not file.column_indices and file.major < 2)
    if (manifest.reader_flags | manifest.writer_flags) & Feature.STABLE_ROW_IDS and fragment.row_ids is not None:
        ids = decode_row_ids(fragment.row_ids, physical_rows=fragment.physical_rows, source="again")
        assert ids.highest() < manifest.next_row_id


def assert_written_back(file: ManifestFile) -> None:
    """Encoding and decoding changes nothing; and an append by splicing says the same as one from scratch."""
    manifest = file.manifest
    data, _ = encode_manifest_file(manifest, file.transaction)
    again = decode_manifest_file(data, source="again", version=manifest.version)
    assert again.manifest == manifest
    assert again.transaction == file.transaction
    highest = max([manifest.max_fragment_id or 0, *manifest.fragments.ids()]) + 1
    stable = (manifest.reader_flags | manifest.writer_flags) & Feature.STABLE_ROW_IDS
    if highest > 2**32 - 1 or manifest.version >= 2**64 - 1 or stable:
        return
    added = manifest.fragments.appended([replace(ADDED, id=highest)])
    grown = replace(manifest, version=manifest.version + 1, fragments=added, max_fragment_id=highest, timestamp_ns=77 * 10**9)
    transaction = file.transaction or b""
    spliced = decode_manifest_file(encode_manifest_file(grown, transaction, file)[0], source="spliced", known=file)
    scratch = decode_manifest_file(encode_manifest_file(grown, transaction)[0], source="scratch")
    assert spliced.manifest == scratch.manifest == grown

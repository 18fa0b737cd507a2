"""Whether pylance sees the rows of a version as its manifest has them, and whether keys and row ids are unique."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput, TiltyardError
from tiltyard.format.manifest import Manifest, has_sure_counts
from tiltyard.format.row_ids import decode_row_ids
from tiltyard.format.values import DataFragment
from tiltyard.verbs.check.findings import Findings
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.pylance import lance_errors, open_dataset
from tiltyard.verbs.engine.row_deletion import check_deletions, dataset_at
from tiltyard.verbs.keys.primary_keys import KnownKeys, check_comparable, in_words, key_batches, primary_key_of


def check_row_ids(fragment: DataFragment, manifest: Manifest, findings: Findings) -> None:
    """Stable row ids of a fragment: one for each physical row, none above the high-water mark."""
    if fragment.row_ids is None:
        if not fragment.row_ids_spilled:
            findings.add("I6", f"fragment {fragment.id} has no row ids", manifest.version)
        return
    try:
        ids = decode_row_ids(fragment.row_ids, physical_rows=fragment.physical_rows, source=f"version {manifest.version}")
    except CorruptTable as error:
        findings.add("I6", str(error), manifest.version)
        return
    if ids.highest() >= manifest.next_row_id:
        findings.add("I6", f"fragment {fragment.id} holds row id {ids.highest()}, not yet assigned", manifest.version)


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a version has, and whether that is sure: kept instead of the version, which may be large."""

    version: int
    rows: int
    sure: bool

    @classmethod
    def of(cls, manifest: Manifest) -> RowCount:
        return cls(manifest.version, manifest.fragments.live_rows(), has_sure_counts(manifest))


def check_counts(access: TableAccess, expected: RowCount, findings: Findings) -> None:
    """I13, by counting: pylance opens the version and sees as many rows as we do."""
    try:
        uri = access.lance_uri
    except InvalidInput:
        if findings.pylance_sees:
            findings.not_checked.append("I13: pylance cannot see this store")
        findings.pylance_sees = False
        return
    try:
        with lance_errors(access, "count rows", expected.version):
            counted = open_dataset(access, expected.version).count_rows()
    except TiltyardError as error:
        findings.add("I13", f"pylance cannot open {uri}: {error}", expected.version)
        return
    if counted != expected.rows and expected.sure:
        findings.add("I13", f"pylance counts {counted} rows, the manifest has {expected.rows}", expected.version)


def validate_with_pylance(access: TableAccess, manifest: Manifest, findings: Findings) -> None:
    """I2, at the newest version that was looked at: the data files hold as many rows as the manifest says."""
    if not findings.pylance_sees or not has_sure_counts(manifest):  # then the files are right and the manifest is not
        return
    try:
        check_deletions(access, manifest)
        with lance_errors(access, "validate data files", manifest.version):
            open_dataset(access, manifest.version).validate()  # type: ignore[no-untyped-call]
    except TiltyardError as error:
        findings.add("I2", str(error), manifest.version)


def check_unique_keys(access: TableAccess, manifest: Manifest, findings: Findings) -> None:
    """I4: no two live rows with one primary key, at the newest version that was looked at."""
    key = primary_key_of(manifest)
    if key is None:
        return
    try:
        pieces = list(key_batches(access, dataset_at(access, manifest), check_comparable(manifest, key)))
    except TiltyardError as error:
        findings.not_checked.append(f"I4: {error}")
        return
    doubled = KnownKeys(pa.concat_tables(pieces)).repeated() if pieces else ()
    if len(doubled):
        findings.add("I4", f"{len(doubled)} keys occur in more than one row, such as {in_words(doubled)[0]}", manifest.version)

"""Feature flags: what a manifest says a reader or a writer must understand, and what we set ourselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from tiltyard.errors import CorruptTable, UnsupportedFeature


class Feature(IntFlag):
    """The bits this release knows by name. Knowing one is not supporting it: see ``SUPPORT``."""

    DELETION_FILES = 1
    STABLE_ROW_IDS = 2
    V2_FORMAT = 4
    TABLE_CONFIG = 8
    BASE_PATHS = 16
    NO_TRANSACTION_FILE = 32
    DATA_OVERLAYS = 64
    COVERED_INDEX_METADATA = 128
    MIXED_FILE_VERSIONS = 256
    FRAGMENT_REUSE_WITH_STABLE_IDS = 512
    TAGGED_FRAGMENT_REUSE = 1024
    SPILLED_ROW_LINEAGE = 2048
    FRAGMENT_TREE = 4096
    INDEPENDENT_COVERING_FIELDS = 8192
    MANAGED_BLOBS = 16384
    NON_REUSABLE_FIELD_IDS = 32768


@dataclass(frozen=True, slots=True)
class Support:
    """Whether we read and write tables with a feature, and why."""

    read: bool
    write: bool
    why: str


SUPPORT: Final[dict[Feature, Support]] = {
    Feature.DELETION_FILES: Support(True, True, "deletion files are read and written"),
    Feature.STABLE_ROW_IDS: Support(True, True, "row ids and row versions are kept"),
    Feature.V2_FORMAT: Support(True, True, "has no meaning today; the next commit drops it"),
    Feature.TABLE_CONFIG: Support(True, True, "config is kept"),
    Feature.BASE_PATHS: Support(True, True, "bases are kept, and files keep their base"),
    Feature.NO_TRANSACTION_FILE: Support(True, True, "the inline transaction is always written; kept once set"),
    Feature.DATA_OVERLAYS: Support(False, False, "a scan that ignores overlays returns old values"),
    Feature.COVERED_INDEX_METADATA: Support(True, True, "index entries are kept as they are"),
    Feature.MIXED_FILE_VERSIONS: Support(True, True, "every data file names its own version; kept once set"),
    Feature.FRAGMENT_REUSE_WITH_STABLE_IDS: Support(False, False, "reserved, meaning unknown"),
    Feature.TAGGED_FRAGMENT_REUSE: Support(True, False, "the row maps must follow every change of fragments, which this release cannot do"),
    Feature.SPILLED_ROW_LINEAGE: Support(True, True, "old fragments keep their spilled columns, new ones are inline"),
    Feature.FRAGMENT_TREE: Support(False, False, "fragments live outside the manifest"),
    Feature.INDEPENDENT_COVERING_FIELDS: Support(False, False, "meaning unknown"),
    Feature.MANAGED_BLOBS: Support(True, False, "the owners of blob files must be recorded, which this release cannot do"),
    Feature.NON_REUSABLE_FIELD_IDS: Support(True, True, "the flag is kept; refused only where fields are renumbered"),
}

_SAME_IN_BOTH: Final = Feature.STABLE_ROW_IDS | Feature.MIXED_FILE_VERSIONS | Feature.TAGGED_FRAGMENT_REUSE | Feature.MANAGED_BLOBS
_STICKY: Final = _SAME_IN_BOTH
_WORD_BITS: Final = 64


def describe(bits: int) -> str:
    """The bits with their names and values, as in ``data overlays (64), bit 17 (131072)``."""
    return ", ".join(f"{_name(bit)} ({bit})" for bit in _split(bits)) or "none"


def _name(bit: int) -> str:
    known = Feature.__members__.values()
    return next(((f.name or "").lower().replace("_", " ") for f in known if f == bit), f"bit {bit.bit_length() - 1}")


def _split(bits: int) -> list[int]:
    return [1 << n for n in range(_WORD_BITS) if bits >> n & 1]


def _mask(supported: Callable[[Support], bool]) -> int:
    return sum(int(feature) for feature, support in SUPPORT.items() if supported(support))


READABLE: Final = _mask(lambda support: support.read)
WRITABLE: Final = _mask(lambda support: support.write)


def check_readable(reader_flags: int) -> None:
    """Refuses a table that needs more of a reader than we have."""
    refused = reader_flags & ~READABLE
    if refused:
        raise UnsupportedFeature(
            f"The table needs features that this release cannot read: {describe(refused)}.", feature=describe(refused), bits=_split(refused)
        )


def check_writable(reader_flags: int, writer_flags: int, *, new_fields: bool = False) -> None:
    """Refuses to commit to a table with any bit, in either word, that our commit could break.

    ``new_fields`` says that the commit numbers fields anew, as an overwrite does: it would use ids again that must not be.
    """
    refused = (reader_flags | writer_flags) & ~(WRITABLE & ~Feature.NON_REUSABLE_FIELD_IDS if new_fields else WRITABLE)
    if refused:
        raise UnsupportedFeature(
            f"The table needs features that this release cannot write: {describe(refused)}.",
            feature=describe(refused),
            bits=_split(refused),
            writing=True,
        )


def check_consistent(reader_flags: int, writer_flags: int, *, max_allocated_field_id: int | None, source: str) -> None:
    """Combinations no sound writer makes. To be asked after ``check_readable``: a newer writer may have newer rules."""
    halves = (reader_flags ^ writer_flags) & int(_SAME_IN_BOTH)
    if halves:
        raise CorruptTable(source, f"feature flags {describe(halves)} are set in one word only")
    if reader_flags & Feature.NON_REUSABLE_FIELD_IDS:
        raise CorruptTable(source, f"feature flag {describe(Feature.NON_REUSABLE_FIELD_IDS)} is set for readers")
    if writer_flags & Feature.NON_REUSABLE_FIELD_IDS and max_allocated_field_id is None:
        raise CorruptTable(source, f"feature flag {describe(Feature.NON_REUSABLE_FIELD_IDS)} is set without the highest field id")


def compute_flags(
    *,
    has_deletions: bool = False,
    has_config: bool = False,
    has_bases: bool = False,
    spilled_lineage: bool = False,
    covering_indices: bool = False,
    max_allocated_field_id: int | None = None,
    old_reader: int = 0,
    old_writer: int = 0,
) -> tuple[int, int]:
    """Reader and writer word of a new manifest, from its content and from what stays once set."""
    both = (old_reader & old_writer) & int(_STICKY)
    wanted = {
        Feature.DELETION_FILES: has_deletions,
        Feature.BASE_PATHS: has_bases,
        Feature.SPILLED_ROW_LINEAGE: spilled_lineage,
        Feature.COVERED_INDEX_METADATA: covering_indices,
    }
    both |= sum(int(feature) for feature, is_set in wanted.items() if is_set)
    writer = both | (old_writer & Feature.NO_TRANSACTION_FILE)
    if has_config:
        writer |= Feature.TABLE_CONFIG
    if max_allocated_field_id is not None:
        writer |= Feature.NON_REUSABLE_FIELD_IDS
    return both, int(writer)

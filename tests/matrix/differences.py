"""Where we and stock pylance come to different ends, row by row of the matrix, each with its reason.

The list is exact: a difference that is not on it fails a test, and so does an entry that is none any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Difference:
    """What comes of the second operation: here, with pylance, and why."""

    ours: str
    pylance: str
    reason: str


_SPECIFIED: Final = "the specification says so"

DIFFERENCES: Final[dict[str, Difference]] = {
    "Append-Update-a merge inserted keys": Difference(
        "retryable", "committed", "one of the appended keys may be among those the merge inserted; pylance never looks"
    ),
    "Delete-Delete-rows known to nobody": Difference(
        "committed", "retryable", "we find the rows of a bare transaction by comparing deletion vectors; pylance gives up"
    ),
    "Update-Delete-rows unknown": Difference(
        "committed", "retryable", "we find the rows of a bare transaction by comparing deletion vectors; pylance gives up"
    ),
    "CreateIndex-Project-the indexed column dropped": Difference(
        "incompatible", "committed", "pylance leaves an index on a field that is gone, whose id the next column may get"
    ),
    "CreateIndex-DataReplacement-an indexed column, not covered": Difference("committed", "retryable", _SPECIFIED),
    "Rewrite-CreateIndex-the log, remapping postponed": Difference("committed", "retryable", _SPECIFIED),
    "Project-UpdateConfig-schema metadata": Difference("retryable", "committed", "pylance silently undoes the change of metadata"),
    "Project-UpdateConfig-field metadata": Difference(
        "retryable", "committed", "pylance silently undoes the change of metadata, and the primary key is part of it"
    ),
    "Update-Update-four hundred keys each, told apart": Difference(
        "committed", "retryable", "pylance compares filters bit by bit; we ask them for keys"
    ),
    "UpdateConfig-Overwrite-they set none": Difference("incompatible", "committed", _SPECIFIED),
    "UpdateConfig-Overwrite-table metadata": Difference("incompatible", "committed", _SPECIFIED),
    "UpdateConfig-UpdateConfig-both remove one": Difference("incompatible", "committed", _SPECIFIED),
    "UpdateConfig-UpdateConfig-other keys of schema metadata": Difference("committed", "incompatible", _SPECIFIED),
    "UpdateConfig-UpdateConfig-one field, other keys": Difference("committed", "incompatible", _SPECIFIED),
    "UpdateConfig-UpdateConfig-we replace the config": Difference(
        "incompatible", "committed", "the specification says so; pylance removes the other one's key unseen"
    ),
    "UpdateConfig-UpdateConfig-they replaced the config": Difference("incompatible", "committed", _SPECIFIED),
    "DataReplacement-Update-every row moved": Difference("retryable", "incompatible", _SPECIFIED),
    "DataReplacement-Update-another column rewritten": Difference("retryable", "committed", _SPECIFIED),
    "an indexed column cast": Difference("retryable", "committed", "pylance leaves an index on a field that is gone, or loses it"),
    "an appended column cast": Difference("retryable", "committed", "in pylance the appended values read as null"),
    "UpdateBases-UpdateBases-both without a name": Difference(
        "committed", "error", "the specification calls it compatible; pylance takes two missing names for the same name"
    ),
}
DIFFERENCES.update(
    dict.fromkeys(
        (
            "deletions follow a rewrite",
            "every row follows",
            "moved rows follow a rewrite",
            "a merge follows a rewrite",
            "rows of two groups follow",
            "a rewrite takes deletions along",
            "a rewrite takes every deletion along, stable row ids",
            "a rewrite takes moved rows along",
            "a rewrite takes two commits along",
            "deletions over deletions and a rewrite",
            "deletions over a rewrite and another",
            "a rewrite, then another row",
        ),
        Difference("committed", "retryable", "rows keep their ids, so we follow them through the rewrite; pylance starts again"),
    )
)

HOLES: Final[dict[str, str]] = {
    "CreateIndex-Rewrite-an index dropped": "the rewrite gave the index a new id, so that dropping the old one drops nothing",
    "we drop an index that was mapped twice": "the rewrite gave the index a new id, so that dropping the old one drops nothing",
    "CreateIndex-Project-the indexed column dropped": "the index stays on a field that is gone",
    "an indexed column cast": "the index stays on the field that the column had before",
    "an appended column cast": "the appended values are those of a field that is gone, and read as null",
    "Project-UpdateConfig-schema metadata": "the schema that was read before is put back, without the new metadata",
    "Project-UpdateConfig-field metadata": "the schema that was read before is put back, without the new metadata",
}
"""Rows that pylance lets pass, after which its table is not what the two operations mean: how."""

OUT_OF_REACH: Final = {
    "": 319,
    "no call writes it": 104,
    "written in another way than this": 33,
    "about more than two operations": 4,
}
"""How many rows of the matrix pylance's own API brings about, and how many it does not, by reason. Operations that no call writes are
Clone (into a table that exists), ReserveFragments by itself, UpdateMemWalState, a shortened reuse entry, an empty Update and operations
of the future; written in another way are Overwrites with config keys, changed key filters, progress of the log and withheld promises."""

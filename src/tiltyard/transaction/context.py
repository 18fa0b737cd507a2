"""What the operations of a pair do not say themselves, and what a condition found when it looked at both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from tiltyard.errors import Winner
from tiltyard.format.values import DataFragment
from tiltyard.transaction.operations import KeyExistenceFilter


@dataclass(frozen=True, slots=True)
class Context:
    """What the committer knows beyond the two operations; what is missing is decided on the safe side.

    That an update rewrote columns in place is taken from the operation; where it does not say so, only the fragments in ``my_base`` and
    ``their_base`` show it.

    Attributes:
        winner: the commit that carried their operation, for the sentence.
        my_base: fragments at our read version; shows in which of them our files differ.
        their_base: fragments in the version just before theirs; shows in which of them their files differ.
        my_rows: offsets that we delete or move, by fragment, without those that were deleted at our read version already.
        their_rows: the same of theirs, against the version just before it.
        my_keys: the keys an Append of ours writes. A merge carries its own.
        keys_apart: whether the keys of both sides were compared and are different ones, so that no filter needs to be asked.
        key_types: logical types of the primary key's columns, in key order.
        stable_row_ids: whether rows keep their ids when they move.
        row_map_certain: whether it is known for certain where the Rewrite of the pair, ours or theirs, put each row.
        my_reuse: whether our Rewrite brings a fragment reuse entry; the operation itself does not tell. None if it is not known.
        their_reuse: the same of theirs.
    """

    winner: Winner | None = None
    my_base: Mapping[int, DataFragment] = field(default_factory=dict)
    their_base: Mapping[int, DataFragment] = field(default_factory=dict)
    my_rows: Mapping[int, BitMap] = field(default_factory=dict)
    their_rows: Mapping[int, BitMap] = field(default_factory=dict)
    my_keys: KeyExistenceFilter | None = None
    keys_apart: bool = False
    key_types: Sequence[str] = ()
    stable_row_ids: bool = False
    row_map_certain: bool = False
    my_reuse: bool | None = None
    their_reuse: bool | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Where a condition holds: what both sides change and, for a rebase, what has to be done about it.

    Attributes:
        fragments: ids of fragments both change.
        rows: fragment and offset of rows both change (a sample).
        names: keys, fields, indices, shards or bases both change.
        merge_fragments: fragments whose deletion vectors are to be merged.
        undecided_fragments: those among them of which the changed rows of a side are not known. Read them and call ``resolve`` again.
        carry_fragments: old fragments of the Rewrite whose new deletions are to be applied where the rows are now.
        trim_indices: for each new index that covers too much its uuid and the fragments to take out of its coverage.
        merge_singletons: names of singleton indices of which both sides bring one.
    """

    fragments: tuple[int, ...] = ()
    rows: tuple[tuple[int, int], ...] = ()
    names: tuple[str, ...] = ()
    merge_fragments: tuple[int, ...] = ()
    undecided_fragments: tuple[int, ...] = ()
    carry_fragments: tuple[int, ...] = ()
    trim_indices: tuple[tuple[str, tuple[int, ...]], ...] = ()
    merge_singletons: tuple[str, ...] = ()

    @property
    def sample(self) -> tuple[str, ...]:
        """A few of the things that both sides change, in words, the most specific first."""
        rows = [f"row {offset} of fragment {fragment}" for fragment, offset in self.rows]
        fragments = [] if rows else [f"fragment {number}" for number in self.fragments]
        return (*rows[:3], *self.names[:3], *fragments[:3])[:3]

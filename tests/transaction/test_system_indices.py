"""The two indices a table has one of at most: merged when two sides brought one, and never so that an entry is lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from tests.support.carrying import Ground, compaction, packed
from tests.support.manifests import covers, index, table
from tiltyard import ops
from tiltyard.errors import CorruptTable, RetryableConflict
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import uuid_to_pb
from tiltyard.format.values import IndexMetadata
from tiltyard.transaction.footprint import FRAGMENT_REUSE, MEM_WAL, progress_of
from tiltyard.transaction.resolve import Rebase
from tiltyard.transaction.system_indices import merged_singleton, singleton, stamped_reuse

SHARDS = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(3)]
URL = "/lance.table.FragmentReuseIndexDetails"


def reuse(versions: Iterable[int], *, uuid: int = 1, transitions: Iterable[bytes] = ()) -> IndexMetadata:
    """An entry of rewrites: the one of version n put its rows into fragment 10 n."""
    several = [
        pb.FragmentReuseIndexDetails.Version(
            dataset_version=number,
            groups=[pb.FragmentReuseIndexDetails.Group(new_fragments=[pb.FragmentReuseIndexDetails.FragmentDigest(id=10 * number)])],
        )
        for number in versions
    ]
    inline = pb.FragmentReuseIndexDetails.InlineContent(versions=several, transitions=transitions)
    details = pb.FragmentReuseIndexDetails(inline=inline).SerializeToString()
    return replace(index(FRAGMENT_REUSE, [], [10 * number for number in versions], uuid=uuid), details=(URL, details))


def log(progress: Mapping[int, int], *, uuid: int = 1, shards: int = 3) -> IndexMetadata:
    tables = [pb.CompactedSsTable(shard_id=uuid_to_pb(SHARDS[shard]), generation=reached) for shard, reached in progress.items()]
    details = pb.MemWalIndexDetails(num_shards=shards, compacted_sstables=tables).SerializeToString()
    return replace(index(MEM_WAL, [], None, uuid=uuid), details=("/lance.table.MemWalIndexDetails", details))


def versions_of(entry: IndexMetadata | None) -> list[int]:
    assert entry is not None
    assert entry.details is not None
    assert entry.details[0] == URL
    details = pb.FragmentReuseIndexDetails.FromString(entry.details[1])
    found = [one.dataset_version for one in details.inline.versions]
    assert covers(entry) == [10 * number for number in found], "the coverage goes with the versions"
    return found


@pytest.mark.parametrize(
    ("before", "mine", "theirs", "merged"),
    [
        ([1, 2], [1, 2, 8], [2], [2, 8]),
        ([1, 2], [2], [1, 2, 8], [2, 8]),
        ([1, 2, 3], [2, 3], [1, 3], [3]),
        (None, [8], [7], [7, 8]),
        ([1], [1, 8], [], [8]),
        ([1], [], [1], []),
    ],
    ids=["we add, they trim", "we trim, they add", "both trim", "both begin", "they trim all", "we trim all"],
)
def test_what_either_added_without_what_either_took_out(
    before: list[int] | None, mine: list[int], theirs: list[int], merged: list[int]
) -> None:
    was = None if before is None else reuse(before)
    found = merged_singleton(reuse(mine, uuid=5), reuse(theirs, uuid=6), was)
    assert versions_of(found) == merged
    assert found is not None
    assert found.uuid == reuse([], uuid=5).uuid, "it is ours, merged"


def test_what_is_gone_meanwhile_needs_no_merging() -> None:
    mine = reuse([1, 8])
    assert merged_singleton(mine, None, reuse([1])) is mine


def test_an_entry_that_says_nothing_yet() -> None:
    empty = replace(reuse([]), details=None)
    found = merged_singleton(empty, reuse([3]), None)
    assert found is not None
    assert found.details is not None
    assert [one.dataset_version for one in pb.FragmentReuseIndexDetails.FromString(found.details[1]).inline.versions] == [3]


def _external() -> IndexMetadata:
    details = pb.FragmentReuseIndexDetails(external=pb.ExternalFile(path="details.binpb", size=5))
    return replace(reuse([]), details=(URL, details.SerializeToString()))


@pytest.mark.parametrize("strange", [_external(), reuse([1], transitions=[b"?"])], ids=["in a file", "of a kind we do not know"])
@pytest.mark.parametrize("whose", ["mine", "theirs", "before"])
def test_what_cannot_be_read_here_is_not_merged(strange: IndexMetadata, whose: str) -> None:
    sides = {"mine": reuse([1, 8]), "theirs": reuse([1]), "before": reuse([1]), whose: strange}
    assert merged_singleton(sides["mine"], sides["theirs"], sides["before"]) is None


def test_damaged_details_are_told() -> None:
    with pytest.raises(CorruptTable, match="cannot be read"):
        merged_singleton(replace(reuse([1]), details=(URL, b"\xff\xff")), reuse([1]), None)


def test_the_write_ahead_log_keeps_the_higher_generation_of_each_shard() -> None:
    merged = merged_singleton(log({0: 5, 1: 2}, uuid=5), log({1: 4, 2: 1}, uuid=6), None)
    assert merged is not None
    assert progress_of(merged) == {SHARDS[0]: 5, SHARDS[1]: 4, SHARDS[2]: 1}
    back = merged_singleton(log({1: 4}), log({1: 2}), None)
    assert back is not None
    assert progress_of(back) == {SHARDS[1]: 4}
    bare = merged_singleton(replace(log({}), details=None), log({1: 2}), None)
    assert bare is not None
    assert progress_of(bare) == {SHARDS[1]: 2}


def test_the_part_a_rewrite_adds_is_as_new_as_the_version_it_is_put_on() -> None:
    """An index that was built in between knows the rows where they were, so the entry must count as newer."""
    stamped = stamped_reuse(reuse([1, 8]), 12)
    assert stamped.dataset_version == 12
    assert stamped.details is not None
    assert stamped.details[0] == URL
    details = pb.FragmentReuseIndexDetails.FromString(stamped.details[1])
    assert [(one.dataset_version, one.groups[0].new_fragments[0].id) for one in details.inline.versions] == [(1, 10), (12, 80)]
    later = stamped_reuse(reuse([1, 20]), 12)
    assert later.details is not None
    assert [one.dataset_version for one in pb.FragmentReuseIndexDetails.FromString(later.details[1]).inline.versions] == [1, 20]


@pytest.mark.parametrize("entry", [reuse([]), replace(reuse([]), details=None), _external()], ids=["empty", "silent", "in a file"])
def test_an_entry_without_such_a_part_gets_a_version_alone(entry: IndexMetadata) -> None:
    assert stamped_reuse(entry, 12) == replace(entry, dataset_version=12)


# ---- on the way to the head ------------------------------------------------------------------------------------------------


def test_a_rewrite_brings_an_entry_and_they_trimmed_it() -> None:
    ground = Ground(table(indices=[reuse([1, 2])]))
    mine = ground.rebaser(compaction(list(ground.head.fragments)[:2], packed(4, 20)), reuse=reuse([1, 2, 8], uuid=5))
    ground.commit(ops.CreateIndex((reuse([2], uuid=6),), (reuse([1, 2]),)))
    assert isinstance(ground.meet(mine), Rebase)
    assert versions_of(mine.reuse) == [2, 8]
    ground.land(mine)
    assert versions_of(singleton(ground.head, FRAGMENT_REUSE)) == [2, 8]


def test_we_trim_the_entry_and_their_rewrite_added_to_it() -> None:
    ground = Ground(table(indices=[reuse([1, 2])]))
    mine = ground.rebaser(ops.CreateIndex((reuse([2], uuid=6),), (reuse([1, 2]),)))
    ground.commit(compaction(list(ground.head.fragments)[:2], packed(4, 20)), reuse=reuse([1, 2, 8], uuid=5))
    assert isinstance(ground.meet(mine), Rebase)
    ground.land(mine)
    assert versions_of(singleton(ground.head, FRAGMENT_REUSE)) == [2, 8]


def test_their_rewrite_left_the_entry_alone() -> None:
    ground = Ground(table(indices=[reuse([1, 2])]))
    mine = ground.rebaser(ops.CreateIndex((reuse([2], uuid=6),), (reuse([1, 2]),)))
    ground.commit(compaction(list(ground.head.fragments)[:2], packed(4, 20)))
    ground.meet(mine)
    ground.land(mine)
    assert versions_of(singleton(ground.head, FRAGMENT_REUSE)) == [2]


def test_two_set_up_the_same_log() -> None:
    ground = Ground()
    other = index("w", [4], [0], uuid=9)
    mine = ground.rebaser(ops.CreateIndex((log({0: 5, 1: 1}, uuid=5), other)))
    ground.commit(ops.CreateIndex((log({1: 4}, uuid=6),)))
    assert isinstance(ground.meet(mine), Rebase)
    ground.land(mine)
    merged = singleton(ground.head, MEM_WAL)
    assert merged is not None
    assert progress_of(merged) == {SHARDS[0]: 5, SHARDS[1]: 4}
    assert singleton(ground.head, "w") == other


@pytest.mark.parametrize("rewriting", [True, False], ids=["our rewrite", "our index"])
def test_entries_that_cannot_be_merged_are_a_conflict(rewriting: bool) -> None:
    ground = Ground(table(indices=[reuse([1, 2])]))
    trimmed = ops.CreateIndex((replace(_external(), uuid=reuse([], uuid=6).uuid),), (reuse([1, 2]),))
    compacted = compaction(list(ground.head.fragments)[:2], packed(4, 20))
    entry = reuse([1, 2, 8], uuid=5)
    if rewriting:
        mine = ground.rebaser(compacted, reuse=entry)
        ground.commit(trimmed)
    else:
        mine = ground.rebaser(trimmed)
        ground.commit(compacted, reuse=entry)
    with pytest.raises(RetryableConflict):
        ground.meet(mine)

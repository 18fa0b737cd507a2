"""Keys that a commit brings, compared with the rows that came meanwhile: which fragments are looked at, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.support.carrying import Ground, compaction, packed
from tests.support.manifests import data_file, part, table
from tiltyard import ops
from tiltyard.errors import KeyConflict
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFragment
from tiltyard.transaction.key_filter import bloom_of, newly_written, unsettled
from tiltyard.transaction.operations import KeyExistenceFilter, UpdateMode
from tiltyard.transaction.resolve import Compatible

KEY = (0,)


@dataclass
class Keys:
    """Keys of ours, of which some are in certain fragments; notes which ones it is asked about."""

    filter: KeyExistenceFilter | None = None
    there: frozenset[int] = frozenset()
    fields: Sequence[int] = KEY
    asked: list[int] = field(default_factory=list)

    def shared_with(self, fragments: Sequence[DataFragment], manifest: Manifest) -> Sequence[str]:
        self.asked += [one.id for one in fragments]
        return [f"key {one.id}" for one in fragments if one.id in self.there]


def _filter(*keys: bytes) -> KeyExistenceFilter:
    return KeyExistenceFilter(KEY, bloom=bloom_of(keys))


def _rewritten(number: int, fields: tuple[int, ...]) -> DataFragment:
    old = part(number)
    kept = tuple(-2 if one in fields else one for one in old.files[0].fields)
    return replace(old, files=(replace(old.files[0], fields=kept), data_file("column", fields)))


def _in_place(*fields: int) -> ops.Update:
    return ops.Update((), (_rewritten(1, fields),), (), fields, update_mode=UpdateMode.REWRITE_COLUMNS)


@pytest.mark.parametrize(
    ("theirs", "fragments"),
    [
        (ops.Append((part(0, name="a"), part(0, name="b"))), [6, 7]),
        (ops.Update((), (), (part(0, name="a"),)), [6]),
        (_in_place(0), [1]),
        (_in_place(4), []),
        (ops.DataReplacement((ops.Replacement(2, data_file("r", (0,))),)), [2]),
        (ops.DataReplacement((ops.Replacement(2, data_file("r", (4,))),)), []),
        (ops.Delete((), (0,)), []),
    ],
    ids=["append", "moved or inserted", "the key in place", "another column", "the key replaced", "another replaced", "delete"],
)
def test_where_new_keys_may_be(theirs: ops.Operation, fragments: list[int]) -> None:
    ground = Ground()
    assert [one.id for one in newly_written(ground.commit(theirs), ground.base, KEY)] == fragments
    assert [one.id for one in unsettled(Keys(), ground.commits[0], ground.base, ["int64"])] == fragments


def _merge(*keys: bytes, **more: object) -> ops.Update:
    return replace(ops.Update((), (), (part(0, name="a"),), inserted_rows=_filter(*keys)), **more)  # type: ignore[arg-type]


def test_rows_are_read_only_where_filters_do_not_rule_it_out() -> None:
    ground = Ground()
    theirs = ground.commit(_merge(b"1"))
    for mine, asked in ((_filter(b"2"), []), (_filter(b"1"), [6]), (None, [6])):
        assert [one.id for one in unsettled(Keys(mine), theirs, ground.base, ["int64"])] == asked


def test_a_filter_says_nothing_of_keys_that_were_written_in_place() -> None:
    ground = Ground()
    operation = replace(_in_place(0), new_fragments=(part(0, name="a"),), inserted_rows=_filter(b"1"))
    fragments = unsettled(Keys(_filter(b"2")), ground.commit(operation), ground.base, ["int64"])
    assert [one.id for one in fragments] == [6, 1]


def _append(name: str) -> ops.Append:
    return ops.Append((part(0, name=name),))


def test_keys_that_came_meanwhile_are_a_conflict_and_others_are_none() -> None:
    ground = Ground(table())
    mine = ground.rebaser(_merge(b"1"))
    mine.keys = Keys(_filter(b"1"), frozenset({6}))
    ground.commit(_append("theirs"))
    ground.meet(mine)
    with pytest.raises(KeyConflict) as caught:
        mine.compare_keys(ground.head)
    assert (caught.value.sample, [one.version for one in caught.value.winners]) == (("key 6",), [8])
    mine = ground.rebaser(_merge(b"1"))
    mine.keys = Keys(_filter(b"1"))
    assert isinstance(ground.meet(mine), Compatible)
    mine.compare_keys(ground.head)


def test_rows_of_several_commits_are_read_at_once_and_only_once() -> None:
    ground = Ground(table())
    mine, keys = ground.rebaser(_append("mine")), Keys()
    mine.keys = keys
    for number in range(3):
        ground.commit(_append(f"theirs{number}"))
    ground.meet(mine, last=3)
    assert keys.asked == []
    mine.compare_keys(ground.head)
    assert keys.asked == [6, 7, 8]
    mine.compare_keys(ground.head)
    ground.commit(_append("one more"))
    ground.meet(mine)
    mine.compare_keys(ground.head)
    assert keys.asked == [6, 7, 8, 9]


def test_of_several_commits_the_one_is_named_that_brought_the_key() -> None:
    ground = Ground(table())
    mine = ground.rebaser(_append("mine"))
    mine.keys = Keys(there=frozenset({7}))
    for number in range(3):
        ground.commit(_append(f"theirs{number}"))
    ground.meet(mine, last=3)
    with pytest.raises(KeyConflict, match="key 7") as caught:
        mine.compare_keys(ground.head)
    assert [one.version for one in caught.value.winners] == [9]


def test_rows_are_read_before_a_compaction_moves_them() -> None:
    """Afterwards they would be among rows that were there before, in a fragment that nobody looks at."""
    ground = Ground(table())
    mine = ground.rebaser(_append("mine"))
    mine.keys = Keys(there=frozenset({6}))
    ground.commit(_append("theirs"))
    ground.meet(mine)
    ground.commit(compaction([ground.fragment(6)], packed(0, ground.fragment(6).physical_rows)))
    with pytest.raises(KeyConflict, match="key 6"):
        ground.meet(mine)


def test_rows_that_stay_where_they_are_wait_through_other_commits() -> None:
    ground = Ground(table())
    mine, keys = ground.rebaser(_append("mine")), Keys()
    mine.keys = keys
    ground.commit(_append("theirs"))
    ground.commit(ground.delete({1: [0]}))
    ground.meet(mine, last=2)
    assert keys.asked == []
    mine.compare_keys(ground.head)
    assert keys.asked == [6]

"""Which files an operation brings along: those are flushed before a commit, and may be removed after a failed one. Never others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiltyard import ops
from tiltyard.format.fragments import FragmentList
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFile, DataFragment, DeletionFile, IndexFile, IndexMetadata
from tiltyard.transaction.new_files import new_files

OLD = DataFile("old.lance", (0, 1), (0, 1))
NEW = DataFile("new.lance", (1,), (0,))
ELSEWHERE = DataFile("other.lance", (0,), (0,), base_id=1)
DELETIONS = DeletionFile(False, 1, 5, 1)
LATER = DeletionFile(False, 2, 6, 2)
BASE = Manifest(
    version=3,
    fields=(),
    fragments=FragmentList([DataFragment(0, (OLD,), 9), DataFragment(4, (ELSEWHERE,), 9, DELETIONS)]),
    max_fragment_id=4,
)
ADDED = DataFragment(0, (NEW, ELSEWHERE), 3)
TOMBSTONED = DataFragment(0, (replace(OLD, fields=(0, -2)), NEW), 9)
INDEX = IndexMetadata("u", (1,), "x_idx", 3, files=(IndexFile("page.lance", 3),))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (ops.Append((ADDED,)), ["data/new.lance"]),
        (ops.Overwrite((ADDED,)), ["data/new.lance"]),
        (ops.Delete((BASE.fragments[0],)), []),
        (ops.Delete((BASE.fragments[1],)), []),
        (ops.Delete((replace(BASE.fragments[1], deletion_file=LATER),)), ["_deletions/4-2-6.arrow"]),
        (ops.Delete((replace(BASE.fragments[0], deletion_file=replace(LATER, base_id=1)),)), []),
        (ops.Update(updated_fragments=(TOMBSTONED,), new_fragments=(ADDED,)), ["data/new.lance"]),
        (ops.Update(updated_fragments=(TOMBSTONED,)), ["data/new.lance"]),
        (ops.Merge((TOMBSTONED, BASE.fragments[1])), ["data/new.lance"]),
        (
            ops.Rewrite((ops.RewriteGroup((BASE.fragments[0],), (replace(ADDED, id=7, deletion_file=LATER),)),)),
            ["data/new.lance", "_deletions/7-2-6.arrow"],
        ),
        (ops.Rewrite((), (ops.RewrittenIndex("u", "v", files=(IndexFile("page.lance", 3),)),)), ["_indices/v/page.lance"]),
        (ops.Rewrite((), (ops.RewrittenIndex("u", "v"),)), ["_indices/v/"]),
        (ops.DataReplacement((ops.Replacement(0, NEW), ops.Replacement(4, ELSEWHERE))), ["data/new.lance"]),
        (ops.CreateIndex((INDEX,)), ["_indices/u/page.lance"]),
        (ops.CreateIndex((replace(INDEX, files=()),)), ["_indices/u/"]),
        (ops.CreateIndex((replace(INDEX, base_id=1), replace(INDEX, fields=()))), []),
        (ops.Restore(1), []),
        (ops.UpdateConfig(), []),
    ],
)
def test_what_is_new(operation: ops.Operation, expected: list[str]) -> None:
    assert new_files(operation, BASE) == expected


def test_without_a_version_below_all_of_it_is_new() -> None:
    assert new_files(ops.Overwrite((ADDED, replace(ADDED, id=4))), None) == ["data/new.lance"]
    assert new_files(ops.Merge((BASE.fragments[0],)), None) == ["data/old.lance"]

"""Which files an operation brings along: those that must be on the disk before a version names them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.manifests import data_file, deletions, index, part, table
from tiltyard import ops
from tiltyard.format.values import IndexFile
from tiltyard.transaction.new_files import new_files

BASE = table([part(0), part(1, deletion_file=deletions(2))])
MORE = replace(part(0), files=(*part(0).files, data_file("column", (4,))))
LISTED = index("w", [4], [0], uuid=2, files=(IndexFile("a.idx", 1), IndexFile("b.idx", 1)))
ELSEWHERE = replace(part(0, name="far"), files=(data_file("far", base_id=3),))


@pytest.mark.parametrize(
    ("operation", "files"),
    [
        (ops.Append((part(0, name="n"), part(0, name="m"))), ["data/n.lance", "data/m.lance"]),
        (ops.Append((part(0, name="n"), part(0, name="n"))), ["data/n.lance"]),
        (ops.Append((ELSEWHERE,)), []),
        (ops.Overwrite((part(0, name="n"),)), ["data/n.lance"]),
        (ops.Merge((MORE, part(1, deletion_file=deletions(2)))), ["data/column.lance"]),
        (ops.Merge((part(1, deletion_file=deletions(2)),)), []),
        (ops.Delete((part(0, deletion_file=deletions(1)),), (1,)), ["_deletions/0-6-1.arrow"]),
        (ops.Delete((part(1, deletion_file=deletions(3, number=2)),)), ["_deletions/1-6-2.arrow"]),
        (ops.Delete((part(0, deletion_file=replace(deletions(1), base_id=3)),)), []),
        (ops.Update((), (part(0, deletion_file=deletions(1)),), (part(0, name="n"),)), ["_deletions/0-6-1.arrow", "data/n.lance"]),
        (ops.Rewrite((ops.RewriteGroup((part(0),), (part(4, name="n"),)),)), ["data/n.lance"]),
        (ops.Rewrite((), (ops.RewrittenIndex("old", "new"),)), ["_indices/new/"]),
        (ops.Rewrite((), (ops.RewrittenIndex("old", "new", files=(IndexFile("a.idx", 1),)),)), ["_indices/new/a.idx"]),
        (ops.CreateIndex((LISTED,), (index("w", [4], [0], uuid=1),)), [f"_indices/{LISTED.uuid}/{name}" for name in ("a.idx", "b.idx")]),
        (ops.CreateIndex((replace(LISTED, files=()),)), [f"_indices/{LISTED.uuid}/"]),
        (ops.CreateIndex((replace(LISTED, base_id=3), replace(LISTED, fields=()))), []),
        (ops.DataReplacement((ops.Replacement(0, data_file("column", (4,))),)), ["data/column.lance"]),
        (ops.Project(()), []),
        (ops.Restore(1), []),
    ],
    ids=lambda value: getattr(value, "name", None) or "",
)
def test_new_files(operation: ops.Operation, files: list[str]) -> None:
    assert sorted(new_files(operation, BASE)) == sorted(files)


def test_below_a_new_table_everything_is_new() -> None:
    assert new_files(ops.Overwrite((part(0),)), None) == ["data/f0.lance"]

"""Coverage of indices after a rewrite of several groups."""

from __future__ import annotations

from tests.support.manifests import STAMP, coverage, index, part, table
from tiltyard import ops
from tiltyard.transaction.apply.next_manifest import apply


def test_a_mapped_index_takes_over_the_groups_it_covers_and_no_others() -> None:
    mapped = index("w", [4], [0, 2], uuid=1)
    groups = (ops.RewriteGroup((part(0),), (part(3),)), ops.RewriteGroup((part(1),), (part(4),)))
    rewrite = ops.Rewrite(groups, (ops.RewrittenIndex(mapped.uuid, index("w", [4], [], uuid=7).uuid),))
    assert coverage(apply(rewrite, table(indices=[mapped]), STAMP)) == {"w": [2, 3]}

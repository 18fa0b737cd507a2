"""Whether a version follows from another: what a late writer asks before it decides that its version stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.carrying import Ground, compaction, packed
from tests.support.manifests import deletions, index, part, table
from tests.transaction.test_system_indices import reuse
from tiltyard import ops
from tiltyard.format.manifest import Manifest
from tiltyard.format.values import BasePath, DataFragment
from tiltyard.transaction.log import CreatedVersion
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import PARENT, fits, follows, with_parent

UUID = "00000000-0000-4000-8000-000000000007"
BASE = table(indices=[reuse([1])])

OPERATIONS: list[ops.Operation] = [
    ops.Append((part(0, name="more"),)),
    ops.Delete((), (0,)),
    ops.Overwrite((part(0, name="all new"),), BASE.fields),
    ops.CreateIndex((index("w", [4], [0], uuid=9),)),
    compaction(list(BASE.fragments)[:2], packed(4, 20)),
    ops.Project(BASE.fields[:2]),
    ops.UpdateConfig(ops.UpdateMap((("a", "1"),))),
    ops.UpdateBases((BasePath(1, "/elsewhere"),)),
    ops.ReserveFragments(2),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_what_was_made_from_it_follows(operation: ops.Operation) -> None:
    assert follows(Ground(BASE).commit(operation), BASE, "ours") is True


def test_a_rewrite_follows_with_the_entry_it_brought() -> None:
    ground = Ground(BASE)
    later = ground.commit(compaction(list(BASE.fragments)[:2], packed(4, 20)), reuse=reuse([1, 8], uuid=5))
    assert follows(later, BASE, "ours") is True


def test_one_that_names_the_version_below_it_is_believed() -> None:
    later = Ground(BASE).commit(ops.Append(), {PARENT: "ours"})
    assert follows(later, BASE, "ours") is True
    assert follows(later, BASE, "somebody") is False


@pytest.mark.parametrize("inline", [True, False], ids=["inside", "in a file"])
def test_the_version_below_is_named_by_its_transaction(inline: bool) -> None:
    below = Ground(BASE).commit(ops.Append())
    file = below.file if inline else replace(below.file, transaction=None)
    file = replace(file, manifest=replace(file.manifest, transaction_file=f"7-{UUID}.txn"))
    mine = Transaction(7, "ours", ops.Append(), {"job": "nightly"})
    assert dict(with_parent(mine, file).properties) == {"job": "nightly", PARENT: "theirs-7" if inline else UUID}


def test_where_nobody_can_say_what_made_the_version_below_nothing_is_said() -> None:
    below = Ground(BASE).commit(ops.Append()).file
    file = replace(below, transaction=None, manifest=replace(below.manifest, transaction_file=""))
    mine = Transaction(7, "ours", ops.Append())
    assert with_parent(mine, file) is mine


def test_only_a_version_that_says_so_does_not_fit() -> None:
    below = Ground(BASE).commit(ops.Append()).file
    assert fits(Ground(BASE).commit(ops.Append()), below)
    assert fits(Ground(BASE).commit(ops.Append(), {PARENT: "theirs-7"}), below)
    assert not fits(Ground(BASE).commit(ops.Append(), {PARENT: "somebody"}), below)
    nameless = replace(below, transaction=None, manifest=replace(below.manifest, transaction_file=""))
    assert fits(Ground(BASE).commit(ops.Append(), {PARENT: "somebody"}), nameless)


def _with_deletions() -> DataFragment:
    return replace(part(2), deletion_file=deletions(1))


CHANGES: dict[str, Callable[[Manifest], Manifest]] = {
    "a fragment": lambda made: _after(made, ops.Append((part(0, name="unseen"),))),
    "deletions": lambda made: _after(made, ops.Delete((_with_deletions(),))),
    "a column": lambda made: _after(made, ops.Project((*made.fields[:4],))),
    "an index": lambda made: _after(made, ops.CreateIndex((index("unseen", [1], [0], uuid=8),))),
    "a setting": lambda made: replace(made, config={"unseen": "1"}),
    "table metadata": lambda made: replace(made, table_metadata={"unseen": "1"}),
    "schema metadata": lambda made: replace(made, schema_metadata={"unseen": b"1"}),
    "a base": lambda made: replace(made, base_paths=(BasePath(7, "/unseen"),)),
    "reserved ids": lambda made: _after(made, ops.ReserveFragments(3)),
}


def _after(base: Manifest, operation: ops.Operation) -> Manifest:
    return replace(Ground(base).commit(operation).manifest, version=base.version)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_nobody_can_say_of_what_does_not_have_what_was_done(change: str) -> None:
    """The later version was made from another one, without our change; or our change was undone."""
    later = Ground(BASE).commit(ops.Append((part(0, name="more"),)))
    assert follows(later, BASE, "ours") is True
    assert follows(later, CHANGES[change](BASE), "ours") is None


def test_nobody_can_say_of_what_cannot_be_applied() -> None:
    later = Ground(BASE).commit(ops.Delete((), (0,)))
    assert follows(later, _after(BASE, ops.Delete((), (0,))), "ours") is None


def test_nobody_can_say_of_a_restore() -> None:
    made = Ground(BASE).commit(ops.Append())
    assert follows(CreatedVersion(made.file, replace(made.transaction, operation=ops.Restore(1))), BASE, "ours") is None

"""The keys that a commit writes, as far as the commit loop needs to know them: others' new rows are compared with them, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tiltyard.format.manifest import Manifest
from tiltyard.format.values import DataFragment
from tiltyard.transaction.key_filter import may_share_a_key
from tiltyard.transaction.log import Committed
from tiltyard.transaction.operations import Append, DataReplacement, KeyExistenceFilter, Update
from tiltyard.transaction.rebase import arrivals, fragments_of


class WrittenKeys(Protocol):
    """Keys of rows that a commit brings and that were not there at the version it was built on."""

    @property
    def filter(self) -> KeyExistenceFilter | None:
        """The same keys as a filter; None where there is none."""

    @property
    def fields(self) -> Sequence[int]:
        """Ids of the columns they are made of."""

    def shared_with(self, fragments: Sequence[DataFragment], manifest: Manifest) -> Sequence[str]:
        """Some keys of ours, in words, that live rows of these fragments of a version have, too."""


def newly_written(theirs: Committed, before: Manifest, fields: Sequence[int]) -> list[DataFragment]:
    """Fragments in which a commit may have put keys that were nowhere in ``before``: new ones, and those whose key it wrote anew."""
    operation, key = theirs.transaction.operation, frozenset(fields)
    if isinstance(operation, Append):
        return list(arrivals(theirs.manifest, before).values())
    if isinstance(operation, Update):
        changed = [one.id for one in operation.updated_fragments] if key.intersection(operation.fields_modified) else []
        new = arrivals(theirs.manifest, before).values() if operation.new_fragments else ()
        return [*new, *fragments_of(theirs.manifest, changed).values()]
    if isinstance(operation, DataReplacement):
        changed = [one.fragment_id for one in operation.replacements if key.intersection(one.new_file.fields)]
        return list(fragments_of(theirs.manifest, changed).values())
    return []


def unsettled(mine: WrittenKeys, theirs: Committed, before: Manifest, key_types: Sequence[str]) -> list[DataFragment]:
    """Fragments in which a commit may have put keys that we write as well; none where filters rule that out."""
    fragments = newly_written(theirs, before, mine.fields)
    operation = theirs.transaction.operation
    if fragments and isinstance(operation, Update) and operation.inserted_rows is not None and mine.filter is not None:
        in_place = frozenset(mine.fields).intersection(operation.fields_modified)
        if not in_place and not may_share_a_key(mine.filter, operation.inserted_rows, key_types).possible:
            return []
    return fragments

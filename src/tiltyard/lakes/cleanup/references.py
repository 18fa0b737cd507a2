"""Files of one branch of a table that versions of another one name: a merge makes a branch's files part of the target's table.

Only lakes in which something was merged have any; then all versions of a table's branches are looked at, once for each cleanup.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from tiltyard.catalog.lake_values import TableHead
from tiltyard.catalog.merge_records import MERGED
from tiltyard.errors import NotFound
from tiltyard.format.fragments import files_named
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.table_refs import Branches

if TYPE_CHECKING:
    from tiltyard.lake import Lake


class References:
    """Which files of which branch of a table are named elsewhere."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._any = next(iter(lake.catalog.records.scan([MERGED])), None) is not None
        self._tables: dict[str, dict[str, set[str]]] = {}

    def named(self, head: TableHead) -> frozenset[str]:
        """Groups of files in the directory of a table's branch that versions of other branches name."""
        if not self._any:
            return frozenset()
        if head.location not in self._tables:
            self._tables[head.location] = self._read(self._lake.plain_access_of(head))
        root = self._lake.plain_access_of(head).on_branch(head.branch).lance_uri.rstrip("/")
        return frozenset(self._tables[head.location].get(root, ()))

    def _read(self, main: TableAccess) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for name in (None, *Branches(main)):
            line = main.on_branch(name)
            for version in line.log.versions():
                with suppress(NotFound):  # another cleanup was faster
                    for root, group in _in_bases(line.log.load(version.version, version.scheme).manifest):
                        found[root].add(group)
        return found


def _in_bases(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """The files of a version that lie in a base: its root, and the name that their group goes by."""
    roots = {base.id: base.path.rstrip("/") for base in manifest.base_paths}
    if not roots:
        return
    for record in manifest.fragments.records():
        for path, base in files_named(record, "manifest"):
            if base in roots:
                yield roots[base], path.removesuffix(".lance")
    for index in decode_indices(manifest, f"version {manifest.version}"):
        if index.base_id in roots:
            yield roots[index.base_id], f"_indices/{index.uuid}/"

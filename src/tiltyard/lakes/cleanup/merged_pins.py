"""Lance tags for versions whose files another branch of the table names after a merge, so that a foreign cleanup leaves them.

pylance's ``cleanup_old_versions`` of a table's branch, or of its main line, removes files that no version of that line names, and does not
know that another line does. A tag keeps a version and all its files. ``tiltyard-merged-<branch>-<version>`` is written before the merge is
committed; a cleanup of the lake takes it away when the files that others name are covered by later ones, or nobody names them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.lake_values import TableHead
from tiltyard.errors import NotFound
from tiltyard.format.fragments import files_named
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.refs import Tag, tag_path
from tiltyard.lakes.cleanup.pins import PREFIX, write_pin
from tiltyard.lakes.cleanup.references import References
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.table_refs import Tags

if TYPE_CHECKING:
    from tiltyard.lake import Lake

MERGED_PIN: Final = PREFIX + "merged-"


def pin_merged(lake: Lake, branch: str, head: TableHead) -> None:
    """Tags the version of a table of a branch of the lake that is about to be merged."""
    write_pin(lake, branch, head, f"{MERGED_PIN}{head.branch}-{head.version}" if head.branch else f"{MERGED_PIN}{head.version}")


def release_merged(lake: Lake, locations: Iterable[str], references: References, now: datetime, grace: timedelta) -> None:
    """Takes tags away that keep nothing which others name. One that is younger than the grace may be of a merge under way."""
    for location in sorted(set(locations)):
        main = lake.plain_access_of(TableHead("", "", location, 0, 0))
        by_line: dict[str | None, list[tuple[str, Tag]]] = defaultdict(list)
        for name, tag in Tags(main).items():
            if name.startswith(MERGED_PIN):
                by_line[tag.branch].append((name, tag))
        for branch, tags in by_line.items():
            named = references.named(TableHead("", "", location, 0, 0, branch=branch))
            for name in _needless(main.on_branch(branch), tags, named, now - grace):
                main.store.delete(tag_path(name))


def _needless(line: TableAccess, tags: list[tuple[str, Tag]], named: frozenset[str], before: datetime) -> Iterable[str]:
    covered: set[str] = set()
    for name, tag in sorted(tags, key=lambda item: -item[1].version):
        try:
            held = named & _groups(line.load(tag.version, line.head()[1]).manifest)
        except NotFound:
            held = frozenset()  # the version is gone, whoever removed it
        young = tag.created_at is not None and datetime.fromisoformat(tag.created_at) > before
        if held <= covered and not young:
            yield name
        covered |= held


def _groups(manifest: Manifest) -> frozenset[str]:
    """The files of a version that lie in its own directory, by the names that their groups go by."""
    found = {
        path.removesuffix(".lance")
        for record in manifest.fragments.records()
        for path, base in files_named(record, "manifest")
        if base is None
    }
    indices = decode_indices(manifest, f"version {manifest.version}")
    return frozenset(found | {f"_indices/{index.uuid}/" for index in indices if index.base_id is None})

"""How many bytes branches and tags hold: told by the manifests of their snapshots, without reading a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tiltyard.catalog.lake_values import MAIN, Cut, TableHead
from tiltyard.format.manifest import Manifest
from tiltyard.lakes.merging.table_state import state_of
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.verify_files import files_of

if TYPE_CHECKING:
    from tiltyard.lake import Lake

Sizes = Mapping[str, int]
"""Bytes by file, which goes by its address."""


@dataclass(frozen=True, slots=True)
class RefSize:
    """What a branch or a tag holds.

    Attributes:
        kind: ``branch`` or ``tag``.
        name: what it is called.
        snapshot: the snapshot whose files are counted: of a branch, the latest.
        bytes: of all data, deletion and index files that the snapshot needs.
        own: of these, what neither another tag nor the latest snapshot of another branch needs: without it, a cleanup that keeps no other
            snapshots frees this much.
        tables: how many.
    """

    kind: Literal["branch", "tag"]
    name: str
    snapshot: int
    bytes: int
    own: int
    tables: int


def ref_sizes(lake: Lake) -> list[RefSize]:
    """Sizes of main, all branches and all tags, in this order."""
    measured = _Measured(lake)
    found: list[tuple[Literal["branch", "tag"], str, Cut]] = [("branch", MAIN, lake.catalog.cut(MAIN))]
    found += [("branch", branch.name, lake.catalog.cut(branch.name)) for branch in lake.branches.list()]
    found += [("tag", tag.name, lake.catalog.cut_at(tag.snapshot, tag.branch)) for tag in lake.tags.list()]
    files = [measured.cut(cut) for _, _, cut in found]
    holders = Counter(file for held in files for file in held)
    return [
        RefSize(kind, name, cut.snapshot, sum(held.values()), sum(_only_here(held, holders)), len(cut.tables))
        for (kind, name, cut), held in zip(found, files, strict=True)
    ]


def _only_here(held: Sizes, holders: Mapping[str, int]) -> Iterable[int]:
    return (size for file, size in held.items() if holders[file] == 1)


class _Measured:
    """Files of versions, each looked at once: most branches and tags name the same versions."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known: dict[tuple[str, str | None, int], Sizes] = {}

    def cut(self, cut: Cut) -> Sizes:
        found: dict[str, int] = {}
        for head in cut.tables.values():
            found.update(self._version(head, cut.branch))
        return found

    def _version(self, head: TableHead, branch: str) -> Sizes:
        key = (head.location, head.branch, head.version)
        if key not in self._known:
            state = state_of(self._lake, head, branch)
            self._known[key] = _files(state.access, state.manifest)
        return self._known[key]


def _files(access: TableAccess, manifest: Manifest) -> Sizes:
    own = access.lance_uri.rstrip("/")
    found: dict[str, int] = {}
    for file in files_of(access, manifest):
        root = own if file.base is None else file.base.path.rstrip("/")
        found[f"{root}/{file.path}"] = file.size or file.store.head(file.path).size
    return found

"""What lies on the disk: which files a version needs, whether they are there, and how old they look."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tiltyard.format.fragments import decode_fragment
from tiltyard.format.manifest_file import decode_manifest_file
from tiltyard.format.names import Scheme, manifest_name
from tiltyard.format.refs import branch_root

EPOCH: Final = datetime(2024, 1, 1, tzinfo=UTC)
"""When every walk begins. Whatever looks younger than a year after that was written by this walk a moment ago."""
_YOUNG: Final = EPOCH.timestamp() + 366 * 86400


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one table, wherever it is named.

    Attributes:
        directory: of the table.
        branch: the table's own branch; empty for its main line.
        number: of the version.
        naming: how its manifest is named.
    """

    directory: str
    branch: str
    number: int
    naming: str = "v2"

    @property
    def root(self) -> str:
        below = branch_root(self.branch or None)
        return f"{self.directory}/{below}" if below else self.directory

    @property
    def manifest(self) -> str:
        return f"{self.root}/_versions/{manifest_name(self.number, Scheme(self.naming))}"


def files_of(version: Version) -> tuple[str, ...]:
    """All files that reading a version needs, its manifest first.

    Raises:
        FileNotFoundError: the manifest is not there.
    """
    path = version.manifest
    manifest = decode_manifest_file(Path(path).read_bytes(), source=path, check=False).manifest
    bases = {base.id: base.path.rstrip("/") for base in manifest.base_paths}
    found = [path]
    for record in manifest.fragments.records():
        fragment = decode_fragment(record, path)
        for file in fragment.files:
            found.append(f"{_home(version, bases, file.base_id)}/data/{file.path}")
        deletion = fragment.deletion_file
        if deletion is not None:
            found.append(f"{_home(version, bases, deletion.base_id)}/{deletion.path(fragment.id)}")
    return tuple(found)


def _home(version: Version, bases: dict[int, str], base: int | None) -> str:
    return version.root if base is None else bases[base]


def walk_files(root: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from walk_files(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry


def stamp(root: str, now: datetime) -> None:
    """Files that were just written are as old as the walk's clock says, not the machine's."""
    moment = now.timestamp()
    for entry in walk_files(root):
        if entry.stat(follow_symlinks=False).st_mtime > _YOUNG:
            os.utime(entry.path, (moment, moment), follow_symlinks=False)


@contextmanager
def as_old_as_they_are(directory: str, now: datetime) -> Iterator[None]:
    """For whoever looks at the machine's clock, as pylance does: files there are as old by it as they are by the walk's."""
    ahead = datetime.now(UTC).timestamp() - now.timestamp()
    for entry in walk_files(directory):
        old = entry.stat().st_mtime
        os.utime(entry.path, (old + ahead, old + ahead))
    try:
        yield
    finally:
        for entry in walk_files(directory):
            young = entry.stat().st_mtime - ahead
            os.utime(entry.path, (young, young))

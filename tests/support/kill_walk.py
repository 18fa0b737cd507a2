"""Walks a table's directory and says which files nobody needs.

It reads manifests by itself, so that cleanup is not asked about its own work.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from tiltyard.format import lance_pb2 as pb

STAYS = (
    re.compile(r"_versions/[^/]+\.manifest"),
    re.compile(r"_versions/latest_version_hint\.json"),
    re.compile(r"_refs/(tags|branches)/[^/]+\.json"),
    re.compile(r"_tiltyard/owner\.json"),
    re.compile(r"_tiltyard/floor/[0-9]+-[0-9]+-[0-9a-f-]{36}\.json"),
)
"""What no version names and still is in its place: versions, what refers to them, advice, the owner, what a cleanup wrote down."""

LINE = re.compile(r"(tree/.+?/)?(?:_versions|_transactions|_deletions|_indices|_refs|_tiltyard|data)/.+")
"""The directory of a branch that a file lies in, if it is one."""


def unreachable(root: Path) -> set[str]:
    """Files below a table's root that neither a version names nor may stay by design, temporary ones among them."""
    there = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    lines = {match[1] or "" for path in there if (match := LINE.fullmatch(path))}
    needed: set[str] = set()
    for line in lines:
        if line and not any(path.startswith(f"{line}_versions/") and path.endswith(".manifest") for path in there):
            continue  # without a version it is no branch, and nothing of it is needed
        needed |= {path for path in there if path.startswith(line) and any(one.fullmatch(path[len(line) :]) for one in STAYS)}
        for manifest in sorted((root / line / "_versions").glob("*.manifest")):
            needed.update(_named(root, line, manifest, there))
    refs = {unquote(path.removeprefix("_refs/branches/").removesuffix(".json")) for path in there if path.startswith("_refs/branches/")}
    made = {line.removeprefix("tree/").rstrip("/") for line in lines if line}
    needed -= {f"_refs/branches/{quote(name, safe='')}.json" for name in refs - made}
    lost = {f"tree/{name}/" for name in made - refs}
    needed -= {path for path in there if (match := LINE.fullmatch(path)) and match[1] in lost}
    return there - needed


def _named(root: Path, line: str, path: Path, there: set[str]) -> Iterator[str]:
    """Files that one version names, as far as they lie below the root."""
    data = path.read_bytes()
    (start,) = struct.unpack("<q", data[-16:-8])
    manifest = pb.Manifest.FromString(_section(data, start))
    bases = {one.id: _below(root, one.path) for one in manifest.base_paths}

    def place(base: int | None) -> str | None:
        return line if base is None else bases[base]

    if manifest.transaction_file:
        yield f"{line}_transactions/{manifest.transaction_file}"
    for fragment in manifest.fragments:
        for file in fragment.files:
            if (where := place(file.base_id if file.HasField("base_id") else None)) is not None:
                yield f"{where}data/{file.path}"
                blobs = f"{where}data/{file.path.removesuffix('.lance')}/"
                yield from (one for one in there if one.startswith(blobs))
        if fragment.HasField("deletion_file"):
            one = fragment.deletion_file
            if (where := place(one.base_id if one.HasField("base_id") else None)) is not None:
                yield f"{where}_deletions/{fragment.id}-{one.read_version}-{one.id}.{'bin' if one.file_type else 'arrow'}"
    indices = (
        pb.IndexSection.FromString(_section(data, manifest.index_section)) if manifest.HasField("index_section") else pb.IndexSection()
    )
    for index in indices.indices:
        if (where := place(index.base_id if index.HasField("base_id") else None)) is not None:
            digits = index.uuid.uuid.hex()
            name = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
            yield from (one for one in there if one.startswith(f"{where}_indices/{name}/"))


def _section(data: bytes, start: int) -> bytes:
    (length,) = struct.unpack("<I", data[start : start + 4])
    return data[start + 4 : start + 4 + length]


def _below(root: Path, base: str) -> str | None:
    """The directory of a base as a prefix below the root; None for one elsewhere."""
    where = Path(base.removeprefix("file://"))
    if not where.is_relative_to(root):
        return None
    inside = where.relative_to(root).as_posix()
    return "" if inside == "." else f"{inside}/"

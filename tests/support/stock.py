"""A second, naive reader of what stock pylance writes, so that tests need not trust the code they test."""

from __future__ import annotations

import struct
from pathlib import Path

from tiltyard.format import lance_pb2 as pb

MAX = (1 << 64) - 1


def stock_manifest(root: Path, version: int) -> pb.Manifest:
    """The manifest message of one version, V2 names."""
    data = (root / "_versions" / f"{MAX - version:020d}.manifest").read_bytes()
    (start,) = struct.unpack("<q", data[-16:-8])
    (length,) = struct.unpack("<I", data[start : start + 4])
    return pb.Manifest.FromString(data[start + 4 : start + 4 + length])


def deletion_path(root: Path, fragment: pb.DataFragment) -> Path:
    """The fragment's deletion file."""
    entry = fragment.deletion_file
    suffix = "bin" if entry.file_type else "arrow"
    return root / "_deletions" / f"{fragment.id}-{entry.read_version}-{entry.id}.{suffix}"

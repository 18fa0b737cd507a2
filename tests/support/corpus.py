"""Real metadata files, of stock pylance's making and of ours, for tests that damage them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

import tiltyard as ty
from tests.support.stock_tables import KINDS
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.manifest_file import decode_manifest_file

FROM_STOCK: Final = (
    "plain_2.2_v2_addresses",
    "plain_2.2_v2_stable",
    "plain_2.0_v1_stable",
    "plain_0.1_v1_addresses",
    "bitmap_deletions",
    "several_indices",
    "deferred_remap",
    "branch",
    "branch_of_branch",
    "tags",
    "shallow_clone",
    "several_bases",
    "config_and_metadata",
    "primary_key_position",
    "write_ahead_log",
    "changed_columns",
    "rewritten_columns",
    "compacted",
    "set_back",
    "described",
)
"""Between them every member that stock pylance writes."""

NESTED: Final = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "tree": [{"leaf": n, "list": [{"x": [n]}]} for n in range(6)],
        "map": pa.array([[("k", n)] for n in range(6)], pa.map_(pa.string(), pa.int32())),
        "word": pa.array(["a", "b"] * 3).dictionary_encode(),
    }
)


@dataclass(frozen=True, slots=True)
class Deletions:
    """A deletion file and what the manifest says of it."""

    data: bytes
    bitmap: bool
    rows: int
    count: int


@dataclass(frozen=True, slots=True)
class Corpus:
    manifests: list[tuple[bytes, int]] = field(default_factory=list)
    """Each with the version its name stands for."""
    transactions: list[bytes] = field(default_factory=list)
    deletions: list[Deletions] = field(default_factory=list)
    row_ids: list[tuple[bytes, int]] = field(default_factory=list)
    row_versions: list[tuple[bytes, int]] = field(default_factory=list)
    tags: list[bytes] = field(default_factory=list)
    branches: list[bytes] = field(default_factory=list)
    hints: list[bytes] = field(default_factory=list)


def make_corpus(root: Path) -> Corpus:
    """All metadata files of a good many small tables."""
    for name in FROM_STOCK:
        (root / name).mkdir(parents=True)
        KINDS[name](root / name / "table")
    for name, make in _OURS.items():
        make(root / name)
    found = Corpus()
    for path in sorted(root.rglob("*")):
        _collect(path, found)
    return found


def _collect(path: Path, found: Corpus) -> None:
    if path.suffix == ".manifest" and path.stem.isdigit():
        data = path.read_bytes()
        file = decode_manifest_file(data, source=path.name)
        found.manifests.append((data, file.manifest.version))
        for fragment in file.manifest.fragments:
            if fragment.row_ids is not None:
                found.row_ids.append((fragment.row_ids, fragment.physical_rows))
            if fragment.created_at is not None:
                found.row_versions.append((fragment.created_at, fragment.physical_rows))
            deletion = fragment.deletion_file
            if deletion is not None and deletion.base_id is None:
                data = (path.parent.parent / deletion.path(fragment.id)).read_bytes()
                found.deletions.append(Deletions(data, deletion.bitmap, fragment.physical_rows, deletion.deleted_rows))
    elif path.suffix == ".txn":
        found.transactions.append(path.read_bytes())
    elif path.suffix == ".json":
        files = {"tags": found.tags, "branches": found.branches}.get(path.parent.name, found.hints)
        files.append(path.read_bytes())


def _plain(path: Path) -> None:
    table = ty.Table.create(
        path, NESTED, primary_key=["id"], durability="os", options=ty.TableOptions(config={"team": "blue"}, message="begin")
    )
    table.append(NESTED, on_duplicate="allow", commit=ty.CommitOptions(properties={"who": "me"}))
    table.overwrite(NESTED.select(["id", "word"]))


def _stable(path: Path) -> None:
    table = ty.Table.create(path, NESTED, stable_row_ids=True, durability="os", options=ty.TableOptions(manifest_naming="v1"))
    table.append(NESTED, on_duplicate="allow", files=ty.FileLimits(rows=2))


def _many_fragments(path: Path) -> None:
    table = ty.Table.create(path, NESTED.slice(0, 1), durability="os")
    many = pa.concat_tables([NESTED] * 50)
    table.append(many, on_duplicate="allow", files=ty.FileLimits(rows=1))


_OURS: Final[dict[str, Callable[[Path], None]]] = {
    "ours_plain": _plain,
    "ours_stable": _stable,
    "ours_many_fragments": _many_fragments,
}


def message_of(file: bytes) -> pb.Manifest:
    """The manifest message inside a sound file, read without the code under test."""
    start = int.from_bytes(file[-16:-8], "little")
    length = int.from_bytes(file[start : start + 4], "little")
    return pb.Manifest.FromString(file[start + 4 : start + 4 + length])


def with_message(file: bytes, message: bytes) -> bytes:
    """The same file with another manifest message in it, framed as it should be."""
    start = int.from_bytes(file[-16:-8], "little")
    return file[:start] + len(message).to_bytes(4, "little") + message + file[-16:]

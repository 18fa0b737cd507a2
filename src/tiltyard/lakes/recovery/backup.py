"""Backups of a catalog: every record as of one moment, in one file that can be restored into any kind of catalog.

The file is gzip over lines of JSON. The first line is the header: what it is, of which lake and catalog, when it was taken, the newest
snapshot of each branch, how many records follow, and a SHA-256 digest over the rest of the header and all records. Each further line is
``[key, body]``, by key. A file that is cut short or changed anywhere is refused as a whole.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tiltyard.catalog.catalog import check_format
from tiltyard.catalog.commit_store import PREFIX as COMMIT_STORE
from tiltyard.catalog.record_codec import check_keys
from tiltyard.catalog.records import Body, Records
from tiltyard.catalog.value_codec import LAKE
from tiltyard.errors import CorruptTable, InvalidInput, NotFound, UnsupportedFeature
from tiltyard.storage import local_path
from tiltyard.storage.files import storage_error, sync_parent, write_temporary

if TYPE_CHECKING:
    from tiltyard.lake import Lake

KIND: Final = "tiltyard lake backup"
FORMAT: Final = 1
"""What the lines of a backup mean. A higher number than this one is refused."""

TIPS: Final = "tip/"
_ADVICE: Final = "Use another backup, or `tiltyard lake rebuild`. Nothing was changed."
_REPORT_EVERY: Final = 1000

Progress = Callable[[int, int], object]
"""Is told how many of how many records are done."""


@dataclass(frozen=True, slots=True)
class LakeBackup:
    """What a backup holds, without its records.

    Attributes:
        path: the file.
        lake: the lake's id.
        catalog: the kind it was taken from: ``sqlite``, ``postgresql`` or ``manifest``.
        created: when.
        snapshots: the latest snapshot of each branch.
        records: how many records there are.
        bytes: size of the file.
        digest: identifies the backup.
    """

    path: str
    lake: str
    catalog: str
    created: datetime
    snapshots: Mapping[str, int]
    records: int
    bytes: int
    digest: str

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {**asdict(self), "created": self.created.isoformat()}


def backup_lake(lake: Lake, path: str | os.PathLike[str], *, progress: Progress | None = None) -> LakeBackup:
    """See ``Lake.backup``."""
    target = _target(path)
    catalog = lake.catalog
    # One statement, or one version of the table: all of it as of one moment.
    found = {key: body for key, body in catalog.records.scan([""]) if is_lakes(key, body)}
    if LAKE not in found:
        raise NotFound(f"There is no lake at {lake.url}.", name=lake.url)
    facts = check_format(found[LAKE], lake.url)
    header = {
        "kind": KIND,
        "format": FORMAT,
        "lake": str(facts.get("id", "")),
        "lake_format": int(facts.get("format", 0)),
        "catalog": kind_of(catalog.records),
        "created": catalog.runtime.clock.now().isoformat(),
        "snapshots": tips_of(found),
        "records": len(found),
    }
    lines = _lines(found, progress or (lambda done, total: None))
    header["sha256"] = _digest(header, lines)
    data = gzip.compress(b"".join(line + b"\n" for line in (_encoded(header), *lines)), mtime=0)
    _write(target, data)
    return _described(target, header, len(data))


def is_lakes(key: str, body: Body) -> bool:
    """Whether a record is one of the lake: the same database may decide versions of other tables, and a ``__manifest`` may list such."""
    return not key.startswith(COMMIT_STORE) and not body.get("foreign")


def kind_of(records: Records) -> str:
    """The kind of a catalog, as its address tells."""
    scheme = records.url.partition("://")[0]
    return scheme if scheme in ("sqlite", "postgresql") and "://" in records.url else "manifest"


def tips_of(found: Mapping[str, Body]) -> dict[str, int]:
    """The newest snapshot of each branch among records."""
    return {key.removeprefix(TIPS): int(body["snapshot"]) for key, body in found.items() if key.startswith(TIPS)}


def _lines(found: Mapping[str, Body], progress: Progress) -> list[bytes]:
    lines = []
    for done, (key, body) in enumerate(sorted(found.items()), 1):
        lines.append(_encoded([key, body]))
        if done % _REPORT_EVERY == 0 or done == len(found):
            progress(done, len(found))
    return lines


def _encoded(value: Any) -> bytes:
    """One line: plain ASCII, so that a new line in a text is never one of the file."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _digest(header: Mapping[str, Any], lines: Iterable[bytes]) -> str:
    """Over the header without the digest itself, and all lines."""
    digest = hashlib.sha256(_encoded({key: header[key] for key in sorted(header) if key != "sha256"}))
    for line in lines:
        digest.update(b"\n" + line)
    return digest.hexdigest()


def _target(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not text or "\0" in text or "://" in text:
        raise InvalidInput("A backup is a local file.", argument="path", advice="Pass a path; copy the file elsewhere afterwards.")
    target = local_path(text)
    if Path(target).is_dir():
        raise InvalidInput(f"{target} is a directory.", argument="path", advice="Name a file in it.")
    return target


def _write(target: str, data: bytes) -> None:
    """Whoever looks finds the old file or the new one, also after a power loss."""
    directory, _, name = target.rpartition("/")
    try:
        temporary = write_temporary(directory or "/", data, durable=True)
        try:
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_parent(target)
    except OSError as error:
        raise storage_error("write", name, directory, error) from error


# ---- reading one -----------------------------------------------------------------------------------------------------------------


def read_backup(path: str | os.PathLike[str]) -> tuple[LakeBackup, dict[str, Body]]:
    """A backup and its records, after proof that nothing is missing or changed.

    Raises:
        NotFound: there is no such file.
        CorruptTable: it is no backup, cut short or changed.
        UnsupportedFeature: a newer release made it.
    """
    source = _target(path)
    try:
        data = Path(source).read_bytes()
    except FileNotFoundError:
        raise NotFound(f"There is no backup at {source}.", name=source) from None
    except OSError as error:
        raise storage_error("read", source.rpartition("/")[2], source.rpartition("/")[0], error) from error
    try:
        first, *lines = gzip.decompress(data).removesuffix(b"\n").split(b"\n")
        header = json.loads(first)
    except (EOFError, OSError, zlib.error, ValueError, RecursionError):
        raise _corrupt(source, "it is not a complete backup") from None
    _check_header(source, header)
    if header.get("sha256") != _digest(header, lines):
        raise _corrupt(source, "it was changed since it was written")
    records = _records(source, lines)
    if len(records) != header["records"] or LAKE not in records:
        raise _corrupt(source, "it does not hold all the records that it should")
    return _described(source, header, len(data)), records


def _check_header(source: str, header: Any) -> None:
    if not isinstance(header, dict) or header.get("kind") != KIND or not isinstance(header.get("format"), int):
        raise _corrupt(source, "it is not a backup of a lake")
    if header["format"] > FORMAT:
        what = f"The backup {source} has format {header['format']}; this release knows {FORMAT}."
        raise UnsupportedFeature(what, feature="backup format", advice="Upgrade tiltyard.")


def _records(source: str, lines: list[bytes]) -> dict[str, Body]:
    try:
        records: dict[str, Body] = {key: body for key, body in map(json.loads, lines) if isinstance(body, dict)}
        check_keys(records)
    except (TypeError, ValueError, RecursionError, InvalidInput):
        raise _corrupt(source, "its records cannot be read") from None
    return records


def _described(path: str, header: Mapping[str, Any], size: int) -> LakeBackup:
    try:
        return LakeBackup(
            path,
            str(header["lake"]),
            str(header["catalog"]),
            datetime.fromisoformat(header["created"]),
            {str(branch): int(number) for branch, number in header["snapshots"].items()},
            int(header["records"]),
            size,
            str(header["sha256"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _corrupt(path, "its header lacks something") from None


def _corrupt(path: str, why: str) -> CorruptTable:
    return CorruptTable(f"The backup {path}", why, advice=_ADVICE)

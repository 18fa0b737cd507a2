"""Which files are new: by name, size and time of change. Files that somebody may still be writing wait for a later run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tiltyard.errors import InvalidInput, RetryableConflict
from tiltyard.pipeline.consumed import WHOLE, Mark
from tiltyard.pipeline.remote_files import changed_ns, facts_of, is_remote, remote_files
from tiltyard.pipeline.spec import FileSource

PARTIAL: Final = (".tmp", ".temp", ".part", ".partial", ".inprogress", ".crdownload", ".swp", "~")
"""How names end that writers give to what is not finished."""
_PARQUET: Final = b"PAR1"
_SIGNS: Final = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as it was when it was looked at.

    Attributes:
        item: its path below the pipeline's directory, or all of it if it is elsewhere.
        path: where it is.
        size: in bytes.
        mtime_ns: when it was changed last.
        store: of files in an object store, where these are; empty for files of a file system. They are read from a copy at ``path``.
    """

    item: str
    path: Path
    size: int
    mtime_ns: int
    store: str = ""

    @property
    def address(self) -> str:
        """What Spark is given to read it: Spark takes no other text for a path than the path, but for signs that stand for many files."""
        return "file://" + _SIGNS.sub(r"\\\1", str(self.path))

    def mark(self, source: str, bad: str = "") -> Mark:
        """That it was consumed; or that it is bad, and why."""
        return Mark(source, self.item, {"size": self.size, "mtime_ns": self.mtime_ns, **({"bad": bad} if bad else {})})


@dataclass(frozen=True, slots=True)
class FileScan:
    """What a look at the files of a source found.

    Attributes:
        new: to be consumed, in order; as many as one run takes.
        waiting: how many more are new.
        partial: not finished yet, it seems.
        present: all files that are there, consumed ones too.
    """

    new: tuple[FoundFile, ...] = ()
    waiting: int = 0
    partial: tuple[str, ...] = ()
    present: frozenset[str] = field(default=frozenset(), compare=False, repr=False)


def scan(source: FileSource, directory: Path, known: Mapping[str, Mapping[str, Any]], now_ns: int, runner: str) -> FileScan:
    """Looks at the files of a source.

    Args:
        source: which files.
        directory: what patterns start from.
        known: what was consumed, by item.
        now_ns: the time.
        runner: who asks; several begin at different files where order does not matter.

    Raises:
        InvalidInput: a file changed after it was consumed.
    """
    new: list[FoundFile] = []
    partial: list[str] = []
    present: set[str] = set()
    for found in _found(source, directory):
        present.add(found.item)
        before = known.get(found.item)
        if before is not None and not _changed(source, found, before):
            continue
        if _is_partial(source, found, now_ns):
            partial.append(found.item)
        else:
            new.append(found)
    ordered = _ordered(new, source, runner)
    taken = ordered[: source.max_files] if source.max_files else ordered
    return FileScan(tuple(taken), len(ordered) - len(taken), tuple(partial), frozenset(present))


def _found(source: FileSource, directory: Path) -> Iterator[FoundFile]:
    local = [pattern for pattern in source.files if not is_remote(pattern)]
    for path in _matching(local, directory):
        found = _looked_at(path, directory)
        if found is not None:
            yield found
    for pattern in source.files:
        if is_remote(pattern):
            for store, remote in remote_files(source, pattern):
                yield FoundFile(f"{store}/{remote.path}", Path(remote.path), remote.size, changed_ns(remote), store)


def _matching(patterns: Sequence[str], directory: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    for pattern in patterns:
        whole = Path(os.path.normpath(directory / pattern))
        anchor = Path(whole.anchor)
        for path in anchor.glob(str(whole.relative_to(anchor))):
            if path not in seen:
                seen.add(path)
                yield path


def _looked_at(path: Path, directory: Path) -> FoundFile | None:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None  # it went between the listing and now
    if not path.is_file() or path.name.startswith((".", "_")):
        return None
    item = path.relative_to(directory).as_posix() if path.is_relative_to(directory) else path.as_posix()
    return FoundFile(item, path, facts.st_size, facts.st_mtime_ns)


def _changed(source: FileSource, found: FoundFile, before: Mapping[str, Any]) -> bool:
    """Whether a file that was consumed is to be consumed again."""
    if (before.get("size"), before.get("mtime_ns")) == (found.size, found.mtime_ns):
        return False
    if before.get("bad"):
        return True  # nothing of it was consumed: somebody has corrected it
    if source.changed == "ignore":
        return False
    if source.changed == "fail":
        raise InvalidInput(
            f"sources.{source.name}: {found.item} changed after it was consumed.", argument=f"sources.{source.name}.changed",
            advice="Give new data a new name, or say changed = 'ignore', or 'again' if its rows may be written to the outputs twice.",
        )  # fmt: skip
    return True


def _is_partial(source: FileSource, found: FoundFile, now_ns: int) -> bool:
    if found.path.name.lower().endswith(PARTIAL) or found.size == 0:
        return True
    if now_ns - found.mtime_ns < source.min_age.total_seconds() * 1e9:
        return True
    # An object is there as a whole, or not at all.
    return source.format == "parquet" and not found.store and not _has_footer(found)


def _has_footer(found: FoundFile) -> bool:
    """Whether a Parquet file has its end, which is written last."""
    if found.size < 12:
        return False
    with found.path.open("rb") as file:
        file.seek(-len(_PARQUET), os.SEEK_END)
        return file.read() == _PARQUET


def _ordered(found: list[FoundFile], source: FileSource, runner: str) -> list[FoundFile]:
    if source.order == "name":
        return sorted(found, key=lambda item: item.item)
    return sorted(found, key=lambda item: hashlib.sha256(f"{runner}/{item.item}".encode()).digest())


def check_unchanged(source: FileSource, files: Sequence[FoundFile]) -> None:
    """Makes sure that what was read is what was marked.

    Raises:
        RetryableConflict: a file was changed or removed while it was read.
    """
    for file in files:
        facts: tuple[int, int] | None = None
        if file.store:
            facts = facts_of(source, file.store, file.item.removeprefix(f"{file.store}/"))
        else:
            with contextlib.suppress(FileNotFoundError):
                there = file.path.stat()
                facts = (there.st_size, there.st_mtime_ns)
        if facts != (file.size, file.mtime_ns):
            raise RetryableConflict(
                f"sources.{source.name}: {file.item} was changed or removed while it was read.", operation="pipeline",
                advice="It is read again. Let writers rename files into place, or set min_age.",
            )  # fmt: skip


def schema_mark(source: str, schema: str) -> Mark:
    """What a source looked like, for runs that get nothing of it."""
    return Mark(source, WHOLE, {"schema": schema})

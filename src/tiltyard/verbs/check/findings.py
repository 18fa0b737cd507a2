"""What a check of a table found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tiltyard.verbs.check.check_data import DataCheck


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken invariant."""

    invariant: str
    text: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found.

    Attributes:
        uri: the table.
        versions: how many versions were looked at.
        files: how many distinct files they name.
        problems: broken invariants; empty if the table is in order.
        orphans: files no version names: of failed attempts, or of work under way.
        not_checked: invariants that could not be checked here, and why.
        data: whether files were read and compared with their digests.
        verified: how many were.
        unverified: how many have no digest: others wrote them.
    """

    uri: str
    versions: int
    files: int
    problems: tuple[Problem, ...]
    orphans: tuple[str, ...]
    not_checked: tuple[str, ...] = ()
    data: bool = False
    verified: int = 0
    unverified: int = 0

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(slots=True)
class Findings:
    problems: list[Problem] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    pylance_sees: bool = True
    """Whether pylance can open what lies in this store."""
    by_directory: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """All files there are; those of blobs have a directory for each data file."""
    orphans_known: bool = True
    """Whether all was read that can name a file."""
    deletions_read: set[tuple[str, int, int]] = field(default_factory=set)
    transactions: dict[str, int] = field(default_factory=dict)
    files: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)
    """Files in bases that were asked for."""
    referred: set[int] = field(default_factory=set)
    """Versions that a tag or a branch refers to: a foreign cleanup leaves them, whatever it takes around them."""
    data: DataCheck | None = None
    highest_next_row_id: int = 0
    """Of the versions that were looked at."""
    sound: dict[object, set[bytes]] = field(default_factory=dict)
    """Fragments as wire bytes that nothing is wrong with, by what they were compared with: most stand in many versions."""

    def add(self, invariant: str, text: str, version: int | None = None) -> None:
        self.problems.append(Problem(invariant, text, version))

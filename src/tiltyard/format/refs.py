"""Tags and branches: small JSON files in the main root that name a version, or a line of history of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, unquote

from tiltyard.errors import CorruptTable, InvalidInput

TAGS_DIR: Final = "_refs/tags"
BRANCHES_DIR: Final = "_refs/branches"
MAIN: Final = "main"

_LARGEST_FILE: Final = 1 << 20
_LONGEST_NAME: Final = 200
"""Percent-encoded, so that the file's name fits every store."""
_MAX: Final = (1 << 64) - 1
_HEX32: Final = re.compile(r"[0-9a-f]{32}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for one version of one branch. Times are RFC 3339 text, so that nanoseconds survive."""

    version: int
    manifest_size: int
    branch: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    metadata: Mapping[str, str] = field(default_factory=_nothing)
    unknown: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


@dataclass(frozen=True, slots=True)
class Branch:
    """A line of history that left its parent at ``parent_version``.

    ``identifier`` has one (parent version, 32 hex digits) pair for each ancestor, oldest first, the branch's own pair last; it is
    None where the file has none.
    """

    parent_version: int
    created_at: int
    manifest_size: int
    parent_branch: str | None = None
    identifier: tuple[tuple[int, str], ...] | None = None
    metadata: Mapping[str, str] = field(default_factory=_nothing)
    unknown: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


def timestamp_text(moment: datetime) -> str:
    """RFC 3339 in UTC with nine digits, as stock writers spell it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond:06d}000Z"


def check_tag_name(name: str) -> str:
    """Returns a name fit for a new tag; ``InvalidInput`` says what is wrong with any other.

    ASCII only: with any other tag about, stock pylance 14.0.2 can neither list the tags nor clean up, since it percent-encodes the
    file's name once more on the way. Branches are free of that.
    """
    if not name.isascii():
        raise InvalidInput(f"A tag's name is ASCII, since stock readers fail on others: {name[:60]!a}.", argument="name")
    if "/" in name:
        raise InvalidInput(f"A tag's name has no '/': {name[:60]!r}.", argument="name")
    return _check_name(name, "tag")


def check_branch_name(name: str) -> str:
    """Returns a name fit for a new branch; ``InvalidInput`` says what is wrong with any other."""
    if name == MAIN:
        raise InvalidInput("The name 'main' is taken by the main line of history.", argument="name")
    return _check_name(name, "branch")


def _check_name(name: str, what: str) -> str:
    if not name or len(quote(name, safe="", errors="replace")) > _LONGEST_NAME:
        raise InvalidInput(f"A {what}'s name has 1 to {_LONGEST_NAME} characters, percent-encoded: {name[:60]!r}.", argument="name")
    for part in name.split("/"):
        if not part or not all(letter.isalnum() or letter in "._-" for letter in part):
            raise InvalidInput(f"A {what}'s name is made of letters, digits, '.', '-' and '_': {name[:60]!r}.", argument="name")
        if part.startswith(".") or part.endswith((".", ".lock")) or ".." in part:
            raise InvalidInput(
                f"A {what}'s name must not begin or end with '.', hold '..' or end in '.lock': {name[:60]!r}.", argument="name"
            )
    return name


def tag_path(name: str) -> str:
    return f"{TAGS_DIR}/{ref_file_name(name)}"


def branch_path(name: str) -> str:
    return f"{BRANCHES_DIR}/{ref_file_name(name)}"


def ref_file_name(name: str) -> str:
    return quote(name, safe="") + ".json"


def parse_ref_file_name(file_name: str) -> str | None:
    """The tag or branch a file is about, or None for files that are about none.

    More lenient than the check for new names, since other writers' idea of a letter is a little wider; but a name that could lead
    out of a directory is none.
    """
    if not file_name.endswith(".json"):
        return None
    try:
        name = unquote(file_name.removesuffix(".json"), errors="strict")
    except UnicodeDecodeError:
        return None
    if not name.isprintable() or "\\" in name or ref_file_name(name) != file_name:
        return None
    return None if any(part.strip(".") == "" for part in name.split("/")) else name


def branch_root(name: str | None) -> str:
    """The branch's directory below the main root, empty for main. Not percent-encoded: ``/`` makes sub-directories."""
    return "" if name is None or name == MAIN else f"tree/{name}"


def encode_tag(tag: Tag) -> bytes:
    content = {
        "branch": tag.branch,
        "version": tag.version,
        "createdAt": tag.created_at,
        "updatedAt": tag.updated_at,
        "manifestSize": tag.manifest_size,
        "metadata": dict(tag.metadata),
    }
    optional = ("createdAt", "updatedAt")
    return _dump({key: value for key, value in content.items() if value is not None or key not in optional} | dict(tag.unknown))


def decode_tag(data: bytes, source: str) -> Tag:
    content = _load(data, source)
    tag = Tag(
        version=_number(content, "version", source),
        manifest_size=_number(content, "manifestSize", source),
        branch=_branch_name(content, "branch", source),
        created_at=_time(content, "createdAt", source),
        updated_at=_time(content, "updatedAt", source),
        metadata=_metadata(content, source),
        unknown=MappingProxyType(content),
    )
    if not tag.version:
        raise CorruptTable(source, "it names version 0")
    return tag


def encode_branch(branch: Branch) -> bytes:
    content: dict[str, Any] = {"parentBranch": branch.parent_branch}
    if branch.identifier is not None:
        content["identifier"] = {"version_mapping": [list(pair) for pair in branch.identifier]}
    content |= {
        "parentVersion": branch.parent_version,
        "createAt": branch.created_at,
        "manifestSize": branch.manifest_size,
        "metadata": dict(branch.metadata),
    }
    return _dump(content | dict(branch.unknown))


def decode_branch(data: bytes, source: str) -> Branch:
    content = _load(data, source)
    return Branch(
        parent_version=_number(content, "parentVersion", source),
        created_at=_number(content, "createAt", source),
        manifest_size=_number(content, "manifestSize", source),
        parent_branch=_branch_name(content, "parentBranch", source),
        identifier=_identifier(content, source),
        metadata=_metadata(content, source),
        unknown=MappingProxyType(content),
    )


def _dump(content: object) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode()


def _load(data: bytes, source: str) -> dict[str, Any]:
    """The object in the file; the readers below take out what they know, and what is left is kept as unknown."""
    if len(data) > _LARGEST_FILE:
        raise CorruptTable(source, f"it has {len(data)} bytes, far more than a tag or branch needs")
    try:
        content = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        # What cannot be written back (lone surrogates, numbers beyond a double) is refused now and not at the next change.
        _dump(content)
    except (ValueError, RecursionError) as error:
        raise CorruptTable(source, f"it is not JSON ({str(error)[:80]})") from error
    if not isinstance(content, dict):
        raise CorruptTable(source, "it is not a JSON object")
    return content


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _number(content: dict[str, Any], key: str, source: str) -> int:
    value = content.pop(key, None)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX:
        raise CorruptTable(source, f"{key} is not a number of 64 bits")
    return value


def _branch_name(content: dict[str, Any], key: str, source: str) -> str | None:
    value = content.pop(key, None)
    if value is None:
        return None
    if not isinstance(value, str) or parse_ref_file_name(ref_file_name(value)) != value:
        raise CorruptTable(source, f"{key} is not the name of a branch")
    return value


def _time(content: dict[str, Any], key: str, source: str) -> str | None:
    value = content.pop(key, None)
    if value is not None and not (isinstance(value, str) and _TIME.fullmatch(value)):
        raise CorruptTable(source, f"{key} is not an RFC 3339 time")
    return value


def _metadata(content: dict[str, Any], source: str) -> Mapping[str, str]:
    value = content.pop("metadata", None)
    if value is None:
        return _nothing()
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CorruptTable(source, "metadata is not an object of texts")
    return MappingProxyType(value)


def _identifier(content: dict[str, Any], source: str) -> tuple[tuple[int, str], ...] | None:
    value = content.pop("identifier", None)
    if value is None:
        return None
    pairs = value.get("version_mapping") if isinstance(value, dict) else None
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise CorruptTable(source, "identifier is not a list of versions and hex digits")
    return tuple((version, digits) for version, digits in pairs)


def _is_pair(pair: object) -> bool:
    match pair:
        case [int(version), str(digits)]:
            return not isinstance(version, bool) and 0 <= version <= _MAX and _HEX32.fullmatch(digits) is not None
    return False

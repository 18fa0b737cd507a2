"""Tags and branches, as they lie in the main root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from tiltyard.errors import InvalidInput, NotFound
from tiltyard.format.refs import Branch, Tag, branch_path, decode_branch, decode_tag, parse_ref_file_name, ref_file_name, tag_path
from tiltyard.verbs.place import Place

TAGS = "_refs/tags/"
BRANCHES = "_refs/branches/"

Ref = TypeVar("Ref", Tag, Branch)


class Tags(Mapping[str, Tag]):
    """The tags of a table by name; read anew each time one is asked for."""

    def __init__(self, main: Place) -> None:
        self._main = main

    def __getitem__(self, name: str) -> Tag:
        path = tag_path(_checked(name, "tag"))
        try:
            return decode_tag(self._main.store.get(path), path)
        except NotFound as error:
            raise _missing("tag", name, self) from error

    def __iter__(self) -> Iterator[str]:
        return iter(_ref_names(self._main, TAGS))

    def __len__(self) -> int:
        return len(_ref_names(self._main, TAGS))

    def __contains__(self, name: object) -> bool:
        return name in _ref_names(self._main, TAGS)

    def __repr__(self) -> str:
        return f"Tags({list(self)})"


class Branches(Mapping[str, Branch]):
    """The branches of a table by name, main not among them; read anew each time one is asked for."""

    def __init__(self, main: Place) -> None:
        self._main = main

    def __getitem__(self, name: str) -> Branch:
        path = branch_path(_checked(name, "branch"))
        try:
            return decode_branch(self._main.store.get(path), path)
        except NotFound as error:
            raise _missing("branch", name, self) from error

    def __iter__(self) -> Iterator[str]:
        return iter(_ref_names(self._main, BRANCHES))

    def __len__(self) -> int:
        return len(_ref_names(self._main, BRANCHES))

    def __contains__(self, name: object) -> bool:
        return name in _ref_names(self._main, BRANCHES)

    def __repr__(self) -> str:
        return f"Branches({list(self)})"


def _checked(name: str, what: str) -> str:
    """Only names that a file can be about: no other can lead to a directory outside ``_refs`` or ``tree``."""
    try:
        sound = parse_ref_file_name(ref_file_name(name)) == name
    except UnicodeEncodeError:  # half a character
        sound = False
    if not sound:
        raise InvalidInput(f"{name[:60]!a} is not the name of a {what}.", argument=what)
    return name


def _ref_names(place: Place, directory: str) -> list[str]:
    names = (parse_ref_file_name(file_name) for file_name in place.store.names(directory))
    return sorted(name for name in names if name is not None)


class NoSuchRef(NotFound, KeyError):
    """A ``KeyError`` too, by which mappings know that something is not there; but its text stays a sentence."""

    __str__ = Exception.__str__


def _missing(what: str, name: str, refs: Mapping[str, object]) -> NotFound:
    known = ", ".join(list(refs)[:5]) or "none"
    return NoSuchRef(f"There is no {what} {name!r}; there is: {known}.", name=name)

"""Options as Spark hands them over: text, by names whose case does not matter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from tiltyard.errors import InvalidInput

TARGET: Final = (
    "path", "lake", "table", "version", "tag", "branch", "timestamp", "snapshot", "commit_store", "token", "durability", "allowed_bases",
    "address",
)  # fmt: skip
"""What says which table is meant, and when."""

STREAM_READ: Final[tuple[str, ...]] = (
    "startingversion", "startingtimestamp", "read_changes", "ignore_changes", "max_versions_per_trigger", "max_rows_per_trigger",
    "max_bytes_per_trigger", "partitions",
)  # fmt: skip
"""Options of a streaming read beside those: here, because a schema is asked for before it is known whether it is for a stream."""

STORAGE: Final = "storage."
"""Before the names of options that go to the object store as they are."""

ELSEWHERE: Final = {
    "mergeschema": "Write INSERT WITH SCHEMA EVOLUTION INTO ... BY NAME, or ALTER TABLE ... ADD COLUMNS first.",
    "overwriteschema": "Leave it out: mode('overwrite') takes the columns of the rows; INSERT OVERWRITE keeps those of the table.",
    "replacewhere": "Use writeTo(table).overwrite(condition), or INSERT INTO ... REPLACE WHERE.",
    "partitionoverwritemode": "Tables have no partitions: use writeTo(table).overwrite(condition).",
    "versionasof": "Use version.",
    "timestampasof": "Use timestamp.",
    "readchangefeed": "Use read_changes.",
    "ignorechanges": "Use ignore_changes.",
    "ignoredeletes": "Use ignore_changes.",
    "maxfilespertrigger": "Use max_versions_per_trigger.",
    "maxbytespertrigger": "Use max_bytes_per_trigger.",
    "startingoffsets": "Use startingVersion.",
    "txnappid": "Use query_id, with epoch.",
    "txnversion": "Use epoch, with query_id.",
    "usermetadata": "Use message or properties.",
    "compression": "Leave it out: the data format decides.",
}
"""Options of other formats, and what to use here instead."""

_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")
_SIZE: Final = re.compile(r"(\d+)\s*(b|kb?|mb?|gb?|tb?)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Options(Mapping[str, str]):
    """Options by name in any case; picklable."""

    def __init__(self, given: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        # The names of storage options keep their case: some stores care.
        self._given = {_plain(name): str(value) for name, value in dict(given).items()}

    def __getitem__(self, name: str) -> str:
        return self._given[_plain(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        return f"Options({sorted(self._given)})"  # never the values: they may be credentials

    def text(self, name: str) -> str | None:
        """The text, None where it is missing or empty."""
        return self.get(name) or None

    def integer(self, name: str, default: int | None = None, *, least: int | None = None) -> int | None:
        """A whole number.

        Raises:
            InvalidInput: it is none, or below ``least``.
        """
        text = self.text(name)
        if text is None:
            return default
        try:
            number = int(text.strip())
        except ValueError:
            raise InvalidInput(f"Option {name} is a whole number, not {text[:80]!r}.", argument=name) from None
        if least is not None and number < least:
            raise InvalidInput(f"Option {name} is at least {least}, not {number}.", argument=name)
        return number

    def boolean(self, name: str, default: bool = False) -> bool:
        """``true`` or ``false``.

        Raises:
            InvalidInput: it is neither.
        """
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() in _TRUE:
            return True
        if text.strip().lower() in _FALSE:
            return False
        raise InvalidInput(f"Option {name} is true or false, not {text[:80]!r}.", argument=name)

    def size(self, name: str, default: int | None = None) -> int | None:
        """Bytes, as a number or with a unit: ``64mb``.

        Raises:
            InvalidInput: it is no size.
        """
        text = self.text(name)
        if text is None:
            return default
        match = _SIZE.fullmatch(text.strip())
        if match is None or int(match[1]) == 0:
            raise InvalidInput(f"Option {name} is a size such as 64mb, not {text[:80]!r}.", argument=name)
        return int(match[1]) * _UNITS[(match[2] or "").lower()[:1]]

    def names(self, name: str) -> tuple[str, ...] | None:
        """Names with commas between them; a name with a comma or a dot in it stands in backquotes.

        Raises:
            InvalidInput: a name is empty or a backquote is not closed.
        """
        text = self.text(name)
        return None if text is None else _split_names(text, name)

    def one_of(self, name: str, choices: Iterable[str], default: str | None = None) -> str | None:
        """One of a few words, in lower case.

        Raises:
            InvalidInput: it is another.
        """
        text = self.text(name)
        if text is None:
            return default
        known = tuple(choices)
        if text.strip().lower() not in known:
            raise InvalidInput(f"Option {name} is one of {', '.join(known)}, not {text[:80]!r}.", argument=name)
        return text.strip().lower()

    def storage(self) -> dict[str, str]:
        """What goes to the object store: the ``storage.`` options without the prefix."""
        return {name[len(STORAGE) :]: value for name, value in self._given.items() if name.startswith(STORAGE)}

    def require_known(self, known: Iterable[str], doing: str, *, targets: bool = True) -> None:
        """Refuses options nobody reads: a typing error must not silently mean something else.

        Args:
            known: names beside those that say which table is meant.
            doing: what the options are for, as in ``"batch read"``.
            targets: whether options say which table is meant; if not, those that do are unknown too.

        Raises:
            InvalidInput: there is another one.
        """
        every = [*known, *(TARGET if targets else ())]
        for name in self._given:
            if name not in every and not (targets and name.startswith(STORAGE)):
                near = get_close_matches(name, every, n=1)
                known_ones = ", ".join([*every, "storage.*"] if targets else every)
                advice = ELSEWHERE.get(name) or (f"Did you mean {near[0]}?" if near else f"Known: {known_ones}")
                raise InvalidInput(f"There is no option {name[:80]!r} for a {doing}.", argument=name[:80], advice=advice)


def _plain(name: str) -> str:
    return STORAGE + name[len(STORAGE) :] if name.lower().startswith(STORAGE) else name.lower()


def _split_names(text: str, option: str) -> tuple[str, ...]:
    names, current, quoted, was_quoted = [], "", False, False
    for character in text + ",":
        if character == "`":
            quoted, was_quoted = not quoted, True
        elif character == "," and not quoted:
            name = current if was_quoted else current.strip()
            if not name:
                raise InvalidInput(f"Option {option} has an empty name in it: {text[:80]!r}.", argument=option)
            names.append(name.strip())
            current, was_quoted = "", False
        else:
            current += character
    if quoted:
        raise InvalidInput(f"A backquote in option {option} is not closed.", argument=option)
    return tuple(names)

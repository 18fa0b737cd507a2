"""Who asks, and what they may do: roles by the names of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tiltyard.errors import InvalidInput
from tiltyard.lakes.table_names import JOINT, full_name
from tiltyard.server.routes import Role

EVERYTHING: Final = "*"
"""As a prefix: all tables."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A role for all tables below a name.

    Attributes:
        role: what may be done.
        prefix: parts of a name; none for all tables.
    """

    role: Role
    prefix: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Grant:
        """From ``writer`` or ``writer:sales.eu``.

        Raises:
            InvalidInput: there is no such role, or the rest is no name.
        """
        word, _, rest = text.partition(":")
        if word.upper() not in Role.__members__:
            names = ", ".join(role.name.lower() for role in Role)
            raise InvalidInput(f"{word[:40]!r} is not a role.", argument="role", advice=f"Use one of {names}.")
        prefix = () if rest in ("", EVERYTHING) else tuple(full_name(rest).split(JOINT))
        return cls(Role[word.upper()], prefix)

    def __str__(self) -> str:
        return self.role.name.lower() + (":" + ".".join(self.prefix) if self.prefix else "")

    def covers(self, parts: Sequence[str]) -> bool:
        """Whether a name is the prefix, or below it."""
        return tuple(parts[: len(self.prefix)]) == self.prefix

    def is_below(self, parts: Sequence[str]) -> bool:
        """Whether the prefix is a name, or below it."""
        return self.prefix[: len(parts)] == tuple(parts)


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whose request was accepted.

    Attributes:
        name: for the history and the audit log.
        grants: what they may do.
        way: how they proved who they are.
    """

    name: str
    grants: tuple[Grant, ...]
    way: str = "token"

    def role_on(self, parts: Sequence[str]) -> int:
        """The strongest role for a name; 0 for none."""
        return max((int(grant.role) for grant in self.grants if grant.covers(parts)), default=0)

    def may(self, role: Role, parts: Sequence[str]) -> bool:
        return self.role_on(parts) >= role

    def may_list(self, parts: Sequence[str]) -> bool:
        """Whether something at or below a name may be seen."""
        return any(grant.covers(parts) or grant.is_below(parts) for grant in self.grants)

    def sees(self, full: str) -> bool:
        """Whether a table may be seen, by its full name."""
        return self.may(Role.READER, full.split(JOINT))


NOBODY: Final = Principal("anonymous", (), "none")
LOCAL: Final = Principal("anonymous", (Grant(Role.ADMIN),), "open")
"""Whoever reaches a server that asks nobody for a proof."""

"""Tokens: secrets that prove who asks. The catalog keeps their hashes, never themselves.

A token is ``tyd_<id>_<secret>``. The id finds the record; of the secret, 32 random bytes, the record has the SHA-256. A secret of that size
needs no slow hash: nobody can try all of them. Hashes are compared in constant time, and one is compared where there is no record, too.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from tiltyard.catalog.records import Body, Found, Writes
from tiltyard.errors import InvalidInput, NotFound
from tiltyard.format.safe_text import check_text
from tiltyard.server.principals import Grant, Principal

if TYPE_CHECKING:
    from tiltyard.lake import Lake

TOKENS: Final = "token/"
PREFIX: Final = "tyd_"
"""What every token begins with."""
_TOKEN: Final = re.compile(PREFIX + r"([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_NO_HASH: Final = "0" * 64
_LONGEST_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """What is known of a token; never the token.

    Attributes:
        id: for ``revoke``.
        name: whose it is.
        grants: what it allows.
        created, expires: when; ``expires`` is None for one that does not.
        revoked: when it was revoked; None for one that was not.
    """

    id: str
    name: str
    grants: tuple[Grant, ...]
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None

    def is_good(self, now: datetime) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


def create_token(lake: Lake, name: str, grants: Iterable[Grant], lasts: timedelta | None = None) -> tuple[str, TokenInfo]:
    """Makes a token, which is shown this once.

    Args:
        lake: where it is valid.
        name: whose it is; the author of what is committed with it.
        grants: what it allows.
        lasts: how long it is good for; for ever by default.

    Raises:
        InvalidInput: no role was given, or the name is empty or too long.
    """
    given = tuple(grants)
    if not given:
        raise InvalidInput("A token needs a role.", argument="role", advice="Pass reader, writer, maintainer or admin.")
    if not name.strip() or len(name) > _LONGEST_NAME or any(ord(letter) < 32 for letter in name):
        raise InvalidInput(f"The name of a token is a line of 1 to {_LONGEST_NAME} characters.", argument="name")
    if lasts is not None and lasts <= timedelta():
        raise InvalidInput("The lifetime of a token must be positive; leave it out for one that never expires.", argument="expires")
    now = lake.catalog.runtime.clock.now()
    identity, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    info = TokenInfo(identity, check_text(name, "The name", "name"), given, now, None if lasts is None else now + lasts)
    key = TOKENS + identity

    def decide(found: Found) -> Writes[None]:
        return Writes(None, {key: _to_body(info, _hash(secret))})

    lake.catalog.records.transact([key], [], decide)
    return f"tyd_{identity}_{secret}", info


def list_tokens(lake: Lake) -> list[TokenInfo]:
    """All tokens, oldest first, revoked and expired ones included."""
    return sorted((_from_body(key, body) for key, body in lake.catalog.records.scan([TOKENS])), key=lambda info: info.created)


def revoke_token(lake: Lake, identity: str) -> TokenInfo:
    """Makes a token worthless.

    Raises:
        NotFound: there is none of that id.
    """
    key, now = TOKENS + identity, lake.catalog.runtime.clock.now().isoformat()

    def decide(found: Found) -> Writes[Body]:
        if key not in found:
            raise NotFound(f"There is no token {identity[:40]!r}.", name=identity[:40], advice="See `tiltyard token list`.")
        body = {**found[key], "revoked": found[key].get("revoked") or now}
        return Writes(body, {key: body})

    return _from_body(key, lake.catalog.records.transact([key], [], decide))


def principal_of(lake: Lake, token: str) -> Principal | None:
    """Whose a token is; None for one that is not good."""
    match = _TOKEN.fullmatch(token)
    key = TOKENS + (match[1] if match else "0" * 16)
    body = lake.catalog.records.get([key]).get(key, {})
    same = hmac.compare_digest(_hash(match[2] if match else ""), str(body.get("hash", _NO_HASH)))
    if not same or not body:
        return None
    info = _from_body(key, body)
    return Principal(info.name, info.grants) if info.is_good(lake.catalog.runtime.clock.now()) else None


def has_tokens(lake: Lake) -> bool:
    """Whether any was made."""
    return bool(lake.catalog.records.scan([TOKENS], limit=1))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _to_body(info: TokenInfo, hashed: str) -> Body:
    return {
        "name": info.name,
        "grants": [str(grant) for grant in info.grants],
        "created": info.created.isoformat(),
        "expires": info.expires.isoformat() if info.expires else None,
        "hash": hashed,
    }


def _from_body(key: str, body: Body) -> TokenInfo:
    grants: Sequence[str] = body["grants"]
    expires, revoked = body.get("expires"), body.get("revoked")
    return TokenInfo(
        key.removeprefix(TOKENS),
        str(body["name"]),
        tuple(map(Grant.parse, grants)),
        datetime.fromisoformat(str(body["created"])),
        datetime.fromisoformat(str(expires)) if expires else None,
        datetime.fromisoformat(str(revoked)) if revoked else None,
    )

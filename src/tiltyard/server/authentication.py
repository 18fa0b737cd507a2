"""Turns what a request brings along into a principal: a token of the lake, or a signed JWT where the operator configured one."""

from __future__ import annotations

import hashlib
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lance_namespace import UnauthenticatedError

from tiltyard.errors import InvalidInput
from tiltyard.server.principals import LOCAL, Grant, Principal
from tiltyard.server.tokens import PREFIX, principal_of

if TYPE_CHECKING:
    from jwt import PyJWK, PyJWKClient

    from tiltyard.lake import Lake

REMEMBERED_SECONDS: Final = 2.0
"""How long a request is let in without another look: a JWT is not checked again; a token is before anything is done, in the same step."""
_MOST_REMEMBERED: Final = 4096
_LONGEST: Final = 16 * 1024
"""Characters of a proof; a longer one is not looked at."""
_ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""Signatures by a key that the server does not have; ``none`` and shared secrets are not among them."""
_KNOWN: Final = frozenset({"issuer", "audience", "algorithms", "key_file", "jwks_file", "jwks_url", "roles_claim", "name_claim", "leeway"})


@dataclass(frozen=True)
class JwtCheck:
    """How a JWT is checked.

    Attributes:
        issuer, audience: what it has to say.
        algorithms: which signatures are accepted.
        keys: finds the key for a token.
        roles_claim: the claim with the roles, each like ``writer:sales``.
        name_claim: the claim with the principal's name.
        leeway: seconds by which clocks may differ.
    """

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    keys: _Keys
    roles_claim: str = "tiltyard_roles"
    name_claim: str = "sub"
    leeway: float = 0.0

    @classmethod
    def from_file(cls, path: Path) -> JwtCheck:
        """From the section ``[jwt]`` of a TOML file.

        Raises:
            InvalidInput: something is missing, not known or unsafe.
        """
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8")).get("jwt", {})
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{path} cannot be read: {error}.", argument="auth") from error
        unknown = set(given) - _KNOWN
        if unknown:
            raise InvalidInput(f"[jwt] has unknown keys: {sorted(unknown)}.", argument="auth")
        for needed in ("issuer", "audience"):
            if not isinstance(given.get(needed), str) or not given[needed]:
                raise InvalidInput(
                    f"[jwt] needs {needed}.",
                    argument="auth",
                    advice="Without it, tokens that were made for other services would be accepted.",
                )
        algorithms = tuple(given.get("algorithms", ("RS256",)))
        if not algorithms or not set(algorithms) <= _ALGORITHMS:
            raise InvalidInput(f"[jwt] algorithms are some of {sorted(_ALGORITHMS)}.", argument="auth")
        named = {key: str(given[key]) for key in ("roles_claim", "name_claim") if key in given}
        return cls(given["issuer"], given["audience"], algorithms, _Keys(given, path.parent), **named, leeway=float(given.get("leeway", 0)))

    def principal(self, token: str) -> Principal | None:
        """Whose a JWT is; None for one that is not good."""
        import jwt

        try:
            claims = jwt.decode(
                token,
                self.keys.key_for(token),
                algorithms=list(self.algorithms),
                audience=self.audience,
                issuer=self.issuer,
                leeway=self.leeway,
                options={"require": ["exp", "aud", "iss"]},
            )
        except (jwt.PyJWTError, ValueError):
            return None
        return self._from_claims(claims)

    def _from_claims(self, claims: Mapping[str, Any]) -> Principal | None:
        name, roles = claims.get(self.name_claim), claims.get(self.roles_claim, [])
        if not isinstance(name, str) or not name or not isinstance(roles, list):
            return None
        grants = []
        for role in roles:
            try:
                grants.append(Grant.parse(str(role)))
            except InvalidInput:
                continue  # a role of another service
        return Principal(name[:100], tuple(grants), "jwt")


class _Keys:
    """Public keys: one in a file, a set in a file, or a set that the issuer publishes."""

    def __init__(self, given: Mapping[str, Any], folder: Path) -> None:
        import jwt

        named = [key for key in ("key_file", "jwks_file", "jwks_url") if given.get(key)]
        if len(named) != 1:
            raise InvalidInput("[jwt] needs one of key_file, jwks_file and jwks_url.", argument="auth")
        self._one: str | None = None
        self._set: jwt.PyJWKSet | None = None
        self._published: PyJWKClient | None = None
        if named == ["jwks_url"]:
            if not str(given["jwks_url"]).startswith("https://"):
                raise InvalidInput("jwks_url begins with https://.", argument="auth")
            self._published = jwt.PyJWKClient(str(given["jwks_url"]), timeout=5)
            return
        text = (folder / str(given[named[0]])).read_text(encoding="utf-8")
        if named == ["key_file"]:
            self._one = text
        else:
            self._set = jwt.PyJWKSet.from_json(text)

    def key_for(self, token: str) -> str | PyJWK:
        import jwt

        if self._one is not None:
            return self._one
        if self._published is not None:
            return self._published.get_signing_key_from_jwt(token)
        assert self._set is not None
        name = jwt.get_unverified_header(token).get("kid")
        found = [key for key in self._set.keys if key.key_id == name]
        if len(found) != 1:
            raise jwt.InvalidKeyError("no key of that id")
        return found[0]


class Authenticator:
    """Says who asks.

    Args:
        lake: has the tokens.
        jwt: how a JWT is checked; None where none is accepted.
        required: whether a request without a proof is refused.
    """

    def __init__(self, lake: Lake, jwt: JwtCheck | None = None, *, required: bool = True) -> None:
        self._lake, self._jwt, self.required = lake, jwt, required
        self._lock = threading.Lock()
        self._seen: dict[bytes, tuple[float, Principal]] = {}

    def known(self, proof: str | None) -> Principal | None:
        """Who brings a proof, where that is known without a look into the catalog."""
        if not self.required:
            return LOCAL
        if not proof or len(proof) > _LONGEST:
            return None
        with self._lock:
            until, principal = self._seen.get(_digest(proof), (0.0, LOCAL))
        return principal if until > self._lake.catalog.runtime.clock.monotonic() else None

    def principal(self, proof: str | None) -> Principal:
        """Who brings a proof.

        Raises:
            UnauthenticatedError: there is none, or it is not good. Which of the two, and why, is not told.
        """
        if (known := self.known(proof)) is not None and not self.is_revocable(proof):
            return known
        found = self._looked_up(proof) if proof and len(proof) <= _LONGEST else None
        if found is None:
            raise UnauthenticatedError("A valid token is needed: Authorization: Bearer <token>, or x-api-key.")
        return found

    def is_revocable(self, proof: str | None) -> bool:
        """Whether a proof that was good a moment ago may not be by now: a token of the lake, which somebody can revoke."""
        return self.required and proof is not None and (proof.startswith(PREFIX) or self._jwt is None)

    def _looked_up(self, proof: str) -> Principal | None:
        found = principal_of(self._lake, proof) if self._jwt is None or proof.startswith(PREFIX) else self._jwt.principal(proof)
        with self._lock:
            if found is None:
                self._seen.pop(_digest(proof), None)
            else:
                if len(self._seen) >= _MOST_REMEMBERED:
                    self._seen.clear()
                self._seen[_digest(proof)] = (self._lake.catalog.runtime.clock.monotonic() + REMEMBERED_SECONDS, found)
        return found


def _digest(proof: str) -> bytes:
    return hashlib.sha256(proof.encode(errors="replace")).digest()


def proof_in(headers: Mapping[str, str], identity: object = None) -> str | None:
    """The token that a request brings: in a header, or else in the body's ``identity``."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and rest.strip():
        return rest.strip()
    if headers.get("x-api-key"):
        return headers["x-api-key"]
    if isinstance(identity, Mapping):
        told = identity.get("auth_token") or identity.get("api_key")
        return told.removeprefix("Bearer ") if isinstance(told, str) else None
    return None

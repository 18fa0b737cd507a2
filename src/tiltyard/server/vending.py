"""What clients are given to reach the store by themselves: nothing, the server's own options, or keys of their own that end.

Keys that end are for one table and one role (``sts``); who opens a lake by the address of the server gets some for its whole root. They are
kept for half of their time, so that whoever is given them has the other half; none of them is ever written down.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tiltyard.errors import InvalidInput
from tiltyard.redact import is_secret_name, secret_values
from tiltyard.server.principals import Principal
from tiltyard.server.routes import Role
from tiltyard.server.sts import Keys, SessionKeys, StsOptions, assume_role, policy_for
from tiltyard.storage import option_name

_MOST: Final = 1024
"""Sets of keys that are kept."""
_DEFAULT_REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True)
class VendedPlace:
    """What is to be reached.

    Attributes:
        uri: as clients call it.
        parts: the table's name; none for the lake.
        options: how the server reaches it.
    """

    uri: str
    parts: tuple[str, ...]
    options: Mapping[str, Any]


class Vendor:
    """Gives storage options to clients. Threads may share it.

    Args:
        options: how the server reaches the store.
        root: where the lake's tables are.
        least: the role from which on clients are given something; None for nobody.
        sts: where keys that end come from; None where clients are given the server's own.
        clock: seconds since 1970.

    Raises:
        InvalidInput: keys that end are wanted of a store that has none, or the server has no keys to ask with.
    """

    def __init__(
        self,
        options: Mapping[str, Any] | None,
        root: str,
        least: Role | None,
        sts: StsOptions | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._least, self._sts, self._clock = least, sts, clock
        self._lock = threading.Lock()
        self._given: dict[tuple[str, int, str], tuple[float, SessionKeys]] = {}
        if sts is not None:
            if not root.startswith(("s3://", "s3a://")):
                advice = "Leave --vend-role out; clients then need their own access to the store, or send and read rows through the server."
                raise InvalidInput("Only S3 stores give temporary credentials.", argument="vend_role", advice=advice)
            self._keys, self._region = _own_keys(options or {})

    def for_table(self, principal: Principal, parts: tuple[str, ...], uri: str, options: Mapping[str, Any] | None) -> dict[str, str] | None:
        """What somebody is given for a table.

        Args:
            principal: who asks.
            parts: the table's name.
            uri: where it lies.
            options: how the server reaches it.

        Raises:
            StorageError: the store gives no keys.
        """
        return self._vended(principal, VendedPlace(uri, parts, options or {}))

    def for_lake(self, principal: Principal, root: str, options: Mapping[str, Any] | None) -> dict[str, str] | None:
        """What somebody is given who opens the lake by the address of the server."""
        return self._vended(principal, VendedPlace(root, (), options or {}))

    def _vended(self, principal: Principal, place: VendedPlace) -> dict[str, str] | None:
        role = principal.role_on(place.parts)
        if self._least is None or role < self._least:
            return None
        if self._sts is None:
            return {key: str(value) for key, value in place.options.items()} or None
        secret = set(secret_values(place.options))
        open_ones = {key: str(value) for key, value in place.options.items() if not is_secret_name(key) and str(value) not in secret}
        plain = {key: value for key, value in open_ones.items() if option_name(key) not in ("access_key_id", "secret_access_key", "token")}
        return {**plain, **self._session(principal, place, Role(min(role, Role.MAINTAINER))).options()}

    def _session(self, principal: Principal, place: VendedPlace, role: Role) -> SessionKeys:
        assert self._sts is not None
        key, now = (place.uri, int(role), principal.name), self._clock()
        with self._lock:
            until, known = self._given.get(key, (0.0, None))
        if known is not None and now < until:
            return known
        policy = policy_for(place.uri, role, whole=not place.parts)
        made = assume_role(self._sts, self._keys, self._region, policy, principal.name)
        with self._lock:
            if len(self._given) >= _MOST:
                self._given.clear()
            self._given[key] = (now + (made.expires.timestamp() - now) / 2, made)
        return made


def _own_keys(options: Mapping[str, Any]) -> tuple[Keys, str]:
    """The keys with which the server asks, and the region."""
    named = {option_name(key): str(value) for key, value in options.items()}
    access, secret = named.get("access_key_id"), named.get("secret_access_key")
    session = named.get("token")
    if access is None or secret is None:
        access, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        session = os.environ.get("AWS_SESSION_TOKEN")
    if not access or not secret:
        advice = "Give the server aws_access_key_id and aws_secret_access_key, as storage options or in its environment."
        raise InvalidInput("The server has no keys to ask for credentials with.", argument="vend_role", advice=advice)
    region = named.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
    return Keys(access, secret, session), region

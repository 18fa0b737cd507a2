"""What an operator decides about a server: where it listens, who may ask, and how much."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tiltyard.errors import InvalidInput
from tiltyard.server.routes import Role
from tiltyard.server.sts import StsOptions

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much a server takes on.

    Attributes:
        body_bytes: of one request with rows.
        json_bytes: of one request without.
        page: entries in one answer to a list.
        requests: at work or waiting at one moment, of all clients; one more is answered with 503.
        table_queue: requests that wait for one table; one more is answered with 429.
        body_seconds: how long a client may take to send a request's body.
        header_seconds: how long it may take for the rest.
        idle_seconds: how long a connection may be silent between two requests.
        shutdown_seconds: how long requests at work are waited for; their commits are finished in any case.
        threads: that do the work.
    """

    body_bytes: int = 256 * 1024 * 1024
    json_bytes: int = 8 * 1024 * 1024
    page: int = 1000
    requests: int = 512
    table_queue: int = 128
    body_seconds: float = 60.0
    header_seconds: float = 15.0
    idle_seconds: float = 75.0
    shutdown_seconds: float = 30.0
    threads: int = 32


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a lake is served.

    Attributes:
        host, port: where; port 0 takes a free one.
        auth: whether a token is needed: ``"token"``, or ``"off"``.
        auth_config: a TOML file that says which JWTs are accepted.
        certificate, key: files for TLS.
        insecure: what is allowed beyond loopback although it is not safe: ``no-auth``, ``no-tls``.
        audit_log: a file; the log of the process without one.
        vend_to: the role from which on clients are given storage options; None for nobody.
        sts: where keys for clients come from that end by themselves; without, they are given the server's own.
        upkeep: a TOML file that says what the server does for its lake by itself.
        limits: how much it takes on.
    """

    host: str = LOOPBACK
    port: int = 2333
    auth: str | None = None
    auth_config: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    insecure: frozenset[str] = frozenset()
    audit_log: Path | None = None
    vend_to: Role | None = None
    sts: StsOptions | None = None
    upkeep: Path | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        if self.auth not in (None, "token", "off"):
            raise InvalidInput(f"auth is 'token' or 'off', not {self.auth!r}.", argument="auth")
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("TLS needs a certificate and a key.", argument="certificate")
        unknown = self.insecure - {"no-auth", "no-tls"}
        if unknown:
            raise InvalidInput(f"Only no-auth and no-tls can be allowed, not {sorted(unknown)}.", argument="insecure")
        if self.sts is not None and self.vend_to is None:
            raise InvalidInput("No role is given storage options.", argument="vend_role", advice="Say from which role on: --vend-to.")
        if self.is_local:
            return
        if self.authenticates is False and "no-auth" not in self.insecure:
            raise InvalidInput(
                f"{self.host} is reachable from other machines, and authentication is off.", argument="host",
                advice="Use --auth token, or allow it with --insecure no-auth.",
            )  # fmt: skip
        if self.certificate is None and "no-tls" not in self.insecure:
            raise InvalidInput(
                f"{self.host} is reachable from other machines, and tokens would travel unencrypted.", argument="host",
                advice="Use --certificate and --key, or allow it with --insecure no-tls (behind a proxy that has TLS).",
            )  # fmt: skip

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def authenticates(self) -> bool:
        """Whether a token is needed: always beyond loopback unless it was turned off, and where it was asked for."""
        if self.auth is not None:
            return self.auth == "token"
        return self.auth_config is not None or not self.is_local

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"

"""Credentials that end by themselves, from the security token service (STS) of an S3 store: one role, less what a table needs not.

The server assumes a role with its own keys and a session policy: what the credentials allow is what both the role and the policy allow. A
reader reads the objects of one table. A writer also makes data files, staged versions, transaction files and the like; names of published
versions, which only the server gives, are not among them, and it deletes nothing but what it staged. A maintainer deletes, too.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from tiltyard.errors import InvalidInput, StorageError
from tiltyard.redact import redact
from tiltyard.server.routes import Role

SHORTEST: Final = 900
LONGEST: Final = 43200
"""Seconds for which STS gives credentials."""
_TIMEOUT: Final = 10.0
_MOST_BYTES: Final = 64 * 1024
_FORM: Final = "application/x-www-form-urlencoded; charset=utf-8"
_WRITTEN: Final = (
    "data/*", "_deletions/*", "_indices/*", "_transactions/*", "_refs/*", "tree/*", "_versions/*.manifest-*", "_tiltyard/collected/*",
)  # fmt: skip
"""What a writer makes below a table: all but published versions and the lake's own files."""
_STAGED: Final = ("_versions/*.manifest-*", "_tiltyard/collected/*")
_ROLE: Final = re.compile(r"arn:[a-z-]+:iam::[0-9]*:?role/[\w+=,.@/-]{1,512}", re.ASCII)
_SESSION: Final = re.compile(r"[^\w+=,.@-]", re.ASCII)


@dataclass(frozen=True, slots=True)
class StsOptions:
    """Where and for which role credentials are asked for.

    Attributes:
        role: its ARN.
        endpoint: of the service; that of the region by default.
        seconds: for how long credentials are good.
    """

    role: str
    endpoint: str | None = None
    seconds: int = 3600

    def __post_init__(self) -> None:
        if _ROLE.fullmatch(self.role) is None:
            raise InvalidInput(f"{self.role[:80]!r} is not a role.", argument="vend_role", advice="Use arn:aws:iam::<account>:role/<name>.")
        if not SHORTEST <= self.seconds <= LONGEST:
            raise InvalidInput(f"Credentials last {SHORTEST} to {LONGEST} seconds, not {self.seconds}.", argument="vend_seconds")
        parts = urlsplit(self.endpoint or "https://sts")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InvalidInput(f"{redact(str(self.endpoint))[:80]!r} is not the address of an STS endpoint.", argument="vend_endpoint")


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """Keys of an account, or of a session."""

    access: str
    secret: str
    session: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class SessionKeys:
    """Keys that end by themselves."""

    keys: Keys
    expires: datetime

    def options(self) -> dict[str, str]:
        """As storage options of Lance, which asks for others before they end."""
        return {
            "aws_access_key_id": self.keys.access,
            "aws_secret_access_key": self.keys.secret,
            "aws_session_token": self.keys.session or "",
            "expires_at_millis": str(int(self.expires.timestamp() * 1000)),
        }


def policy_for(uri: str, role: Role, *, whole: bool = False) -> str:
    """The session policy for what lies below an address.

    Args:
        uri: ``s3://bucket/path``.
        role: what may be done there.
        whole: whether it is a lake, whose clients give versions their names and keep journals; else a table.
    """
    bucket, _, path = uri.partition("://")[2].partition("/")
    home = path.strip("/")
    below = f"{home}/" if home else ""

    def at(*patterns: str) -> list[str]:
        return [f"arn:aws:s3:::{bucket}/{below}{pattern}" for pattern in patterns]

    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": at("*")},
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [f"arn:aws:s3:::{bucket}"],
            "Condition": {"StringLike": {"s3:prefix": [home, f"{below}*"] if home else ["*"]}},
        },
        {"Effect": "Allow", "Action": ["s3:GetBucketLocation"], "Resource": [f"arn:aws:s3:::{bucket}"]},
    ]
    if role >= Role.WRITER:
        written = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        statements.append({"Effect": "Allow", "Action": written, "Resource": at("*") if whole else at(*_WRITTEN)})
        everything = whole or role >= Role.MAINTAINER
        statements.append({"Effect": "Allow", "Action": ["s3:DeleteObject"], "Resource": at("*") if everything else at(*_STAGED)})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def assume_role(options: StsOptions, keys: Keys, region: str, policy: str, who: str) -> SessionKeys:
    """Asks STS for credentials.

    Args:
        options: which role, where.
        keys: of whoever asks.
        region: of the service.
        policy: what the credentials are for, at most.
        who: for the log of the store.

    Raises:
        StorageError: STS refused, or did not answer.
    """
    body = urlencode(
        {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": options.role,
            "RoleSessionName": ("tiltyard-" + _SESSION.sub("-", who))[:64],
            "DurationSeconds": str(options.seconds),
            "Policy": policy,
        }
    ).encode()
    url = options.endpoint or f"https://sts.{region}.amazonaws.com"
    status, told = _sent(url, signed(url, body, keys, region, datetime.now(UTC)), body)
    found = {name: _member(told, name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")}
    if status != 200 or not all(found.values()):
        code = re.sub(r"[^\w.]", "", _member(told, "Code") or "")[:60]  # its text may repeat what was sent
        what = f"The token service refused credentials for a client: {code or status}."
        raise StorageError(what, name=redact(url), transient=status >= 500, advice="See --vend-role, and what the role allows the server.")
    made = Keys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
    return SessionKeys(made, datetime.fromisoformat(found["Expiration"].replace("Z", "+00:00")))


def signed(url: str, body: bytes, keys: Keys, region: str, now: datetime) -> dict[str, str]:
    """The headers of a request, with a signature of AWS (version 4)."""
    parts = urlsplit(url)
    day, moment = now.strftime("%Y%m%d"), now.strftime("%Y%m%dT%H%M%SZ")
    headers = {"content-type": _FORM, "host": parts.netloc, "x-amz-date": moment}
    if keys.session:
        headers["x-amz-security-token"] = keys.session
    names = ";".join(sorted(headers))
    listed = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join(("POST", parts.path or "/", "", listed, names, hashlib.sha256(body).hexdigest()))
    scope = f"{day}/{region}/sts/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{keys.secret}".encode()
    for part in (day, region, "sts", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    return headers


def _sent(url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(str(parts.hostname), parts.port, timeout=_TIMEOUT)
    try:
        connection.request("POST", parts.path or "/", body, dict(headers))
        with connection.getresponse() as answer:
            return answer.status, answer.read(_MOST_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        what = f"The token service of the store does not answer ({type(error).__name__})."
        raise StorageError(what, name=redact(url), transient=True) from error
    finally:
        connection.close()


def _member(text: str, name: str) -> str:
    found = re.search(rf"<{name}>([^<]*)</{name}>", text)
    return found[1].strip() if found else ""

"""Keeps credentials out of everything a person or a file may see: messages, reprs, log lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"

_SECRET_WORDS = (
    r"secret|token|password|passwd|pwd|credential|signature|\bsas|_sas|"
    r"access[_-]?key|account[_-]?key|api[_-]?key|private[_-]?key|customer[_-]?key|service_account"
)
_SECRET_NAME = re.compile(rf"(?:{_SECRET_WORDS})", re.IGNORECASE)
# The counts below keep the time for a text in proportion to its length, whatever a server says.
# scheme://user:password@host - everything before the last @ of the authority goes, since a user name is often a key id
_USER_INFO = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,30}://)(?P<user>[^\s/?#\"']*)@(?P<host>[^\s/?#\"'@]*)", re.IGNORECASE)
_QUOTE = r"\\?[\"']"
"""A quote, also one inside a text that is quoted itself."""
_BARE = r"(?:[^\s\"'&,;)}<>\\]|\\(?![\"']))+"
# up to the closing quote; one that is escaped or doubled closes nothing, and where none closes, all the rest is taken for the value
_QUOTED = rf"(?P<quote>{_QUOTE})(?:(?P=quote){{2}}|(?!(?P=quote))(?:\\.|[^\\]))+"
# name=value or "name": "value" where the name tells that the value is secret; also the short names used by presigned URLs
_NAMED_VALUE = re.compile(
    rf"(?P<name>(?:{_SECRET_WORDS})[\w.-]{{0,200}}(?:{_QUOTE})?\s*[=:]\s*(?:[bru]{{1,2}}(?=[\"']))?|[?&](?:sig|se|sv|key)=)"
    rf"(?:{_QUOTED}|{_BARE})",
    re.IGNORECASE | re.DOTALL,
)
# what a client sends to prove who it is; the word for the way it does that may stay
_AUTHORIZATION = re.compile(
    rf"(?P<name>\bauthorization(?:{_QUOTE})?\s*[=:]\s*(?:(?:bearer|basic|digest|negotiate|sharedkey|aws4-hmac-sha256)\s+)?|\bbearer\s+)"
    rf"(?:{_QUOTED}|{_BARE})",
    re.IGNORECASE | re.DOTALL,
)
_AZURE_HOSTS = (".core.windows.net", ".fabric.microsoft.com")
_SHORTEST_SECRET = 4


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` without passwords in URLs, without values of secret-looking names, and without the given secret values.

    >>> redact("cannot open s3://me:hunter2@host/lake?token=abc")
    'cannot open s3://***@host/lake?token=***'
    """
    for secret in sorted({value for value in secrets if len(value) >= _SHORTEST_SECRET}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _USER_INFO.sub(_without_user, text)
    return _NAMED_VALUE.sub(_without_value, _AUTHORIZATION.sub(_without_value, text))


def _without_value(hit: re.Match[str]) -> str:
    return f"{hit['name']}{hit['quote'] or ''}{HIDDEN}"


def _without_user(hit: re.Match[str]) -> str:
    # abfss://container@account.dfs.core.windows.net names a container there, not a person
    if hit["host"].lower().endswith(_AZURE_HOSTS) and ":" not in hit["user"]:
        return hit[0]
    return f"{hit['scheme']}{HIDDEN}@{hit['host']}"


def is_secret_name(name: str) -> bool:
    """Whether an option of this name holds something nobody should see."""
    return bool(_SECRET_NAME.search(name))


def secret_values(options: Mapping[str, object] | None) -> tuple[str, ...]:
    """The values in storage options that must never be shown, and passwords inside URLs among the others."""
    found: list[str] = []
    for name, value in (options or {}).items():
        if is_secret_name(name):
            found.append(str(value))
        elif hit := _USER_INFO.search(str(value)):
            found.extend(part for part in hit["user"].split(":") if part)
    return tuple(value for value in found if value.lower() not in ("true", "false"))


def redact_options(options: Mapping[str, object] | None) -> dict[str, str]:
    """Storage options fit to be shown."""
    return {name: HIDDEN if is_secret_name(name) else redact(str(value)) for name, value in (options or {}).items()}

"""The hint at the latest version, a small file beside the manifests.

It is advice: it may be missing, behind, ahead or garbage, and none of that is an error. Garbage therefore reads as None.
"""

from __future__ import annotations

import json
from typing import Final

HINT_PATH: Final = "_versions/latest_version_hint.json"

_LARGEST: Final = 256
"""A true hint has at most 32 bytes; parsing stops short of anything that could be deep or long."""


def encode_hint(version: int) -> bytes:
    return b'{"version":%d}' % version


def decode_hint(data: bytes) -> int | None:
    """The version the hint names, or None when it cannot be made out."""
    if len(data) > _LARGEST:
        return None
    try:
        content = json.loads(data.decode("utf-8"))
    except ValueError:
        return None
    version = content.get("version") if isinstance(content, dict) else None
    # A bool is an int to Python; the top bit belongs to detached versions, which are never the latest.
    return version if isinstance(version, int) and not isinstance(version, bool) and 0 < version < 1 << 63 else None

"""Serves a lake with narrow limits, for tests that run into them: ``narrow_server.py LAKE --port 0 --json``."""

from __future__ import annotations

import json
import sys

from tiltyard.lake import Lake
from tiltyard.server.server_options import ServerLimits, ServerOptions
from tiltyard.server.serving import log_as_json, serve

LIMITS = ServerLimits(
    body_bytes=1024 * 1024, json_bytes=64 * 1024, page=2, requests=2, body_seconds=2.0, header_seconds=1.0, idle_seconds=2
)


def announce(url: str) -> None:
    print(json.dumps({"url": url}, indent=2), flush=True)


if __name__ == "__main__":
    log_as_json()
    with Lake.open(sys.argv[1]) as lake:
        serve(lake, ServerOptions(port=0, limits=LIMITS), announce)

"""A server without tokens answers programs of this machine, and no page that a browser on it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.served import Served, served
from tiltyard.server.browser_guard import is_foreign

HERE = "127.0.0.1:2333"


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({"host": HERE}, False),
        ({"host": "localhost:2333"}, False),
        ({"host": "[::1]:2333"}, False),
        ({"host": HERE, "origin": f"http://{HERE}", "sec-fetch-site": "same-origin"}, False),
        ({"host": HERE, "sec-fetch-site": "none"}, False),
        ({"host": HERE, "origin": "https://evil.example"}, True),
        ({"host": HERE, "origin": "null"}, True),
        ({"host": HERE, "origin": "http://127.0.0.1:8080"}, True),
        ({"host": HERE, "sec-fetch-site": "cross-site"}, True),
        ({"host": HERE, "sec-fetch-site": "same-site"}, True),
        ({"host": "rebound.example:2333"}, True),
        ({"host": "127.0.0.1.evil.example"}, True),
        ({"host": "[::1"}, True),
        ({"host": "user@127.0.0.1:2333@evil.example"}, True),
        ({}, True),
    ],
)
def test_by_its_headers(headers: Mapping[str, str], foreign: bool) -> None:
    assert is_foreign(headers, local=True) is foreign


def test_beyond_loopback_a_server_may_have_any_name() -> None:
    assert not is_foreign({"host": "lake.example"}, local=False)
    assert is_foreign({"host": "lake.example", "origin": "https://evil.example"}, local=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("guard") / "lake") as running:
        assert running.rows("/v1/table/t/create", pa.table({"id": [1]})).status == 200
        yield running


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"host": "rebound.example"}, {"sec-fetch-site": "cross-site"}])
def test_a_page_of_another_site_can_neither_drop_nor_read(server: Served, headers: Mapping[str, str]) -> None:
    for path in ("/v1/table/t/drop", "/v1/table/t/count_rows"):
        refused = server.post(path, {}, headers={**headers, "content-type": "text/plain"})
        assert (refused.status, refused.code) == (403, 15)
    assert server.get("/metrics", headers).status == 403
    assert server.post("/v1/table/t/count_rows", {}).json == 1


def test_with_a_token_a_request_stands_for_itself(tmp_path: Path) -> None:
    """No page can send what it does not know; so nothing is asked of where it comes from."""
    with served(tmp_path / "lake", "--auth", "token") as running:
        assert running.post("/v1/table/t/count_rows", {}, headers={"origin": "https://app.example"}).status == 401

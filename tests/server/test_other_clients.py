"""The programs of the guide on clients as somebody would type them, one table for all: lancedb in Python and Node, pylance, polars, DuckDB,
daft, Ray. Each reads and writes, and the history shows who did what.

Clients that are not among our own dependencies have environments of their own, which are built once and kept in the user's cache; where the
package registries are out of reach these tests say so and are left out. Ray is in the long form alone: it starts a cluster of processes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.environments import environment, is_node, plain
from tests.support.proving import PROVING
from tests.support.served import Served, served
from tiltyard.server.principals import Grant
from tiltyard.server.tokens import create_token

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "clients.md"


@dataclass(frozen=True)
class Client:
    """A client of the guide.

    Attributes:
        heading: below which its program stands.
        row: what that adds.
        packages: of its environment; none where our own has all it needs.
        block: which of the programs below the heading it is.
        adopted: whether it commits to the store by itself.
    """

    heading: str
    row: tuple[int, str]
    packages: tuple[str, ...] = ()
    block: int = 0
    adopted: bool = False

    def program(self, url: str, token: str) -> str:
        section = GUIDE.read_text(encoding="utf-8").split(f"\n## {self.heading}\n")[1].split("\n## ")[0]
        text = re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[self.block]
        assert text.count("http://127.0.0.1:2333") == text.count("tyd_...") == 1
        return str(text).replace("http://127.0.0.1:2333", url).replace("tyd_...", token)


CLIENTS = {
    "lancedb": Client("lancedb", (2, "Grace")),
    "node": Client("lancedb", (3, "Margaret"), ("@lancedb/lancedb@0.39.0", "apache-arrow@18.1.0"), block=1),
    "pylance": Client("pylance", (4, "Barbara")),
    "polars": Client("polars", (5, "Frances"), ("pylance==14.0.2", "polars==2.1.0", "duckdb==1.5.5", "duckdb-extension-lance==1.5.5")),
    "duckdb": Client(
        "DuckDB", (6, "Ida"), ("pylance==14.0.2", "polars==2.1.0", "duckdb==1.5.5", "duckdb-extension-lance==1.5.5"), adopted=True
    ),
    "daft": Client("daft", (7, "Edith"), ("daft==0.7.26", "daft-lance==0.6.0")),
    "ray": Client("Ray", (8, "Radia"), ("lance-ray==0.5.0",), adopted=True),
}


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that asks for tokens, with a table that all clients write to."""
    home = tmp_path_factory.mktemp("clients") / "lake"
    with ty.Lake.open(home) as lake:
        lake.create_table("people", pa.table({"id": pa.array([1], pa.int64()), "name": ["Ada"]}))
    with served(home, "--auth", "token") as running:
        yield running


@pytest.mark.parametrize("name", [name for name in CLIENTS if PROVING or name != "ray"])
def test_a_client_as_the_guide_has_it(asking: Served, name: str, tmp_path: Path) -> None:
    client = CLIENTS[name]
    home = environment(client.packages) if client.packages else None
    with asking.lake() as lake:
        token, _ = create_token(lake, f"{name} user", [Grant.parse("writer:people")])
        before = {(row["id"], row["name"]) for row in lake.table("people").to_arrow().to_pylist()}
        program = tmp_path / ("program.js" if is_node(client.packages) else "program.py")
        program.write_text(client.program(asking.url, token), encoding="utf-8")
        python = sys.executable if home is None else str(home / "bin/python")
        command = ["node", str(program)] if is_node(client.packages) else [python, str(program)]
        around = {
            **plain(),
            "RAY_USAGE_STATS_ENABLED": "0",
            **({"NODE_PATH": str(home / "node_modules")} if is_node(client.packages) and home else {}),
        }
        done = subprocess.run(command, cwd=tmp_path, env=around, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert client.row[1] in done.stdout, "it does not read what it wrote"
        rows = [(row["id"], row["name"]) for row in lake.table("people").to_arrow().to_pylist()]
        assert sorted(rows) == sorted({*before, client.row})
        author = lake.history()[0].author
        assert ("lance" in author.lower()) if client.adopted else (author == f"{name} user")
        assert lake.check().ok
        assert token not in asking.log()

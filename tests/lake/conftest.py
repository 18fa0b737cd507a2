from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.support.lakes import Site, two_tables
from tests.support.records import with_parameters
from tiltyard.lake import Lake

CATALOGS = ["sqlite", "postgres", "manifest"]


@pytest.fixture(params=CATALOGS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A lake that nobody has opened yet, once for each kind of catalog."""
    kind = str(request.param)
    if kind == "postgres":
        home = tmp_path / "tables"
        schema = f"lake_{uuid.uuid4().hex}"
        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        here = Site(kind, with_parameters(url, options=f"-csearch_path={schema}"), home, {"root": home})
    else:
        home = tmp_path / "lake"
        here = Site(kind, str(home), home, {"catalog": kind})
    yield here
    here.close()


@pytest.fixture
def lake(site: Site) -> Lake:
    """A lake with the tables ``a`` and ``b``, each of which holds the id 1."""
    return two_tables(site.open())


@pytest.fixture(scope="module")
def sqlite_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """One lake for all tests of a module that change nothing and ask nothing of the catalog."""
    with Lake.open(tmp_path_factory.mktemp("shared") / "lake", durability="os") as lake:
        yield two_tables(lake)

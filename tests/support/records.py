"""Places for records that no other test uses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL


@contextmanager
def fresh_database(postgres_url: str) -> Iterator[str]:
    """An empty database on a server, gone in the end, with all who are still connected."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield with_parameters(postgres_url, dbname=name)
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def with_parameters(postgres_url: str, **changes: str) -> str:
    """The same address with other parameters, as libpq names them."""
    given = {key: str(value) for key, value in conninfo_to_dict(postgres_url).items()} | changes
    name = given.pop("user"), given.pop("password", None)
    return URL.create("postgresql", *name, database=given.pop("dbname"), query=given).render_as_string(hide_password=False)

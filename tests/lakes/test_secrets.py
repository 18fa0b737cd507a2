"""Credentials go to the catalog and the store and nowhere else: planted ones are looked for in all that is written, said or shown."""

from __future__ import annotations

import json
import logging
import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from tests.support.lakes import add_to_both, numbers, two_tables
from tests.support.records import fresh_database, with_parameters
from tiltyard.errors import TiltyardError
from tiltyard.lake import Lake

SECRETS: Final = ("pl4nted-password", "PLANTEDKEYID", "pl4nted/secret+key==", "planted-session-token")
OPTIONS: Final = {"aws_access_key_id": SECRETS[1], "aws_secret_access_key": SECRETS[2], "aws_session_token": SECRETS[3]}
NOBODY: Final = f"postgresql://ann:{SECRETS[0]}@127.0.0.1:9/lake?connect_timeout=1"


def assert_clean(text: str, where: str) -> None:
    for secret in SECRETS:
        assert secret not in text, f"{where} shows {secret}"


def assert_clean_error(act: Callable[[], Any]) -> None:
    with pytest.raises(TiltyardError) as caught:
        act()
    error = caught.value
    assert_clean(str(error) + repr(error) + json.dumps(error.to_dict(), default=str), "the error")
    assert_clean("".join(traceback.format_exception(error)), "its traceback")


def use(lake: Lake, again: Lake) -> str:
    """Everything that is said while a lake is used, and what goes wrong then."""
    two_tables(lake)
    with lake.transaction(message="m", idempotency_key="k", properties={"p": "q"}) as tx:
        add_to_both(tx, 2)
        said = [repr(tx), repr(tx.table("a")), repr(tx.table("a").lance)]
    lake.table("a").append(numbers(3))
    lake.tags.create("t")
    late = again.transaction()
    late.table("a").update({"id": "id + 1"})
    again.table("a").update({"id": "id + 2"})
    assert_clean_error(late.commit)
    assert_clean_error(lambda: lake.table("none"))
    assert_clean_error(lambda: lake.snapshot(99))
    assert_clean_error(lambda: lake.create_table("a", numbers(1)))
    assert_clean_error(late.tables)
    said += [repr(one) for one in (lake, lake.snapshot(), lake.table("a"), lake.history(), tx.result, lake.outcome(tx.id), lake.url)]
    said += [
        repr(vars(lake)),
        repr(lake.catalog.records),
        repr(lake.tags.list()),
        repr(lake.table("a")._access),
        repr(vars(lake.snapshot())),
    ]
    return "\n".join(said)


def assert_clean_files(root: Path) -> None:
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) > 6
    for path in files:
        data = path.read_bytes()
        assert not [one for one in SECRETS if one.encode() in data], path


def assert_clean_log(caplog: pytest.LogCaptureFixture) -> None:
    assert caplog.records
    for record in caplog.records:
        assert_clean(str(vars(record)) + record.getMessage(), "the log")


def test_the_password_of_a_catalog(
    postgres_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with fresh_database(postgres_url) as url:
        given = with_parameters(url, password=SECRETS[0])
        assert SECRETS[0] in given
        with (
            Lake.open(given, root=tmp_path, durability="os", storage_options=OPTIONS) as lake,
            Lake.open(given, durability="os", storage_options=OPTIONS) as again,
        ):
            assert_clean(use(lake, again), "a repr")
        with psycopg.connect(url) as connection:
            rows = connection.execute("SELECT key, body FROM tiltyard_records").fetchall()
        assert len(rows) > 10
        assert_clean(repr(rows), "the catalog")
    assert_clean_files(tmp_path)
    assert_clean_log(caplog)
    assert_clean("".join(capfd.readouterr()), "the terminal")


@pytest.mark.parametrize("catalog", ["sqlite", "manifest"])
def test_the_options_of_a_store(catalog: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    with (
        Lake.open(tmp_path, catalog=catalog, durability="os", storage_options=OPTIONS) as lake,
        Lake.open(tmp_path, catalog=catalog, durability="os", storage_options=OPTIONS) as again,
    ):
        assert_clean(use(lake, again), "a repr")
        if catalog == "sqlite":
            with sqlite3.connect(tmp_path / "catalog.db") as connection:
                assert_clean(repr(connection.execute("SELECT * FROM tiltyard_records").fetchall()), "the catalog")
    assert_clean_files(tmp_path)
    assert_clean_log(caplog)
    assert_clean("".join(capfd.readouterr()), "the terminal")


@pytest.mark.parametrize(
    "open_it",
    [
        lambda root: Lake.open(NOBODY, root=root),
        lambda root: Lake.open(NOBODY.replace("127.0.0.1", "[::broken"), root=root),
        lambda root: Lake.open(f"nosuch://ann:{SECRETS[0]}@host/lake"),
        lambda root: Lake.open(f"nosuch://ann:{SECRETS[0]}@host/lake", catalog="sqlite"),
        lambda root: Lake.open(NOBODY, root=root, catalog="manifest"),
        lambda root: Lake.open("s3://bucket/lake", catalog="sqlite", storage_options=OPTIONS),
        lambda root: Lake.open(
            "s3://bucket/lake",
            storage_options={**OPTIONS, "aws_endpoint": "http://127.0.0.1:9", "allow_http": "true", "client_max_retries": "0",
                             "client_retry_timeout": "1", "connect_timeout": "1s", "timeout": "2s", "aws_region": "us-east-1"},
        ),
        lambda root: Lake.open(f"s3://ann:{SECRETS[0]}@bucket/lake"),
    ],
)  # fmt: skip
def test_a_lake_that_cannot_be_opened(open_it: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert_clean_error(lambda: open_it(tmp_path))
    for record in caplog.records:
        assert_clean(str(vars(record)) + record.getMessage(), "the log")


@pytest.mark.parametrize("root", [f"s3://ann:{SECRETS[0]}@bucket/tables", f"https://host/tables?sig={SECRETS[0]}"])
def test_a_root_with_credentials_is_refused(tmp_path: Path, root: str) -> None:
    """The catalog remembers the root, and everybody who may read the catalog can read that."""
    assert_clean_error(lambda: Lake.open(f"sqlite:///{tmp_path}/catalog.db", root=root))
    assert_clean_error(lambda: Lake.open(tmp_path, root=root))
    two_tables(Lake.open(f"sqlite:///{tmp_path}/catalog.db", root=tmp_path / "tables", durability="os")).close()
    assert_clean_files(tmp_path)


def test_a_place_with_credentials_is_not_registered(sqlite_lake: Lake) -> None:
    for uri in (f"s3://ann:{SECRETS[0]}@bucket/t", f"abfss://ann:{SECRETS[0]}@account.dfs.core.windows.net/t"):
        assert_clean_error(lambda uri=uri: sqlite_lake.register_table("r", uri))  # type: ignore[misc]
    assert sqlite_lake.tables() == ["a", "b"]

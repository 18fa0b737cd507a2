"""Credentials go to the store and nowhere else: planted ones are looked for in all that is written, said or shown."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.errors import TiltyardError
from tiltyard.locks import LockHandler, PostgresLock

ROWS: Final = pa.table({"id": [1, 2, 3]})
SECRETS: Final = ("PLANTEDKEYID", "pl4nted/secret+key==", "planted-session-token", "planted.sas.token", "planted-password", "planted-user")
OPTIONS: Final = {
    "aws_access_key_id": SECRETS[0],
    "aws_secret_access_key": SECRETS[1],
    "aws_session_token": SECRETS[2],
    "aws_region": "us-east-1",
    "allow_http": "true",
    "client_max_retries": "0",
    "client_retry_timeout": "1",
    "connect_timeout": "1s",
    "timeout": "2s",
}
DEAD_END: Final = "http://127.0.0.1:9"
"""Nobody listens there."""
POSTGRES: Final = "postgresql://planted-user:planted-password@127.0.0.1:9/lake?connect_timeout=1"


def assert_clean(text: str, where: str) -> None:
    for secret in SECRETS:
        assert secret not in text, f"{where} shows {secret}"


def assert_clean_error(act: Callable[[], Any]) -> TiltyardError:
    """The error itself, its attributes and the whole chain that a log would print."""
    with pytest.raises(TiltyardError) as caught:
        act()
    error = caught.value
    assert_clean(str(error) + repr(error) + json.dumps(error.to_dict(), default=str), "the error")
    assert_clean("".join(traceback.format_exception(error)), "its traceback")
    return error


def assert_clean_directory(root: Path) -> int:
    files = [path for path in root.rglob("*") if path.is_file()]
    for path in files:
        data = path.read_bytes()
        for secret in SECRETS:
            assert secret.encode() not in data, f"{path} holds {secret}"
            assert secret not in str(path)
    return len(files)


def test_nothing_of_a_local_table_holds_them(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    root = tmp_path / "table"
    table = ty.Table.create(root, ROWS, storage_options=OPTIONS, options=ty.TableOptions(config={"k": "v"}, message="begin"))
    table.append(ROWS)
    table.overwrite(ROWS)
    stale = ty.Table.open(root, storage_options=OPTIONS, version=1)
    said = [repr(table), repr(table.tags), repr(table.branches), str(vars(table)), repr(table.layout.fragments), repr(table._access)]
    said += [repr(table.history()), repr(table.check()), json.dumps(table.check().to_dict(), default=str), repr(table.append(ROWS))]
    assert_clean("\n".join(said), "a repr")
    assert_clean_error(lambda: stale.append(ROWS))
    assert_clean_error(lambda: stale.to_arrow(filter="no such column = 1"))
    assert_clean_error(lambda: ty.Table.open(root, storage_options=OPTIONS, version=99))
    assert_clean_error(lambda: ty.Table.open(root, version="none", storage_options=OPTIONS))
    assert_clean_error(lambda: table.append(pa.table({"other": [1]})))
    for record in caplog.records:
        assert_clean(str(vars(record)) + record.getMessage(), "the log")
    assert caplog.records
    out, err = capfd.readouterr()
    assert_clean(out + err, "the terminal")
    assert assert_clean_directory(root) > 10


@pytest.mark.parametrize("uri", ["s3://bucket/table", "gs://bucket/table", "az://container/table"])
def test_a_store_that_does_not_answer(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    options = {
        "s3": {**OPTIONS, "aws_endpoint": DEAD_END},
        "gs": {"google_base_url": DEAD_END, "google_skip_signature": "true", "google_service_account_key": json.dumps({"k": SECRETS[1]})},
        "az": {"azure_storage_endpoint": DEAD_END, "azure_storage_account_name": "a", "azure_storage_sas_token": f"sig={SECRETS[3]}"},
    }[uri[:2]] | {key: OPTIONS[key] for key in ("allow_http", "client_max_retries", "client_retry_timeout", "connect_timeout", "timeout")}
    assert_clean_error(lambda: ty.Table.open(uri, storage_options=options))
    assert_clean_error(lambda: ty.Table.create(uri, ROWS, storage_options=options))
    for record in caplog.records:
        assert_clean(str(vars(record)) + record.getMessage(), "the log")


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://{SECRETS[5]}:{SECRETS[4]}@bucket/table",
        f"https://{SECRETS[5]}:{SECRETS[4]}@host/table",
        f"file://{SECRETS[5]}:{SECRETS[4]}@elsewhere/table",
        f"abfss://{SECRETS[5]}:{SECRETS[4]}@account.dfs.core.windows.net/table",
    ],
)
def test_credentials_in_an_address(uri: str) -> None:
    assert_clean_error(lambda: ty.Table.open(uri))
    assert_clean_error(lambda: ty.Table.create(uri, ROWS))


def test_options_that_cannot_be_used() -> None:
    bad = {"aws_secret_access_key": SECRETS[1], "no_such_option": SECRETS[2] + "?", "aws_session_token": SECRETS[2]}
    assert_clean_error(lambda: ty.Table.open("s3://bucket/table", storage_options=bad))


def test_the_password_of_a_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    lock = PostgresLock(POSTGRES, "orders", timeout=1)
    assert_clean(repr(lock) + repr(LockHandler(lock)), "the lock")
    ty.Table.create(tmp_path / "table", ROWS, durability="os")
    table = ty.Table.open(tmp_path / "table", storage=ty.Storage(handler=LockHandler(lock)))
    error = assert_clean_error(lambda: table.append(ROWS, commit=ty.CommitOptions(race_retries=0)))
    assert error.kind == "storage-error"
    for record in caplog.records:
        assert_clean(str(vars(record)) + record.getMessage(), "the log")
    assert_clean_directory(tmp_path)


def test_an_address_that_is_none() -> None:
    assert_clean_error(lambda: PostgresLock(POSTGRES.replace("127.0.0.1", "[::broken"), "orders"))


def test_errors_can_be_carried_between_processes_without_them(tmp_path: Path) -> None:
    error = assert_clean_error(lambda: ty.Table.open(tmp_path / "none", storage_options=OPTIONS))
    assert_clean(pickle.dumps(vars(error)).decode("latin-1"), "the pickled attributes")

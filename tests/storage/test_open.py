from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.servers import S3Server
from tiltyard.errors import InvalidInput, UnsupportedFeature
from tiltyard.storage import CloudStore, LocalStore, MemoryStore, lance_uri, open_store
from tiltyard.storage.handlers import handler_for
from tiltyard.verbs.engine.access import open_access

S3_KEYS = {"aws_access_key_id": "AKIAPLANTED", "aws_secret_access_key": "planted-secret", "region": "us-east-1"}


def test_plain_paths_and_file_uris_name_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there = str(tmp_path / "a b")
    quoted = there.replace(" ", "%20")
    for uri in (there, "a b", "./a b/", tmp_path / "a b", f"file://{quoted}", f"file://localhost{quoted}", f"file:{quoted}"):
        store = open_store(uri, durability="os")
        assert isinstance(store, LocalStore)
        assert store.uri == there
        assert store.durability == "os"
        assert lance_uri(uri) == there


def test_pylance_and_our_store_agree_on_a_file_uri(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/with%20space.lance"
    lance.write_dataset(pa.table({"x": [1]}), uri)
    assert list(open_store(uri).names("_versions/"))
    assert lance.dataset(lance_uri(uri)).count_rows() == 1


def test_a_home_directory_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~/t").uri == str(tmp_path / "t") == lance_uri("~/t")


def test_the_default_is_to_flush(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert isinstance(store, LocalStore)
    assert store.durability == "fsync"


def test_one_memory_uri_is_one_place() -> None:
    first = open_store("memory://one-place")
    first.put("x", b"1")
    assert isinstance(first, MemoryStore)
    assert open_store("memory://one-place/").get("x") == b"1"
    assert list(open_store("memory://another-place").list("")) == []
    assert list(MemoryStore("memory://one-place").list("")) == []
    with pytest.raises(InvalidInput, match="this process alone"):
        lance_uri("memory://one-place")


@pytest.mark.parametrize(
    ("uri", "options", "location"),
    [
        ("s3://bucket/path/t.lance", S3_KEYS, "s3://bucket at its vendor"),
        ("s3+ddb://bucket/t.lance?ddbTableName=x", S3_KEYS, "s3://bucket at its vendor"),
        ("s3://bucket/t", {**S3_KEYS, "AWS_ENDPOINT": "http://127.0.0.1:1", "allow_http": True}, "s3://bucket at http://127.0.0.1:1"),
        ("s3://bucket/t", {**S3_KEYS, "download_retry_count": "3", "timeout": "5s"}, "s3://bucket at its vendor"),
        ("gs://bucket/t", {"google_skip_signature": "true"}, "gs://bucket at its vendor"),
        ("az://container/t", {"account_name": "acc", "account_key": "cGxhbnRlZA=="}, "az://container at acc"),
        (
            "abfss://container@acc.dfs.core.windows.net/t",
            {"azure_storage_account_key": "cGxhbnRlZA=="},
            "abfss://container@acc.dfs.core.windows.net at acc",
        ),
    ],
)
def test_cloud_uris(uri: str, options: dict[str, str], location: str) -> None:
    store = open_store(uri, storage_options=options)
    assert isinstance(store, CloudStore)
    assert store.uri == uri.partition("?")[0]
    assert store.location == location
    assert store.ordered
    assert not store.conditional_put_known
    assert "planted" not in repr(store).lower()
    assert handler_for(store).name == ("refusing" if "+" in uri else "conditional-put")


def test_a_table_whose_commits_are_decided_elsewhere_can_be_read_and_nothing_more(tmp_path: Path) -> None:
    """pylance creates the versions of ``s3+ddb://`` in DynamoDB first: a conditional put would not exclude it."""
    ty.Table.create(tmp_path / "t", pa.table({"x": [1]})).append(pa.table({"x": [2]}))
    store = MemoryStore("s3+ddb://bucket/t")
    local = LocalStore(tmp_path / "t")
    for info in local.list(""):
        store.put(info.path, local.get(info.path))
    before = [info.path for info in store.list("")]
    table = ty.Table._open(open_access(store.uri, store=store))
    assert table.version == 2
    assert [entry.version for entry in table.history()] == [2, 1]
    for write in (table.append, table.overwrite):
        with pytest.raises(UnsupportedFeature, match="decided outside") as caught:
            write(pa.table({"x": [3]}))
        assert caught.value.writing
    nowhere = open_access("s3+ddb://b/new", store=MemoryStore("s3+ddb://b/new"))
    with pytest.raises(UnsupportedFeature, match="decided outside"):
        ty.Table._create(nowhere, pa.table({"x": [1]}))
    assert [info.path for info in store.list("")] == before


def test_a_directory_bucket_is_not_ordered() -> None:
    assert not open_store("s3://fast--use1-az4--x-s3/t", storage_options=S3_KEYS).ordered


@pytest.mark.parametrize(
    "uri",
    ["http://host/x", "ftp://host/x", "s3:///path", "s3://", "s3://key:planted-secret@bucket/x", "s3://key@bucket/x", "file://host/x"],
)
def test_addresses_that_are_none(uri: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(uri)
    assert "planted-secret" not in str(caught.value)


@pytest.mark.parametrize("options", [{"no_such_option": "planted-secret"}, {"client_max_retries": "many"}, {"conditional_put": "maybe"}])
def test_options_that_are_none(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store("s3://bucket/x", storage_options={**S3_KEYS, **options})
    assert caught.value.argument == "storage_options"
    assert "planted" not in str(caught.value).lower()


def test_one_dictionary_of_options_serves_pylance_and_us(seaweedfs_server: S3Server, fresh_s3_uri: str) -> None:
    options = seaweedfs_server.storage_options
    lance.write_dataset(pa.table({"x": [1, 2]}), lance_uri(fresh_s3_uri), storage_options=options)
    store = open_store(fresh_s3_uri, storage_options=options)
    (manifest,) = store.names("_versions/")
    assert store.get_range(f"_versions/{manifest}", -4, 4) == b"LANC"
    store.put("_tiltyard/probe.json", b"{}")
    assert lance.dataset(lance_uri(fresh_s3_uri), storage_options=options).count_rows() == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("request_timeout", "30s"),
        ("request_timeout", "30"),
        ("headers.X-Tenant", "a"),
        ("aws_region", "us-east-1"),
        ("dynamodb_endpoint", "http://127.0.0.1:1"),
        ("lance_aimd_max_rate", "10"),
        ("download_retry_count", "2"),
    ],
)
def test_options_that_pylance_takes_are_taken(option: str, value: str) -> None:
    """Here it is only seen that no store refuses them; the one of S3 below sees what they do."""
    assert isinstance(open_store("s3://bucket/t", storage_options={**S3_KEYS, option: value}), CloudStore)


def test_two_spellings_of_one_option_must_agree() -> None:
    with pytest.raises(InvalidInput, match="region and aws_region"):
        open_store("s3://bucket/t", storage_options={**S3_KEYS, "aws_region": "eu-west-1"})
    with pytest.raises(InvalidInput, match="aws_endpoint and endpoint_url"):
        open_store("s3://bucket/t", storage_options={**S3_KEYS, "aws_endpoint": "http://a", "endpoint_url": "http://b"})


def test_a_misspelt_option_is_named() -> None:
    with pytest.raises(InvalidInput, match="aws_regoin"):
        open_store("s3://bucket/t", storage_options={"aws_regoin": "us-east-1"})


def test_both_writers_take_the_options_on_a_real_store(seaweedfs_server: S3Server, fresh_s3_uri: str) -> None:
    more = {"region": "us-east-1", "request_timeout": "20s", "headers.x-tenant": "a", "dynamodb_endpoint": "http://127.0.0.1:1"}
    options = {**seaweedfs_server.storage_options, **more}
    ty.Table.create(fresh_s3_uri, pa.table({"x": [1]}), storage_options=options)
    lance.write_dataset(pa.table({"x": [2]}), fresh_s3_uri, mode="append", storage_options=options)
    assert ty.Table.open(fresh_s3_uri, storage_options=options).count_rows() == 2

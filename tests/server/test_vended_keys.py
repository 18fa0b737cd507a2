"""Keys that end by themselves: what they allow, how they are renewed, that nobody writes them down. The store is a real one with STS."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.served import served_here
from tests.support.servers import ACCESS_KEY, SECRET_KEY, S3Server, seaweedfs
from tiltyard.server import vending
from tiltyard.server.principals import Grant, Principal
from tiltyard.server.routes import Role
from tiltyard.server.server_options import ServerOptions
from tiltyard.server.sts import Keys, SessionKeys, StsOptions, assume_role, policy_for, signed
from tiltyard.server.tokens import create_token
from tiltyard.server.vending import Vendor
from tiltyard.storage import open_store
from tiltyard.storage.renewed_options import EXPIRES, RenewedOptions

ROLE = "arn:aws:iam::role/clients"
ROWS = pa.table({"id": [1]})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("sts"), role=ROLE) as server:
        open_store("s3://vending/made", storage_options=server.storage_options).put("x", b"")  # makes the bucket
        yield server


@pytest.fixture
def home(store: S3Server, tmp_path: Path) -> Iterator[ty.Lake]:
    root = f"s3://vending/{tmp_path.name}"
    with ty.Lake.open(f"sqlite:///{tmp_path}/catalog.db", root=root, storage_options=store.storage_options) as lake:
        lake.create_table("a", ROWS)
        lake.create_table("b", ROWS)
        yield lake


def test_clients_without_keys_of_their_own(home: ty.Lake, store: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    reader, _ = create_token(home, "rea", [Grant.parse("reader")])
    writer, _ = create_token(home, "wilma", [Grant.parse("writer")])
    options = ServerOptions(port=0, vend_to=Role.READER, sts=StsOptions(ROLE, store.endpoint, 900))
    with served_here(home, options, required=True, audit=tmp_path / "audit.jsonl") as (url, _):
        db = lancedb.connect_namespace("rest", {"uri": url, "header.Authorization": f"Bearer {writer}"})
        db.open_table("a").add([{"id": 2}])
        assert sorted(db.open_table("a").to_arrow()["id"].to_pylist()) == [1, 2]
        with ty.Lake.open(url, storage=ty.Storage(token=writer)) as lake:
            lake.table("a").append(pa.table({"id": [3]}))
            with lake.transaction() as tx:
                tx.table("a").append(pa.table({"id": [4]}))
                tx.table("b").append(pa.table({"id": [2]}))
            told = dict(lake.where.storage.options or {})
        with ty.Lake.open(url, storage=ty.Storage(token=reader)) as lake:
            assert sorted(lake.table("a").to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
    written = (tmp_path / "audit.jsonl").read_text() + caplog.text
    for secret in (told["aws_secret_access_key"], told["aws_session_token"], SECRET_KEY):
        assert secret not in written
    assert {"rea", "wilma"} <= {json.loads(line)["principal"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()}
    assert (ACCESS_KEY not in told.values(), home.check().ok, home.history(1)[0].author) == (True, True, "wilma")


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.READER, {"read", "list"}),
        (Role.WRITER, {"read", "list", "data", "stage", "unstage"}),
        (Role.MAINTAINER, {"read", "list", "data", "stage", "unstage", "delete"}),
    ],
)
def test_keys_of_a_table_allow_what_the_role_does(store: S3Server, tmp_path: Path, role: Role, allowed: set[str]) -> None:
    own, at = store.storage_options, f"s3://vending/{tmp_path.name}/t"
    for place in (at, f"{at}2"):
        open_store(place, storage_options=own).put("data/x", b"x")
        open_store(place, storage_options=own).put("_versions/1.manifest", b"x")
    vendor = Vendor(own, at, Role.READER, StsOptions(ROLE, store.endpoint, 900))
    given = vendor.for_table(Principal("ada", (Grant(role),)), ("t",), at, own)
    assert given is not None
    mine, other = open_store(at, storage_options=given), open_store(f"{at}2", storage_options=given)
    deeds: dict[str, Callable[[], object]] = {
        "read": lambda: mine.get("data/x"),
        "list": lambda: list(mine.list("")),
        "data": lambda: mine.put("data/y", b"y"),
        "stage": lambda: mine.put("_versions/2.manifest-a", b"y"),
        "unstage": lambda: mine.delete("_versions/2.manifest-a"),
        "delete": lambda: mine.delete("data/x"),
        "replace a version": lambda: mine.put("_versions/1.manifest", b"y"),
        "write the lake's own files": lambda: mine.put("_tiltyard/owner.json", b"y"),
        "read another": lambda: other.get("data/x"),
        "list another": lambda: list(other.list("")),
        "write another": lambda: other.put("data/y", b"y"),
    }
    assert {name for name, deed in deeds.items() if _works(deed)} == allowed


def _works(deed: Callable[[], object]) -> bool:
    try:
        deed()
    except ty.StorageError:
        return False
    return True


def test_who_gets_none(store: S3Server, home: ty.Lake) -> None:
    own = store.storage_options
    vendor = Vendor(own, "s3://vending/x", Role.WRITER, StsOptions(ROLE, store.endpoint, 900))
    assert vendor.for_lake(Principal("rea", (Grant(Role.READER),)), "s3://vending/x", own) is None
    with pytest.raises(ty.StorageError, match="refused credentials") as refused:
        assume_role(StsOptions("arn:aws:iam::role/other", store.endpoint), Keys(ACCESS_KEY, SECRET_KEY), "us-east-1", "{}", "ada")
    assert SECRET_KEY not in str(refused.value)
    with pytest.raises(ty.StorageError, match="refused credentials"):
        assume_role(StsOptions(ROLE, store.endpoint), Keys(ACCESS_KEY, "wrong"), "us-east-1", policy_for("s3://b/t", Role.READER), "ada")
    with pytest.raises(ty.StorageError, match="does not answer"):
        assume_role(StsOptions(ROLE, "http://127.0.0.1:1"), Keys("a", "b"), "us-east-1", "{}", "ada")


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        (lambda: Vendor({}, "/a/disk", Role.READER, StsOptions(ROLE)), "vend_role"),
        (lambda: Vendor({}, "gs://bucket", Role.READER, StsOptions(ROLE)), "vend_role"),
        (lambda: Vendor({"region": "eu-west-1"}, "s3://bucket", Role.READER, StsOptions(ROLE)), "vend_role"),
        (lambda: StsOptions("admin"), "vend_role"),
        (lambda: StsOptions(ROLE, seconds=60), "vend_seconds"),
        (lambda: StsOptions(ROLE, "ftp://x"), "vend_endpoint"),
        (lambda: StsOptions(ROLE, "https://me:secret@host"), "vend_endpoint"),
        (lambda: ServerOptions(sts=StsOptions(ROLE)), "vend_role"),
    ],
)
def test_what_cannot_be(wrong: Callable[[], object], argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ty.InvalidInput) as refused:
        wrong()
    assert (refused.value.argument, "secret@" in str(refused.value)) == (argument, False)


def test_what_is_signed() -> None:
    """Whether the signature is right, the real service says."""
    keys = Keys("AKIDEXAMPLE", "secret", "session")
    headers = signed("https://sts.amazonaws.com", b"", keys, "us-east-1", datetime(2026, 1, 2, tzinfo=UTC))
    assert headers["x-amz-security-token"] == "session"
    assert headers["authorization"].startswith(
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260102/us-east-1/sts/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, Signature="
    )


def test_keys_are_kept_for_half_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [1000.0], list[str]()

    def assumed(options: StsOptions, keys: Keys, region: str, policy: str, who: str) -> SessionKeys:
        asked.append(who)
        return SessionKeys(Keys("a", "s", "t"), datetime.fromtimestamp(now[0], UTC) + timedelta(seconds=900))

    monkeypatch.setattr(vending, "assume_role", assumed)
    own = {"aws_access_key_id": "key", "aws_secret_access_key": "hidden", "region": "eu-west-1", "endpoint": "https://me:pw@s3"}
    vendor = Vendor(own, "s3://bucket", Role.READER, StsOptions(ROLE), clock=lambda: now[0])
    ada, bob = (Principal(name, (Grant(Role.WRITER),)) for name in ("ada", "bob"))
    given = vendor.for_table(ada, ("t",), "s3://bucket/t", own)
    assert given is not None
    assert (given["aws_access_key_id"], given["region"], given[EXPIRES]) == ("a", "eu-west-1", "1900000")
    assert not {"key", "hidden"} & set(given.values())
    for seconds, who, place, calls in ((0, ada, "t", 1), (449, ada, "t", 1), (449, bob, "t", 2), (449, ada, "u", 3), (450, ada, "t", 4)):
        now[0] = 1000.0 + seconds
        vendor.for_table(who, (place,), f"s3://bucket/{place}", own)
        assert len(asked) == calls


class Giver:
    """Gives options that are good for a hundred seconds; nothing while it is away."""

    def __init__(self, now: list[float]) -> None:
        self.now, self.calls, self.away = now, 0, False

    def __call__(self) -> Mapping[str, Any]:
        self.calls += 1
        if self.away:
            raise ty.StorageError("away", name="x")
        return {"aws_access_key_id": str(self.calls), EXPIRES: str(int(1000 * (self.now[0] + 100)))}


def test_options_renew_themselves() -> None:
    now = [0.0]
    giver = Giver(now)
    options = RenewedOptions(giver, giver(), clock=lambda: now[0])
    seen = []
    for moment in (0, 74, 76, 149, 152):
        now[0] = float(moment)
        seen.append(options["aws_access_key_id"])
    assert seen == ["1", "1", "2", "2", "3"]
    giver.away, now[0] = True, 240.0
    assert dict(options)["aws_access_key_id"] == "3", "they are still good"
    now[0] = 260.0
    with pytest.raises(ty.StorageError):
        dict(options)
    giver.away = False
    assert (dict(options.items())["aws_access_key_id"], len(options), "Key" in repr(options)) == (str(giver.calls), 2, False)


def test_options_reach_other_processes() -> None:
    options = pickle.loads(pickle.dumps(RenewedOptions(later, later())))
    assert (options["aws_access_key_id"], options.credentials()["token"]) == ("k", "t")
    assert options.credentials()["expires_at"] > datetime.now(UTC)


def later() -> Mapping[str, Any]:
    end = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    return {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_session_token": "t", EXPIRES: str(end)}

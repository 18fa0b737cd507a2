"""Who may do what, and what hostile requests come to: a table of tokens, roles, ids, bodies and connections."""

from __future__ import annotations

import json
import select
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tests.support.proving import pick
from tests.support.served import Answer, Served, ipc, served
from tiltyard.errors import InvalidInput
from tiltyard.lake import Lake
from tiltyard.server.principals import Grant
from tiltyard.server.server_options import ServerOptions
from tiltyard.server.tokens import create_token, list_tokens, revoke_token

ROWS = pa.table({"id": [1]})
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STORAGE_SECRET = "storage-secret-8472"
ISSUER, AUDIENCE = "https://issuer.example", "the-lake"
AUTH = f"""
[jwt]
issuer = "{ISSUER}"
audience = "{AUDIENCE}"
key_file = "public.pem"
"""


@dataclass(slots=True)
class Guarded:
    """A server that asks for tokens, and tokens of every kind."""

    server: Served
    tokens: dict[str, str]
    audit: Path

    def headers(self, who: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[who]}"}

    def status(self, who: str, path: str, body: Any = None) -> int:
        return self.server.post(path, body, headers=self.headers(who)).status


def public_key() -> bytes:
    return KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "public.pem").write_bytes(public_key())
    (folder / "auth.toml").write_text(AUTH, encoding="utf-8")
    grants = {
        "admin": ["admin"],
        "maintainer": ["maintainer"],
        "writer": ["writer"],
        "reader": ["reader"],
        "sales": ["writer:sales"],
        "both": ["reader:sales", "maintainer:stock"],
    }
    with Lake.open(folder / "lake") as lake:
        tokens = {who: create_token(lake, who, map(Grant.parse, roles))[0] for who, roles in grants.items()}
        tokens["gone"], gone = create_token(lake, "gone", [Grant.parse("admin")])
        revoke_token(lake, gone.id)
        tokens["late"] = create_token(lake, "late", [Grant.parse("admin")], timedelta(microseconds=1))[0]
        for name in ("sales.orders", "sales2.orders", "stock.left"):
            lake.create_table(name, ROWS)
    with Lake.open(folder / "other") as other:
        tokens["foreign"] = create_token(other, "foreign", [Grant.parse("admin")])[0]
    audit = folder / "audit.jsonl"
    options = ("--auth", "token", "--auth-config", str(folder / "auth.toml"), "--audit-log", str(audit), "--vend-to", "maintainer")
    with served(folder / "lake", *options, "--storage-option", f"secret_access_key={STORAGE_SECRET}", "--max-body-mb", "1") as server:
        yield Guarded(server, tokens, audit)


# ---- who -------------------------------------------------------------------------------------------------------------------------


def test_a_token_that_is_not_good_is_refused_and_nothing_says_why(guarded: Guarded) -> None:
    good = guarded.tokens["admin"]
    bad = [
        "",
        "x",
        good[:-1],
        good + "x",
        good.replace("tyd_", "tyd_0"),
        good[:21] + "A" * 43,
        "tyd_" + "0" * 16 + "_" + "A" * 43,
        "é" * 10,
    ]
    bad += [guarded.tokens[who] for who in ("gone", "late", "foreign")] + ["A" * 20_000]
    answers = {guarded.server.get("/v1/table", {"x-api-key": token.encode().decode("latin-1")}).status for token in bad}
    assert answers == {401}
    said = {guarded.server.get("/v1/table", {"authorization": f"Bearer {token}"}).json["error"] for token in bad[1:7]}
    assert len(said) == 1
    nothing = guarded.server.get("/v1/table")
    assert (nothing.status, nothing.code, nothing.headers["www-authenticate"]) == (401, 16, "Bearer")


def test_a_token_is_taken_from_headers_first_then_from_the_body(guarded: Guarded) -> None:
    at, token = "/v1/table/sales$orders/describe", guarded.tokens["reader"]
    assert guarded.server.get("/v1/table", {"x-api-key": token}).status == 200
    assert guarded.server.get("/v1/table", {"authorization": f"bearer {token}"}).status == 200
    assert guarded.server.post(at, {"identity": {"auth_token": token}}).status == 200
    assert guarded.server.post(at, {"identity": {"api_key": token}}).status == 200
    assert guarded.server.post(at, {"identity": {"api_key": "x"}}, headers={"x-api-key": token}).status == 200
    assert guarded.server.post(at, {"identity": {"api_key": token}}, headers={"x-api-key": "x"}).status == 401
    assert guarded.server.post(at, {"identity": [token]}).status == 401
    assert guarded.server.get("/metrics").status == 401
    assert guarded.server.get("/healthz").status == 200


def test_a_revoked_token_ends_at_once(guarded: Guarded) -> None:
    with guarded.server.lake() as lake:
        token, info = create_token(lake, "short", [Grant.parse("reader")])
        headers = {"x-api-key": token}
        assert guarded.server.get("/v1/table", headers).status == 200
        revoke_token(lake, info.id)
        for path in ("/v1/table", "/metrics"):
            assert guarded.server.get(path, headers).status == 401, "at once, although it was good a moment ago"
        assert token not in str(list_tokens(lake))


def signed(claims: dict[str, Any], key: Any = KEY, algorithm: str = "RS256", **headers: Any) -> str:
    now = datetime.now(UTC)
    whole = {"iss": ISSUER, "aud": AUDIENCE, "sub": "jane", "exp": now + timedelta(hours=1), "tiltyard_roles": ["reader"], **claims}
    return jwt.encode({name: value for name, value in whole.items() if value is not None}, key, algorithm=algorithm, headers=headers)


def test_a_jwt_is_good_only_as_configured(guarded: Guarded) -> None:
    past = datetime.now(UTC) - timedelta(minutes=5)
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    unsigned = jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "jane", "tiltyard_roles": ["admin"]}, "", algorithm="none")
    wrong = [
        signed({"aud": "another"}),
        signed({"iss": "https://other.example"}),
        signed({"exp": past}),
        signed({"exp": None}),
        signed({"aud": None}),
        signed({"sub": None}),
        signed({"nbf": datetime.now(UTC) + timedelta(hours=1)}),
        signed({}, other),
        signed({}, "a shared secret of thirty-two bytes", "HS256"),
        signed({"tiltyard_roles": "admin"}),
        unsigned,
        signed({})[:-4] + "AAAA",
    ]
    assert {guarded.server.get("/v1/table", {"authorization": f"Bearer {token}"}).status for token in wrong} == {401}
    assert guarded.server.get("/v1/table", {"authorization": f"Bearer {signed({})}"}).status == 200
    nothing = guarded.server.get("/v1/table", {"authorization": f"Bearer {signed({'tiltyard_roles': ['of another service']})}"})
    assert (nothing.status, nothing.code) == (403, 15)
    writer = {"authorization": f"Bearer {signed({'tiltyard_roles': ['writer:sales']})}"}
    assert guarded.server.ask("POST", "/v1/table/sales$jane/create", ipc(ROWS), writer).status == 200
    assert guarded.server.lake().history()[0].author == "jane"


# ---- what ------------------------------------------------------------------------------------------------------------------------


def test_roles_hold_for_names_below_a_prefix(guarded: Guarded) -> None:
    describe, insert = "/v1/table/{}/describe", "/v1/table/{}/delete"
    none = {"predicate": "id = 99"}
    table = [
        ("reader", describe, "sales$orders", None, 200),
        ("reader", insert, "sales$orders", none, 403),
        ("writer", insert, "sales$orders", none, 200),
        ("sales", describe, "sales$orders", None, 200),
        ("sales", insert, "sales$orders", none, 200),
        ("sales", describe, "sales2$orders", None, 403),
        ("sales", describe, "stock$left", None, 403),
        ("sales", insert, "sales2$orders", none, 403),
        ("sales", describe, "nowhere", None, 403),
        ("both", describe, "sales$orders", None, 200),
        ("both", insert, "sales$orders", none, 403),
        ("both", insert, "stock$left", none, 200),
        ("writer", "/v1/table/{}/drop", "sales$orders", {}, 403),
        ("maintainer", "/v1/table/{}/register", "taken", {"location": "/etc"}, 403),
        ("sales", "/v1/namespace/{}/drop", "sales", {}, 403),
        ("sales", "/v1/namespace/{}/create", "stock", {}, 403),
    ]
    for who, path, name, body, status in table:
        assert guarded.status(who, path.format(name), body) == status, (who, path, name)
    moved = {"new_table_name": "orders", "new_namespace_id": ["sales3"]}
    assert guarded.status("both", "/v1/table/stock$left/rename", moved) == 403
    entry = {"id": ["stock", "left"], "version": 9, "manifest_path": "a/_versions/1.manifest-x"}
    assert guarded.status("sales", "/v1/table/version/batch-create", {"entries": [entry]}) == 403
    assert guarded.status("reader", "/v1/table/batch-commit", {"operations": [{"deregister_table": {"id": ["stock", "left"]}}]}) == 403


def test_lists_show_what_the_role_shows(guarded: Guarded) -> None:
    def tables(who: str) -> set[str]:
        return {name for name in guarded.server.get("/v1/table", guarded.headers(who)).json["tables"] if name.endswith(("orders", "left"))}

    assert tables("reader") == {"sales$orders", "sales2$orders", "stock$left"}
    assert tables("sales") == {"sales$orders"}
    assert tables("both") == {"sales$orders", "stock$left"}
    assert guarded.server.get("/v1/namespace/$/list", guarded.headers("both")).json["namespaces"] == ["sales", "stock"]
    assert guarded.server.get("/v1/namespace/sales2/table/list", guarded.headers("sales")).status == 403


def test_storage_options_are_given_to_the_role_that_may_have_them(guarded: Guarded) -> None:
    at = "/v1/table/sales$orders/describe"
    assert "storage_options" not in guarded.server.post(at, {"vend_credentials": True}, headers=guarded.headers("writer")).json
    vended = guarded.server.post(at, None, headers=guarded.headers("maintainer")).json
    assert vended["storage_options"] == {"secret_access_key": STORAGE_SECRET}
    assert guarded.status("both", at) == 200
    assert "storage_options" not in guarded.server.post(at, None, headers=guarded.headers("both")).json


TRICKS = [
    "..", "%2e%2e", "..%2f..%2fetc", "a%2fb", "a%00b", "a%0d%0aset-cookie:x", "a%5cb", "%3Cscript%3E", "a b", "a.b", "é", "%ff", "-",
    "x" * 5000, "$".join("a" * 40), "%7Broot%7D", "'; DROP TABLE", "*", "%25252e", "_tiltyard%2fowner", "__manifest/..",
]  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick[:20])
def test_an_id_is_a_name_and_nothing_else(guarded: Guarded, trick: str) -> None:
    before = guarded.server.lake().tables()
    sent = trick.replace(" ", "%20").encode("ascii", "replace").decode().replace("?", "%C3%A9")
    for route in ("describe", "declare", "drop", "version/list", "exists"):
        answer = guarded.server.post(f"/v1/table/{sent}/{route}", {}, headers=guarded.headers("admin"))
        assert answer.status in (400, 404, 405), (route, answer.body)
        assert "set-cookie" not in {name.lower() for name in answer.headers}
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert guarded.server.post(f"/v1/table/{sent}/create", raw=ipc(ROWS), headers=guarded.headers("admin")).status in (400, 404, 405)
    assert guarded.server.lake().tables() == before


def test_a_version_is_published_only_from_the_directory_of_its_table(guarded: Guarded, tmp_path: Path) -> None:
    lake = guarded.server.lake()
    home = lake.plain_access_of(lake.view().find("sales$orders")).lance_uri  # type: ignore[arg-type]
    version = lake.table("sales.orders").version + 1
    name = f"{2**64 - 1 - version}.manifest"
    outside = tmp_path / f"{name}-evil"
    outside.write_bytes(b"x" * 100)
    paths = [
        str(outside), f"../../{outside}", f"{home}/_versions/../../{name}-x", f"{home}/_versions/{name}", f"{home}/_versions/",
        f"{home}/{name}-x", f"/etc/_versions/{name}-x", "", f"{home}/_versions/{name}-x/../../../../etc/passwd",
    ]  # fmt: skip
    for path in paths:
        body = {"version": version, "manifest_path": path}
        answer = guarded.server.post("/v1/table/sales$orders/version/create", body, headers=guarded.headers("admin"))
        assert answer.status in (400, 406, 409), (path, answer.body)
        assert "root:" not in answer.body.decode()
    assert lake.table("sales.orders").version == version - 1


# ---- how much --------------------------------------------------------------------------------------------------------------------


def raw(port: int, data: bytes) -> bytes:
    """Sends bytes as they are; the beginning of the answer, none where the connection was cut."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            connection.sendall(data)
            return connection.recv(65536)
        except (BrokenPipeError, ConnectionResetError):
            return b""


def test_bodies_that_are_too_large_are_not_read(guarded: Guarded) -> None:
    port, auth = guarded.server.port, f"authorization: Bearer {guarded.tokens['admin']}\r\n".encode()
    head = b"POST /v1/table/sales$orders/insert HTTP/1.1\r\nhost: x\r\n" + auth
    stated = raw(port, head + b"content-length: 999999999999\r\n\r\n")
    assert stated.startswith(b"HTTP/1.1 413")
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        try:
            for _ in range(3):
                connection.sendall(chunk)
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was closed before all of it was sent
    assert guarded.server.lake().table("sales.orders").count_rows() == 1


def test_requests_that_two_readers_could_read_differently_are_refused(guarded: Guarded) -> None:
    port, auth = guarded.server.port, f"authorization: Bearer {guarded.tokens['admin']}\r\n".encode()
    head = b"POST /v1/table/sales$orders/drop HTTP/1.1\r\nhost: x\r\n" + auth
    for lines in (
        b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"content-length: -1\r\n\r\n{}",
        b"content-length: 2x\r\n\r\n{}",
        b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        b"x" * 200_000,
        b"a: b\nc\r\n\r\n",
        b"a\x00b: c\r\n\r\n",
    ):
        answer = raw(port, head + lines)
        assert not answer or answer.split(b" ", 2)[1][:1] == b"4", (lines[:40], answer[:200])
    assert "sales.orders" in guarded.server.lake().tables()


def test_narrow_limits(tmp_path: Path) -> None:
    program = (sys.executable, str(Path(__file__).with_name("narrow_server.py")))
    with served(tmp_path / "lake", program=program) as server:
        for name in "abc":
            assert server.post(f"/v1/table/{name}/create", raw=ipc(ROWS)).status == 200
        assert server.get("/v1/table").json == {"tables": ["a", "b"], "page_token": "b"}
        assert server.get("/v1/table?limit=1000000").json["tables"] == ["a", "b"]
        assert server.post("/v1/table/a/describe", raw=b" " * 70_000 + b"{}").status == 413
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent:
            assert silent.recv(10) == b""  # nothing was sent, and it was closed
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
            slow.sendall(b"GET /healthz HTTP/1.1\r\nhost:")
            assert slow.recv(10) == b""
        held, answer = _refused_beside_unfinished(server)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        for connection in held:
            assert connection.recv(100).startswith(b"HTTP/1.1 408")
            connection.close()
        assert server.get("/v1/table").status == 200


def _refused_beside_unfinished(server: Served) -> tuple[list[socket.socket], Answer]:
    """Two requests whose bodies do not end, which is all that is admitted at once, and what a third one is answered.

    On a slow machine they may be given up before the third one comes; then all three are tried again.
    """
    while True:
        held = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(2)]
        for connection in held:
            connection.sendall(b"POST /v1/table/a/describe HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\n{")
        while not select.select(held, [], [], 0)[0]:
            if (answer := server.get("/v1/table")).status == 503:
                return held, answer
        for connection in held:
            connection.close()


def test_idle_connections_hold_nobody_up(guarded: Guarded) -> None:
    idle = [socket.create_connection(("127.0.0.1", guarded.server.port), timeout=60) for _ in range(pick(200, 1000))]
    try:
        assert guarded.server.get("/v1/table", guarded.headers("reader")).status == 200
    finally:
        for connection in idle:
            connection.close()


# ---- what is written down --------------------------------------------------------------------------------------------------------


def _secret(proof: str) -> str:
    """What nobody may see of a token or a JWT: its random bytes, or its signature."""
    return proof.split("_", 2)[2] if proof.startswith("tyd_") else proof.rpartition(".")[2]


def test_the_audit_log_has_every_request_and_nothing_secret(guarded: Guarded) -> None:
    guarded.status("reader", "/v1/table/sales$orders/drop", {})
    guarded.server.get("/v1/table", {"x-api-key": "wrong-token-0815"})
    guarded.server.rows("/v1/table/sales$audited/create", ROWS)
    done = guarded.server.post("/v1/table/sales$orders/delete", {"predicate": "id = 7"}, headers=guarded.headers("sales"))
    lines = [json.loads(line) for line in guarded.audit.read_text(encoding="utf-8").splitlines()]
    seen = {(line["principal"], line["operation"], line["target"], line["verdict"], line["status"]) for line in lines}
    assert ("reader", "drop_table", "sales.orders", "denied", 403) in seen
    assert ("anonymous", "list_all_tables", "", "denied", 401) in seen
    assert ("sales", "delete_from_table", "sales.orders", "allowed", 200) in seen
    assert done.headers["x-request-id"] in {line["request"] for line in lines}
    figures = guarded.server.get("/metrics", guarded.headers("reader")).body.decode()
    assert 'tiltyard_requests_total{operation="drop_table",status="403"}' in figures
    assert 'tiltyard_denied_total{code="16"}' in figures
    everything = figures + guarded.audit.read_text(encoding="utf-8") + guarded.server.log()
    for secret in (*guarded.tokens.values(), STORAGE_SECRET, "wrong-token-0815"):
        assert _secret(secret) not in everything
    with guarded.server.lake() as lake:
        kept = json.dumps([dict(body) for _, body in lake.catalog.records.scan(["token/"])])
        assert not any(_secret(token) in kept for token in guarded.tokens.values())


# ---- where it listens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "::1", "auth": "off"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "lake.example"}, True),
        ({"host": "0.0.0.0", "insecure": frozenset({"no-tls"})}, False),
        ({"host": "0.0.0.0", "auth": "off", "insecure": frozenset({"no-tls"})}, True),
        ({"host": "0.0.0.0", "auth": "off", "insecure": frozenset({"no-tls", "no-auth"})}, False),
        ({"host": "0.0.0.0", "certificate": Path("a"), "key": Path("b")}, False),
        ({"host": "0.0.0.0", "certificate": Path("a"), "key": Path("b"), "auth": "off"}, True),
        ({"certificate": Path("a")}, True),
        ({"insecure": frozenset({"everything"})}, True),
        ({"auth": "maybe"}, True),
    ],
)
def test_beyond_loopback_only_with_tokens_and_tls(options: dict[str, Any], refused: bool) -> None:
    if refused:
        with pytest.raises(InvalidInput):
            ServerOptions(**options)
        return
    made = ServerOptions(**options)
    assert made.authenticates or made.is_local or "no-auth" in made.insecure


def test_the_command_refuses_what_is_not_safe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tiltyard.cli", "serve", str(tmp_path / "lake"), "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "--insecure no-tls" in done.stderr


def test_tls(tmp_path: Path) -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    alternative = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key()).serial_number(1)
    certificate = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1)).add_extension(alternative, False)
    (tmp_path / "c.pem").write_bytes(certificate.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    (tmp_path / "k.pem").write_bytes(KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    with served(tmp_path / "lake", "--certificate", str(tmp_path / "c.pem"), "--key", str(tmp_path / "k.pem")) as server:
        assert server.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(tmp_path / "c.pem"))
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection,
            trusting.wrap_socket(connection, server_hostname="localhost") as secure,
        ):
            secure.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert secure.recv(20).startswith(b"HTTP/1.1 200")

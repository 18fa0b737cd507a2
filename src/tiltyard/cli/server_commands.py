"""The commands that serve a lake over HTTP, and those about who may ask."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

import tiltyard as ty
from tiltyard.cli.command_session import PROBLEMS, reporting
from tiltyard.cli.lake_commands import LakeSession, lake_command
from tiltyard.cli.messages import CommandMessage, Grid
from tiltyard.cli.option_types import DryRun, Json, duration

serving = typer.Typer()
policies = typer.Typer(
    name="upkeep", help="Maintenance that a server runs for its lake: compaction, indices, cleanup.", no_args_is_help=True
)
tokens = typer.Typer(name="token", help="Who may use a server: tokens, with roles for names of tables.", no_args_is_help=True)

Host = Annotated[str, typer.Option("--host", help="The address to listen on; one that other machines can reach requires a token and TLS.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")]
Auth = Annotated[
    str | None,
    typer.Option("--auth", metavar="token|off", help="Whether a token is needed; by default if other machines can reach the address."),
]
AuthConfig = Annotated[Path | None, typer.Option("--auth-config", metavar="FILE", help="A TOML file: which JWTs are accepted.")]
Certificate = Annotated[Path | None, typer.Option("--certificate", metavar="FILE", help="For TLS: the certificate, as PEM.")]
Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="For TLS: its private key.")]
Insecure = Annotated[
    list[str] | None,
    typer.Option(
        "--insecure", metavar="no-auth|no-tls", help="Allow this, although it is not safe, on an address that other machines can reach."
    ),
]
AuditLog = Annotated[Path | None, typer.Option("--audit-log", metavar="FILE", help="Append a line for each request; the log by default.")]
Vend = Annotated[
    str | None, typer.Option("--vend-to", metavar="ROLE", help="Give storage options to clients of this role; by default to none.")
]
VendRole = Annotated[
    str | None,
    typer.Option("--vend-role", metavar="ARN", help="Give clients temporary keys of this role, for one table each."),
]
VendEndpoint = Annotated[
    str | None, typer.Option("--vend-endpoint", metavar="URL", help="The token service of the store; that of the region by default.")
]
VendFor = Annotated[str, typer.Option("--vend-for", metavar="TIME", help="How long such keys are valid, 15m to 12h.")]
Upkeep = Annotated[
    Path | None,
    typer.Option("--upkeep", metavar="FILE", help="A TOML file: compaction, indices and cleanup that the server runs on its own."),
]
PolicyFile = Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file of policies, as for `tiltyard serve --upkeep`.")]
BodyMegabytes = Annotated[int, typer.Option("--max-body-mb", min=1, help="The largest request with rows.")]

Roles = Annotated[
    list[str], typer.Option("--role", "-r", metavar="ROLE[:NAME]", help="reader, writer, maintainer or admin, of tables below NAME.")
]
Expires = Annotated[
    str | None, typer.Option("--expires", metavar="TIME", help="How long it is valid, such as 12h or 90d; no expiry by default.")
]
TokenName = Annotated[str, typer.Argument(metavar="NAME", help="The owner of the token: the author in the history.")]
TokenId = Annotated[str, typer.Argument(metavar="ID", help="As `tiltyard token list` shows it.")]


@lake_command(serving, branched=False)
def serve(
    session: LakeSession,
    host: Host = "127.0.0.1",
    port: Port = 2333,
    auth: Auth = None,
    auth_config: AuthConfig = None,
    certificate: Certificate = None,
    key: Key = None,
    insecure: Insecure = None,
    audit_log: AuditLog = None,
    vend_to: Vend = None,
    vend_role: VendRole = None,
    vend_endpoint: VendEndpoint = None,
    vend_for: VendFor = "1h",
    upkeep: Upkeep = None,
    max_body_mb: BodyMegabytes = 256,
) -> None:
    """Serve a lake to Lance clients over HTTP (needs the extra `server`). It stops on SIGTERM, after finishing its commits."""
    rooms = _server()
    role = None if vend_to is None else rooms.routes.Grant.parse(vend_to).role
    lasts = duration(vend_for, "vend_for")
    sts = None if vend_role is None or lasts is None else rooms.options.StsOptions(vend_role, vend_endpoint, int(lasts.total_seconds()))
    options = rooms.options.ServerOptions(
        host=host,
        port=port,
        auth=auth,
        auth_config=auth_config,
        certificate=certificate,
        key=key,
        insecure=frozenset(insecure or ()),
        audit_log=audit_log,
        vend_to=role,
        sts=sts,
        upkeep=upkeep,
        limits=rooms.options.ServerLimits(body_bytes=max_body_mb * 1024 * 1024),
    )
    rooms.serving.log_as_json()
    with session.opened(create=True) as lake:
        rooms.serving.serve(lake, options, lambda url: _announce(session, url))


def _announce(session: LakeSession, url: str) -> None:
    """At once, also into a pipe: whoever started the process waits for it."""
    console = f"{url.rstrip('/')}/console/"
    session.told({"url": url, "console": console}, "serving", f"{session.shown_uri} at {url}, for a browser at {console}")
    sys.stdout.flush()


@lake_command(tokens)
def create(session: LakeSession, name: TokenName, role: Roles, expires: Expires = None) -> None:
    """Make a token. It is shown this once; the lake keeps only its hash."""
    rooms = _server()
    with session.opened() as lake:
        grants = [rooms.routes.Grant.parse(text) for text in role]
        token, info = rooms.tokens.create_token(lake, name, grants, duration(expires, "expires"))
    facts = [("token", token), *_facts(info)]
    session.told({"token": token, **_document(info)}, "created", f"a token for {info.name}, shown this once", facts)


@lake_command(tokens, "list")
def list_(session: LakeSession) -> None:
    """All tokens: owner, roles, expiry. The tokens themselves are not shown."""
    with session.opened() as lake:
        found = _server().tokens.list_tokens(lake)
    rows = [(info.id, info.name, ", ".join(map(str, info.grants)), _until(info)) for info in found]
    grid = Grid(("id", "name", "roles", "until"), rows)
    session.told({"tokens": [_document(info) for info in found]}, grid=grid)


@lake_command(tokens)
def revoke(session: LakeSession, id: TokenId) -> None:
    """Revoke a token. Servers refuse it at once."""
    with session.opened() as lake:
        info = _server().tokens.revoke_token(lake, id)
    session.told(_document(info), "revoked", f"the token of {info.name}", _facts(info))


@policies.command()
def check(file: PolicyFile, json: Json = False) -> None:
    """Read a file of policies, and show what a server would run and when. No lake is opened."""
    with reporting(str(file), None, json, None, None) as session:
        found = _server().policies.read_policies(file)
        rows = [(policy.name, str(policy)) for policy in found]
        document = {"file": str(file), "policies": [{"name": name, "does": does} for name, does in rows]}
        session.output.told(CommandMessage(document, grid=Grid(("policy", "does"), rows)))


@lake_command(policies)
def run(session: LakeSession, file: PolicyFile, dry_run: DryRun = False) -> None:
    """Run the policies of a file once, now, whether they are due or not. Others may work meanwhile."""
    rooms = _server()
    found = rooms.policies.read_policies(file)
    with session.opened() as lake:
        steps = [step for policy in found for step in rooms.upkeep.run_policy(lake, policy, dry_run=dry_run)]
    rows = [(step.policy, step.target or "the lake", step.became, step.told) for step in steps]
    told = [{"policy": step.policy, "kind": step.kind, "target": step.target, "became": step.became, "told": step.told} for step in steps]
    session.told({"dry_run": dry_run, "steps": told}, grid=Grid(("policy", "table", "became", "what"), rows))
    if any(step.became == "failed" for step in steps):
        raise typer.Exit(PROBLEMS)


class _Rooms:
    """The parts of the server, which are loaded when a command needs them."""

    def __init__(self) -> None:
        try:
            self.serving: Any = import_module("tiltyard.server.serving")
        except ImportError as error:
            raise ty.InvalidInput(
                f"The server is not installed ({error}).", argument="command", advice="Run `pip install 'tiltyard[server]'`."
            ) from error
        self.options: Any = import_module("tiltyard.server.server_options")
        self.routes: Any = import_module("tiltyard.server.principals")
        self.tokens: Any = import_module("tiltyard.server.tokens")
        self.upkeep: Any = import_module("tiltyard.server.upkeep_runs")
        self.policies: Any = import_module("tiltyard.server.upkeep_policies")


def _server() -> _Rooms:
    return _Rooms()


def _document(info: Any) -> dict[str, Any]:
    return {
        "id": info.id,
        "name": info.name,
        "roles": [str(grant) for grant in info.grants],
        "created": info.created.isoformat(),
        "expires": info.expires.isoformat() if info.expires else None,
        "revoked": info.revoked.isoformat() if info.revoked else None,
    }


def _until(info: Any) -> str:
    if info.revoked:
        return f"revoked {info.revoked:%Y-%m-%d %H:%M}"
    return f"{info.expires:%Y-%m-%d %H:%M}" if info.expires else "no end"


def _facts(info: Any) -> list[tuple[str, str]]:
    return [("id", info.id), ("roles", ", ".join(map(str, info.grants))), ("until", _until(info))]

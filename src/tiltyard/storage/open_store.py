"""From a URI to a store, and to the URI that pylance wants for the same place."""
# ruff: noqa: PTH100, PTH111, SIM905

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from tiltyard.errors import AlreadyExists, InvalidInput
from tiltyard.interfaces import ObjectStore
from tiltyard.redact import redact, secret_values
from tiltyard.storage.cloud import BucketPath, CloudStore
from tiltyard.storage.local import Durability, LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.storage.renewed_options import RenewedOptions

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

StorageOptions = Mapping[str, Any]

_S3 = ("s3", "s3a")
_GOOGLE = ("gs", "gcs")
_AZURE = ("az", "azure", "adl", "abfs", "abfss")

_CLIENT_KEYS = frozenset(
    "allow_http allow_invalid_certificates connect_timeout default_content_type http1_only http2_only http2_keep_alive_interval "
    "http2_keep_alive_timeout http2_keep_alive_while_idle http2_max_frame_size pool_idle_timeout pool_max_idle_per_host proxy_url "
    "proxy_ca_certificate proxy_excludes randomize_addresses read_timeout root_certificate timeout user_agent".split()
)
"""Options about the connection, which obstore takes apart from those about the store."""

_PYLANCE_ONLY = frozenset({"download_retry_count", "expires_at_millis", "refresh_offset_millis", "dynamodb_endpoint", "use_opendal"})
"""Options that steer pylance alone and mean nothing to us; those that begin with ``lance_`` too."""

_HEADERS = "headers."
_REQUEST_TIMEOUT = "request_timeout"
_VENDORS = ("aws_", "google_", "azure_storage_", "azure_")
_ALIASES = {"endpoint_url": "endpoint", "bucket_name": "bucket", "session_token": "token"}

_KEYS = frozenset({"access_key_id", "secret_access_key", "token"})
_CREDENTIALS = "credential_provider"
"""Among the options of a client: what it asks for keys that end by themselves."""

_MAX_RETRIES = "client_max_retries"
_RETRY_TIMEOUT = "client_retry_timeout"

_memory_stores: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_store(
    uri: str | os.PathLike[str], *, storage_options: StorageOptions | None = None, durability: Durability = "fsync"
) -> ObjectStore:
    """The store at ``uri``: a path, ``file://``, ``memory://``, ``s3://``, ``gs://`` or ``az://`` (also ``abfs[s]://``).

    ``storage_options`` are those that pylance takes, so that one dictionary serves both. ``s3+ddb://`` and the like name the same bytes
    as ``s3://``; who may commit there is the handler's matter. ``memory://name`` is one place within this process.

    >>> open_store("memory://scratch")
    MemoryStore('memory://scratch')
    """
    text = os.fspath(uri)
    scheme = _scheme(text)
    if scheme in ("", "file"):
        return LocalStore(local_path(text), durability=durability)
    if scheme == "memory":
        with _memory_lock:
            return _memory_stores.setdefault(text.rstrip("/"), MemoryStore(text.rstrip("/")))
    renewed = storage_options if isinstance(storage_options, RenewedOptions) else None
    return _open_cloud(text, scheme, dict(storage_options or {}), renewed)


def address_of(uri: object, argument: str = "uri") -> str:
    """An address as callers give it, as text.

    Raises:
        InvalidInput: it is no path and no text, is empty, or holds what no path can.
    """
    if not isinstance(uri, str | os.PathLike) or not isinstance(text := os.fspath(uri), str):
        raise InvalidInput(f"An address is a path or text, not {uri!r}.", argument=argument)
    if not text.strip():
        raise InvalidInput("The address is empty.", argument=argument, advice="Name a directory, or s3://, gs:// or az://.")
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidInput(f"{text[:60]!r} has characters that not every reader accepts in an address.", argument=argument)
    return text


def lance_uri(uri: str | os.PathLike[str]) -> str:
    """The URI under which pylance finds the same place. A ``memory://`` store is invisible to pylance: ``InvalidInput``."""
    text = os.fspath(uri)
    scheme = _scheme(text)
    if scheme in ("", "file"):
        return local_path(text)
    if scheme == "memory":
        raise InvalidInput(f"pylance cannot see {text}: it lives in this process alone.", argument="uri", advice="Use a directory.")
    if scheme in _S3:
        return "s3" + text[len(scheme) :]
    if scheme == "gcs":
        return "gs" + text[len(scheme) :]
    return text


def refuse_file(uri: str, what: str = "A table") -> None:
    """Refuses to make a directory where a file is, or below one.

    Raises:
        AlreadyExists, InvalidInput: naming the file.
    """
    if _scheme(uri) not in ("", "file"):
        return
    path = Path(local_path(uri))
    if path.is_file():
        raise AlreadyExists(f"{path} is a file.", name=str(path), advice=f"{what} is a directory; choose another path.")
    if (above := next((parent for parent in path.parents if parent.is_file()), None)) is not None:
        raise InvalidInput(f"{above} is a file, so nothing can be made below it.", argument="uri", advice="Choose another path.")


def local_path(uri: str) -> str:
    """The absolute path of a plain path or a ``file://`` URI."""
    if _scheme(uri) != "file":
        return os.path.abspath(os.path.expanduser(uri))
    rest = uri.split(":", 1)[1]
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise InvalidInput(f"{redact(uri)} names another machine.", argument="uri", advice="Write file:///absolute/path.")
    return os.path.abspath(unquote(parts.path if rest.startswith("//") else rest))


def _scheme(uri: str) -> str:
    """The scheme in lower case, without a commit handler's suffix (``s3+ddb``); empty for a plain path."""
    head, separator, _ = uri.partition("://")
    if separator:
        return head.lower().partition("+")[0]
    return "file" if uri.lower().startswith("file:/") else ""


def _open_cloud(uri: str, scheme: str, options: dict[str, Any], renewed: RenewedOptions | None) -> CloudStore:
    if scheme not in (*_S3, *_GOOGLE, *_AZURE):
        raise InvalidInput(f"No store is known for {scheme}://.", argument="uri", advice="Use a path, memory://, s3://, gs:// or az://.")
    shown = redact(uri.partition("?")[0].rstrip("/"), secret_values(options))
    bucket, _, path = uri.partition("://")[2].partition("?")[0].partition("/")
    container = bucket.partition("@")[0] if scheme in _AZURE else bucket
    if not container or "@" in container or ":" in container:
        advice = "Write scheme://bucket/path, and give keys as storage options."
        raise InvalidInput(f"{shown} is not the address of a store.", argument="uri", advice=advice)
    config, client, retry = _split_options(options)
    if renewed is not None:
        config = {key: value for key, value in config.items() if option_name(key) not in _KEYS} | {_CREDENTIALS: renewed.credentials}
    prefix = path.strip("/") or None
    try:
        store, endpoint = _client(scheme, bucket, prefix, config, client, retry)
    except (BaseError, ValueError) as error:
        reason = redact(" ".join(str(error).partition("Debug source")[0].split()), secret_values(options))
        failure = InvalidInput(f"Cannot use the storage options for {shown}: {reason}", argument="storage_options")
    else:
        place = BucketPath(
            uri=shown,
            location=redact(f"{scheme}://{bucket} at {endpoint or 'its vendor'}", secret_values(options)),
            # directory buckets of S3 Express list in no order
            ordered=not bucket.endswith("--x-s3"),
            offset_exact=not endpoint and not bucket.endswith("--x-s3"),
        )
        return CloudStore(store, place, secrets=secret_values(options))
    raise failure


def _client(
    scheme: str, bucket: str, prefix: str | None, config: dict[str, Any], client: dict[str, Any], retry: dict[str, Any]
) -> tuple[Client, str]:
    common: dict[str, Any] = {"prefix": prefix, "config": config, "client_options": client, "retry_config": retry or None}
    if scheme in _S3:
        s3 = S3Store(bucket, **common, credential_provider=config.pop(_CREDENTIALS, None))
        return s3, str(s3.config.get("aws_endpoint_url_s3") or s3.config.get("endpoint") or "")
    if scheme in _GOOGLE:
        google = GCSStore(bucket, **common)
        return google, str(google.config.get("base_url") or "")
    container, at, host = bucket.partition("@")
    if at:
        config.setdefault("account_name", host.partition(".")[0])
    azure = AzureStore(container, **common)
    return azure, str(azure.config.get("endpoint") or azure.config.get("account_name") or "")


def _split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What goes to the store, to its HTTP client and to its retries."""
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    retry: dict[str, Any] = {}
    for name, value in options.items():
        key = name.lower()
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if key in _CLIENT_KEYS:
            client[key] = text
        elif key == _REQUEST_TIMEOUT:
            client["timeout"] = f"{text}s" if text.isdecimal() else text
        elif key.startswith(_HEADERS):
            client.setdefault("default_headers", {})[name[len(_HEADERS) :]] = text
        elif key == _MAX_RETRIES:
            retry["max_retries"] = _number(name, text)
        elif key == _RETRY_TIMEOUT:
            retry["retry_timeout"] = timedelta(seconds=_number(name, text))
        elif key not in _PYLANCE_ONLY and not key.startswith("lance_"):
            _add_once(config, key, text)
    return config, client, retry


def _add_once(config: dict[str, Any], key: str, text: str) -> None:
    """An option that several spellings name, such as ``region`` and ``aws_region``, counts once; two values for it are refused."""
    other = next((known for known in config if option_name(known) == option_name(key)), None)
    if other is None:
        config[key] = text
    elif config[other] != text:
        what = f"The storage options {other} and {key} are the same option, with different values."
        raise InvalidInput(what, argument="storage_options", advice="Leave one of them out.")


def option_name(key: str) -> str:
    """What an option is called, whichever of its spellings was used."""
    plain = next((key[len(vendor) :] for vendor in _VENDORS if key.startswith(vendor)), key)
    return _ALIASES.get(plain, plain)


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidInput(f"The storage option {name} must be a whole number.", argument="storage_options")
    return int(text)

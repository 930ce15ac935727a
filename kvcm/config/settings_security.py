"""Constraints on the settings that guard the listeners. Pure: files are only named here, and read when the manager starts.

Danger: a manager that starts unguarded must never look like one that is guarded. Half a configuration (a key without its certificate, a client
authority without a certificate of our own, accounts that nobody could use) is a refusal with a sentence, never a warning.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcm.config.settings import Settings

AUTH_ACCOUNTS = "accounts"
CLIENT_AUTH_NONE = "none"
CLIENT_AUTH_REQUIRE = "require"
MIN_RELOAD_MS = 100
_TOKEN_KEY = "kvcm.service.admin_auth_token"
_URI_KEYS = ("kvcm.registry_storage.uri", "kvcm.coordination.uri", "kvcm.distributed_lock.uri", "kvcm.meta.redis_uri")


def check_security(settings: Settings) -> list[str]:
    """Sentences for what the process cannot start with. They name keys and never a value."""
    return [*_bind(settings), *_tls(settings), *_auth(settings)]


def visible_secrets(argument_pairs: Mapping[str, str]) -> list[str]:
    """Warnings about secrets among the arguments of the process, which every user of the machine can list."""
    found = [key for key in (_TOKEN_KEY,) if argument_pairs.get(key)]
    found += [key for key in _URI_KEYS if "@" in argument_pairs.get(key, "") or "auth=" in argument_pairs.get(key, "")]
    advice = {_TOKEN_KEY: "put the token into a file and name it with 'kvcm.service.admin_auth_token_file'"}
    otherwise = "put it into the configuration file"
    return [f"{key!r} is given with --env, where every user of this machine can read it; {advice.get(key, otherwise)}." for key in found]


def is_loopback(bind_host: str) -> bool:
    """Does this setting keep the listeners within the machine? Empty means all interfaces."""
    return bool(bind_host) and _is_address(bind_host) and ipaddress.ip_address(bind_host).is_loopback


def guards_admin(settings: Settings) -> bool:
    """Must callers of the Admin and Debug services prove who they are?"""
    return bool(settings.service_admin_auth_token.strip(", \t") or settings.service_admin_auth_token_file)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _bind(settings: Settings) -> list[str]:
    problems = []
    if settings.service_bind_host and not _is_address(settings.service_bind_host):
        problems.append("'kvcm.service.bind_host' must be an IP address such as 127.0.0.1 or ::, or empty for all interfaces.")
    if settings.service_credentials_reload_ms < MIN_RELOAD_MS:
        problems.append(f"'kvcm.service.credentials_reload_ms' must be at least {MIN_RELOAD_MS}.")
    ports = {
        settings.service_rpc_port,
        settings.service_http_port,
        settings.service_admin_rpc_port,
        settings.service_admin_http_port,
        settings.kv_meta_rpc_port,
    }
    probe = settings.service_probe_port
    if not 0 <= probe <= 65_535 or (probe and probe in ports):
        problems.append("'kvcm.service.probe_port' must be a port from 0 (off) to 65535 and differ from the service ports.")
    return problems


def _tls(settings: Settings) -> list[str]:
    given = {
        "kvcm.tls.cert_file": settings.tls_cert_file,
        "kvcm.tls.key_file": settings.tls_key_file,
        "kvcm.tls.client_ca_file": settings.tls_client_ca_file,
    }
    problems = []
    if bool(settings.tls_cert_file) != bool(settings.tls_key_file):
        problems.append("'kvcm.tls.cert_file' and 'kvcm.tls.key_file' must be given together.")
    if settings.tls_client_ca_file and not settings.tls_cert_file:
        problems.append("'kvcm.tls.client_ca_file' needs 'kvcm.tls.cert_file' and 'kvcm.tls.key_file'.")
    problems += [f"{key!r} must be an absolute path." for key, path in given.items() if path and not path.startswith("/")]
    wish = settings.tls_client_auth
    if wish not in ("", CLIENT_AUTH_NONE, CLIENT_AUTH_REQUIRE):
        # grpcio either demands client certificates or does not look at them; "optional" would mean different things on the two transports.
        problems.append("'kvcm.tls.client_auth' must be 'none' or 'require'; 'optional' does not exist because gRPC cannot do it.")
    if wish == CLIENT_AUTH_REQUIRE and not settings.tls_client_ca_file:
        problems.append("'kvcm.tls.client_auth=require' needs 'kvcm.tls.client_ca_file'.")
    if settings.tls_cert_file and settings.tls_admin_only and settings.service_admin_rpc_port in (0, settings.service_rpc_port):
        problems.append("'kvcm.tls.admin_only' needs an admin RPC port of its own, because both services share 'kvcm.service.rpc_port' otherwise.")
    return problems


def _auth(settings: Settings) -> list[str]:
    problems = []
    if settings.service_admin_auth_token and not settings.service_admin_auth_token.strip(", \t"):
        problems.append(f"{_TOKEN_KEY!r} holds no token.")
    for key, path in (
        ("kvcm.service.admin_auth_token_file", settings.service_admin_auth_token_file),
        ("kvcm.service.meta_auth_token_file", settings.service_meta_auth_token_file),
    ):
        if path and not path.startswith("/"):
            problems.append(f"{key!r} must be an absolute path.")
    if settings.service_auth not in ("", AUTH_ACCOUNTS):
        problems.append(f"'kvcm.service.auth' must be empty or {AUTH_ACCOUNTS!r}.")
    if settings.service_auth == AUTH_ACCOUNTS:
        if not guards_admin(settings):
            problems.append("'kvcm.service.auth=accounts' needs 'kvcm.service.admin_auth_token_file': without a token nobody could add the first account.")
        if not settings.tls_cert_file and not is_loopback(settings.service_bind_host):
            problems.append("'kvcm.service.auth=accounts' needs TLS ('kvcm.tls.cert_file'), because passwords would cross the network in clear.")
    return problems

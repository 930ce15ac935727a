"""What guards the listeners of one manager: which address they bind, which certificate they show, and who may call what (docs/security.md).

`open_security` reads everything once and raises for what cannot be used, so that a manager which was told to be guarded never serves unguarded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from kvcm.common.clock import Clock
from kvcm.config.settings import Settings
from kvcm.config.settings_security import AUTH_ACCOUNTS, CLIENT_AUTH_NONE
from kvcm.metrics import catalogue
from kvcm.metrics.families import Family
from kvcm.service.auth.accounts import AccountCheck, Verify
from kvcm.service.auth.guard import Guard, Tokens
from kvcm.service.auth.tokens import TokenSet, parse_token_file, parse_token_list, weak_tokens
from kvcm.service.credentials import Contents, CredentialFiles
from kvcm.service.tls.keeper import TlsKeeper

ALL_INTERFACES = "0.0.0.0"
_log = logging.getLogger("kvcm.service.security")


@dataclass(frozen=True, slots=True)
class Protection:
    """Of one plane. `guard`: None when anybody may call; `tls`: None for plain text."""

    tls: TlsKeeper | None = None
    http: Guard | None = None
    grpc: Guard | None = None


@dataclass(frozen=True, slots=True)
class Security:
    """`host`: the address to bind. `admin` covers the debug service too."""

    host: str = ALL_INTERFACES
    meta: Protection = Protection()
    admin: Protection = Protection()
    files: CredentialFiles | None = None

    def families(self) -> Iterable[Family]:
        found: list[Family] = []
        if self.admin.tls is not None:
            found += self.admin.tls.families()
        samples = [((plane, refusal.value), float(number)) for plane, guard in self._guards() for refusal, number in guard.refused.items()]
        if samples:
            found.append(catalogue.AUTH_REFUSED.of(samples))
        if self.files is not None and self.files.names:
            failing = frozenset(self.files.failing)
            states = [((name,), float(name in failing)) for name in self.files.names]
            found.append(catalogue.CREDENTIALS_FAILING.of(states))
        return found

    def _guards(self) -> list[tuple[str, Guard]]:
        found = [("meta", self.meta.http), ("admin", self.admin.http)]
        return [(plane, guard) for plane, guard in found if guard is not None]


async def open_security(settings: Settings, clock: Clock, stack: AsyncExitStack, verify: Verify) -> Security:
    """What the settings ask for. It closes with `stack`. Raises SettingsError. `verify`: the passwords of accounts."""
    files = CredentialFiles(settings.service_credentials_reload_ms)
    stack.push_async_callback(files.stop)
    tls = await _open_tls(settings, clock, files)
    admin_tokens = await _admin_tokens(settings, files)
    meta_tokens = await _file_tokens(files, "meta_tokens", settings.service_meta_auth_token_file)
    accounts = AccountCheck(verify, clock) if settings.service_auth == AUTH_ACCOUNTS else None
    files.start()

    admin_guard = Guard(tuple(admin_tokens), accounts) if admin_tokens else None
    meta_guard = Guard((*meta_tokens, *admin_tokens), accounts, meta=True) if meta_tokens else None
    if admin_guard is not None and settings.service_admin_auth_http_only:
        _log.warning("admin_grpc_unguarded: kvcm.service.admin_auth_http_only is true, so the admin service by gRPC asks nobody for a token")
    admin = Protection(tls, admin_guard, None if settings.service_admin_auth_http_only else admin_guard)
    meta = Protection(None if settings.tls_admin_only else tls, meta_guard, meta_guard)
    return Security(settings.service_bind_host or ALL_INTERFACES, meta, admin, files)


async def _open_tls(settings: Settings, clock: Clock, files: CredentialFiles) -> TlsKeeper | None:
    if not settings.tls_cert_file:
        return None
    paths = [settings.tls_cert_file, settings.tls_key_file]
    if settings.tls_client_ca_file and settings.tls_client_auth != CLIENT_AUTH_NONE:
        paths.append(settings.tls_client_ca_file)
    keeper = TlsKeeper(clock)
    await files.add("tls", paths, keeper.take)
    files.each_round(keeper.warn)
    return keeper


async def _admin_tokens(settings: Settings, files: CredentialFiles) -> list[Tokens]:
    found = []
    if settings.service_admin_auth_token:
        listed = parse_token_list(settings.service_admin_auth_token, "'kvcm.service.admin_auth_token'")
        _warn_weak(listed, "kvcm.service.admin_auth_token")
        found.append(Tokens(TokenSet(listed)))
    return found + await _file_tokens(files, "admin_tokens", settings.service_admin_auth_token_file)


async def _file_tokens(files: CredentialFiles, name: str, path: str) -> list[Tokens]:
    if not path:
        return []
    tokens = Tokens(TokenSet())

    def take(contents: Contents) -> None:
        listed = parse_token_file(contents[0], f"The token file {path}")
        _warn_weak(listed, path)
        tokens.current = TokenSet(listed)

    await files.add(name, [path], take)
    return [tokens]


def _warn_weak(tokens: list[bytes], source: str) -> None:
    if weak_tokens(tokens):
        _log.warning("weak_tokens source=%s count=%d: a token should have at least 32 random characters", source, weak_tokens(tokens))

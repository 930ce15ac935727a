"""The URI of an etcd: `etcd://[user:password@]host:port[,host:port...][/prefix][?name=value&...]`.

| parameter | meaning |
|---|---|
| `tls` | `true`: TLS, also without any of the files below; the system's authorities then vouch for etcd |
| `ca`, `cert`, `key` | PEM files: who vouches for etcd; this process's own certificate and its key (both or none). Any of them turns TLS on |
| `server_name` | the name to look for in etcd's certificate instead of the endpoint's |
| `username_file`, `password_file` | user and password, instead of writing them into the URI; read again at each login |
| `timeout_ms` | how long one request may take, 100 to 60000; 5000 unless given |

User and password may be percent-encoded, and must be where they hold one of `:/?#@%`. All files are read again when they change. Parsing is total: a text is
an `EtcdConfig` or an InvalidArgument whose sentence repeats nothing of the text, since it may hold a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from kvcm.common.errors import InvalidArgument

DEFAULT_PREFIX: Final = "kvcm"
DEFAULT_TIMEOUT_MS: Final = 5_000
MAX_ENDPOINTS: Final = 16
_MAX_CHARS: Final = 4096
_PREFIX: Final = re.compile(r"[A-Za-z0-9._\-]+(?:/[A-Za-z0-9._\-]+)*")
_HOST: Final = re.compile(r"[A-Za-z0-9._\-]+|\[[0-9A-Fa-f:.]+\]")
_PARAMETERS: Final = ("tls", "ca", "cert", "key", "server_name", "username_file", "password_file", "timeout_ms")


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """`endpoints`: host:port each. `prefix`: without slashes at its ends; all keys begin with "/" + prefix + "/"."""

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    username_file: str = ""
    password_file: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_MS / 1000

    @property
    def has_login(self) -> bool:
        return bool(self.user or self.username_file)

    def key(self, *parts: str) -> bytes:
        """The key of something of ours. Each part but the last is free of slashes, so that two lists of parts never meet."""
        return "/".join(("", self.prefix, *parts)).encode()


def parse_etcd_uri(text: str) -> EtcdConfig:
    """Raises InvalidArgument."""
    if len(text) > _MAX_CHARS:
        raise InvalidArgument(f"An etcd URI has at most {_MAX_CHARS} characters.")
    scheme, found, rest = text.partition("://")
    if not found or scheme != "etcd":
        raise InvalidArgument("An etcd URI begins with etcd://.")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    if at and not (user and password):
        raise InvalidArgument("What stands before the @ of an etcd URI is user:password, neither of them empty; files may be named by parameters instead.")
    parameters = _read_parameters(query)
    prefix = path.strip("/") or DEFAULT_PREFIX
    if not _PREFIX.fullmatch(prefix):
        raise InvalidArgument("The prefix of an etcd URI may have letters, digits, dots, hyphens, underscores, and slashes between them.")
    config = EtcdConfig(
        endpoints=_read_endpoints(hosts),
        prefix=prefix,
        tls=_read_tls(parameters),
        ca_file=parameters.get("ca", ""),
        cert_file=parameters.get("cert", ""),
        key_file=parameters.get("key", ""),
        server_name=parameters.get("server_name", ""),
        user=unquote(user),
        password=unquote(password),
        username_file=parameters.get("username_file", ""),
        password_file=parameters.get("password_file", ""),
        timeout_s=_read_timeout(parameters),
    )
    if bool(config.cert_file) != bool(config.key_file):
        raise InvalidArgument("An etcd URI names a certificate and its key, or neither: the parameters cert and key belong together.")
    if bool(config.username_file) != bool(config.password_file):
        raise InvalidArgument("An etcd URI names a file for the user and one for the password, or neither: username_file and password_file belong together.")
    if config.user and config.username_file:
        raise InvalidArgument("An etcd URI has user and password in it, or names files with them, not both.")
    return config


def _read_endpoints(hosts: str) -> tuple[str, ...]:
    endpoints = tuple(hosts.split(","))
    if len(endpoints) > MAX_ENDPOINTS:
        raise InvalidArgument(f"An etcd URI names at most {MAX_ENDPOINTS} endpoints.")
    for endpoint in endpoints:
        host, colon, port = endpoint.rpartition(":")
        if not colon or not _HOST.fullmatch(host) or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65_536:
            raise InvalidArgument("Each endpoint of an etcd URI is host:port, separated by commas; an IPv6 address stands in brackets.")
    return endpoints


def _read_parameters(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in query.split("&") if query else ():
        name, _, value = item.partition("=")
        if name not in _PARAMETERS:
            raise InvalidArgument(f"An etcd URI has the parameters {', '.join(_PARAMETERS)}; there is another one in it.")
        if name in found or not value:
            raise InvalidArgument(f"The parameter {name} of an etcd URI is given once, as {name}=value.")
        found[name] = value
    return found


def _read_tls(parameters: dict[str, str]) -> bool:
    files = any(name in parameters for name in ("ca", "cert", "key", "server_name"))
    given = parameters.get("tls")
    if given not in (None, "true", "false"):
        raise InvalidArgument("The parameter tls of an etcd URI is true or false.")
    if given == "false" and files:
        raise InvalidArgument("An etcd URI with tls=false names no certificates.")
    return given == "true" or files


def _read_timeout(parameters: dict[str, str]) -> float:
    text = parameters.get("timeout_ms", str(DEFAULT_TIMEOUT_MS))
    if not (text.isascii() and text.isdigit()) or not 100 <= int(text[:6]) <= 60_000:
        raise InvalidArgument("The parameter timeout_ms of an etcd URI is a number from 100 to 60000.")
    return int(text) / 1000

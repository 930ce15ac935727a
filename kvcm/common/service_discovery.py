"""Where the members of a service are, from one URL (behaviour.md 19): `<scheme>://<body>[?key=value&...]`.

Built here: `static://host:port[,host:port...]`, a fixed list. `vipserver` and `spectrum` need agents that only one company's machines run: their URLs are
read, so that a typing error is told apart, and then refused.

Thread-safe. Members are handed out in turn, so that over a fixed list all are used equally (I-SD-1).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from kvcm.common.errors import InvalidArgument, Unsupported

MAX_ENDPOINTS = 256
_MAX_URL_CHARS = 16_384
# Scheme -> parameters that its URLs may carry; all are whole numbers.
_ELSEWHERE = {"vipserver": ("timeout",), "spectrum": ("cache_time", "retry_time", "timeout", "port")}


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """`ip` is what the list names, a host name too."""

    ip: str
    port: int
    weight: int = 100
    healthy: bool = True

    @property
    def host(self) -> str:
        """`ip:port`, with brackets around an IPv6 address."""
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


class StaticDiscovery:
    """A list that never changes. `refresh` has nothing to do and always succeeds."""

    type = "static"

    def __init__(self, endpoints: tuple[ServiceEndpoint, ...]) -> None:
        if not endpoints:
            raise InvalidArgument("a static:// address must list at least one host:port")
        self._endpoints = endpoints
        self._lock = threading.Lock()
        self._next = 0

    def get_all(self) -> tuple[ServiceEndpoint, ...]:
        return self._endpoints

    def get_one(self) -> ServiceEndpoint:
        """The next member in turn."""
        with self._lock:
            chosen = self._endpoints[self._next]
            self._next = (self._next + 1) % len(self._endpoints)
        return chosen

    def refresh(self) -> bool:
        return True


def open_discovery(url: str) -> StaticDiscovery:
    """The discovery that a URL asks for. Raises InvalidArgument for one that breaks a rule, Unsupported for agents that are not built."""
    if len(url) > _MAX_URL_CHARS:
        raise InvalidArgument(f"a service address has at most {_MAX_URL_CHARS} characters")
    scheme, found, rest = url.partition("://")
    reader = _READERS.get(scheme.lower())
    if not found or reader is None:
        raise InvalidArgument("a service address starts with static://, vipserver:// or spectrum://")
    body, _, query = rest.partition("?")
    return reader(scheme.lower(), body, _parameters(query))


def _static(scheme: str, body: str, parameters: dict[str, str]) -> StaticDiscovery:
    if parameters:
        raise InvalidArgument("a static:// address has no parameters")
    items = [item.strip() for item in body.rstrip("/").split(",") if item.strip()]
    if len(items) > MAX_ENDPOINTS:
        raise InvalidArgument(f"a static:// address lists at most {MAX_ENDPOINTS} members")
    return StaticDiscovery(tuple(_endpoint(item) for item in items))


def _elsewhere(scheme: str, body: str, parameters: dict[str, str]) -> StaticDiscovery:
    if not body or "/" in body or "," in body:
        raise InvalidArgument(f"a {scheme}:// address names exactly one service")
    for key, value in parameters.items():
        if key not in _ELSEWHERE[scheme]:
            raise InvalidArgument(f"a {scheme}:// address has no parameter {key!r}; it may have {', '.join(_ELSEWHERE[scheme])}")
        if not (value.isascii() and value.isdigit()):
            raise InvalidArgument(f"the parameter {key} of a {scheme}:// address must be a whole number")
    raise Unsupported(f"{scheme}:// addresses need an agent that this version does not speak to; use static://host:port[,host:port...] or a DNS name instead")


_READERS: dict[str, Callable[[str, str, dict[str, str]], StaticDiscovery]] = {"static": _static, "vipserver": _elsewhere, "spectrum": _elsewhere}


def _endpoint(text: str) -> ServiceEndpoint:
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or any(char in "/@?#[] \t" for char in host) or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        raise InvalidArgument("every member of a static:// address must be host:port with a port from 1 to 65535 ([host]:port for IPv6)")
    return ServiceEndpoint(host, int(port))


def _parameters(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        key, equals, value = pair.partition("=")
        if not key or not equals or key in found:
            raise InvalidArgument("the parameters of a service address have the form key=value, each key once")
        found[key] = value
    return found

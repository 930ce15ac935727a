"""Where the members of a service are, from one URL (behaviour.md 19): `<scheme>://<body>[?key=value&...]`.

- `static://host:port[,host:port...]`: a fixed list;
- `dns://name[:port][?ttl=SECONDS]`: every address of a name, such as a headless Service;
- `dns+srv://_service._tcp.name[?ttl=SECONDS]`: the targets and ports of its SRV records.

`vipserver` and `spectrum` need agents that only one company's machines run: their URLs are read, so that a typing error is told apart, and then refused.

Thread-safe. Members are handed out in turn, so that over a fixed list all are used equally (I-SD-1).
"""

from __future__ import annotations

import re
import threading
from typing import Final, Protocol

from kvcm.common.dns_discovery import DEFAULT_TTL_S, MAX_TTL_S, MIN_TTL_S, DnsDiscovery, addresses_of, services_of
from kvcm.common.errors import InvalidArgument, Unsupported
from kvcm.common.service_endpoint import MAX_ENDPOINTS, ServiceEndpoint

__all__ = ["MAX_ENDPOINTS", "Discovery", "ServiceEndpoint", "StaticDiscovery", "is_discovery_url", "open_discovery"]

_MAX_URL_CHARS = 16_384
_MAX_NAME_CHARS = 253
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}")
# Scheme -> parameters that its URLs may carry; all are whole numbers.
_ELSEWHERE: Final = {"vipserver": ("timeout",), "spectrum": ("cache_time", "retry_time", "timeout", "port")}


class Discovery(Protocol):
    type: str

    def get_all(self) -> tuple[ServiceEndpoint, ...]:
        """What is known now, without looking anything up; may be empty before the first `refresh`."""
        ...

    def get_one(self) -> ServiceEndpoint:
        """The next member in turn. Raises NotReady while none is known."""
        ...

    def due(self) -> bool:
        """Would `refresh` look anything up?"""
        ...

    def refresh(self, timeout_s: float = ...) -> bool:
        """Look the members up if what is known is old; blocks at most `timeout_s`. False: the last look-up failed, and what was known stays."""
        ...


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

    def due(self) -> bool:
        return False

    def refresh(self, timeout_s: float = 0) -> bool:
        return True


def is_discovery_url(text: str) -> bool:
    return "://" in text and not text.startswith(("http://", "https://"))


def open_discovery(url: str, default_port: int = 0) -> Discovery:
    """The discovery that a URL asks for; nothing is looked up yet. `default_port`: of a dns:// address without one, 0 if it must have one.

    Raises InvalidArgument for a URL that breaks a rule, Unsupported for agents that are not built and packages that are not installed.
    """
    if len(url) > _MAX_URL_CHARS:
        raise InvalidArgument(f"a service address has at most {_MAX_URL_CHARS} characters")
    scheme, found, rest = url.partition("://")
    scheme = scheme.lower()
    body, _, query = rest.partition("?")
    match scheme if found else "":
        case "static":
            return _static(body, _parameters(query))
        case "dns":
            return _dns(body, _parameters(query), default_port)
        case "dns+srv":
            return _srv(body, _parameters(query))
        case "vipserver" | "spectrum":
            raise _elsewhere(scheme, body, _parameters(query))
    raise InvalidArgument("a service address starts with static://, dns://, dns+srv://, vipserver:// or spectrum://")


def _static(body: str, parameters: dict[str, str]) -> StaticDiscovery:
    if parameters:
        raise InvalidArgument("a static:// address has no parameters")
    items = [item.strip() for item in body.rstrip("/").split(",") if item.strip()]
    if len(items) > MAX_ENDPOINTS:
        raise InvalidArgument(f"a static:// address lists at most {MAX_ENDPOINTS} members")
    return StaticDiscovery(tuple(_endpoint(item) for item in items))


def _dns(body: str, parameters: dict[str, str], default_port: int) -> DnsDiscovery:
    name, colon, port = body.rstrip("/").partition(":")
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise InvalidArgument("a dns:// address is dns://name or dns://name:port with a port from 1 to 65535")
    if not colon and not default_port:
        raise InvalidArgument("a dns:// address needs its port here: dns://name:port")
    _check_name("dns", name)
    return DnsDiscovery("dns", f"dns://{body}", addresses_of(name, int(port) if colon else default_port), _ttl("dns", parameters))


def _srv(body: str, parameters: dict[str, str]) -> DnsDiscovery:
    name = body.rstrip("/")
    _check_name("dns+srv", name)
    return DnsDiscovery("dns+srv", f"dns+srv://{name}", services_of(name), _ttl("dns+srv", parameters))


def _check_name(scheme: str, name: str) -> None:
    labels = name.removesuffix(".").split(".")
    if len(name) > _MAX_NAME_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidArgument(f"a {scheme}:// address names exactly one DNS name")


def _ttl(scheme: str, parameters: dict[str, str]) -> int:
    text = parameters.pop("ttl", str(DEFAULT_TTL_S))
    if parameters:
        raise InvalidArgument(f"a {scheme}:// address has no parameter {next(iter(parameters))!r}; it may have ttl")
    if not (text.isascii() and text.isdigit() and MIN_TTL_S <= int(text[:6]) <= MAX_TTL_S):
        raise InvalidArgument(f"the parameter ttl of a {scheme}:// address must be a whole number of seconds from {MIN_TTL_S} to {MAX_TTL_S}")
    return int(text)


def _elsewhere(scheme: str, body: str, parameters: dict[str, str]) -> Unsupported:
    if not body or "/" in body or "," in body:
        raise InvalidArgument(f"a {scheme}:// address names exactly one service")
    for key, value in parameters.items():
        if key not in _ELSEWHERE[scheme]:
            raise InvalidArgument(f"a {scheme}:// address has no parameter {key!r}; it may have {', '.join(_ELSEWHERE[scheme])}")
        if not (value.isascii() and value.isdigit()):
            raise InvalidArgument(f"the parameter {key} of a {scheme}:// address must be a whole number")
    return Unsupported(f"{scheme}:// addresses need an agent that this version does not speak to; use static://host:port[,host:port...] or dns://name instead")


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

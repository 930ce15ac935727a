"""The host name that other nodes and clients reach this one under (wire contract 1.4, advertised_host)."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import string

_FALLBACK = "127.0.0.1"
# An address for documentation (RFC 5737): connecting a UDP socket to it sends nothing, it only makes the kernel choose the default route.
_SOMEWHERE = ("192.0.2.1", 9)
_NODE_SUFFIX_CHARS = 16
_ALPHABET = string.ascii_lowercase + string.digits


def advertised_host(configured: str, bind_host: str = "") -> str:
    """What the settings say; else the address that the listeners bind, if it is one.

    Else the local address of the default route; else the first address of the host name; else the loopback.
    """
    if configured:
        return configured
    if bind_host and not ipaddress.ip_address(bind_host).is_unspecified:
        return bind_host
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(_SOMEWHERE)
            return str(sock.getsockname()[0])
    except OSError:
        pass
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return _FALLBACK


def node_id(configured: str, host: str, admin_http_port: int) -> str:
    """What the settings say; else a new id that no other process has."""
    suffix = "".join(secrets.choice(_ALPHABET) for _ in range(_NODE_SUFFIX_CHARS))
    return configured or f"{host}:{admin_http_port}_{suffix}"

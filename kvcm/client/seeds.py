"""The managers that a client was given: `host:port` texts and discovery URLs, mixed (kvcm/common/service_discovery.py)."""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.client.errors import InvalidClientConfig
from kvcm.common.errors import InvalidArgument
from kvcm.common.service_discovery import Discovery, is_discovery_url, open_discovery

META_RPC_PORT, META_HTTP_PORT, ADMIN_RPC_PORT = 6381, 6382, 6491
"""The ports that the ecosystem knows: of a dns:// address without one."""


class Seeds:
    """In the order given; what a URL stands for takes its place. Thread-safe."""

    def __init__(self, entries: Sequence[str], default_port: int = META_RPC_PORT) -> None:
        """Looks nothing up. Raises InvalidClientConfig, Unsupported."""
        self._entries = tuple(_entry(text, default_port) for text in entries)

    def all(self) -> tuple[str, ...]:
        """`host:port` of everything that is known now; without the members of URLs that were not looked up yet."""
        found: list[str] = []
        for entry in self._entries:
            found += [entry] if isinstance(entry, str) else [member.host for member in entry.get_all()]
        return tuple(dict.fromkeys(found))

    def due(self) -> bool:
        """Would `refresh` look anything up?"""
        return any(not isinstance(entry, str) and entry.due() for entry in self._entries)

    def refresh(self, timeout_s: float) -> None:
        """Look up what is old; blocks, at most `timeout_s` for each URL. What cannot be looked up stays as it was."""
        for entry in self._entries:
            if not isinstance(entry, str):
                entry.refresh(timeout_s)


def check_address(value: object) -> None:
    """Raises InvalidClientConfig unless `value` is a text `host:port`."""
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536 or "/" in host:
        raise InvalidClientConfig("every address must have the form host:port with a port from 1 to 65535")


def _entry(text: object, default_port: int) -> str | Discovery:
    if not isinstance(text, str) or not is_discovery_url(text):
        check_address(text)
        return str(text)
    try:
        return open_discovery(text, default_port)
    except InvalidArgument as error:
        raise InvalidClientConfig(error.message) from None

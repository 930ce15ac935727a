"""One member of a service, as discovery tells it."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ENDPOINTS = 256


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

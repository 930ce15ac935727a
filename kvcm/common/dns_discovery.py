"""Members of a service by DNS: every address of a name, as a headless Service has them (A, AAAA), or SRV records with their ports.

- A look-up runs in a thread of its own, one at a time; whoever waits for it waits no longer than it wants to, and it goes on behind.
- A list younger than `ttl_s` is used as it is. A failed look-up keeps the last good list (I-SD-2) and is tried again after half a second.
- Nothing is looked up while the lock is held (I-SD-3).

SRV needs the package dnspython (`kvcm[dns]`); the standard library has only addresses.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from kvcm.common.errors import KvcmError, NotReady, Unsupported
from kvcm.common.service_endpoint import MAX_ENDPOINTS, ServiceEndpoint

DEFAULT_TTL_S = 5
MIN_TTL_S, MAX_TTL_S = 1, 300
_PAUSE_S = 0.5
_LOOK_UP_S = 5.0
_log = logging.getLogger("kvcm.discovery")

LookUp = Callable[[], tuple[ServiceEndpoint, ...]]
"""Blocking. Raises OSError or KvcmError."""


class DnsDiscovery:
    """`shown`: the URL for messages. Thread-safe. `now` is in seconds and never goes back."""

    def __init__(self, kind: str, shown: str, look_up: LookUp, ttl_s: int = DEFAULT_TTL_S, *, now: Callable[[], float] = time.monotonic) -> None:
        self.type = kind
        self._shown = shown
        self._look_up = look_up
        self._ttl_s = ttl_s
        self._now = now
        self._lock = threading.Lock()
        self._members: tuple[ServiceEndpoint, ...] = ()
        self._next = 0
        self._due_at = float("-inf")
        self._ok = False
        self._running: threading.Event | None = None

    def get_all(self) -> tuple[ServiceEndpoint, ...]:
        """The last good list; empty before the first."""
        return self._members

    def get_one(self) -> ServiceEndpoint:
        """The next member in turn. Raises NotReady before the first good list."""
        with self._lock:
            if not self._members:
                raise NotReady(f"{self._shown} names no member: the name cannot be looked up, or has no addresses")
            chosen = self._members[self._next % len(self._members)]
            self._next += 1
            return chosen

    def due(self) -> bool:
        """Would `refresh` look anything up now?"""
        return self._now() >= self._due_at

    def refresh(self, timeout_s: float = _LOOK_UP_S) -> bool:
        """Look the members up if the list is old, waiting at most `timeout_s`. True: the list is good, even if it is the one from before."""
        with self._lock:
            running = self._running
            if running is None:
                if self._now() < self._due_at:
                    return self._ok
                running = self._running = threading.Event()
                threading.Thread(target=self._run, args=(running,), name="kvcm-dns", daemon=True).start()
        running.wait(timeout_s)
        return self._ok and bool(self._members)

    def _run(self, done: threading.Event) -> None:
        found: tuple[ServiceEndpoint, ...] = ()
        problem = "it has no members"
        try:
            found = tuple(dict.fromkeys(self._look_up()))[:MAX_ENDPOINTS]
        except (OSError, UnicodeError):
            problem = "the name cannot be looked up"
        except KvcmError as error:
            problem = error.message
        except Exception as error:  # the event has to be set, whatever a resolver comes up with
            problem = f"internal error ({type(error).__name__})"
        with self._lock:
            if not found and self._ok:
                _log.warning("discovery_failed url=%s: %s; %d members of before stay in use", self._shown, problem, len(self._members))
            elif found and found != self._members:
                _log.info("discovery_changed url=%s members=%s", self._shown, ",".join(member.host for member in found))
            self._ok = bool(found)
            self._members = found or self._members
            self._due_at = self._now() + (self._ttl_s if found else _PAUSE_S)
            self._running = None
        done.set()


def addresses_of(name: str, port: int) -> LookUp:
    """Every address of a name, with this port. In a fixed order, so that an unchanged service is an unchanged list."""

    def look_up() -> tuple[ServiceEndpoint, ...]:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        return tuple(ServiceEndpoint(str(address[0]), port) for *_, address in sorted(found, key=lambda entry: (entry[0], str(entry[4][0]))))

    return look_up


def services_of(name: str, resolver: Any = None) -> LookUp:
    """The targets of SRV records, best priority first. Raises Unsupported without dnspython. `resolver`: a `dns.resolver.Resolver`, for tests."""
    try:
        import dns.exception
        import dns.resolver
    except ImportError:
        raise Unsupported("dns+srv:// addresses need the package dnspython: install kvcm[dns], or use dns://name:port") from None

    def look_up() -> tuple[ServiceEndpoint, ...]:
        try:
            asked = resolver or dns.resolver.Resolver()
            answer = asked.resolve(name, "SRV", lifetime=_LOOK_UP_S, search=True)
        except dns.exception.DNSException as error:
            raise NotReady(f"the SRV records cannot be looked up ({type(error).__name__})") from None
        records = sorted(answer, key=lambda record: (record.priority, -record.weight, str(record.target), record.port))
        members = [ServiceEndpoint(str(record.target).rstrip("."), int(record.port), int(record.weight)) for record in records]
        # A target of "." says that the service is not offered here (RFC 2782).
        return tuple(member for member in members if member.ip and member.port)

    return look_up

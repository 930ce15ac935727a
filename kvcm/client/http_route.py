"""Which manager the HTTP client talks to, and how it follows the leader (reference: D5, wire contract 8.1).

The entry is what the client was given: one URL, or the members of a list (static://, dns://, dns+srv://) in turn. A refresh always starts at the entry and
asks there who leads; never at the leader of before, which may be dead. Refreshes happen

- every `refresh_s` seconds, in the background, when leader discovery is on;
- soon after a request without an answer, in the background, but not within `min_s` seconds of the refresh before;
- at once when a manager says that it does not lead or a call may be sent again: the caller waits. Bounded by the caller's own number of repeats.

An answer that names an older leadership than one seen before is not believed for ten seconds.

One refresh runs at a time. Whoever waits for one uses its result instead of asking again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvcm.client.errors import InvalidClientConfig
from kvcm.client.http_transport import Origin, TransportFailed, is_host, origin_of
from kvcm.client.seeds import META_HTTP_PORT
from kvcm.common.errors import InvalidArgument, KvcmError
from kvcm.common.service_discovery import Discovery, open_discovery

log = logging.getLogger("kvcm.client.http")

_MAX_ENTRIES_ASKED = 3
_MAX_JOIN_S = 10.0
_LOOK_UP_S = 2.0
# Nodes may tell of an older leadership for about a lease; one that is older for longer is of epochs that began anew.
_OLDER_FOR_S = 10.0


@dataclass(frozen=True, slots=True)
class RefreshRules:
    """Seconds. `follow_leader` False: requests go to the entry, whoever leads."""

    follow_leader: bool
    refresh_s: float
    min_s: float


Ask = Callable[[Origin, str], tuple[int, bytes]]
"""POST /api/getClusterInfo with this trace id; (status, body). Raises TransportFailed, InvalidClientConfig."""


class Entry:
    """Where discovery starts: one URL, or one member of a list after another."""

    def __init__(self, address: str, scheme: str = "http") -> None:
        """`scheme`: how the members of a list are spoken to. Looks nothing up. Raises InvalidClientConfig, Unsupported."""
        self._scheme = scheme
        self._list: Discovery | None = None
        self._fixed: Origin | None = None
        if not isinstance(address, str):
            raise InvalidClientConfig("a manager's address must be a text")
        if address.startswith(("http://", "https://")):
            self._fixed = origin_of(address)
            return
        try:
            self._list = open_discovery(address, META_HTTP_PORT)
        except InvalidArgument as error:
            raise InvalidClientConfig(f"the manager's address is neither an http(s) URL nor one for service discovery: {error.message}") from None

    @property
    def has_choice(self) -> bool:
        return self._list is not None and (self._list.type != "static" or len(self._list.get_all()) > 1)

    def refresh(self) -> None:
        """Look the members up if what is known is old; bounded. What cannot be looked up stays as it was."""
        if self._list is not None:
            self._list.refresh(_LOOK_UP_S)

    def next(self) -> Origin:
        """Raises NotReady while no member is known."""
        if self._fixed is not None:
            return self._fixed
        assert self._list is not None
        member = self._list.get_one()
        return Origin(self._scheme, member.ip, member.port)

    def size(self) -> int:
        return max(1, len(self._list.get_all())) if self._list is not None else 1


class Route:
    """The current target. Thread-safe. `now` is in seconds and never goes back; `ask` has a deadline of its own."""

    def __init__(self, entry: Entry, rules: RefreshRules, ask: Ask, now: Callable[[], float]) -> None:
        """Raises NotReady when the entry's name cannot be looked up."""
        self._entry = entry
        self._rules = rules
        self._ask = ask
        self._now = now
        entry.refresh()
        self._target = entry.next()
        self._epoch, self._epoch_at = 0, float("-inf")
        self._lock = threading.Lock()
        self._finished = 0
        self._last_ok = True
        self._refreshed_at = float("-inf")
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Ask once who leads (a failure only leaves the entry as the target), then keep on asking in the background."""
        if self._rules.follow_leader:
            self.refresh()
        if self._rules.follow_leader or self._entry.has_choice:
            self._thread = threading.Thread(target=self._keep_fresh, name="kvcm-route-refresh", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the background refresh; waits for one that runs, at most its own time-out. Idempotent."""
        self._closed.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_MAX_JOIN_S)

    @property
    def target(self) -> Origin:
        return self._target

    def doubt(self) -> None:
        """A request got no answer: refresh soon, in the background."""
        self._wake.set()

    def refresh(self) -> bool:
        """Ask who leads, or use the answer of a refresh that ends while this one waits. True: a leader is known (the target may be the same)."""
        before = self._finished
        with self._lock:
            if self._finished != before:
                return self._last_ok
            try:
                self._last_ok = self._follow() if self._rules.follow_leader else self._rotate()
            finally:
                self._refreshed_at = self._now()
                self._finished += 1
            return self._last_ok

    def _rotate(self) -> bool:
        self._entry.refresh()
        self._target = self._entry.next()
        return True

    def _follow(self) -> bool:
        self._entry.refresh()
        for number in range(min(self._entry.size(), _MAX_ENTRIES_ASKED)):
            seed = self._entry.next()
            try:
                status, body = self._ask(seed, f"leader_discovery_{self._finished}_{number}")
            except (TransportFailed, KvcmError) as error:
                log.warning("leader_unknown asked=%s: %s", seed.url, error)
                continue
            leader, epoch = _leader(seed, status, body)
            if leader is None:
                log.warning("leader_unknown asked=%s http_status=%d: the answer names no leader", seed.url, status)
                continue
            if epoch < self._epoch and leader != self._target and self._now() - self._epoch_at < _OLDER_FOR_S:
                log.warning("leader_outdated asked=%s leader=%s epoch=%d newest=%d", seed.url, leader.url, epoch, self._epoch)
                continue
            if epoch >= self._epoch or leader != self._target:
                self._epoch, self._epoch_at = epoch, self._now()
            if leader != self._target:
                log.info("leader_found asked=%s leader=%s epoch=%d before=%s", seed.url, leader.url, epoch, self.target.url)
                self._target = leader
            return True
        return False

    def _keep_fresh(self) -> None:
        every = self._rules.refresh_s if self._rules.follow_leader else None
        while True:
            self._wake.wait(every)
            self._wake.clear()
            if self._closed.is_set():
                return
            pause = self._rules.min_s - (self._now() - self._refreshed_at)
            if pause > 0 and self._closed.wait(pause):
                return
            try:
                self.refresh()
            except Exception:  # nobody else would tell, and the thread has to live
                log.exception("route_refresh_failed")


def status_code(document: Any) -> str:
    """`header.status.code` of a decoded reply, empty when it has none."""
    for key in ("header", "status", "code"):
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""


def _leader(seed: Origin, status: int, body: bytes) -> tuple[Origin | None, int]:
    """(the leader that an answer names, the epoch of its leadership or 0)."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None, 0
    if status != 200 or status_code(document) != "OK":
        return None, 0
    endpoint = document.get("leader_endpoint")
    host = endpoint.get("host") if isinstance(endpoint, dict) else None
    port = endpoint.get("meta_http_port") if isinstance(endpoint, dict) else None
    if not isinstance(host, str) or not is_host(host) or not isinstance(port, int) or not 0 < port < 65536:
        return None, 0
    text = document.get("leader_epoch")
    epoch = int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20 else 0
    # All nodes of a cluster are configured alike: a leader found over TLS speaks TLS.
    return Origin(seed.scheme, host, port), epoch

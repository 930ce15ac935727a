"""POST over kept-alive connections: the transport of the HTTP client. Thread-safe; standard library only.

A request has one deadline for everything but looking a host name up (which the standard library cannot stop): a server that sends a byte now and then
cannot stretch it. Idle connections are
bounded in number and age, and one that the server has closed meanwhile is not used again. Redirects are not followed and proxies of the environment are
not used: a manager is a neighbour.

Nothing is ever sent twice. `NotSent` means that the server cannot have seen the request, `NoAnswer` that it may have.
"""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from kvcm.client.errors import InvalidClientConfig

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_REPLY_BYTES = 64 << 20
_MAX_IDLE = 16
# Below the 75 s after which our manager hangs up, and most proxies do.
_MAX_IDLE_S = 30.0
_CHUNK = 1 << 16


class TransportFailed(Exception):
    """`reason` completes a sentence about the server; `timed_out`: the deadline passed."""

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.timed_out = timed_out


class NotSent(TransportFailed):
    pass


class NoAnswer(TransportFailed):
    pass


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of a server, and the path before every request's own."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def origin_of(url: str) -> Origin:
    """Raises InvalidClientConfig for what is not an http(s) URL, or carries a password, a query or a fragment."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = SplitResult("", "", "", "", ""), None
    if parts.scheme not in ("http", "https") or not is_host(parts.hostname) or parts.username or parts.password or parts.query or parts.fragment or port == 0:
        raise InvalidClientConfig("a manager's address must be http://host:port or https://host:port, without a user, query or fragment")
    return Origin(parts.scheme, parts.hostname or "", port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/"))


def is_host(name: object) -> bool:
    """Can it stand between `//` and the port of a URL, and in a Host header?"""
    return isinstance(name, str) and 0 < len(name) < 256 and name.isascii() and not any(char <= " " or char in "/@?#[]\\\x7f" for char in name)


class HttpTransport:
    """`ssl_context` is called for each new https connection, so that rotated certificates are used."""

    def __init__(self, ssl_context: Callable[[], ssl.SSLContext], *, now: Callable[[], float] = time.monotonic) -> None:
        self._ssl_context = ssl_context
        self._now = now
        self._lock = threading.Lock()
        self._idle: deque[_Connection] = deque()
        self._closed = False

    def post(self, origin: Origin, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
        """(status, body). Raises NotSent, NoAnswer, InvalidClientConfig (TLS files)."""
        deadline = self._now() + timeout_s
        connection = self._take(origin) or self._dial(origin, deadline)
        connection.deadline = deadline
        keep = False
        try:
            try:
                connection.wire.request("POST", f"{origin.prefix}{path}", body, dict(headers))
                reply = connection.wire.getresponse()
                content = _whole(reply)
            except TimeoutError:
                raise NoAnswer("did not answer in time", timed_out=True) from None
            except (OSError, http.client.HTTPException):
                raise NoAnswer("broke the connection before it answered") from None
            keep = not reply.will_close
            return reply.status, content
        finally:
            self._put_back(connection, keep)

    def close(self) -> None:
        """Close idle connections; later requests raise NotSent. Those that run end by their deadline. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.wire.close()

    def _take(self, origin: Origin) -> _Connection | None:
        """A connection that can be used again; the youngest first. Those found too old or closed by the server go."""
        now = self._now()
        with self._lock:
            if self._closed:
                raise NotSent("cannot be called: this client is closed")
            gone = [item for item in self._idle if now - item.idle_since > _MAX_IDLE_S]
            chosen = None
            for item in reversed(self._idle):
                if chosen is None and item.origin == origin and item not in gone:
                    if _hung_up(item.wire.sock):
                        gone.append(item)
                    else:
                        chosen = item
            self._idle = deque(item for item in self._idle if item is not chosen and item not in gone)
        for item in gone:
            item.wire.close()
        return chosen

    def _put_back(self, connection: _Connection, keep: bool) -> None:
        dropped: _Connection | None = connection
        if keep:
            connection.idle_since = self._now()
            with self._lock:
                if not self._closed:
                    self._idle.append(connection)
                    dropped = self._idle.popleft() if len(self._idle) > _MAX_IDLE else None
        if dropped is not None:
            dropped.wire.close()

    def _dial(self, origin: Origin, deadline: float) -> _Connection:
        connection = _Connection(origin, deadline, self._now)
        try:
            raw = _connected(origin, connection.remaining)
            try:
                raw.settimeout(connection.remaining())
                wired = self._ssl_context().wrap_socket(raw, server_hostname=origin.host) if origin.scheme == "https" else raw
            except BaseException:
                raw.close()
                raise
        except TimeoutError:
            raise NotSent("cannot be reached in time", timed_out=True) from None
        except ssl.SSLCertVerificationError as error:
            raise NotSent(f"shows a certificate that is not accepted ({error.verify_message})") from None
        except ssl.SSLError:
            raise NotSent("does not agree on TLS with this client") from None
        except (OSError, UnicodeError):
            raise NotSent("cannot be reached") from None
        connection.attach(wired)
        return connection


class _Connection:
    """One connection and the deadline of the request that has it."""

    def __init__(self, origin: Origin, deadline: float, now: Callable[[], float]) -> None:
        self.origin = origin
        self.deadline = deadline
        self.idle_since = 0.0
        self.wire = http.client.HTTPConnection(origin.host, origin.port)
        self.wire.auto_open = 0
        self._now = now

    def remaining(self) -> float:
        """Seconds to the deadline. Raises TimeoutError."""
        left = self.deadline - self._now()
        if left <= 0:
            raise TimeoutError
        return left

    def attach(self, sock: socket.socket) -> None:
        self.wire.sock = _TimedSocket(sock, self)


class _TimedSocket:
    """What http.client uses of a socket, with the time that is left before each step."""

    def __init__(self, sock: socket.socket, owner: _Connection) -> None:
        self.raw = sock
        self._owner = owner

    def sendall(self, data: bytes) -> None:
        # In pieces: the limit of a socket's sendall starts anew with each of its own sends.
        view = memoryview(data)
        while view:
            self.raw.settimeout(self._owner.remaining())
            view = view[self.raw.send(view[:_CHUNK]) :]

    def recv_into(self, buffer: memoryview) -> int:
        self.raw.settimeout(self._owner.remaining())
        return self.raw.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        self.raw.close()


class _Reader(io.RawIOBase):
    """Reads from the connection; closing it leaves the connection open, for the next request."""

    def __init__(self, sock: _TimedSocket) -> None:
        super().__init__()
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        return self._sock.recv_into(memoryview(buffer))


def _whole(reply: http.client.HTTPResponse) -> bytes:
    content = reply.read(MAX_REPLY_BYTES + 1)
    # `read` with a limit does not tell when the server hangs up in the middle.
    if len(content) > MAX_REPLY_BYTES or reply.length:
        raise http.client.HTTPException("too long or cut off")
    return content


def _connected(origin: Origin, remaining: Callable[[], float]) -> socket.socket:
    """A socket connected to the first of the host's addresses that accepts. Raises OSError; TimeoutError when the time is over."""
    problem = OSError("no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(remaining())
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            problem = error
        else:
            return sock
    raise problem


def _hung_up(sock: object) -> bool:
    """Readable while nothing was asked: the server has closed it, or said something that nobody asked for."""
    if not isinstance(sock, _TimedSocket):
        return True
    poll = select.poll()
    poll.register(sock.raw, select.POLLIN)
    return bool(poll.poll(0))

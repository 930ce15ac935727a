"""uvicorn's HTTP/1.1 protocol with the limits that it leaves to a proxy in front.

A connection is closed when a request's head is not complete in time or too long, when the rest of a request does not come, when a reply is not taken,
when more requests are sent ahead than anybody needs, and when it is idle and another one needs its place (`connections.py`).

Danger: without them a client that connects and says nothing, or sends an endless header, or never reads, holds a connection and memory for ever. What a
handler reads of a body has its own limits in `body.py`; the ones here hold for what no handler reads, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kvcm.service.http.connections import Connections, QuietLog

HEAD_DEADLINE_S = 10.0
MAX_HEAD_BYTES = 64 << 10
BODY_DEADLINE_S = 30.0
"""Longer than any handler waits for its body, so that a handler's answer comes first."""
REPLY_DEADLINE_S = 30.0
MAX_SENT_AHEAD = 16
_OFFER = (b"connection", b"upgrade", b"http2-settings")


class _TooManySentAhead(Exception):
    pass


class LimitedProtocol(HttpToolsProtocol):
    """One connection of a listener; all of them share `places` and `log`."""

    def __init__(self, *args: Any, places: Connections, log: QuietLog, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = log  # type: ignore[assignment]  # has what uvicorn calls
        self._places = places
        self._receive_timer: asyncio.TimerHandle | None = None
        self._reply_timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0
        self._plain_head = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        evicted = self._places.evicted
        if not self._places.admit(self):
            self.logger.warning("no room for another connection")
            self.give_up()
            return
        if self._places.evicted != evicted:
            self.logger.warning("all places were taken; the connection idle longest has been closed")
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._places.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.parser is None or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.give_up()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn answers nothing
        """A client that has sent all it will send still wants its reply. TLS cannot be closed by halves."""
        waiting = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if waiting and self.scheme == "http":
            self.cycle.keep_alive = False
            return True
        return False

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            head, self._plain_head = self._plain_head, b""
            if not head:
                self.send_400_response("CONNECT is not served.")
                return
            # The parser takes what follows for another protocol; a new one reads the request without its wish.
            self.parser = httptools.HttpRequestParser(self)
            self._feed(head + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.logger.warning("not HTTP")
            self.send_400_response("Invalid HTTP request received.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:
            self._expect_head()

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_SENT_AHEAD:
            raise _TooManySentAhead
        if self.parser.should_upgrade():
            self._plain_head = self._without_upgrade()
            return
        self._in_head = False
        self._arm(BODY_DEADLINE_S)
        self._places.busy(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._plain_head or self.parser.should_upgrade():
            return
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            # Closing waits until the last reply has been taken.
            self._wait_for_the_reader()
        elif not self.pipeline:
            self._places.idle(self)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        transport = self.transport

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            async def send_if_open(message: Any) -> None:
                # uvicorn hears of a closed connection a moment after the transport, which then refuses to write.
                if transport.is_closing():
                    cycle.disconnected = True
                else:
                    await send(message)

            await app(scope, receive, send_if_open)

        super()._start_asgi_task(cycle, answer)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_the_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_the_reader()

    def give_up(self) -> None:
        """Close the connection now."""
        self._stop_timers()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.close()

    def _without_upgrade(self) -> bytes:
        """The head as if no other protocol had been offered: servers may ignore offers, and some clients make one with every POST."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            return b""
        kept = [(name, value) for name, value in self.headers if name not in _OFFER]
        lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [name + b": " + value for name, value in kept]
        return b"\r\n".join([*lines, b"", b""])

    def _expect_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._arm(HEAD_DEADLINE_S)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._receive_timer = self.loop.call_later(seconds, self.give_up)

    def _disarm(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _wait_for_the_reader(self) -> None:
        if self._reply_timer is None:
            self._reply_timer = self.loop.call_later(REPLY_DEADLINE_S, self.transport.abort)

    def _stop_waiting_for_the_reader(self) -> None:
        if self._reply_timer is not None:
            self._reply_timer.cancel()
            self._reply_timer = None

    def _stop_timers(self) -> None:
        self._disarm()
        self._stop_waiting_for_the_reader()


def protocol_factory(places: Connections, log: QuietLog) -> Callable[..., LimitedProtocol]:
    """What `uvicorn.Config(http=...)` is given for one listener."""

    def make(*args: Any, **kwargs: Any) -> LimitedProtocol:
        return LimitedProtocol(*args, places=places, log=log, **kwargs)

    return make

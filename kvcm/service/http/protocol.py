"""uvicorn's HTTP/1.1 protocol with the limits that it leaves to a proxy in front: time and size of a request's head.

Danger: without them a client that connects and says nothing, or sends an endless header, holds a connection and memory for ever. Bodies have their
own limits in `app.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_DEADLINE_S = 10.0
MAX_HEAD_BYTES = 64 << 10


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection whose request head is not complete in time or is too long."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_complete()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is None:
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._give_up()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_complete()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_DEADLINE_S, self._give_up)

    def _head_complete(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_complete()
        if not self.transport.is_closing():
            self.transport.close()

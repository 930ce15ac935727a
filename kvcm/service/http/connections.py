"""How many connections one HTTP listener holds, and which one goes when there is one too many.

Danger: clients that connect and then do nothing. Refusing newcomers would let them shut everybody out, so the connection that has been idle longest
makes room; a newcomer is refused only while every connection is in the middle of a request.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from kvcm.service.open_files import share

MAX_CONNECTIONS = 2048
_SHARE_OF_FILES = 8
_LOG_EVERY_S = 10.0
_log = logging.getLogger("kvcm.service.http")


class Closable(Protocol):
    def give_up(self) -> None:
        """Close the connection now."""
        ...


def connection_limit() -> int:
    """For one of up to three HTTP listeners; two gRPC listeners take a quarter each."""
    return share(_SHARE_OF_FILES, MAX_CONNECTIONS)


class Connections:
    """Idle: no complete request head has come since the last reply."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: OrderedDict[Closable, None] = OrderedDict()
        self._count = 0
        self.evicted = 0

    def admit(self, newcomer: Closable) -> bool:
        """Count it, idle. False: there is no room, close it (and say `left` as for any other)."""
        self._count += 1
        if self._count > self._limit:
            if not self._idle:
                return False
            oldest, _ = self._idle.popitem(last=False)
            self.evicted += 1
            oldest.give_up()
        self._idle[newcomer] = None
        return True

    def busy(self, connection: Closable) -> None:
        self._idle.pop(connection, None)

    def idle(self, connection: Closable) -> None:
        self._idle[connection] = None

    def left(self, connection: Closable) -> None:
        self._count -= 1
        self._idle.pop(connection, None)


class QuietLog:
    """The logger of uvicorn's protocol. What strangers can cause by the thousand gets one line in ten seconds, saying how often."""

    level = logging.WARNING

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._next_s = 0.0
        self._unsaid = 0

    def warning(self, text: str, *arguments: object) -> None:
        self._unsaid += 1
        now = self._now_s()
        if now >= self._next_s:
            _log.warning("http_refused times=%d last=%s", self._unsaid, text % arguments if arguments else text)
            self._unsaid, self._next_s = 0, now + _LOG_EVERY_S

    def error(self, text: str, *arguments: object, exc_info: BaseException | None = None) -> None:
        """A bug of ours, not a stranger's doing."""
        _log.error(text.strip(), *arguments, exc_info=exc_info)

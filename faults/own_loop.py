"""An event loop in a thread of its own, for what stands between managers and a store: a busy test does not slow the managers down."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
LIMIT_S = 20.0


class OwnLoop(ABC):
    """`with` opens and closes it. Methods of its heirs may be called from any thread; they hand their work to `_run`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises TimeoutError when it takes too long."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * LIMIT_S)

    @abstractmethod
    async def _open(self) -> None: ...

    @abstractmethod
    async def _close(self) -> None: ...

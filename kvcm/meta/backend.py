"""The port to durable block metadata, behind the memory (design D7).

Reads of requests never come here. A mutation calls `apply` with the new content of whole blocks and publishes only what the store accepted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from typing import Any, Protocol

from kvcm.common.errors import StorageError
from kvcm.meta.location import Block


class Eager:
    """Marks a backend whose `apply` uses nothing that binds itself to the current task (asyncio.timeout, asyncio.wait_for) before it has suspended: its
    first step may run in the caller's task (see kvcm.common.uncut), which saves a task where it does not suspend at all."""


Rest = Coroutine[Any, Any, Mapping[int, StorageError]]
"""What is left of a change: it ends as `apply` does."""


class Direct(Eager):
    """Marks a backend that can tell of the end of a usual change by a call from the loop, so that no task has to wait for it."""

    @abstractmethod
    def submit(self, changes: Mapping[int, Block], fence: int, stored: Callable[[], None], otherwise: Callable[[Rest], None]) -> bool:
        """`apply` for changes that can be sent at once; False: nothing was sent, use `apply`. True: later `stored` is called when all of them are stored, or
        `otherwise` with what is left to do, which the caller must run to its end. Exactly one of both, once; neither may raise."""


class MetadataBackend(Protocol):
    async def open(self) -> None:
        """Raises StorageError when the store cannot be used."""
        ...

    async def close(self) -> None: ...

    async def raise_fence(self, fence: int) -> None:
        """A new leader, before `load`: from the return of this on, no change under a smaller fence is stored (design D6), so `load` sees all that ever were.

        Raises FencedOut (a newer leader has raised it higher) or StorageError.
        """
        ...

    def load(self) -> AsyncIterator[list[tuple[int, Block]]]:
        """Every stored block once, in pages, for recovery. An unreadable record is reported by the implementation and left out, never fatal."""
        ...

    async def apply(self, changes: Mapping[int, Block], fence: int) -> Mapping[int, StorageError]:
        """Store whole blocks (empty = remove). Returns the keys that failed, with why; those are unchanged in the store.

        Raises StorageError when nothing was stored (fenced off, not reachable) and OutcomeUnknown when nobody can tell: then `read` decides. So a
        change with an unknown outcome must not land after a later `read` or `apply` of the same keys has answered. Ends by a deadline of its own;
        the index never cancels it.
        """
        ...

    async def read(self, keys: Collection[int]) -> Mapping[int, Block]:
        """What the store holds for these keys now; absent keys are left out. Raises StorageError."""
        ...

    async def sync(self, keys: Collection[int]) -> None:
        """Returns when every accepted change of these keys is durable; raises StorageError otherwise. Physical deletion waits for it."""
        ...

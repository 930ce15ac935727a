"""Coordination through a folder (`file://<folder>`): several managers of one machine, without any other service.

Every call runs in a thread of its own pool, so that a hung file server neither stops the loop nor other I/O. What is and is not promised over NFS:
`kvcm.common.file_turn` and docs/high-availability.md. It does not exclude upstream's manager, whose files in such a folder are others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from kvcm.common.clock import Clock
from kvcm.common.errors import InvalidArgument, StorageError
from kvcm.coordination.file_lease import LOCK_WAIT_S, LeaseFolder, this_clock
from kvcm.coordination.port import Leader, NodeInfo, check_campaign, check_node, check_shared, check_text
from kvcm.data_storage.pool import BlockingPool, PoolTimeout

P = ParamSpec("P")
T = TypeVar("T")
_DEADLINE_S = LOCK_WAIT_S + 2.0


class FileCoordinator:
    """`clock_id` names the clock that `clock.monotonic_us` is on; processes that give the same one trust each other's times."""

    def __init__(self, folder: Path, clock: Clock, epoch_floor: int = 0, clock_id: str | None = None) -> None:
        self._path = folder
        self._folder = LeaseFolder(folder, clock, epoch_floor, this_clock() if clock_id is None else clock_id)
        self._pool = BlockingPool(threads=1, queue=64, name="kvcm-coordination")
        self._made = False

    async def campaign(self, node_id: str, lease_ms: int) -> int | None:
        check_campaign(node_id, lease_ms)
        return await self._run(self._folder.campaign, node_id, lease_ms * 1000)

    async def keep_alive(self, node_id: str, epoch: int, lease_ms: int) -> bool:
        check_campaign(node_id, lease_ms)
        return await self._run(self._folder.keep_alive, node_id, epoch, lease_ms * 1000)

    async def resign(self, node_id: str, epoch: int) -> None:
        await self._run(self._folder.resign, node_id, epoch)

    async def observe(self) -> Leader | None:
        return await self._run(self._folder.observe)

    async def put_node_info(self, node_id: str, info: str) -> None:
        check_node(node_id)
        check_text(info)
        await self._run(self._folder.put_node, node_id, info)

    async def get_node_info(self, node_id: str) -> str | None:
        return await self._run(self._folder.get_node, node_id)

    async def list_nodes(self) -> tuple[NodeInfo, ...]:
        return await self._run(self._folder.list_nodes)

    async def remove_node_info(self, node_id: str) -> None:
        await self._run(self._folder.remove_node, node_id)

    async def put_shared(self, node_id: str, epoch: int, name: str, text: str) -> bool:
        check_shared(name, text)
        return await self._run(self._folder.put_shared, node_id, epoch, name, text)

    async def get_shared(self, name: str) -> str | None:
        check_shared(name)
        return await self._run(self._folder.get_shared, name)

    async def close(self) -> None:
        self._pool.close()

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._pool.run(self._work, lambda: work(*args, **kwargs), deadline_s=_DEADLINE_S)
        except PoolTimeout as error:
            raise StorageError("The coordination folder did not answer in time.") from error

    def _work(self, work: Callable[[], T]) -> T:
        if not self._made:
            try:
                self._path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"The coordination folder cannot be made: {error.strerror or type(error).__name__}.") from error
            self._made = True
        return work()


def open_file(uri: str, clock: Clock, epoch_floor: int) -> FileCoordinator:
    """`file:///<folder>`. Raises InvalidArgument, also for a folder below the working directory: managers with different ones would each lead alone."""
    path = uri.removeprefix("file://")
    if not path.strip() or "\0" in path or "?" in path:
        raise InvalidArgument("A coordination URI of files is file:///<folder>, without parameters.")
    if not path.startswith("/"):
        raise InvalidArgument("The folder of a coordination URI begins with a slash, as in file:///run/kvcm: all managers must find the same one.")
    return FileCoordinator(Path(path), clock, epoch_floor)

"""A coordinator with the fail points `coordinator.*` around it (see `kvcm.common.failpoints`); tests only."""

from __future__ import annotations

from kvcm.common.failpoints import FailPoints
from kvcm.coordination.port import Coordinator, Leader, NodeInfo


class FailingCoordinator:
    def __init__(self, inner: Coordinator, points: FailPoints) -> None:
        self._inner = inner
        self._points = points

    async def campaign(self, node_id: str, lease_ms: int) -> int | None:
        await self._points.at("coordinator.campaign.before")
        epoch = await self._inner.campaign(node_id, lease_ms)
        if epoch is not None:
            await self._points.at("coordinator.campaign.after")
        return epoch

    async def keep_alive(self, node_id: str, epoch: int, lease_ms: int) -> bool:
        await self._points.at("coordinator.keep_alive.before")
        accepted = await self._inner.keep_alive(node_id, epoch, lease_ms)
        await self._points.at("coordinator.keep_alive.after")
        return accepted

    async def resign(self, node_id: str, epoch: int) -> None:
        await self._points.at("coordinator.resign.before")
        await self._inner.resign(node_id, epoch)
        await self._points.at("coordinator.resign.after")

    async def observe(self) -> Leader | None:
        return await self._inner.observe()

    async def put_node_info(self, node_id: str, info: str) -> None:
        await self._inner.put_node_info(node_id, info)

    async def get_node_info(self, node_id: str) -> str | None:
        return await self._inner.get_node_info(node_id)

    async def list_nodes(self) -> tuple[NodeInfo, ...]:
        return await self._inner.list_nodes()

    async def remove_node_info(self, node_id: str) -> None:
        await self._inner.remove_node_info(node_id)

    async def put_shared(self, node_id: str, epoch: int, name: str, text: str) -> bool:
        return await self._inner.put_shared(node_id, epoch, name, text)

    async def get_shared(self, name: str) -> str | None:
        return await self._inner.get_shared(name)

    async def close(self) -> None:
        await self._inner.close()

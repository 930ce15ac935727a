"""A registry over doubles, and a story told on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kvcm.common.clock import FakeClock
from kvcm.config.model import Instance, LocationSpecInfo, ModelDeployment
from kvcm.config.registry import Registry
from kvcm.config.registry_core import RegistryEvent
from kvcm.config.store_memory import MemoryStore
from kvcm.config.testing import FakeStorages, FaultyStore


class World:
    def __init__(self, enforce_references: bool = True) -> None:
        self.store = FaultyStore(MemoryStore())
        self.storages = FakeStorages()
        self.registry = Registry(self.store, self.storages, FakeClock(), enforce_references)
        self.events: list[RegistryEvent] = []
        self.registry.on_change(self.events.append)


def scenario(work: Callable[[World], Awaitable[None]], enforce_references: bool = True) -> World:
    world = World(enforce_references)

    async def run() -> None:
        await world.registry.recover(1)
        await work(world)

    asyncio.run(run())
    return world


def instance(instance_id: str = "one", group: str = "default", block_size: int = 16, user_data: str = "") -> Instance:
    return Instance(
        instance_id=instance_id,
        instance_group_name=group,
        quota_group_name="from the caller",
        block_size=block_size,
        location_spec_infos=(LocationSpecInfo("tp0", 1024),),
        model_deployment=ModelDeployment("model", "fp8", user_data=user_data),
    )

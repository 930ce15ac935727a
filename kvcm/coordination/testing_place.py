"""A store for coordination as several processes see it, for tests (kvcm.coordination.testing_contract)."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from enum import Enum
from typing import Protocol

from kvcm.common.clock import Clock, FakeClock, SystemClock
from kvcm.common.redis.testing import RedisServer
from kvcm.coordination.memory import MemoryCoordinator
from kvcm.coordination.open import open_coordinator
from kvcm.coordination.port import Coordinator


class Ability(Enum):
    RESTART = "the store can be killed and started again"
    PAUSE = "the store can be stopped and continued"
    FLOOR = "epochs go on above a floor"


class SteppedClock(SystemClock):
    """The machine's clocks, with a wall clock that somebody sets wrong."""

    def __init__(self) -> None:
        self._step_us = 0

    def wall_us(self) -> int:
        return super().wall_us() + self._step_us

    def step_wall(self, delta_us: int) -> None:
        self._step_us += delta_us


class Place(Protocol):
    """One store; opened and closed by `run_case`. Whatever `open` gave out is closed by the case or by `stop`."""

    lease_ms: int
    abilities: frozenset[Ability]

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def open(self, epoch_floor: int = 0) -> Coordinator:
        """A new client, as another process would have."""
        ...

    def now_us(self) -> int:
        """Of a monotonic clock."""
        ...

    async def wait_us(self, us: int) -> None:
        """Let time go by."""
        ...

    def step_wall(self, delta_us: int) -> None:
        """Set the wall clock of the nodes."""
        ...

    async def restart(self) -> None:
        """SIGKILL the store and start it again; ability RESTART."""
        ...

    async def pause(self) -> None:
        """SIGSTOP; ability PAUSE."""
        ...

    async def resume(self) -> None: ...


class MemoryPlace:
    """Several nodes of one process, on a clock that moves when told to."""

    lease_ms = 1000
    abilities = frozenset({Ability.FLOOR})

    def __init__(self) -> None:
        self._clock = FakeClock()
        self._only: MemoryCoordinator | None = None

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    def open(self, epoch_floor: int = 0) -> Coordinator:
        if self._only is None:
            self._only = MemoryCoordinator(self._clock, epoch_floor)
        return self._only

    def now_us(self) -> int:
        return self._clock.monotonic_us()

    async def wait_us(self, us: int) -> None:
        self._clock.advance_us(us)
        await asyncio.sleep(0)

    def step_wall(self, delta_us: int) -> None:
        self._clock.step_wall(delta_us)

    async def restart(self) -> None:
        raise NotImplementedError

    pause = resume = restart


class RealTimePlace(ABC):
    """What places on real time have in common. `client` makes one coordinator on the place's clock."""

    lease_ms = 250
    abilities: frozenset[Ability] = frozenset({Ability.FLOOR})

    def __init__(self) -> None:
        self._clock = SteppedClock()
        self._opened: list[Coordinator] = []

    @abstractmethod
    def client(self, clock: Clock, epoch_floor: int) -> Coordinator: ...

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        for coordinator in self._opened:
            await coordinator.close()

    def open(self, epoch_floor: int = 0) -> Coordinator:
        self._opened.append(self.client(self._clock, epoch_floor))
        return self._opened[-1]

    def now_us(self) -> int:
        return self._clock.monotonic_us()

    async def wait_us(self, us: int) -> None:
        await asyncio.sleep(us / 1e6)

    def step_wall(self, delta_us: int) -> None:
        self._clock.step_wall(delta_us)

    async def restart(self) -> None:
        raise NotImplementedError

    async def pause(self) -> None:
        raise NotImplementedError

    async def resume(self) -> None:
        raise NotImplementedError


class FilePlace(RealTimePlace):
    """A folder, which cannot be stopped or started again."""

    abilities = frozenset({Ability.FLOOR})

    def __init__(self) -> None:
        super().__init__()
        self._folder = ""

    async def start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="kvcm-coordination-")

    def client(self, clock: Clock, epoch_floor: int) -> Coordinator:
        return open_coordinator(f"file://{self._folder}/shared", clock, epoch_floor)

    async def stop(self) -> None:
        await super().stop()
        shutil.rmtree(self._folder)


class RedisPlace(RealTimePlace):
    """A cluster of its own in a real Redis, which may be durable or forget everything when it is killed."""

    abilities = frozenset({Ability.FLOOR, Ability.RESTART, Ability.PAUSE})

    def __init__(self, redis: RedisServer) -> None:
        super().__init__()
        self._redis = redis
        self._cluster = secrets.token_hex(4)

    def client(self, clock: Clock, epoch_floor: int) -> Coordinator:
        return open_coordinator(f"{self._redis.uri}?cluster_name={self._cluster}", clock, epoch_floor)

    async def start(self) -> None:
        # A Redis that has only just started, and a cluster that it has not seen yet: nobody is elected before a lease has passed.
        first = self.open()
        while (epoch := await first.campaign("first", self.lease_ms)) is None:  # that is what is waited for
            await self.wait_us(50_000)
        await first.resign("first", epoch)

    async def restart(self) -> None:
        self._redis.kill()
        self._redis.start()

    async def pause(self) -> None:
        self._redis.pause()

    async def resume(self) -> None:
        self._redis.resume()

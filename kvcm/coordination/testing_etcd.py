"""A real etcd as a place for the coordinators' contract."""

from __future__ import annotations

import asyncio
import itertools

from kvcm.common.clock import Clock
from kvcm.coordination.open import open_coordinator
from kvcm.coordination.port import Coordinator
from kvcm.coordination.testing_place import Ability, RealTimePlace
from kvcm.etcd.testing import EtcdServer

_numbers = itertools.count()


class EtcdPlace(RealTimePlace):
    """Another prefix of a running etcd for each place. etcd counts leases in whole seconds."""

    lease_ms = 1000
    abilities = frozenset({Ability.FLOOR, Ability.RESTART, Ability.PAUSE})

    def __init__(self, server: EtcdServer) -> None:
        super().__init__()
        self._server = server
        self._prefix = f"contract-{next(_numbers)}"

    def client(self, clock: Clock, epoch_floor: int) -> Coordinator:
        return open_coordinator(f"etcd://{self._server.address}/{self._prefix}", clock, epoch_floor)

    async def restart(self) -> None:
        self._server.only.kill()
        self._server.only.start()
        await asyncio.to_thread(self._server.only.wait_healthy)

    async def pause(self) -> None:
        self._server.only.pause()

    async def resume(self) -> None:
        self._server.only.resume()

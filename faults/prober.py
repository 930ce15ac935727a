"""Asks every node the same small question all the time, past any client's routing: who answers, and for how long nobody does.

Questions overlap: one that a suspended node finds when it goes on again is as interesting as one that it answers at once.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import grpc

from faults.checker import Ledger
from faults.house import LOAD, House
from kvcm.protocol import meta_service_pb2 as pb

EVERY_S = 0.02
_MAX_WAITING = 128
_KEYS = 8
_LIMIT_S = 30.0
_INFO_EVERY = 10
_SERVICE = "/kv_cache_manager.proto.meta.MetaService/"
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True, slots=True)
class Ok:
    node: str
    sent: float
    got: float


class Prober:
    """`async with Prober(house, ledger, seed) as prober:`"""

    def __init__(self, house: House, ledger: Ledger, seed: int) -> None:
        self._house = house
        self._ledger = ledger
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.history: list[Ok] = []
        """Since `forget`."""
        self.last: Ok | None = None
        self.refused = 0
        """Questions that a node answered with "not the leader", or at which nobody was there."""

    async def __aenter__(self) -> Prober:
        self._spawn(self._ask_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self) -> None:
        self.history = self.history[-1:]
        self.refused = 0

    async def leader(self, not_before: float = 0.0, timeout_s: float = 120.0, other_than: str = "") -> Ok:
        """The first answer to a question that was sent at or after this moment, from any node but one. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                for found in self.history:
                    if found.sent >= not_before and found.node != other_than:
                        return found
                self._changed.clear()
                await self._changed.wait()

    def gap(self, since: float, until: float) -> float:
        """The longest time between two answers, of those that came in this time; seconds."""
        times = sorted(found.got for found in self.history if since <= found.got <= until)
        return max((later - earlier for earlier, later in zip([since, *times], [*times, until], strict=True)), default=until - since)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for node in self._house.nodes:
                group.create_task(self._ask_node(node.name, node.address))

    async def _ask_node(self, name: str, address: str) -> None:
        waiting: set[asyncio.Task[None]] = set()
        async with grpc.aio.insecure_channel(address, _OPTIONS) as channel:
            read: Any = channel.unary_unary(_SERVICE + "GetCacheLocation", pb.GetCacheLocationRequest.SerializeToString, pb.GetCacheLocationResponse.FromString)
            info: Any = channel.unary_unary(_SERVICE + "GetClusterInfo", pb.GetClusterInfoRequest.SerializeToString, pb.GetClusterInfoResponse.FromString)
            turn = 0
            try:
                while True:
                    turn += 1
                    if len(waiting) < _MAX_WAITING:
                        work = self._info(name, info) if turn % _INFO_EVERY == 0 else self._read(name, read)
                        task = asyncio.get_running_loop().create_task(work)
                        waiting.add(task)
                        task.add_done_callback(waiting.discard)
                    await asyncio.sleep(EVERY_S)
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

    async def _read(self, name: str, read: Any) -> None:
        loaded = self._ledger.loaded
        first = loaded.first + self._random.randrange(max(1, len(loaded) - _KEYS))
        keys = range(first, first + min(_KEYS, len(loaded)))
        request = pb.GetCacheLocationRequest(trace_id="probe", instance_id=LOAD, query_type=pb.QT_BATCH_GET, block_keys=keys)
        sent = time.time()
        try:
            reply = await read(request, timeout=_LIMIT_S)
        except grpc.RpcError:
            self.refused += 1
            return
        got = time.time()
        if reply.header.status.code != pb.OK:
            self.refused += 1
            return
        self._ledger.answered(name, sent, got)
        self._ledger.read(keys, [uri_of(location) for location in reply.locations], sent, got)
        self.last = Ok(name, sent, got)
        self.history.append(self.last)
        self._changed.set()

    async def _info(self, name: str, info: Any) -> None:
        sent = time.time()
        try:
            reply = await info(pb.GetClusterInfoRequest(trace_id="probe", instance_id=LOAD), timeout=_LIMIT_S)
        except grpc.RpcError:
            return
        if reply.header.status.code == pb.OK:
            self._ledger.told_epoch(name, reply.leader_epoch, sent, time.time())


def uri_of(location: Any) -> str:
    """Of a location as the wire has it; empty for a miss."""
    return next((str(spec.uri) for spec in location.location_specs if spec.uri), "")

"""The admin client's way to the leader: the node that was asked for, and the one that leads.

- A call to the leader that is answered with "not the leader", or for which no connection could be made, was not carried out: all nodes are asked who leads,
  the client moves there and repeats it, changes too. A read without an answer is repeated only after a move.
- A change without an answer is OutcomeUnknown and never repeated.
- No attempt begins later than `failover_s` after the first failure, but the one at a leader that was found by then. A node that is named as the leader and
  cannot be reached (an address that is good only inside the cluster) is not moved to; nor is one of an older epoch than was seen within ten seconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from kvcm.client.admin_errors import ManagerUnreachable
from kvcm.client.rpc_channel import RpcChannel
from kvcm.client.security import ClientSecurity
from kvcm.client.seeds import ADMIN_RPC_PORT, Seeds
from kvcm.common.errors import KvcmError, NotLeader, NotReady, OutcomeUnknown
from kvcm.protocol import admin_service_pb2 as pb

DEFAULT_FAILOVER_S = 1.0
_MAX_ATTEMPTS = 10_000
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 0.5
_ASK_S, _GRACE_S, _LOOK_UP_S = 2.0, 0.1, 2.0
_MAX_ASKED = 16
_MAX_RETIRED = 4
_OLDER_FOR_S = 10.0


class LeaderRoute:
    """Belongs to one event loop. `addresses`: `host:port` texts and discovery URLs."""

    def __init__(
        self,
        addresses: Sequence[str],
        stub_of: Callable[[Any], Any],
        *,
        timeout_s: float,
        security: ClientSecurity,
        failover_s: float,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Raises InvalidClientConfig, Unsupported."""
        self._seeds = Seeds(addresses, ADMIN_RPC_PORT)
        self._stub_of = stub_of
        self._timeout_s = timeout_s
        self._security = security
        self._failover_s = failover_s
        self._draw = draw
        self._entry: RpcChannel | None = None
        self._leader: RpcChannel | None = None
        self._retired: list[RpcChannel] = []
        self._epoch, self._epoch_at = 0, float("-inf")
        self._searching = asyncio.Lock()

    async def open(self) -> None:
        """Makes no connection yet. Raises ManagerUnreachable when no address is known."""
        await self._look_up()
        known = self._seeds.all()
        if not known:
            raise ManagerUnreachable("no manager is known: the addresses name no member, or their names cannot be looked up")
        self._entry = self._leader = await self._channel(known[0]).__aenter__()

    async def close(self) -> None:
        channels = {id(channel): channel for channel in (self._entry, self._leader, *self._retired) if channel is not None}
        self._entry = self._leader = None
        self._retired.clear()
        for channel in channels.values():
            await channel.close()

    async def node(self) -> RpcChannel:
        """The node that was asked for: the first address that can be reached, from then on until it cannot be. Raises ManagerUnreachable."""
        async with self._searching:
            entry = _opened(self._entry)
            known = tuple(dict.fromkeys((entry.address, *self._seeds.all())))[:_MAX_ASKED]
            # Of a single one, its own call tells best what is wrong.
            if len(known) == 1 or await entry.reachable(_ASK_S):
                return entry
            for address in known[1:]:
                fresh = await self._reached(address)
                if fresh is not None:
                    return await self._enter(fresh)
        raise ManagerUnreachable(f"no manager can be reached at any of {', '.join(known)}; does one run there, and are these its admin gRPC ports?")

    async def read_node(self, method: str, request: Any) -> Any:
        """From the node that was asked for, or from another when the connection to that one broke. Raises KvcmError."""
        node = await self.node()
        try:
            return await node.read(method, request)
        except NotReady:
            other = await self.node()
            if other is node:
                raise
            return await other.read(method, request)

    async def to_leader(self) -> None:
        """From now on the node that leads is the one that was asked for. Raises NotLeader when none is found."""
        async with self._searching:
            await self._look_up()
            for address, _ in await self._hints(_opened(self._entry).address):
                fresh = await self._reached(address)
                if fresh is not None:
                    await self._enter(fresh)
                    return
        raise NotLeader("none of the managers leads now, or the one that does cannot be reached")

    async def _reached(self, address: str) -> RpcChannel | None:
        fresh = await self._channel(address).__aenter__()
        if await fresh.reachable(_ASK_S):
            return fresh
        await fresh.close()
        return None

    async def _enter(self, fresh: RpcChannel) -> RpcChannel:
        before, self._entry = _opened(self._entry), fresh
        if self._leader is before:
            self._leader = fresh
        await self._retire(before)
        return fresh

    async def _retire(self, channel: RpcChannel) -> None:
        """Not closed at once: others may wait for an answer there."""
        if channel is not self._leader:
            self._retired.append(channel)
        while len(self._retired) > _MAX_RETIRED:
            await self._retired.pop(0).close()

    async def read(self, method: str, request: Any) -> Any:
        """From the leader. Raises KvcmError."""
        return await self._call(method, request, NotReady, force=False)

    async def write(self, method: str, request: Any, *, force: bool = False) -> Any:
        """To the leader. Raises KvcmError, OutcomeUnknown when no answer came."""
        return await self._call(method, request, OutcomeUnknown, force=force)

    async def _call(self, method: str, request: Any, unanswered: type[KvcmError], *, force: bool) -> Any:
        now = asyncio.get_running_loop().time
        until = float("inf")
        for attempt in range(_MAX_ATTEMPTS):
            channel = _opened(self._leader)
            try:
                return await channel.call(method, request, unanswered, force=force)
            except (NotLeader, NotReady) as error:
                # ManagerUnreachable is a NotReady, and so is a read without an answer; of a change, both say that nothing was done.
                until = min(until, now() + self._failover_s)
                moved = await self._search(channel)
                if moved and (attempt == 0 or now() < until):
                    continue
                pause = min(_FIRST_PAUSE_S * 2 ** min(attempt, 10), _MAX_PAUSE_S) * (0.5 + self._draw() / 2)
                if not isinstance(error, NotLeader | ManagerUnreachable) or now() + pause >= until:
                    raise
                await asyncio.sleep(pause)
        raise ManagerUnreachable(f"no manager that leads was found for {method}")

    async def _search(self, channel: RpcChannel) -> bool:
        """True: the calls go to another node now."""
        async with self._searching:
            if self._leader is not channel:
                return self._leader is not None
            await self._look_up()
            for address, epoch in await self._hints(channel.address):
                if address == channel.address:
                    return False
                fresh = await self._reached(address)
                if fresh is None:
                    continue
                if self._leader is not channel:  # closed meanwhile
                    await fresh.close()
                    return False
                self._leader = fresh
                if channel is not self._entry:
                    await self._retire(channel)
                self._epoch, self._epoch_at = epoch, asyncio.get_running_loop().time()
                return True
        return False

    async def _hints(self, at: str) -> list[tuple[str, int]]:
        """Addresses at which the leader may be, the newest epoch first. One that says that it leads itself may also be where it was asked."""
        loop = asyncio.get_running_loop()
        asked = tuple(dict.fromkeys((at, *self._seeds.all())))[:_MAX_ASKED]
        running = {loop.create_task(self._ask(address)) for address in asked}
        until = loop.time() + _ASK_S
        hints: dict[str, int] = {}
        try:
            while running and (left := until - loop.time()) > 0:
                done, running = await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for found in [task.result() for task in done]:
                    for address, epoch in found:
                        hints[address] = max(epoch, hints.get(address, 0))
                        until = min(until, loop.time() + _GRACE_S)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        young = loop.time() - self._epoch_at < _OLDER_FOR_S
        return sorted(((address, epoch) for address, epoch in hints.items() if not young or epoch >= self._epoch), key=lambda hint: hint[1], reverse=True)

    async def _ask(self, address: str) -> list[tuple[str, int]]:
        try:
            async with self._channel(address, _ASK_S) as channel:
                reply = await channel.read("GetManagerClusterInfo", pb.GetManagerClusterInfoRequest(trace_id="kvcm"))
        except KvcmError:
            return []
        if not reply.leader_node_id or not reply.leader_endpoint.host or not reply.leader_endpoint.admin_rpc_port:
            return []
        host = reply.leader_endpoint.host
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        hints = [(f"{host}:{reply.leader_endpoint.admin_rpc_port}", int(reply.leader_epoch))]
        if reply.self_node_id == reply.leader_node_id:
            hints.append((address, int(reply.leader_epoch)))
        return hints

    async def _look_up(self) -> None:
        if self._seeds.due():
            await asyncio.to_thread(self._seeds.refresh, _LOOK_UP_S)

    def _channel(self, address: str, timeout_s: float | None = None) -> RpcChannel:
        return RpcChannel(address, self._stub_of, timeout_s=timeout_s or self._timeout_s, security=self._security)


def _opened(channel: RpcChannel | None) -> RpcChannel:
    if channel is None:
        raise ManagerUnreachable("the client is closed")
    return channel

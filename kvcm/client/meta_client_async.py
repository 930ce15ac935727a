"""AsyncMetaClient: the metadata plane over gRPC on an asyncio loop. The same operations, rules and errors as `MetaClient`.

    async with await AsyncMetaClient.connect(config) as meta:
        found = await meta.match_location(QueryType.PREFIX_MATCH, keys)

Belongs to the loop that connected it. A cancelled mutation may have happened.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc

from kvcm.client import meta_commands, meta_ops, meta_ops_detail
from kvcm.client.config import ClientConfig
from kvcm.client.detail_types import BackendSelector, BlockDetail, Event, EventReport, HostMatch
from kvcm.client.errors import RpcFailed
from kvcm.client.grpc_channel import open_channel
from kvcm.client.meta_channel import channel_options, failure, stub_of
from kvcm.client.meta_commands import Command, Flow
from kvcm.client.meta_core import MetaCore
from kvcm.client.meta_ops import Operation, as_mask
from kvcm.client.types import BlockMask, ClusterInfo, InstanceInfo, Location, MatchResult, Metas, QueryType, TrimStrategy, WriteLocation

T = TypeVar("T")


class AsyncMetaClient:
    """Use `connect`; the constructor alone does not talk to anyone."""

    def __init__(self, config: ClientConfig, *, now: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._options = channel_options(config.meta_channel)
        self._core = MetaCore(config, now, random.random)
        self._search_lock = asyncio.Lock()

    @classmethod
    async def connect(cls, config: ClientConfig, *, now: Callable[[], float] = time.monotonic) -> AsyncMetaClient:
        """Find the leader among the configured addresses and register the instance there.

        Raises ConnectFailed (9), ServiceNotLeader (56), or the ServiceError that refused the registration.
        """
        client = cls(config, now=now)
        try:
            await client._drive(client._core.connect())
        except BaseException:
            await client.close()
            raise
        return client

    async def __aenter__(self) -> AsyncMetaClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; later calls raise ConnectFailed. Safe to call twice."""
        await self._drive(self._core.close())

    @property
    def address(self) -> str:
        """The node this client talks to, as host:port."""
        return self._core.address

    @property
    def extra_info(self) -> str:
        """The instance group's extra text, as the manager sent it at registration."""
        return self._core.registration.extra_info

    def get_storage_config(self) -> str:
        """JSON array text of the stores, as the manager sent it at registration: what workers need."""
        return self._core.registration.storage_configs

    async def match_location(
        self,
        query_type: QueryType,
        keys: Sequence[int] = (),
        tokens: Sequence[int] = (),
        *,
        block_mask: BlockMask | None = None,
        sw_size: int = 0,
        spec_names: Sequence[str] = (),
        want_checksums: bool = False,
        trace_id: str = "",
        timeout_s: float | None = None,
    ) -> MatchResult:
        """Where blocks are. PREFIX_MATCH returns the leading hits from the mask's offset on, the other types one entry a key (INV-C2).

        `sw_size` is the window of REVERSE_ROLL_SW_MATCH in blocks; `spec_names` keeps only these specs (empty: all).
        """
        operation = meta_ops.match_location(self._config.instance_id, query_type, keys, tokens, block_mask, sw_size, spec_names, want_checksums, trace_id)
        return await self._call(operation, timeout_s)

    async def match_location_len(
        self,
        query_type: QueryType,
        keys: Sequence[int] = (),
        tokens: Sequence[int] = (),
        *,
        sw_size: int = 0,
        trace_id: str = "",
        timeout_s: float | None = None,
    ) -> int:
        """How many blocks are stored, without their places."""
        operation = meta_ops.match_location_len(self._config.instance_id, query_type, keys, tokens, sw_size, trace_id)
        return await self._call(operation, timeout_s)

    async def start_write(
        self,
        keys: Sequence[int] = (),
        tokens: Sequence[int] = (),
        *,
        spec_group_names: Sequence[str] = (),
        write_timeout_seconds: int = 60,
        min_replica_count: int = 0,
        trace_id: str = "",
        timeout_s: float | None = None,
    ) -> WriteLocation:
        """Open a write session: places for the blocks that are not stored yet. It expires after `write_timeout_seconds`."""
        operation = meta_ops.start_write(self._config.instance_id, keys, tokens, spec_group_names, write_timeout_seconds, min_replica_count, trace_id)
        return await self._call(operation, timeout_s)

    async def finish_write(
        self,
        write_session_id: str,
        success: BlockMask | Iterable[bool],
        *,
        checksums: Sequence[int] = (),
        trace_id: str = "",
        timeout_s: float | None = None,
    ) -> None:
        """Close a session. `success` has one flag for each location handed out; only these blocks become visible (INV-C1).

        `checksums`: none, or one value for each location handed out, 0 for unknown.
        """
        operation = meta_ops.finish_write(self._config.instance_id, write_session_id, as_mask(success), checksums, trace_id)
        await self._call(operation, timeout_s)

    async def match_meta(
        self,
        keys: Sequence[int] = (),
        tokens: Sequence[int] = (),
        *,
        block_mask: BlockMask | None = None,
        detail_level: int = 0,
        trace_id: str = "",
        timeout_s: float | None = None,
    ) -> Metas:
        """Any location and a JSON text about each unmasked block, whatever its state: for people, not for reading data."""
        operation = meta_ops.match_meta(self._config.instance_id, keys, tokens, block_mask, detail_level, trace_id)
        return await self._call(operation, timeout_s)

    async def match_by_backend(
        self,
        selectors: Sequence[BackendSelector],
        keys: Sequence[int] = (),
        tokens: Sequence[int] = (),
        *,
        spec_names: Sequence[str] = (),
        trace_id: str = "",
        timeout_s: float | None = None,
    ) -> tuple[tuple[Location, ...], ...]:
        """For each key, at most one location a selector, in the order of the selectors; a selector without a match adds nothing."""
        operation = meta_ops_detail.match_by_backend(self._config.instance_id, keys, tokens, selectors, spec_names, trace_id)
        return await self._call(operation, timeout_s)

    async def match_meta_detail(
        self,
        keys: Sequence[int] = (),
        tokens: Sequence[int] = (),
        *,
        block_mask: BlockMask | None = None,
        trace_id: str = "",
        timeout_s: float | None = None,
    ) -> tuple[BlockDetail, ...]:
        """Every location of each unmasked block with its state and age: for people and repair tools, not for reading data."""
        operation = meta_ops_detail.match_meta_detail(self._config.instance_id, keys, tokens, block_mask, trace_id)
        return await self._call(operation, timeout_s)

    async def get_host_cache_state(
        self,
        keys: Sequence[int],
        *,
        query_type: QueryType = QueryType.UNSPECIFIED,
        mediums: Sequence[str] = (),
        peer_hosts: int = 0,
        trace_id: str = "",
        timeout_s: float | None = None,
    ) -> tuple[HostMatch, ...]:
        """Which reporting hosts hold a prefix of `keys`. `peer_hosts`: for how many of the best ones to count what a peer could add."""
        operation = meta_ops_detail.get_host_cache_state(self._config.instance_id, keys, query_type, mediums, peer_hosts, trace_id)
        return await self._call(operation, timeout_s)

    async def report_event(self, host: str, storage_type: int, events: Iterable[Event], *, trace_id: str = "", timeout_s: float | None = None) -> EventReport:
        """Tell what a host (`ip:port`) holds. A ServiceError carries the EventReport as `details`: which events failed, when to come back."""
        return await self._call(meta_ops_detail.report_event(self._config.instance_id, host, storage_type, events, trace_id), timeout_s)

    async def remove_cache(self, keys: Sequence[int] = (), tokens: Sequence[int] = (), *, trace_id: str = "", timeout_s: float | None = None) -> None:
        """Ask for the deletion of whole blocks; it happens later."""
        await self._call(meta_ops.remove_cache(self._config.instance_id, keys, tokens, trace_id), timeout_s)

    async def trim_cache(self, strategy: TrimStrategy, *, begin: int = 0, end: int = 0, trace_id: str = "", timeout_s: float | None = None) -> None:
        """Ask for the deletion of all blocks, or (TIMESTAMP) of those created from `begin` to `end`, seconds since the Unix epoch."""
        await self._call(meta_ops.trim_cache(self._config.instance_id, strategy, begin, end, trace_id), timeout_s)

    async def get_instance_info(self, *, trace_id: str = "", timeout_s: float | None = None) -> InstanceInfo:
        """What the manager keeps about this client's instance."""
        return await self._call(meta_ops.get_instance_info(self._config.instance_id, trace_id), timeout_s)

    async def get_cluster_info(self, *, trace_id: str = "", timeout_s: float | None = None) -> ClusterInfo:
        """Which node answered and which one leads."""
        return await self._call(meta_ops.get_cluster_info(self._config.instance_id, trace_id), timeout_s)

    async def _call(self, operation: Operation[T], timeout_s: float | None) -> T:
        return await self._drive(self._core.call(operation, timeout_s))

    async def _drive(self, flow: Flow[T]) -> T:
        """Run a flow of the core, one awaited command after another."""
        step: Callable[[], Command] = flow.__next__
        while True:
            try:
                command = step()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                answer = await self._perform(command)
            except BaseException as error:  # the flow cleans up and decides, then raises it again
                step = _later(flow.throw, error)
            else:
                step = _later(flow.send, answer)

    async def _perform(self, command: Command) -> Any:
        match command:
            case meta_commands.Invoke():
                return await self._invoke(command)
            case meta_commands.Dial(address):
                channel = open_channel(grpc.aio, address, self._options, self._config.security)
                return channel, stub_of(channel)
            case meta_commands.HangUp(handle):
                await handle[0].close()
                return None
            case meta_commands.Survey():
                return await self._survey(command)
            case meta_commands.LookUp(seeds, timeout_s):
                return await asyncio.to_thread(seeds.refresh, timeout_s)
            case meta_commands.Pause(seconds):
                return await asyncio.sleep(seconds)
            case meta_commands.EnterSearch(timeout_s):
                return await self._enter_search(timeout_s)
            case meta_commands.LeaveSearch():
                self._search_lock.release()
                return None

    async def _enter_search(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._search_lock.acquire()
        except TimeoutError:
            return False
        return True

    async def _survey(self, command: meta_commands.Survey) -> list[tuple[str, Any]]:
        loop = asyncio.get_running_loop()
        until = loop.time() + command.timeout_s
        found: dict[str, Any] = {}
        running = {loop.create_task(self._ask(address, command)) for address in command.addresses}
        try:
            while running and (left := until - loop.time()) > 0:
                done, running = await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for address, reply in [task.result() for task in done]:
                    if reply is not None:
                        found[address] = reply
                        if command.tells(reply):
                            until = min(until, loop.time() + command.grace_s)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return [(address, found[address]) for address in command.addresses if address in found]

    async def _ask(self, address: str, command: meta_commands.Survey) -> tuple[str, Any]:
        """(address, its reply or None)."""
        channel = open_channel(grpc.aio, address, self._options, self._config.security)
        try:
            rpc = getattr(stub_of(channel), command.method)
            return address, await rpc(command.request, timeout=command.timeout_s, metadata=self._config.security.metadata() or None)
        except grpc.RpcError:
            return address, None
        finally:
            await channel.close()

    async def _invoke(self, command: meta_commands.Invoke) -> Any:
        rpc = getattr(command.handle[1], command.method)
        metadata = self._config.security.metadata() or None
        try:
            return await rpc(command.request, timeout=command.timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise failure(error, command.method, command.address) from error
        except grpc.aio.UsageError as error:  # grpc's way to say that the channel is closed: nothing was sent
            raise RpcFailed(f"{command.method}: the connection was closed meanwhile", grpc_status="CANCELLED", may_have_run=False) from error


def _later(step: Callable[[Any], Command], value: Any) -> Callable[[], Command]:
    return lambda: step(value)

"""MetaClient: the metadata plane over gRPC, blocking. Thread-safe.

    with MetaClient.connect(config) as meta:
        session = meta.start_write(keys)
        ...
        meta.finish_write(session.write_session_id, [True] * len(session.locations))
        found = meta.match_location(QueryType.PREFIX_MATCH, keys)

Each call has the configured call timeout; finding a new leader may take up to three connection timeouts more (see meta_core). Every method
raises ServiceError when the manager refuses and RpcFailed when it does not answer; `unknown_outcome` on an error of a mutation means that it
may have happened. Blocks are named by `keys` (signed 64-bit), or by `tokens`, which the manager hashes; keys win when both are given.
"""

from __future__ import annotations

import queue
import random
import threading
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


class MetaClient:
    """Use `connect`; the constructor alone does not talk to anyone."""

    def __init__(self, config: ClientConfig, *, now: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._options = channel_options(config.meta_channel)
        self._core = MetaCore(config, now, random.random)
        self._search_lock = threading.Lock()

    @classmethod
    def connect(cls, config: ClientConfig, *, now: Callable[[], float] = time.monotonic) -> MetaClient:
        """Find the leader among the configured addresses and register the instance there.

        Raises ConnectFailed (9), ServiceNotLeader (56), or the ServiceError that refused the registration.
        """
        client = cls(config, now=now)
        try:
            client._drive(client._core.connect())
        except BaseException:
            client.close()
            raise
        return client

    def __enter__(self) -> MetaClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; later calls raise ConnectFailed. Safe to call twice."""
        self._drive(self._core.close())

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

    def match_location(
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
        return self._call(operation, timeout_s)

    def match_location_len(
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
        return self._call(operation, timeout_s)

    def start_write(
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
        return self._call(operation, timeout_s)

    def finish_write(
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
        self._call(operation, timeout_s)

    def match_meta(
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
        return self._call(operation, timeout_s)

    def match_by_backend(
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
        return self._call(operation, timeout_s)

    def match_meta_detail(
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
        return self._call(operation, timeout_s)

    def get_host_cache_state(
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
        return self._call(operation, timeout_s)

    def report_event(self, host: str, storage_type: int, events: Iterable[Event], *, trace_id: str = "", timeout_s: float | None = None) -> EventReport:
        """Tell what a host (`ip:port`) holds. A ServiceError carries the EventReport as `details`: which events failed, when to come back."""
        return self._call(meta_ops_detail.report_event(self._config.instance_id, host, storage_type, events, trace_id), timeout_s)

    def remove_cache(self, keys: Sequence[int] = (), tokens: Sequence[int] = (), *, trace_id: str = "", timeout_s: float | None = None) -> None:
        """Ask for the deletion of whole blocks; it happens later."""
        self._call(meta_ops.remove_cache(self._config.instance_id, keys, tokens, trace_id), timeout_s)

    def trim_cache(self, strategy: TrimStrategy, *, begin: int = 0, end: int = 0, trace_id: str = "", timeout_s: float | None = None) -> None:
        """Ask for the deletion of all blocks, or (TIMESTAMP) of those created from `begin` to `end`, seconds since the Unix epoch."""
        self._call(meta_ops.trim_cache(self._config.instance_id, strategy, begin, end, trace_id), timeout_s)

    def get_instance_info(self, *, trace_id: str = "", timeout_s: float | None = None) -> InstanceInfo:
        """What the manager keeps about this client's instance."""
        return self._call(meta_ops.get_instance_info(self._config.instance_id, trace_id), timeout_s)

    def get_cluster_info(self, *, trace_id: str = "", timeout_s: float | None = None) -> ClusterInfo:
        """Which node answered and which one leads."""
        return self._call(meta_ops.get_cluster_info(self._config.instance_id, trace_id), timeout_s)

    def _call(self, operation: Operation[T], timeout_s: float | None) -> T:
        return self._drive(self._core.call(operation, timeout_s))

    def _drive(self, flow: Flow[T]) -> T:
        """Run a flow of the core, one blocking command after another."""
        step: Callable[[], Command] = flow.__next__
        while True:
            try:
                command = step()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                answer = self._perform(command)
            except BaseException as error:  # the flow cleans up and decides, then raises it again
                step = _later(flow.throw, error)
            else:
                step = _later(flow.send, answer)

    def _perform(self, command: Command) -> Any:
        match command:
            case meta_commands.Invoke():
                return self._invoke(command)
            case meta_commands.Dial(address):
                channel = open_channel(grpc, address, self._options, self._config.security)
                return channel, stub_of(channel)
            case meta_commands.HangUp(handle):
                handle[0].close()
                return None
            case meta_commands.Survey():
                return self._survey(command)
            case meta_commands.LookUp(seeds, timeout_s):
                return seeds.refresh(timeout_s)
            case meta_commands.Pause(seconds):
                return time.sleep(seconds)
            case meta_commands.EnterSearch(timeout_s):
                return self._search_lock.acquire(timeout=timeout_s)
            case meta_commands.LeaveSearch():
                self._search_lock.release()
                return None

    def _survey(self, command: meta_commands.Survey) -> list[tuple[str, Any]]:
        answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        metadata = self._config.security.metadata() or None
        channels = []
        try:
            for address in command.addresses:
                channels.append(channel := open_channel(grpc, address, self._options, self._config.security))
                asked = getattr(stub_of(channel), command.method).future(command.request, timeout=command.timeout_s, metadata=metadata)
                asked.add_done_callback(lambda future, address=address: answers.put((address, future)))
            found: dict[str, Any] = {}
            until = time.monotonic() + command.timeout_s
            for _ in command.addresses:
                address, future = answers.get(timeout=max(0.0, until - time.monotonic()))
                if future.cancelled() or future.exception() is not None:
                    continue
                found[address] = future.result()
                if command.tells(found[address]):
                    until = min(until, time.monotonic() + command.grace_s)
        except queue.Empty:
            pass
        finally:
            for channel in channels:
                channel.close()
        return [(address, found[address]) for address in command.addresses if address in found]

    def _invoke(self, command: meta_commands.Invoke) -> Any:
        rpc = getattr(command.handle[1], command.method)
        metadata = self._config.security.metadata() or None
        try:
            return rpc(command.request, timeout=command.timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise failure(error, command.method, command.address) from error
        except ValueError as error:  # grpc's way to say that the channel is closed: nothing was sent
            raise RpcFailed(f"{command.method}: the connection was closed meanwhile", grpc_status="CANCELLED", may_have_run=False) from error


def _later(step: Callable[[Any], Command], value: Any) -> Callable[[], Command]:
    return lambda: step(value)

"""The metadata clients over real sockets, against a small scripted MetaService in this process; both clients run the same cases."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvcm.client import (
    AsyncManagerClient,
    AsyncMetaClient,
    BlockBuffer,
    BlockMask,
    ClientConfig,
    InitParams,
    ManagerClient,
    MetaClient,
    QueryType,
    RoleType,
    RpcOutcomeUnknown,
    TrimStrategy,
)
from kvcm.client.errors import (
    ClientNotExists,
    ConnectFailed,
    InvalidCall,
    RpcFailed,
    ServiceInternal,
    ServiceNotLeader,
    ServiceUnsupported,
    WriteFailed,
)
from kvcm.protocol import meta_service_pb2 as pb
from kvcm.protocol import meta_service_pb2_grpc as pb_grpc

pytestmark = pytest.mark.integration

_OK = pb.CommonResponseHeader(status=pb.Status(code=pb.OK), request_id="r")


def _refuse(code: Any, text: str = "scripted") -> pb.CommonResponseHeader:
    return pb.CommonResponseHeader(status=pb.Status(code=code, message=text))


class Node(pb_grpc.MetaServiceServicer):
    """A manager of one process: keeps blocks in a dict. `leader` is None (this node leads) or the port of the leader (0: unknown)."""

    def __init__(self, root: Path, size: int = 64) -> None:
        self.root = root
        self.size = size
        self.leader: int | None = None
        self.blocks: dict[int, tuple[str, int]] = {}
        self.sessions: dict[str, list[int]] = {}
        self.requests: list[Any] = []
        self.abort: list[grpc.StatusCode] = []
        self.stall = threading.Event()
        self.stall.set()
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        make: Any = pb_grpc.add_MetaServiceServicer_to_server
        make(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.stall.set()
        self.server.stop(None).wait(10)

    def _header(self, request: Any, context: Any) -> pb.CommonResponseHeader:
        self.requests.append(request)
        if self.abort:
            context.abort(self.abort.pop(0), "scripted")
        self.stall.wait(10)
        return _OK if self.leader is None else _refuse(pb.SERVER_NOT_LEADER)

    def RegisterInstance(self, request: Any, context: Any) -> Any:
        stores = [{"type": "file", "global_unique_name": "nfs", "storage_spec": {"root_path": f"{self.root}/"}}]
        header = self._header(request, context)
        return pb.RegisterInstanceResponse(header=header, storage_configs=json.dumps(stores), extra_info="extra")

    def GetInstanceInfo(self, request: Any, context: Any) -> Any:
        info = pb.InstanceInfo(instance_id=request.instance_id, block_size=16, location_spec_infos=[pb.LocationSpecInfo(name="tp0", size=9)])
        return pb.GetInstanceInfoResponse(header=self._header(request, context), instance_group="g", instance_info=info)

    def GetCacheLocation(self, request: Any, context: Any) -> Any:
        reply = pb.GetCacheLocationResponse(header=self._header(request, context))
        for key in request.block_keys:
            if key not in self.blocks:
                break
            uri, checksum = self.blocks[key]
            reply.locations.add(type=pb.ST_NFS, spec_size=1).location_specs.add(name="tp0", uri=uri)
            if request.want_checksums:
                reply.checksums.append(checksum)
        return reply

    def GetCacheLocationLen(self, request: Any, context: Any) -> Any:
        self._header(request, context)
        return pb.GetCacheLocationLenResponse(header=_refuse(pb.UNSUPPORTED, "not served yet"))

    def GetCacheMeta(self, request: Any, context: Any) -> Any:
        return pb.GetCacheMetaResponse(header=self._header(request, context), locations=[pb.CacheLocation()], metas=["{}"])

    def StartWriteCache(self, request: Any, context: Any) -> Any:
        reply = pb.StartWriteCacheResponse(header=self._header(request, context), write_session_id=f"s{len(self.sessions)}")
        known = [key in self.blocks for key in request.block_keys]
        reply.block_mask.bool_masks.values.extend(known)
        new = [key for key, seen in zip(request.block_keys, known, strict=True) if not seen]
        self.sessions[reply.write_session_id] = new
        for key in new:
            uri = f"file://nfs{self.root}/i/tp0/{key:x}?size={self.size}"
            reply.locations.add(type=pb.ST_NFS, spec_size=1).location_specs.add(name="tp0", uri=uri)
        return reply

    def FinishWriteCache(self, request: Any, context: Any) -> Any:
        header = self._header(request, context)
        keys = self.sessions.pop(request.write_session_id, None)
        if keys is None:
            return pb.CommonResponse(header=_refuse(pb.INTERNAL_ERROR, "unknown session"))
        mask = request.success_blocks
        flags = list(mask.bool_masks.values) if mask.WhichOneof("info") == "bool_masks" else [True] * mask.offset
        checksums = list(request.checksums) or [0] * len(keys)
        for key, good, checksum in zip(keys, flags, checksums, strict=False):
            if good:
                self.blocks[key] = (f"file://nfs{self.root}/i/tp0/{key:x}?size={self.size}", checksum)
        return pb.CommonResponse(header=header)

    def RemoveCache(self, request: Any, context: Any) -> Any:
        return pb.CommonResponse(header=self._header(request, context))

    def TrimCache(self, request: Any, context: Any) -> Any:
        return pb.CommonResponse(header=self._header(request, context))

    def GetClusterInfo(self, request: Any, context: Any) -> Any:
        reply = pb.GetClusterInfoResponse(header=_OK, self_node_id="me", leader_node_id="boss")
        port = self.port if self.leader is None else self.leader
        if port:
            reply.leader_endpoint.host, reply.leader_endpoint.meta_rpc_port = "127.0.0.1", port
        return reply


Start = Callable[[], Node]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Node] = []

    def make() -> Node:
        nodes.append(Node(tmp_path))
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()


def _config(*nodes: Node, call_ms: int = 5000) -> ClientConfig:
    return ClientConfig.parse(
        {
            "instance_group": "g",
            "instance_id": "i",
            "block_size": 16,
            "address": [node.address for node in nodes],
            "location_spec_infos": {"tp0": 64},
            "model_deployment": {"model_name": "m", "dtype": "bf16"},
            "meta_channel_config": {"call_timeout": call_ms, "connection_timeout": 5000},
            "sdk_config": {"timeout_config": {"put_timeout_ms": 30000, "get_timeout_ms": 30000}},
        }
    )


class _Blocking:
    """Gives AsyncMetaClient the face of MetaClient, one private loop each."""

    def __init__(self, runner: asyncio.Runner, client: AsyncMetaClient) -> None:
        self._runner = runner
        self._client = client

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if not asyncio.iscoroutinefunction(value):
            return value
        return lambda *args, **kwargs: self._runner.run(value(*args, **kwargs))


Connect = Callable[[ClientConfig], Any]


@pytest.fixture(params=["sync", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    clients: list[Any] = []
    with asyncio.Runner() as runner:

        def make(config: ClientConfig) -> Any:
            if request.param == "sync":
                client: Any = MetaClient.connect(config)
            else:
                client = _Blocking(runner, runner.run(AsyncMetaClient.connect(config)))
            clients.append(client)
            return client

        yield make
        for client in clients:
            client.close()


def test_every_operation_reaches_the_server_and_comes_back(start: Start, connect: Connect) -> None:
    node = start()
    meta = connect(_config(node))
    registered = node.requests[0]
    assert (registered.instance_group, registered.instance_id, registered.model_deployment.model_name) == ("g", "i", "m")
    assert json.loads(meta.get_storage_config())[0]["global_unique_name"] == "nfs"
    assert (meta.extra_info, meta.address) == ("extra", node.address)

    session = meta.start_write([1, -2], trace_id="t1", write_timeout_seconds=7)
    assert (node.requests[-1].trace_id, node.requests[-1].write_timeout_seconds) == ("t1", 7)
    assert session.block_mask.open_indexes(2) == [0, 1]
    meta.finish_write(session.write_session_id, [True, True], checksums=[5, -6])
    with pytest.raises(ServiceInternal, match="unknown session"):
        meta.finish_write(session.write_session_id, BlockMask(offset=2))

    found = meta.match_location(QueryType.PREFIX_MATCH, [1, -2, 3], block_mask=BlockMask(offset=0), want_checksums=True)
    assert [location.hit for location in found.locations] == [True, True]
    assert found.checksums == (5, -6)
    assert found.locations[1].uri("tp0").endswith("/tp0/-2?size=64")
    assert found.locations[0].uri("other") == ""
    assert meta.match_location(QueryType.BATCH_GET, [1]).checksums == ()

    with pytest.raises(ServiceUnsupported, match="not served yet"):
        meta.match_location_len(QueryType.PREFIX_MATCH, [1])
    assert meta.match_meta([1]).metas == ("{}",)
    meta.remove_cache([1])
    meta.trim_cache(TrimStrategy.TIMESTAMP, begin=3, end=9)
    assert (node.requests[-1].strategy, node.requests[-1].begin_timestamp, node.requests[-1].end_timestamp) == (3, 3, 9)
    assert meta.get_instance_info().location_spec_infos == {"tp0": 9}
    assert meta.get_cluster_info().leader_endpoint.meta_rpc_port == node.port


def test_values_that_do_not_fit_are_refused_before_sending(start: Start, connect: Connect) -> None:
    node = start()
    meta = connect(_config(node))
    sent = len(node.requests)
    bad: list[dict[str, Any]] = [{"keys": [1 << 64]}, {"keys": ["a"]}, {"keys": [1], "min_replica_count": "x"}, {"tokens": [1.5]}]
    for arguments in bad:
        with pytest.raises(InvalidCall):
            meta.start_write(**arguments)
    assert len(node.requests) == sent


def test_reads_repeat_on_unavailable_and_mutations_do_not(start: Start, connect: Connect) -> None:
    node = start()
    meta = connect(_config(node, call_ms=500))
    node.abort = [grpc.StatusCode.UNAVAILABLE] * 2
    assert meta.match_location(QueryType.PREFIX_MATCH, [1]).locations == ()
    assert len(node.requests) == 1 + 3
    node.abort = [grpc.StatusCode.UNAVAILABLE]
    with pytest.raises(RpcOutcomeUnknown, match="cannot be reached") as caught:
        meta.remove_cache([1])
    assert caught.value.unknown_outcome
    assert len(node.requests) == 1 + 3 + 1
    node.abort = [grpc.StatusCode.UNIMPLEMENTED]
    with pytest.raises(RpcFailed) as definite:
        meta.remove_cache([1])
    assert not definite.value.unknown_outcome


def test_a_call_that_gets_no_answer_ends_at_its_timeout(start: Start, connect: Connect) -> None:
    node = start()
    meta = connect(_config(node))
    node.stall.clear()
    with pytest.raises(RpcFailed, match="in time") as read:
        meta.match_location(QueryType.PREFIX_MATCH, [1], timeout_s=0.05)
    assert not read.value.unknown_outcome
    with pytest.raises(RpcOutcomeUnknown, match="in time"):
        meta.start_write([1], timeout_s=0.05)


def test_INV_C6_the_client_ends_on_the_leader_and_follows_it(start: Start, connect: Connect) -> None:
    first, second, third = start(), start(), start()
    first.leader = third.leader = second.port
    meta = connect(_config(first, second))
    assert meta.address == second.address
    second.leader, third.leader = third.port, None
    session = meta.start_write([1])
    assert meta.address == third.address
    assert third.sessions[session.write_session_id] == [1]
    assert second.sessions[session.write_session_id] == [1]  # the scripted node notes refused calls as well
    third.leader = 0
    second.leader = 0
    first.leader = 0
    with pytest.raises(ServiceNotLeader):
        meta.remove_cache([1])


def test_start_fails_when_nobody_answers_or_leads(start: Start, connect: Connect) -> None:
    dead, follower = start(), start()
    dead.stop()
    follower.leader = 0
    with pytest.raises(ConnectFailed) as caught:
        connect(_config(dead))
    assert caught.value.client_code == 9
    with pytest.raises(ServiceNotLeader):
        connect(_config(dead, follower))


def test_a_leader_that_is_gone_costs_no_call_and_a_change_is_sent_once(start: Start, connect: Connect) -> None:
    first, second = start(), start()
    second.leader = first.port
    meta = connect(_config(first, second))
    first.stop()
    second.leader = None
    # No connection can be made, so the change has not been sent and may go to the new leader.
    meta.remove_cache([1], timeout_s=5)
    assert meta.address == second.address
    assert meta.get_instance_info(timeout_s=5).instance_id == "i"


def test_closed_clients_say_so(start: Start, connect: Connect) -> None:
    meta = connect(_config(start()))
    meta.close()
    with pytest.raises(ConnectFailed, match="closed"):
        meta.get_cluster_info()


def test_hybrid_client_writes_and_reads_blocks(start: Start) -> None:
    node = start()
    datas = [os.urandom(64) for _ in range(4)]
    with ManagerClient.create(_config(node), InitParams(RoleType.HYBRID, "tp0")) as client:
        assert client.write_blocks([1, 2], [BlockBuffer.of(data) for data in datas[:2]]) == 2
        assert client.write_blocks([1, 2, 3], [BlockBuffer.of(data) for data in datas[:3]]) == 1
        assert client.write_blocks([1, 2], [BlockBuffer.of(data) for data in datas[:2]]) == 0
        outs = [bytearray(64) for _ in datas]
        assert client.read_prefix([1, 2, 3, 4], [BlockBuffer.of(out) for out in outs]) == 3
        assert [bytes(out) for out in outs[:3]] == datas[:3]
        assert all(checksum for _, checksum in node.blocks.values())
        (node.root / "i/tp0/4").mkdir()
        with pytest.raises(WriteFailed):
            client.write_blocks([4], [BlockBuffer.of(datas[3])])
        assert 4 not in node.blocks
        assert node.sessions == {}
        with pytest.raises(InvalidCall):
            client.read_prefix([1], [])


def test_missing_halves_are_15(start: Start) -> None:
    node = start()
    with ManagerClient.create(_config(node), InitParams(RoleType.SCHEDULER)) as scheduler:
        stores = scheduler.meta.get_storage_config()
        with pytest.raises(ClientNotExists) as caught:
            _ = scheduler.transfer
        assert caught.value.client_code == 15
    with ManagerClient.create(_config(), InitParams(RoleType.WORKER, "tp0", stores)) as worker:
        uri = f"file://nfs{node.root}/i/tp0/1?size=3"
        worker.transfer.save_kv_caches([uri], [BlockBuffer.of(b"abc")])
        with pytest.raises(ClientNotExists):
            _ = worker.meta
        with pytest.raises(ClientNotExists):
            worker.read_prefix([1], [BlockBuffer.of(bytearray(3))])


def test_asyncio_hybrid_client(start: Start) -> None:
    node = start()
    data, out = os.urandom(64), bytearray(64)

    async def run() -> None:
        async with await AsyncManagerClient.create(_config(node), InitParams(RoleType.HYBRID, "tp0")) as client:
            session = await client.meta.start_write([1])
            uris = [location.uri("tp0") for location in session.locations]
            saved = await client.save_kv_caches(uris, [BlockBuffer.of(data)])
            await client.meta.finish_write(session.write_session_id, [True], checksums=saved.checksums)
            found = await client.meta.match_location(QueryType.PREFIX_MATCH, [1], want_checksums=True)
            await client.load_kv_caches(uris, [BlockBuffer.of(out)], expected_checksums=found.checksums)
        async with await AsyncManagerClient.create(_config(node), InitParams(RoleType.SCHEDULER)) as scheduler:
            with pytest.raises(ClientNotExists):
                await scheduler.load_kv_caches(uris, [BlockBuffer.of(out)])

    asyncio.run(run())
    assert bytes(out) == data


def test_threads_share_one_client_while_the_leader_moves(start: Start) -> None:
    first, second = start(), start()
    second.leader = first.port
    with MetaClient.connect(_config(first, second)) as meta:
        first.leader, second.leader = second.port, None
        with futures.ThreadPoolExecutor(8) as pool:
            infos = list(pool.map(lambda _: meta.get_instance_info(), range(32)))
        assert {info.instance_id for info in infos} == {"i"}
        assert meta.address == second.address
        assert sum(type(request).__name__ == "RegisterInstanceRequest" for request in second.requests) == 1


def test_the_words_by_which_a_refused_connection_is_known(start: Start, connect: Connect) -> None:
    """gRPC tells only in its status text that a call was not sent; other words count as sent (docs/decisions, following the leader)."""
    node = start()
    config = _config(node)
    meta = connect(replace(config, meta_channel=replace(config.meta_channel, failover_s=0.0)))
    node.stop()
    with pytest.raises(RpcFailed) as caught:
        meta.remove_cache([1])
    assert not caught.value.unknown_outcome
    assert not caught.value.may_have_run
    assert caught.value.grpc_status == "UNAVAILABLE"


def test_a_node_that_hangs_does_not_hold_up_the_search(start: Start, connect: Connect) -> None:
    first, second = start(), start()
    second.leader = first.port
    with socket.socket() as hanging:
        hanging.bind(("127.0.0.1", 0))
        hanging.listen()
        addresses = (first.address, f"127.0.0.1:{hanging.getsockname()[1]}", second.address)
        config = _config(first)
        # Whoever waited for the one that hangs would wait for a minute.
        patient = replace(config, addresses=addresses, meta_channel=replace(config.meta_channel, connection_timeout_s=60.0, call_timeout_s=60.0))
        meta = connect(patient)
        first.leader, second.leader = second.port, None
        meta.remove_cache([1])
        assert meta.address == second.address


def test_addresses_by_name(start: Start, connect: Connect) -> None:
    node = start()
    meta = connect(replace(_config(node), addresses=(f"dns://localhost:{node.port}",)))
    assert meta.address.endswith(f":{node.port}")
    with pytest.raises(ConnectFailed, match="names cannot be looked up"):
        connect(replace(_config(node), addresses=("dns://no-such-name.invalid",)))

"""AdminClient over a real socket: what goes over the wire, and what each kind of failure becomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from kvcm.client.admin_client import AdminCallFailed, AdminClient, ManagerUnreachable
from kvcm.client.admin_testing import FakeAdmin
from kvcm.client.admin_types import GroupView, StorageView
from kvcm.common.errors import (
    CapacityReached,
    DuplicateEntity,
    InvalidArgument,
    KvcmError,
    NotFound,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    StorageError,
    Unsupported,
)
from kvcm.config.model import CacheConfig, CachePreferStrategy, InstanceGroup, Quota, QuotaConfig, ReclaimStrategy
from kvcm.data_storage.model import NfsSpec, Storage, StorageType
from kvcm.protocol import admin_service_pb2 as pb
from kvcm.protocol import admin_service_pb2_grpc as pb_grpc
from kvcm.protocol.domain_codec import group_from_proto, group_to_proto, storage_from_proto, storage_to_proto

pytestmark = pytest.mark.integration

NFS = Storage("nfs_01", StorageType.NFS, NfsSpec("/data/", 2))
GROUP = InstanceGroup(
    "g",
    ("nfs_01",),
    "quota",
    5,
    Quota(100, (QuotaConfig(StorageType.NFS, 50),)),
    CacheConfig(ReclaimStrategy(storage_unique_name="nfs_01"), CachePreferStrategy.PREFER_3FS),
)


def _ok(code: int = 1, message: str = "") -> pb.CommonResponseHeader:
    return pb.CommonResponseHeader(status=pb.Status(code=code, message=message))  # type: ignore[arg-type]  # the wire has numbers


class Servicer(pb_grpc.AdminServiceServicer):
    """The admin service in front of an in-memory manager. `code` makes every reply carry that code; `silent` makes every call hang."""

    def __init__(self) -> None:
        self.fake = FakeAdmin()
        self.code = 1
        self.message = ""
        self.silent = False
        self.entered = asyncio.Event()

    async def _common(self, change: Awaitable[None]) -> pb.CommonResponse:
        self.entered.set()
        await change
        if self.silent:
            await asyncio.Event().wait()
        return pb.CommonResponse(header=_ok(self.code, self.message))

    async def ListStorage(self, request: Any, context: Any) -> pb.ListStorageResponse:
        self.entered.set()
        if self.silent:
            await asyncio.Event().wait()
        storages = await self.fake.list_storages()
        reply = pb.ListStorageResponse(header=_ok(self.code, self.message), storage=[storage_to_proto(item) for item in storages])
        reply.disabled_storage_names.extend(item.name for item in storages if not item.enabled)
        return reply

    async def AddStorage(self, request: Any, context: Any) -> pb.CommonResponse:
        return await self._common(self.fake.add_storage(storage_from_proto(request.storage)))

    async def UpdateStorage(self, request: Any, context: Any) -> pb.CommonResponse:
        return await self._common(self.fake.update_storage(storage_from_proto(request.storage), force=request.force_update))

    async def EnableStorage(self, request: Any, context: Any) -> pb.CommonResponse:
        return await self._common(self.fake.enable_storage(request.storage_unique_name))

    async def DisableStorage(self, request: Any, context: Any) -> pb.CommonResponse:
        return await self._common(self.fake.disable_storage(request.storage_unique_name))

    async def RemoveStorage(self, request: Any, context: Any) -> pb.CommonResponse:
        return await self._common(self.fake.remove_storage(request.storage_unique_name))

    async def ListInstanceGroup(self, request: Any, context: Any) -> pb.ListInstanceGroupResponse:
        return pb.ListInstanceGroupResponse(header=_ok(), instance_group=[group_to_proto(item) for item in await self.fake.list_groups()])

    async def CreateInstanceGroup(self, request: Any, context: Any) -> pb.CommonResponse:
        return await self._common(self.fake.create_group(group_from_proto(request.instance_group)))

    async def UpdateInstanceGroup(self, request: Any, context: Any) -> pb.CommonResponse:
        return await self._common(self.fake.update_group(group_from_proto(request.instance_group), request.current_version))

    async def RemoveInstanceGroup(self, request: Any, context: Any) -> pb.CommonResponse:
        return await self._common(self.fake.remove_group(request.name))

    async def ListInstanceInfo(self, request: Any, context: Any) -> pb.ListInstanceInfoResponse:
        info = pb.InstanceInfo(instance_id="i", instance_group_name=request.instance_group_name, quota_group_name="q", block_size=16)
        info.location_spec_infos.add(name="tp0", size=8)
        info.model_deployment.model_name, info.model_deployment.dtype = "m", "fp8"
        return pb.ListInstanceInfoResponse(header=_ok(), instance_info=[info])

    async def GetManagerClusterInfo(self, request: Any, context: Any) -> pb.GetManagerClusterInfoResponse:
        endpoint = pb.NodeEndpoint(node_id="n2", host="h", meta_rpc_port=1, meta_http_port=2, admin_rpc_port=3, admin_http_port=4)
        return pb.GetManagerClusterInfoResponse(header=_ok(), self_node_id="n1", leader_node_id="n2", self_leader_expiration_time=-1, leader_endpoint=endpoint)

    async def CheckHealth(self, request: Any, context: Any) -> pb.CheckHealthResponse:
        return pb.CheckHealthResponse(header=_ok(), is_leader=True, is_health=True, elector_last_loop_time_ms=5)


@asynccontextmanager
async def _served(servicer: Any) -> AsyncIterator[tuple[grpc.aio.Server, str]]:
    server = grpc.aio.server()
    pb_grpc.add_AdminServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def _with_client(work: Callable[[AdminClient, Servicer], Awaitable[None]], *, timeout_s: float = 20.0) -> None:
    async def run() -> None:
        servicer = Servicer()
        async with _served(servicer) as (_, address), AdminClient(address, timeout_s=timeout_s, failover_s=0) as client:
            await work(client, servicer)

    asyncio.run(run())


def test_storages_and_groups_survive_the_wire() -> None:
    async def work(client: AdminClient, servicer: Servicer) -> None:
        await client.add_storage(NFS)
        await client.disable_storage("nfs_01")
        assert await client.list_storages() == [replace(NFS, enabled=False)]
        await client.enable_storage("nfs_01")
        await client.update_storage(replace(NFS, spec=NfsSpec("/data/", 4)), force=True)
        assert await client.list_storages() == [replace(NFS, spec=NfsSpec("/data/", 4))]
        await client.create_group(GROUP)
        await client.update_group(replace(GROUP, version=2, user_data="x"), 1)
        assert await client.list_groups() == [replace(GROUP, version=2, user_data="x")]
        await client.remove_group("g")
        await client.remove_storage("nfs_01")
        assert (await client.list_storages(), await client.list_groups()) == ([], [])
        assert [instance.instance_id for instance in await client.list_instances("g")] == ["i"]

    _with_client(work)


def test_a_manager_that_tells_no_states_leaves_them_open() -> None:
    async def work(client: AdminClient, servicer: Servicer) -> None:
        await client.add_storage(NFS)
        await client.create_group(GROUP)
        assert await client.describe_storages() == [StorageView(NFS, None)]
        assert await client.describe_groups() == [GroupView(GROUP, None)]

    _with_client(work)


def test_cluster_and_health() -> None:
    async def work(client: AdminClient, servicer: Servicer) -> None:
        info = await client.cluster_info()
        assert (info.self_node_id, info.leader_node_id, info.leader_expiration_us) == ("n1", "n2", -1)
        assert info.leader is not None
        assert (info.leader.host, info.leader.admin_rpc_port) == ("h", 3)
        health = await client.check_health()
        assert (health.healthy, health.leader, health.elector_last_loop_ms) == (True, True, 5)

    _with_client(work)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, Unsupported),
        (3, AdminCallFailed),
        (4, NotReady),
        (5, InvalidArgument),
        (6, DuplicateEntity),
        (7, CapacityReached),
        (8, NotFound),
        (9, NotLeader),
        (20, StorageError),
        (0, AdminCallFailed),
        (100, AdminCallFailed),
        (4242, AdminCallFailed),
    ],
)
def test_codes_of_the_manager_become_errors_with_its_sentence(code: int, kind: type[KvcmError]) -> None:
    async def work(client: AdminClient, servicer: Servicer) -> None:
        servicer.code, servicer.message = code, "because"
        with pytest.raises(kind) as caught:
            await client.add_storage(NFS)
        assert type(caught.value) is kind
        assert caught.value.message == "because"
        servicer.message = ""
        with pytest.raises(kind) as caught:
            await client.remove_storage("nfs_01")
        assert "RemoveStorage" in caught.value.message

    _with_client(work)


def test_a_silent_manager_is_not_ready_for_reads_and_unknown_for_writes() -> None:
    async def work(client: AdminClient, servicer: Servicer) -> None:
        servicer.silent = True
        with pytest.raises(NotReady, match="did not answer ListStorage within"):
            await client.list_storages()
        with pytest.raises(OutcomeUnknown, match=r"did not answer AddStorage within .* it may have been carried out"):
            await client.add_storage(NFS)
        assert "nfs_01" in servicer.fake.storages

    _with_client(work, timeout_s=0.5)


def test_a_connection_that_breaks_during_a_write_leaves_the_outcome_unknown() -> None:
    async def run() -> None:
        servicer = Servicer()
        servicer.silent = True
        async with _served(servicer) as (server, address), AdminClient(address, timeout_s=20) as client:
            call = asyncio.create_task(client.add_storage(NFS))
            await servicer.entered.wait()
            await server.stop(0)
            with pytest.raises(OutcomeUnknown, match="may have been carried out"):
                await call

    asyncio.run(run())


def test_nobody_there_and_closed_are_unreachable() -> None:
    async def run() -> None:
        async with _served(Servicer()) as (_, address):
            pass
        client = AdminClient(address, timeout_s=20)
        async with client:
            with pytest.raises(ManagerUnreachable, match=f"no manager can be reached at {address}"):
                await client.add_storage(NFS)
        with pytest.raises(ManagerUnreachable, match="closed"):
            await client.list_storages()

    asyncio.run(run())


def test_another_service_on_that_port_is_said() -> None:
    async def run() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with AdminClient(f"127.0.0.1:{port}", timeout_s=20) as client:
                with pytest.raises(Unsupported, match="is this the admin gRPC port"):
                    await client.list_storages()
        finally:
            await server.stop(0)

    asyncio.run(run())


def test_a_reply_that_cannot_be_read_is_the_managers_fault() -> None:
    class Odd(Servicer):
        async def ListStorage(self, request: Any, context: Any) -> pb.ListStorageResponse:
            return pb.ListStorageResponse(header=_ok(), storage=[pb.StorageConfig(global_unique_name="x")])

    async def run() -> None:
        async with _served(Odd()) as (_, address), AdminClient(address, timeout_s=20) as client:
            with pytest.raises(AdminCallFailed, match="something this version cannot read"):
                await client.list_storages()

    asyncio.run(run())

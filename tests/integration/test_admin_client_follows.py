"""AdminClient over real sockets when the node that it was given does not lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from kvcm.client.admin_client import AdminClient, ManagerUnreachable
from kvcm.client.errors import InvalidClientConfig
from kvcm.common.errors import NotLeader, OutcomeUnknown
from kvcm.protocol import admin_service_pb2 as pb
from kvcm.protocol import admin_service_pb2_grpc as pb_grpc

pytestmark = pytest.mark.integration


class Node(pb_grpc.AdminServiceServicer):
    """`hint`: (id of the leader, its host, its port, epoch), or None while it knows of none. Leads when that is itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.hint: tuple[str, str, int, int] | None = None
        self.calls: list[str] = []
        self.break_off = False

    def lead(self, *nodes: Node, epoch: int) -> None:
        """The others know too."""
        for node in (self, *nodes):
            node.hint = (self.name, "127.0.0.1", self.port, epoch)

    async def _leader(self, name: str, context: Any) -> pb.CommonResponseHeader:
        self.calls.append(name)
        if self.break_off:
            await context.abort(grpc.StatusCode.CANCELLED, "closing")
        leads = self.hint is not None and self.hint[0] == self.name
        return pb.CommonResponseHeader(status=pb.Status(code=pb.OK if leads else pb.SERVER_NOT_LEADER))

    async def ListStorage(self, request: Any, context: Any) -> pb.ListStorageResponse:
        return pb.ListStorageResponse(header=await self._leader("ListStorage", context))

    async def EnableStorage(self, request: Any, context: Any) -> pb.CommonResponse:
        return pb.CommonResponse(header=await self._leader("EnableStorage", context))

    async def CheckHealth(self, request: Any, context: Any) -> pb.CheckHealthResponse:
        self.calls.append("CheckHealth")
        return pb.CheckHealthResponse(header=pb.CommonResponseHeader(status=pb.Status(code=pb.OK)), is_health=True)

    async def LeaderDemote(self, request: Any, context: Any) -> pb.CommonResponse:
        return pb.CommonResponse(header=await self._leader("LeaderDemote", context))

    async def GetManagerClusterInfo(self, request: Any, context: Any) -> pb.GetManagerClusterInfoResponse:
        reply = pb.GetManagerClusterInfoResponse(header=pb.CommonResponseHeader(status=pb.Status(code=pb.OK)), self_node_id=self.name)
        if self.hint is not None:
            reply.leader_node_id, host, port, reply.leader_epoch = self.hint
            reply.leader_endpoint.host, reply.leader_endpoint.admin_rpc_port = host, port
        return reply


@asynccontextmanager
async def _three() -> AsyncIterator[tuple[list[Node], list[grpc.aio.Server]]]:
    nodes, servers = [Node(name) for name in "abc"], [grpc.aio.server() for _ in range(3)]
    for node, server in zip(nodes, servers, strict=True):
        pb_grpc.add_AdminServiceServicer_to_server(node, server)  # type: ignore[no-untyped-call]  # generated
        node.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
    try:
        yield nodes, servers
    finally:
        for server in servers:
            await server.stop(0)


Story = Callable[[list[Node], list[Any], AdminClient], Awaitable[None]]


def _tell(story: Story, *, every: bool = False, failover_s: float = 1.0) -> None:
    async def run() -> None:
        async with _three() as (nodes, servers):
            addresses = [f"127.0.0.1:{node.port}" for node in nodes]
            async with AdminClient(addresses if every else addresses[0], timeout_s=20, failover_s=failover_s) as client:
                await story(nodes, servers, client)

    asyncio.run(run())


def test_calls_to_the_leader_follow_it_and_calls_to_a_node_stay() -> None:
    async def story(nodes: list[Node], servers: list[Any], client: AdminClient) -> None:
        a, b, c = nodes
        b.lead(a, c, epoch=1)
        await client.enable_storage("s")
        assert await client.list_storages() == []
        assert (a.calls, b.calls) == (["EnableStorage"], ["EnableStorage", "ListStorage"])
        assert (await client.check_health()).healthy
        assert a.calls[-1] == "CheckHealth"
        c.lead(a, b, epoch=2)
        await client.enable_storage("s")
        assert c.calls == ["EnableStorage"]

    _tell(story)


def test_a_node_that_is_gone_costs_no_change() -> None:
    async def story(nodes: list[Node], servers: list[Any], client: AdminClient) -> None:
        a, b, c = nodes
        a.lead(b, c, epoch=1)
        await client.enable_storage("s")
        await servers[0].stop(0)
        c.lead(b, epoch=2)
        await client.enable_storage("s")
        assert (a.calls, c.calls) == (["EnableStorage"], ["EnableStorage"])

    _tell(story, every=True)


def test_a_change_that_a_closing_node_cut_off_is_unknown_and_a_read_goes_on_elsewhere() -> None:
    async def story(nodes: list[Node], servers: list[Any], client: AdminClient) -> None:
        a, b, c = nodes
        a.break_off = True
        a.hint = ("a", "127.0.0.1", a.port, 1)
        b.lead(c, epoch=2)
        with pytest.raises(OutcomeUnknown):
            await client.enable_storage("s")
        assert b.calls == []
        await client.list_storages()
        assert b.calls == ["ListStorage"]

    _tell(story, every=True)


def test_the_newest_leadership_is_followed_and_an_older_one_is_not_believed() -> None:
    async def story(nodes: list[Node], servers: list[Any], client: AdminClient) -> None:
        a, b, c = nodes
        b.lead(a, c, epoch=5)
        c.hint = ("c", "127.0.0.1", c.port, 6)
        b.hint = None
        await client.enable_storage("s")
        assert (b.calls, c.calls) == ([], ["EnableStorage"])
        # c steps down; a still names b of before.
        a.hint = ("b", "127.0.0.1", b.port, 5)
        c.hint = None
        with pytest.raises(NotLeader):
            await client.enable_storage("s")
        assert b.calls == []

    _tell(story, every=True, failover_s=0.2)


def test_a_leader_that_cannot_be_reached_where_it_says_is_asked_where_it_answered() -> None:
    async def story(nodes: list[Node], servers: list[Any], client: AdminClient) -> None:
        a, b, _ = nodes
        # As from outside a cluster: its own address is of no use here.
        b.hint = a.hint = ("b", "127.0.0.1", 1, 3)
        await client.enable_storage("s")
        assert (a.calls, b.calls) == (["EnableStorage"], ["EnableStorage"])

    _tell(story, every=True)


def test_without_a_leader_the_answer_is_not_leader_in_bounded_time() -> None:
    async def story(nodes: list[Node], servers: list[Any], client: AdminClient) -> None:
        with pytest.raises(NotLeader):
            await client.list_storages()
        assert 2 <= len(nodes[0].calls) <= 64

    _tell(story, failover_s=0.3)


def test_what_concerns_one_node_goes_to_the_first_that_can_be_reached_and_stays_there() -> None:
    async def story(nodes: list[Node], servers: list[Any], client: AdminClient) -> None:
        a, b, c = nodes
        c.lead(a, b, epoch=1)
        assert (await client.cluster_info()).self_node_id == "a"
        await servers[0].stop(0)
        assert (await client.cluster_info()).self_node_id == "b"
        await client.check_health()
        assert (a.calls, b.calls, c.calls) == ([], ["CheckHealth"], [])
        await client.enable_storage("s")
        assert c.calls == ["EnableStorage"]
        await servers[1].stop(0)
        assert (await client.cluster_info()).self_node_id == "c"
        await servers[2].stop(0)
        with pytest.raises(ManagerUnreachable, match=f"at any of .*{b.port}"):
            await client.cluster_info()

    _tell(story, every=True)


def test_one_dead_address_says_itself_what_is_wrong() -> None:
    async def story(nodes: list[Node], servers: list[Any], client: AdminClient) -> None:
        await servers[0].stop(0)
        with pytest.raises(ManagerUnreachable, match=f"no manager can be reached at 127.0.0.1:{nodes[0].port}"):
            await client.cluster_info()

    _tell(story)


def test_on_request_the_leader_is_the_node_that_is_asked() -> None:
    async def story(nodes: list[Node], servers: list[Any], client: AdminClient) -> None:
        a, b, c = nodes
        with pytest.raises(NotLeader, match="none of the managers leads now"):
            await client.go_to_leader()
        c.lead(a, b, epoch=1)
        await client.go_to_leader()
        await client.leader_demote()
        await client.check_health()
        assert (a.calls, b.calls, c.calls) == ([], [], ["LeaderDemote", "CheckHealth"])

    _tell(story, every=True)


def test_addresses_that_name_nobody() -> None:
    async def run() -> None:
        with pytest.raises(ManagerUnreachable, match="no manager is known"):
            async with AdminClient("dns://no-such-name.invalid"):
                pass
        with pytest.raises(InvalidClientConfig, match="host:port"):
            AdminClient("nowhere")

    asyncio.run(run())

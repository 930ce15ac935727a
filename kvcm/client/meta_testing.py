"""Scripted nodes for tests of what a metadata client does when nodes die, follow, or lose an answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from kvcm.client import meta_commands
from kvcm.client.config import ClientConfig
from kvcm.client.errors import AccessDenied, RpcFailed
from kvcm.client.meta_commands import Flow
from kvcm.client.meta_core import MetaCore
from kvcm.client.security import PLAIN, ClientSecurity
from kvcm.protocol import meta_service_pb2 as pb

T = TypeVar("T")


class Cluster:
    """Nodes by address. `leader` leads, `down` do not answer, `hint` is what nodes say when asked who leads."""

    def __init__(self, *addresses: str, leader: str) -> None:
        self.addresses = addresses
        self.leader = leader
        self.hint: str | None = leader
        self.down: set[str] = set()
        self.register_code = 1
        self.log: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.locked = False
        self.now = 0.0
        self.break_next: str | None = None
        self.hung: set[str] = set()
        """Connections are taken, and nothing answers: each call costs its time-out."""
        self.denied: set[str] = set()
        self.epochs: dict[str, int] = {}
        self.hints: dict[str, str] = {}
        self.never_sent = False
        self.break_with = "UNAVAILABLE"
        self.surveys: list[tuple[str, ...]] = []
        self.on_pause: Callable[[], None] = lambda: None
        self.on_dial: Callable[[str], None] = lambda address: None
        self.blocks: Callable[[str], tuple[int, str]] = lambda address: (0, "")

    def core(self, *addresses: str, security: ClientSecurity = PLAIN, **channel: int) -> MetaCore:
        """`channel`: settings of meta_channel_config."""
        config = {
            "meta_channel_config": channel,
            "instance_group": "g",
            "instance_id": "i",
            "block_size": 1,
            "address": list(addresses),
            "location_spec_infos": {"tp0": 1},
            "model_deployment": {"model_name": "m", "dtype": "d"},
        }
        return MetaCore(replace(ClientConfig.parse(config), security=security), lambda: self.now, lambda: 1.0)

    def run(self, flow: Flow[T]) -> T:
        step: Callable[[], Any] = flow.__next__
        while True:
            try:
                command = step()
            except StopIteration as end:
                assert not self.locked
                result: T = end.value
                return result
            try:
                answer = self._perform(command)
            except RpcFailed as error:
                step = functools.partial(flow.throw, error)
            else:
                step = functools.partial(flow.send, answer)

    def _perform(self, command: meta_commands.Command) -> Any:
        match command:
            case meta_commands.Pause(seconds):
                assert seconds > 0
                assert not self.locked
                self.now += seconds
                self.on_pause()
                return None
            case meta_commands.LookUp(seeds, timeout_s):
                return seeds.refresh(timeout_s)
            case meta_commands.Survey():
                return self._survey(command)
            case meta_commands.Dial(address):
                self.open.append(address)
                self.on_dial(address)
                return address
            case meta_commands.HangUp(handle):
                self.open.remove(handle)
                return None
            case meta_commands.EnterSearch():
                assert not self.locked
                self.locked = True
                return True
            case meta_commands.LeaveSearch():
                self.locked = False
                return None
            case meta_commands.Invoke():
                return self._reply(command)

    def _survey(self, command: meta_commands.Survey) -> list[tuple[str, Any]]:
        self.surveys.append(command.addresses)
        before = self.now
        answers = [(address, self._try(meta_commands.Invoke(address, address, command.method, command.request, 1))) for address in command.addresses]
        self.now = before  # all at once, and those that hang are not waited for
        return [(address, reply) for address, reply in answers if reply is not None]

    def _try(self, command: meta_commands.Invoke) -> Any:
        try:
            return self._reply(command)
        except RpcFailed:
            return None
        finally:
            self.log.pop()

    def _reply(self, command: meta_commands.Invoke) -> Any:
        self.log.append((command.address, command.method))
        if command.address in self.hung:
            self.now += command.timeout_s
            raise RpcFailed("silent", grpc_status="DEADLINE_EXCEEDED", may_have_run=True)
        if command.address in self.down or self.break_next == command.method:
            self.break_next = None
            raise RpcFailed("gone", grpc_status=self.break_with, may_have_run=not self.never_sent)
        if command.address in self.denied:
            raise AccessDenied("wants a token", grpc_status="UNAUTHENTICATED", may_have_run=False)
        leads = command.address == self.leader
        status = pb.Status(code=pb.OK if leads else pb.SERVER_NOT_LEADER)
        header = pb.CommonResponseHeader(status=status)
        if command.method == "RegisterInstance":
            if self.register_code != 1:
                status = pb.Status(code=self.register_code, message="no such group")  # type: ignore[arg-type]
                header = pb.CommonResponseHeader(status=status)
            return pb.RegisterInstanceResponse(header=header, storage_configs=f"[{command.address}]")
        if command.method == "GetClusterInfo":
            reply = pb.GetClusterInfoResponse(header=pb.CommonResponseHeader(status=pb.Status(code=pb.OK)))
            hint = self.hints.get(command.address, self.hint)
            if hint:
                host, _, port = hint.partition(":")
                reply.leader_endpoint.host, reply.leader_endpoint.meta_rpc_port = host, int(port)
                reply.leader_epoch = self.epochs.get(hint, 0)
            return reply
        if command.method == "StartWriteCache":
            place = pb.CacheLocation(location_specs=[pb.LocationSpec(name="tp0", uri="file://s/k1_nonce")])
            return pb.StartWriteCacheResponse(header=header, write_session_id="w", block_mask=pb.BlockMask(offset=0), locations=[place])
        if command.method == "GetCacheMetaDetail" and leads:
            state, uri = self.blocks(command.address)
            detail = pb.GetCacheMetaDetailResponse(header=header)
            spec = pb.LocationSpec(name="tp0", uri=uri)
            detail.items.add(block_key=1).locations.add(status=state, location_specs=[spec])
            return detail
        return pb.CommonResponse(header=header)

"""gRPC server reflection on every gRPC listener: what grpcurl and its like ask, answered without any .proto file at hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2 as wire

from kvcm.common.testing_ports import free_port
from kvcm.protocol import admin_service_pb2, meta_service_pb2
from kvcm.service.grpc import reflection as module
from kvcm.service.grpc.reflection import NAMES, Reflection
from kvcm.service.testing import InProcessManager

pytestmark = pytest.mark.integration
META, ADMIN = "kv_cache_manager.proto.meta.MetaService", "kv_cache_manager.proto.admin.AdminService"
Ask = Callable[[Iterable[Any]], Awaitable[list[Any]]]


def asker(channel: grpc.aio.Channel, name: str = NAMES[0]) -> Ask:
    method: Any = channel.stream_stream(
        f"/{name}/ServerReflectionInfo", wire.ServerReflectionRequest.SerializeToString, wire.ServerReflectionResponse.FromString
    )

    async def ask(requests: Iterable[Any]) -> list[Any]:
        return [reply async for reply in method(iter(requests), timeout=10)]

    return ask


def with_manager(script: Callable[[Any], Awaitable[None]], **settings: str) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(20), InProcessManager({f"kvcm.service.{key}": value for key, value in settings.items()}) as server:
            await script(server.endpoint)

    asyncio.run(scenario())


def channel_to(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}")


@pytest.mark.parametrize("name", NAMES)
def test_services_are_listed_and_a_client_can_build_messages_from_the_answer_alone(name: str) -> None:
    async def script(endpoint: Any) -> None:
        async with channel_to(endpoint.meta_rpc_port) as channel:
            listed, files = await asker(channel, name)(
                [wire.ServerReflectionRequest(list_services=""), wire.ServerReflectionRequest(file_containing_symbol=f"{META}.GetCacheLocation")]
            )
        names = [service.name for service in listed.list_services_response.service]
        assert names == sorted([META, ADMIN, "grpc.health.v1.Health", *NAMES])
        pool = descriptor_pool.DescriptorPool()
        contents = [descriptor_pb2.FileDescriptorProto.FromString(text) for text in files.file_descriptor_response.file_descriptor_proto]
        assert contents[0].package == "kv_cache_manager.proto.meta"
        for content in reversed(contents):
            pool.Add(content)
        method = pool.FindServiceByName(META).methods_by_name["GetCacheLocation"]
        fields = {field.name: field.number for field in method.input_type.fields}
        assert fields == {field.name: field.number for field in meta_service_pb2.GetCacheLocationRequest.DESCRIPTOR.fields}

    with_manager(script)


def test_each_listener_lists_what_is_behind_it() -> None:
    async def script(endpoint: Any) -> None:
        listed: dict[str, set[str]] = {}
        for name, port in (("meta", endpoint.meta_rpc_port), ("admin", endpoint.admin_rpc_port)):
            async with channel_to(port) as channel:
                (reply,) = await asker(channel)([wire.ServerReflectionRequest(list_services="")])
            listed[name] = {service.name for service in reply.list_services_response.service if service.name.startswith("kv_cache_manager.")}
        assert listed["meta"] == {META}
        assert listed["admin"] == {ADMIN, "kv_cache_manager.proto.debug.DebugService"}

    # A port number is needed for a second listener; 0 shares the first one.
    with_manager(script, admin_rpc_port=str(free_port()), enable_debug_service="true")


def test_it_can_be_switched_off() -> None:
    async def script(endpoint: Any) -> None:
        async with channel_to(endpoint.meta_rpc_port) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asker(channel)([wire.ServerReflectionRequest(list_services="")])
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    with_manager(script, grpc_reflection="false")


def test_questions_without_an_answer_are_errors_inside_the_reply() -> None:
    reflection = Reflection([META])
    extension = wire.ExtensionRequest(containing_type=f"{META[:-12]}.Status", extension_number=5)
    for request, code in (
        (wire.ServerReflectionRequest(file_containing_symbol="kv_cache_manager.proto.admin.AdminService"), grpc.StatusCode.NOT_FOUND),
        (wire.ServerReflectionRequest(file_by_filename="/etc/passwd"), grpc.StatusCode.NOT_FOUND),
        (wire.ServerReflectionRequest(all_extension_numbers_of_type="x"), grpc.StatusCode.NOT_FOUND),
        (wire.ServerReflectionRequest(file_containing_extension=extension), grpc.StatusCode.NOT_FOUND),
        (wire.ServerReflectionRequest(), grpc.StatusCode.INVALID_ARGUMENT),
    ):
        reply = reflection.answer(request)
        assert reply.error_response.error_code == code.value[0]
        assert reply.original_request == request
    known = reflection.answer(wire.ServerReflectionRequest(all_extension_numbers_of_type="kv_cache_manager.proto.meta.Status"))
    assert known.all_extension_numbers_response.base_type_name == "kv_cache_manager.proto.meta.Status"


def test_files_come_with_all_that_they_need() -> None:
    reflection = Reflection([ADMIN])
    reply = reflection.answer(wire.ServerReflectionRequest(file_by_filename=admin_service_pb2.DESCRIPTOR.name))
    names = [descriptor_pb2.FileDescriptorProto.FromString(text).name for text in reply.file_descriptor_response.file_descriptor_proto]
    assert names == [admin_service_pb2.DESCRIPTOR.name, "google/protobuf/wrappers.proto"]
    wrapper = reflection.answer(wire.ServerReflectionRequest(file_containing_symbol="google.protobuf.Int64Value"))
    assert len(wrapper.file_descriptor_response.file_descriptor_proto) == 1


def test_open_streams_are_bounded_and_end_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 1)

    async def script(endpoint: Any) -> None:
        async with channel_to(endpoint.meta_rpc_port) as channel:
            method: Any = channel.stream_stream(
                f"/{NAMES[1]}/ServerReflectionInfo", wire.ServerReflectionRequest.SerializeToString, wire.ServerReflectionResponse.FromString
            )
            first = method()
            await first.write(wire.ServerReflectionRequest(list_services=""))
            assert (await first.read()).WhichOneof("message_response") == "list_services_response"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asker(channel)([wire.ServerReflectionRequest(list_services="")])
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await first.done_writing()
            assert await first.code() is grpc.StatusCode.OK
            assert len(await asker(channel)([wire.ServerReflectionRequest(list_services="")])) == 1

    with_manager(script)


def test_a_silent_stream_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 0.05)

    async def script(endpoint: Any) -> None:
        async with channel_to(endpoint.meta_rpc_port) as channel:
            method: Any = channel.stream_stream(f"/{NAMES[1]}/ServerReflectionInfo", None, None)
            stream = method()
            assert [reply async for reply in stream] == []
            assert await stream.code() is grpc.StatusCode.OK

    with_manager(script)


def test_a_stop_does_not_wait_for_an_open_stream() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(20):
            manager = InProcessManager()
            server = await manager.__aenter__()
            async with channel_to(server.endpoint.meta_rpc_port) as channel:
                method: Any = channel.stream_stream(f"/{NAMES[0]}/ServerReflectionInfo", None, wire.ServerReflectionResponse.FromString)
                stream = method()
                await stream.write(wire.ServerReflectionRequest(list_services="").SerializeToString())
                await stream.read()
                await manager.__aexit__(None, None, None)
                assert await stream.code() is grpc.StatusCode.OK

    asyncio.run(scenario())

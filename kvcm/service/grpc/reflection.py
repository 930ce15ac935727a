"""gRPC server reflection, v1 and v1alpha, so that grpcurl and its like need no .proto files. Ours; upstream has none.

Not the servicer of grpcio-reflection: that one knows v1alpha only, and its streams never end, so a graceful stop would always take its whole grace
time. The messages are its (those of v1 have the same numbers). Only files that the listener's services need are given out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2 as wire

from kvcm.service.grpc.unsent import begin

NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
MAX_STREAMS = 64
_IDLE_S = 60.0
_END: Any = vars(grpc.aio)["EOF"]  # not in the stubs
_NOT_FOUND = int(grpc.StatusCode.NOT_FOUND.value[0])
_INVALID = int(grpc.StatusCode.INVALID_ARGUMENT.value[0])


class Reflection:
    """`services`: full names behind this listener whose protos are known; `others`: names to list as well."""

    def __init__(self, services: Collection[str], others: Collection[str] = ()) -> None:
        pool = descriptor_pool.Default()
        self._listed = sorted({*services, *others, *NAMES})
        self._files: dict[str, Any] = {}
        for name in services:
            self._add(pool.FindServiceByName(name).file)
        self._symbols = {symbol: file for file in self._files.values() for symbol in _symbols(file)}
        self._messages = {message for file in self._files.values() for message in _messages(file)}
        self._closing = asyncio.Event()
        self._streams = 0

    def close(self) -> None:
        """End every stream; later ones end at once."""
        self._closing.set()

    def handlers(self) -> list[Any]:
        method = grpc.stream_stream_rpc_method_handler(
            self._info,
            wire.ServerReflectionRequest.FromString,
            wire.ServerReflectionResponse.SerializeToString,
        )
        return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}) for name in NAMES]

    def answer(self, request: Any) -> Any:
        """The reply to one question; what is not known is an error inside it."""
        reply = wire.ServerReflectionResponse(valid_host=request.host, original_request=request)
        match request.WhichOneof("message_request"):
            case "list_services":
                reply.list_services_response.service.extend(wire.ServiceResponse(name=name) for name in self._listed)
            case "file_by_filename":
                self._give(reply, self._files.get(request.file_by_filename), "file")
            case "file_containing_symbol":
                self._give(reply, self._symbols.get(request.file_containing_symbol), "symbol")
            case "all_extension_numbers_of_type" if request.all_extension_numbers_of_type in self._messages:
                # Messages of proto3 have no extensions.
                reply.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
            case "all_extension_numbers_of_type" | "file_containing_extension":
                _refuse(reply, _NOT_FOUND, "no such extension")
            case _:
                _refuse(reply, _INVALID, "the request asks nothing")
        return reply

    async def _info(self, requests: Any, context: Any) -> None:
        begin(context)
        if self._streams >= MAX_STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many reflection streams are open")
        self._streams += 1
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while True:
                reading = asyncio.ensure_future(context.read())
                await asyncio.wait({reading, closing}, timeout=_IDLE_S, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    return
                request = reading.result()
                if request is _END:
                    return
                await context.write(self.answer(request))
        finally:
            closing.cancel()
            self._streams -= 1

    def _add(self, file: Any) -> None:
        if file.name not in self._files:
            self._files[file.name] = file
            for needed in file.dependencies:
                self._add(needed)

    def _give(self, reply: Any, file: Any, what: str) -> None:
        """The file that was asked for first, then all it needs: clients take the first one for their answer."""
        if file is None:
            _refuse(reply, _NOT_FOUND, f"no such {what}")
            return
        ordered: dict[str, bytes] = {}
        _collect(file, ordered)
        reply.file_descriptor_response.file_descriptor_proto.extend(ordered.values())


def _refuse(reply: Any, code: int, text: str) -> None:
    reply.error_response.error_code = code
    reply.error_response.error_message = text


def _collect(file: Any, ordered: dict[str, bytes]) -> None:
    if file.name in ordered:
        return
    content = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(content)
    ordered[file.name] = content.SerializeToString()
    for needed in file.dependencies:
        _collect(needed, ordered)


def _symbols(file: Any) -> list[str]:
    found = list(_messages(file))
    for service in file.services_by_name.values():
        found += [service.full_name, *(method.full_name for method in service.methods)]
    enums = list(file.enum_types_by_name.values())
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        waiting.extend(message.nested_types)
        enums.extend(message.enum_types)
        found += [field.full_name for field in message.fields]
    return found + [enum.full_name for enum in enums]


def _messages(file: Any) -> list[str]:
    found, waiting = [], list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        found.append(message.full_name)
        waiting.extend(message.nested_types)
    return found

"""Plausible requests for every RPC of the three services, as JSON and as bytes: what fuzzers start from.

Made from the descriptors: each message once with every field filled and once empty, plus a few that a manager with the built-in group serves to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from kvcm.protocol import admin_service_pb2, debug_service_pb2, meta_service_pb2
from kvcm.protocol.json_codec import json_to_message, message_to_json
from kvcm.protocol.json_writer import is_map

_MODULES: tuple[Any, ...] = (meta_service_pb2, admin_service_pb2, debug_service_pb2)
_MAX_DEPTH = 6
_DEPLOYMENT = '{"model_name":"m","dtype":"FP8","tp_size":1,"dp_size":1,"pp_size":1}'
_SERVED = (
    (
        "RegisterInstance",
        f'{{"instance_group":"default","instance_id":"i","block_size":4,"model_deployment":{_DEPLOYMENT},"location_spec_infos":[{{"name":"tp0","size":8}}]}}',
    ),
    ("StartWriteCache", '{"instance_id":"i","block_keys":[1,2,3],"write_timeout_seconds":1}'),
    ("GetCacheLocation", '{"instance_id":"i","query_type":2,"block_keys":[1,2,3],"block_mask":{"offset":0}}'),
    ("GetCacheLocation", '{"instance_id":"i","query_type":3,"block_keys":[1,2,3],"sw_size":2}'),
    ("GetCacheMeta", '{"instance_id":"i","block_keys":[1,2,3]}'),
    ("FinishWriteCache", '{"instance_id":"i","write_session_id":"x","success_blocks":{"bool_masks":{"values":[true,false]}}}'),
    ("TrimCache", '{"instance_id":"i","strategy":"TS_REMOVE_ALL_CACHE"}'),
)


@dataclass(frozen=True, slots=True)
class FuzzCall:
    """`path` is `/<service>/<method>`; `json` and `wire` are the same request."""

    rpc: str
    path: str
    json: bytes
    wire: bytes


def calls_of() -> list[FuzzCall]:
    found = []
    for module in _MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                request_cls = getattr(module, method.input_type.name)
                served = [json_to_message(text.encode(), request_cls) for name, text in _SERVED if name == method.name]
                for request in (request_cls(), filled(request_cls), *served):
                    path = f"/{service.full_name}/{method.name}"
                    found.append(FuzzCall(method.name, path, message_to_json(request), request.SerializeToString()))
    return found


def filled(cls: Any, depth: int = 0) -> Any:
    """A message with something in every field; of a oneof the last member."""
    message = cls()
    for field in message.DESCRIPTOR.fields:
        if is_map(field):
            getattr(message, field.name)["k"] = "v"
        elif field.message_type is not None:
            if depth < _MAX_DEPTH:
                child = filled(field.message_type._concrete_class, depth + 1)
                if field.is_repeated:
                    getattr(message, field.name).append(child)
                else:
                    getattr(message, field.name).CopyFrom(child)
        elif field.is_repeated:
            getattr(message, field.name).append(_some(field))
        else:
            setattr(message, field.name, _some(field))
    return message


def _some(field: FieldDescriptor) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return {"instance_id": "i", "instance_group": "default", "instance_group_name": "default", "name": "tp0"}.get(field.name, "x")
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    return {FieldDescriptor.CPPTYPE_BOOL: True, FieldDescriptor.CPPTYPE_DOUBLE: 0.5}.get(field.cpp_type, 2)

"""Every MetaService operation as a value: the request, how to read its reply, and whether repeating it is harmless. No transport here.

Replies are checked where a wrong one would make the caller lose or overwrite data: a missing status is an error, and StartWrite must hand out
exactly one location for each block that its mask leaves open (INV-C1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kvcm.client.config import ClientConfig
from kvcm.client.errors import InvalidCall, ServiceInternal, service_error
from kvcm.client.types import (
    BlockMask,
    ClusterInfo,
    InstanceInfo,
    Location,
    LocationSpec,
    MatchResult,
    Metas,
    NodeEndpoint,
    QueryType,
    TrimStrategy,
    WriteLocation,
)
from kvcm.common.errors import ErrorCode
from kvcm.protocol import meta_service_pb2 as pb

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    """`method` is the RPC's name; `read` turns its reply into the result; `mutation` calls are never repeated when their outcome is unknown.

    `details`: replies with an error carry results too.
    """

    method: str
    request: Any
    read: Callable[[Any], T]
    mutation: bool = False
    details: bool = False


@dataclass(frozen=True, slots=True)
class Registration:
    """What RegisterInstance answers: the stores (JSON array text) and the group's extra text."""

    storage_configs: str
    extra_info: str


def register(config: ClientConfig, trace_id: str = "") -> Operation[Registration]:
    """Idempotent on the server (wire contract 4.4), so it does not count as a mutation."""
    deployment = config.model_deployment
    request = pb.RegisterInstanceRequest(
        trace_id=trace_id,
        instance_group=config.instance_group,
        instance_id=config.instance_id,
        block_size=config.block_size,
        location_spec_infos=[pb.LocationSpecInfo(name=name, size=size) for name, size in config.location_spec_infos.items()],
        model_deployment=pb.ModelDeployment(
            model_name=deployment.model_name,
            dtype=deployment.dtype,
            use_mla=deployment.use_mla,
            tp_size=deployment.tp_size,
            dp_size=deployment.dp_size,
            pp_size=deployment.pp_size,
            lora_name=deployment.lora_name,
            extra=deployment.extra,
            user_data=deployment.user_data,
            use_eagle_pop=deployment.use_eagle_pop,
        ),
        location_spec_groups=[pb.LocationSpecGroup(name=name, spec_names=names) for name, names in config.location_spec_groups.items()],
    )
    return Operation("RegisterInstance", request, lambda reply: Registration(reply.storage_configs, reply.extra_info))


def match_location(
    instance_id: str,
    query_type: QueryType,
    keys: Sequence[int],
    tokens: Sequence[int],
    block_mask: BlockMask | None,
    sw_size: int,
    spec_names: Sequence[str],
    want_checksums: bool,
    trace_id: str,
) -> Operation[MatchResult]:
    request = build(
        pb.GetCacheLocationRequest,
        trace_id=trace_id,
        instance_id=instance_id,
        query_type=int(query_type),
        block_keys=keys,
        token_ids=tokens,
        block_mask=mask_message(block_mask),
        sw_size=sw_size,
        location_spec_names=spec_names,
        want_checksums=want_checksums,
    )

    def read(reply: Any) -> MatchResult:
        locations = locations_of(reply.locations)
        if not want_checksums:
            return MatchResult(locations)
        # A manager without the extension sends none: unknown for every block.
        checksums = tuple(reply.checksums) or (0,) * len(locations)
        if len(checksums) != len(locations):
            raise ServiceInternal("the manager sent a number of checksums that differs from the number of locations")
        return MatchResult(locations, checksums)

    return Operation("GetCacheLocation", request, read)


def match_location_len(instance_id: str, query_type: QueryType, keys: Sequence[int], tokens: Sequence[int], sw_size: int, trace_id: str) -> Operation[int]:
    request = build(
        pb.GetCacheLocationLenRequest,
        trace_id=trace_id,
        instance_id=instance_id,
        query_type=int(query_type),
        block_keys=keys,
        token_ids=tokens,
        sw_size=sw_size,
    )
    return Operation("GetCacheLocationLen", request, lambda reply: int(reply.cache_location_len))


def start_write(
    instance_id: str,
    keys: Sequence[int],
    tokens: Sequence[int],
    spec_group_names: Sequence[str],
    write_timeout_seconds: int,
    min_replica_count: int,
    trace_id: str,
) -> Operation[WriteLocation]:
    request = build(
        pb.StartWriteCacheRequest,
        trace_id=trace_id,
        instance_id=instance_id,
        block_keys=keys,
        token_ids=tokens,
        location_spec_group_names=spec_group_names,
        write_timeout_seconds=write_timeout_seconds,
        min_replica_count=min_replica_count,
    )

    def read(reply: Any) -> WriteLocation:
        result = WriteLocation(reply.write_session_id, _mask_value(reply.block_mask), locations_of(reply.locations))
        if keys and len(result.locations) != len(result.block_mask.open_indexes(len(keys))):
            raise ServiceInternal("the manager handed out a number of locations that does not fit its block mask")
        return result

    return Operation("StartWriteCache", request, read, mutation=True)


def finish_write(instance_id: str, write_session_id: str, success: BlockMask, checksums: Sequence[int], trace_id: str) -> Operation[None]:
    request = build(
        pb.FinishWriteCacheRequest,
        trace_id=trace_id,
        instance_id=instance_id,
        write_session_id=write_session_id,
        success_blocks=mask_message(success),
        checksums=checksums,
    )
    return Operation("FinishWriteCache", request, _nothing, mutation=True)


def match_meta(
    instance_id: str, keys: Sequence[int], tokens: Sequence[int], block_mask: BlockMask | None, detail_level: int, trace_id: str
) -> Operation[Metas]:
    request = build(
        pb.GetCacheMetaRequest,
        trace_id=trace_id,
        instance_id=instance_id,
        block_keys=keys,
        token_ids=tokens,
        block_mask=mask_message(block_mask),
        detail_level=detail_level,
    )
    return Operation("GetCacheMeta", request, lambda reply: Metas(locations_of(reply.locations), tuple(reply.metas)))


def remove_cache(instance_id: str, keys: Sequence[int], tokens: Sequence[int], trace_id: str) -> Operation[None]:
    request = build(pb.RemoveCacheRequest, trace_id=trace_id, instance_id=instance_id, block_keys=keys, token_ids=tokens)
    return Operation("RemoveCache", request, _nothing, mutation=True)


def trim_cache(instance_id: str, strategy: TrimStrategy, begin: int, end: int, trace_id: str) -> Operation[None]:
    request = build(pb.TrimCacheRequest, trace_id=trace_id, instance_id=instance_id, strategy=int(strategy), begin_timestamp=begin, end_timestamp=end)
    return Operation("TrimCache", request, _nothing, mutation=True)


def get_instance_info(instance_id: str, trace_id: str) -> Operation[InstanceInfo]:
    def read(reply: Any) -> InstanceInfo:
        info = reply.instance_info
        return InstanceInfo(
            instance_group=reply.instance_group,
            instance_id=info.instance_id,
            quota_group_name=info.quota_group_name,
            block_size=info.block_size,
            location_spec_infos={spec.name: spec.size for spec in info.location_spec_infos},
            location_spec_groups={group.name: tuple(group.spec_names) for group in info.location_spec_groups},
            model_name=info.model_deployment.model_name,
            dtype=info.model_deployment.dtype,
        )

    return Operation("GetInstanceInfo", build(pb.GetInstanceInfoRequest, trace_id=trace_id, instance_id=instance_id), read)


def get_cluster_info(instance_id: str, trace_id: str) -> Operation[ClusterInfo]:
    def read(reply: Any) -> ClusterInfo:
        endpoint = None
        if reply.HasField("leader_endpoint"):
            node = reply.leader_endpoint
            endpoint = NodeEndpoint(node.node_id, node.host, node.meta_rpc_port, node.meta_http_port, node.custom_info)
        return ClusterInfo(reply.self_node_id, reply.leader_node_id, endpoint, reply.leader_epoch)

    return Operation("GetClusterInfo", build(pb.GetClusterInfoRequest, trace_id=trace_id, instance_id=instance_id), read)


def result_of(operation: Operation[T], reply: Any) -> T:
    """The operation's result, or the ServiceError that its reply carries."""
    status = reply.header.status
    if status.code != ErrorCode.OK:
        refusal = service_error(operation.method, int(status.code), status.message, reply.header.request_id)
        if operation.details:
            refusal.details = operation.read(reply)
        raise refusal
    return operation.read(reply)


def as_mask(success: BlockMask | Iterable[bool]) -> BlockMask:
    return success if isinstance(success, BlockMask) else BlockMask.of(success)


def build(kind: Callable[..., Any], **fields: Any) -> Any:
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        raise InvalidCall(f"a value does not fit into the request: {error}") from error


def _nothing(_: Any) -> None:
    return None


def mask_message(mask: BlockMask | None) -> Any:
    if mask is None:
        return None
    if mask.flags is None:
        return pb.BlockMask(offset=mask.offset)
    return pb.BlockMask(bool_masks=pb.BoolMasksType(values=mask.flags))


def _mask_value(message: Any) -> BlockMask:
    if message.WhichOneof("info") == "bool_masks":
        return BlockMask.of(message.bool_masks.values)
    if message.offset < 0:
        raise ServiceInternal("the manager sent a block mask with a negative offset")
    return BlockMask(offset=message.offset)


def locations_of(messages: Iterable[Any]) -> tuple[Location, ...]:
    return tuple(Location(tuple(LocationSpec(spec.name, spec.uri) for spec in message.location_specs), int(message.type)) for message in messages)

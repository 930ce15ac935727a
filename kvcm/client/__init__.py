"""Client SDK: find blocks (MetaClient), move their bytes (TransferClient), or both (ManagerClient). Never imports the manager.

Beside these: KvCacheManagerClient (the metadata plane over HTTP), AdminClient and DebugClient. docs/clients.md says which to use when.

Everything listed in `__all__` is public and stable; import it from here. Names load on first use, so that a worker which only moves bytes
never loads gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcm.client.admin_client import AdminClient
    from kvcm.client.config import ClientConfig, InitParams, MetaChannelConfig, ModelDeployment, SdkConfig
    from kvcm.client.debug_client import DebugClient
    from kvcm.client.detail_types import (
        BackendSelector,
        BlockAdd,
        BlockDelete,
        BlockDetail,
        BlockSnapshot,
        EventReport,
        Heartbeat,
        HostDown,
        HostMatch,
        LocationDetail,
        LocationStatus,
        NodeRegister,
        SelectStrategy,
    )
    from kvcm.client.errors import AccessDenied, ClientError, ClientErrorCode, RpcFailed, RpcOutcomeUnknown, ServiceError, TransferError
    from kvcm.client.http_client import KvCacheManagerClient
    from kvcm.client.manager_client import AsyncManagerClient, ManagerClient
    from kvcm.client.meta_client import MetaClient
    from kvcm.client.meta_client_async import AsyncMetaClient
    from kvcm.client.security import AccountLogin, BearerToken, ClientSecurity, TlsFiles
    from kvcm.client.transfer import TransferClient, block_checksum
    from kvcm.client.types import (
        BlockBuffer,
        BlockMask,
        ClusterInfo,
        InstanceInfo,
        Iov,
        Location,
        LocationSpec,
        MatchResult,
        Metas,
        NodeEndpoint,
        QueryType,
        RoleType,
        SaveResult,
        TraceInfo,
        TrimStrategy,
        WriteLocation,
    )

_HOMES = {
    "AccessDenied": "errors",
    "AccountLogin": "security",
    "AdminClient": "admin_client",
    "AsyncManagerClient": "manager_client",
    "AsyncMetaClient": "meta_client_async",
    "BackendSelector": "detail_types",
    "BearerToken": "security",
    "BlockAdd": "detail_types",
    "BlockBuffer": "types",
    "BlockDelete": "detail_types",
    "BlockDetail": "detail_types",
    "BlockMask": "types",
    "BlockSnapshot": "detail_types",
    "ClientConfig": "config",
    "ClientError": "errors",
    "ClientErrorCode": "errors",
    "ClientSecurity": "security",
    "ClusterInfo": "types",
    "DebugClient": "debug_client",
    "EventReport": "detail_types",
    "Heartbeat": "detail_types",
    "HostDown": "detail_types",
    "HostMatch": "detail_types",
    "InitParams": "config",
    "InstanceInfo": "types",
    "Iov": "types",
    "KvCacheManagerClient": "http_client",
    "Location": "types",
    "LocationDetail": "detail_types",
    "LocationSpec": "types",
    "LocationStatus": "detail_types",
    "ManagerClient": "manager_client",
    "MatchResult": "types",
    "MetaChannelConfig": "config",
    "MetaClient": "meta_client",
    "Metas": "types",
    "ModelDeployment": "config",
    "NodeEndpoint": "types",
    "NodeRegister": "detail_types",
    "QueryType": "types",
    "RoleType": "types",
    "RpcFailed": "errors",
    "RpcOutcomeUnknown": "errors",
    "SaveResult": "types",
    "SdkConfig": "config",
    "SelectStrategy": "detail_types",
    "ServiceError": "errors",
    "TlsFiles": "security",
    "TraceInfo": "types",
    "TransferClient": "transfer",
    "TransferError": "errors",
    "TrimStrategy": "types",
    "WriteLocation": "types",
    "block_checksum": "transfer",
}

__all__ = [
    "AccessDenied",
    "AccountLogin",
    "AdminClient",
    "AsyncManagerClient",
    "AsyncMetaClient",
    "BackendSelector",
    "BearerToken",
    "BlockAdd",
    "BlockBuffer",
    "BlockDelete",
    "BlockDetail",
    "BlockMask",
    "BlockSnapshot",
    "ClientConfig",
    "ClientError",
    "ClientErrorCode",
    "ClientSecurity",
    "ClusterInfo",
    "DebugClient",
    "EventReport",
    "Heartbeat",
    "HostDown",
    "HostMatch",
    "InitParams",
    "InstanceInfo",
    "Iov",
    "KvCacheManagerClient",
    "Location",
    "LocationDetail",
    "LocationSpec",
    "LocationStatus",
    "ManagerClient",
    "MatchResult",
    "MetaChannelConfig",
    "MetaClient",
    "Metas",
    "ModelDeployment",
    "NodeEndpoint",
    "NodeRegister",
    "QueryType",
    "RoleType",
    "RpcFailed",
    "RpcOutcomeUnknown",
    "SaveResult",
    "SdkConfig",
    "SelectStrategy",
    "ServiceError",
    "TlsFiles",
    "TraceInfo",
    "TransferClient",
    "TransferError",
    "TrimStrategy",
    "WriteLocation",
    "block_checksum",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

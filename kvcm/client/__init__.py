"""Client SDK: find blocks (MetaClient), move their bytes (TransferClient), or both (ManagerClient). Never imports the manager.

Everything listed in `__all__` is public and stable; import it from here. Names load on first use, so that a worker which only moves bytes
never loads gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcm.client.config import ClientConfig, InitParams, MetaChannelConfig, ModelDeployment, SdkConfig
    from kvcm.client.errors import ClientError, ClientErrorCode, RpcFailed, RpcOutcomeUnknown, ServiceError, TransferError
    from kvcm.client.manager_client import AsyncManagerClient, ManagerClient
    from kvcm.client.meta_client import MetaClient
    from kvcm.client.meta_client_async import AsyncMetaClient
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
    "AsyncManagerClient": "manager_client",
    "AsyncMetaClient": "meta_client_async",
    "BlockBuffer": "types",
    "BlockMask": "types",
    "ClientConfig": "config",
    "ClientError": "errors",
    "ClientErrorCode": "errors",
    "ClusterInfo": "types",
    "InitParams": "config",
    "InstanceInfo": "types",
    "Iov": "types",
    "Location": "types",
    "LocationSpec": "types",
    "ManagerClient": "manager_client",
    "MatchResult": "types",
    "MetaChannelConfig": "config",
    "MetaClient": "meta_client",
    "Metas": "types",
    "ModelDeployment": "config",
    "NodeEndpoint": "types",
    "QueryType": "types",
    "RoleType": "types",
    "RpcFailed": "errors",
    "RpcOutcomeUnknown": "errors",
    "SaveResult": "types",
    "SdkConfig": "config",
    "ServiceError": "errors",
    "TraceInfo": "types",
    "TransferClient": "transfer",
    "TransferError": "errors",
    "TrimStrategy": "types",
    "WriteLocation": "types",
    "block_checksum": "transfer",
}

__all__ = [
    "AsyncManagerClient",
    "AsyncMetaClient",
    "BlockBuffer",
    "BlockMask",
    "ClientConfig",
    "ClientError",
    "ClientErrorCode",
    "ClusterInfo",
    "InitParams",
    "InstanceInfo",
    "Iov",
    "Location",
    "LocationSpec",
    "ManagerClient",
    "MatchResult",
    "MetaChannelConfig",
    "MetaClient",
    "Metas",
    "ModelDeployment",
    "NodeEndpoint",
    "QueryType",
    "RoleType",
    "RpcFailed",
    "RpcOutcomeUnknown",
    "SaveResult",
    "SdkConfig",
    "ServiceError",
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

"""Short requests that ask for much: work and replies are bounded by what a block consists of too, not by the number of blocks alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import ErrorCode
from kvcm.manager.cache_manager import MAX_KEYS_PER_CALL, MAX_PARTS_PER_CALL
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service import rpc as rpc_module
from kvcm.service.testing_rpc import RpcDesk

pytestmark = pytest.mark.unit

SPECS = 1000
MOST = MAX_PARTS_PER_CALL // SPECS


def request_of(rpc: str, keys: range) -> Any:
    fields: dict[str, Any] = {"trace_id": "t", "instance_id": "wide", "block_keys": keys}
    match rpc:
        case "GetCacheLocation" | "GetCacheLocationLen":
            fields["query_type"] = meta.QT_BATCH_GET
        case "GetCacheLocationsByBackend":
            fields |= {"query_type": meta.QT_BATCH_GET, "backend_selectors": [meta.BackendLocationSelector(backend_type=meta.ST_NFS)]}
        case "StartWriteCache":
            fields["write_timeout_seconds"] = 30
    return getattr(meta, f"{rpc}Request")(**fields)


async def wide(root: Path) -> RpcDesk:
    """With an instance whose blocks have SPECS parts."""
    desk = RpcDesk(root)
    await desk.open()
    code, message, _ = await desk.call(
        "RegisterInstance",
        meta.RegisterInstanceRequest(
            instance_id="wide",
            instance_group="g",
            block_size=4,
            location_spec_infos=[meta.LocationSpecInfo(name=f"part{number}", size=1) for number in range(SPECS)],
            model_deployment=meta.ModelDeployment(model_name="m", dtype="fp16"),
        ),
    )
    assert code == ErrorCode.OK, message
    return desk


@pytest.mark.parametrize(
    "rpc", ["GetCacheLocation", "GetCacheLocationLen", "GetCacheLocationsByBackend", "GetCacheMeta", "GetCacheMetaDetail", "StartWriteCache", "RemoveCache"]
)
def test_blocks_of_many_parts_count_for_more(rpc: str, tmp_path: Path) -> None:
    async def story() -> None:
        desk = await wide(tmp_path)
        for count in (MOST + 1, MAX_KEYS_PER_CALL):
            code, message, reply = await desk.call(rpc, request_of(rpc, range(count)))
            assert code == ErrorCode.INVALID_ARGUMENT
            assert f"at most {MOST} blocks of an instance with {SPECS} location specs" in message
            assert reply.ByteSize() < 1000
        if rpc != "StartWriteCache":
            code, message, _ = await desk.call(rpc, request_of(rpc, range(MOST)))
            assert code == ErrorCode.OK, message

    asyncio.run(story())


def test_a_reply_that_is_too_long_is_an_error_by_every_transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        desk = await wide(tmp_path)
        _, _, whole = await desk.call("GetCacheLocation", request_of("GetCacheLocation", range(100)))
        size = whole.ByteSize()
        monkeypatch.setattr(rpc_module, "MAX_REPLY_BYTES", size)
        code, _, _ = await desk.call("GetCacheLocation", request_of("GetCacheLocation", range(100)))
        assert code == ErrorCode.OK
        code, message, reply = await desk.call("GetCacheLocation", request_of("GetCacheLocation", range(101)))
        assert code == ErrorCode.INVALID_ARGUMENT
        assert "ask for less at once" in message
        assert reply.ByteSize() < 1000

    asyncio.run(story())

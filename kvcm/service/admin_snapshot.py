"""AdminService: the whole configuration as one text (upstream has the calls and does not implement them)."""

from __future__ import annotations

import logging

from kvcm.common.errors import KvcmError, NotReady
from kvcm.config.registry import Registry
from kvcm.manager.cache_manager import CacheManager
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.service.admin_replies import done, finish, required
from kvcm.service.rpc import Call, Reply, Rpc

_NAMED = 5
_log = logging.getLogger("kvcm.service.admin")


def snapshot_rpcs(registry: Registry, manager: CacheManager) -> list[Rpc]:
    service = _Snapshots(registry, manager)
    return [
        Rpc("GenConfigSnapshot", admin.GenConfigSnapshotRequest, admin.ConfigSnapShotResponse, service.generate),
        Rpc("LoadConfigSnapshot", admin.LoadConfigSnapshotRequest, admin.CommonResponse, service.load),
    ]


class _Snapshots:
    def __init__(self, registry: Registry, manager: CacheManager) -> None:
        self._registry = registry
        self._manager = manager

    async def generate(self, request: admin.GenConfigSnapshotRequest, call: Call) -> Reply:
        return finish(admin.ConfigSnapShotResponse(config_snapshot=await self._registry.snapshot()), call)

    async def load(self, request: admin.LoadConfigSnapshotRequest, call: Call) -> Reply:
        loaded = await self._registry.load_snapshot(required(request, "LoadConfigSnapshot", "config_snapshot"), force=call.forced)
        _log.info(
            "snapshot_loaded storages=%d groups=%d instances=%d accounts=%d request_id=%s",
            len(loaded.storages),
            len(loaded.groups),
            len(loaded.instances),
            len(loaded.accounts),
            call.request_id,
        )
        # Also those of an earlier load that was cut short.
        await self._manager.open_registered()
        unopened = [instance.instance_id for instance in loaded.instances if not self._opened(instance.instance_id)]
        if unopened:
            named = ", ".join(f"'{name}'" for name in unopened[:_NAMED])
            more = f" and {len(unopened) - _NAMED} more" if len(unopened) > _NAMED else ""
            raise NotReady(f"the snapshot is loaded, but the metadata of instance {named}{more} cannot be opened yet; it is tried again by itself")
        return done(call)

    def _opened(self, instance_id: str) -> bool:
        try:
            self._manager.shard(instance_id)
        except KvcmError:
            return False
        return True

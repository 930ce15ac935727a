"""AdminService: storages (wire contract 5.2)."""

from __future__ import annotations

from kvcm.config.registry import Registry
from kvcm.data_storage.manager import DataStorageManager
from kvcm.data_storage.model import Storage
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol.storage_codec import storage_from_proto, storage_to_proto
from kvcm.service.admin_replies import done, finish, required
from kvcm.service.replies import missing
from kvcm.service.rpc import Call, Reply, Rpc

_ROOTS = {None: admin.ROOT_STATE_UNKNOWN, True: admin.ROOT_STATE_VERIFIED, False: admin.ROOT_STATE_LOST}


def storage_rpcs(registry: Registry, storages: DataStorageManager) -> list[Rpc]:
    service = _Storages(registry, storages)
    common = admin.CommonResponse
    return [
        Rpc("AddStorage", admin.AddStorageRequest, common, service.add),
        Rpc("EnableStorage", admin.EnableStorageRequest, common, service.enable),
        Rpc("DisableStorage", admin.DisableStorageRequest, common, service.disable),
        Rpc("RemoveStorage", admin.RemoveStorageRequest, common, service.remove),
        Rpc("UpdateStorage", admin.UpdateStorageRequest, common, service.update),
        Rpc("ListStorage", admin.ListStorageRequest, admin.ListStorageResponse, service.list),
    ]


class _Storages:
    def __init__(self, registry: Registry, storages: DataStorageManager) -> None:
        self._registry = registry
        self._storages = storages

    async def add(self, request: admin.AddStorageRequest, call: Call) -> Reply:
        if not request.HasField("storage"):
            raise missing("AddStorage", "storage")
        await self._registry.add_storage(storage_from_proto(request.storage))
        return done(call)

    async def update(self, request: admin.UpdateStorageRequest, call: Call) -> Reply:
        if not request.HasField("storage"):
            raise missing("UpdateStorage", "storage")
        await self._registry.update_storage(storage_from_proto(request.storage), force=request.force_update or call.forced)
        return done(call)

    async def enable(self, request: admin.EnableStorageRequest, call: Call) -> Reply:
        await self._registry.set_storage_enabled(required(request, "EnableStorage", "storage_unique_name"), True)
        return done(call)

    async def disable(self, request: admin.DisableStorageRequest, call: Call) -> Reply:
        await self._registry.set_storage_enabled(required(request, "DisableStorage", "storage_unique_name"), False)
        return done(call)

    async def remove(self, request: admin.RemoveStorageRequest, call: Call) -> Reply:
        await self._registry.remove_storage(required(request, "RemoveStorage", "storage_unique_name"), force=call.forced)
        return done(call)

    async def list(self, request: admin.ListStorageRequest, call: Call) -> Reply:
        storages = self._registry.list_storages()
        response = admin.ListStorageResponse(
            storage=[storage_to_proto(storage) for storage in storages],
            disabled_storage_names=[storage.name for storage in storages if not storage.enabled],
            states=[self._state(storage) for storage in storages],
        )
        return finish(response, call)

    def _state(self, storage: Storage) -> admin.StorageState:
        name = storage.name
        # A record that is registered and not opened yet (or any more) has no backend to ask.
        problem = self._storages.problem(name) if self._storages.get(name) is not None else f"Storage '{name}' is not opened."
        return admin.StorageState(
            name=name,
            enabled=storage.enabled,
            available=self._storages.available(name),
            root_verified=_ROOTS[self._storages.root_verified(name)],
            problem=problem,
            type=admin.StorageType.Name(storage.type),
        )

"""Passes of the operator against a real manager over gRPC: what the stand-in of the admin API promises, the real one keeps."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcm.client.admin_client import AdminClient
from kvcm.service.embedded import EmbeddedManager
from kvcm.service.tls.testing import Authority
from kvcm_operator.admin import Silent, Speaker
from kvcm_operator.directory import Directory
from kvcm_operator.runtime import RECONCILERS
from kvcm_operator.testing_house import House, applied_manager, group, storage
from kvcm_operator.world import GROUP, MANAGER, STORAGE, Door, Ref

pytestmark = pytest.mark.integration

BOSS, FAST, CHAT = Ref(MANAGER, "default", "demo"), Ref(STORAGE, "default", "fast"), Ref(GROUP, "default", "chat")


def started(folder: Path) -> EmbeddedManager:
    startup = folder / "startup.json"
    startup.write_text("{}")
    return EmbeddedManager({"kvcm.startup_config": str(startup)})


def reach(house: House, manager: EmbeddedManager) -> None:
    house.world = replace(house.world, admin=Directory({("default", "demo"): manager.admin_address}, "cluster.local", house.kube))
    house.restart()


def test_from_nothing_to_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        house = House(dict(RECONCILERS))
        house.kube.put(applied_manager())
        root = {"rootPath": str(tmp_path / "blocks"), "keyCountPerFile": 4}
        house.kube.put(storage(nfs=root, deletionPolicy="Delete"))
        house.kube.put(group(deletionPolicy="Delete", metadataIndex={"maxKeys": 1000}))
        with started(tmp_path) as manager:
            reach(house, manager)
            await house.settle()
            for ref in (BOSS, FAST, CHAT):
                assert house.condition(ref) == ("True", "Ready"), house.status(ref)
            assert house.status(FAST)["rootVerified"] is True
            assert house.status(CHAT)["usedBytes"] == 0
            assert house.status(BOSS)["counts"] == {"storages": 1, "groups": 1, "instances": 0}

            house.kube.edit(CHAT, lambda body: body["spec"].update(maxInstances=3))
            house.kube.edit(FAST, lambda body: body["spec"].update(enabled=False))
            await house.settle()
            async with AdminClient(manager.admin_address) as admin:
                (stored,) = await admin.list_groups()
                assert (stored.max_instance_count, stored.version) == (3, 2)
                assert [one.enabled for one in await admin.list_storages()] == [False]
                await admin.enable_storage("fast")
                await admin.remove_group("chat")
            await house.settle()
            assert house.reasons(FAST) == house.reasons(CHAT) == ["Ready", "DriftCorrected"]

        # Another process with an empty memory and the same directory on disk.
        with started(tmp_path) as manager:
            reach(house, manager)
            await house.settle()
            for ref in (BOSS, FAST, CHAT):
                assert house.condition(ref) == ("True", "Ready"), house.status(ref)
            house.kube.edit(FAST, lambda body: body["spec"].update(nfs={"rootPath": str(tmp_path / "elsewhere")}))
            await house.once(FAST)
            assert house.condition(FAST) == ("False", "ServerRefused")  # a group uses it where it is
            for ref in (FAST, CHAT):
                house.kube.mark_deleted(ref)
            await house.settle()
            async with AdminClient(manager.admin_address) as admin:
                assert await admin.list_groups() == []
                assert await admin.list_storages() == []
            assert house.kube.refs(STORAGE) == house.kube.refs(GROUP) == []

    asyncio.run(story())


def test_a_guarded_manager_is_spoken_to_with_its_secrets(tmp_path: Path) -> None:
    authority, token = Authority(), "a-token-that-nobody-guesses-0123456789"
    pair = authority.issue(names=("demo.default.svc",))
    cert, key = pair.write(tmp_path, "server")
    (tmp_path / "token").write_text(token)

    def secret(name: str, data: dict[str, bytes]) -> dict[str, Any]:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}, "data": encoded}

    async def story() -> None:
        house = House(dict(RECONCILERS))
        house.kube.put(applied_manager(adminToken={"type": "secret", "secret": {"name": "ours"}}, tls={"secretName": "certificate"}))
        house.kube.put(secret("ours", {"token": f"{token}\nanother\n".encode()}))
        certificate = house.kube.put(secret("certificate", {"tls.crt": pair.cert, "tls.key": pair.key, "ca.crt": authority.cert}))
        settings = {"kvcm.startup_config": str(tmp_path / "startup.json"), "kvcm.service.admin_auth_token_file": str(tmp_path / "token")}
        (tmp_path / "startup.json").write_text("{}")
        with EmbeddedManager(settings | {"kvcm.tls.cert_file": cert, "kvcm.tls.key_file": key}) as manager:
            reach(house, manager)
            await house.settle()
            assert house.condition(BOSS) == ("True", "Ready"), house.status(BOSS)
            door = house.world.admin
            # A node by its address: the certificate names the Service.
            host, _, port = manager.admin_address.rpartition(":")
            doors = [Door(host, int(port), "ours", "token", "certificate"), Door(host, int(port), "gone")]
            async with door.connect_nodes("default", "demo", doors) as (node, closed):
                assert closed is None, "a Secret that is away closes its own pods only"
                assert node is not None
                assert (await Speaker(node).cluster()).leader_node_id
            # Another token, then another authority: the manager is silent, not gone.
            house.kube.edit(Ref("Secret", "default", "ours"), lambda body: body.update(data=secret("ours", {"token": b"wrong"})["data"]))
            with pytest.raises(Silent, match="does not accept"):
                async with door.connect("default", "demo", 6491) as api:
                    await Speaker(api).serves()
            changed = secret("certificate", {"tls.crt": pair.cert, "tls.key": pair.key, "ca.crt": Authority().cert})["data"]
            house.kube.edit(certificate, lambda body: body.update(data=changed))
            with pytest.raises(Silent, match="cannot be reached"):
                async with door.connect("default", "demo", 6491) as api:
                    await Speaker(api).serves()
            for name in ("ours", "certificate"):
                house.kube.mark_deleted(Ref("Secret", "default", name))
                with pytest.raises(Silent, match="does not exist"):
                    async with door.connect("default", "demo", 6491) as api:
                        await Speaker(api).serves()

    asyncio.run(story())

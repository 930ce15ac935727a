"""The operator rolls out real managers that elect their leader in a real etcd: each pod is a process with an address of its own."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.testing_ports import free_ports
from kvcm.etcd.testing import PROGRAM, EtcdServer
from kvcm.service.testing import ManagerProcess
from kvcm_operator.directory import Directory
from kvcm_operator.rollout_act import hear
from kvcm_operator.rollout_fleet import fleet_of
from kvcm_operator.runtime import RECONCILERS
from kvcm_operator.subject import Subject
from kvcm_operator.testing_house import House, applied_manager, group, several, storage
from kvcm_operator.world import GROUP, MANAGER, Json, Ref

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PROGRAM, reason="needs Debian's package etcd-server")]

BOSS, CHAT, SET = Ref(MANAGER, "default", "demo"), Ref(GROUP, "default", "chat"), Ref("StatefulSet", "default", "demo")


class Processes:
    """Pods of a house as processes, from the moment they start until the cluster takes them away. `ended`: who was stopped, in order."""

    def __init__(self, house: House, etcd: str, startup: Path) -> None:
        self._house = house
        self.ports = dict(zip(("metaGrpc", "metaHttp", "adminGrpc", "adminHttp"), free_ports(4), strict=True))
        self._folder = startup.parent
        self._settings = {
            "kvcm.coordination.uri": f"etcd://{etcd}/service",
            "kvcm.registry_storage.uri": f"etcd://{etcd}/service",
            "kvcm.leader_elector.lease_ms": "2000",
            "kvcm.startup_config": str(startup),
        }
        self._running: dict[str, tuple[str, ManagerProcess]] = {}
        self._doors: dict[str, str] = {}
        self.ended: list[str] = []

    def started(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        self._end(name)  # its predecessor: the cluster has made a new pod of this name at once
        address = str(self._house.kube.body(Ref("Pod", "default", name))["status"]["podIP"])
        own = {"kvcm.leader_elector.node_id": name, "kvcm.service.advertised_host": address, "kvcm.service.bind_host": address}
        process = ManagerProcess(self._settings | own | self._door(pod))
        self._doors[name] = f"{address}:{_ports(pod)['admin-grpc']}"
        process.__enter__()
        self._running[name] = (address, process)

    def _door(self, pod: Json) -> dict[str, str]:
        """How its spec says that it is reached."""
        ports = _ports(pod)
        door = {
            "kvcm.service.rpc_port": str(ports["meta-grpc"]),
            "kvcm.service.http_port": str(ports["meta-http"]),
            "kvcm.service.admin_rpc_port": str(ports["admin-grpc"]),
            "kvcm.service.admin_http_port": str(ports["admin-http"]),
        }
        for volume in pod["spec"]["volumes"]:
            if volume["name"] == "admin-token":
                name = volume["secret"]["secretName"]
                path = self._folder / name
                path.write_bytes(base64.b64decode(self._house.kube.body(Ref("Secret", "default", name))["data"]["token"]))
                door["kvcm.service.admin_auth_token_file"] = str(path)
        return door

    def step(self) -> None:
        for name in list(self._running):
            if not self._house.kube.has(Ref("Pod", "default", name)):
                self._end(name)

    def _end(self, name: str) -> None:
        if name in self._running:
            self._running.pop(name)[1].__exit__(None, None, None)
            self.ended.append(name)

    def some_address(self) -> str:
        return self._doors[min(self._running)]

    def stop(self) -> None:
        for name in list(self._running):
            self._end(name)


def _ports(pod: Json) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}


class NearDirectory(Directory):
    """Instead of the Service: some node."""

    def __init__(self, processes: Processes, house: House) -> None:
        super().__init__({}, "cluster.local", house.kube)
        self._processes = processes

    def addresses(self, namespace: str, manager: str, port: int) -> tuple[str, ...]:
        return (self._processes.some_address(),)


def test_a_new_image_and_a_smaller_size_on_real_managers(tmp_path: Path) -> None:
    startup = tmp_path / "startup.json"
    startup.write_text("{}")

    async def until(house: House, question: Any) -> None:
        for _ in range(400):
            if question():
                return
            await house.beat()
            await asyncio.sleep(0.1)
        raise AssertionError(house.status(BOSS))

    async def leader(house: House) -> str:
        subject = Subject(house.kube.body(BOSS))
        pods = await house.kube.list("Pod", "default")
        heard = await hear(subject, house.world, fleet_of(house.kube.body(SET), pods, house.clock.wall_us()))
        assert heard.leader.serves
        return heard.leader.pod

    async def story(house: House, processes: Processes) -> None:
        def ready() -> bool:
            return house.condition(BOSS) == ("True", "Ready") and Subject(house.kube.body(BOSS)).settled

        house.kube.put(applied_manager(**several(3), service={"ports": processes.ports}, adminToken={"type": "none"}))
        house.kube.put(storage(nfs={"rootPath": str(tmp_path / "blocks")}))
        house.kube.put(group(metadataIndex={"maxKeys": 1000}))
        await until(house, lambda: ready() and house.condition(CHAT) == ("True", "Ready"))
        first = await leader(house)
        epoch = house.status(BOSS)["leader"]["epoch"]
        assert house.status(BOSS)["leader"]["pod"] == first

        house.kube.edit(BOSS, lambda body: body["spec"].update(image="kvcm:2"))
        await until(house, ready)
        assert sorted(processes.ended) == ["demo-0", "demo-1", "demo-2"]
        assert processes.ended[-1] == first, "the leader goes last"
        second = await leader(house)
        assert second != first
        assert house.status(BOSS)["leader"]["epoch"] > epoch
        assert house.status(BOSS)["counts"] == {"storages": 1, "groups": 1, "instances": 0}, "the registry is in etcd"

        house.kube.edit(BOSS, lambda body: body["spec"].update(replicas=2))
        await until(house, ready)
        assert processes.ended[3:] == ["demo-2"]
        assert await leader(house) in ("demo-0", "demo-1")
        # Another way in: old pods and new ones are opened in different ways, and the leader is asked all the same.
        del processes.ended[:]
        last = await leader(house)
        ports = processes.ports | {"adminGrpc": free_ports(1)[0]}
        house.kube.edit(BOSS, lambda body: body["spec"].update(service={"ports": ports}, adminToken={"type": "generated"}))
        await until(house, ready)
        assert sorted(processes.ended) == ["demo-0", "demo-1"]
        assert processes.ended[-1] == last
        assert await leader(house) != last
        assert house.reasons(CHAT).count("DriftCorrected") == 0

    with EtcdServer("--heartbeat-interval=20", "--election-timeout=200") as etcd:
        house = House(dict(RECONCILERS))
        processes = Processes(house, etcd.address, startup)
        house.nodes = processes  # type: ignore[assignment]  # the part of it that a house uses
        house.cluster.network = "127.77.0."
        house.world = replace(house.world, admin=NearDirectory(processes, house))
        house.restart()
        try:
            asyncio.run(story(house, processes))
        finally:
            processes.stop()

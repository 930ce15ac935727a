"""Stories of a manager with several pods, from the moment that it is ready; and what tests want to know about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from kvcm.resources.conditions import varying_parts
from kvcm.resources.kstatus import Kstatus, kstatus
from kvcm.resources.manager import KVCacheManagerStatus
from kvcm_operator.runtime import RECONCILERS
from kvcm_operator.subject import Subject
from kvcm_operator.testing_house import House, applied_manager, several
from kvcm_operator.testing_nodes import Nodes
from kvcm_operator.world import MANAGER, Ref

BOSS = Ref(MANAGER, "default", "demo")
SET = Ref("StatefulSet", "default", "demo")
Story = Callable[[House, Nodes], Awaitable[None]]


def run(story: Story, replicas: int = 3) -> None:
    """From a manager that is ready, with `demo-0` leading."""

    async def told() -> None:
        house = House(dict(RECONCILERS))
        nodes = house.with_nodes()
        house.cluster.slow_stop = True
        house.kube.put(applied_manager(**several(replicas)))
        await house.beats(partial(ready, house))
        assert nodes.leader == "demo-0"
        house.kube.writes.clear()
        await story(house, nodes)
        for ref, body in house.kube.statuses:
            if ref != BOSS:
                continue
            KVCacheManagerStatus.model_validate(body["status"])
            for condition in body["status"]["conditions"]:
                assert varying_parts(condition["message"]) == [], condition
            if kstatus(body) is Kstatus.CURRENT:
                assert body["status"]["updatedReplicas"] == body["status"]["readyReplicas"] == body["spec"]["replicas"]

    asyncio.run(told())


def ready(house: House) -> bool:
    return house.condition(BOSS) == ("True", "Ready") and Subject(house.kube.body(BOSS)).settled


def is_reason(house: House, reason: str) -> bool:
    return house.condition(BOSS)[1] == reason


def spec(house: House, **fields: Any) -> None:
    house.kube.edit(BOSS, lambda body: body["spec"].update(fields))


def message(house: House, kind: str = "Ready") -> str:
    return str(Subject(house.kube.body(BOSS)).condition(kind)["message"])


def deleted(house: House) -> list[str]:
    return [write.removeprefix("delete Pod ") for write in house.kube.writes if write.startswith("delete Pod")]


def events(house: House, reason: str) -> list[str]:
    return [event.message for event in house.kube.events if event.about == BOSS and event.reason == reason]


def sizes(house: House) -> int:
    return int(house.kube.body(SET)["spec"]["replicas"])


def ready_pod(house: House, number: int) -> bool:
    ref = Ref("Pod", "default", f"demo-{number}")
    if not house.kube.has(ref):
        return False
    body = house.kube.body(ref)
    return "deletionTimestamp" not in body["metadata"] and any(one["status"] == "True" for one in body["status"].get("conditions", []))

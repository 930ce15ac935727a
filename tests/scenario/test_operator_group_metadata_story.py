"""Where an InstanceGroup's block metadata is kept: by its own word, else by its manager's, else where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kvcm.config.model import MetaBackendConfig
from kvcm.resources.conditions import ConditionType
from kvcm_operator.testing_house import House, group, manager, storage
from kvcm_operator.world import Json, Ref

pytestmark = pytest.mark.scenario


def run(story: Callable[[House], Awaitable[None]]) -> None:
    async def told() -> None:
        await story(House())

    asyncio.run(told())


def boss(*, replicas: int = 1, **metadata: object) -> Json:
    body = manager(replicas=replicas)
    body["spec"]["metadataBackend"] = metadata
    return body


def backend_of(house: House) -> MetaBackendConfig:
    return house.admin.groups["chat"].cache_config.meta_indexer.backend


def ready_message(house: House, ref: Ref) -> str:
    return str(next(item["message"] for item in house.status(ref)["conditions"] if item["type"] == ConditionType.READY.value))


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [({}, "local"), ({"type": "redis"}, "redis"), ({"type": "redis", "writeMode": "WriteBehind"}, "async_redis"), ({"type": "of a newer version"}, "local")],
)
def test_a_new_group_goes_where_its_manager_says(metadata: Json, kind: str) -> None:
    async def story(house: House) -> None:
        house.kube.put(boss(**metadata))
        house.kube.put(storage())
        ref = house.kube.put(group())
        await house.settle()
        assert house.condition(ref) == ("True", "Ready")
        assert backend_of(house) == MetaBackendConfig(kind)
        calls = list(house.admin.calls)
        await house.once(ref)
        assert house.admin.calls == calls

    run(story)


def test_a_group_that_is_there_stays_where_it_is_until_it_is_told() -> None:
    async def story(house: House) -> None:
        ref_boss = house.kube.put(boss())
        house.kube.put(storage())
        ref = house.kube.put(group())
        await house.settle()
        house.kube.edit(ref_boss, lambda body: body["spec"].update(metadataBackend={"type": "redis"}))
        house.kube.set_status(ref_boss, manager()["status"])
        await house.settle()
        assert backend_of(house) == MetaBackendConfig("local")
        house.kube.edit(ref, lambda body: body["spec"].update(metadataIndex={"backend": {"type": "redis", "writeMode": "WriteBehind"}}))
        await house.settle()
        assert backend_of(house) == MetaBackendConfig("async_redis")

    run(story)


def test_redis_without_a_redis_is_the_fault_of_one_of_the_two_specs() -> None:
    async def story(house: House) -> None:
        ref_boss = house.kube.put(boss())
        house.kube.put(storage())
        ref = house.kube.put(group(metadataIndex={"backend": {"type": "redis"}}))
        await house.settle()
        assert house.condition(ref) == ("False", "InvalidSpec")
        assert "spec.metadataBackend" in ready_message(house, ref)
        assert "chat" not in house.admin.groups
        house.kube.edit(ref_boss, lambda body: body["spec"].update(metadataBackend={"type": "redis"}))
        house.kube.set_status(ref_boss, manager()["status"])
        await house.settle()
        assert house.condition(ref) == ("True", "Ready")

    run(story)


@pytest.mark.parametrize(("replicas", "metadata", "said"), [(1, {}, False), (3, {}, True), (3, {"type": "redis"}, False)])
def test_several_managers_and_an_index_in_one_of_them_is_said(replicas: int, metadata: Json, said: bool) -> None:
    async def story(house: House) -> None:
        house.kube.put(boss(replicas=replicas, **metadata))
        house.kube.put(storage())
        ref = house.kube.put(group())
        await house.settle()
        assert ("begins with an empty index" in ready_message(house, ref)) is said

    run(story)

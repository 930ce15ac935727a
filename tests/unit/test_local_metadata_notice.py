"""A group whose index is in memory, on a manager that is set up to outlive a leader: the log says so once, when the group is created."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from kvcm.config.model import InstanceGroup, MetaBackendConfig
from kvcm.config.settings import Settings
from kvcm.config.startup import default_group
from kvcm.config.testing_world import World, scenario
from kvcm.service.local_metadata import is_meant_to_last, local_metadata_notice
from kvcm.service.testing import InProcessManager

pytestmark = pytest.mark.unit

PORTS = ("kvcm.service.rpc_port", "kvcm.service.http_port", "kvcm.service.admin_rpc_port", "kvcm.service.admin_http_port")


def _group(name: str, backend: MetaBackendConfig) -> InstanceGroup:
    group = default_group()
    config = replace(group.cache_config, meta_indexer=replace(group.cache_config.meta_indexer, backend=backend))
    return replace(group, name=name, cache_config=config)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(), False),
        (Settings(coordination_uri="memory://"), False),
        (Settings(coordination_uri="etcd://h:1/x"), True),
        (Settings(coordination_uri="redis://h:1/?cluster_name=x"), True),
        (Settings(coordination_uri="file:///x"), True),
        (Settings(meta_redis_uri="redis://h:1/"), True),
    ],
)
def test_only_a_manager_that_others_take_over_from_or_that_has_a_redis_is_meant_to_last(settings: Settings, expected: bool) -> None:
    assert is_meant_to_last(settings) is expected


def test_one_line_for_each_group_in_memory_when_it_is_created(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        world.registry.on_change(local_metadata_notice(world.registry))
        for name, backend in (
            ("memory", MetaBackendConfig("local")),
            ("also-memory", MetaBackendConfig("dummy")),
            ("disk", MetaBackendConfig("dummy", "file:///tmp/x")),
            ("redis", MetaBackendConfig("redis", "redis://h:1/")),
            ("behind", MetaBackendConfig("async_redis")),
        ):
            await world.registry.create_group(_group(name, backend))
        group = world.registry.get_group("memory")
        assert group is not None
        await world.registry.update_group(replace(group, version=group.version + 1), group.version)
        await world.registry.remove_group("memory")

    scenario(work)
    said = [record.getMessage() for record in caplog.records if record.name == "kvcm.service.local_metadata"]
    assert [line.split(":")[0] for line in said] == [f"group_metadata_in_memory group={name}" for name in ("memory", "also-memory")]
    assert "does not survive a change of leader" in said[0]


@pytest.mark.parametrize(("coordinated", "lines"), [(True, 1), (False, 0)])
def test_a_manager_says_it_of_the_group_that_it_creates_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture, coordinated: bool, lines: int) -> None:
    async def run() -> None:
        given = dict.fromkeys(PORTS, "0") | {"kvcm.service.bind_host": "127.0.0.1"}
        async with InProcessManager(given | ({"kvcm.coordination.uri": f"file://{tmp_path}"} if coordinated else {})):
            pass

    asyncio.run(run())
    assert sum("group_metadata_in_memory group=default" in record.getMessage() for record in caplog.records) == lines

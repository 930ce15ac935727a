"""What a manager tells about its storages and groups: states that follow the world, and usage that follows the blocks."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcm.client import ClientConfig, MetaClient
from kvcm.client.admin_client import AdminClient
from kvcm.client.admin_types import GroupUsage, StorageState
from kvcm.common.errors import NotFound
from kvcm.config.model import CacheConfig, InstanceGroup, Quota, ReclaimStrategy
from kvcm.data_storage.model import DummySpec, NfsSpec, Storage, StorageType
from kvcm.service.testing import ManagerProcess

pytestmark = pytest.mark.integration

SIZE = 1000
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def manager() -> Iterator[ManagerProcess]:
    with ManagerProcess() as running:
        yield running


def _group(name: str, storage: str) -> InstanceGroup:
    return InstanceGroup(name, (storage,), name, 10, Quota(1 << 30), CacheConfig(ReclaimStrategy(storage_unique_name=storage)))


def _client(manager: ManagerProcess, group: str) -> MetaClient:
    document = {
        "instance_group": group,
        "instance_id": f"i-{group}",
        "block_size": 16,
        "address": [manager.meta_address],
        "location_spec_infos": {"tp0": SIZE},
        "model_deployment": {"model_name": "m", "dtype": "bf16"},
        "meta_channel_config": {"call_timeout": 10_000, "connection_timeout": 10_000},
    }
    return MetaClient.connect(ClientConfig.parse(document))


async def _state(client: AdminClient, name: str) -> StorageState | None:
    return next((view.state for view in await client.describe_storages() if view.storage.name == name), None)


async def _until(client: AdminClient, name: str, root_verified: bool) -> StorageState:
    """The manager looks at roots every few seconds by itself, and no event tells that it did."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        state = await _state(client, name)
        if state is not None and state.root_verified is root_verified:
            return state
        await asyncio.sleep(0.05)
    raise AssertionError(f"root_verified of {name} did not become {root_verified}")


def test_a_root_that_goes_away_and_comes_back_is_told_and_loses_nothing(manager: ManagerProcess, tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()

    async def run() -> None:
        async with AdminClient(manager.admin_address) as client:
            await client.add_storage(Storage("rooted", StorageType.NFS, NfsSpec(f"{root}/")))
            fresh = await _until(client, "rooted", True)
            assert fresh == StorageState("rooted", StorageType.NFS, enabled=True, available=True, root_verified=True, problem="")
            shutil.move(root, elsewhere)
            root.mkdir()
            lost = await _until(client, "rooted", False)
            assert not lost.available
            assert "probably not mounted" in lost.problem
            assert list(root.iterdir()) == []
            root.rmdir()
            shutil.move(elsewhere, root)
            assert await _until(client, "rooted", True) == fresh

    asyncio.run(run())


def test_a_disabled_storage_is_not_available_and_that_is_no_problem(manager: ManagerProcess, tmp_path: Path) -> None:
    async def run() -> None:
        async with AdminClient(manager.admin_address) as client:
            await client.add_storage(Storage("off", StorageType.DUMMY, DummySpec(str(tmp_path / "off"))))
            await client.disable_storage("off")
            state = await _state(client, "off")
            assert state is not None
            assert (state.enabled, state.available, state.problem) == (False, False, "")

    asyncio.run(run())


def test_usage_counts_instances_keys_and_bytes_of_one_group(manager: ManagerProcess, tmp_path: Path) -> None:
    async def run() -> None:
        async with AdminClient(manager.admin_address) as client:
            await client.add_storage(Storage("full", StorageType.DUMMY, DummySpec(str(tmp_path / "full"))))
            await client.create_group(_group("full", "full"))
            assert (await client.describe_group("full")).usage == GroupUsage("full", 0, 0, 0)
            with _client(manager, "full") as engine:
                engine.start_write([1, 2, 3], write_timeout_seconds=30)
                usage = GroupUsage("full", 1, 3, 3 * SIZE)
                assert (await client.describe_group("full")).usage == usage
            views = {view.group.name: view for view in await client.describe_groups()}
            assert views["full"].usage == usage
            assert all(view.usage is not None and view.usage.name == name for name, view in views.items())
            with pytest.raises(NotFound, match="'nobody' does not exist"):
                await client.describe_group("nobody")

    asyncio.run(run())


def test_json_shows_the_same(manager: ManagerProcess) -> None:
    url = f"http://127.0.0.1:{manager.endpoint.admin_http_port}/api/listInstanceGroup"
    request = urllib.request.Request(url, b'{"trace_id":"t"}', {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        reply = json.load(answer)
    assert [usage["name"] for usage in reply["usage"]] == [group["name"] for group in reply["instance_group"]]
    assert all(usage["used_bytes"].isdigit() for usage in reply["usage"])

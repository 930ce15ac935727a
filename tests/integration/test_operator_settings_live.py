"""What the operator writes for several managers is what managers can be run with: leases and registry in a real etcd, blocks in a real Redis with a password
from a file, a group whose resource says `redis` and nothing of where that is."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvcm.client.admin_client import AdminClient
from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.etcd.testing import PROGRAM, EtcdServer
from kvcm.resources.group import InstanceGroupResource
from kvcm.resources.manager_settings import manager_settings
from kvcm.resources.manager_uris import STORES_MOUNT, secret_mounts
from kvcm.resources.parse import parse_manager, parse_resource
from kvcm.resources.storage import StorageResource
from kvcm.resources.translate import group_from_resource, storage_from_resource
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_blocks import Engine, wait_until
from kvcm.service.testing_wire import HttpWire, code
from kvcm_operator.testing_house import applied_manager, group, storage
from kvcm_operator.world import Json

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None or not PROGRAM, reason="redis-server or etcd is not installed")]
PASSWORD = "pw-canary"
BLOCKS = range(1, 33)


def configuration(spec: Json, mounts: Path) -> str:
    """The settings file of a pod, with the Secrets of the stores mounted elsewhere. Who it is, and its ports, differ by pod and are arguments."""
    resource = parse_manager(applied_manager(**spec))
    for mount in secret_mounts(resource.spec):
        (mounts / mount.name).mkdir()
        for key in mount.keys:
            (mounts / mount.name / key).write_text(f"{PASSWORD}\n")
    settings = manager_settings(resource)
    left_out = ("kvcm.service.", "kvcm.kubernetes.")
    text = "".join(f"{key}={value}\n" for key, value in settings.items() if value and not key.startswith(left_out))
    assert PASSWORD not in text
    return text.replace(STORES_MOUNT, str(mounts))


def test_a_follower_takes_over_every_block_from_what_the_resources_say(tmp_path: Path) -> None:
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdServer())
        redis = stack.enter_context(RedisServer("--requirepass", PASSWORD))
        redis.call("AUTH", PASSWORD)
        spec = {
            "replicas": 2,
            "coordination": {"type": "etcd", "leaseDuration": "2s", "etcd": {"endpoints": [etcd.address]}},
            "metadataBackend": {"type": "redis", "redis": {"address": f"127.0.0.1:{redis.port}", "credentials": {"secretName": "s"}}},
        }
        text = configuration(spec, tmp_path)
        first, second = (stack.enter_context(ManagerProcess({"kvcm.leader_elector.node_id": f"demo-{number}"}, config=text)) for number in range(2))

        place = parse_resource(storage("fast", nfs={"rootPath": str(tmp_path)}))
        chat = parse_resource(group(metadataIndex={"backend": {"type": "redis"}}))
        assert isinstance(place, StorageResource)
        assert isinstance(chat, InstanceGroupResource)

        async def applied() -> None:
            async with AdminClient(first.admin_address, timeout_s=10.0, trace_id="test") as admin:
                await admin.add_storage(storage_from_resource(place))
                await admin.create_group(group_from_resource(chat))

        asyncio.run(applied())
        engine = Engine(HttpWire(first.http_url), HttpWire(first.admin_http_url), tmp_path)
        engine.name = "chat"
        engine.register()
        engine.put(BLOCKS)
        assert sum(name.startswith("kvcache:instance_chat:cache_") for name in set(redis.keys())) == len(BLOCKS)
        first.kill()
        engine = Engine(HttpWire(second.http_url), HttpWire(second.admin_http_url), tmp_path)
        engine.name = "chat"

        def serves() -> bool:
            reply = engine.meta.call("GetCacheLocation", {"trace_id": "t", "instance_id": "chat", "query_type": "QT_PREFIX_MATCH", "block_keys": [*BLOCKS]})
            return code(reply) == "OK" and len(reply["locations"]) == len(BLOCKS)

        wait_until(serves, "the follower serves all blocks")
        assert PASSWORD not in first.log + second.log

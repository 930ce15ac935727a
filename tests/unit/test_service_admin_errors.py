"""AdminService and what must not be asked of it: the exact code, a sentence, nothing changed, and it goes on serving (wire contract 2.1, 5)."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from kvcm.common.errors import ErrorCode
from kvcm.manager.cache_manager import MAX_KEYS_PER_CALL
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol.group_codec import group_to_proto
from kvcm.protocol.storage_codec import storage_to_proto
from kvcm.service.rpc import MAX_MESSAGE_CHARS
from kvcm.service.testing_rpc import SERVED, RpcDesk

pytestmark = pytest.mark.unit

INVALID, UNSUPPORTED, INTERNAL, UNKNOWN = ErrorCode.INVALID_ARGUMENT, ErrorCode.UNSUPPORTED, ErrorCode.INTERNAL_ERROR, ErrorCode.INSTANCE_NOT_EXIST
TAKEN = ErrorCode.DUPLICATE_ENTITY
BIG32, SMALL32, BIG64 = (1 << 31) - 1, -(1 << 31), (1 << 63) - 1
ANY_NODE = {"CheckHealth", "GetManagerClusterInfo", "GetMetrics", "GetLeaderElectorConfig", "UpdateLeaderElectorConfig"}


@dataclass(frozen=True)
class Case:
    """`request` gets the desk: what it asks for may depend on what is there."""

    rpc: str
    code: ErrorCode
    says: str
    request: Callable[[RpcDesk], Message]

    def __str__(self) -> str:
        return f"{self.rpc}-{self.says}"


def plain(rpc: str, code: ErrorCode, says: str, **fields: Any) -> Case:
    return Case(rpc, code, says, lambda desk: getattr(admin, f"{rpc}Request")(**fields))


def put(message: Any, changes: dict[str, Any]) -> None:
    """Set fields by dotted name; None clears one."""
    for path, value in changes.items():
        *parents, field = path.split(".")
        target = message
        for parent in parents:
            target = getattr(target, parent)
        target.ClearField(field)
        if isinstance(value, list):
            getattr(target, field).extend(value)
        elif value is not None:
            setattr(target, field, value)


def group(rpc: str, code: ErrorCode, says: str, current: int = 0, **changes: Any) -> Case:
    """A create of `new` or an update of `g` by the next version, with changes; `__` in a name is a dot. `current` is added to the known version."""

    def request(desk: RpcDesk) -> Message:
        known = desk.world.registry.get_group("g")
        assert known is not None
        wanted = group_to_proto(known)
        put(wanted, {"cache_config.reclaim_strategy.storage_unique_name": "s", "version": known.version + 1})
        if rpc == "CreateInstanceGroup":
            wanted.name = "new"
        put(wanted, {name.replace("__", "."): value for name, value in changes.items()})
        if rpc == "CreateInstanceGroup":
            return admin.CreateInstanceGroupRequest(instance_group=wanted)
        return admin.UpdateInstanceGroupRequest(instance_group=wanted, current_version=known.version + current)

    return Case(rpc, code, says, request)


def storage(rpc: str, code: ErrorCode, says: str, of: str = "s", **changes: Any) -> Case:
    """The configuration of a storage with changes; an added one is called `new`."""

    def request(desk: RpcDesk) -> Message:
        known = desk.world.registry.get_storage(of)
        assert known is not None
        wanted = storage_to_proto(known)
        if rpc == "AddStorage":
            put(wanted, {"global_unique_name": "new", "nfs.root_path": f"{desk.world.root}/new/"})
        put(wanted, {name.replace("__", "."): value for name, value in changes.items()})
        return getattr(admin, f"{rpc}Request")(storage=wanted)  # type: ignore[no-any-return]

    return Case(rpc, code, says, request)


def config(code: ErrorCode, says: str, **member: Any) -> Case:
    """An AddStorage of one oneof member as given."""
    return Case("AddStorage", code, says, lambda desk: admin.AddStorageRequest(storage=admin.StorageConfig(global_unique_name="new", **member)))


def instance(code: ErrorCode, says: str, **changes: Any) -> Case:
    specs, model = [admin.LocationSpecInfo(name="tp0", size=512)], admin.ModelDeployment(model_name="m", dtype="fp16")
    fields: dict[str, Any] = {"instance_id": "new", "instance_group": "g", "block_size": 4, "location_spec_infos": specs, "model_deployment": model}
    return plain("RegisterInstance", code, says, **fields | changes)


BY_NAME = {
    "EnableStorage": "storage_unique_name",
    "DisableStorage": "storage_unique_name",
    "RemoveStorage": "storage_unique_name",
    "RemoveInstanceGroup": "name",
    "GetInstanceGroup": "name",
    "RemoveInstance": "instance_id",
    "GetInstanceInfo": "instance_id",
    "DeleteAccount": "user_name",
}
WITH_MESSAGE = {"AddStorage": "storage", "UpdateStorage": "storage", "CreateInstanceGroup": "instance_group", "UpdateInstanceGroup": "instance_group"}
ALSO_NEEDED = {"AddAccount": "user_name", "LoadConfigSnapshot": "config_snapshot", "UpdateLogger": "log_level"}
LATER = {"MigrateCache", "ListAsyncCopyQuarantine", "BreakGlassReleaseAsyncCopy"}
INDEXER, RECLAIM = "cache_config__meta_indexer_config", "cache_config__reclaim_strategy"
QUOTA_TYPE = [admin.QuotaConfig(storage_type=99, capacity=1)]  # type: ignore[arg-type]
ROUTE = admin.MigrationStrategy(source_storage_name="s", target_storage_name="spare")

BAD_GROUPS: list[tuple[str, dict[str, Any]]] = [
    ("{InstanceGroup: {name}}", {"name": ""}),
    ("{storage_candidates}{global_quota_group_name}", {"storage_candidates": [], "global_quota_group_name": ""}),
    ("storage_candidates is not valid", {"storage_candidates": ["s", "../s"]}),
    ("at most 256 storages", {"storage_candidates": ["s"] * 257}),
    ("{InstanceGroup: {cache_config}}", {"cache_config": None}),
    *(("{data_storage_strategy}", {"cache_config__data_storage_strategy": n}) for n in (0, 99, -1)),
    ("{CacheReclaimStrategy: {storage_unique_name}}", {f"{RECLAIM}__storage_unique_name": ""}),
    ("{reclaim_policy}", {f"{RECLAIM}__reclaim_policy": 99}),
    ("{instance_reclaim_budget_policy}", {f"{RECLAIM}__instance_reclaim_budget_policy": 99}),
    *(("{used_percentage}", {f"{RECLAIM}__trigger_strategy__used_percentage": n}) for n in (math.nan, math.inf)),
    ("{MetaStorageBackendConfig: {storage_type}}", {f"{INDEXER}__meta_storage_backend_config": None}),
    ("{high_pri_pool_ratio}", {f"{INDEXER}__meta_cache_policy_config__high_pri_pool_ratio": -math.inf}),
    ("{QuotaConfig: {storage_type}}", {"quota__quota_config": QUOTA_TYPE}),
    ("{MigrationConfig: {strategies}}", {"cache_config__migration_config__strategies": [ROUTE, ROUTE]}),
    ("max_instance_count must not be negative", {"max_instance_count": -1}),
    ("revisit_interval_buckets must be", {"revisit_interval_buckets": "1,x"}),
]

CASES = [
    *(plain(rpc, INVALID, f"{{{rpc}: {{{field}}}}}") for rpc, field in (BY_NAME | WITH_MESSAGE | ALSO_NEEDED).items()),
    *(plain(rpc, UNKNOWN, "nobody", **{field: "nobody"}) for rpc, field in BY_NAME.items()),
    *(plain(rpc, UNKNOWN, "xxx", **{field: "x" * 9000}) for rpc, field in BY_NAME.items()),
    *(plain(rpc, UNSUPPORTED, f"{rpc} is not served") for rpc in sorted(LATER)),
    # referenced
    plain("RemoveStorage", INTERNAL, "'s'", storage_unique_name="s"),
    plain("RemoveInstanceGroup", INTERNAL, "2 registered instances", name="g"),
    storage("UpdateStorage", INTERNAL, "'s'", nfs__root_path="/elsewhere/"),
    # storages
    storage("AddStorage", TAKEN, "'s' exists already", global_unique_name="s"),
    storage("AddStorage", INVALID, "{global_unique_name}", global_unique_name=""),
    *(storage("AddStorage", INVALID, "name of the storage", global_unique_name=name) for name in ("a/b", "..", " a", "a\n", "x" * 300)),
    storage("AddStorage", INVALID, "{StorageConfig: {storage_spec}}", nfs=None),
    storage("AddStorage", INVALID, "{NfsStorageSpec: {root_path}}", nfs__root_path=""),
    storage("AddStorage", INVALID, "must be absolute", nfs__root_path="relative/path"),
    storage("AddStorage", INVALID, "at most 4096", nfs__key_count_per_file=BIG32),
    *(storage("AddStorage", INVALID, "{storage_type}", storage_type=kind) for kind in (99, -1, int(admin.ST_MOONCAKE))),
    config(INVALID, "{storage_spec}", local=admin.LocalStorageSpec()),
    config(INVALID, "{ThreeFSStorageSpec: {mountpoint}{root_dir}}", threefs=admin.ThreeFSStorageSpec()),
    config(INVALID, "{remote_host}{meta_storage_uri}{remote_port}", vcnsthreefs={"mountpoint": "/m", "root_dir": "d", "remote_port": 1 << 16}),
    config(INVALID, "{MooncakeStorageSpec: {local_hostname}", mooncake=admin.MooncakeStorageSpec()),
    config(INVALID, "{TairMemPoolStorageSpec: {domain}}", tair_mem_pool=admin.TairMemPoolStorageSpec()),
    config(INVALID, "{storage_type}", event_report=admin.EventReportStorageSpec()),
    storage("UpdateStorage", UNKNOWN, "'nobody'", global_unique_name="nobody"),
    storage("UpdateStorage", INVALID, "{root_path}", nfs__root_path=""),
    Case("UpdateStorage", INVALID, "type of storage 's'", lambda desk: admin.UpdateStorageRequest(storage=_dummy(desk, "s"))),
    # groups
    group("CreateInstanceGroup", TAKEN, "'g' exists already", name="g"),
    *(group("CreateInstanceGroup", INVALID, "name of the instance group", name=name) for name in (" a", "a\n", "x" * 300)),
    *(group(rpc, INVALID, says, **changes) for rpc in ("CreateInstanceGroup", "UpdateInstanceGroup") for says, changes in BAD_GROUPS),
    group("UpdateInstanceGroup", UNKNOWN, "'nobody'", name="nobody"),
    *(group("UpdateInstanceGroup", INTERNAL, "read it again", current=n, version=BIG64) for n in (-1, 1, SMALL32)),
    *(group("UpdateInstanceGroup", INTERNAL, "must be greater", version=n) for n in (0, -1, -BIG64)),
    # instances
    instance(INVALID, "{instance_group}{instance_id}{block_size}", instance_group="", instance_id="", block_size=-1),
    instance(INVALID, "{model_deployment}{location_spec_infos}", model_deployment=None, location_spec_infos=[]),
    instance(INVALID, "{default_query_type}", default_query_type=99),
    instance(INVALID, "index 0: {LocationSpecInfo: {name}}", location_spec_infos=[admin.LocationSpecInfo(size=BIG64)]),
    instance(INVALID, "The instance_id", instance_id="a/../b"),
    instance(UNKNOWN, "'elsewhere'", instance_group="elsewhere"),
    instance(TAKEN, "block_size differs", instance_id="i", block_size=BIG32),
    plain("ListInstanceInfo", INVALID, "{ListInstanceInfo: {instance_group_name}}"),
    # accounts, snapshot, logger
    *(plain("AddAccount", INVALID, "user_name of the account", user_name=name, password="p") for name in (" a", "a\n", "x" * 300)),
    plain("AddAccount", INVALID, "at most 1024 characters", user_name="ann", password="p" * 1025),
    plain("LoadConfigSnapshot", INVALID, "not valid JSON", config_snapshot="{"),
    plain("LoadConfigSnapshot", INVALID, "'format' must be", config_snapshot="{}"),
    *(plain("UpdateLogger", INVALID, "DEBUG, INFO, WARN or ERROR", log_level=name) for name in ("LOUD", "4", "WARNING", "x" * 9000)),
    # blocks
    *(plain(rpc, INVALID, f"{{{rpc}: {{instance_id}}}}", block_keys=SERVED) for rpc in ("GetCacheMeta", "RemoveCache")),
    plain("GetCacheMeta", UNKNOWN, "nobody", instance_id="nobody", block_keys=SERVED),
    plain("RemoveCache", UNKNOWN, "nobody", instance_id="nobody", token_ids=[1, 2, 3, 4]),
    plain("GetCacheMeta", INVALID, "both empty", instance_id="i"),
    plain("RemoveCache", INVALID, "{block_keys and token_ids}", instance_id="i"),
    *(plain(rpc, INVALID, "at most 131072", instance_id="i", block_keys=range(MAX_KEYS_PER_CALL + 1)) for rpc in ("GetCacheMeta", "RemoveCache")),
]


def _dummy(desk: RpcDesk, name: str) -> admin.StorageConfig:
    return admin.StorageConfig(global_unique_name=name, dummy=admin.DummyStorageSpec(root_path=str(desk.world.root)))


async def opened(root: Path) -> RpcDesk:
    desk = RpcDesk(root)
    await desk.open()
    return desk


async def assert_serving(desk: RpcDesk) -> None:
    """A new storage, group and instance, and the blocks of an old one."""
    for good in (storage("AddStorage", ErrorCode.OK, ""), group("CreateInstanceGroup", ErrorCode.OK, ""), instance(ErrorCode.OK, "", instance_group="new")):
        assert (await desk.call(good.rpc, good.request(desk)))[:2] == (ErrorCode.OK, "")
    assert (await desk.call("UpdateInstanceGroup", group("UpdateInstanceGroup", ErrorCode.OK, "").request(desk)))[:2] == (ErrorCode.OK, "")
    _, _, reply = await desk.call("GetCacheMeta", admin.GetCacheMetaRequest(instance_id="i", block_keys=SERVED))
    assert ["CLS_SERVING" in text for text in reply.metas] == [True] * len(SERVED)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_call_of_the_admin_service_is_refused_with_a_sentence_and_changes_nothing(case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        desk = await opened(tmp_path)
        before = desk.state()
        code, message, reply = await desk.call(case.rpc, case.request(desk))
        assert (ErrorCode(code), case.says in message) == (case.code, True), message
        assert 10 < len(message) <= MAX_MESSAGE_CHARS
        assert not re.search("Traceback| object at ", message)
        assert [field.name for field, _ in reply.ListFields()] == ["header"]
        assert desk.state() == before
        assert desk.observed.calls == [(case.rpc, case.code)]
        await assert_serving(desk)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert [record.getMessage() for record in caplog.records] == []


def test_what_is_not_there_is_no_error_where_the_contract_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        desk = await opened(tmp_path)
        before = desk.state()
        assert (await desk.call("RemoveCache", admin.RemoveCacheRequest(instance_id="nobody", block_keys=[1])))[0] == ErrorCode.OK
        assert (await desk.call("RemoveCache", admin.RemoveCacheRequest(instance_id="i", block_keys=[99, BIG64])))[0] == ErrorCode.OK
        code, _, reply = await desk.call("ListInstanceInfo", admin.ListInstanceInfoRequest(instance_group_name="nobody"))
        assert (code, len(reply.instance_info)) == (ErrorCode.OK, 0)
        code, _, reply = await desk.call("GetCacheMeta", admin.GetCacheMetaRequest(instance_id="i", token_ids=[1], detail_level=SMALL32))
        assert (code, len(reply.metas)) == (ErrorCode.OK, 0)
        assert desk.state() == before

    asyncio.run(story())


def test_a_node_that_does_not_lead_answers_only_who_leads_and_how_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        desk = await opened(tmp_path)
        before = desk.state()
        desk.lead.leads = False
        for name, rpc in desk.admin.rpcs.items():
            code, message, _ = await desk.call(name, rpc.request_cls())
            expected = ErrorCode.OK if name in ANY_NODE else UNSUPPORTED if name in LATER else ErrorCode.SERVER_NOT_LEADER
            if name == "UpdateLogger":
                expected = INVALID  # served anywhere, but not without a level
            assert (code, bool(message)) == (expected, name not in ANY_NODE), name
        assert desk.state() == before
        desk.lead.leads = True
        await assert_serving(desk)

    asyncio.run(story())

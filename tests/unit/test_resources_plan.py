"""What a plan says and what running it does, against a manager in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kvcm.client.admin_client import AdminCallFailed
from kvcm.client.admin_testing import FakeAdmin
from kvcm.common.errors import InvalidArgument, NotLeader, OutcomeUnknown, StorageError
from kvcm.config.model import CachePreferStrategy, InstanceGroup, MetaBackendConfig, Quota, QuotaConfig
from kvcm.data_storage.model import MooncakeSpec, NfsSpec, Storage, StorageType, VcnsHf3fsSpec
from kvcm.resources.errors import ResourceError, UnsupportedResource
from kvcm.resources.execute import MAX_ATTEMPTS, StepFailed, read_plan, run_plan
from kvcm.resources.group import InstanceGroupResource
from kvcm.resources.normalise import diff
from kvcm.resources.parse import parse_resource
from kvcm.resources.plan import Action, Plan, Sourced, Step, build_plan
from kvcm.resources.translate import group_from_resource, group_spec, storage_spec

pytestmark = pytest.mark.unit


def _doc(kind: str, name: str, spec: dict[str, Any], manager: str = "m") -> Sourced:
    head = {"apiVersion": "kvcm.io/v1alpha1", "kind": kind, "metadata": {"name": name}}
    return Sourced(parse_resource({**head, "spec": {"managerRef": {"name": manager}, **spec}}), f"{name}.yaml")


def _storage(name: str = "s", /, **spec: Any) -> Sourced:
    return _doc("Storage", name, {"nfs": {"rootPath": "/data/s"}, **spec})


def _group(name: str = "g", /, **spec: Any) -> Sourced:
    return _doc("InstanceGroup", name, {"storages": ["s"], "quota": {"total": "10Gi"}, **spec})


def _actions(plan: Plan) -> list[str]:
    return [f"{step.action} {step.kind} {step.name}" for step in plan.steps]


def _enabled(admin: FakeAdmin, name: str) -> bool:
    return admin.storages[name].enabled


def _server_group(**spec: Any) -> InstanceGroup:
    resource = _group(**spec).resource
    assert isinstance(resource, InstanceGroupResource)
    return group_from_resource(resource)


def _apply(admin: FakeAdmin, *resources: Sourced) -> int:
    async def run() -> int:
        return (await run_plan(await read_plan(resources, admin), admin)).changed

    return asyncio.run(run())


def test_storages_come_before_groups_and_a_second_run_changes_nothing() -> None:
    admin = FakeAdmin()
    files = [_group(), _storage(enabled=False)]
    plan = asyncio.run(read_plan(files, admin))
    assert _actions(plan) == ["create Storage s", "disable Storage s", "create InstanceGroup g"]
    assert _apply(admin, *files) == 3
    assert admin.storages["s"] == Storage("s", StorageType.NFS, NfsSpec("/data/s/", 1), enabled=False)
    assert admin.groups["g"].quota == Quota(10 * 2**30)
    assert admin.groups["g"].global_quota_group_name == "g"
    assert admin.groups["g"].cache_config.reclaim_strategy.storage_unique_name == "s"
    calls = list(admin.calls)
    assert _actions(asyncio.run(read_plan(files, admin))) == ["unchanged Storage s", "unchanged InstanceGroup g"]
    assert _apply(admin, *files) == 0
    assert admin.calls == calls


def test_only_what_differs_is_changed_and_named() -> None:
    admin = FakeAdmin()
    _apply(admin, _storage(), _group())
    plan = asyncio.run(read_plan([_storage(nfs={"rootPath": "/data/s", "keyCountPerFile": 4}), _group(quota={"total": "10240Mi"})], admin))
    assert _actions(plan) == ["update Storage s", "unchanged InstanceGroup g"]
    assert [str(change) for change in plan.steps[0].changes] == ["nfs.keyCountPerFile: 1 -> 4"]
    assert plan.changes == 1


def test_disable_enable_and_update_while_disabled() -> None:
    admin = FakeAdmin()
    _apply(admin, _storage())
    assert _apply(admin, _storage(enabled=False)) == 1
    assert not _enabled(admin, "s")
    packed = {"rootPath": "/data/s", "keyCountPerFile": 2}
    assert _apply(admin, _storage(enabled=False, nfs=packed)) == 1
    assert _apply(admin, _storage(nfs={"rootPath": "/data/s"})) == 2
    assert _enabled(admin, "s")
    assert admin.calls == ["add_storage s", "disable_storage s", "update_storage s", "update_storage s", "enable_storage s"]


def test_a_group_update_raises_the_version_and_keeps_what_a_spec_cannot_say() -> None:
    start = _server_group()
    start = replace(start, version=41, user_data="mine", extra_info="x", quota=Quota(10 * 2**30, (QuotaConfig(StorageType.VCNS_HF3FS, 5),)))
    admin = FakeAdmin([Storage("s", StorageType.NFS, NfsSpec("/data/s/"))], [start])
    plan = asyncio.run(read_plan([_group()], admin))
    assert [str(change) for change in plan.steps[0].changes] == ["quota.byType.vcnsThreeFS: 5 -> (unset)"]
    assert _apply(admin, _group()) == 1
    assert admin.groups["g"] == replace(start, version=42, quota=Quota(10 * 2**30))


def test_defaults_of_the_server_are_no_difference() -> None:
    config = _server_group().cache_config
    other = replace(config, meta_indexer=replace(config.meta_indexer, backend=MetaBackendConfig("redis", "redis://u:canary@h/?auth=canary"), mutex_shard_num=0))
    base = _server_group()
    kept = replace(base, cache_config=other, user_data='{"a":1}')
    plan = build_plan([_group()], [Storage("s", StorageType.NFS, NfsSpec("/x/"))], [kept])
    assert _actions(plan) == ["unchanged InstanceGroup g"]
    wanted = _group(metadataIndex={"backend": {"type": "local"}})
    (step,) = build_plan([wanted], [Storage("s", StorageType.NFS, NfsSpec("/x/"))], [kept]).steps
    texts = [str(change) for change in step.changes]
    assert texts == [
        "metadataIndex.backend.type: redis -> local",
        "metadataIndex.backend.uri: redis://***@h/?auth=*** -> (unset)",
        "metadataIndex.backend.writeMode: WriteThrough -> (unset)",
    ]


def test_a_new_group_has_its_metadata_where_the_manager_says_and_an_old_one_where_it_is() -> None:
    def made(base: InstanceGroup | None = None, default: MetaBackendConfig | None = None, **spec: Any) -> MetaBackendConfig:
        resource = _group(**spec).resource
        assert isinstance(resource, InstanceGroupResource)
        return group_from_resource(resource, base, default_backend=default).cache_config.meta_indexer.backend

    own, local = MetaBackendConfig("async_redis"), MetaBackendConfig()
    assert made(default=own) == own
    assert made(_server_group(), own) == made() == local
    assert made(default=own, metadataIndex={"backend": {"type": "local"}}) == local
    for more, kind in (({}, "redis"), ({"writeMode": "WriteThrough"}, "redis"), ({"writeMode": "WriteBehind"}, "async_redis")):
        assert made(metadataIndex={"backend": {"type": "redis", **more}}) == MetaBackendConfig(kind)


def test_names_of_resources_become_names_on_the_server() -> None:
    files = [_storage("first", name="nfs_01"), _group(storages=["first", "known"], name="my_group")]
    plan = build_plan(files, [Storage("known", StorageType.DUMMY, NfsSpec("/d"))], [])
    assert plan.steps[1].group is not None
    assert plan.steps[1].group.storage_candidates == ("nfs_01", "known")
    assert _actions(plan) == ["create Storage nfs_01", "create InstanceGroup my_group"]


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ([_group()], "g.yaml: spec.storages: InstanceGroup g names the storage s, which is neither among the applied files nor on the manager"),
        ([_storage("a", name="x"), _storage("b", name="x")], "b.yaml: two resources describe the Storage x (the other is in a.yaml)"),
        ([_storage("a"), _doc("Storage", "b", {"dummy": {"rootPath": "/b"}}, "other")], "belong to several managers (m, other)"),
    ],
)
def test_a_set_that_contradicts_itself_is_refused_before_anything_is_done(files: list[Sourced], sentence: str) -> None:
    admin = FakeAdmin()
    with pytest.raises(ResourceError) as caught:
        _apply(admin, *files)
    assert sentence in caught.value.message
    assert admin.calls == []


def test_a_kind_cannot_change_and_adoption_can_be_refused() -> None:
    present = [Storage("s", StorageType.DUMMY, NfsSpec("/data/s/")), Storage("t", StorageType.NFS, NfsSpec("/other/"))]
    files = [_storage(), _storage("t", adoptionPolicy="AdoptIfEqual")]
    with pytest.raises(ResourceError) as caught:
        build_plan(files, present, [])
    first, second = caught.value.problems
    assert "is of kind dummy on the manager and of kind nfs here" in str(first)
    assert "differs in nfs.rootPath, and adoptionPolicy is AdoptIfEqual" in str(second)
    equal = [Storage("t", StorageType.NFS, NfsSpec("/data/s/"))]
    assert _actions(build_plan(files[1:], equal, [])) == ["unchanged Storage t"]


@pytest.mark.parametrize(
    "backend",
    [
        {"mooncake": {"localHostname": "h", "metadataConnstring": "m", "protocol": "tcp", "masterServiceEntry": "e"}},
        {"tairMemPool": {"domain": "d"}},
    ],
)
def test_kinds_that_are_not_built_are_unsupported(backend: dict[str, Any]) -> None:
    (kind,) = backend
    with pytest.raises(UnsupportedResource, match=f"x.yaml: Storage x: {kind} storages are not built in this version"):
        build_plan([_doc("Storage", "x", backend)], [], [])


def test_notices_tell_what_has_no_effect_here() -> None:
    files = [_storage(volume={"hostPath": {"path": "/data"}}), _group(metadataIndex={"maxKeys": 5})]
    present = _server_group()
    plan = build_plan(files, [], [present])
    assert len(plan.notices) == 2
    assert "mounted by the operator only" in plan.notices[0]
    assert "instances that register later" in plan.notices[1]


def test_what_other_tools_wrote_can_be_shown_without_secrets() -> None:
    mooncake = Storage("m", StorageType.MOONCAKE, MooncakeSpec("h", "etcd://root:canary@meta:2379/x", "tcp", "e"))
    vcns = Storage("v", StorageType.VCNS_HF3FS, VcnsHf3fsSpec("/m", "r", "h", 1, "user:canary@meta"))
    shown = str([storage_spec(mooncake), storage_spec(vcns)])
    assert "canary" not in shown
    assert "etcd://***@meta:2379/x" in shown
    group = replace(
        _server_group(),
        quota=Quota(-1, (QuotaConfig(StorageType.NFS, 5), QuotaConfig(StorageType.NFS, 3))),
    )
    group = replace(group, cache_config=replace(group.cache_config, data_storage_strategy=CachePreferStrategy.UNSPECIFIED))
    spec = group_spec(group)
    assert spec["quota"] == {"total": "-1", "byType": {"nfs": "3"}}
    assert spec["placement"] == {"preference": "UNSPECIFIED"}


def test_a_storage_is_not_compared_with_a_group() -> None:
    group = _server_group()
    with pytest.raises(TypeError, match="only be compared"):
        diff(Storage("s", StorageType.NFS, NfsSpec("/x")), group)


def test_a_failing_step_stops_and_says_what_was_done() -> None:
    admin = FakeAdmin()
    admin.fail_next("create_group", InvalidArgument("quota is wrong"))
    with pytest.raises(StepFailed) as caught:
        _apply(admin, _storage(), _group())
    assert caught.value.message == "could not create InstanceGroup g (1 changes were made before it): quota is wrong"
    assert caught.value.done == 1
    assert set(admin.storages) == {"s"}
    assert _apply(admin, _storage(), _group()) == 1


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("method", ["add_storage", "update_storage", "disable_storage", "create_group", "update_group"])
def test_a_lost_answer_is_resolved_by_reading(method: str, carried_out: bool) -> None:
    admin = FakeAdmin()
    if method.startswith(("update", "disable")):
        _apply(admin, _storage(), _group())
    admin.calls.clear()
    admin.fail_next(method, OutcomeUnknown("no answer"), carried_out=carried_out)
    wanted = [_storage(nfs={"rootPath": "/data/s", "keyCountPerFile": 4}, enabled=False), _group(maxInstances=7)]
    _apply(admin, *wanted)
    assert sum(call.startswith(method) for call in admin.calls) == (1 if carried_out else 2)
    assert not admin.storages["s"].enabled
    assert admin.groups["g"].max_instance_count == 7
    assert _apply(admin, *wanted) == 0


def test_lost_answers_are_not_followed_for_ever() -> None:
    admin = FakeAdmin()
    for _ in range(MAX_ATTEMPTS + 2):
        admin.fail_next("add_storage", OutcomeUnknown("no answer"))
    with pytest.raises(StepFailed, match="no answer"):
        _apply(admin, _storage())
    assert admin.calls == ["add_storage s"] * MAX_ATTEMPTS


def test_a_group_that_somebody_else_changes_meanwhile_is_planned_again() -> None:
    admin = FakeAdmin()
    _apply(admin, _storage(), _group())

    async def race() -> InstanceGroup:
        plan = await read_plan([_storage(), _group(maxInstances=7)], admin)
        other = admin.groups["g"]
        admin.groups["g"] = replace(other, version=other.version + 5, user_data="theirs")
        await run_plan(plan, admin)
        return admin.groups["g"]

    group = asyncio.run(race())
    assert (group.max_instance_count, group.user_data, group.version) == (7, "theirs", 7)


def test_a_refused_group_update_is_not_repeated() -> None:
    admin = FakeAdmin()
    _apply(admin, _storage(), _group())
    admin.calls.clear()
    admin.fail_next("update_group", AdminCallFailed("UpdateInstanceGroup", 3, "no"))
    with pytest.raises(StepFailed, match="could not update InstanceGroup g: no"):
        _apply(admin, _storage(), _group(maxInstances=7))
    assert admin.calls == ["update_group g"]


@pytest.mark.parametrize("error", [NotLeader("not here"), StorageError("the root cannot be opened")])
def test_other_errors_of_a_step_are_not_repeated(error: StorageError | NotLeader) -> None:
    admin = FakeAdmin()
    admin.fail_next("add_storage", error)
    with pytest.raises(StepFailed, match=error.message):
        _apply(admin, _storage())
    assert admin.calls == ["add_storage s"]


def test_on_done_is_called_after_each_change() -> None:
    admin, seen = FakeAdmin(), list[Step]()

    async def run() -> None:
        await run_plan(await read_plan([_storage(), _group()], admin), admin, on_done=seen.append)

    asyncio.run(run())
    assert [step.action for step in seen] == [Action.CREATE, Action.CREATE]

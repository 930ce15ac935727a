"""Every method of every gRPC client against a real manager process over real sockets: what goes in arrives, what comes back is understood."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcm.client import (
    AdminClient,
    AsyncMetaClient,
    BackendSelector,
    BlockAdd,
    BlockMask,
    ClientConfig,
    DebugClient,
    EventReport,
    LocationStatus,
    MetaClient,
    QueryType,
    TrimStrategy,
)
from kvcm.client.admin_types import AccountRole
from kvcm.client.detail_types import SelectStrategy
from kvcm.client.errors import ServiceError, ServiceInstanceUnknown, ServiceInternal, ServiceInvalidArgument
from kvcm.client.types import LocationSpec
from kvcm.common.errors import DuplicateEntity, InvalidArgument, KvcmError, NotFound, NotLeader, Unsupported
from kvcm.config.model import CacheConfig, CachePreferStrategy, Instance, InstanceGroup, LocationSpecInfo, ModelDeployment, Quota, ReclaimStrategy
from kvcm.data_storage.model import NfsSpec, Storage, StorageType
from kvcm.service.testing import ManagerProcess

pytestmark = pytest.mark.integration

_ST_NFS = 4


@pytest.fixture(scope="module")
def manager() -> Iterator[ManagerProcess]:
    with ManagerProcess({"kvcm.service.enable_debug_service": "true"}) as process:
        yield process


def _config(manager: ManagerProcess, instance_id: str) -> ClientConfig:
    return ClientConfig.parse(
        {
            "instance_group": "default",
            "instance_id": instance_id,
            "block_size": 4,
            "address": [manager.meta_address],
            "location_spec_infos": {"tp0": 1024, "tp1": 512},
            "location_spec_groups": {"first": ["tp0"]},
            "model_deployment": {"model_name": "m", "dtype": "fp8", "tp_size": 2},
            "meta_channel_config": {"call_timeout": 10_000},
        }
    )


class _Blocking:
    """The asyncio client, called as the blocking one, so that one story serves both."""

    def __init__(self, runner: asyncio.Runner, client: AsyncMetaClient) -> None:
        self._runner = runner
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *positional, **named: self._runner.run(found(*positional, **named))


@pytest.fixture(params=["sync", "asyncio"])
def meta(request: pytest.FixtureRequest, manager: ManagerProcess) -> Iterator[Any]:
    """A metadata client of an instance of its own."""
    config = _config(manager, f"rpc-{request.node.name.replace('[', '-').replace(']', '')}")
    if request.param == "sync":
        with MetaClient.connect(config) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        found = runner.run(AsyncMetaClient.connect(config))
        yield _Blocking(runner, found)
        runner.run(found.close())


def _write(meta: Any, keys: list[int]) -> Any:
    session = meta.start_write(keys, trace_id="write")
    meta.finish_write(session.write_session_id, [True] * len(session.locations))
    return session


def test_register_and_describe(meta: Any) -> None:
    info = meta.get_instance_info()
    assert (info.instance_group, info.block_size, info.location_spec_infos) == ("default", 4, {"tp0": 1024, "tp1": 512})
    assert info.location_spec_groups == {"first": ("tp0",)}
    assert "nfs_01" in meta.get_storage_config()
    assert meta.extra_info == ""
    cluster = meta.get_cluster_info()
    assert cluster.self_node_id == cluster.leader_node_id
    assert cluster.leader_endpoint.meta_http_port > 0


def test_write_find_and_count(meta: Any) -> None:
    keys = [11, -12, 13]
    session = meta.start_write(keys)
    assert len(session.locations) == 3
    assert meta.match_location(QueryType.PREFIX_MATCH, keys).locations == ()
    assert meta.match_location_len(QueryType.PREFIX_MATCH, keys) == 0
    meta.finish_write(session.write_session_id, [True, True, False], checksums=[5, 6, 0])
    found = meta.match_location(QueryType.PREFIX_MATCH, keys, want_checksums=True)
    assert found.locations == session.locations[:2]
    assert found.checksums == (5, 6)
    assert meta.match_location_len(QueryType.PREFIX_MATCH, keys) == 2
    assert meta.match_location(QueryType.PREFIX_MATCH, keys, block_mask=BlockMask(offset=1)).locations == session.locations[1:2]
    (only,) = meta.match_location(QueryType.BATCH_GET, keys[:1], spec_names=["tp1"]).locations
    assert [spec.name for spec in only.specs] == ["tp1"]
    again = meta.start_write(keys)
    assert (again.block_mask.open_indexes(3), len(again.locations)) == ([2], 1)
    with pytest.raises(ServiceInternal):
        meta.finish_write("no such session", [True])
    tokens = list(range(8))
    _tokens = meta.start_write(tokens=tokens)
    meta.finish_write(_tokens.write_session_id, BlockMask(offset=2))
    assert meta.match_location_len(QueryType.PREFIX_MATCH, tokens=tokens) == 2


def test_spec_groups_of_a_write(meta: Any) -> None:
    session = meta.start_write([1], spec_group_names=["first"], min_replica_count=1, write_timeout_seconds=5)
    assert [spec.name for spec in session.locations[0].specs] == ["tp0"]


def test_by_backend(meta: Any) -> None:
    session = _write(meta, [21, 22])
    found = meta.match_by_backend([BackendSelector(_ST_NFS, SelectStrategy.WEIGHTED_RANDOM), BackendSelector(1)], [21, 99, 22])
    assert found == ((session.locations[0],), (), (session.locations[1],))
    assert meta.match_by_backend([BackendSelector(_ST_NFS)], [21], spec_names=["none"]) == ((),)
    with pytest.raises(ServiceInvalidArgument):
        meta.match_by_backend([BackendSelector(263)], [21])
    with pytest.raises(ServiceInvalidArgument):
        meta.match_by_backend([], [21])


def test_what_is_known_about_blocks(meta: Any) -> None:
    session = _write(meta, [31, 32])
    metas = meta.match_meta([31, 99], detail_level=1)
    assert metas.locations[0] == session.locations[0]
    assert "CLS_SERVING" in metas.metas[0]
    first, second, missing = meta.match_meta_detail([31, 32, 99])
    assert (first.index, first.key, first.code) == (0, 31, 1)
    assert [(item.status, item.storage_type, item.specs) for item in first.locations] == [(LocationStatus.SERVING, _ST_NFS, session.locations[0].specs)]
    assert first.locations[0].location_id
    assert first.locations[0].create_time_us > 1_600_000_000_000_000
    assert second.previous_key == "31"
    assert [item.status for item in missing.locations] == [LocationStatus.NOT_FOUND]
    (masked,) = meta.match_meta_detail([31, 32], block_mask=BlockMask(offset=1))
    assert (masked.index, masked.key) == (1, 32)


def test_remove_and_trim(meta: Any) -> None:
    _write(meta, [41, 42, 43])
    meta.remove_cache([42])
    assert meta.match_location_len(QueryType.PREFIX_MATCH, [41, 42, 43]) == 1
    meta.trim_cache(TrimStrategy.TIMESTAMP, begin=1, end=2)
    assert meta.match_location_len(QueryType.PREFIX_MATCH, [41]) == 1
    meta.trim_cache(TrimStrategy.REMOVE_ALL_CACHE)
    assert meta.match_location_len(QueryType.PREFIX_MATCH, [41]) == 0


def test_reports_of_hosts_need_a_storage_for_them(meta: Any) -> None:
    """What they do with one is in test_upstream_report_event; the shapes of their replies are tested with a server in the process."""
    assert meta.get_host_cache_state([1, 2]) == ()
    with pytest.raises(ServiceInstanceUnknown, match="event_report_storage_candidates") as caught:
        meta.report_event("10.0.0.1:1", 8, [BlockAdd(1, "mem", (LocationSpec("tp0", "vineyard://10.0.0.1:1/mem"),))])
    assert isinstance(caught.value.details, EventReport)


def test_errors_carry_code_and_request(meta: Any) -> None:
    with pytest.raises(ServiceInvalidArgument) as caught:
        meta.match_location(QueryType.UNSPECIFIED, [1], trace_id="trace-7")
    assert (caught.value.client_code, caught.value.service_code) == (53, 5)
    assert caught.value.request_id.startswith("trace-7_")


def test_every_public_method_of_the_meta_clients_is_here() -> None:
    story = Path(__file__).read_text()
    public = {name for name, value in vars(MetaClient).items() if not name.startswith("_") and inspect.isfunction(value)}
    assert public == {name for name, value in vars(AsyncMetaClient).items() if not name.startswith("_") and inspect.isfunction(value)}
    assert {name for name in public if f"meta.{name}(" not in story and name != "close"} == set()


# -- admin and debug -------------------------------------------------------------------------------------------------------------------------------


def _admin(manager: ManagerProcess, story: Callable[[AdminClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with AdminClient(manager.admin_address, trace_id="every-rpc") as admin:
            await story(admin)

    asyncio.run(run())


def _group(name: str, storage: str, **changes: Any) -> InstanceGroup:
    fields: dict[str, Any] = {
        "max_instance_count": 5,
        "quota": Quota(1 << 20),
        "cache_config": CacheConfig(ReclaimStrategy(storage_unique_name=storage), CachePreferStrategy.PREFER_3FS),
    }
    return InstanceGroup(name, (storage,), "quota", **(fields | changes))


def _instance(instance_id: str, group: str) -> Instance:
    return Instance(instance_id, group, "quota", 16, (LocationSpecInfo("tp0", 64),), ModelDeployment("m", "fp8", tp_size=1))


def test_storages_groups_and_instances(manager: ManagerProcess, tmp_path: Path) -> None:
    async def story(admin: AdminClient) -> None:
        (tmp_path / "a").mkdir()
        storage = Storage("every", StorageType.NFS, NfsSpec(f"{tmp_path}/a/", 1))
        await admin.add_storage(storage)
        with pytest.raises(DuplicateEntity):
            await admin.add_storage(storage)
        assert "every" in [found.name for found in await admin.list_storages()]
        await admin.disable_storage("every")
        state = next(view.state for view in await admin.describe_storages() if view.storage.name == "every")
        assert state is not None
        assert (state.enabled, state.available) == (False, False)
        await admin.enable_storage("every")
        await admin.update_storage(Storage("every", StorageType.NFS, NfsSpec(f"{tmp_path}/a/", 2)))

        await admin.create_group(_group("every-group", "every"))
        view = await admin.describe_group("every-group")
        await admin.update_group(_group("every-group", "every", user_data="new", version=view.group.version + 1), view.group.version)
        assert (await admin.describe_group("every-group")).group.user_data == "new"
        assert "every-group" in [group.name for group in await admin.list_groups()]
        assert {view.group.name for view in await admin.describe_groups()} >= {"every-group", "default"}

        await admin.register_instance(_instance("every-instance", "every-group"))
        assert await admin.get_instance("every-instance") == _instance("every-instance", "every-group")
        assert [found.instance_id for found in await admin.list_instances("every-group")] == ["every-instance"]
        assert (await admin.get_cache_meta("every-instance", [1])).metas
        await admin.remove_cache("every-instance", [1])

        # What is referenced goes only by force.
        with pytest.raises(KvcmError):
            await admin.remove_group("every-group")
        with pytest.raises(KvcmError):
            await admin.remove_storage("every")
        await admin.remove_storage("every", force=True)
        await admin.remove_instance("every-instance")
        with pytest.raises(NotFound, match="every-instance"):
            await admin.remove_instance("every-instance", force=True)
        with pytest.raises(NotFound):
            await admin.get_instance("every-instance")
        await admin.remove_group("every-group", force=True)
        with pytest.raises(NotFound):
            await admin.describe_group("every-group")

    _admin(manager, story)


def test_accounts(manager: ManagerProcess) -> None:
    async def story(admin: AdminClient) -> None:
        await admin.add_account("ann", "c4n4ry-p4ssword", AccountRole.ADMIN)
        await admin.add_account("bob", "c4n4ry-p4ssword", AccountRole.USER)
        with pytest.raises(DuplicateEntity):
            await admin.add_account("bob", "other-p4ssword", AccountRole.USER)
        accounts = await admin.list_accounts()
        assert {account.name: account.role for account in accounts} == {"ann": AccountRole.ADMIN, "bob": AccountRole.USER}
        for name in ("ann", "bob"):
            await admin.delete_account(name)
        with pytest.raises(NotFound):
            await admin.delete_account("bob")

    _admin(manager, story)
    assert "c4n4ry" not in manager.log


def test_snapshots(manager: ManagerProcess) -> None:
    async def story(admin: AdminClient) -> None:
        text = await admin.save_snapshot()
        assert "default" in text
        await admin.create_group(_group("after-the-snapshot", "nfs_01"))
        await admin.load_snapshot(text)
        await admin.load_snapshot(text, force=True)
        assert "default" in [group.name for group in await admin.list_groups()]
        with pytest.raises(InvalidArgument):
            await admin.load_snapshot("no snapshot")

    _admin(manager, story)


def test_health_metrics_and_logging(manager: ManagerProcess) -> None:
    async def story(admin: AdminClient) -> None:
        health = await admin.check_health()
        assert (health.healthy, health.leader) == (True, True)
        cluster = await admin.cluster_info()
        assert cluster.leader is not None
        assert cluster.leader.admin_rpc_port == manager.endpoint.admin_rpc_port
        report = await admin.metrics()
        assert report.timestamp_ms > 1_600_000_000_000
        calls = [sample for sample in report.samples if sample.name == "service.query_counter" and sample.tags.get("api_name") == "CheckHealth"]
        assert [type(sample.value) for sample in calls] == [int]
        for level in ("debug", "INFO"):
            await admin.set_log_level(level)
        with pytest.raises(InvalidArgument):
            await admin.set_log_level("loud")
        for call in (
            admin.migrate_cache("i", "a", "b", keys=[1], sample_count=2),
            admin.list_quarantined_copies("default"),
            admin.release_quarantined_copy("1", "ann", "the node is off", confirmed=True),
        ):
            with pytest.raises(Unsupported):
                await call

    _admin(manager, story)


def test_leadership() -> None:
    async def story(admin: AdminClient) -> None:
        await admin.set_campaign_delay(3_600_000)
        assert await admin.campaign_delay_ms() == 3_600_000
        await admin.go_to_leader()
        await admin.leader_demote()
        assert (await admin.check_health()).leader is False
        with pytest.raises(NotLeader, match="none of the managers leads"):
            await admin.go_to_leader()
        with pytest.raises(NotLeader):
            await admin.leader_demote()
        with pytest.raises(NotLeader):
            await admin.list_storages()

    with ManagerProcess() as manager:
        _admin(manager, story)


def test_every_public_method_of_the_admin_and_debug_clients_is_here() -> None:
    story = Path(__file__).read_text()
    for kind, variable in ((AdminClient, "admin"), (DebugClient, "debug")):
        public = {name for name in dir(kind) if not name.startswith("_") and name != "close"}
        assert {name for name in public if f"{variable}.{name}" not in story} == set()


def test_faults(manager: ManagerProcess) -> None:
    config = _config(manager, "faulty")

    async def run() -> None:
        async with DebugClient(manager.admin_address) as debug, await AsyncMetaClient.connect(config) as meta:

            async def count(trace_id: str = "") -> int:
                return await meta.match_location_len(QueryType.PREFIX_MATCH, [1], trace_id=trace_id)

            await debug.inject_fault("GetCacheLocationLen")
            for _ in range(2):
                with pytest.raises(ServiceInternal, match=r"(?i)fault"):
                    await count()
            await debug.inject_fault("GetCacheLocationLen", once_at=4)
            assert await count("call_3") == 0
            with pytest.raises(ServiceInternal):
                await count("call_4")
            await debug.remove_fault("GetCacheLocationLen")
            with pytest.raises(InvalidArgument):
                await debug.remove_fault("GetCacheLocationLen")
            await debug.inject_fault("GetCacheLocationLen")
            await debug.clear_faults()
            assert await count() == 0

    asyncio.run(run())


def test_without_the_debug_service_every_call_says_so() -> None:
    async def run(address: str) -> None:
        async with DebugClient(address) as debug:
            with pytest.raises(Unsupported, match="debug service on"):
                await debug.clear_faults()

    with ManagerProcess() as manager:
        asyncio.run(run(manager.admin_address))


def test_an_unknown_instance_is_its_own_error(manager: ManagerProcess) -> None:
    with MetaClient.connect(_config(manager, "goes-away")) as meta:
        _admin(manager, lambda admin: admin.remove_instance("goes-away"))
        with pytest.raises(ServiceInstanceUnknown) as caught:
            meta.start_write([1])
        assert isinstance(caught.value, ServiceError)

"""An in-memory manager with the methods of `AdminClient`, for tests of whoever decides what to call.

It keeps the rules that callers depend on: duplicate and unknown names, one version after the other, a kind that cannot change. `calls` lists
what was changed. `states` and `usage` say what the manager would tell beside the configuration (None: it tells nothing). `fail_next` makes one
call fail; with `OutcomeUnknown` the change can happen all the same, as with a lost answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import TracebackType

from kvcm.client.admin_client import AdminCallFailed
from kvcm.client.admin_types import Account, AccountRole, ClusterInfo, GroupUsage, GroupView, Health, MetricSample, MetricsReport, StorageState, StorageView
from kvcm.common.errors import DuplicateEntity, InvalidArgument, KvcmError, NotFound
from kvcm.config.model import Instance, InstanceGroup
from kvcm.data_storage.model import Storage


@dataclass(slots=True)
class _Failure:
    error: KvcmError
    carried_out: bool


class FakeAdmin:
    def __init__(self, storages: Iterable[Storage] = (), groups: Iterable[InstanceGroup] = (), instances: Iterable[Instance] = ()) -> None:
        self.storages = {storage.name: storage for storage in storages}
        self.groups = {group.name: group for group in groups}
        self.instances = list(instances)
        self.states: dict[str, StorageState | None] = {}
        self.usage: dict[str, GroupUsage | None] = {}
        self.accounts: dict[str, tuple[str, AccountRole]] = {}
        self.snapshot = ""
        self.samples: tuple[MetricSample, ...] = ()
        self.campaign_delay = 0
        self.epoch = 1
        self.calls: list[str] = []
        self._failures: dict[str, list[_Failure]] = {}

    async def __aenter__(self) -> FakeAdmin:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        return None

    def fail_next(self, method: str, error: KvcmError, *, carried_out: bool = False) -> None:
        """The next call of `method` raises; several failures of one method happen in order."""
        self._failures.setdefault(method, []).append(_Failure(error, carried_out))

    async def list_storages(self) -> list[Storage]:
        self._maybe_fail("list_storages")
        return list(self.storages.values())

    async def describe_storages(self) -> list[StorageView]:
        return [StorageView(storage, self.states.get(storage.name, _healthy(storage))) for storage in await self.list_storages()]

    async def add_storage(self, storage: Storage) -> None:
        failure = self._before("add_storage", storage.name)
        if storage.name in self.storages:
            raise DuplicateEntity(f"storage {storage.name} exists already")
        # The wire does not carry whether a storage is enabled.
        self.storages[storage.name] = replace(storage, enabled=True)
        _after(failure)

    async def update_storage(self, storage: Storage, *, force: bool = False) -> None:
        failure = self._before("update_storage", storage.name)
        old = self._storage(storage.name)
        if old.type is not storage.type:
            raise InvalidArgument("the type of a storage cannot change")
        self.storages[storage.name] = replace(storage, enabled=old.enabled)
        _after(failure)

    async def enable_storage(self, name: str) -> None:
        failure = self._before("enable_storage", name)
        self.storages[name] = replace(self._storage(name), enabled=True)
        _after(failure)

    async def disable_storage(self, name: str) -> None:
        failure = self._before("disable_storage", name)
        self.storages[name] = replace(self._storage(name), enabled=False)
        _after(failure)

    async def remove_storage(self, name: str, *, force: bool = False) -> None:
        failure = self._before("remove_storage", name, force)
        self._storage(name)
        del self.storages[name]
        _after(failure)

    async def list_groups(self) -> list[InstanceGroup]:
        self._maybe_fail("list_groups")
        return list(self.groups.values())

    async def describe_groups(self) -> list[GroupView]:
        return [GroupView(group, self.usage.get(group.name, self._empty(group.name))) for group in await self.list_groups()]

    async def describe_group(self, name: str) -> GroupView:
        found = next((view for view in await self.describe_groups() if view.group.name == name), None)
        if found is None:
            raise NotFound(f"group {name} does not exist")
        return found

    async def create_group(self, group: InstanceGroup) -> None:
        failure = self._before("create_group", group.name)
        if group.name in self.groups:
            raise AdminCallFailed("CreateInstanceGroup", 3, f"group {group.name} exists already")
        self.groups[group.name] = group
        _after(failure)

    async def update_group(self, group: InstanceGroup, current_version: int) -> None:
        failure = self._before("update_group", group.name)
        old = self.groups.get(group.name)
        if old is None or old.version != current_version or group.version <= current_version:
            raise AdminCallFailed("UpdateInstanceGroup", 3, "the version of the group does not match")
        self.groups[group.name] = group
        _after(failure)

    async def remove_group(self, name: str, *, force: bool = False) -> None:
        failure = self._before("remove_group", name, force)
        if self.groups.pop(name, None) is None:
            raise NotFound(f"group {name} does not exist")
        _after(failure)

    async def list_instances(self, group: str) -> list[Instance]:
        return [instance for instance in self.instances if instance.instance_group_name == group]

    async def remove_instance(self, instance_id: str, *, force: bool = False) -> None:
        failure = self._before("remove_instance", instance_id)
        kept = [instance for instance in self.instances if instance.instance_id != instance_id]
        if len(kept) == len(self.instances):
            raise NotFound(f"instance {instance_id} does not exist")
        self.instances = kept
        _after(failure)

    async def list_accounts(self) -> list[Account]:
        self._maybe_fail("list_accounts")
        return [Account(name, role) for name, (_, role) in self.accounts.items()]

    async def add_account(self, name: str, password: str, role: AccountRole) -> None:
        failure = self._before("add_account", name)
        if name in self.accounts:
            raise DuplicateEntity(f"account {name} exists already")
        self.accounts[name] = (password, role)
        _after(failure)

    async def delete_account(self, name: str) -> None:
        failure = self._before("delete_account", name)
        if self.accounts.pop(name, None) is None:
            raise NotFound(f"account {name} does not exist")
        _after(failure)

    async def save_snapshot(self) -> str:
        self._maybe_fail("save_snapshot")
        return self.snapshot

    async def load_snapshot(self, text: str, *, force: bool = False) -> None:
        failure = self._before("load_snapshot", "with force" if force else "")
        self.snapshot = text
        _after(failure)

    async def metrics(self) -> MetricsReport:
        self._maybe_fail("metrics")
        return MetricsReport(1, self.samples, "")

    async def go_to_leader(self) -> None:
        _after(self._before("go_to_leader", ""))

    async def leader_demote(self) -> None:
        _after(self._before("leader_demote", ""))

    async def campaign_delay_ms(self) -> int:
        return self.campaign_delay

    async def set_campaign_delay(self, delay_ms: int) -> None:
        failure = self._before("set_campaign_delay", str(delay_ms))
        self.campaign_delay = delay_ms
        _after(failure)

    async def set_log_level(self, level: str) -> None:
        _after(self._before("set_log_level", level))

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo("node-1", "node-1", 0, None, self.epoch)

    async def check_health(self) -> Health:
        return Health(healthy=True, leader=True, elector_last_loop_ms=0)

    def _empty(self, name: str) -> GroupUsage:
        return GroupUsage(name, sum(instance.instance_group_name == name for instance in self.instances), 0, 0)

    def _storage(self, name: str) -> Storage:
        if name not in self.storages:
            raise NotFound(f"storage {name} does not exist")
        return self.storages[name]

    def _before(self, method: str, name: str, force: bool = False) -> _Failure | None:
        self.calls.append(f"{method} {name}{' by force' if force else ''}".rstrip())
        waiting = self._failures.get(method)
        failure = waiting.pop(0) if waiting else None
        if failure is not None and not failure.carried_out:
            raise failure.error
        return failure

    def _maybe_fail(self, method: str) -> None:
        waiting = self._failures.get(method)
        if waiting:
            raise waiting.pop(0).error


def _healthy(storage: Storage) -> StorageState:
    return StorageState(storage.name, storage.type, storage.enabled, available=storage.enabled, root_verified=True, problem="")


def _after(failure: _Failure | None) -> None:
    if failure is not None:
        raise failure.error

"""Mutations of instance groups and instances (behaviour 15.2; wire contract 4.4, 5.3, 5.4).

Danger: a registration that is "the same again" must stay cheap and must not write, because engines repeat it at every start; one that
differs must say in which fields, since its caller can only guess otherwise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from kvcm.common.errors import CapacityReached, DuplicateEntity, InstanceNotExist, InvalidArgument, NotFound
from kvcm.config.errors import InUse, VersionConflict
from kvcm.config.model import Instance, InstanceGroup
from kvcm.config.persisted import group_from_dict, group_to_dict, instance_from_dict, instance_to_dict
from kvcm.config.registry_core import RegistryCore, RegistryEventKind
from kvcm.config.registry_rules import check_group, check_instance, check_size
from kvcm.config.store import Change, Record

MAX_GROUPS = 4096
MAX_INSTANCES = 65_536
_log = logging.getLogger("kvcm.config.registry")
_T = TypeVar("_T")


class GroupRegistry:
    def __init__(self, core: RegistryCore, enforce_references: bool) -> None:
        self._core = core
        self._enforce = enforce_references

    async def create(self, group: InstanceGroup) -> None:
        check_group(group)
        if group.name in self._core.tables.groups:
            raise DuplicateEntity(f"Instance group {group.name!r} exists already.")
        if len(self._core.tables.groups) >= MAX_GROUPS:
            raise CapacityReached(f"There can be at most {MAX_GROUPS} instance groups.")
        await self._put(group, RegistryEventKind.GROUP_CREATED)

    async def update(self, group: InstanceGroup, current_version: int) -> None:
        check_group(group)
        old = self._known(group.name)
        if old.version != current_version:
            raise VersionConflict(f"Instance group {group.name!r} has version {old.version}, not {current_version}; read it again before updating it.")
        if group.version <= current_version:
            raise VersionConflict(f"The new version of instance group {group.name!r} must be greater than {current_version}.")
        await self._put(group, RegistryEventKind.GROUP_UPDATED)

    async def remove(self, name: str, force: bool) -> None:
        if ("instance_group", name) not in self._core.tables.quarantined:
            self._known(name)
        count = sum(instance.instance_group_name == name for instance in self._core.tables.instances.values())
        if count and self._enforce and not force:
            raise InUse(f"Instance group {name!r} has {count} registered instances. Remove them first, or force the removal.")

        async def publish() -> None:
            self._core.tables.groups.pop(name, None)
            self._core.emit(RegistryEventKind.GROUP_REMOVED, name)

        await self._core.commit([Change("instance_group", name, None)], publish)

    def _known(self, name: str) -> InstanceGroup:
        group = self._core.tables.groups.get(name)
        if group is None:
            raise NotFound(f"Instance group {name!r} does not exist.")
        return group

    async def _put(self, group: InstanceGroup, kind: RegistryEventKind) -> None:
        record = as_record(group, group_to_dict)
        check_size(f"Instance group {group.name!r}", record)
        # What is published is what recovery would read (I-RG-1).
        stored = group_from_dict(record)

        async def publish() -> None:
            self._core.tables.groups[stored.name] = stored
            self._core.emit(kind, stored.name)

        await self._core.commit([Change("instance_group", stored.name, record)], publish)


class InstanceRegistry:
    def __init__(self, core: RegistryCore) -> None:
        self._core = core

    def is_registered(self, instance: Instance) -> bool:
        """False when the id is free; raises DuplicateEntity when it is taken by another configuration."""
        check_instance(instance)
        existing = self._core.tables.instances.get(instance.instance_id)
        if existing is None:
            return False
        self.compare(existing, instance_from_dict(as_record(instance, instance_to_dict)))
        return True

    async def register(self, instance: Instance) -> bool:
        if self.is_registered(instance):
            return False
        record = as_record(instance, instance_to_dict)
        check_size(f"Instance {instance.instance_id!r}", record)
        wanted = instance_from_dict(record)
        if len(self._core.tables.instances) >= MAX_INSTANCES:
            raise CapacityReached(f"There can be at most {MAX_INSTANCES} instances.")
        group = self._core.tables.groups.get(wanted.instance_group_name)
        if group is None:
            raise InstanceNotExist(f"Instance group {wanted.instance_group_name!r} does not exist.")
        members = sum(other.instance_group_name == group.name for other in self._core.tables.instances.values())
        if 0 < group.max_instance_count <= members:
            raise CapacityReached(f"Instance group {group.name!r} already has its maximum of {group.max_instance_count} instances.")
        stored = replace(wanted, quota_group_name=group.global_quota_group_name)

        async def publish() -> None:
            self._core.tables.instances[stored.instance_id] = stored
            self._core.emit(RegistryEventKind.INSTANCE_REGISTERED, stored.instance_id)

        await self._core.commit([Change("instance", stored.instance_id, instance_to_dict(stored))], publish)
        return True

    async def remove(self, instance_id: str) -> None:
        damaged = ("instance", instance_id) in self._core.tables.quarantined
        if instance_id not in self._core.tables.instances and not damaged:
            raise InstanceNotExist(f"Instance {instance_id!r} does not exist.")

        async def publish() -> None:
            self._core.tables.instances.pop(instance_id, None)
            self._core.emit(RegistryEventKind.INSTANCE_REMOVED, instance_id)

        await self._core.commit([Change("instance", instance_id, None)], publish)

    @staticmethod
    def compare(existing: Instance, wanted: Instance) -> None:
        """Raises DuplicateEntity when the two differ in identity."""
        mismatches = existing.mismatches(wanted)
        if mismatches:
            details = json.dumps({"error_msg": [f"{field} differs from the registered one" for field in mismatches]})
            raise DuplicateEntity(f"Instance {existing.instance_id!r} is registered with another configuration: {details}")
        if existing.instance_group_name != wanted.instance_group_name:
            # Upstream does not compare the group of a repeated registration, and its clients rely on that.
            _log.warning(
                "instance %s stays in group %s; its registration for group %s changes nothing",
                existing.instance_id,
                existing.instance_group_name,
                wanted.instance_group_name,
            )


def as_record(entity: _T, convert: Callable[[_T], Record]) -> Record:
    """The persisted form. Raises InvalidArgument for what JSON cannot hold (a text that claims to be JSON and is not)."""
    try:
        return convert(entity)
    except ValueError:
        raise InvalidArgument("The entity holds a text that must be JSON and is not.") from None

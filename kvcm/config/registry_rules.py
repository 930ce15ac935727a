"""What the registry accepts: names, groups, instances, moves of storages. Pure functions; all problems of one entity in one sentence list.

Dangers: ids become store keys, URI parts and file names, so what could collide with a reserved key (I-RG-4b) or change the meaning of a URI
is refused here, once, for every way in. Requirements that only the admin API has (wire contract 5.3) stay in the service.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

from kvcm.common.errors import InvalidArgument
from kvcm.config.model import CachePreferStrategy, Instance, InstanceGroup
from kvcm.config.settings_source import parse_buckets
from kvcm.config.store import OWN_PREFIX, RESERVED_IDS, Record
from kvcm.data_storage.model import (
    DummySpec,
    EventReportSpec,
    Hf3fsSpec,
    MooncakeSpec,
    NfsSpec,
    Storage,
    StorageSpec,
    StorageType,
    TairMemPoolSpec,
    VcnsHf3fsSpec,
)
from kvcm.data_storage.naming import check_storage_name, component_problem

MAX_ID_CHARS = 256
MAX_CANDIDATES = 256
MAX_TIMING_MS = 86_400_000
MAX_RECORD_CHARS = 1 << 18
"""Of one entity as JSON. Whoever may register an instance could else fill the memory and the store, which is written as a whole."""


def name_problem(text: str) -> str | None:
    """Why a text cannot be a key of the registry, as the end of a sentence; None when it can."""
    if not text:
        return "is empty"
    if len(text) > MAX_ID_CHARS:
        return f"has more than {MAX_ID_CHARS} characters"
    if not text.isprintable():
        return "contains a control character or another character that cannot be printed"
    if text != text.strip():
        return "begins or ends with blanks"
    if text.startswith(OWN_PREFIX):
        return f"begins with {OWN_PREFIX}, which is reserved"
    return None


def place_problem(text: str) -> str | None:
    """The same for what also becomes a part of paths and URIs: instance ids, spec names, storage names."""
    return name_problem(text) or component_problem(text)


def check_size(what: str, record: Record) -> None:
    """`what` begins the sentence. Raises InvalidArgument."""
    if len(json.dumps(record)) > MAX_RECORD_CHARS:
        raise InvalidArgument(f"{what} takes more than {MAX_RECORD_CHARS} characters to store.")


def check_storage(storage: Storage) -> None:
    """Raises InvalidArgument."""
    problem = place_problem(storage.name)
    if problem:
        raise InvalidArgument(f"The name of the storage {problem}.")
    check_storage_name(storage.name)
    if storage.type is StorageType.UNSPECIFIED:
        raise InvalidArgument(f"Storage {storage.name!r} has no type.")
    if isinstance(storage.spec, EventReportSpec):
        wrong = [field.name for field in fields(storage.spec) if not 0 < getattr(storage.spec, field.name) <= MAX_TIMING_MS]
        if wrong:
            raise InvalidArgument(f"Storage {storage.name!r}: {', '.join(wrong)} must be from 1 to {MAX_TIMING_MS} milliseconds.")


def check_group(group: InstanceGroup) -> None:
    """Raises InvalidArgument naming every problem. Candidate storages need not exist (wire contract 5.3)."""
    problem = name_problem(group.name)
    if problem:
        raise InvalidArgument(f"The name of the instance group {problem}.")
    problems = []
    if not group.storage_candidates:
        problems.append("storage_candidates must not be empty")
    candidates = (*group.storage_candidates, *group.event_report_storage_candidates)
    if len(candidates) > MAX_CANDIDATES:
        problems.append(f"at most {MAX_CANDIDATES} storages may be named")
    if any(place_problem(name) for name in candidates[:MAX_CANDIDATES]):
        problems.append("a storage name in storage_candidates is not valid")
    if not group.global_quota_group_name:
        problems.append("global_quota_group_name must not be empty")
    if group.max_instance_count < 0:
        problems.append("max_instance_count must not be negative (0 means unlimited)")
    config = group.cache_config
    if config.data_storage_strategy is CachePreferStrategy.UNSPECIFIED:
        problems.append("data_storage_strategy must be set")
    if not config.meta_indexer.backend.storage_type:
        problems.append("the storage_type of meta_storage_backend_config must not be empty")
    used = config.reclaim_strategy.trigger_strategy.used_percentage
    if not math.isfinite(used) or not math.isfinite(config.meta_indexer.cache_policy.high_pri_pool_ratio):
        problems.append("ratios must be finite numbers")
    try:
        parse_buckets(group.revisit_interval_buckets)
    except ValueError as error:
        problems.append(f"revisit_interval_buckets {error}")
    if problems:
        raise InvalidArgument(f"Instance group {group.name!r}: {'; '.join(problems)}.")


def check_instance(instance: Instance) -> None:
    """Raises InvalidArgument naming every problem."""
    problem = place_problem(instance.instance_id)
    if not problem and instance.instance_id in RESERVED_IDS:
        problem = "is one of the reserved words " + ", ".join(sorted(RESERVED_IDS))
    if problem:
        raise InvalidArgument(f"The instance_id {problem}.")
    problems = []
    if not instance.instance_group_name:
        problems.append("instance_group must not be empty")
    if instance.block_size <= 0:
        problems.append("block_size must be positive")
    if not instance.location_spec_infos:
        problems.append("location_spec_infos must not be empty")
    for info in instance.location_spec_infos:
        spec_problem = place_problem(info.name)
        if spec_problem:
            problems.append(f"a name in location_spec_infos {spec_problem}")
            break
    problems += _spec_problems(instance)
    if not instance.model_deployment.model_name or not instance.model_deployment.dtype:
        problems.append("model_deployment needs model_name and dtype")
    if problems:
        raise InvalidArgument(f"Instance {instance.instance_id!r}: {'; '.join(problems)}.")


def _spec_problems(instance: Instance) -> list[str]:
    """What upstream accepts and nobody can serve: parts without bytes, one name for two parts, groups of parts that do not exist."""
    problems = []
    names = [info.name for info in instance.location_spec_infos]
    if any(info.size <= 0 for info in instance.location_spec_infos):
        problems.append("every size in location_spec_infos must be positive")
    if len(set(names)) != len(names):
        problems.append("a name in location_spec_infos stands there twice")
    groups = [group.name for group in instance.location_spec_groups]
    if len(set(groups)) != len(groups):
        problems.append("a name in location_spec_groups stands there twice")
    unknown = {name for group in instance.location_spec_groups for name in group.spec_names} - set(names)
    if unknown:
        problems.append("location_spec_groups names specs that location_spec_infos does not have")
    return problems


def moves(old: StorageSpec, new: StorageSpec) -> bool:
    """Would this change make stored locations point somewhere else? Tuning values do not."""
    return _place(old) != _place(new)


def _place(spec: StorageSpec) -> StorageSpec:
    match spec:
        case NfsSpec() | DummySpec():
            return replace(spec, key_count_per_file=1)
        case Hf3fsSpec() | VcnsHf3fsSpec():
            return replace(spec, key_count_per_file=1, touch_file_when_create=False)
        case MooncakeSpec():
            return replace(spec, protocol="", rdma_device="", local_hostname="")
        case TairMemPoolSpec():
            return replace(spec, timeout=0)
        case EventReportSpec():
            return EventReportSpec()

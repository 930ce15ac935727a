"""Round trips between messages, domain objects, JSON and persisted records lose nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcm.config.model import (
    CacheConfig,
    CachePreferStrategy,
    Instance,
    InstanceGroup,
    InstanceReclaimBudgetPolicy,
    LocationSpecGroup,
    LocationSpecInfo,
    MetaBackendConfig,
    MetaCachePolicy,
    MetaIndexerConfig,
    ModelDeployment,
    QueryType,
    Quota,
    QuotaConfig,
    ReclaimPolicy,
    ReclaimStrategy,
    TriggerStrategy,
)
from kvcm.config.persisted import (
    group_from_dict,
    group_to_dict,
    instance_from_dict,
    instance_to_dict,
    storage_configs_text,
    storage_from_dict,
    storage_to_dict,
)
from kvcm.data_storage.model import (
    DummySpec,
    EventReportSpec,
    Hf3fsSpec,
    MooncakeSpec,
    NfsSpec,
    Storage,
    StorageType,
    TairMemPoolSpec,
    VcnsHf3fsSpec,
)
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import debug_service_pb2 as debug
from kvcm.protocol import kv_meta_service_pb2 as kv_meta
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.domain_codec import (
    group_from_proto,
    group_to_proto,
    instance_from_info,
    instance_from_request,
    instance_to_info,
    instance_to_request,
    storage_from_proto,
    storage_to_proto,
)
from kvcm.protocol.json_codec import JsonBodyError, json_to_message, message_to_json

pytestmark = pytest.mark.property

QUICK = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
text = st.text(st.characters(codec="utf-8"), max_size=8)
word = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
double = st.floats(allow_nan=False, allow_infinity=False)
per_file = st.integers(1, 1 << 20)
hf3fs = {"mountpoint": word, "root_dir": word, "cluster_name": text, "key_count_per_file": per_file, "touch_file_when_create": st.booleans()}
timing = st.integers(1, (1 << 63) - 1)

SPECS: dict[StorageType, st.SearchStrategy[Any]] = {
    StorageType.NFS: st.builds(NfsSpec, word, per_file),
    StorageType.DUMMY: st.builds(DummySpec, word, per_file),
    StorageType.HF3FS: st.builds(Hf3fsSpec, **hf3fs),
    StorageType.VCNS_HF3FS: st.builds(VcnsHf3fsSpec, remote_host=word, remote_port=st.integers(1, 65535), meta_storage_uri=word, **hf3fs),
    StorageType.MOONCAKE: st.builds(MooncakeSpec, word, word, word, word, text),
    StorageType.TAIR_MEMPOOL: st.builds(TairMemPoolSpec, word, int32, text, st.sampled_from([0, 2])),
    StorageType.TAIR_MEMPOOL_SSD: st.builds(TairMemPoolSpec, word, int32, text, st.just(5)),
    StorageType.EVENT_REPORT_L1P5: st.builds(EventReportSpec, timing, timing, timing, timing, timing),
    StorageType.EVENT_REPORT_L2: st.builds(EventReportSpec, timing, timing, timing, timing, timing),
}
storages = st.sampled_from(sorted(SPECS)).flatmap(lambda kind: st.builds(Storage, word, st.just(kind), SPECS[kind], st.booleans(), st.just(True)))
reclaims = st.builds(
    ReclaimStrategy,
    word,
    st.sampled_from(ReclaimPolicy),
    st.builds(TriggerStrategy, int64, double),
    int32,
    int32,
    int32,
    int32,
    st.none() | st.sampled_from(InstanceReclaimBudgetPolicy),
)
indexers = st.builds(
    MetaIndexerConfig,
    int64,
    int64,
    int64,
    st.builds(MetaBackendConfig, word, text),
    st.builds(MetaCachePolicy, int64, word, int32, double),
    int64,
)


def migration_text(concurrency: int, mode: int) -> str:
    config = admin.MigrationConfig()
    config.copy_max_concurrency.value = concurrency
    config.copy_execution_mode = mode  # type: ignore[assignment]
    return message_to_json(config).decode()


preferences = st.sampled_from([strategy for strategy in CachePreferStrategy if strategy])
migrations = st.just("") | st.builds(migration_text, int32, st.integers(0, 5))
groups = st.builds(
    InstanceGroup,
    name=word,
    storage_candidates=st.lists(text, min_size=1, max_size=3).map(tuple),
    global_quota_group_name=word,
    max_instance_count=int64,
    quota=st.builds(Quota, int64, st.lists(st.builds(QuotaConfig, st.sampled_from(StorageType), int64), max_size=3).map(tuple)),
    cache_config=st.builds(CacheConfig, reclaims, preferences, indexers, migrations),
    user_data=text,
    version=int64,
    extra_info=text,
    event_report_storage_candidates=st.lists(text, max_size=2).map(tuple),
    revisit_interval_buckets=text,
)
spec_groups = st.builds(LocationSpecGroup, text, st.lists(text, max_size=3).map(lambda names: tuple(sorted(names))))
instances = st.builds(
    Instance,
    instance_id=word,
    instance_group_name=word,
    quota_group_name=text,
    block_size=st.integers(1, (1 << 31) - 1),
    location_spec_infos=st.lists(st.builds(LocationSpecInfo, word, int64), min_size=1, max_size=3).map(tuple),
    model_deployment=st.builds(ModelDeployment, word, word, st.booleans(), int32, int32, text, int32, text, text, st.booleans()),
    location_spec_groups=st.lists(spec_groups, max_size=3).map(lambda found: tuple(sorted(found, key=lambda group: group.name))),
    default_query_type=st.sampled_from(QueryType),
)


@QUICK
@given(storages)
def test_I_CODEC_1_a_storage_survives_its_message_and_its_record(storage: Storage) -> None:
    msg = storage_to_proto(storage)
    assert storage_from_proto(admin.StorageConfig.FromString(msg.SerializeToString())) == storage
    assert storage_to_proto(storage_from_proto(msg)) == msg
    assert storage_from_dict(json.loads(json.dumps(storage_to_dict(storage)))) == storage
    assert json.loads(storage_configs_text([storage]))[0]["global_unique_name"] == storage.name


@QUICK
@given(groups)
def test_I_CODEC_2_a_group_survives_its_message_and_its_record(group: InstanceGroup) -> None:
    msg = group_to_proto(group)
    assert group_from_proto(admin.InstanceGroup.FromString(msg.SerializeToString())) == group
    assert group_to_proto(group_from_proto(msg)) == msg
    assert group_from_dict(json.loads(json.dumps(group_to_dict(group)))) == group


@QUICK
@given(instances)
def test_I_CODEC_3_an_instance_survives_its_messages_and_its_record(instance: Instance) -> None:
    for package in (meta, admin):
        info: Any = package.InstanceInfo()
        instance_to_info(instance, info)
        assert instance_from_info(info) == instance
        request: Any = package.RegisterInstanceRequest()
        instance_to_request(instance, request)
        assert instance_from_request(request, instance.quota_group_name) == instance
    assert instance_from_dict(json.loads(json.dumps(instance_to_dict(instance)))) == instance


SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: int32,
    FieldDescriptor.CPPTYPE_INT64: int64,
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: text,
    FieldDescriptor.CPPTYPE_ENUM: int32 | st.integers(0, 20),
}


def fill(data: st.DataObject, msg: Any) -> Any:
    """Any values in any fields, at most one member of each oneof."""
    descriptor: Descriptor = msg.DESCRIPTOR
    for field in descriptor.fields:
        in_oneof = field.containing_oneof is not None and msg.WhichOneof(field.containing_oneof.name)
        if in_oneof or not data.draw(st.booleans()):
            continue
        count = data.draw(st.integers(0, 2)) if field.is_repeated else 1
        if field.message_type is None and not field.is_repeated:
            setattr(msg, field.name, data.draw(SCALARS[field.cpp_type]))
        elif field.message_type is None:
            getattr(msg, field.name).extend(data.draw(SCALARS[field.cpp_type]) for _ in range(count))
        elif field.message_type.GetOptions().map_entry:
            getattr(msg, field.name).update(data.draw(st.dictionaries(text, text, max_size=2)))
        else:
            for _ in range(count):
                child = getattr(msg, field.name).add() if field.is_repeated else getattr(msg, field.name)
                child.SetInParent()
                fill(data, child)
    return msg


MESSAGES = [getattr(module, name) for module in (meta, admin, debug, kv_meta) for name in sorted(module.DESCRIPTOR.message_types_by_name)]


@settings(QUICK, max_examples=100)
@given(st.data())
def test_I_JSON_1_any_message_survives_its_json(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(MESSAGES))
    msg = fill(data, cls())
    printed = message_to_json(msg)
    assert json_to_message(printed, cls) == msg
    assert message_to_json(json_to_message(printed, cls)) == printed


@settings(QUICK, max_examples=100)
@given(st.data())
def test_I_JSON_2_camel_case_and_bare_numbers_read_the_same(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(MESSAGES))
    msg = fill(data, cls())
    assert json_to_message(json_format.MessageToJson(msg).encode(), cls) == msg
    assert json_to_message(json_format.MessageToJson(msg, use_integers_for_enums=True, indent=None).encode(), cls) == msg


@settings(QUICK, max_examples=100)
@given(st.binary(max_size=60) | st.text(st.sampled_from('{}[]":,0123456789.eE-tfnu\\ "block_keys""offset"'), max_size=60).map(str.encode))
def test_I_JSON_3_any_body_is_a_message_or_one_clear_refusal(body: bytes) -> None:
    try:
        msg = json_to_message(body, meta.GetCacheLocationRequest)
    except JsonBodyError:
        return
    assert isinstance(json.loads(body), dict)
    assert json_to_message(message_to_json(msg), meta.GetCacheLocationRequest) == msg

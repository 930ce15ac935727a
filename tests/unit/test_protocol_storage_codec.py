"""Storages between admin messages and the domain: required fields per kind, which kind a message means, what is echoed."""

from __future__ import annotations

from typing import Any

import pytest

from kvcm.common.errors import InvalidArgument, Unsupported
from kvcm.data_storage.model import DummySpec, EventReportSpec, NfsSpec, Storage, StorageType, TairMemPoolSpec, VcnsHf3fsSpec
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.domain_codec import storage_from_proto, storage_from_reply, storage_to_proto
from kvcm.protocol.json_codec import json_to_message

pytestmark = pytest.mark.unit


def config(body: str) -> Any:
    return json_to_message(body.encode(), admin.StorageConfig)


def refusal(body: str) -> str:
    with pytest.raises(InvalidArgument) as caught:
        storage_from_proto(config(body))
    return caught.value.message


def test_the_admin_tests_nfs_storage_without_key_count() -> None:
    storage = storage_from_proto(config('{"global_unique_name":"n","nfs":{"root_path":"/x/"}}'))
    assert storage == Storage("n", StorageType.NFS, NfsSpec("/x/", 1))
    echoed = storage_to_proto(storage)
    assert (echoed.nfs.root_path, echoed.nfs.key_count_per_file, echoed.storage_type) == ("/x/", 1, admin.ST_NFS)


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        ("{}", "{StorageConfig: {global_unique_name}{storage_spec}}"),
        ('{"global_unique_name":"x"}', "{StorageConfig: {storage_spec}}"),
        ('{"global_unique_name":"x","local":{}}', "{StorageConfig: {storage_spec}}"),
        ('{"nfs":{"root_path":"/x/"}}', "{StorageConfig: {global_unique_name}}"),
        ('{"global_unique_name":"x","nfs":{}}', "{StorageConfig: {NfsStorageSpec: {root_path}}}"),
        ('{"nfs":{}}', "{StorageConfig: {global_unique_name}{NfsStorageSpec: {root_path}}}"),
        ('{"global_unique_name":"x","dummy":{}}', "{StorageConfig: {DummyStorageSpec: {root_path}}}"),
        ('{"global_unique_name":"x","threefs":{}}', "{StorageConfig: {ThreeFSStorageSpec: {mountpoint}{root_dir}}}"),
        (
            '{"global_unique_name":"x","vcnsthreefs":{"mountpoint":"/m","remote_port":-1}}',
            "{StorageConfig: {VcnsThreeFSStorageSpec: {root_dir}{remote_host}{meta_storage_uri}{remote_port}}}",
        ),
        (
            '{"global_unique_name":"x","mooncake":{"rdma_device":"d"}}',
            "{StorageConfig: {MooncakeStorageSpec: {local_hostname}{metadata_connstring}{protocol}{master_service_entry}}}",
        ),
        ('{"global_unique_name":"x","tair_mem_pool":{}}', "{StorageConfig: {TairMemPoolStorageSpec: {domain}}}"),
        ('{"global_unique_name":"x","tair_mem_pool":{"domain":"d","media_type":5}}', "{StorageConfig: {storage_type}}"),
        ('{"global_unique_name":"x","tair_mem_pool":{"domain":"d"},"storage_type":9}', "{StorageConfig: {storage_type}}"),
        ('{"global_unique_name":"x","event_report":{}}', "{StorageConfig: {storage_type}}"),
        ('{"global_unique_name":"x","event_report":{},"storage_type":4}', "{StorageConfig: {storage_type}}"),
        ('{"global_unique_name":"x","nfs":{"root_path":"/x"},"storage_type":1}', "{StorageConfig: {storage_type}}"),
        (
            '{"global_unique_name":"x","event_report":{"cleanup_grace_ms":-1},"storage_type":8}',
            "{StorageConfig: {EventReportStorageSpec: {cleanup_grace_ms}}}",
        ),
    ],
)
def test_everything_that_is_wrong_is_named(body: str, problems: str) -> None:
    assert refusal(body) == f"missing or invalid fields: {problems}"


def test_ssd_pools_are_told_by_media_type_and_storage_type_together() -> None:
    ssd = storage_from_proto(config('{"global_unique_name":"p","tair_mem_pool":{"domain":"d","media_type":5},"storage_type":9}'))
    assert (ssd.type, ssd.spec) == (StorageType.TAIR_MEMPOOL_SSD, TairMemPoolSpec("d", media_type=5))
    dram = storage_from_proto(config('{"global_unique_name":"p","tair_mem_pool":{"domain":"d","media_type":2}}'))
    assert dram.type is StorageType.TAIR_MEMPOOL


def test_event_report_timings_that_are_not_given_take_the_defaults() -> None:
    body = '{"global_unique_name":"e","event_report":{"heartbeat_timeout_ms":7},"storage_type":"ST_EVENT_REPORT_L2"}'
    storage = storage_from_proto(config(body))
    assert storage.type is StorageType.EVENT_REPORT_L2
    assert storage.spec == EventReportSpec(heartbeat_timeout_ms=7)


def test_the_older_vineyard_member_is_event_report_l1p5() -> None:
    storage = storage_from_proto(config('{"global_unique_name":"e","vineyard":{"cleanup_grace_ms":9}}'))
    assert (storage.type, storage.spec) == (StorageType.EVENT_REPORT_L1P5, EventReportSpec(cleanup_grace_ms=9))
    assert storage_to_proto(storage).WhichOneof("storage_spec") == "event_report"


def test_the_meta_package_gets_what_it_has_fields_for() -> None:
    vcns = Storage("v", StorageType.VCNS_HF3FS, VcnsHf3fsSpec("/m", "r", "h", 1, "u", "c", 2, True))
    msg = storage_to_proto(vcns, meta.StorageConfig)
    assert (msg.vcnsthreefs.mountpoint, msg.vcnsthreefs.key_count_per_file) == ("/m", 2)
    assert storage_to_proto(Storage("d", StorageType.DUMMY, DummySpec("")), meta.StorageConfig).WhichOneof("storage_spec") == "dummy"
    with pytest.raises(Unsupported, match="event_report_l2"):
        storage_to_proto(Storage("e", StorageType.EVENT_REPORT_L2, EventReportSpec()), meta.StorageConfig)


def test_a_reply_is_read_as_it_comes_because_old_records_never_were_requests() -> None:
    for storage in (
        Storage("n", StorageType.NFS, NfsSpec("")),
        Storage("v", StorageType.VCNS_HF3FS, VcnsHf3fsSpec("/m", "", "", 0, "")),
        Storage("p", StorageType.TAIR_MEMPOOL, TairMemPoolSpec("d", media_type=5)),
        Storage("e", StorageType.EVENT_REPORT_L2, EventReportSpec()),
    ):
        assert storage_from_reply(storage_to_proto(storage)) == storage
    with pytest.raises(InvalidArgument, match="storage_spec"):
        storage_from_reply(config('{"global_unique_name":"n"}'))

"""Bytes and keys in use: per quota type, in a chain, exact after every attach and detach."""

from __future__ import annotations

import pytest

from kvcm.data_storage.model import StorageType
from kvcm.meta.usage import UsageCounter

pytestmark = pytest.mark.unit


def test_amounts_add_up_per_type_and_in_total() -> None:
    usage = UsageCounter()
    usage.add_bytes(StorageType.NFS, 100)
    usage.add_bytes(StorageType.DUMMY, 50)
    usage.add_bytes(StorageType.NFS, -30)
    usage.add_keys(3)
    assert usage.by_type() == {StorageType.NFS: 70, StorageType.DUMMY: 50}
    assert (usage.total, usage.keys, usage.bytes_of(StorageType.NFS), usage.bytes_of(StorageType.MOONCAKE)) == (120, 3, 70, 0)


def test_vcns_3fs_counts_as_3fs_whichever_name_asks() -> None:
    usage = UsageCounter()
    usage.add_bytes(StorageType.VCNS_HF3FS, 10)
    usage.add_bytes(StorageType.HF3FS, 5)
    assert usage.by_type() == {StorageType.HF3FS: 15}
    assert usage.bytes_of(StorageType.VCNS_HF3FS) == usage.bytes_of(StorageType.HF3FS) == 15


def test_a_type_that_went_back_to_nothing_is_not_listed() -> None:
    usage = UsageCounter()
    usage.add_bytes(StorageType.NFS, 7)
    usage.add_bytes(StorageType.NFS, -7)
    assert usage.by_type() == {}


def test_what_an_instance_uses_its_group_uses() -> None:
    group = UsageCounter()
    one, two = UsageCounter(group), UsageCounter(group)
    one.add_bytes(StorageType.NFS, 10)
    two.add_bytes(StorageType.NFS, 5)
    two.add_keys(2)
    assert (group.total, group.keys, one.total, two.total) == (15, 2, 10, 5)


def test_leaving_a_group_takes_exactly_the_own_part_along() -> None:
    group, other = UsageCounter(), UsageCounter()
    stays, leaves = UsageCounter(group), UsageCounter(group)
    stays.add_bytes(StorageType.NFS, 1)
    leaves.add_bytes(StorageType.VCNS_HF3FS, 10)
    leaves.add_keys(4)
    leaves.detach()
    leaves.detach()
    assert (group.by_type(), group.total, group.keys) == ({StorageType.NFS: 1}, 1, 0)
    leaves.add_bytes(StorageType.NFS, 2)
    leaves.attach(other)
    assert (group.total, other.by_type(), other.total, other.keys) == (1, {StorageType.HF3FS: 10, StorageType.NFS: 2}, 12, 4)


def test_a_counter_has_one_parent() -> None:
    child = UsageCounter(UsageCounter())
    with pytest.raises(ValueError, match="already has a parent"):
        child.attach(UsageCounter())

"""The pure parts of a Redis Cluster: slots, redirects, the map of slots, the layout of an instance, what a node says of itself."""

from __future__ import annotations

from collections import Counter

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.errors import InvalidArgument
from kvcm.common.redis.cluster_slots import SLOTS, Redirect, SlotMap, redirect, slot_of
from kvcm.meta.cluster_layout import MAX_BUCKETS, ClusterLayout, buckets_of, layout_key
from kvcm.meta.cluster_scan import held_by

pytestmark = pytest.mark.unit

HERE = ("10.0.0.1", 7001)


@pytest.mark.parametrize(
    ("key", "slot"),
    # What `CLUSTER KEYSLOT` of a real node says.
    [(b"123456789", 12_739), (b"foo", 12_182), (b"{foo}.following", 12_182), (b"a{foo}{b}", 12_182), (b"foo{}{bar}", 8363), (b"foo{{bar}}zap", 4015)],
)
def test_slots_are_those_of_redis(key: bytes, slot: int) -> None:
    assert slot_of(key) == slot


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("MOVED 3999 10.0.0.2:6381", Redirect(False, 3999, ("10.0.0.2", 6381))),
        ("ASK 3999 ::1:6381", Redirect(True, 3999, ("::1", 6381))),
        ("MOVED 3999 :6381", Redirect(False, 3999, ("10.0.0.1", 6381))),
        ("MOVED 3999 ?:6381", Redirect(False, 3999, ("10.0.0.1", 6381))),
        ("MOVED", None),
        ("MOVED x y:1", None),
        ("MOVED 1 y:0", None),
        ("CLUSTERDOWN Hash slot not served", None),
    ],
)
def test_redirects_are_read(said: str, found: Redirect | None) -> None:
    assert redirect(hiredis.ReplyError(said), HERE) == found
    assert redirect(said.encode(), HERE) is None, "a value that looks like one"


def test_the_map_knows_ranges_and_what_was_learned_since() -> None:
    slots = SlotMap([[100, 200, [b"b", 2, b"id"], [b"replica", 9, b"id"]], [0, 99, [b"", 1, b"id"]]], HERE)
    assert [slots.holder(slot) for slot in (0, 99, 100, 200, 201)] == [("10.0.0.1", 1), ("10.0.0.1", 1), ("b", 2), ("b", 2), None]
    slots.moved(150, ("c", 3))
    assert (slots.holder(150), slots.holder(151)) == (("c", 3), ("b", 2))
    for bad in (None, b"text", [[1]], hiredis.ReplyError("ERR no")):
        with pytest.raises(ValueError, match="map"):
            SlotMap(bad, HERE)


def test_buckets_are_spread_evenly_over_the_slots_and_each_lies_in_one() -> None:
    for buckets in (1, 16, MAX_BUCKETS):
        layout = ClusterLayout("an {instance}", buckets)
        assert [slot * buckets // SLOTS for slot in layout.slots] == list(range(buckets))
        for bucket in range(buckets):
            names = [layout.fence_key(bucket), layout.stream_key(bucket), layout.block_prefix(bucket) + b"-12"]
            assert {slot_of(name) for name in names} == {layout.slots[bucket]}


def test_keys_are_spread_evenly_over_the_buckets() -> None:
    layout = ClusterLayout("i", 16)
    for step in (1, 2, 16, 4096, -1):
        counts = Counter(layout.bucket_of(number * step) for number in range(16_000))
        assert len(counts) == 16
        assert max(counts.values()) < 1_500, step


LAYOUTS = {buckets: ClusterLayout("i", buckets) for buckets in (1, 2, 16, 64)}
OTHER = ClusterLayout("j", 16)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([2, 16, 64]))
@settings(deadline=None, max_examples=60)
def test_a_name_leads_back_to_its_block(key: int, buckets: int) -> None:
    layout = LAYOUTS[buckets]
    bucket = layout.bucket_of(key)
    assert 0 <= bucket < buckets
    name = layout.block_prefix(bucket) + b"%d" % key
    assert layout.block_of(name) == (bucket, key)
    for other in (name + b"x", name + b" ", b"kvcm:{other}:b:%d" % key, layout.block_prefix((bucket + 1) % buckets) + b"%d" % key):
        assert layout.block_of(other) is None
    assert LAYOUTS[1].block_of(name) is None
    assert OTHER.block_of(name) is None
    assert layout_key("i") != layout_key("j")


def test_the_number_of_buckets_is_a_power_of_two() -> None:
    assert (buckets_of({}), buckets_of({"cluster_buckets": "256"}), buckets_of({"cluster_buckets": "1"})) == (16, 256, 1)
    for bad in ("0", "3", "512", "x", ""):
        with pytest.raises(InvalidArgument, match="cluster_buckets"):
            buckets_of({"cluster_buckets": bad})


def test_a_node_tells_what_it_holds_and_what_is_moving() -> None:
    other = "aa 127.0.0.1:1@11 master - 0 1 2 connected 0-99 [5-<-zz]\n"
    line = "bb 127.0.0.1:2@12 myself,master - 0 1 3 connected 100-200 300 [150->-cc] [7-<-cc]\n"
    held = held_by(other + line, [5, 7, 100, 150, 200, 201, 300])
    assert held == (frozenset({100, 150, 200, 300}), frozenset({150, 7}))
    for bad in ("", other, line.replace("master", "slave"), "garbage"):
        with pytest.raises(ValueError, match="master"):
            held_by(bad, [100])

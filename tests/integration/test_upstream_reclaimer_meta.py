"""Metadata in a file, limits, and what a restart brings back (wire contract 8.3, the parts of `reclaiming_test` that do not reclaim).

The registry is in memory, so after a restart storage, group and instance are made again; the blocks come from the metadata file.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvcm.service.testing_blocks import SIZE, Engine, path_of, wait_until
from kvcm.service.testing_dropin import DropIn
from kvcm.service.testing_wire import HttpWire, code

pytestmark = pytest.mark.integration

ROOM = 16
QUOTA = {"capacity": 2 * ROOM * SIZE, "quota_config": [{"storage_type": 3, "capacity": ROOM * SIZE}, {"storage_type": 4, "capacity": ROOM * SIZE}]}


@pytest.fixture(scope="module")
def manager() -> Iterator[DropIn]:
    with DropIn({"kvcm.cache_reclaimer.del_batch_size": "8"}) as process:
        yield process


def open_house(manager: DropIn, folder: Path) -> Engine:
    """Storage, group and instance of the test that `folder` belongs to; the same again for every start of the process."""
    engine = Engine(HttpWire(manager.http_url), HttpWire(manager.admin_http_url), folder)
    indexer = {
        "max_key_count": ROOM,
        "mutex_shard_num": 16,
        "meta_storage_backend_config": {"storage_type": "dummy", "storage_uri": f"file://{folder}/meta"},
        "persist_metadata_interval_time_ms": 0,
    }
    engine.set_up(folder.name, "nfs", quota=QUOTA, indexer=indexer)
    return engine


def measured(manager: DropIn, engine: Engine) -> tuple[int, int]:
    """(keys of the instance, bytes of the group) as the metrics have them."""
    with urllib.request.urlopen(f"{manager.admin_http_url}/metrics", timeout=20) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    found = []
    for name, label in (("kvcm_cache_manager_instance_key_count", "instance_id"), ("kvcm_cache_manager_group_used_bytes", "instance_group")):
        (value,) = [sample.value for sample in families[name].samples if sample.labels[label] == engine.name]
        found.append(int(value))
    return found[0], found[1]


def is_full(engine: Engine) -> bool:
    reply = engine.meta.call("StartWriteCache", {"instance_id": engine.name, "block_keys": [999], "write_timeout_seconds": 1})
    return code(reply) == "REACH_MAX_ENTITY_CAPACITY"


def test_sixteen_writes_fill_the_group_and_the_seventeenth_fails(manager: DropIn, tmp_path: Path) -> None:
    engine = open_house(manager, tmp_path)
    for key in range(ROOM):
        engine.put([key])
    assert measured(manager, engine) == (ROOM, ROOM * SIZE)
    assert engine.refused("StartWriteCache", instance_id=engine.name, block_keys=[ROOM])[0] == "REACH_MAX_ENTITY_CAPACITY"
    assert len(engine.prefix(range(ROOM))) == ROOM
    # What is there already needs no room.
    assert engine.start(range(ROOM)).keys == []


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_after_a_restart_blocks_are_read_and_counted_as_before(manager: DropIn, tmp_path: Path, crash: bool) -> None:
    engine = open_house(manager, tmp_path)
    writes = [engine.put([key]) for key in range(ROOM)]
    before = engine.prefix_locations(range(ROOM))
    details = engine.ok(engine.meta, "GetCacheMetaDetail", instance_id=engine.name, block_keys=list(range(ROOM)))["items"]
    if crash:
        manager.kill()
    else:
        manager.stop()
    manager.start()

    engine = open_house(manager, tmp_path)
    assert engine.prefix_locations(range(ROOM)) == before
    assert engine.ok(engine.meta, "GetCacheMetaDetail", instance_id=engine.name, block_keys=list(range(ROOM)))["items"] == details
    assert measured(manager, engine) == (ROOM, ROOM * SIZE)
    assert is_full(engine)
    assert all(path_of(uri).exists() for write in writes for uri in write.places[0].values())
    # Room comes back when blocks are removed, and their files go.
    engine.ok(engine.meta, "RemoveCache", instance_id=engine.name, block_keys=[0, 1])
    engine.wait_gone([0, 1])
    assert measured(manager, engine) == (ROOM - 2, (ROOM - 2) * SIZE)
    assert not any(path_of(uri).exists() for write in writes[:2] for uri in write.places[0].values())
    assert engine.put([100, 101]).keys == [100, 101]
    assert is_full(engine)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_writes_that_were_open_are_lost_with_the_process_and_give_their_room_back(manager: DropIn, tmp_path: Path, crash: bool) -> None:
    engine = open_house(manager, tmp_path)
    engine.put(range(8))
    open_ = [engine.start([key]) for key in range(8, ROOM)]
    for write in open_:
        engine.save(write)
    assert is_full(engine)
    assert len(engine.prefix(range(ROOM))) == 8
    if crash:
        manager.kill()
    else:
        manager.stop()
    manager.start()

    engine = open_house(manager, tmp_path)
    for write in open_:
        reply = engine.meta.call("FinishWriteCache", engine.finishing(write, {"offset": 1}))
        assert code(reply) == "INTERNAL_ERROR"
    assert len(engine.prefix(range(ROOM))) == 8
    engine.wait_gone(range(8, ROOM))
    assert measured(manager, engine) == (8, 8 * SIZE)
    wait_until(lambda: not any(path_of(places["tp0"]).exists() for write in open_ for places in write.places), "the files of lost writes are gone")
    again = engine.put(range(8, ROOM))
    assert engine.prefix(range(ROOM))[8:] == again.places
    assert is_full(engine)


def test_open_writes_take_room_like_finished_ones_and_finishing_changes_nothing_about_it(manager: DropIn, tmp_path: Path) -> None:
    engine = open_house(manager, tmp_path)
    writes = [engine.start([key]) for key in range(ROOM)]
    assert measured(manager, engine) == (ROOM, ROOM * SIZE)
    assert is_full(engine)
    for write in writes:
        engine.save(write)
        engine.finish(write)
    assert measured(manager, engine) == (ROOM, ROOM * SIZE)
    assert is_full(engine)
    assert len(engine.prefix(range(ROOM))) == ROOM


def test_a_metadata_file_belongs_to_its_instance(manager: DropIn, tmp_path: Path) -> None:
    engine = open_house(manager, tmp_path)
    engine.put([1, 2])
    engine.ok(engine.meta, "RegisterInstance", **engine.registration() | {"instance_id": "other"})
    other = engine.ok(engine.meta, "GetCacheLocation", instance_id="other", query_type="QT_PREFIX_MATCH", block_keys=[1, 2])
    assert other["locations"] == []
    manager.kill()
    manager.start()
    engine = open_house(manager, tmp_path)
    engine.ok(engine.meta, "RegisterInstance", **engine.registration() | {"instance_id": "other"})
    other = engine.ok(engine.meta, "GetCacheLocation", instance_id="other", query_type="QT_PREFIX_MATCH", block_keys=[1, 2])
    assert (other["locations"], len(engine.prefix([1, 2]))) == ([], 2)

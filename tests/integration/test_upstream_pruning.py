"""Blocks whose bytes the storage has lost (wire contract 8.3, `location_pruning_test`): reads stop there, and all of them can be written anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcm.service.testing_blocks import Engine, path_of
from kvcm.service.testing_dropin import DropIn
from kvcm.service.testing_wire import META, GrpcWire, HttpWire

pytestmark = pytest.mark.integration

KEYS = [11, -1, 13, 14, 15, 16]


@pytest.fixture(scope="module")
def manager() -> Iterator[DropIn]:
    with DropIn() as process:
        yield process


@pytest.fixture(params=["http", "grpc"])
def engine(manager: DropIn, tmp_path: Path, request: pytest.FixtureRequest) -> Engine:
    """A dummy storage with one block per file, and an instance with one spec, of each test's own."""
    meta = HttpWire(manager.http_url) if request.param == "http" else GrpcWire(manager.meta_address, META)
    engine = Engine(meta, HttpWire(manager.admin_http_url), tmp_path)
    engine.set_up("".join(char if char.isalnum() else "-" for char in request.node.name))
    return engine


def test_the_file_of_a_block_is_named_after_its_key(engine: Engine) -> None:
    write = engine.put(KEYS)
    assert [path_of(places["tp0"]).name for places in write.places] == ["b", "f" * 16, "d", "e", "f", "10"]
    assert engine.prefix(KEYS) == write.places


@pytest.mark.parametrize("lost", [[11], [13], [16], [-1, 15], [14, 16], KEYS], ids=str)
def test_a_read_stops_at_the_first_lost_block_and_takes_out_those_behind_it_too(engine: Engine, lost: list[int]) -> None:
    write = engine.put(KEYS)
    assert engine.prefix(KEYS) == write.places
    engine.lose(write, lost)
    # At once: the answer before this one must not be remembered.
    assert engine.prefix(KEYS) == write.places[: KEYS.index(lost[0])]
    engine.wait_gone(lost)
    assert engine.states(KEYS) == [["CLS_NOT_FOUND" if key in lost else "CLS_SERVING"] for key in KEYS]

    again = engine.start(KEYS)
    assert again.keys == lost
    assert again.places == [write.place_of(key) for key in lost]
    engine.save(again)
    engine.finish(again)
    assert engine.prefix(KEYS) == write.places


@pytest.mark.parametrize("lost", [[11], [-1, 15], KEYS], ids=str)
def test_a_write_finds_lost_blocks_without_a_read_before_it(engine: Engine, lost: list[int]) -> None:
    write = engine.put(KEYS)
    engine.lose(write, lost)
    again = engine.start(KEYS)
    assert (again.keys, again.places) == (lost, [write.place_of(key) for key in lost])


def test_a_lost_block_is_handed_out_to_one_writer_only(engine: Engine) -> None:
    write = engine.put(KEYS)
    engine.lose(write, [13])
    assert engine.start(KEYS).keys == [13]
    assert engine.start(KEYS).keys == []
    assert engine.prefix(KEYS) == write.places[:2]


def test_batch_and_window_reads_and_lengths_leave_lost_blocks_out(engine: Engine) -> None:
    write = engine.put(KEYS)
    engine.lose(write, [13])
    ask = {"instance_id": engine.name, "block_keys": KEYS, "sw_size": 3}
    found = {}
    for query_type in ("QT_BATCH_GET", "QT_REVERSE_ROLL_SW_MATCH", "QT_PREFIX_MATCH"):
        length = engine.ok(engine.meta, "GetCacheLocationLen", query_type=query_type, **ask)["cache_location_len"]
        locations = engine.ok(engine.meta, "GetCacheLocation", query_type=query_type, **ask)["locations"]
        found[query_type] = [bool(location["location_specs"][0]["uri"]) for location in locations]
        assert int(length) == sum(found[query_type])
    assert found == {
        "QT_BATCH_GET": [True, True, False, True, True, True],
        "QT_REVERSE_ROLL_SW_MATCH": [False, False, False, True, True, True],
        "QT_PREFIX_MATCH": [True, True],
    }


def test_a_read_by_backend_leaves_lost_blocks_out_and_has_them_taken_out(engine: Engine) -> None:
    write = engine.put(KEYS)
    engine.lose(write, [11, 15])
    selectors = [{"backend_type": "ST_DUMMY", "strategy": "LSS_WEIGHTED_RANDOM"}, {"backend_type": "ST_NFS"}]
    reply = engine.ok(
        engine.meta, "GetCacheLocationsByBackend", instance_id=engine.name, query_type="QT_BATCH_GET", block_keys=KEYS, backend_selectors=selectors
    )
    assert [len(entry["locations"]) for entry in reply["key_locations"]] == [0, 1, 1, 1, 0, 1]
    engine.wait_gone([11, 15])

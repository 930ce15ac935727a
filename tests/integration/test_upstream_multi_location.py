"""Blocks of which several writers store a part each (wire contract 8.3, `multi_location_test`): spec groups, merged answers, lost parts, replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcm.service.testing_blocks import Engine, Places, StartedWrite
from kvcm.service.testing_dropin import DropIn
from kvcm.service.testing_wire import META, GrpcWire, HttpWire

pytestmark = pytest.mark.integration

KEYS = [101, 102, 103, 104]
GROUPS = {"GroupA": ["tp0"], "GroupB": ["tp1"]}


@pytest.fixture(scope="module")
def manager() -> Iterator[DropIn]:
    with DropIn() as process:
        yield process


@pytest.fixture(params=["http", "grpc"])
def engine(manager: DropIn, tmp_path: Path, request: pytest.FixtureRequest) -> Engine:
    meta = HttpWire(manager.http_url) if request.param == "http" else GrpcWire(manager.meta_address, META)
    engine = Engine(meta, HttpWire(manager.admin_http_url), tmp_path)
    engine.set_up("".join(char if char.isalnum() else "-" for char in request.node.name), "dummy", ["tp0", "tp1"], GROUPS)
    return engine


def merged(first: StartedWrite, second: StartedWrite) -> list[Places]:
    return [one | other for one, other in zip(first.places, second.places, strict=True)]


def test_each_group_gets_locations_of_its_own_specs_and_reads_merge_them(engine: Engine) -> None:
    first = engine.put(KEYS, "GroupA")
    assert [list(places) for places in first.places] == [["tp0"]] * 4
    assert engine.prefix(KEYS) == first.places
    second = engine.put(KEYS, "GroupB")
    assert [list(places) for places in second.places] == [["tp1"]] * 4
    assert engine.prefix(KEYS) == merged(first, second)
    for location in engine.prefix_locations(KEYS):
        assert (location["type"], location["spec_size"]) == ("ST_DUMMY", 2)
        assert [spec["name"] for spec in location["location_specs"]] == ["tp0", "tp1"]
    assert engine.states(KEYS) == [["CLS_SERVING", "CLS_SERVING"]] * 4


def test_what_one_group_has_written_is_present_for_it_alone(engine: Engine) -> None:
    engine.put(KEYS[:2], "GroupA")
    again = engine.start(KEYS, "GroupA")
    assert (again.mask, again.keys) == ({"offset": 2}, KEYS[2:])
    other = engine.start(KEYS, "GroupB")
    assert (other.mask, other.keys) == ({"offset": 0}, KEYS)


def test_a_read_can_ask_for_one_spec_of_the_merged_answer(engine: Engine) -> None:
    first, second = engine.put(KEYS, "GroupA"), engine.put(KEYS, "GroupB")
    assert engine.prefix(KEYS, location_spec_names=["tp0"]) == first.places
    assert engine.prefix(KEYS, location_spec_names=["tp1"]) == second.places
    assert {location["spec_size"] for location in engine.prefix_locations(KEYS, location_spec_names=["tp1"])} == {1}


def test_losing_one_spec_of_every_block_leaves_the_other_one_readable_until_it_is_rewritten(engine: Engine) -> None:
    first, second = engine.put(KEYS, "GroupA"), engine.put(KEYS, "GroupB")
    engine.lose(first, KEYS)
    assert engine.prefix(KEYS) == second.places
    again = engine.put(KEYS, "GroupA")
    assert again.places == first.places
    assert engine.prefix(KEYS) == merged(first, second)


def test_a_block_that_has_lost_all_its_specs_ends_the_prefix(engine: Engine) -> None:
    first, second = engine.put(KEYS, "GroupA"), engine.put(KEYS, "GroupB")
    engine.lose(first, [102, 103])
    engine.lose(second, [103])
    whole = merged(first, second)
    assert engine.prefix(KEYS) == [whole[0], second.places[1]]
    engine.wait_gone([103])
    assert engine.start(KEYS, "GroupA").keys == [102, 103]
    assert engine.start(KEYS, "GroupB").keys == [103]


def test_a_location_that_has_lost_one_of_its_two_specs_goes_as_a_whole(engine: Engine) -> None:
    write = engine.put(KEYS)
    assert [list(places) for places in write.places] == [["tp0", "tp1"]] * 4
    engine.lose(write, [102], "tp1")
    assert engine.prefix(KEYS) == write.places[:1]
    engine.wait_gone([102])
    again = engine.start(KEYS)
    assert (again.keys, again.places) == ([102], [write.places[1]])


def test_groups_can_be_mixed_in_one_write(engine: Engine) -> None:
    engine.put(KEYS[:1], "GroupA")
    names = ["GroupB", "GroupA", "GroupB", "GroupA"]
    write = engine.start([101, 101, 102, 103], location_spec_group_names=names)
    assert write.keys == [101, 102, 103]
    assert [list(places) for places in write.places] == [["tp1"], ["tp1"], ["tp0"]]
    assert write.mask == {"bool_masks": {"values": [False, True, False, False]}}


def test_a_second_replica_is_asked_for_until_there_are_two(manager: DropIn, tmp_path: Path) -> None:
    engine = Engine(HttpWire(manager.http_url), HttpWire(manager.admin_http_url), tmp_path)
    engine.set_up("replicas", "nfs")  # its paths are unique, so a second copy is another file
    first = engine.put([1, 2])
    assert engine.start([1, 2]).keys == []
    second = engine.start([1, 2], min_replica_count=2)
    assert second.keys == [1, 2]
    assert not {*first.place_of(1).values()} & {*second.place_of(1).values()}
    assert engine.start([1, 2], min_replica_count=2).keys == []  # copies that are being written count
    engine.save(second)
    engine.finish(second)
    assert engine.start([1, 2], min_replica_count=2).keys == []
    assert engine.start([1, 2], min_replica_count=3).keys == [1, 2]
    assert engine.prefix([1, 2]) == first.places

"""Stored records: upstream's field names, exact round trips, and no guess about anything damaged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcm.data_storage.model import StorageType
from kvcm.meta.location import Location, Status, begin_write, condemn, promote
from kvcm.meta.record import DamagedRecord, RecordCodec
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

SPECS = [("tp0", "file://store/a/b?size=100"), ("tp1", "file://store/a/c?blkid=3&size=28")]
ENCODER = ProtoLocationEncoder()


class Slots:
    def __init__(self) -> None:
        self.names: list[str] = ["other"]

    def of(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


@pytest.fixture
def slots() -> Slots:
    return Slots()


@pytest.fixture
def records(slots: Slots) -> RecordCodec:
    return RecordCodec(ENCODER, slots.of)


def location(previous_key: int | None = None, slot: int = 1) -> Location:
    return begin_write(
        type_code=StorageType.NFS,
        storage_slot=slot,
        create_time_us=1_700_000_000_123_456,
        size=128,
        location_id="0a1b2c3d",
        previous_key=previous_key,
        wire=ENCODER.encode(StorageType.NFS, SPECS),
    )


GOOD: dict[str, Any] = {
    "id": "0a1b2c3d",
    "status": 3,
    "type": 4,
    "spec_size": 2,
    "create_time": 1_700_000_000_123_456,
    "location_specs": [{"name": name, "uri": uri} for name, uri in SPECS],
    "checksum": -9,
    "prev_key": "-42",
}


def test_a_record_has_the_field_names_of_the_contract(records: RecordCodec) -> None:
    assert records.to_dict(promote(location(-42), -9)) == GOOD


def test_what_there_is_none_of_is_left_out(records: RecordCodec) -> None:
    assert records.to_dict(location()).keys() == GOOD.keys() - {"checksum", "prev_key"}


@pytest.mark.parametrize("previous", [None, 0, -1, 2**63 - 1, -(2**63)])
def test_every_state_comes_back_through_json(records: RecordCodec, slots: Slots, previous: int | None) -> None:
    slots.of("store")
    writing = location(previous)
    serving = promote(writing, 2**63 - 1)
    block = (writing, promote(writing._replace(header=writing.header.replace(b"0a1b2c3d", b"00000001"))))
    for one in (writing, serving, condemn(serving), condemn(writing)):
        assert records.from_dict(json.loads(json.dumps(records.to_dict(one)))) == one
    assert records.block_from_list(json.loads(json.dumps(records.block_to_list(block)))) == block
    assert records.block_from_list([]) == ()


def test_the_slot_is_looked_up_by_name_because_numbers_die_with_the_process(records: RecordCodec, slots: Slots) -> None:
    slots.names = ["x", "y", "z"]
    assert records.from_dict(records.to_dict(location(slot=1))).storage_slot == 3
    assert slots.names[3] == "store"


def test_the_size_is_the_sum_over_the_uris(records: RecordCodec) -> None:
    assert records.from_dict(GOOD).size == 128


def test_unknown_fields_of_other_versions_are_no_damage(records: RecordCodec) -> None:
    assert records.from_dict({**GOOD, "migration_copy_guard": {"x": 1}}) == records.from_dict(GOOD)


def uri(text: object) -> dict[str, Any]:
    return {"location_specs": [{"name": "tp0", "uri": text}]}


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"id": ""},
        {"id": 7},
        {"id": "123456789"},
        {"id": "späteid"},
        {"status": 0},
        {"status": 1},
        {"status": 9},
        {"status": "x"},
        {"status": None},
        {"type": 77},
        {"type": -1},
        {"type": 300},
        {"create_time": -1},
        {"create_time": 2**64},
        {"create_time": "soon"},
        {"create_time": float("inf")},
        {"checksum": 2**63},
        {"prev_key": str(2**63)},
        {"prev_key": "x"},
        {"location_specs": None},
        {"location_specs": []},
        {"location_specs": [{"name": "tp0"}]},
        {"location_specs": [{"name": None, "uri": "file://store/a?size=1"}]},
        {"location_specs": ["x"]},
        {"location_specs": [{"name": "a", "uri": "file://one/a?size=1"}, {"name": "b", "uri": "file://two/a?size=1"}]},
        uri(None),
        uri("nothing"),
        uri("file://store/a"),
        uri("file://store/a?size=garbage"),
        uri("file://store/a?size=-1"),
        uri("file://store/a?size=" + "9" * 30),
        uri("file://store/a?size=1" + "x" * 5_000),
        uri("file://store/\ud800?size=1"),
        {"location_specs": [{"name": f"s{at}", "uri": f"file://store/a?size={2**63}"} for at in range(3)]},
    ],
    ids=repr,
)
def test_anything_that_no_writer_writes_is_damage_and_never_a_guess(records: RecordCodec, change: dict[str, Any]) -> None:
    with pytest.raises(DamagedRecord):
        records.from_dict({**GOOD, **change})


@pytest.mark.parametrize("field", ["id", "status", "type", "create_time", "location_specs"])
def test_a_missing_field_is_damage(records: RecordCodec, field: str) -> None:
    with pytest.raises(DamagedRecord):
        records.from_dict({name: value for name, value in GOOD.items() if name != field})


@pytest.mark.parametrize("block", [None, {}, "x", 7, [None], [GOOD, "x"], [GOOD, GOOD]], ids=["none", "object", "text", "number", "null", "mixed", "twice"])
def test_a_block_is_a_list_of_different_locations(records: RecordCodec, block: object) -> None:
    with pytest.raises(DamagedRecord):
        records.block_from_list(block)


def test_the_error_does_not_repeat_what_was_stored(records: RecordCodec) -> None:
    with pytest.raises(DamagedRecord) as caught:
        records.from_dict({**GOOD, **uri("file://secret:pw@store/a?size=x")})
    assert "secret" not in caught.value.message
    assert records.from_dict(GOOD).status is Status.SERVING

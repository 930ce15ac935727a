"""The small parts of ReportEvent: the storage without bytes, the state machine's reported life, what a host may say, the stored form."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import CapacityReached, InvalidArgument
from kvcm.common.ids import SeededIds
from kvcm.config.registry_rules import check_storage
from kvcm.data_storage.factory import open_backend
from kvcm.data_storage.model import EventReportSpec, NfsSpec, Storage, StorageType
from kvcm.data_storage.port import AllocationFailed, AllocationItem, Truth
from kvcm.data_storage.reported import ReportedBackend
from kvcm.manager.errors import NoStorage
from kvcm.manager.event_report_events import MAX_SPECS, Heartbeat, Register, add, check_host, delete, heartbeat, register, versioned
from kvcm.manager.event_report_roster import Roster
from kvcm.manager.testing import ManagerWorld
from kvcm.manager.testing_events import L2, TIMINGS
from kvcm.meta.errors import IllegalTransition
from kvcm.meta.location import (
    AbsenceProof,
    Location,
    Status,
    begin_write,
    bury,
    condemn,
    owned_part,
    promote,
    report,
    reported_part,
    retract,
    revise,
    stays_shown,
)
from kvcm.meta.record import RecordCodec
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

ENCODER = ProtoLocationEncoder()
HANDLE = b"#0000001"
WIRE = ENCODER.encode(8, [("tp0", "vineyard://h/mem")])
COPY = report(type_code=8, storage_slot=3, create_time_us=7, handle=HANDLE, wire=WIRE)
WRITING = begin_write(type_code=4, storage_slot=1, create_time_us=5, size=9, location_id="abcdefgh", previous_key=None, wire=b"x")


def test_the_storage_without_bytes_allocates_nothing_and_knows_nothing() -> None:
    async def tell() -> None:
        any_: Any = None
        backend = open_backend(Storage("er", L2, EventReportSpec()), any_, any_, any_)
        assert isinstance(backend, ReportedBackend)
        assert not backend.available()
        await backend.open()
        assert backend.available()
        assert not backend.traits.probe_on_read
        with pytest.raises(AllocationFailed, match="takes no blocks"):
            await backend.allocate([AllocationItem("i/tp0/1", 1)], SeededIds())
        assert await backend.probe(["a://er/"]) == await backend.delete(["a://er/"]) == [Truth.UNKNOWN]
        await backend.close()
        assert not backend.available()

    asyncio.run(tell())
    with pytest.raises(InvalidArgument, match="event_report_l2"):
        ReportedBackend(Storage("er", L2, NfsSpec("/x")))


def test_a_reported_storage_never_takes_writes(tmp_path: Path) -> None:
    async def tell() -> None:
        world = ManagerWorld(tmp_path, ENCODER)
        await world.open()
        await world.registry.add_storage(Storage("l2", L2, TIMINGS))
        await world.add_group(world.group("g", ["l2"]))
        await world.manager.register(world.instance("i", "g"))
        with pytest.raises(NoStorage):
            await world.start("i", [1])

    asyncio.run(tell())


@pytest.mark.parametrize("timing", ["heartbeat_timeout_ms", "cleanup_grace_ms", "liveness_check_interval_ms", "snapshot_min_interval_ms"])
@pytest.mark.parametrize("value", [-1, 0, 86_400_001])
def test_timings_are_positive_and_bounded(timing: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=timing):
        check_storage(Storage("er", L2, replace(EventReportSpec(), **{timing: value})))
    check_storage(Storage("er", L2, EventReportSpec()))


def test_a_reported_copy_is_serving_has_no_size_and_its_life_is_its_own() -> None:
    assert (COPY.status, COPY.type_code, COPY.storage_slot, COPY.create_time_us, COPY.size, COPY.raw_id) == (Status.SERVING, 8, 3, 7, 0, HANDLE)
    later = revise(COPY, b"#0000002", b"other", shown=True)
    assert (later.create_time_us, later.raw_id, later.wire, stays_shown(later), stays_shown(COPY)) == (7, b"#0000002", b"other", True, False)
    assert not stays_shown(revise(later, HANDLE, WIRE))
    assert retract((WRITING, COPY), COPY) == (WRITING,)
    assert (owned_part((WRITING, COPY)), reported_part((WRITING, COPY))) == ((WRITING,), (COPY,))
    owned = (WRITING,)
    assert owned_part(owned) is owned


@pytest.mark.parametrize(
    "step",
    [
        lambda: condemn(COPY),
        lambda: promote(COPY),
        lambda: bury((COPY,), COPY, AbsenceProof(COPY.location_id)),
        lambda: retract((WRITING,), WRITING),
        lambda: retract((promote(WRITING),), promote(WRITING)),
        lambda: revise(promote(WRITING), HANDLE, b""),
        lambda: report(type_code=4, storage_slot=1, create_time_us=1, handle=HANDLE, wire=b""),
        lambda: begin_write(type_code=7, storage_slot=1, create_time_us=5, size=9, location_id="a", previous_key=None, wire=b"x"),
    ],
)
def test_the_two_lives_never_mix(step: Any) -> None:
    with pytest.raises(IllegalTransition):
        step()


def test_copies_that_upstream_has_stored_are_left_out_of_a_block() -> None:
    codec = RecordCodec(ENCODER, lambda name: 1)
    wire = ENCODER.encode(4, [("tp0", "file://s/x?size=9")])
    ours = codec.to_dict(Location(WRITING.header, wire))
    theirs = {"id": "kvs#event_report_l2#mem#h:1", "status": 3, "type": 8, "create_time": 1, "location_specs": [{"name": "a", "uri": "vineyard://h:1/mem"}]}
    assert [location.location_id for location in codec.block_from_list([theirs, ours])] == ["abcdefgh"]
    assert codec.block_from_list([theirs]) == ()


# -- what a host may say ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [("1", 1), ("01", 1), ("+1", 1), ("-1", -1), (str((1 << 64) - 1), -1), (str(1 << 63), -(1 << 63)), (str((1 << 63) - 1), (1 << 63) - 1), ("-0", 0)],
)
def test_keys_are_64_bits_however_they_are_spelt(text: str, key: int) -> None:
    assert add(text, "mem", [("a", "a://h")]).key == delete(text, "mem", ["a"]).key == key


@pytest.mark.parametrize("text", ["", " 1", "1.0", "0x1", "1_0", "\u0661", str(1 << 64), str(-(1 << 63) - 1), "9" * 5000])
def test_other_texts_are_no_keys(text: str) -> None:
    with pytest.raises(InvalidArgument, match="block_key"):
        delete(text, "mem", ["a"])


def test_sizes_of_what_a_host_says_are_bounded() -> None:
    assert len(add("1", "mem", [(str(n), "a://h") for n in range(MAX_SPECS)]).specs) == MAX_SPECS
    with pytest.raises(CapacityReached):
        add("1", "mem", [(str(n), "a://h") for n in range(MAX_SPECS + 1)])
    for name, uri in (("n" * 257, "a://h"), ("a", "a://h/" + "x" * 4100)):
        with pytest.raises(InvalidArgument):
            add("1", "mem", [(name, uri)])
    for medium in ("m" * 65, "a\n"):
        with pytest.raises(InvalidArgument, match="medium"):
            register([medium])
    assert register(["mem", "disk"]) == Register(("mem", "disk"))
    assert check_host("10.0.0.1:80") == "10.0.0.1:80"


def test_of_a_status_only_short_names_with_numbers_are_kept() -> None:
    assert heartbeat({"load": "0.5", "n": "7", "cpu": "45%", "x": "nan", "y": "inf", "bad key": "1", "k" * 65: "1"}) == Heartbeat({"load": 0.5, "n": 7.0})
    assert len(heartbeat({f"k{n}": "1" for n in range(99)}).status) == 32


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("a://h", "a://h?s_version=v"),
        ("a://h/m?x=1", "a://h/m?x=1&s_version=v"),
        ("a://h/m?", "a://h/m?s_version=v"),
        ("a://h/m?x=1&", "a://h/m?x=1&s_version=v"),
    ],
)
def test_the_version_goes_behind_the_hosts_own_text(uri: str, shown: str) -> None:
    assert versioned(uri, "v") == shown


def test_a_version_is_32_hex_digits_and_never_a_number() -> None:
    class Digits(SeededIds):
        def session_id(self) -> str:
            return "1" * 32

    roster = Roster(Digits())
    reporter = roster.register(StorageType.EVENT_REPORT_L1P5, "h", TIMINGS, 0)
    version = roster.version_for_changes(reporter)
    assert (len(version), version.isdigit(), int(version, 16) > 0) == (32, False, True)
    assert roster.version_for_changes(reporter) == version

"""The state machine of one location: every arrow, every refusal, and the bytes it lives in."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import pytest

from kvcm.common.errors import InternalError
from kvcm.data_storage.port import Truth
from kvcm.meta.errors import IllegalTransition
from kvcm.meta.location import (
    HEADER_BYTES,
    AbsenceProof,
    Location,
    LocationFields,
    Status,
    begin_write,
    bury,
    condemn,
    promote,
    prove_absence,
    replace,
    restore,
    without,
)
from kvcm.meta.testing import written

pytestmark = pytest.mark.unit

WRITING = written("w")
SERVING = promote(WRITING)
DELETING = condemn(SERVING)
PROOF = AbsenceProof("w")

BIGGEST: dict[str, Any] = {
    "type_code": 255,
    "storage_slot": 65_535,
    "create_time_us": 2**64 - 1,
    "size": 2**64 - 1,
    "location_id": "abcdefgh",
    "previous_key": -(2**63),
    "wire": b"\x12\x00",
}


def test_a_write_begins_as_writing_with_everything_it_was_given() -> None:
    location = begin_write(**BIGGEST)
    assert location.status is Status.WRITING
    assert location.fields() == LocationFields(Status.WRITING, 255, 65_535, 2**64 - 1, 2**64 - 1, "abcdefgh", -(2**63), 0)
    assert location.wire == b"\x12\x00"


def test_single_fields_read_the_same_as_the_whole_header() -> None:
    location = promote(begin_write(**BIGGEST), checksum=-5)
    fields = location.fields()
    assert (location.status, location.type_code, location.storage_slot, location.create_time_us) == fields[:4]
    assert (location.size, location.location_id, location.checksum) == (fields.size, fields.location_id, fields.checksum)
    assert location.raw_id == b"abcdefgh"


@pytest.mark.parametrize("previous", [None, 0, 1, -1, 2**63 - 1, -(2**63)])
def test_no_previous_key_differs_from_the_key_zero(previous: int | None) -> None:
    assert written("a", previous_key=previous).fields().previous_key == previous


def test_a_header_stays_inside_the_80_byte_class_of_the_allocator() -> None:
    assert HEADER_BYTES == 45
    assert (b"".__sizeof__() + HEADER_BYTES) <= 80


@pytest.mark.parametrize("location_id", ["a", "abcdefgh"])
def test_ids_of_one_to_eight_characters_survive(location_id: str) -> None:
    assert written(location_id).location_id == location_id


@pytest.mark.parametrize("location_id", ["", "abcdefghi"])
def test_an_id_that_would_be_cut_off_is_refused(location_id: str) -> None:
    with pytest.raises(InternalError, match="1 to 8 characters"):
        written(location_id)
    with pytest.raises(InternalError, match="1 to 8 characters"):
        restore(WRITING.fields()._replace(location_id=location_id), b"")


@pytest.mark.parametrize("checksum", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_writing_becomes_serving_and_keeps_the_checksum(checksum: int) -> None:
    location = promote(WRITING, checksum)
    assert location.fields() == WRITING.fields()._replace(status=Status.SERVING, checksum=checksum)
    assert location.wire == WRITING.wire


@pytest.mark.parametrize("location", [SERVING, DELETING], ids=["serving", "deleting"])
def test_nothing_but_writing_can_become_serving(location: Location) -> None:
    with pytest.raises(IllegalTransition, match="cannot become SERVING"):
        promote(location)


@pytest.mark.parametrize("location", [WRITING, SERVING, promote(WRITING, 77)], ids=["writing", "serving", "with checksum"])
def test_writing_and_serving_become_deleting_and_keep_the_rest(location: Location) -> None:
    doomed = condemn(location)
    assert doomed.fields() == location.fields()._replace(status=Status.DELETING)
    assert doomed.wire == location.wire


def test_deleting_cannot_be_condemned_again() -> None:
    with pytest.raises(IllegalTransition, match="cannot become DELETING"):
        condemn(DELETING)


@pytest.mark.parametrize("status", [Status.NOT_FOUND, Status.NEW])
def test_states_without_bytes_have_no_way_anywhere(status: Status) -> None:
    location = restore(WRITING.fields()._replace(status=status), b"")
    for step in (promote, condemn):
        with pytest.raises(IllegalTransition):
            step(location)
    with pytest.raises(IllegalTransition):
        bury((location,), location, PROOF)


def test_deleting_with_a_proof_goes_and_leaves_the_others() -> None:
    other = written("x")
    assert bury((DELETING, other), DELETING, PROOF) == (other,)
    assert bury((DELETING,), DELETING, PROOF) == ()


@pytest.mark.parametrize("location", [WRITING, SERVING], ids=["writing", "serving"])
def test_nothing_goes_without_having_been_deleting(location: Location) -> None:
    with pytest.raises(IllegalTransition, match="cannot be removed"):
        bury((location,), location, PROOF)


def test_a_proof_counts_for_its_own_location_only() -> None:
    with pytest.raises(IllegalTransition, match="another location"):
        bury((DELETING,), DELETING, AbsenceProof("x"))


@pytest.mark.parametrize(
    ("truths", "proven"),
    [
        ([Truth.ABSENT], True),
        ([Truth.ABSENT, Truth.ABSENT], True),
        ([Truth.ABSENT, Truth.UNKNOWN], False),
        ([Truth.PRESENT, Truth.ABSENT], False),
        ([Truth.UNKNOWN], False),
        ([], False),
    ],
)
def test_only_absent_for_every_part_is_a_proof(truths: list[Truth], proven: bool) -> None:
    assert (prove_absence(DELETING, iter(truths)) == PROOF) is proven


def test_compare_and_set_exchanges_exactly_the_location_it_saw() -> None:
    other = written("x")
    assert replace((other, WRITING), WRITING, SERVING) == (other, SERVING)
    assert replace((other, SERVING), WRITING, DELETING) is None
    assert replace((), WRITING, SERVING) is None


def test_compare_and_set_with_two_equal_states_is_refused() -> None:
    with pytest.raises(IllegalTransition, match="two different states"):
        replace((WRITING,), WRITING, WRITING)


def test_without_a_location_that_is_not_there_changes_nothing() -> None:
    assert without((WRITING,), SERVING) == (WRITING,)


@pytest.mark.parametrize("location", [WRITING, SERVING, DELETING, promote(begin_write(**BIGGEST), -1)], ids=["w", "s", "d", "biggest"])
def test_restoring_what_was_stored_gives_the_same_bytes(location: Location) -> None:
    assert restore(location.fields(), location.wire) == location


def test_a_proof_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        PROOF.location_id = "x"  # type: ignore[misc]
    assert changed(PROOF, location_id="x") == AbsenceProof("x")

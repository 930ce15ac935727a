"""Hand-written location and header bytes: exact examples, limits, refusals."""

from __future__ import annotations

import pytest

from kvcm.common.errors import ErrorCode, InternalError, InvalidArgument
from kvcm.meta.encoder import LocationEncoder
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import ProtoLocationEncoder, encode_header, reframe

pytestmark = pytest.mark.unit


def test_one_spec_is_tag_length_type_count_and_the_spec() -> None:
    encoder: LocationEncoder = ProtoLocationEncoder()
    framed = encoder.encode(4, [("tp0", "file://n/p")])
    # field 2 | len 23 | 1: type 4 | 2: spec_size 1 | 3: len 17 | 1: "tp0" | 2: "file://n/p"
    assert framed == b"\x12\x17" + b"\x08\x04" + b"\x10\x01" + b"\x1a\x11" + b"\x0a\x03tp0" + b"\x12\x0afile://n/p"
    assert encoder.decode(framed) == (4, [("tp0", "file://n/p")])


def test_a_padded_entry_has_type_0_every_spec_name_and_no_uri() -> None:
    encoder = ProtoLocationEncoder()
    framed = encoder.encode_padded(["tp0", "tp1"])
    assert framed == b"\x12\x10" + b"\x10\x02" + b"\x1a\x05\x0a\x03tp0" + b"\x1a\x05\x0a\x03tp1"
    assert framed == encoder.encode(0, [("tp0", ""), ("tp1", "")])
    assert encoder.decode(framed) == (0, [("tp0", ""), ("tp1", "")])


def test_reframing_changes_the_tag_alone() -> None:
    framed = ProtoLocationEncoder().encode(4, [("tp0", "file://n/p?size=1")])
    moved = reframe(framed, 4)
    assert moved[0] == 4 << 3 | 2
    assert moved[1:] == framed[1:]
    reply = meta.StartWriteCacheResponse.FromString(moved)
    assert reply.locations == meta.GetCacheLocationResponse.FromString(framed).locations


@pytest.mark.parametrize("number", [-1, 0, 16, 1000])
def test_reframing_refuses_numbers_whose_tag_is_not_one_byte(number: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 15"):
        reframe(b"\x12\x00", number)


def test_a_header_is_field_1_with_status_and_request_id() -> None:
    assert encode_header(ErrorCode.OK, "", "t_1") == b"\x0a\x09" + b"\x0a\x02\x08\x01" + b"\x12\x03t_1"
    assert encode_header(8, "no", "", "{}") == b"\x0a\x0c" + b"\x0a\x06\x08\x08\x12\x02no" + b"\x1a\x02{}"
    assert encode_header(0, "", "") == b"\x0a\x02\x0a\x00"


@pytest.mark.parametrize(
    "framed",
    [b"", b"\x12", b"\x12\x05\x08", b"\x0a\x00", b"\x12\x00\x12\x00"],
    ids=["empty", "cut tag", "cut body", "header only", "two elements"],
)
def test_damaged_bytes_are_an_internal_error(framed: bytes) -> None:
    with pytest.raises(InternalError, match="damaged"):
        ProtoLocationEncoder().decode(framed)


@pytest.mark.parametrize("spec", [("tp0", "file://\ud800"), ("\ud800", "file://n"), ("\ud800", "")])
def test_text_that_is_not_unicode_is_refused_whichever_place_it_has(spec: tuple[str, str]) -> None:
    encoder = ProtoLocationEncoder()
    for specs in ([spec], [spec, spec]):
        with pytest.raises(InvalidArgument, match="UTF-8"):
            encoder.encode(4, specs)


def test_the_name_cache_is_bounded_and_forgetting_changes_nothing() -> None:
    encoder = ProtoLocationEncoder()
    first = encoder.encode(4, [("spec0", "u")])
    for index in range(5000):
        encoder.encode(4, [(f"spec{index}", "u")])
    assert len(encoder._names) <= 4096
    assert encoder.encode(4, [("spec0", "u")]) == first

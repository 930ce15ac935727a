"""Hand-written bytes equal protobuf's, for every input that the wire can carry."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import ProtoLocationEncoder, encode_header, reframe

pytestmark = pytest.mark.property

QUICK = settings(deadline=None, max_examples=100)
unicode_text = st.text(st.characters(codec="utf-8"), max_size=40)
# Lengths around the places where a varint grows by a byte, and where the table of short lengths ends.
long_text = st.sampled_from([0, 1, 100, 126, 127, 128, 129, 2046, 2047, 2048, 16383, 16384, 70000]).map(lambda size: "u" * size)
texts = unicode_text | long_text
specs = st.lists(st.tuples(texts, texts), max_size=4)
numbers = st.integers(-(1 << 31), (1 << 31) - 1)
ENCODER = ProtoLocationEncoder()


def generated(type_code: int, parts: list[tuple[str, str]]) -> meta.CacheLocation:
    location = meta.CacheLocation(spec_size=len(parts))
    location.type = type_code  # type: ignore[assignment]
    for name, uri in parts:
        location.location_specs.add(name=name, uri=uri)
    return location


@QUICK
@given(numbers, specs)
def test_I_PROTO_1_locations_are_byte_identical_to_the_generated_message(type_code: int, parts: list[tuple[str, str]]) -> None:
    framed = ENCODER.encode(type_code, parts)
    location = generated(type_code, parts)
    assert framed == meta.GetCacheLocationResponse(locations=[location]).SerializeToString()
    assert framed == meta.GetCacheMetaResponse(locations=[location]).SerializeToString()
    assert reframe(framed, 4) == meta.StartWriteCacheResponse(locations=[location]).SerializeToString()
    assert ENCODER.decode(framed) == (type_code, parts)


@QUICK
@given(st.lists(texts, max_size=5))
def test_I_PROTO_2_padded_entries_are_byte_identical_to_the_generated_message(names: list[str]) -> None:
    location = generated(0, [(name, "") for name in names])
    assert ENCODER.encode_padded(names) == meta.GetCacheLocationResponse(locations=[location]).SerializeToString()


@QUICK
@given(numbers, texts, texts, texts)
def test_I_PROTO_3_headers_are_byte_identical_to_the_generated_message(code: int, message: str, request_id: str, tracer: str) -> None:
    reply = meta.GetCacheLocationResponse()
    reply.header.request_id = request_id
    reply.header.tracer_result = tracer
    reply.header.status.code = code  # type: ignore[assignment]
    reply.header.status.message = message
    reply.header.status.SetInParent()
    assert encode_header(code, message, request_id, tracer) == reply.SerializeToString()
    admin_reply = admin.CommonResponse.FromString(encode_header(code, message, request_id))
    assert (admin_reply.header.status.code, admin_reply.header.status.message) == (code, message)
    assert admin_reply.header.request_id == request_id


@QUICK
@given(st.lists(specs, max_size=5), unicode_text)
def test_I_PROTO_4_a_joined_reply_is_the_reply(locations: list[list[tuple[str, str]]], request_id: str) -> None:
    raw = encode_header(1, "", request_id) + b"".join(ENCODER.encode(4, parts) for parts in locations)
    reply = meta.GetCacheLocationResponse(locations=[generated(4, parts) for parts in locations])
    reply.header.status.code = meta.OK
    reply.header.request_id = request_id
    assert raw == reply.SerializeToString()

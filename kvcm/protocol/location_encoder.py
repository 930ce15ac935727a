"""Protobuf bytes of locations and reply headers, written by hand (design D2).

A location is encoded once, when it becomes readable; a reply of the hot RPCs is then `encode_header(...) + b"".join(locations)`. The bytes
equal what the generated messages serialise to (property tests hold that), at a small part of the price.

Dangers: proto3 leaves default values out, so an empty text or a zero must write nothing at all; the framing tag is one byte only while
field numbers stay below 16.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError

from kvcm.common.errors import InternalError, InvalidArgument
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.key_packing import WirePacking
from kvcm.protocol.varint import varint

LocationSpec = tuple[str, str]
"""(spec name, URI), as in the port; declared again so that clients may import this module without the metadata layer."""

_MAX_CACHED_NAMES = 4096
_MAX_ONE_BYTE_FIELD = 15
_WIRE_BYTES = 2


# Lengths of all but absurd texts; a look-up costs a tenth of the loop.
_SMALL = tuple(varint(value) for value in range(2048))
_SMALL_COUNT = len(_SMALL)


def _length(value: int) -> bytes:
    return _SMALL[value] if value < _SMALL_COUNT else varint(value)


def _text_field(tag: bytes, text: str) -> bytes:
    if not text:
        return b""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("a text holds characters that cannot be written as UTF-8") from None
    return tag + _length(len(raw)) + raw


def _varint_field(tag: bytes, value: int) -> bytes:
    return tag + varint(value) if value else b""


class ProtoLocationEncoder:
    """The `LocationEncoder` port of `kvcm.meta` on the wire format. One instance per loop; it keeps bounded caches of what repeats."""

    packing = WirePacking()
    """How the index packs block keys, so that a request's keys need not be unpacked to be compared."""

    def __init__(self) -> None:
        self._names: dict[str, bytes] = {}
        self._heads: dict[tuple[int, str, int], bytes] = {}

    def encode(self, type_code: int, specs: Sequence[LocationSpec]) -> bytes:
        """One CacheLocation framed as an element of field 2. Raises InvalidArgument for text that is not valid Unicode."""
        if len(specs) != 1:
            return self._encode_many(type_code, specs)
        name, uri = specs[0]
        try:
            raw = uri.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("a location URI holds characters that cannot be written as UTF-8") from None
        head = self._heads.get((type_code, name, len(raw)))
        if head is None:
            if not raw:
                return self._encode_many(type_code, specs)
            head = self._head(type_code, name, len(raw))
        return head + raw

    def encode_singles(self, type_code: int, name: str, uris: Sequence[str]) -> list[bytes]:
        """`encode` for many locations of one spec each."""
        heads, wires = self._heads, []
        if "".join(uris).isascii():
            lengths = list(map(len, uris))
            known = {length: head for length in set(lengths) if (head := heads.get((type_code, name, length))) is not None}
            if known.keys() >= set(lengths):
                return list(map(bytes.__add__, map(known.__getitem__, lengths), map(str.encode, uris)))
        for uri in uris:
            head = heads.get((type_code, name, len(uri))) if uri.isascii() else None
            wires.append(head + uri.encode() if head is not None else self.encode(type_code, ((name, uri),)))
        return wires

    def decode(self, framed: bytes) -> tuple[int, list[LocationSpec]]:
        """(storage type, specs) of bytes made by `encode`. Raises InternalError for anything else."""
        try:
            locations = meta.GetCacheLocationResponse.FromString(framed).locations
        except DecodeError:
            raise InternalError("the stored bytes of a location are damaged") from None
        if len(locations) != 1:
            raise InternalError("the stored bytes of a location are damaged")
        location = locations[0]
        return location.type, [(spec.name, spec.uri) for spec in location.location_specs]

    def encode_padded(self, spec_names: Iterable[str]) -> bytes:
        """The entry that stands for a miss (wire contract 4.6): type 0, every registered spec name with an empty URI."""
        return self.encode(0, [(name, "") for name in spec_names])

    def _encode_many(self, type_code: int, specs: Sequence[LocationSpec]) -> bytes:
        parts = [_varint_field(b"\x08", type_code), _varint_field(b"\x10", len(specs))]
        for name, uri in specs:
            spec = self._name_prefix(name) + _text_field(b"\x12", uri)
            parts += (b"\x1a", _length(len(spec)), spec)
        body = b"".join(parts)
        return b"\x12" + _length(len(body)) + body

    def _name_prefix(self, name: str) -> bytes:
        known = self._names.get(name)
        if known is not None:
            return known
        prefix = _text_field(b"\x0a", name)
        if len(self._names) >= _MAX_CACHED_NAMES:
            self._names.clear()
        self._names[name] = prefix
        return prefix

    def _head(self, type_code: int, name: str, size: int) -> bytes:
        """Everything in front of the URI of a location with one spec: it depends on kind, name and the URI's length only."""
        spec = self._name_prefix(name) + b"\x12" + _length(size)
        body = _varint_field(b"\x08", type_code) + b"\x10\x01\x1a" + _length(len(spec) + size) + spec
        head = b"\x12" + _length(len(body) + size) + body
        if len(self._heads) >= _MAX_CACHED_NAMES:
            self._heads.clear()
        self._heads[type_code, name, size] = head
        return head


def reframe(framed: bytes, field_number: int) -> bytes:
    """The same element under another repeated field, 1 to 15 (StartWriteCacheResponse carries locations as field 4)."""
    return reframe_all((framed,), field_number)[0]


def reframe_all(framed: Iterable[bytes], field_number: int) -> list[bytes]:
    """`reframe` for many elements."""
    if not 1 <= field_number <= _MAX_ONE_BYTE_FIELD:
        raise ValueError("only field numbers from 1 to 15 have a one-byte tag")
    tag = bytes((field_number << 3 | _WIRE_BYTES,))
    return [tag + element[1:] for element in framed]


def frame_vectors(vectors: Iterable[Sequence[bytes]]) -> list[bytes]:
    """CacheLocationVectors of bytes made by `encode`, each framed as an element of field 2 (GetCacheLocationsByBackendResponse)."""
    framed: list[bytes] = []
    for elements in vectors:
        body = b"".join(reframe_all(elements, 1))
        framed += (b"\x12", _length(len(body)), body)
    return framed


def encode_ok_header(request_id: str) -> bytes:
    """`encode_header(1, "", request_id)` for the hot path."""
    raw = request_id.encode()
    size = len(raw)
    if not 0 < size < 0x70:
        return encode_header(1, "", request_id)
    # Header (field 1) of status (field 1: code 1) and request id (field 2); all lengths are one byte.
    return b"".join((b"\x0a", _SMALL[size + 6], b"\x0a\x02\x08\x01\x12", _SMALL[size], raw))


def encode_header(code: int, message: str, request_id: str, tracer_result: str = "") -> bytes:
    """Field 1 (CommonResponseHeader) of any reply, its status always present. Admin and debug replies have no `tracer_result`."""
    status = _varint_field(b"\x08", code) + _text_field(b"\x12", message)
    header = b"\x0a" + _length(len(status)) + status + _text_field(b"\x12", request_id) + _text_field(b"\x1a", tracer_result)
    return b"\x0a" + _length(len(header)) + header

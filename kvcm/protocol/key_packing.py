"""Block keys as the wire packs them: varints side by side (the payload of a packed `repeated int64`).

Packing and unpacking are protobuf's own C code. `packed_block_keys` takes the keys of a request out of its serialised form without building an integer for
each of them; serialising anew makes the form canonical, whatever the client had sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.varint import varint

_REMOVE_KEYS_TAG = b"\x1a"  # RemoveCacheRequest.block_keys = 3, length-delimited
_LOCATE_KEYS_TAG = 0x22  # GetCacheLocationRequest.block_keys = 4, length-delimited
_LENGTH_DELIMITED = 2


class WirePacking:
    """`kvcm.meta.key_packing.KeyPacking` in the wire's own form."""

    def pack(self, keys: Sequence[int]) -> bytes:
        if not keys:
            return b""
        message = meta.RemoveCacheRequest(block_keys=keys).SerializeToString()
        return message[_skip_varint(message, 1) :]

    def unpack(self, packed: bytes) -> list[int]:
        return meta.RemoveCacheRequest.FromString(_REMOVE_KEYS_TAG + varint(len(packed)) + packed).block_keys[:]

    def width(self, key: int) -> int:
        return 10 if key < 0 else (key.bit_length() + 6) // 7 or 1


def packed_block_keys(request: meta.GetCacheLocationRequest) -> bytes:
    """The packed keys of a request that has some."""
    message = request.SerializeToString()
    at = 0
    # Fields come in the order of their numbers: two texts and a number stand in front of the keys, each only if it is not empty.
    while message[at] != _LOCATE_KEYS_TAG:
        delimited = message[at] & 7 == _LENGTH_DELIMITED
        size, at = _read_varint(message, at + 1)
        if delimited:
            at += size
    size, at = _read_varint(message, at + 1)
    return message[at : at + size]


def _read_varint(text: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends)."""
    value = shift = 0
    while True:
        byte = text[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _skip_varint(text: bytes, at: int) -> int:
    while text[at] >= 0x80:
        at += 1
    return at + 1

"""What Redis holds of a block -> the block, in every layout that upstream has written (behaviour 9.2).

    L#<location id>              one location as JSON
    P#<location id>#prev_key     a property of one location; BP#prev_key of the block. Other properties are upstream's and are not looked at.
    __loc__<location id>         one location, older
    __uri__                      all locations by id as one JSON object, with _prev_key_; oldest

A usual record, as `redis_write` and upstream write it, is compared with those that were read before it, and only what differs is looked at: a new leader
reads a million of them before it serves. Everything else is read by the JSON reader and `RecordCodec`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvcm.common.errors import StorageError
from kvcm.data_storage.model import StorageType
from kvcm.meta.location import REPORTED_CODES, Block, Location, LocationFields, Status, restore
from kvcm.meta.record import DamagedRecord, RecordCodec

_PLAIN = re.compile(
    rb'\{"id":"([A-Za-z0-9_\-]{1,8})","status":([234]),"type":(\d{1,4}),"spec_size":1,"create_time":(\d{1,18}),'
    rb'"location_specs":\[\{"name":"([^"\\\x00-\x1f]*)",'
    rb'"uri":"([a-z0-9_]+://([^/?:@"\\\x00-\x1f]+)(?:/[^?"\\\x00-\x1f]*)?\?(?:[^"\\\x00-\x1f]*&)?size=(\d{1,18})(?:&[^"\\\x00-\x1f]*)?)"\}\]\}'
)
_KINDS = {b"%d" % kind: int(kind) for kind in StorageType if kind not in REPORTED_CODES}
_STATES = {b"%d" % state: state for state in (Status.WRITING, Status.SERVING, Status.DELETING)}
_CREATED, _URI, _HOST = 4, 6, 7
_MAX_KINDS = 4096
_MAX_HEADS = 256
_STAMP, _PREVIOUS = b"BP#lru_time", b"BP#prev_key"
_FRONT_AT = 15  # behind {"id":"01234567
_CREATED_DIGITS = 16
_MIN_CREATED_AT = 50
_SPECS = b',"location_specs"'
_END = b'"}]}'
_PLAIN_BYTES = bytes(code for code in range(32, 127) if code not in b'"\\?')
_HEADER = struct.Struct("<5sQQ8sqq")  # see `location`: what records of a kind share, create time, size, id, previous key, checksum
_new_tuple = tuple.__new__


@dataclass(frozen=True, slots=True)
class _Kind:
    """What records have in common: all between id and create time (`front`, to `created_at`), and from there to the end of the URI's host (`back`, from
    `created_end` to `host_end`). `first`, `with_previous`: how the header of a location without and with a predecessor begins. `heads`: by length of the URI.
    """

    created_at: int
    front: bytes
    created_end: int
    back: bytes
    host_end: int
    uri_at: int
    type_code: int
    spec: str
    first: bytes
    with_previous: bytes
    heads: dict[int, bytes]


_NO_KIND = _Kind(0, b"no kind", 0, b"", 0, 0, 0, "", b"", b"", {})


class Odd(NamedTuple):
    """A reply to HGETALL that was not read the quick way. `block`: empty when it names no location, None when it cannot be read."""

    key: int
    reply: Any
    block: Block | None

    @property
    def is_damaged(self) -> bool:
        """A hash that cannot be read; False for a key of another type, which is no block of anybody."""
        return self.block is None and isinstance(self.reply, list)


class BlockUnpacker:
    def __init__(self, records: RecordCodec) -> None:
        self._records = records
        self._kinds: dict[bytes, _Kind] = {}
        self._last = _NO_KIND
        self._sizes: dict[bytes, int] = {}
        self.unusual = 0
        """Blocks that were not read the quick way, which knows the layout that is written today only."""

    def unpack_all(self, replies: Iterable[tuple[int, Any]]) -> dict[int, Block]:
        """The blocks that are there, of keys with what HGETALL says of each; a key that is no hash is no block. Raises StorageError for a damaged record."""
        found: dict[int, Block] = {}
        for key, flat in replies:
            if not isinstance(flat, list):
                continue
            try:
                block = self.unpack(flat)
            except DamagedRecord as error:
                raise StorageError("the metadata in Redis holds a damaged record") from error
            if block:
                found[key] = block
        return found

    def sort(self, replies: Iterable[tuple[int, Any]]) -> tuple[list[tuple[int, Block]], list[Odd]]:
        """The blocks that can be read, and all that is worth a second look, some of these blocks among it. Raises nothing for what is stored.

        The loop of a recovery: a usual block costs nothing beyond `unpack`, and what the caller asks of the others is asked of them alone.
        """
        blocks: list[tuple[int, Block]] = []
        odd: list[Odd] = []
        unpack, unusual = self.unpack, self.unusual
        for key, flat in replies:
            try:
                block = unpack(flat) if isinstance(flat, list) else None
            except DamagedRecord:
                block = None
            if block:
                blocks.append((key, block))
                if self.unusual == unusual:
                    continue
            unusual = self.unusual
            odd.append(Odd(key, flat, block))
        return blocks, odd

    def unpack(self, flat: Sequence[bytes]) -> Block:
        """The block of a hash as HGETALL gives it; empty when it names no location. Raises DamagedRecord."""
        # Redis gives the fields of a usual hash in any order.
        previous = b""
        if len(flat) == 6:
            one, first, two, second, three, third = flat
            if one == _STAMP:
                previous, name, text, other = (second, three, third, two) if two == _PREVIOUS else (third, two, second, three)
            elif two == _STAMP:
                previous, name, text, other = (first, three, third, one) if one == _PREVIOUS else (third, one, first, three)
            elif three == _STAMP:
                previous, name, text, other = (first, two, second, one) if one == _PREVIOUS else (second, one, first, two)
            else:
                return self._unpack_any(flat)
            if other != _PREVIOUS:
                return self._unpack_any(flat)
        elif len(flat) == 4:
            one, first, two, second = flat
            if one == _STAMP:
                name, text = two, second
            elif two == _STAMP:
                name, text = one, first
            else:
                return self._unpack_any(flat)
        else:
            return self._unpack_any(flat)
        # {"id":"01234567","status":..,"uri":"scheme://host/... : what is alike in many records is compared, the rest is cut out.
        kind = self._last
        if text[_FRONT_AT : kind.created_at] != kind.front or text[kind.created_end : kind.host_end] != kind.back:
            found = self._kind_of(text)
            if found is None:
                return self._unpack_any(flat)
            kind = self._last = found
        identity, created, uri = name[2:], text[kind.created_at : kind.created_end], text[kind.uri_at : -4]
        path, _, query = uri.partition(b"?")
        size = self._sizes.get(query)
        if size is None:
            size = self._learn_size(query)
        head = kind.heads.get(len(uri))
        if head is None:
            head = self._learn_head(kind, uri)
        if (
            size is None
            or head is None
            or name[:2] != b"L#"
            or text[:_FRONT_AT] != b'{"id":"' + identity
            or not identity.isalnum()
            or not created.isdigit()
            or not text.endswith(_END)
            or path.translate(None, _PLAIN_BYTES)
        ):
            return self._unpack_any(flat)
        try:
            if previous:
                header = _HEADER.pack(kind.with_previous, int(created), size, identity, int(previous), 0)
            else:
                header = _HEADER.pack(kind.first, int(created), size, identity, 0, 0)
        except (ValueError, struct.error):
            raise DamagedRecord("the key in front of a stored block is not a number of 64 bits") from None
        return (_new_tuple(Location, (header, head + uri)),)

    def _kind_of(self, text: bytes) -> _Kind | None:
        """None for a record that is not usual."""
        created_end = text.find(_SPECS, _MIN_CREATED_AT)
        host_end = text.find(b"/", text.find(b"://", created_end) + 3)
        if created_end < 0 or host_end < 0:
            return None
        front, back = text[_FRONT_AT : created_end - _CREATED_DIGITS], text[created_end:host_end]
        kind = self._kinds.get(front + back)
        return self._learn(text, front, back, host_end) if kind is None else kind

    def _learn(self, text: bytes, front: bytes, back: bytes, host_end: int) -> _Kind | None:
        found = _PLAIN.fullmatch(text)
        if found is None or found.end(_HOST) != host_end or len(found[_CREATED]) != _CREATED_DIGITS:
            return None
        _, status, kind, _, spec, _, host, _ = found.groups()
        if kind not in _KINDS:
            return None
        try:
            fields = LocationFields(_STATES[status], _KINDS[kind], self._records.slot_of(host.decode()), 0, 0, "01234567", None, 0)
            name = spec.decode()
        except UnicodeDecodeError:
            return None
        first, with_previous = (restore(item, b"").header[:5] for item in (fields, fields._replace(previous_key=0)))
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        at, end = found.span(_CREATED)
        made = self._kinds[front + back] = _Kind(at, front, end, back, host_end, found.start(_URI), fields.type_code, name, first, with_previous, {})
        return made

    def _learn_size(self, query: bytes) -> int | None:
        """What the parameters of a URI say; None where they are not usual."""
        sizes = [part[5:] for part in query.split(b"&") if part.startswith(b"size=")]
        if len(sizes) != 1 or query.count(b"size=") != 1 or not sizes[0].isdigit() or len(sizes[0]) > 18 or query.translate(None, _PLAIN_BYTES):
            return None
        if len(self._sizes) >= _MAX_KINDS:
            self._sizes.clear()
        size = self._sizes[query] = int(sizes[0])
        return size

    def _learn_head(self, kind: _Kind, uri: bytes) -> bytes | None:
        """The wire bytes in front of a URI of this length."""
        try:
            wire = self._records.encoder.encode(kind.type_code, ((kind.spec, uri.decode()),))
        except UnicodeDecodeError:
            return None
        if not wire.endswith(uri):
            return None
        if len(kind.heads) >= _MAX_HEADS:
            kind.heads.clear()
        head = kind.heads[len(uri)] = wire[: -len(uri)]
        return head

    def _unpack_any(self, flat: Sequence[bytes]) -> Block:
        self.unusual += 1
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        common = _optional_key(fields.get(b"BP#prev_key", fields.get(b"_prev_key_")))
        found: list[tuple[str | None, Any]] = []
        for name, text in fields.items():
            if name == b"__uri__":
                records = _object(text)
                found.extend((str(record_id), record) for record_id, record in records.items())
            elif name[:2] == b"L#" or name[:7] == b"__loc__":
                found.append((_text(name[2:] if name[:2] == b"L#" else name[7:]), _object(text)))
        block: dict[bytes, Location] = {}
        for record_id, record in found:
            if not isinstance(record, dict) or str(record.get("id")) != record_id:
                raise DamagedRecord("a stored location is not what it is stored as")
            if record.get("type") in REPORTED_CODES:
                continue  # what hosts report is theirs to report again
            previous = common
            own = fields.get(b"P#%b#prev_key" % record_id.encode())
            if own is not None:
                previous = _optional_key(own)
            elif "prev_key" in record:
                previous = _optional_key(str(record["prev_key"]).encode())
            whole = {"create_time": 0, **record, "prev_key": previous}
            location = self._records.from_dict(whole)
            if location.raw_id in block:
                raise DamagedRecord("two locations of a stored block have the same id")
            block[location.raw_id] = location
        return tuple(sorted(block.values(), key=lambda location: (location.create_time_us, location.raw_id)))


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise DamagedRecord("a stored location is not JSON") from None
    if not isinstance(found, dict):
        raise DamagedRecord("a stored location is not a JSON object")
    return found


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise DamagedRecord("a stored location has an id that is not UTF-8") from None


def _key(text: bytes) -> int:
    try:
        value = int(text)
    except ValueError:
        raise DamagedRecord("the key in front of a stored block is not a number") from None
    if not -(1 << 63) <= value < 1 << 63:
        raise DamagedRecord("the key in front of a stored block has more than 64 bits")
    return value


def _optional_key(text: bytes | None) -> int | None:
    return _key(text) if text else None

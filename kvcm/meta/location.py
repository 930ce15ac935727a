"""The life of a location: one copy of one block in one storage (design D4, behaviour section 10).

    absent --begin_write--> WRITING --promote--> SERVING
                               |                    |
                               +------condemn-------+---> DELETING --bury(proof)--> absent

    absent --report--> SERVING --revise--> SERVING --retract--> absent        (copies that hosts report; the bytes are not ours)

The functions of this module are the only code that changes a location's state. Everything else is an error: no way out of DELETING except
removal, no removal without proof that the bytes are gone, no promotion of anything but WRITING. The two lives never mix (I-LOC-8): a reported copy is never
WRITING or DELETING, and what owns bytes is never retracted. A location is an immutable value, so "compare and
set" is: the stored value equals the one the caller decided on.

A location is two byte strings: `header` (fixed layout, what the manager needs) and `wire` (the framed CacheLocation that replies join, design D2).
Both are types that the garbage collector does not track (design D3).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from kvcm.common.errors import InternalError
from kvcm.common.ids import LOCATION_ID_CHARS
from kvcm.data_storage.model import StorageType
from kvcm.data_storage.port import Truth
from kvcm.meta.errors import IllegalTransition

# status, storage type, storage slot, flags, create time, bytes, id, previous key, checksum. 45 bytes: with the bytes object's own 33 this stays
# inside the allocator's 80-byte class.
_HEADER = struct.Struct("<BBHBQQ8sqq")
_HEAD = struct.Struct("<BBHBQQ")  # the same up to the id
_ID_AND_PREVIOUS = struct.Struct("<8sqq").pack  # and the rest
_COLUMNS = struct.Struct("<4sBQQ8sqq")  # the same in the columns that are looked at together
HEADER_BYTES = _HEADER.size
_ID_BYTES = 8
_NO_CHECKSUM = bytes(8)
_NO_PREVIOUS = bytes(16)  # and no checksum
_FLAG_HAS_PREVIOUS = 1
_FLAG_STAYS_SHOWN = 2
REPORTED_CODES = frozenset(int(kind) for kind in StorageType if kind.reported)
_TAIL = slice(1, None)
_BAD_ID = f"a location id has 1 to {LOCATION_ID_CHARS} characters"


class Status(IntEnum):
    """Numbers of the wire enum CacheLocationStatus."""

    NOT_FOUND = 0
    NEW = 1
    WRITING = 2
    SERVING = 3
    DELETING = 4


_WRITING = bytes([Status.WRITING])
_SERVING = bytes([Status.SERVING])
_DELETING = bytes([Status.DELETING])


_tail_of = itemgetter(_TAIL)


class LocationFields(NamedTuple):
    """The header in readable form. Times in microseconds since the epoch, size in bytes, checksum 0 = none."""

    status: Status
    type_code: int
    storage_slot: int
    create_time_us: int
    size: int
    location_id: str
    previous_key: int | None
    checksum: int


class Location(NamedTuple):
    header: bytes
    wire: bytes

    @property
    def status(self) -> Status:
        return Status(self.header[0])

    @property
    def type_code(self) -> int:
        return self.header[1]

    @property
    def storage_slot(self) -> int:
        return self.header[2] | self.header[3] << 8

    @property
    def size(self) -> int:
        return size_of(self.header)

    @property
    def raw_id(self) -> bytes:
        """The id as stored: eight bytes, padded with zeros."""
        return self.header[21:29]

    @property
    def location_id(self) -> str:
        return self.header[21:29].rstrip(b"\0").decode("ascii")

    @property
    def create_time_us(self) -> int:
        return int.from_bytes(self.header[5:13], "little")

    @property
    def checksum(self) -> int:
        return int.from_bytes(self.header[37:45], "little", signed=True)

    def fields(self) -> LocationFields:
        status, type_code, slot, flags, created, size, raw_id, previous, checksum = _HEADER.unpack(self.header)
        return LocationFields(
            status=Status(status),
            type_code=type_code,
            storage_slot=slot,
            create_time_us=created,
            size=size,
            location_id=raw_id.rstrip(b"\0").decode("ascii"),
            previous_key=previous if flags & _FLAG_HAS_PREVIOUS else None,
            checksum=checksum,
        )


# A header and wire bytes as a location, without the Python function that a NamedTuple's own constructor is.
_location: Callable[[tuple[bytes, bytes]], Location] = partial(tuple.__new__, Location)


def written_as(location: Location) -> bytes:
    """The header that the location had when it was WRITING (it must not have been SERVING since: that may set the checksum)."""
    return _WRITING + location.header[_TAIL]


def columns_of(headers: Sequence[bytes]) -> tuple[tuple[Any, ...], ...]:
    """Of several headers, field by field: status with place (4 bytes), flags, creation times, sizes, raw ids, previous keys (0: none), checksums."""
    return tuple(zip(*_COLUMNS.iter_unpack(b"".join(headers)), strict=True))


def are_promoted(before: Sequence[bytes], headers: Sequence[bytes]) -> bool:
    """Was each of these WRITING before, and is it SERVING now, with everything else as it was?"""
    count = len(headers)
    was, now = bytearray(b"".join(before)), b"".join(headers)
    if was[::HEADER_BYTES] != _WRITING * count or now[::HEADER_BYTES] != _SERVING * count:
        return False
    was[::HEADER_BYTES] = _SERVING * count
    return was == now


def place_of(header: bytes) -> bytes:
    """Storage type (one byte) and storage slot (two, little-endian)."""
    return header[1:4]


def size_of(header: bytes) -> int:
    return int.from_bytes(header[13:21], "little")


def previous_key_of(location: Location) -> int | None:
    """The key in front of this block in the request that wrote it; None for the first one."""
    header = location.header
    return int.from_bytes(header[29:37], "little", signed=True) if header[4] & _FLAG_HAS_PREVIOUS else None


Block = tuple[Location, ...]
"""All locations of one block key. A block exists exactly while it has at least one location (I-MS-6)."""


@dataclass(frozen=True, slots=True)
class AbsenceProof:
    """Evidence that no byte of a location is left. Only `prove_absence` makes one."""

    location_id: str


def prove_absence(location: Location, truths: Iterable[Truth]) -> AbsenceProof | None:
    """A proof when the storage said ABSENT for every spec of the location, else None ("keep and ask again")."""
    seen = list(truths)
    if not seen or any(truth is not Truth.ABSENT for truth in seen):
        return None
    return AbsenceProof(location.location_id)


def begin_write(
    *,
    type_code: int,
    storage_slot: int,
    create_time_us: int,
    size: int,
    location_id: str,
    previous_key: int | None,
    wire: bytes,
) -> Location:
    """absent -> WRITING. `create_time_us` is set here and never again (I-LOC-7). `location_id`: 1 to 8 ASCII characters."""
    if not 0 < len(location_id) <= LOCATION_ID_CHARS:
        raise InternalError(_BAD_ID)  # packing would cut it off, and two locations could share what is left
    (location,) = begin_writes(type_code, storage_slot, create_time_us, (size,), (location_id,), (previous_key,), (wire,))
    return location


def begin_writes(
    type_code: int,
    storage_slot: int,
    create_time_us: int,
    sizes: Sequence[int],
    location_ids: Sequence[str],
    previous_keys: Sequence[int | None],
    wires: Sequence[bytes],
) -> list[Location]:
    """`begin_write` for a batch of blocks in one storage."""
    if type_code in REPORTED_CODES:
        raise IllegalTransition("blocks are not written to a storage that hosts report")
    if len(set(sizes)) > 1:
        one_by_one = zip(sizes, location_ids, previous_keys, wires, strict=True)
        return [
            location
            for size, location_id, previous, wire in one_by_one
            for location in begin_writes(type_code, storage_slot, create_time_us, (size,), (location_id,), (previous,), (wire,))
        ]
    # All but id and previous key are the same for the whole batch, and those two stand together.
    head = _HEAD.pack(Status.WRITING, type_code, storage_slot, _FLAG_HAS_PREVIOUS, create_time_us, sizes[0]) if sizes else b""
    first = _HEAD.pack(Status.WRITING, type_code, storage_slot, 0, create_time_us, sizes[0]) if sizes else b""
    ids = map(str.encode, location_ids, repeat("ascii"))
    headers = [
        first + raw_id.ljust(_ID_BYTES, b"\0") + _NO_PREVIOUS if previous is None else head + _ID_AND_PREVIOUS(raw_id, previous, 0)
        for raw_id, previous in zip(ids, previous_keys, strict=True)
    ]
    return list(map(_location, zip(headers, wires, strict=True)))


def promote(location: Location, checksum: int = 0) -> Location:
    """WRITING -> SERVING, by a finish that named the block successful (I-LOC-2). `checksum`: signed 64 bit, 0 = none."""
    header, wire = location
    if header[0] != Status.WRITING:
        raise IllegalTransition(f"a location in state {location.status.name} cannot become SERVING")
    if checksum:
        return Location(_SERVING + header[1:37] + checksum.to_bytes(8, "little", signed=True), wire)
    return Location(_SERVING + header[_TAIL], wire)


def promote_all(locations: Sequence[Location]) -> list[Location]:
    """`promote` for several, without checksums."""
    if not locations:
        return []
    headers, wires = zip(*locations, strict=True)
    if b"".join(headers)[::HEADER_BYTES] != _WRITING * len(headers):
        return list(map(promote, locations))  # which tells the one that cannot be
    return list(map(_location, zip(map(_SERVING.__add__, map(_tail_of, headers)), wires, strict=True)))


def condemn(location: Location) -> Location:
    """WRITING or SERVING -> DELETING. From here on no reply contains it and nothing brings it back."""
    header, wire = location
    if header[0] not in (Status.WRITING, Status.SERVING) or header[1] in REPORTED_CODES:
        kind = "reported " if header[1] in REPORTED_CODES else ""
        raise IllegalTransition(f"a {kind}location in state {location.status.name} cannot become DELETING")
    return Location(_DELETING + header[_TAIL], wire)


def bury(block: Block, location: Location, proof: AbsenceProof) -> Block:
    """DELETING -> absent, with proof. Returns the block without the location (empty: the block is gone)."""
    if location.header[0] != Status.DELETING:
        raise IllegalTransition(f"a location in state {location.status.name} cannot be removed")
    if proof.location_id != location.location_id:
        raise IllegalTransition("the proof of absence belongs to another location")
    return without(block, location)


# -- copies that hosts report (behaviour 21) -----------------------------------------------------------------------------------------------------


def is_reported(location: Location) -> bool:
    return location.header[1] in REPORTED_CODES


def stays_shown(location: Location) -> bool:
    """Did this reported copy take the place of one that readers saw? Then they see it before its snapshot is complete, too."""
    return bool(location.header[4] & _FLAG_STAYS_SHOWN)


def report(*, type_code: int, storage_slot: int, create_time_us: int, handle: bytes, wire: bytes) -> Location:
    """absent -> SERVING, because a host says so. `handle`: eight bytes that stand for host, medium and generation. It has no bytes of ours: size 0."""
    if type_code not in REPORTED_CODES:
        raise IllegalTransition("only storages of the event-report kinds are reported")
    if len(handle) != _ID_BYTES:
        raise InternalError(_BAD_ID)
    return Location(_HEAD.pack(Status.SERVING, type_code, storage_slot, 0, create_time_us, 0) + handle + _NO_PREVIOUS, wire)


def revise(location: Location, handle: bytes, wire: bytes, *, shown: bool = False) -> Location:
    """SERVING -> SERVING with other specs, possibly of a later generation. `shown`: see `stays_shown`."""
    header = location.header
    if header[0] != Status.SERVING or header[1] not in REPORTED_CODES or len(handle) != _ID_BYTES:
        raise IllegalTransition("only a reported copy can be revised")
    return Location(header[:4] + bytes([_FLAG_STAYS_SHOWN if shown else 0]) + header[5:21] + handle + header[29:], wire)


def retract(block: Block, location: Location) -> Block:
    """SERVING -> absent: the host does not have it any more. Only the record goes, so nothing has to be proven."""
    if not is_reported(location) or location.header[0] != Status.SERVING:
        raise IllegalTransition("only a reported copy can be retracted")
    return without(block, location)


def same_locations(one: Block, other: Block) -> bool:
    """Are these the same locations? A store need not keep those of a block in order."""
    return one == other or (len(one) == len(other) and set(one) == set(other))


def owned_part(block: Block) -> Block:
    """The locations whose bytes are in our care. Only these are stored durably: what hosts report is hidden after a restart anyway, until they report anew."""
    for location in block:
        if location.header[1] in REPORTED_CODES:
            return tuple(other for other in block if other.header[1] not in REPORTED_CODES)
    return block


def reported_part(block: Block) -> Block:
    return tuple(location for location in block if location.header[1] in REPORTED_CODES)


# -- blocks ------------------------------------------------------------------------------------------------------------------------------------


def replace(block: Block, old: Location, new: Location) -> Block | None:
    """The block with `old` exchanged for `new`; None if `old` is not there as given (compare-and-set lost).

    old == new is refused: such a "change" would let two callers win (I-MS-4).
    """
    if old == new:
        raise IllegalTransition("a compare-and-set needs two different states")
    if old not in block:
        return None
    if len(block) == 1:
        return (new,)
    return tuple(new if location == old else location for location in block)


def without(block: Block, location: Location) -> Block:
    return tuple(other for other in block if other != location)


def restore(fields: LocationFields, wire: bytes) -> Location:
    """A location read back from a store, in the state it was stored in. Not a transition."""
    if not 0 < len(fields.location_id) <= LOCATION_ID_CHARS:
        raise InternalError(_BAD_ID)
    header = _HEADER.pack(
        fields.status,
        fields.type_code,
        fields.storage_slot,
        0 if fields.previous_key is None else _FLAG_HAS_PREVIOUS,
        fields.create_time_us,
        fields.size,
        fields.location_id.encode("ascii"),
        fields.previous_key or 0,
        fields.checksum,
    )
    return Location(header, wire)

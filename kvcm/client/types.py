"""Values that go into and come out of the client (reference: client SDK, section C1). None of them speaks protobuf.

Danger: an `Iov` exports the memory it points to. While one is alive, Python refuses to resize a bytearray or to close an mmap behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING

from kvcm.client.errors import InvalidCall, InvalidLocalBuffers, InvalidRole

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RoleType(IntFlag):
    """Bit set: SCHEDULER talks to the manager, WORKER moves bytes, HYBRID does both."""

    UNKNOWN = 0
    WORKER = 1
    SCHEDULER = 2
    HYBRID = 3


def role_from_text(text: str) -> RoleType:
    """`worker`, `scheduler` or `hybrid`, in any case."""
    role = {"worker": RoleType.WORKER, "scheduler": RoleType.SCHEDULER, "hybrid": RoleType.HYBRID}.get(text.lower())
    if role is None:
        raise InvalidRole("the role must be one of worker, scheduler, hybrid")
    return role


class QueryType(IntEnum):
    """How MatchLocation looks blocks up (wire contract 4.6); the numbers are those of the wire."""

    UNSPECIFIED = 0
    BATCH_GET = 1
    PREFIX_MATCH = 2
    REVERSE_ROLL_SW_MATCH = 3
    PREFIX_MATCH_WITH_MAMBA = 4


class TrimStrategy(IntEnum):
    """What TrimCache removes (wire contract 4.15)."""

    REMOVE_ALL_CACHE = 1
    REMOVE_ALL_META = 2
    TIMESTAMP = 3


@dataclass(frozen=True, slots=True)
class LocationSpec:
    """One part of a block (for example one tensor-parallel rank). `uri` is empty when nothing is stored."""

    name: str
    uri: str


@dataclass(frozen=True, slots=True)
class Location:
    """Where one block is: one entry for each spec. `storage_type` is the wire number of the kind of store, 0 for a miss."""

    specs: tuple[LocationSpec, ...]
    storage_type: int = 0

    @property
    def hit(self) -> bool:
        """Whether any part is stored."""
        return any(spec.uri for spec in self.specs)

    def uri(self, spec_name: str) -> str:
        """The URI of one spec, empty when this location does not hold it."""
        for spec in self.specs:
            if spec.name == spec_name:
                return spec.uri
        return ""


@dataclass(frozen=True, slots=True)
class BlockMask:
    """Which blocks are masked: the first `offset`, or one bool a block in `flags` (wire contract 4.3)."""

    offset: int = 0
    flags: tuple[bool, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.offset < 1 << 31:
            raise InvalidCall("the offset of a block mask must be between 0 and 2147483647")
        if self.flags is not None and self.offset:
            raise InvalidCall("a block mask has either an offset or flags, not both")

    @classmethod
    def of(cls, flags: Iterable[bool]) -> BlockMask:
        return cls(flags=tuple(bool(flag) for flag in flags))

    def masked(self, index: int) -> bool:
        if self.flags is None:
            return index < self.offset
        return index < len(self.flags) and self.flags[index]

    def open_indexes(self, count: int) -> list[int]:
        """Positions below `count` that are not masked, ascending."""
        return [index for index in range(count) if not self.masked(index)]


@dataclass(frozen=True, slots=True)
class MatchResult:
    """`checksums` has one value a location when it was asked for (0 = unknown), else it is empty."""

    locations: tuple[Location, ...]
    checksums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteLocation:
    """Masked blocks are stored already; `locations` has one entry for each block that is not masked, in order (INV-C1)."""

    write_session_id: str
    block_mask: BlockMask
    locations: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class Metas:
    """One entry for each unmasked block. `metas` are JSON texts, meant for people."""

    locations: tuple[Location, ...]
    metas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    node_id: str
    host: str
    meta_rpc_port: int
    meta_http_port: int
    custom_info: str = ""


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """`leader_node_id` is empty and `leader_endpoint` None while no leader is known. `leader_epoch`: grows with every leader; 0 unknown."""

    self_node_id: str
    leader_node_id: str
    leader_endpoint: NodeEndpoint | None
    leader_epoch: int = 0


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """What the manager keeps about the instance. Sizes are bytes a block."""

    instance_group: str
    instance_id: str
    quota_group_name: str
    block_size: int
    location_spec_infos: dict[str, int]
    location_spec_groups: dict[str, tuple[str, ...]]
    model_name: str
    dtype: str


class Iov:
    """One contiguous piece of main memory: any object with the buffer protocol (bytearray, mmap, numpy array, pinned host tensor).

    `ignore`: the piece's bytes take up their place in the stored block but are neither read from nor written to this memory.
    """

    __slots__ = ("ignore", "view")

    def __init__(self, buffer: Buffer, *, ignore: bool = False) -> None:
        try:
            self.view = memoryview(buffer).cast("B")
        except TypeError as error:
            raise InvalidLocalBuffers("a buffer piece must be contiguous memory that supports the buffer protocol") from error
        self.ignore = ignore

    @property
    def size(self) -> int:
        """Bytes."""
        return self.view.nbytes


@dataclass(frozen=True, slots=True)
class BlockBuffer:
    """One block (or one spec's part of it) in memory: pieces stored back to back in order."""

    iovs: tuple[Iov, ...]
    size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sum(iov.size for iov in self.iovs))

    @classmethod
    def of(cls, *pieces: Buffer | Iov) -> BlockBuffer:
        """From pieces in order; a bare buffer becomes an `Iov` that is not ignored."""
        return cls(tuple(piece if isinstance(piece, Iov) else Iov(piece) for piece in pieces))

    @property
    def has_ignored(self) -> bool:
        return any(iov.ignore for iov in self.iovs)


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """For messages only: names the request and, when given, one id a block."""

    trace_id: str = ""
    block_ids: Sequence[int | str] = ()


@dataclass(frozen=True, slots=True)
class SaveResult:
    """`uris` are those to report to the manager (same order); `checksums` has one value a block, 0 = none (a block with ignored pieces)."""

    uris: tuple[str, ...]
    checksums: tuple[int, ...]

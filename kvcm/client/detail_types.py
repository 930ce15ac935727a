"""Values of the calls beside the hot path: locations by kind of store, what is known about a block, which hosts hold a prefix, and events that hosts report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from kvcm.client.types import LocationSpec


class SelectStrategy(IntEnum):
    """How one location of several is chosen (wire contract 4.8)."""

    UNSPECIFIED = 0
    V6D_PREFIX = 1
    V6D_COVERAGE = 2
    WEIGHTED_RANDOM = 3


class LocationStatus(IntEnum):
    """State of one location of a block; the numbers are those of the wire."""

    NOT_FOUND = 0
    NEW = 1
    WRITING = 2
    SERVING = 3
    DELETING = 4


@dataclass(frozen=True, slots=True)
class BackendSelector:
    """At most one location of this kind of store (its wire number) for each key."""

    storage_type: int
    strategy: SelectStrategy = SelectStrategy.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class LocationDetail:
    """`create_time_us`: microseconds since the Unix epoch. `status` is a LocationStatus, or a number that a later manager knows."""

    location_id: str
    status: int
    storage_type: int
    create_time_us: int
    specs: tuple[LocationSpec, ...]


@dataclass(frozen=True, slots=True)
class BlockDetail:
    """One key of the request: `index` is its position there. A key that is not stored has one location with the status NOT_FOUND.

    `code` is the wire code of this key alone, 1 for OK; `message` says what went wrong.
    """

    index: int
    key: int
    previous_key: str
    properties: Mapping[str, str]
    locations: tuple[LocationDetail, ...]
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class HostMatch:
    """One host that reported blocks. `local`: length of the prefix it holds; the others count what one peer could add."""

    host: str
    local: int
    peer_fetch: int
    peer_total: int


@dataclass(frozen=True, slots=True)
class NodeRegister:
    """The host joins with these mediums."""

    mediums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockAdd:
    key: int
    medium: str
    specs: tuple[LocationSpec, ...]


@dataclass(frozen=True, slots=True)
class BlockDelete:
    key: int
    medium: str
    spec_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostDown:
    """The host leaves; must be alone in its report."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    status: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlockSnapshot:
    """Everything the host holds, in place of what it reported before."""

    blocks: tuple[BlockAdd, ...]


Event = NodeRegister | BlockAdd | BlockDelete | HostDown | Heartbeat | BlockSnapshot


@dataclass(frozen=True, slots=True)
class EventReport:
    """`item_codes`: one wire code an event when something failed, else empty. `retry_after_ms`: wait so long before the next snapshot."""

    item_codes: tuple[int, ...]
    snapshot_version: str
    retry_after_ms: int
    snapshot_required: bool
    extra_info: str

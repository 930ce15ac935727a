"""What a host reports, and what of it is acceptable (behaviour 21.3, wire contract 4.18). Pure: nothing here knows reporters or the index.

Two kinds of mistakes: one inside an event fails that event alone; one of the request as a whole (`check_together`) refuses all of it, and nothing is done.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from kvcm.common.errors import CapacityReached, InvalidArgument
from kvcm.common.uri import MAX_URI_CHARS, parse_uri

MAX_EVENTS = 131_072
MAX_BLOCKS = 131_072
"""Of one snapshot."""
MAX_SPECS = 256
"""Of one copy."""
MAX_HOST_CHARS = 256
MAX_MEDIUM_CHARS = 64
MAX_SPEC_CHARS = 256
MAX_STATUS_KEYS = 32
VERSION_PARAMETER = "s_version"
_VERSION_CHARS = len(VERSION_PARAMETER) + 34  # separator, '=', 32 digits
_KEY = re.compile(r"[+-]?[0-9]{1,24}")
_STATUS_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Specs = tuple[tuple[str, str], ...]
"""(spec name, URI)."""


class EventKind(IntEnum):
    """Numbers of the wire enum ReportEventType."""

    UNSPECIFIED = 0
    NODE_REGISTER = 1
    BLOCK_ADD = 2
    BLOCK_DELETE = 3
    HOST_DOWN = 4
    HEARTBEAT = 5
    BLOCK_SNAPSHOT = 6


@dataclass(frozen=True, slots=True)
class Register:
    mediums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`status`: what of the host's status map is a number."""

    status: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Add:
    key: int
    medium: str
    specs: Specs


@dataclass(frozen=True, slots=True)
class Delete:
    key: int
    medium: str
    spec_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the host holds, by block key: one `Add` a medium."""

    blocks: Mapping[int, Sequence[Add]]


@dataclass(frozen=True, slots=True)
class HostDown:
    pass


Event = Register | Heartbeat | Add | Delete | Snapshot | HostDown


def check_together(kinds: Sequence[int]) -> None:
    """Raises InvalidArgument when these events (wire numbers, as declared) may not stand in one request."""
    if len(kinds) > MAX_EVENTS:
        raise InvalidArgument(f"a report may have at most {MAX_EVENTS} events, not {len(kinds)}")
    if EventKind.HOST_DOWN in kinds and len(kinds) > 1:
        raise InvalidArgument("EVENT_HOST_DOWN must be the only event of its report")
    snapshots = kinds.count(EventKind.BLOCK_SNAPSHOT)
    if snapshots > 1:
        raise InvalidArgument("a report may have one EVENT_BLOCK_SNAPSHOT only")
    if snapshots and (EventKind.BLOCK_ADD in kinds or EventKind.BLOCK_DELETE in kinds):
        raise InvalidArgument("EVENT_BLOCK_SNAPSHOT cannot stand in one report with EVENT_BLOCK_ADD or EVENT_BLOCK_DELETE")


def check_host(host: str) -> str:
    """Raises InvalidArgument."""
    if "#" in host or not host.isprintable() or len(host) > MAX_HOST_CHARS:
        raise InvalidArgument(f"host_ip_port must have at most {MAX_HOST_CHARS} printable characters and no '#'")
    return host


def register(mediums: Iterable[str]) -> Register:
    """Raises InvalidArgument."""
    return Register(tuple(_medium(medium) for medium in mediums))


def heartbeat(status: Mapping[str, str]) -> Heartbeat:
    """Takes what can be shown as a number; the rest, and what is too much, means nothing to us."""
    found: dict[str, float] = {}
    for key in sorted(status):
        number = _number(status[key])
        if number is not None and _STATUS_KEY.fullmatch(key) and len(found) < MAX_STATUS_KEYS:
            found[key] = number
    return Heartbeat(found)


def add(key: str, medium: str, specs: Sequence[tuple[str, str]]) -> Add:
    """Raises InvalidArgument, CapacityReached."""
    return Add(_key(key), _medium(medium), _specs(specs))


def delete(key: str, medium: str, spec_names: Sequence[str]) -> Delete:
    """Raises InvalidArgument."""
    if not spec_names or not all(spec_names):
        raise InvalidArgument("block_delete needs spec_names, and none of them empty")
    return Delete(_key(key), _medium(medium), tuple(spec_names))


def check_block_count(count: int) -> None:
    """Raises InvalidArgument."""
    if count > MAX_BLOCKS:
        raise InvalidArgument(f"a snapshot may have at most {MAX_BLOCKS} blocks, not {count}")


def fold(blocks: Iterable[Add], into: dict[int, list[Add]]) -> None:
    """Blocks of a snapshot by key. Raises InvalidArgument."""
    for block in blocks:
        others = into.setdefault(block.key, [])
        if any(other.medium == block.medium for other in others):
            raise InvalidArgument("a snapshot names a block of one medium twice")
        others.append(block)


def snapshot(blocks: Sequence[Add]) -> Snapshot:
    """A short one; a long one is folded in parts, so that others run in between. Raises InvalidArgument."""
    check_block_count(len(blocks))
    folded: dict[int, list[Add]] = {}
    fold(blocks, folded)
    return Snapshot(folded)


def versioned(uri: str, version: str) -> str:
    """The URI as it is stored and shown: the host's own text, and behind it which generation it belongs to."""
    separator = "?" if "?" not in uri else "" if uri[-1] in "?&" else "&"
    return f"{uri}{separator}{VERSION_PARAMETER}={version}"


def _key(text: str) -> int:
    """A 64-bit key as decimal text, signed or unsigned: both spellings of the same bits are the same block."""
    number = int(text) if _KEY.fullmatch(text) else None
    if number is None or not -(1 << 63) <= number < 1 << 64:
        raise InvalidArgument("block_key must be the decimal text of a 64-bit integer")
    return number - (1 << 64) if number >= 1 << 63 else number


def _medium(medium: str) -> str:
    if not medium or "#" in medium or not medium.isprintable() or len(medium) > MAX_MEDIUM_CHARS:
        raise InvalidArgument(f"a medium must have 1 to {MAX_MEDIUM_CHARS} printable characters and no '#'")
    return medium


def _specs(specs: Sequence[tuple[str, str]]) -> Specs:
    if not specs:
        raise InvalidArgument("a reported block needs specs")
    if len(specs) > MAX_SPECS:
        raise CapacityReached(f"a reported block may have at most {MAX_SPECS} specs")
    for name, uri in specs:
        if not name or len(name) > MAX_SPEC_CHARS:
            raise InvalidArgument(f"the name of a spec must have 1 to {MAX_SPEC_CHARS} characters")
        if len(uri) > MAX_URI_CHARS - _VERSION_CHARS:
            raise InvalidArgument(f"the URI of a spec may have at most {MAX_URI_CHARS - _VERSION_CHARS} characters")
        parsed = parse_uri(uri)
        if not parsed.host:
            raise InvalidArgument("the URI of a spec needs a host")
        if VERSION_PARAMETER in parsed.params:
            raise InvalidArgument(f"the URI of a spec must not have the parameter {VERSION_PARAMETER}, which the manager sets")
    if len(specs) > 1 and len({name for name, _ in specs}) != len(specs):
        raise InvalidArgument("a reported block names a spec twice")
    return tuple(specs)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None

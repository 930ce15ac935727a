"""Which node of a Redis Cluster holds what: slots of keys, the map of slots, and the answers that send a caller elsewhere.

MOVED <slot> <host>:<port>     the slot belongs to that node; nothing was done
ASK <slot> <host>:<port>       the slot is being moved and these keys are already there; nothing was done, only this command is to be repeated there
TRYAGAIN                       the slot is being moved and the keys of the command are on both sides; nothing was done
CLUSTERDOWN                    nobody holds the slot just now; nothing was done
"""

from __future__ import annotations

from binascii import crc_hqx
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from kvcm.common.redis.connection import error_word
from kvcm.common.redis.target import Address

SLOTS = 16_384
NOT_NOW = frozenset({"TRYAGAIN", "CLUSTERDOWN"})


def slot_of(key: bytes) -> int:
    """Of a key; of its part in braces where it has one that is not empty."""
    _, opened, rest = key.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return crc_hqx(tag if opened and closed and tag else key, 0) % SLOTS


@dataclass(frozen=True, slots=True)
class Redirect:
    """`ask`: for one command only."""

    ask: bool
    slot: int
    address: Address


def redirect(reply: object, answered: Address) -> Redirect | None:
    """Where an answer sends the caller; None for any other answer. `answered`: whose answer it is; a redirect that names no host means the same host."""
    word = error_word(reply)
    if word not in ("MOVED", "ASK"):
        return None
    parts = str(reply).split(" ")
    if len(parts) < 3 or not parts[1].isdigit():
        return None
    host, _, port = parts[2].rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65_535:
        return None
    return Redirect(word == "ASK", int(parts[1]), (_host(host, answered), int(port)))


class SlotMap:
    """Ranges of slots and their masters, as one node has told them, and what was learned since of single slots."""

    def __init__(self, reply: Any, answered: Address) -> None:
        """`reply`: to CLUSTER SLOTS. Raises ValueError for any other answer."""
        try:
            ranges = [(int(first), int(last), (_host(_text(node[0]), answered), int(node[1]))) for first, last, node, *_ in reply]
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError("not a map of slots") from error
        self._ranges = sorted(ranges)
        self._since: dict[int, Address] = {}

    def holder(self, slot: int) -> Address | None:
        known = self._since.get(slot)
        if known is not None:
            return known
        at = bisect_right(self._ranges, slot, key=_first) - 1
        return self._ranges[at][2] if at >= 0 and slot <= self._ranges[at][1] else None

    def moved(self, slot: int, address: Address) -> None:
        self._since[slot] = address


def _first(item: tuple[int, int, Address]) -> int:
    return item[0]


def _host(named: str, answered: Address) -> str:
    """'' and '?': a node that does not know its own name."""
    host = named.strip("[]")
    return answered[0] if host in ("", "?") else host


def _text(raw: object) -> str:
    return raw.decode("ascii", "replace") if isinstance(raw, bytes) else ""

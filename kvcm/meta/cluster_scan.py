"""Every block of an instance in a Redis Cluster: the keys of all masters that hold one of its slots.

SCAN knows nothing of slots, so a slot that is moved during a scan could be seen on neither side. Hence each node is asked before and after whether its slots
are where they were, and none of them is on its way; otherwise the scan begins anew. Keys are collected before anything is read, so that costs nothing else.

Danger: a slot that is moved away and back during one scan, which nobody does, would not be noticed.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Collection
from typing import Any, NamedTuple

from kvcm.common.errors import StorageError
from kvcm.common.redis.cluster_nodes import ClusterNodes
from kvcm.common.redis.connection import ConnectionLost, error_word, pack, refused
from kvcm.common.redis.target import Address
from kvcm.meta.cluster_layout import ClusterLayout

log = logging.getLogger("kvcm.meta.redis")

SCAN_TIMEOUT_S = 30.0
_SCAN_COUNT = 2048
_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 2.0, 2.0, 2.0, 5.0, 5.0, 5.0)


class Held(NamedTuple):
    """What a node says of itself: the wanted slots that it holds, and which of them are on their way to or from it."""

    slots: frozenset[int]
    moving: frozenset[int]


class Scanned(NamedTuple):
    """Block keys by bucket, possibly twice. `misplaced`: names that look like blocks of the instance and lie where nobody would look for them."""

    keys: list[array[int]]
    misplaced: int


async def scan(nodes: ClusterNodes, layout: ClusterLayout) -> Scanned:
    """Every key that exists all the while is there. Raises StorageError."""
    for pause_s in (*_PAUSES_S, None):
        before = await _holders(nodes, layout.slots)
        if before is not None:
            keys = [array("q") for _ in range(layout.buckets)]
            misplaced = await asyncio.gather(*(_scan_node(nodes, address, layout, keys) for address in before))
            if before == await _holders(nodes, layout.slots):
                return Scanned(keys, sum(misplaced))
        if pause_s is not None:
            log.info("metadata_scan_again instance=%s: slots are being moved between nodes of the Redis Cluster", layout.instance_id)
            await asyncio.sleep(pause_s)
    raise StorageError(f"slots of instance {layout.instance_id} are being moved all the time, so its blocks cannot be told for certain; it is tried again")


async def has_blocks(nodes: ClusterNodes, layout: ClusterLayout) -> bool:
    """Raises StorageError."""
    return any(len(keys) for keys in (await scan(nodes, layout)).keys)


def held_by(text: str, wanted: Collection[int]) -> Held:
    """From a node's answer to CLUSTER NODES. Raises ValueError when its line about itself is missing or no master's."""
    for line in text.splitlines():
        parts = line.split(" ")
        flags = parts[2].split(",") if len(parts) > 7 else []
        if "myself" not in flags:
            continue
        if "master" not in flags:
            break
        slots: set[int] = set()
        moving: set[int] = set()
        for part in parts[8:]:
            if part.startswith("["):
                digits = part[1:].partition("-")[0]
                moving |= {int(digits)} & set(wanted) if digits.isdigit() else set()
                continue
            first, _, last = part.partition("-")
            low, high = int(first), int(last or first)
            slots.update(slot for slot in wanted if low <= slot <= high)
        return Held(frozenset(slots), frozenset(moving))
    raise ValueError("not the answer of a master")


async def _holders(nodes: ClusterNodes, slots: Collection[int]) -> dict[Address, frozenset[int]] | None:
    """Which slots the nodes say they hold; None while that is not the same as what others say of them, or any slot is on its way."""
    await nodes.ask_for_map(force=True)
    said = await nodes.holders(slots)
    held = await asyncio.gather(*(_held(nodes, address, slots) for address in said))
    if any(one is None or one.moving or one.slots != frozenset(said[address]) for address, one in zip(said, held, strict=True)):
        return None
    return {address: frozenset(slots) for address, slots in said.items()}


async def _held(nodes: ClusterNodes, address: Address, slots: Collection[int]) -> Held | None:
    reply = await _ask(nodes, address, pack("CLUSTER", "NODES"))
    try:
        return held_by(reply.decode("ascii", "replace"), slots) if isinstance(reply, bytes) else None
    except ValueError:
        return None


async def _scan_node(nodes: ClusterNodes, address: Address, layout: ClusterLayout, keys: list[array[int]]) -> int:
    """Adds to the keys of each bucket; returns how many names were misplaced."""
    misplaced = 0
    cursor = b"0"
    while True:
        cursor, names = await _ask(nodes, address, pack("SCAN", cursor, "MATCH", layout.pattern, "COUNT", _SCAN_COUNT))
        for name in names:
            place = layout.block_of(name)
            if place is None:
                misplaced += 1
            else:
                keys[place[0]].append(place[1])
        if cursor == b"0":
            return misplaced


async def _ask(nodes: ClusterNodes, address: Address, command: bytes) -> Any:
    connection = await nodes.to(address)
    try:
        (reply,) = await connection.send(command, 1, SCAN_TIMEOUT_S)
    except ConnectionLost as error:
        raise StorageError(f"the blocks in {nodes.shown} could not be looked for: {error.message}") from error
    if error_word(reply):
        raise refused(reply, "to show blocks")
    return reply

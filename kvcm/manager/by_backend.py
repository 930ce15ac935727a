"""Reads that ask for one location per kind of storage (wire contract 4.8).

Each selector names a kind. Usually the answer for a key is drawn among its locations of exactly that kind. For kinds that hosts report (their bytes lie in a
host's memory) a caller may want one host for all keys instead, because it opens one connection only: the host with the longest prefix, or with most keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum

from kvcm.common.errors import InvalidArgument
from kvcm.common.uri import parse_uri
from kvcm.config.model import InstanceGroup
from kvcm.data_storage.model import StorageType
from kvcm.manager.chooser import Chooser, Usable
from kvcm.manager.ports import WireCodec
from kvcm.manager.shard import InstanceShard
from kvcm.meta.location import Location

REPORTED = frozenset({StorageType.EVENT_REPORT_L1P5, StorageType.EVENT_REPORT_L2})
MAX_CHOICES = 131_072
"""Keys times selectors of one call: no more work than the largest batch read."""


class SelectStrategy(IntEnum):
    """Numbers of the wire enum LocationSelectStrategy. The two that name a peer act as WEIGHTED_RANDOM for kinds that no host reports."""

    UNSPECIFIED = 0
    PEER_PREFIX = 1
    PEER_COVERAGE = 2
    WEIGHTED_RANDOM = 3


@dataclass(frozen=True, slots=True)
class BackendSelector:
    kind: StorageType
    strategy: SelectStrategy = SelectStrategy.UNSPECIFIED

    @property
    def wants_peer(self) -> bool:
        return self.kind in REPORTED and self.strategy in (SelectStrategy.PEER_PREFIX, SelectStrategy.PEER_COVERAGE)


@dataclass(frozen=True, slots=True)
class BackendQuery:
    """`spec_names`: only locations that have one of these count, and only these specs are shown; empty means all."""

    keys: Sequence[int]
    selectors: Sequence[BackendSelector]
    spec_names: Collection[str] = ()


def pick_peer(holders: Sequence[Collection[str]], *, prefix: bool) -> str | None:
    """One peer for all keys; `holders[i]` are the peers that have key i.

    `prefix`: who has the longest run from key 0 on; None when nobody has key 0. Otherwise: who has most keys; None when nobody has any. Of equals the
    first in the order of texts wins, so that equal questions get equal answers.
    """
    if not prefix:
        counts = Counter(peer for peers in holders for peer in set(peers))
        most = max(counts.values(), default=0)
        return min((peer for peer, count in counts.items() if count == most), default=None)
    running: set[str] = set(holders[0]) if holders else set()
    for peers in holders[1:]:
        still = running.intersection(peers)
        if not still:
            break
        running = still
    return min(running, default=None)


def peer_of(uri: str) -> str | None:
    """`host:port` of the host that reported a place, without a port when there is none; None for a text that is no URI."""
    try:
        parsed = parse_uri(uri)
    except InvalidArgument:
        return None
    if not parsed.host:
        return None
    return parsed.host if parsed.port is None else f"{parsed.host}:{parsed.port}"


class BackendSearcher:
    def __init__(self, chooser: Chooser, codec: WireCodec) -> None:
        self._chooser = chooser
        self._codec = codec

    async def locate(self, shard: InstanceShard, group: InstanceGroup | None, query: BackendQuery, now_us: int) -> list[list[bytes]]:
        """For each key what its selectors found, in their order: framed locations, one per selector at most.

        Raises InvalidArgument (no selector, or too many choices) and AllStoragesDown.
        """
        if not query.selectors:
            raise InvalidArgument("backend_selectors is empty; name at least one backend_type")
        if len(query.selectors) * len(query.keys) > MAX_CHOICES:
            raise InvalidArgument(
                f"a call may ask for at most {MAX_CHOICES} choices, not for {len(query.selectors)} selectors times {len(query.keys)} blocks; ask in parts"
            )
        doubtful = await self._chooser.doubtful(shard, group, query.keys)
        wanted = frozenset(query.spec_names)
        usable = [self._usable(shard, key, doubtful, wanted) for key in query.keys]
        found: list[list[bytes]] = [[] for _ in query.keys]
        for selector in query.selectors:
            for entry, hit in zip(found, self._select(selector, usable, wanted), strict=True):
                if hit is not None:
                    entry.append(hit)
        shard.index.access.touch_keys((key for key, entry in zip(query.keys, found, strict=True) if entry), now_us)
        return found

    def _usable(self, shard: InstanceShard, key: int, doubtful: Set[Location], wanted: Set[str]) -> Usable:
        usable = self._chooser.usable(shard, key, doubtful)
        if not wanted:
            return usable
        kept = {place: [location for location in locations if not wanted.isdisjoint(self._names(location))] for place, locations in usable.items()}
        return {place: locations for place, locations in kept.items() if locations}

    def _select(self, selector: BackendSelector, usable: Sequence[Usable], wanted: Set[str]) -> list[bytes | None]:
        kind = int(selector.kind)
        typed = [{place: locations for place, locations in places.items() if place[0] == kind} for places in usable]
        if selector.wants_peer:
            return self._of_peer(typed, wanted, prefix=selector.strategy is SelectStrategy.PEER_PREFIX)
        return [self._shown(self._chooser.merge(self._chooser.draw(places))[0], wanted) if places else None for places in typed]

    def _of_peer(self, typed: Sequence[Usable], wanted: Set[str], *, prefix: bool) -> list[bytes | None]:
        """The chosen peer's own location for each key that it holds; for a prefix, of its run only."""
        holders = [self._by_peer(places, wanted) for places in typed]
        peer = pick_peer(holders, prefix=prefix)
        if peer is None:
            return [None] * len(holders)
        end = next((at for at, peers in enumerate(holders) if peer not in peers), len(holders)) if prefix else len(holders)
        return [self._shown(peers[peer].wire, wanted) if at < end and peer in peers else None for at, peers in enumerate(holders)]

    def _by_peer(self, places: Usable, wanted: Set[str]) -> Mapping[str, Location]:
        found: dict[str, Location] = {}
        for locations in places.values():
            for location in locations:
                uri = next((uri for name, uri in self._codec.decode(location.wire)[1] if not wanted or name in wanted), "")
                peer = peer_of(uri)
                if peer is not None:
                    found.setdefault(peer, location)
        return found

    def _shown(self, wire: bytes, wanted: Set[str]) -> bytes:
        if not wanted:
            return wire
        type_code, specs = self._codec.decode(wire)
        return self._codec.encode(type_code, [spec for spec in specs if spec[0] in wanted])

    def _names(self, location: Location) -> list[str]:
        return [name for name, _ in self._codec.decode(location.wire)[1]]

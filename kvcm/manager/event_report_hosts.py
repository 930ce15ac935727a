"""How much of a prompt each host holds (wire contract 4.11): for schedulers that send a request where its blocks are.

A host counts as one, whatever kinds it reports as. `local` is how many of the leading blocks it holds itself. The best hosts are also looked at together with
one peer: how far the two come, and how many blocks the host would fetch. Peers count with what they report as L2 only: only that can be fetched from them.

For hybrid models (prefix match with Mamba) a block counts when the host has every spec of the instance's full-attention groups (names that begin with F), and
the prefix ends behind the last block for which it also has every spec of the state groups (names that begin with L).

What a host has of a block is one number: bit 0 "anything", then a bit for each spec that matters, and the same again for L2 alone. A query of a hundred
thousand blocks over many hosts stays small and quick that way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kvcm.common.errors import InvalidArgument
from kvcm.config.model import Instance, QueryType
from kvcm.data_storage.model import StorageType
from kvcm.manager.event_report_roster import Roster
from kvcm.manager.ports import Storages, WireCodec
from kvcm.manager.shard import InstanceShard
from kvcm.meta.location import is_reported

MAX_P2P_HOSTS = 64
MAX_HYBRID_PEERS = 32
"""Of a hybrid query: each peer is a walk over all blocks there."""
_L2 = int(StorageType.EVENT_REPORT_L2)
_SLICE = 256
_WALK_SLICE = 4096


@dataclass(frozen=True, slots=True)
class HostQuery:
    """`mediums`: only copies there count; empty means all. `p2p_hosts`: how many of the best hosts to look at together with a peer."""

    keys: Sequence[int]
    query_type: QueryType = QueryType.UNSPECIFIED
    mediums: Collection[str] = ()
    p2p_hosts: int = 0


@dataclass(frozen=True, slots=True)
class HostMatch:
    """Numbers of blocks. Without a peer `p2p_total` is `local` and `p2p_fetch` is 0."""

    host: str
    local: int
    p2p_fetch: int
    p2p_total: int


@dataclass(frozen=True, slots=True)
class Need:
    """Bits that a block needs to count, and those that it needs for a prefix to end behind it. `bit_of`: of the specs that matter."""

    full: int = 1
    whole: int = 1
    bit_of: Mapping[str, int] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return len(self.bit_of) + 1


Row = Mapping[str, int]
"""Host -> what it has of one block: own bits, and above them (shifted by `Need.width`) those in L2."""


class HostStates:
    def __init__(self, storages: Storages, codec: WireCodec) -> None:
        self._storages = storages
        self._codec = codec

    async def match(self, shard: InstanceShard, query: HostQuery) -> list[HostMatch]:
        """Hosts that hold the first block, by name. Raises InvalidArgument (query type, spec groups)."""
        need = need_of(shard.instance, query.query_type)
        rows = await self._rows(shard, shard.reports, query, need) if shard.reports is not None else []
        if not rows:
            return []
        pop = shard.instance.model_deployment.use_eagle_pop
        local: dict[str, int] = {}
        for host in sorted(rows[0]):
            length, _ = await walk(rows, host, None, need, pop)
            if length:
                local[host] = length
        best = sorted(local, key=lambda host: (-local[host], host))[: min(query.p2p_hosts, MAX_P2P_HOSTS)]
        extended = {host: await extend(rows, host, need, pop) for host in best}
        return [HostMatch(host, length, *max(extended.get(host, (0, length)), (0, length), key=lambda pair: pair[1])) for host, length in local.items()]

    async def _rows(self, shard: InstanceShard, roster: Roster, query: HostQuery, need: Need) -> list[Row]:
        """Who has what of the leading blocks; ends where nobody can go on."""
        rows: list[Row] = []
        alive: set[str] = set()
        for at, key in enumerate(query.keys):
            if at and not at % _SLICE:
                await asyncio.sleep(0)
            row = self._row(shard, roster, key, query.mediums, need)
            alive = alive.intersection(row) if at else set(row)
            if not row or not (alive or query.p2p_hosts):
                break
            rows.append(row)
        return rows

    def _row(self, shard: InstanceShard, roster: Roster, key: int, mediums: Collection[str], need: Need) -> Row:
        row: dict[str, int] = {}
        for location in shard.index.get(key):
            if not is_reported(location) or not roster.is_shown(location) or not self._storages.available(self._storages.name_of(location.storage_slot)):
                continue
            source = roster.source_of(location)
            if source is None or (mediums and source.medium not in mediums):
                continue
            bits = 1
            if need.bit_of:
                for name, _ in self._codec.decode(location.wire)[1]:
                    bits |= need.bit_of.get(name, 0)
            if location.type_code == _L2:
                bits |= bits << need.width
            row[source.reporter.host] = row.get(source.reporter.host, 0) | bits
        return row


def need_of(instance: Instance, query_type: QueryType) -> Need:
    """What a query of this type asks of each block; unspecified means the instance's own default. Raises InvalidArgument."""
    if query_type is QueryType.UNSPECIFIED:
        query_type = instance.default_query_type or QueryType.PREFIX_MATCH
    if query_type is QueryType.PREFIX_MATCH:
        return Need()
    if query_type is not QueryType.PREFIX_MATCH_WITH_MAMBA:
        raise InvalidArgument("host cache states are asked for with QT_PREFIX_MATCH or QT_PREFIX_MATCH_WITH_MAMBA")
    full: set[str] = set()
    state: set[str] = set()
    for group in instance.location_spec_groups:
        if group.name[:1] not in ("F", "L"):
            raise InvalidArgument(
                f"QT_PREFIX_MATCH_WITH_MAMBA knows spec groups whose names begin with F (full attention) or L (state) only; '{group.name}' is neither"
            )
        (full if group.name[0] == "F" else state).update(group.spec_names)
    bit_of = {name: 2 << at for at, name in enumerate(sorted(full | state))}
    needed = 1 | sum(bit_of[name] for name in full)
    return Need(needed, needed | sum(bit_of[name] for name in state - full), bit_of)


async def walk(rows: Sequence[Row], host: str, peer: str | None, need: Need, pop: bool) -> tuple[int, int]:
    """(blocks that count, how many of them the host fetches from the peer). `pop`: the engine computes its last block anew."""
    full, whole, width = need.full, need.whole, need.width
    own_part = (1 << width) - 1
    ends: list[int] = []
    fetched: list[int] = []
    end = len(rows)
    for at, row in enumerate(rows):
        if at and not at % _WALK_SLICE:
            await asyncio.sleep(0)
        own = row.get(host, 0) & own_part
        both = own | row.get(peer, 0) >> width if peer is not None else own
        if both & full != full:
            end = at
            break
        if both & whole == whole:
            ends.append(at + 1)
        if own & full != full or (both & whole == whole and own & whole != whole):
            fetched.append(at)
    limit = end - 1 if pop and end else end
    length = next((stop for stop in reversed(ends) if stop <= limit), 0)
    return length, sum(at < (length if need.bit_of else end) for at in fetched)


async def extend(rows: Sequence[Row], host: str, need: Need, pop: bool) -> tuple[int, int]:
    """(blocks to fetch, blocks in all) with the one peer that brings the host furthest; (0, 0) when none helps."""
    if need.bit_of:
        return await _extend_hybrid(rows, host, need, pop)
    peers: set[str] | None = None
    fetched, end = 0, len(rows)
    for at, row in enumerate(rows):
        if at and not at % _WALK_SLICE:
            await asyncio.sleep(0)
        if row.get(host, 0):
            continue
        having = {name for name, bits in row.items() if bits >> need.width} if peers is None else {name for name in peers if row.get(name, 0) >> need.width}
        if not having:
            end = at
            break
        peers, fetched = having, fetched + 1
    return fetched, max(0, end - 1) if pop else end


async def _extend_hybrid(rows: Sequence[Row], host: str, need: Need, pop: bool) -> tuple[int, int]:
    """Which block a peer has to have depends on where the state lies, so those with most blocks are tried one by one."""
    having: Counter[str] = Counter()
    for at, row in enumerate(rows):
        if at and not at % _WALK_SLICE:
            await asyncio.sleep(0)
        having.update(name for name, bits in row.items() if name != host and bits >> need.width)
    best = (0, 0)
    for peer, _ in sorted(having.items(), key=lambda entry: (-entry[1], entry[0]))[:MAX_HYBRID_PEERS]:
        total, fetched = await walk(rows, host, peer, need, pop)
        if (total, -fetched) > (best[1], -best[0]):
            best = (fetched, total)
        await asyncio.sleep(0)
    return best

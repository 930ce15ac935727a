"""Coordination through etcd (`etcd://host:port[,...]/prefix`; the whole URI: `kvcm.etcd.uri`).

The lease is etcd's; the leader's key hangs on it and is created in a transaction that compares its create revision with 0. That revision is the epoch: etcd
never gives one twice. Renewals write nothing, so an idle cluster leaves etcd's history alone.

Dangers:
- a key that somebody deletes by hand while its lease lives: the lease alone could be renewed for ever beside a new leader, so each renewal reads the key too;
- an answer that is lost. Each attempt has a lease of its own, so a read tells whether the key is that attempt's; if it is not, the lease is revoked, and the
  request can do nothing any more wherever it still is;
- an etcd that was restored from nothing starts its revisions anew, below what the stores' fences remember: `epoch_floor` lifts a base above it.

Every question goes through etcd's quorum: ten small reads a second and node while it waits to lead, which also find a free lease within one loop interval.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kvcm.common.errors import OutcomeUnknown
from kvcm.coordination.etcd_nodes import EtcdNodes
from kvcm.coordination.etcd_records import Held, Keys, base_of, dump, held, leader_value, text_of
from kvcm.coordination.port import Leader, NodeInfo, check_campaign, check_node, check_shared, check_text
from kvcm.etcd.client import EtcdClient
from kvcm.etcd.errors import EtcdUnavailable
from kvcm.etcd.model import Compare, Delete, Get, Put
from kvcm.etcd.uri import parse_etcd_uri

# The runner gives a call a third of the lease; a little less, so that our own deadline names the endpoint and leaves it.
_SHARE = 0.3
_MIN_CALL_S = 1.0
_MAX_CALL_S = 5.0
_MAX_TERMS = 16
_log = logging.getLogger("kvcm.coordination")


@dataclass(frozen=True, slots=True)
class _Term:
    """A won lease as this process knows it."""

    epoch: int
    lease: int
    ttl_s: int


class EtcdCoordinator:
    def __init__(self, uri: str, epoch_floor: int = 0) -> None:
        """Raises InvalidArgument."""
        config = parse_etcd_uri(uri)
        self._client = EtcdClient(config)
        self._keys = Keys.of(config)
        self._nodes = EtcdNodes(self._client, self._keys)
        self._limit_s = min(config.timeout_s, _MAX_CALL_S)
        self._floor = epoch_floor
        self._terms: dict[str, _Term] = {}

    async def campaign(self, node_id: str, lease_ms: int) -> int | None:
        check_campaign(node_id, lease_ms)
        async with self._limited(lease_ms):
            answer = await self._client.txn((), [Get(self._keys.leader), Get(self._keys.epoch_base)])
            kv, base_kv = answer.found(0), answer.found(1)
            if kv is not None:
                holder = held(kv)
                if holder.leader.node_id != node_id:
                    return None
                await self._void(holder)
            base = base_of(base_kv)
            if base + answer.revision < self._floor:
                _log.warning("etcd_epochs_lifted floor=%d: etcd's revisions are below an epoch that a store has seen; did it lose its data?", self._floor)
                base = self._floor
            compares = [
                Compare(self._keys.leader, "create_revision", 0),
                Compare(self._keys.epoch_base, "mod_revision", base_kv.mod_revision if base_kv else 0),
            ]
            puts = [Put(self._keys.epoch_base, dump({"epoch_base": base}))] if base != base_of(base_kv) else []
            return await self._take(node_id, math.ceil(lease_ms / 1000), compares, puts, base)

    async def _take(self, node_id: str, ttl_s: int, compares: list[Compare], puts: list[Put], base: int) -> int | None:
        lease = await self._client.grant(ttl_s)
        value = leader_value(node_id, base)
        try:
            answer = await self._client.txn(compares, [Put(self._keys.leader, value, lease.id), *puts])
            won, revision = answer.succeeded, answer.revision
        except OutcomeUnknown:
            kv, _ = await self._client.get(self._keys.leader)
            won, revision = kv is not None and kv.lease == lease.id, kv.create_revision if kv else 0
            if not won:
                await self._client.revoke(lease.id)
                raise
        if not won:
            await self._client.revoke(lease.id)
            return None
        while len(self._terms) >= _MAX_TERMS:
            self._terms.pop(next(iter(self._terms)))
        self._terms[node_id] = _Term(base + revision, lease.id, ttl_s)
        return base + revision

    async def _void(self, old: Held) -> None:
        """End an earlier term of this very node, so that the next one has a revision of its own."""
        await self._client.txn([Compare(self._keys.leader, "create_revision", old.create_revision)], [Delete(self._keys.leader)])
        if old.lease:
            await self._client.revoke(old.lease)

    async def keep_alive(self, node_id: str, epoch: int, lease_ms: int) -> bool:
        check_campaign(node_id, lease_ms)
        ttl_s = math.ceil(lease_ms / 1000)
        async with self._limited(lease_ms):
            term = self._terms.get(node_id)
            if term is None or (term.epoch, term.ttl_s) != (epoch, ttl_s):
                now = await self._held_by(node_id, epoch)
                return now is not None and await self._move(node_id, now, ttl_s)
            alive, now = await asyncio.gather(self._client.keep_alive(term.lease), self._held_by(node_id, epoch))
            if now is None:
                return False
            if now.lease != term.lease:
                # Another process of this node has given the key another lease.
                return await self._move(node_id, now, ttl_s)
            return alive

    async def _move(self, node_id: str, now: Held, ttl_s: int) -> bool:
        """Hang the key on a new lease of this length; the epoch stays. False when the term has ended meanwhile."""
        lease = await self._client.grant(ttl_s)
        compares = [Compare(self._keys.leader, "create_revision", now.create_revision)]
        try:
            moved = (await self._client.txn(compares, [Put(self._keys.leader, now.value, lease.id)])).succeeded
        except OutcomeUnknown:
            kv, _ = await self._client.get(self._keys.leader)
            moved = kv is not None and kv.lease == lease.id
            if not moved:
                await self._client.revoke(lease.id)
                raise
        if not moved:
            await self._client.revoke(lease.id)
            return False
        self._terms[node_id] = _Term(now.leader.epoch, lease.id, ttl_s)
        if now.lease:
            await self._client.revoke(now.lease)
        return True

    async def resign(self, node_id: str, epoch: int) -> None:
        async with self._limited():
            term = self._terms.get(node_id)
            now = await self._held_by(node_id, epoch)
            if now is not None:
                await self._void(now)
            if term is not None and term.epoch == epoch:
                del self._terms[node_id]

    async def observe(self) -> Leader | None:
        async with self._limited():
            kv, _ = await self._client.get(self._keys.leader)
            return held(kv).leader if kv is not None else None

    async def put_node_info(self, node_id: str, info: str) -> None:
        check_node(node_id)
        check_text(info)
        async with self._limited():
            await self._nodes.put(node_id, info)

    async def get_node_info(self, node_id: str) -> str | None:
        async with self._limited():
            return await self._nodes.get(node_id)

    async def list_nodes(self) -> tuple[NodeInfo, ...]:
        async with self._limited():
            return await self._nodes.all()

    async def remove_node_info(self, node_id: str) -> None:
        async with self._limited():
            await self._nodes.remove(node_id)

    async def put_shared(self, node_id: str, epoch: int, name: str, text: str) -> bool:
        check_shared(name, text)
        async with self._limited():
            now = await self._held_by(node_id, epoch)
            if now is None:
                return False
            compares = [Compare(self._keys.leader, "create_revision", now.create_revision)]
            return (await self._client.txn(compares, [Put(self._keys.shared + name.encode(), dump({"text": text}))])).succeeded

    async def get_shared(self, name: str) -> str | None:
        check_shared(name)
        async with self._limited():
            kv, _ = await self._client.get(self._keys.shared + name.encode())
            return text_of(kv, "text")

    async def close(self) -> None:
        await self._client.close()

    async def _held_by(self, node_id: str, epoch: int) -> Held | None:
        """The leader's key, if this node holds it with this epoch."""
        kv, _ = await self._client.get(self._keys.leader)
        now = held(kv) if kv is not None else None
        return now if now is not None and now.leader == Leader(node_id, epoch) else None

    @asynccontextmanager
    async def _limited(self, lease_ms: int | None = None) -> AsyncIterator[None]:
        """One deadline for all requests of a call."""
        limit_s = self._limit_s
        if lease_ms is not None:
            limit_s = min(limit_s, max(_MIN_CALL_S, _SHARE * lease_ms / 1000))
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            raise EtcdUnavailable(f"etcd at {', '.join(self._client.config.endpoints)} did not answer in time.") from None

"""How nodes are reached, in etcd: one key a node, on a lease that the node's next put renews. Unchanged information is not written again.

Danger: a node that starts anew often under new names. The leases make its old names go; `MAX_NODES` bounds what is there at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcm.common.errors import StorageError
from kvcm.coordination.etcd_records import Keys, dump, text_of
from kvcm.coordination.port import MAX_NODES, NODE_INFO_TTL_MS, NodeInfo
from kvcm.etcd.client import EtcdClient
from kvcm.etcd.model import Put, prefix_end

_PAGE = 32


@dataclass(frozen=True, slots=True)
class _Published:
    value: bytes
    lease: int


class EtcdNodes:
    def __init__(self, client: EtcdClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._published: dict[str, _Published] = {}

    async def put(self, node_id: str, info: str) -> None:
        value, last = dump({"info": info}), self._published.get(node_id)
        key, end = self._keys.node(node_id), prefix_end(self._keys.nodes)
        kv, _ = await self._client.get(key)
        known = kv is not None and last is not None and kv.lease == last.lease and await self._client.keep_alive(last.lease)
        if known and kv is not None and kv.value == value:
            return
        if kv is None and (await self._client.range(self._keys.nodes, end, limit=1, keys_only=True)).count >= MAX_NODES:
            raise StorageError(f"At most {MAX_NODES} nodes can be known.")
        lease = last.lease if known and last is not None else (await self._client.grant(NODE_INFO_TTL_MS // 1000)).id
        await self._client.txn((), [Put(key, value, lease)])
        while len(self._published) >= MAX_NODES:
            self._published.pop(next(iter(self._published)))
        self._published[node_id] = _Published(value, lease)
        if kv is not None and kv.lease and kv.lease != lease:
            # Of an earlier life of this node; the key hangs on the new lease already.
            await self._client.revoke(kv.lease)

    async def get(self, node_id: str) -> str | None:
        kv, _ = await self._client.get(self._keys.node(node_id))
        return text_of(kv, "info")

    async def all(self) -> tuple[NodeInfo, ...]:
        """At most `MAX_NODES`, as they were at one moment."""
        found: list[NodeInfo] = []
        start, revision = self._keys.nodes, 0
        while len(found) < MAX_NODES:
            page = await self._client.range(start, prefix_end(self._keys.nodes), limit=_PAGE, revision=revision)
            for kv in page.kvs:
                info = text_of(kv, "info")
                if info is not None:
                    found.append(NodeInfo(self._keys.node_id(kv.key), info))
            if not page.more or not page.kvs:
                break
            start, revision = page.kvs[-1].key + b"\0", page.revision
        return tuple(sorted(found, key=lambda node: node.node_id)[:MAX_NODES])

    async def remove(self, node_id: str) -> None:
        self._published.pop(node_id, None)
        key = self._keys.node(node_id)
        kv, _ = await self._client.get(key)
        if kv is None:
            return
        await self._client.delete(key)
        if kv.lease:
            await self._client.revoke(kv.lease)

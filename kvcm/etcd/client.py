"""The client: reads, fenced writes, leases and watches of one etcd (API v3, etcd 3.4 and newer).

Every method has a deadline (`timeout_s`, or the one of the URI), asks the endpoints in turn, and raises EtcdError when nothing was written or OutcomeUnknown
when that is not known. One client serves any number of tasks on one event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.etcd import etcd_v3_pb2 as pb
from kvcm.etcd import wire
from kvcm.etcd.calls import Caller
from kvcm.etcd.errors import Compacted, LeaseGone
from kvcm.etcd.model import Compare, Delete, Get, KeyValue, Lease, Op, Put, RangeResult, TxnResult
from kvcm.etcd.uri import EtcdConfig
from kvcm.etcd.watch import DEFAULT_SILENCE_S, Watch


class EtcdClient:
    """Opens its first connection with its first call."""

    def __init__(self, config: EtcdConfig) -> None:
        self.config = config
        self._caller = Caller(config)

    async def get(self, key: bytes, *, timeout_s: float | None = None) -> tuple[KeyValue | None, int]:
        """What is under the key, and the store's revision at which this was so. Linearizable: no member answers from the past."""
        found = await self.range(key, timeout_s=timeout_s)
        return found.first, found.revision

    async def range(
        self, key: bytes, range_end: bytes = b"", *, limit: int = 0, revision: int = 0, keys_only: bool = False, timeout_s: float | None = None
    ) -> RangeResult:
        """Keys from `key` up to but without `range_end`, ascending. `revision`: as it was then (0: now). Raises Compacted, RequestTooLarge too.

        An answer holds at most 16 MiB; whoever may find more sets a `limit` and goes on behind the last key at the same revision.
        """
        request = pb.RangeRequest(key=key, range_end=range_end, limit=limit, revision=revision, keys_only=keys_only)
        return wire.range_result(await self._caller.call(wire.RANGE, request, timeout_s=timeout_s))

    async def put(self, key: bytes, value: bytes, lease: int = 0, *, timeout_s: float | None = None) -> None:
        """Raises LeaseGone too."""
        await self.txn((), [Put(key, value, lease)], timeout_s=timeout_s)

    async def delete(self, key: bytes, range_end: bytes = b"", *, timeout_s: float | None = None) -> int:
        """How many keys there were."""
        result = await self.txn((), [Delete(key, range_end)], timeout_s=timeout_s)
        answer = result.answers[0]
        return answer if isinstance(answer, int) else 0

    async def txn(self, compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = (), *, timeout_s: float | None = None) -> TxnResult:
        """All of `success` if all compares hold, else all of `failure`; one step. No key may be written twice in it.

        etcd takes 128 operations in one transaction unless it was told otherwise; more raise RequestTooLarge.
        """
        reads_only = all(isinstance(op, Get) for op in (*success, *failure))
        reply = await self._caller.call(wire.TXN, wire.txn_request(compares, success, failure), repeatable=reads_only, timeout_s=timeout_s)
        return wire.txn_result(reply)

    async def grant(self, ttl_s: int, *, timeout_s: float | None = None) -> Lease:
        """A new lease of at least so many seconds."""
        reply = await self._caller.call(wire.GRANT, pb.LeaseGrantRequest(ttl=ttl_s), timeout_s=timeout_s)
        return Lease(reply.id, reply.ttl)

    async def keep_alive(self, lease_id: int, *, timeout_s: float | None = None) -> bool:
        """Renew the lease for its whole time, counted from when etcd got the request. False: it is gone, and the keys under it are or will be."""
        reply = await self._caller.call(wire.KEEP_ALIVE, pb.LeaseKeepAliveRequest(id=lease_id), timeout_s=timeout_s)
        return bool(reply.ttl > 0)

    async def revoke(self, lease_id: int, *, timeout_s: float | None = None) -> None:
        """End the lease and delete the keys under it. No error when it is gone."""
        try:
            await self._caller.call(wire.REVOKE, pb.LeaseRevokeRequest(id=lease_id), timeout_s=timeout_s)
        except LeaseGone:
            return

    async def time_to_live(self, lease_id: int, *, timeout_s: float | None = None) -> int:
        """Seconds that are left; 0 when the lease is gone."""
        reply = await self._caller.call(wire.TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(id=lease_id), timeout_s=timeout_s)
        return max(int(reply.ttl), 0)

    def watch(self, key: bytes, range_end: bytes = b"", *, start_revision: int, silence_s: float = DEFAULT_SILENCE_S) -> Watch:
        """Changes from this revision on, in order, each once. Close it."""
        return Watch(self._caller, key, range_end, start_revision, silence_s)

    async def compact(self, revision: int, *, timeout_s: float | None = None) -> None:
        """Forget what was before this revision. No error when that has happened already."""
        try:
            await self._caller.call(wire.COMPACT, pb.CompactionRequest(revision=revision), timeout_s=timeout_s)
        except Compacted:
            return

    async def close(self) -> None:
        """Idempotent; calls under way fail."""
        await self._caller.close()

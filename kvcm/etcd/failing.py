"""A client of etcd with fail points around each transaction that writes (see `kvcm.common.failpoints`); tests only."""

from __future__ import annotations

from collections.abc import Sequence

from kvcm.common.failpoints import FailPoints
from kvcm.etcd.client import EtcdClient
from kvcm.etcd.model import Compare, Get, Op, TxnResult
from kvcm.etcd.uri import EtcdConfig


class FailingEtcd(EtcdClient):
    def __init__(self, config: EtcdConfig, points: FailPoints, operation: str) -> None:
        super().__init__(config)
        self._points = points
        self._operation = operation

    async def txn(self, compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = (), *, timeout_s: float | None = None) -> TxnResult:
        if all(isinstance(op, Get) for op in (*success, *failure)):
            return await super().txn(compares, success, failure, timeout_s=timeout_s)
        await self._points.at(f"{self._operation}.before")
        result = await super().txn(compares, success, failure, timeout_s=timeout_s)
        await self._points.at(f"{self._operation}.after")
        return result

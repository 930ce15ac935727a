"""Between our plain values and etcd's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kvcm.etcd import etcd_v3_pb2 as pb
from kvcm.etcd.calls import Method
from kvcm.etcd.model import Compare, Delete, Event, EventKind, Get, KeyValue, Op, Put, RangeResult, TxnResult

RANGE: Final = Method("/etcdserverpb.KV/Range", "a read", pb.RangeResponse, repeatable=True)
TXN: Final = Method("/etcdserverpb.KV/Txn", "a transaction", pb.TxnResponse)
COMPACT: Final = Method("/etcdserverpb.KV/Compact", "a compaction", pb.CompactionResponse, repeatable=True)
# A lease whose grant was not heard of runs out by itself.
GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", "the grant of a lease", pb.LeaseGrantResponse, repeatable=True)
REVOKE: Final = Method("/etcdserverpb.Lease/LeaseRevoke", "the end of a lease", pb.LeaseRevokeResponse, repeatable=True)
# A stream in etcd's contract, and used as a stream of one request and one answer: it cannot get out of step, and a half-open one is found by its deadline.
KEEP_ALIVE: Final = Method("/etcdserverpb.Lease/LeaseKeepAlive", "the renewal of a lease", pb.LeaseKeepAliveResponse, repeatable=True)
TIME_TO_LIVE: Final = Method("/etcdserverpb.Lease/LeaseTimeToLive", "the question about a lease", pb.LeaseTimeToLiveResponse, repeatable=True)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", "a watch", pb.WatchResponse, repeatable=True)


def txn_request(compares: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op]) -> Any:
    return pb.TxnRequest(
        compare=[_compare(item) for item in compares],
        success=[_request_op(op) for op in success],
        failure=[_request_op(op) for op in failure],
    )


def _compare(compare: Compare) -> Any:
    targets = {"create_revision": pb.Compare.CREATE, "mod_revision": pb.Compare.MOD, "lease": pb.Compare.LEASE}
    number: dict[str, Any] = {compare.field: compare.equals}
    return pb.Compare(result=pb.Compare.EQUAL, target=targets[compare.field], key=compare.key, **number)


def _request_op(op: Op) -> Any:
    match op:
        case Get(key, range_end):
            return pb.RequestOp(request_range=pb.RangeRequest(key=key, range_end=range_end))
        case Put(key, value, lease):
            return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))
        case Delete(key, range_end):
            return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key, range_end=range_end))


def txn_result(reply: Any) -> TxnResult:
    return TxnResult(reply.succeeded, tuple(_answer(item) for item in reply.responses), reply.header.revision)


def _answer(op: Any) -> RangeResult | int | None:
    match op.WhichOneof("response"):
        case "response_range":
            return range_result(op.response_range)
        case "response_delete_range":
            return int(op.response_delete_range.deleted)
        case _:
            return None


def range_result(reply: Any) -> RangeResult:
    return RangeResult(tuple(key_value(item) for item in reply.kvs), reply.more, reply.count, reply.header.revision)


def key_value(item: Any) -> KeyValue:
    return KeyValue(item.key, item.value, item.create_revision, item.mod_revision, item.version, item.lease)


def event(item: Any) -> Event:
    return Event(EventKind.DELETE if item.type == pb.Event.DELETE else EventKind.PUT, key_value(item.kv))
